"""QBethe without a library: equation (5) for pairwise models of real nodes, in plain torch.

    F = sum_l w_l sum_k omega_k [ sum_i log phi_i(x_i^lk) + sum_ij log psi_ij(x_i^lk, x_j^lk) ]
        + sum_ij H(b_ij) + sum_i (1 - d_i) H(b_i),        x_i^lk = mean_il + sd_il z_k

with d_i the number of neighbours, beliefs sum_l w_l N_l of components that are independent in i,
and entropies by the same points,

    H(b) = -sum_l w_l sum_k omega_k log b(x^lk),     b / N_l = sum_m w_m N_m / N_l.

Ratios of a component to the one that a point belongs to are at most (sd_l / sd_m) exp(z^2 / 2), so
they are taken per node and multiplied for pairs: no logsumexp, and no exponentials on edges.

This is the yardstick of the engine's speed and of its objective:

    python benchmarks/qbethe/hand_written.py [--quick] [--threads 1]

prints F on the three-cycle and F, error and milliseconds per iteration on the 50 x 50 image.
Source: Guo, Xiong & Ruozzi (2019), "Marginal inference in continuous Markov random fields using
mixtures", equation (5).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

import criteria
import numpy as np
import programs
import torch
from criteria import report
from torch import Tensor

from pyrograph.datasets import denoise


@dataclass(frozen=True, eq=False)
class PairwiseBethe:
    """Equation (5).

    Args:
        edges: ``[E, 2]``.
        log_unary: of values ``[..., V]``, elementwise.
        log_pair: of values ``[..., E]`` of the first and of the second nodes, which broadcast.
        num_points: K.
    """

    edges: Tensor
    log_unary: Callable[[Tensor], Tensor]
    log_pair: Callable[[Tensor, Tensor], Tensor]
    num_points: int
    dtype: torch.dtype = torch.float64

    def __post_init__(self):
        nodes, weights = np.polynomial.hermite_e.hermegauss(self.num_points)
        z, omega = (torch.tensor(a, dtype=self.dtype) for a in (nodes, weights / weights.sum()))
        degree = torch.bincount(self.edges.flatten()).to(self.dtype)
        first, second = self.edges.T.contiguous()
        constants = {"z": z, "omega": omega, "degree": degree, "first": first, "second": second}
        for name, value in constants.items():
            object.__setattr__(self, name, value)

    def objective(self, loc: Tensor, log_sd: Tensor, logits: Tensor) -> Tensor:
        """F ``[]`` for means and log standard deviations ``[L, V]`` and weights ``[L]``."""
        sd, weight = log_sd.exp(), logits.softmax(0)
        x = loc[:, None] + sd[:, None] * self.z[:, None]  # [L, K, V]
        here, there = x.index_select(2, self.first), x.index_select(2, self.second)
        pair = self.log_pair(here[:, :, None], there[:, None])  # [L, K, K, E]
        both = self.omega[:, None] * self.omega
        expected = self.omega @ self.log_unary(x).sum(2).T + (pair.sum(3) * both).sum((1, 2))
        # sum_ij H(N_l) + sum_i (1 - d_i) H(N_l) = sum_i H(N_l), up to the mixing
        entropy = (log_sd + 0.5 * math.log(2 * math.pi * math.e)).sum(1)
        value = weight @ (expected + entropy)
        if len(loc) == 1:
            return value
        # [L of the points, K, L of the density, V]
        off = (x[:, :, None] - loc) * (-log_sd).exp()
        own = 0.5 * self.z.square()[:, None, None] + log_sd[:, None, None]
        ratio = (own - log_sd - 0.5 * off.square()).exp()
        single = (ratio * weight[:, None]).sum(2).log()  # log b_i / N_l at [L, K, V]
        one = (ratio * weight[:, None]).index_select(3, self.first)
        other = ratio.index_select(3, self.second)
        joint = (one[:, :, None] * other[:, None]).sum(3).log()  # [L, K, K, E]
        mixing = (single @ (1 - self.degree)) @ self.omega + (joint.sum(3) * both).sum((1, 2))
        return value - weight @ mixing


@dataclass
class Fit:
    """Parameters as they are climbed, and F before every step.

    Shapes:
        loc, log_sd: ``[L, V]``.
        logits: ``[L]``.
    """

    loc: Tensor
    log_sd: Tensor
    logits: Tensor
    trace: list[float]

    @property
    def mean(self) -> Tensor:
        """Of the beliefs, ``[V]``."""
        return self.logits.softmax(0) @ self.loc


def climb(
    bethe: PairwiseBethe,
    loc: Tensor,
    sd: float,
    num_steps: int,
    *,
    lr: float = 0.05,
    frozen: int = 400,
    watch: Callable[[Fit], None] | None = None,
) -> Fit:
    """Adam with a rate that falls to zero; the weights stay equal for ``frozen`` steps.

    Args:
        loc: ``[L, V]`` initial means.
        sd: initial standard deviation.
        watch: called before every step.
    """
    loc = loc.to(bethe.dtype).clone().requires_grad_()
    log_sd = torch.full_like(loc, math.log(sd)).requires_grad_()
    logits = torch.zeros(len(loc), dtype=bethe.dtype, requires_grad=True)
    fit = Fit(loc, log_sd, logits, [])
    optimizer = torch.optim.Adam([loc, log_sd, logits], lr, fused=True)
    for step in range(num_steps):
        optimizer.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / num_steps))
        optimizer.zero_grad()
        value = bethe.objective(loc, log_sd, logits)
        (-value).backward()
        if step < frozen:
            logits.grad = None
        fit.trace.append(value.item())
        if watch is not None:
            watch(fit)
        optimizer.step()
    loc, log_sd, logits = loc.detach(), log_sd.detach(), logits.detach()
    fit.trace.append(bethe.objective(loc, log_sd, logits).item())
    return Fit(loc, log_sd, logits, fit.trace)


def three_cycle(num_components: int, num_steps: int, seed: int) -> Fit:
    """From means of N(0, 10^2)."""
    bethe = PairwiseBethe(programs.CYCLE, programs.cycle_unary, programs.cycle_pair, 3)
    generator = torch.Generator().manual_seed(seed)
    loc = 10 * torch.randn(num_components, 3, generator=generator, dtype=torch.float64)
    return climb(bethe, loc, 1.0, num_steps, lr=0.1)


def denoising(observed: Tensor, num_points: int = 3, dtype: torch.dtype = torch.float64):
    """Equation (5) of the image model."""
    y, noise = observed.flatten().to(dtype), programs.NOISE
    constant = -math.log(noise * math.sqrt(2 * math.pi))

    def log_unary(x: Tensor) -> Tensor:
        return constant - (x - y).square() / (2 * noise**2)

    def log_pair(a: Tensor, b: Tensor) -> Tensor:
        return programs.truncated_laplace(a - b)

    edges = programs.grid_edges(*observed.shape)
    return PairwiseBethe(edges, log_unary, log_pair, num_points, dtype)


def jittered(observed: Tensor, num_components: int, scale: float = 0.05, seed: int = 0) -> Tensor:
    """Initial means ``[L, V]``: the observation, and apart from each other."""
    generator = torch.Generator().manual_seed(seed)
    shape = num_components, observed.numel()
    apart = scale * (num_components > 1)
    return observed.flatten() + apart * torch.randn(shape, generator=generator).to(observed)


def seconds_per_step(bethe: PairwiseBethe, loc: Tensor, runs: int = 5, steps: int = 50) -> float:
    """Median over the runs."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        climb(bethe, loc, 0.1, steps)
        times.append((time.perf_counter() - begin) / steps)
    return median(times)


