"""How fast are evaluation, inner products, Gram matrices and expected predictions?

    python benchmarks/circuits/speed.py [--quick] [--threads 1]

* A tensorised circuit of 16 binary variables, K inputs, products and sums in every region of a
  balanced tree, about 100,000 edges at K = 56: log values of 256 points, and the inner product of
  two such circuits, beside spflow (https://github.com/SPFlow/SPFlow) where it is installed, with
  the same weights.
* The Gram matrix of collapsed importance sampling, 200 samples of the 4x4 Ising grid that hold the
  same 8 variables, beside a loop over its entries by Kronecker products of 2^8 states (which
  needs that both samples hold the same variables; entry by entry on 400 of them, then scaled up),
  and with other variables in every sample.
* Expected predictions of 1,000 rows of abalone, half of the features missing.
* Growth: expected kernels of circuits of 4 to 64 units a region; the exponent of time in |p| |q|.

Criteria (one thread, medians): evaluation and inner product within twice spflow's time; the Gram
matrix under 1 s; predictions under 10 s; the exponent at most 1.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import pyrograph as pg
from pyrograph.circuits import (
    RBF,
    Circuit,
    Delta,
    ExpectedSVR,
    Hamming,
    compile_graph,
    expected_kernel,
    read_psdd,
    stein_gram,
)
from pyrograph.errors import DataNotFound

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "svgd")]
from significance import report
from timing import alternate, peak_gb

try:
    from spflow.modules import leaves, products, sums
    from spflow.modules.ops import Cat
    from spflow.utils.inner_product import inner_product_matrix
except ImportError:
    leaves = None


def balanced(variables: int, width: int, generator: torch.Generator) -> list[list[Tensor]]:
    """Weights of a balanced tree: per level and region; the first level are probabilities."""
    levels = [[torch.rand(width, generator=generator) for _ in range(variables)]]
    regions = variables
    while True:
        count = width if regions > 1 else 1
        levels.append(
            [torch.rand(count, width, generator=generator).softmax(1) for _ in range(regions)]
        )
        if regions == 1:
            return levels
        regions //= 2


def ours(levels: list[list[Tensor]]) -> Circuit:
    """As a circuit."""
    nodes: list[dict] = []

    def add(node: dict) -> int:
        nodes.append(node)
        return len(nodes) - 1

    below = [
        [add({"type": "input", "var": v, "probs": [1 - p, p]}) for p in probs.tolist()]
        for v, probs in enumerate(levels[0])
    ]
    for level in levels[1:]:
        units = [
            [add({"type": "sum", "children": b, "weights": row.tolist()}) for row in weights]
            for b, weights in zip(below, level, strict=True)
        ]
        below = [
            [add({"type": "product", "children": [a, b]}) for a, b in zip(left, right, strict=True)]
            for left, right in zip(units[::2], units[1::2], strict=False)
        ]
    return Circuit.from_nodes(nodes)


def theirs(levels: list[list[Tensor]]):
    """The same in spflow."""
    modules = [
        leaves.Bernoulli(scope=[v], out_channels=len(p), probs=p.reshape(1, -1, 1).float())
        for v, p in enumerate(levels[0])
    ]
    for level in levels[1:]:
        modules = [
            sums.Sum(inputs=m, weights=w.t().reshape(1, *w.t().shape, 1))
            for m, w in zip(modules, level, strict=True)
        ]
        if len(modules) > 1:
            modules = [
                products.Product(inputs=Cat([a, b], dim=1))
                for a, b in zip(modules[::2], modules[1::2], strict=True)
            ]
    return modules[0]


def median_seconds(call: Callable[[], object], runs: int) -> float:
    call()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def tensorised(width: int, runs: int) -> bool:
    """Evaluation and inner product beside spflow."""
    generator = torch.Generator().manual_seed(0)
    weights = [balanced(16, width, generator) for _ in range(2)]
    p, q = (ours(w) for w in weights)
    x = torch.randint(2, (256, 16), generator=generator)
    calls = {
        "log values of 256 points": lambda: p.log_prob(x),
        "inner product": lambda: expected_kernel(p, q, Delta()),
    }
    holds = True
    if leaves is None:
        for name, call in calls.items():
            print(f"{name}: {p.num_edges} edges, {1e3 * median_seconds(call, runs):.2f} ms")
        print("spflow is not installed: no comparison")
        return True
    with torch.no_grad():
        a, b = (theirs(w).double() for w in weights)
        numbers = x.double()
        truth = a.log_likelihood(numbers).flatten()
        error = float((truth - p.log_prob(x)).abs().max())
        inner = float(inner_product_matrix(a, b).flatten()[0])
        relative = abs(float(expected_kernel(p, q, Delta())) / inner - 1)
        print(f"differences: log values {error:.1e}, inner product {relative:.1e}")
        rivals = (
            lambda: a.log_likelihood(numbers),
            lambda: inner_product_matrix(a, b),
        )
        for (name, call), rival in zip(calls.items(), rivals, strict=True):
            mine, their, ratio = alternate(call, rival, runs)
            detail = f"{1e3 * mine:.2f} ms, spflow {1e3 * their:.2f} ms, ratio {ratio:.2f}"
            holds &= report(f"{name}, {p.num_edges} edges, within twice spflow", ratio <= 2, detail)
    return holds


class Kronecker:
    """One entry of the Gram matrix by the 2^8 states of the collapsed variables."""

    def __init__(self, circuit: Circuit, held: Sequence[int], points: Tensor):
        self.held = list(held)
        self.free = [v for v in range(16) if v not in self.held]
        self.every = torch.tensor(list(itertools.product((0, 1), repeat=len(self.free))))
        self.factor = np.array([[1.0, np.exp(-1 / 16)], [np.exp(-1 / 16), 1.0]])
        self.points = points[:, self.held].long().numpy()
        self.given, self.moved = [], []
        for point in points.long():
            rows = point.expand(len(self.every), -1).clone()
            rows[:, self.free] = self.every
            log_mass = circuit.log_prob(rows).logsumexp(0)
            self.given.append((circuit.log_prob(rows) - log_mass).exp().numpy())
            moved = []
            for v in self.held:
                other = rows.clone()
                other[:, v] = 1 - other[:, v]
                moved.append((circuit.log_prob(other) - log_mass).exp().numpy())
            self.moved.append(np.stack(moved))

    def smooth(self, vectors: np.ndarray) -> np.ndarray:
        """The kernel of the collapsed variables applied to rows."""
        for _ in self.free:
            folded = vectors.reshape(len(vectors), 2, -1)
            vectors = np.moveaxis(np.tensordot(folded, self.factor, (1, 1)), 2, 2)
            vectors = vectors.reshape(len(vectors), -1)
        return vectors

    def entry(self, a: int, b: int) -> float:
        held = np.exp(-(self.points[a] != self.points[b]).sum() / 16)
        smoothed = self.smooth(np.concatenate([self.given[b][None], self.moved[b]]))
        total = 0.0
        for i in range(len(self.held)):
            # k at (inverse a, inverse b), and at one of the two moved
            other = np.exp((1 if self.points[a][i] != self.points[b][i] else -1) / 16)
            total += self.given[a] @ smoothed[0] - other * (self.given[a] @ smoothed[1 + i])
            total += self.moved[a][i] @ smoothed[1 + i] - other * (self.moved[a][i] @ smoothed[0])
        return held * total


def gram(number: int, runs: int) -> bool:
    """Of collapsed samples of the 4x4 grid."""
    try:
        root = pg.datasets.data_root()
    except DataNotFound as error:
        print(f"no Gram matrix: {error}")
        return True
    model = pg.datasets.read_uai(root / "ising_4x4" / "rand_4_4_id0.uai")
    circuit = compile_graph(pg.trace_graph(model))
    torch.manual_seed(0)
    points = circuit.sample(number).double()
    held = [0, 2, 5, 7, 8, 10, 13, 15]
    same, own = points.clone(), points.clone()
    same[:, [v for v in range(16) if v not in held]] = torch.nan
    for row in own:
        row[torch.randperm(16)[:8]] = torch.nan
    loop = Kronecker(circuit, held, points)
    pairs = [(k % number, (7 * k) % number) for k in range(min(400, number**2))]
    begin = time.perf_counter()
    entries = [loop.entry(a, b) for a, b in pairs]
    by_loop = (time.perf_counter() - begin) / len(pairs) * number * (number + 1) / 2
    ours_same = stein_gram(circuit, same, Hamming())
    error = max(abs(float(ours_same[a, b]) - e) for (a, b), e in zip(pairs, entries, strict=True))
    scale = float(ours_same.diag().max())
    print(f"Gram matrix and Kronecker loop differ by {error / scale:.1e} of the largest entry")
    seconds = {
        n: median_seconds(lambda x=x: stein_gram(circuit, x), runs)
        for n, x in (("the same", same), ("other", own))
    }
    detail = (
        f"{seconds['the same']:.2f} s with the same variables held (loop {by_loop:.1f} s, "
        f"{by_loop / seconds['the same']:.0f} times), {seconds['other']:.2f} s with other ones"
    )
    return report(f"Gram matrix of {number} samples under 1 s", max(seconds.values()) < 1, detail)


def predictions(rows: int) -> bool:
    """Of abalone, half of the features missing."""
    try:
        data = pg.datasets.binary_regression("abalone")
    except DataNotFound as error:
        print(f"no predictions: {error}")
        return True
    circuit = read_psdd(data.psdd, data.vtree)
    svr = data.svr
    model = ExpectedSVR(svr.support, svr.coef, svr.intercept, RBF(1 / svr.gamma), circuit)
    torch.manual_seed(0)
    x = torch.cat([data.x["test"], data.x["valid"]])[:rows].double()
    x = x.masked_fill(torch.rand(x.shape) < 0.5, torch.nan)
    seconds = median_seconds(lambda: model.predict(x), 3)
    detail = f"{seconds:.2f} s, {circuit.num_edges} edges, {len(svr.support)} support vectors"
    return report(f"{rows} expected predictions under 10 s", seconds < 10, detail)


def growth(widths: Sequence[int], runs: int) -> bool:
    """Time of an expected kernel against |p| |q|."""
    generator = torch.Generator().manual_seed(1)
    sizes, seconds = [], []
    for width in widths:
        p, q = (ours(balanced(16, width, generator)) for _ in range(2))
        sizes.append(p.num_edges * q.num_edges)
        seconds.append(median_seconds(lambda p=p, q=q: expected_kernel(p, q, Hamming()), runs))
        print(f"K = {width:3d}: {p.num_edges:7d} edges, expected kernel {1e3 * seconds[-1]:.2f} ms")
    slope = float(np.polyfit(np.log(sizes[-2:]), np.log(seconds[-2:]), 1)[0])
    return report("time grows at most like |p| |q|", slope <= 1, f"exponent {slope:.2f}")


def main(argv: Sequence[str] | None = None) -> bool:
    """Whether every criterion holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.set_default_dtype(torch.float64)
    runs = 3 if args.quick else 15
    holds = tensorised(8 if args.quick else 56, runs)
    holds &= gram(30 if args.quick else 200, runs)
    holds &= predictions(50 if args.quick else 1000)
    holds &= growth((4, 8) if args.quick else (4, 8, 16, 32, 64), runs)
    print(f"peak memory {peak_gb():.2f} GB")
    return holds


if __name__ == "__main__":
    sys.exit(not main())
