"""How close do particle messages come to dense-grid belief propagation, and at what cost?

    python benchmarks/message_passing/particle_baselines.py [--seeds 8] [--quick] [--threads 1]

4 x 4 grid, one number a node: x = 2 everywhere, seen with noise from the two-humped mixture
0.6 N(-2, 1) + 0.4 Gumbel(2, 1.3), and neighbours tied by exp(-|x_i - x_j| / 2): the setting of
Lienart, Teh & Doucet (2015), section 4, with a wide prior N(0, 10^2) besides so that the same
program is one that pg.EP takes. Truth: belief propagation with 400 points. Error: total variation
between beliefs, mean over the nodes, median over the seeds; pg.EP has no particles and no seeds.

Particle BP makes 20 Metropolis moves a sweep, and for comparison one, which costs about as many
evaluations as expectation particle BP makes. Seconds are of the processor.

Criteria: both methods come within MARGIN of the truth at the most particles and at least halve
their error from the fewest; expectation particle BP is better than particle BP with as many
particles, better than with one move, and better in the same time.

Found: with as many particles it is not better than particle BP with 20 moves, whose particles
follow the beliefs themselves; in the same time it is. With one move the chains have not left the
uniform start after ten sweeps; after forty they have, and are as good as with 20.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import gettempdir

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from expectation_particle_bp import expectation_particle_bp
from grid_bp import GridBeliefs, PairwiseModel, grid_bp
from particle_bp import ParticleMessages, particle_bp
from torch import Tensor

import pyrograph as pg

FIGURES = Path(__file__).parent / "figures"
SIDE, SUPPORT = 4, (-15.0, 20.0)
MARGIN = 0.05


def lattice(side: int) -> Tensor:
    """Edges ``[E, 2]``."""
    node = torch.arange(side * side).view(side, side)
    across = torch.stack([node[:, :-1].flatten(), node[:, 1:].flatten()], 1)
    return torch.cat([across, torch.stack([node[:-1].flatten(), node[1:].flatten()], 1)])


def observations(seed: int = 0) -> Tensor:
    """``[V]``: 2 with noise from the mixture."""
    generator = torch.Generator().manual_seed(seed)
    count = SIDE * SIDE
    normal = torch.randn(count, generator=generator) - 2
    uniform, pick = torch.rand(2, count, generator=generator)
    gumbel = 2 - 1.3 * (-uniform.log()).log()
    return 2 + torch.where(pick < 0.6, normal, gumbel)


def log_noise(error: Tensor) -> Tensor:
    """Log density of the noise."""
    left = dist.Normal(-2.0, 1.0).log_prob(error) + torch.tensor(0.6).log()
    z = (error - 2) / 1.3
    right = -z - (-z).exp() - torch.tensor(1.3).log() + torch.tensor(0.4).log()
    return torch.logaddexp(left, right)


def pairwise_model(y: Tensor) -> PairwiseModel:
    def log_unary(x: Tensor) -> Tensor:
        return log_noise(y[:, None] - x) + dist.Normal(0.0, 10.0).log_prob(x)

    def log_pair(a: Tensor, b: Tensor) -> Tensor:
        return -(a[:, :, None] - b[:, None, :]).abs() / 2

    return PairwiseModel(lattice(SIDE), log_unary, log_pair, SUPPORT)


def program(y: Tensor, edges: Tensor) -> None:
    """The same model as a Pyro program."""
    with pyro.plate("nodes", len(y)):
        x = pyro.sample("x", dist.Normal(0.0, 10.0))
        pyro.factor("noise", log_noise(y - x))
    with pyro.plate("edges", len(edges)):
        pyro.factor("tie", -(x[edges[:, 0]] - x[edges[:, 1]]).abs() / 2)


def gaussian_beliefs(y: Tensor, points: Tensor) -> tuple[Tensor, float]:
    """Of pg.EP on the grid, ``[V, G]``, and its evidence."""
    posterior = pg.fit(program, (y, lattice(SIDE)), infer=pg.EP, progress=False)
    belief = posterior.marginal("x").log_prob(points[:, None]).T.softmax(1)
    return belief, float(posterior.log_evidence)


def total_variation(probability: Tensor, truth: GridBeliefs) -> float:
    """Mean over the nodes."""
    return float((probability - truth.probability).abs().sum(1).mean()) / 2


METHODS: dict[str, Callable[[PairwiseModel, int, int], ParticleMessages]] = {
    "PBP": lambda model, n, seed: particle_bp(model, n, seed=seed),
    "PBP, 1 move": lambda model, n, seed: particle_bp(model, n, seed=seed, num_moves=1),
    "EPBP": lambda model, n, seed: expectation_particle_bp(model, n, seed=seed).messages,
}


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table and the criteria, draw the figure; True if all criteria hold."""
    args = arguments(argv)
    sizes = (10, 40) if args.quick else (10, 20, 50, 100, 200)
    y = observations()
    model = pairwise_model(y)
    began = time.process_time()
    truth = grid_bp(model)
    seconds = time.process_time() - began
    print(f"{SIDE} x {SIDE} grid, medians over {args.seeds} seeds")
    print(f"{'method':12s} {'particles':>9s} {'TV':>8s} {'range':>15s} {'seconds':>8s}")
    evidence = float(truth.log_evidence)
    print(f"{'grid BP':12s} {'':9s} {0:8.4f} {'':15s} {seconds:8.2f}  log Z {evidence:.3f}")
    began = time.process_time()
    belief, estimate = gaussian_beliefs(y, truth.points)
    gaussian, seconds = total_variation(belief, truth), time.process_time() - began
    print(f"{'pg.EP':12s} {'':9s} {gaussian:8.4f} {'':15s} {seconds:8.2f}  log Z {estimate:.3f}")
    errors, times = {}, {}
    for n in sizes:
        for name, method in METHODS.items():
            found, took = [], []
            for seed in range(args.seeds):
                began = time.process_time()
                messages = method(model, n, seed)
                took.append(time.process_time() - began)
                found.append(total_variation(messages.probability(truth.points), truth))
            errors[name, n], times[name, n] = found, median(took)
            around = f"{min(found):.4f}..{max(found):.4f}"
            row = f"{name:12s} {n:9d} {median(found):8.4f} {around:>15s} {median(took):8.3f}"
            print(row, flush=True)
    passed = [
        report(
            f"grid BP with 800 points is grid BP with 400, TV below {MARGIN / 50}",
            (refined := refinement(model, truth)) < MARGIN / 50,
            f"{refined:.5f}",
        )
    ]
    for name in ("PBP", "EPBP"):
        few, many = (median(errors[name, n]) for n in (sizes[0], sizes[-1]))
        passed.append(
            report(
                f"{name} approaches grid BP: TV below {MARGIN} at {sizes[-1]} particles, and half "
                f"of that at {sizes[0]} or less",
                many < MARGIN and many < few / 2,
                f"{few:.4f} -> {many:.4f}",
            )
        )
    for rival in ("PBP", "PBP, 1 move"):
        for n in sizes:
            name = f"{n} particles: EPBP is better than {rival}"
            passed.append(is_better(name, errors["EPBP", n], errors[rival, n]))
    for n in sizes[:-1]:
        most = max((k for k in sizes if times["EPBP", k] <= times["PBP", n]), default=sizes[0])
        name = f"EPBP with {most} particles is faster and better than PBP with {n}"
        faster = times["EPBP", most] <= times["PBP", n]
        passed.append(is_better(name, errors["EPBP", most], errors["PBP", n]) and faster)
    path = Path(gettempdir()) if args.quick else FIGURES
    path.mkdir(exist_ok=True)
    plot(model, truth, belief, errors, gaussian, sizes, path / "particle_baselines.png")
    return all(passed)