def main(argv: Sequence[str] | None = None) -> bool:
    """Print both tables and check the known values."""
    args = criteria.arguments(criteria.flags(__doc__), argv)
    passed = []
    seeds, steps = (2, 600) if args.quick else (10, 1500)
    print(f"three-cycle, K = 3, {seeds} seeds: F")
    for components in range(1, 4):
        fits = [three_cycle(components, steps, seed) for seed in range(seeds)]
        found = [fit.trace[-1] for fit in fits]
        print(f"L = {components}: {mean(found):.4f} +- {stdev(found):.4f}, best {max(found):.4f}")
        if components == 1:
            best = max(fits, key=lambda fit: fit.trace[-1])
            loc, order = best.loc[0].sort()
            sd = best.log_sd[0].exp()[order]
            detail = f"F {max(found):.4f}, means {loc.tolist()}, sd {sd.tolist()}"
            known = torch.tensor([-9.75, 0.0, 9.75]), torch.tensor([1.58, 1.51, 1.58])
            close = (loc - known[0]).abs().max() < 0.01 and (sd - known[1]).abs().max() < 0.01
            holds = abs(max(found) + 17.9332) < 1e-3 and bool(close)
            passed.append(report("one component: the known F, means and sd", holds, detail))
    image = denoise()
    noisy = float(image.mean_square_error(image.observed))
    print(f"\n50 x 50 image, K = 3, noisy MSE {noisy:.5f}")
    print(f"{'L':>2s} {'F':>9s} {'K = 30':>9s} {'MSE':>8s} {'ms/step':>8s} {'float64':>8s}")
    steps = 60 if args.quick else 500
    for components in (1, 5):
        loc = jittered(image.observed, components)
        bethe = denoising(image.observed)
        fit = climb(bethe, loc, 0.1, steps, lr=0.02, frozen=steps // 2)
        certified = denoising(image.observed, 30 if components == 1 else 10)
        error = float(image.mean_square_error(fit.mean))
        runs = 1 if args.quick else 5
        single = denoising(image.observed, dtype=torch.float32)
        fast, slow = (1e3 * seconds_per_step(b, loc, runs) for b in (single, bethe))
        finer = float(certified.objective(fit.loc, fit.log_sd, fit.logits))
        row = f"{components:2d} {fit.trace[-1]:9.2f} {finer:9.2f} {error:8.5f} "
        print(row + f"{fast:8.2f} {slow:8.2f}", flush=True)
        name = f"L = {components}: the error is less than half of the noise"
        passed.append(report(name, error < noisy / 2, f"{error:.5f} of {noisy:.5f}"))
    return all(passed)


if __name__ == "__main__":
    main()
