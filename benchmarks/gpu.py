"""What does a GPU gain?

    python benchmarks/gpu.py [--device cuda] [--threads 16] [--only NAME] [--quick]

One large model for each of five engines: seconds an iteration on the CPU and on the device,
medians of rounds of which each waits for the device, the ratio, and how far both are apart after
the same iterations: the largest difference of posterior means (of states: probabilities), over the
largest of them. It comes from sums in another order, which iterations may amplify. Belief
propagation stands beside a list of edges in torch and the same compiled by JAX (where installed),
on the same device. Single precision, but for expectation propagation.

Criterion: the device gives what the CPU gives.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pyrograph as pg

HERE = Path(__file__).parent
ROUNDS = 3
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # one card for all


def script(path: str) -> ModuleType:
    """A module of a sub-folder under a name of its own: some files are called alike."""
    file, name = HERE / f"{path}.py", path.replace("/", "_")
    if name in sys.modules:
        return sys.modules[name]
    sys.path.append(str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@dataclass
class Case:
    """An engine's model.

    Attributes:
        size: in words.
        model, args: the program and its arguments, on the CPU.
        engine: makes the engine of a model, given ``device=``.
        site: whose marginals are compared.
        steps: of a round.
        tolerance: of the largest difference.
    """

    size: str
    model: Callable
    args: tuple[Any, ...]
    engine: Callable[..., pg.infer.Engine]
    site: str
    steps: int
    tolerance: float

    def marginal(self, engine: pg.infer.Engine) -> Tensor:
        found = engine.posterior().marginal(self.site)
        return (found.probs if hasattr(found, "probs") else found.mean).detach().cpu()


def single(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(a.float() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)


def cases(quick: bool) -> Iterator[tuple[str, Callable[[], Case]]]:
    """By name, each made when it is asked for."""

    def svgd() -> Case:
        program, side = script("svgd/gaussian_field").program, 32 if quick else 316
        args = single(script("svgd/sparse_field").grid_field(side).arguments)
        engine = partial(pg.GraphicalSVGD, num_particles=50)
        return Case(f"field of {side}^2, 50 particles", program, args, engine, "x", 4, 1e-3)

    def bp(side: int, states: int) -> Case:
        speed, side = script("message_passing/speed"), 20 if quick else side
        engine = partial(pg.BP, tol=None, damping=0.0)
        args = speed.field(side, states)
        size = f"grid of {side}^2, {states} states"
        return Case(size, speed.program, args, engine, "x", 20, 1e-4)

    def ep() -> Case:
        rows, weights = (500, 5) if quick else (20_000, 50)
        model, *args = script("message_passing/speed").probit(rows, weights)
        engine = partial(pg.EP, tol=1e-6)
        size = f"probit, {rows} rows, {weights} weights"
        return Case(size, model, tuple(args), engine, "w", 6, 1e-8)

    def qbethe() -> Case:
        side = 20 if quick else 200
        observed = torch.rand(side, side, generator=torch.Generator().manual_seed(0))
        engine = partial(pg.QBethe, num_components=5)
        model = script("qbethe/programs").denoising
        size = f"denoising of {side}^2, 5 components"
        return Case(size, model, (observed,), engine, "x", 5, 1e-3)

    def dpvi() -> Case:
        side = 20 if quick else 200
        field = torch.as_tensor(np.random.default_rng(0).standard_normal(side**2)).float()
        engine = partial(pg.DPVI, num_particles=100, moves=("block",), tol=None)
        model = partial(script("dpvi/programs").ising, side, 0.5)
        return Case(f"lattice of {side}^2, K = 100", model, (field,), engine, "x", 2, 1e-3)

    yield "svgd", svgd
    yield "bp", partial(bp, 1000, 2)
    yield "bp, 16 states", partial(bp, 200, 16)
    yield "ep", ep
    yield "qbethe", qbethe
    yield "dpvi", dpvi


def seconds_each(step: Callable[[], object], steps: int) -> float:
    """Of an iteration, the device waited for."""
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps


def compare(name: str, case: Case, device: str, rounds: int) -> float:
    """A row of the table; by how much both differ."""
    found, medians = [], []
    for place in ("cpu", device):
        torch.manual_seed(0)
        begin = time.perf_counter()
        engine = case.engine(case.model, device=place, progress=False).setup(*case.args)
        setup = time.perf_counter() - begin
        seconds_each(engine.step, 2)
        times = [seconds_each(engine.step, case.steps) for _ in range(rounds)]
        medians.append(statistics.median(times))
        found.append(case.marginal(engine))
    gap = float((found[0] - found[1]).abs().max() / found[0].abs().max())
    cpu, there = medians
    print(
        f"{name:14s}{case.size:38s}{setup:8.1f}{1e3 * cpu:11.2f}{1e3 * there:11.3f}"
        f"{cpu / there:8.1f}x  {gap:.0e}",
        flush=True,
    )
    return gap


def rivals(name: str, case: Case, device: str, rounds: int) -> None:
    """Sweeps of belief propagation by others, on the device."""
    speed = script("message_passing/speed")
    sweeps = 25 * case.steps
    unary, pair, edges = case.args
    runs: dict[str, Callable[[int], Tensor]] = {}
    with torch.device(device):
        runs["torch edges"] = speed.torch_edges(*(a.to(device) for a in case.args))
    try:
        runs["JAX edges"] = speed.jax_edges(unary, pair, edges)
    except ImportError:
        print("JAX is not installed")
    for rival, run in runs.items():
        with torch.device(device if rival == "torch edges" else "cpu"):
            run(sweeps)
            times = [seconds_each(lambda run=run: run(sweeps), 1) for _ in range(rounds)]
        print(f"{name:14s}{rival:38s}{'':19s}{1e3 * statistics.median(times) / sweeps:11.3f}")


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table; True if all agree."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    names = [name for name, _ in cases(True)]
    parser.add_argument("--only", action="append", choices=names)
    parser.add_argument("--quick", action="store_true", help="small models")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    rounds = 2 if args.quick else ROUNDS
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else args.device
    print(f"ms an iteration, {args.threads} threads and {name}")
    print(f"{'engine':14s}{'model':38s}{'set up':>8s}{'CPU':>11s}{args.device:>11s}{'ratio':>9s}")
    gaps = {}
    for name, make in cases(args.quick):
        if args.only and name not in args.only:
            continue
        case = make()
        gaps[name] = compare(name, case, args.device, rounds), case.tolerance
        if name.startswith("bp"):
            rivals(name, case, args.device, rounds)
    for name, (gap, tolerance) in gaps.items():
        word = "pass" if gap <= tolerance else "FAIL"
        print(f"{word}  {name}: the same on both: {gap:.0e}, tolerance {tolerance:.0e}")
    return all(gap <= tolerance for gap, tolerance in gaps.values())


if __name__ == "__main__":
    sys.exit(not main())
