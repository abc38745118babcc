"""How fast is one iteration of GraphicalSVGD beside other implementations?

    python benchmarks/svgd/speed.py [--threads 1] [--quick] [--large]

The grid field of the paper, single precision, AdaGrad(1.0) from N(0, 1). All run in one process,
in turn; a figure is the median of CPU seconds per iteration over rounds, ratios are medians of
ratios within a round. ``eq (8)`` is ``kernel=RBF()``; both our rows measure bandwidths at every
tenth step from the tenth on, as is the default, and are timed there in multiples of ten (the
peers' medians are exact at every step, and cost the same at each). The error is the mean
squared one of means and second moments after the same number of iterations, so that speed is not
bought with accuracy. ``--large`` adds 10^5 nodes. Pyro, numpyro and jax: ``pip install -e
".[peers]"``.

Findings to compare with: Wang, Zeng & Liu (2018) give no times.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence

THREADS = sys.argv[sys.argv.index("--threads") + 1] if "--threads" in sys.argv else "1"
os.environ.setdefault("OMP_NUM_THREADS", THREADS)
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=" + THREADS
)

import peers  # noqa: E402
from gaussian_field import normal, program  # noqa: E402
from significance import arguments, report  # noqa: E402
from sparse_field import SparseField, grid_field  # noqa: E402
from torch import Tensor  # noqa: E402

import pyrograph as pg  # noqa: E402

LR = 1.0
#: (side, particles, iterations timed in a round, iterations of the comparison of errors)
CASES = [(10, 20, 50, 1000), (10, 50, 50, 1000), (10, 200, 10, 500), (32, 50, 10, 500)]
CASES += [(100, 50, 10, 0)]
LARGE = [(316, 50, 10, 0)]
#: Iterations after which bandwidths are measured now and then, not at every step.
SETTLED = 10
#: What the project asks of itself: (ours over peer, at least, in which cases)
AIMS = {
    "chunked torch": {50: 4.0, 200: 8.0},
    "Pyro univariate": 15.0,
    "Pyro multivariate": 8.0,
    "NumPyro global": 1.0,
}


def ours(field: SparseField, kernel: pg.kernels.Kernel | None) -> peers.Stepper:
    """GraphicalSVGD; the graph is traced once."""
    args = tuple(a.float() if a.is_floating_point() else a for a in field.arguments)
    prepared: dict[int, pg.GraphicalSVGD] = {}

    def run(start: Tensor, num_steps: int) -> Tensor:
        """``num_steps`` more, at first from ``start``."""
        if len(start) not in prepared:
            engine = pg.GraphicalSVGD(
                program, kernel=kernel, num_particles=len(start), init=start, progress=False
            )
            prepared[len(start)] = engine.setup(*args)
        engine = prepared[len(start)]
        for _ in range(num_steps):
            engine.step()
        return engine.posterior().particles["x"].double()

    return run


def runners(field: SparseField) -> dict[str, peers.Stepper]:
    """Everything that is timed; the peers that are not installed are left out."""
    found = {
        "pyrograph, eq (8)": ours(field, pg.kernels.RBF()),
        "pyrograph, default": ours(field, None),
        "chunked torch": peers.chunked(field, LR),
        "Pyro univariate": peers.pyro_svgd(field, LR, "univariate"),
        "Pyro multivariate": peers.pyro_svgd(field, LR, "multivariate"),
    }
    try:
        found["NumPyro global"] = peers.numpyro_global(field, LR)
    except ImportError as error:
        print(f"NumPyro is left out: {error}")
    return found


def errors(field: SparseField, x: Tensor) -> str:
    """Mean squared errors of means and second moments."""
    truth = field.variance + field.mean.square()
    second = (x.square().mean(0) - truth).square().mean()
    return f"{float((x.mean(0) - field.mean).square().mean()):10.1e} {float(second):10.1e}"


def compare(side: int, n: int, steps: int, error_steps: int, rounds: int) -> dict[str, float]:
    """Print one table; returns the ratios of the peers' times to those of eq (8)."""
    field = grid_field(side)
    start = normal((n, side * side), seed=1)
    found = runners(field)
    after = {name: run(start, error_steps or SETTLED) for name, run in found.items()}
    seconds: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, run in found.items():
            begin = time.process_time()
            run(start, steps)
            seconds[name].append((time.process_time() - begin) / steps)
    print(f"\n{side}x{side} nodes, n = {n}")
    print(f"{'':22s}{'ms / iteration':>15s}{'eq (8) is':>12s}{'MSE mean':>11s}{'MSE 2nd':>11s}")
    base, ratios = seconds["pyrograph, eq (8)"], {}
    for name in found:
        ratios[name] = statistics.median(b / a for a, b in zip(base, seconds[name], strict=True))
        error = errors(field, after[name]) if error_steps else ""
        ms = statistics.median(seconds[name]) * 1e3
        print(f"{name:22s}{ms:15.3f}{ratios[name]:11.1f}x {error}")
    return ratios


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the tables and which aims hold."""
    argv = list(sys.argv[1:] if argv is None else argv)
    large = "--large" in argv
    flags = arguments(__doc__, 5, [a for a in argv if a != "--large"])
    cases = CASES[:1] if flags.quick else CASES + (LARGE if large else [])
    rounds, holds = 2 if flags.quick else flags.seeds, []
    for side, n, steps, error_steps in cases:
        ratios = compare(side, n, steps, error_steps, rounds)
        for name, aim in AIMS.items():
            least = aim.get(n) if isinstance(aim, dict) else aim
            pyro_small = name.startswith("Pyro") and side < 100
            numpyro_small = name.startswith("NumPyro") and side != 32
            if least is None or name not in ratios or pyro_small or numpyro_small:
                continue
            holds.append(report(name, ratios[name] >= least, f"{ratios[name]:.1f}, aim {least:g}"))
    return all(holds)


if __name__ == "__main__":
    sys.exit(not main())
