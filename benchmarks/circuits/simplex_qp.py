"""How long do the weights of black-box importance sampling take, and how exact are they?

    python benchmarks/circuits/simplex_qp.py [--quick] [--threads 1]

min w'Kw on the simplex for two Gram matrices: "normals", the Langevin-Stein kernel of n points of
N(0, 1.5^2 I_2) against N(0, I_2), which has about 150 eigenvalues above rounding, and "lattice",
the discrete Stein kernel of n distinct states of a 4 x 4 Ising lattice with random tables. Beside
it piqp (https://github.com/PREDICT-EPFL/piqp) at tolerances 1e-9, in turn; a blank where it is not
installed. Gaps are w'Kw - min_i (Kw)_i of the weights, cut at 0 and normalised. Last, a value and
its derivatives by K at n = 500, beside a CvxpyLayer in the root of K.

Criteria (one thread): gaps at most 1e-12, in at most 1.5 times piqp's time; on an ill-conditioned
matrix a gap of rounding; derivatives at least 100 times as fast as those of the layer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pyrograph.circuits import Hamming
from pyrograph.infer.importance import minimise_on_simplex, simplex_weights
from pyrograph.infer.importance.discrete_stein import discrete_stein_gram

sys.path.append(str(Path(__file__).parents[1]))
from timing import alternate

try:
    import piqp
except ImportError:
    piqp = None


def normals(n: int) -> Tensor:
    """Langevin-Stein matrix, RBF kernel by the median rule, 1e-10 on the diagonal."""
    x = 1.5 * torch.as_tensor(np.random.default_rng(0).normal(size=(n, 2)))
    square = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    h = float(np.median(square[np.triu_indices(n, 1)]))
    k, apart = torch.exp(-square / h), x.unsqueeze(1) - x
    cross = (x * apart).sum(-1) - (x.unsqueeze(1) * apart).sum(-1)
    gram = k * (x @ x.t() + 2 / h * cross + 4 / h - 4 / h**2 * square)
    return (gram + gram.t()) / 2 + 1e-10 * torch.eye(n)


def lattice(n: int) -> Tensor:
    """Discrete Stein matrix of distinct states, couplings and fields from N(0, .3^2)."""
    draw = torch.Generator().manual_seed(0)
    at = torch.arange(16).view(4, 4)
    pairs = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    coupling = torch.zeros(16, 16)
    for i, j in pairs:
        coupling[i.flatten(), j.flatten()] = 0.3 * torch.randn(12, generator=draw)
    coupling = coupling + coupling.t()
    field = 0.3 * torch.randn(16, generator=draw)
    number = torch.randperm(2**16, generator=draw)[:n]
    x = (number.unsqueeze(0) >> torch.arange(16).unsqueeze(1)) & 1
    spins = 2.0 * x - 1
    # a spin that turns changes the log probability by -2 s_i (field_i + sum_j J_ij s_j)
    ratios = torch.exp(-2 * spins * (field.unsqueeze(1) + coupling @ spins))
    return discrete_stein_gram(x, ratios, torch.full((16,), 2), Hamming())


def gap_of(gram: Tensor, weights: Tensor) -> float:
    w = weights.clamp_min(0)
    w = w / w.sum()
    g = gram @ w
    return float(w @ g - g.min())


def by_piqp(gram: Tensor) -> Tensor:
    n = len(gram)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs, solver.settings.eps_rel = 1e-9, 1e-9
    one = np.ones((1, n))
    zero, free = np.zeros(n), np.full(n, np.inf)
    solver.setup(2 * gram.numpy(), zero, one, np.ones(1), x_l=zero, x_u=free)
    solver.solve()
    return torch.tensor(solver.result.x)


def seconds(run: Callable, runs: int) -> float:
    """The median."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def compare(name: str, gram: Tensor, runs: int) -> tuple[float, float]:
    """Our gap, and our time over piqp's (nan without it); prints a row."""
    found = minimise_on_simplex(gram)
    gap = gap_of(gram, found.weights)
    polished = seconds(lambda: minimise_on_simplex(gram, polish=True), max(1, runs // 3))
    exact = gap_of(gram, minimise_on_simplex(gram, polish=True).weights)
    if piqp is None:
        ours, theirs, ratio, other = seconds(lambda: minimise_on_simplex(gram), runs), *3 * [np.nan]
    else:
        other = gap_of(gram, by_piqp(gram))
        run = (lambda: minimise_on_simplex(gram), lambda: by_piqp(gram))
        ours, theirs, ratio = alternate(*run, runs, warmup=1)
    print(
        f"{name:8s} {len(gram):5d}  {ours:7.4f} s {gap:8.1e}  polished {polished:7.4f} s "
        f"{exact:8.1e}  piqp {theirs:7.4f} s {other:8.1e}  ratio {ratio:.2f}",
        flush=True,
    )
    return gap, ratio


def hilbert(n: int) -> Tensor:
    i = torch.arange(float(n))
    return 1 / (i.unsqueeze(1) + i + 1)


def by_layer(root: Tensor) -> tuple[Callable[[], Tensor], Tensor]:
    """Derivatives of a linear function of the weights by a CvxpyLayer, as a function."""
    import cvxpy as cp
    from cvxpylayers.torch import CvxpyLayer

    n = len(root)
    f, w = cp.Parameter((n, n)), cp.Variable(n, nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(f @ w)), [cp.sum(w) == 1])
    layer = CvxpyLayer(problem, parameters=[f], variables=[w])
    root = root.clone().requires_grad_()

    def run() -> Tensor:
        (weights,) = layer(root)
        (weights @ torch.linspace(-1, 1, n)).backward()
        return weights.detach()

    return run


def derivatives(n: int) -> float:
    """Seconds of the layer over ours, for a value and its derivatives."""
    gram = lattice(n)
    root = torch.linalg.cholesky(gram + 1e-9 * torch.diag(gram.diagonal())).t()
    gram = (root.t() @ root).requires_grad_()

    def ours() -> Tensor:
        weights = simplex_weights(gram)
        (weights @ torch.linspace(-1, 1, n)).backward()
        return weights.detach()

    mine, theirs = ours(), []
    layer = by_layer(root)
    slow = seconds(lambda: theirs.append(layer()), 1)
    fast = seconds(ours, 5)
    apart = float((mine - theirs[0]).abs().max())
    print(
        f"derivatives, n = {n}: {1e3 * fast:.1f} ms, CvxpyLayer {slow:.1f} s (canonicalised "
        f"beforehand), ratio {slow / fast:.0f}; weights apart by {apart:.1e}"
    )
    return slow / fast


def report(name: str, holds: bool, detail: str) -> bool:
    print(f"{'pass' if holds else 'FAIL'}  {name}: {detail}", flush=True)
    return bool(holds)


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table and the criteria; True if all criteria hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds, criteria only shown")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.set_default_dtype(torch.float64)
    holds = []
    for name, make in (("normals", normals), ("lattice", lattice)):
        for n in (100, 200) if args.quick else (500, 1000, 2000):
            gap, ratio = compare(name, make(n), 3 if n > 1000 else 9)
            holds.append(report(f"gap, {name}, n = {n}", gap <= 1e-12, f"{gap:.1e}"))
            if piqp is not None:
                holds.append(report(f"time, {name}, n = {n}", ratio <= 1.5, f"{ratio:.2f} piqp"))
    gram = hilbert(200)
    gap = gap_of(gram, minimise_on_simplex(gram, polish=True).weights)
    other = f", piqp {gap_of(gram, by_piqp(gram)):.1e}" if piqp is not None else ""
    holds.append(report("Hilbert matrix, n = 200", gap <= 1e-15, f"gap {gap:.1e}{other}"))
    ratio = derivatives(40 if args.quick else 500)
    holds.append(report("derivatives", ratio >= 100, f"{ratio:.0f} times as fast as the layer"))
    return args.quick or all(holds)


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