def refinement(model: PairwiseModel, truth: GridBeliefs) -> float:
    """Total variation between the truth and one of nearly twice as many points, on common ones."""
    fine = grid_bp(model, 2 * len(truth.points) - 1)
    common = fine.probability[:, ::2]
    return total_variation(common / common.sum(1, keepdim=True), truth)


def is_better(name: str, errors: Sequence[float], rival: Sequence[float]) -> bool:
    """Report whether errors are smaller in the median and on most seeds."""
    wins = sum(a < b for a, b in zip(errors, rival, strict=True))
    detail = f"{median(errors):.4f} < {median(rival):.4f}, {wins} of {len(errors)} seeds"
    return report(name, median(errors) < median(rival) and 2 * wins > len(errors), detail)


def report(name: str, holds: bool, detail: str) -> bool:
    """Print one criterion and hand back whether it holds."""
    print(f"{'pass' if holds else 'FAIL'}  {name}: {detail}")
    return bool(holds)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Flags; threads and dtype are set at once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="a few seconds, criteria only shown")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.set_default_dtype(torch.float64)
    return args


def plot(
    model: PairwiseModel,
    truth: GridBeliefs,
    gaussian: Tensor,
    errors: dict,
    gaussian_error: float,
    sizes: Sequence[int],
    path: Path,
) -> None:
    """The error against the number of particles; the belief that is least like a Gaussian."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name in METHODS:
        left.loglog(sizes, [median(errors[name, n]) for n in sizes], "o-", label=name)
    left.axhline(gaussian_error, color="gray", ls="--", label="pg.EP")
    left.set(xlabel="particles", ylabel="total variation to grid BP")
    left.legend(frameon=False)
    node = int((gaussian - truth.probability).abs().sum(1).argmax())
    width = float(truth.points[1] - truth.points[0])
    right.plot(truth.points, truth.probability[node] / width, "k", label="grid BP")
    right.plot(truth.points, gaussian[node] / width, color="gray", ls="--", label="pg.EP")
    for name in ("PBP", "EPBP"):
        found = METHODS[name](model, sizes[-1], 0).probability(truth.points)
        right.plot(truth.points, found[node] / width, label=f"{name}, {sizes[-1]} particles")
    right.set(xlim=(-8, 10), xlabel="x", ylabel=f"belief of node {node}")
    right.legend(frameon=False)
    figure.savefig(path, dpi=80)
    plt.close(figure)


if __name__ == "__main__":
    main()
