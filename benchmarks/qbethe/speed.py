"""Seconds of an iteration, beside equation (5) written by hand, in turn.

    python benchmarks/qbethe/speed.py [--quick] [--threads 1]

Criteria (one thread): 50 x 50 image, K = 3, from the Pyro program: one component at most 1 ms an
iteration and 1.5 times the hand-written code; five components at most 8 times one, in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import criteria
import hand_written
import programs
import pyro
import torch
from criteria import report
from timing import alternate

import pyrograph as pg
from pyrograph.datasets import denoise

STEPS = 50


def iterations(num_components: int, dtype: torch.dtype) -> tuple[Callable, Callable]:
    """``STEPS`` iterations of the engine and of the code by hand."""
    observed = denoise().observed.to(dtype)
    pyro.set_rng_seed(0)
    engine = pg.QBethe(
        programs.denoising,
        num_components=num_components,
        num_quadrature=3,
        num_entropy=3,  # as by hand; the default takes more
        covariance="diagonal",
        progress=False,
    )
    engine.setup(observed)
    bethe = hand_written.denoising(observed, dtype=dtype)
    loc = hand_written.jittered(observed, num_components)

    def ours() -> None:
        for _ in range(STEPS):
            engine.step()

    def by_hand() -> None:
        hand_written.climb(bethe, loc, 0.1, STEPS)

    return ours, by_hand


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table and the criteria; True if all criteria hold."""
    args = criteria.arguments(criteria.flags(__doc__), argv)
    runs = 2 if args.quick else 9
    print(f"{'L':>2s} {'dtype':>14s} {'engine ms':>10s} {'by hand':>8s} {'ratio':>6s}")
    times = {}
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        for components in (1, 5):
            ours, hand, ratio = alternate(*iterations(components, dtype), runs)
            times[components, dtype] = ours / STEPS, ratio
            row = f"{components:2d} {dtype!s:>14s} {1e3 * ours / STEPS:10.3f}"
            print(f"{row} {1e3 * hand / STEPS:8.3f} {ratio:6.2f}", flush=True)
    one, ratio = times[1, torch.float32]
    torch.set_default_dtype(torch.float32)
    several, single = (iterations(components, torch.float32)[0] for components in (5, 1))
    growth = alternate(several, single, runs)[2]
    return all(
        [
            report("one component: at most 1 ms", one <= 1e-3, f"{1e3 * one:.3f} ms"),
            report("within 1.5 times the code by hand", ratio <= 1.5, f"{ratio:.2f}"),
            report("five components: at most 8 times one", growth <= 8, f"{growth:.2f}"),
        ]
    )


if __name__ == "__main__":
    main()
