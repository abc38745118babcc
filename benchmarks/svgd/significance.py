"""What the experiment scripts share: paired tests over seeds, pass lines, flags and figures.

Every criterion compares two methods on the same seeds, so it is tested on the signs of the
paired differences: no assumption on the errors' distribution, which is heavy-tailed in most
of the experiments. Ties count against the claim.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import torch
from scipy.stats import binomtest, spearmanr

FIGURES = Path(__file__).parent / "figures"


def sign_test(smaller: Sequence[float], larger: Sequence[float]) -> float:
    """One-sided p-value of the claim that ``smaller`` lies below ``larger``, paired by seed."""
    wins = int((np.asarray(smaller) < np.asarray(larger)).sum())
    return float(binomtest(wins, len(smaller), alternative="greater").pvalue)


def is_smaller(
    name: str,
    smaller: Sequence[float],
    larger: Sequence[float],
    level: float = 0.01,
    factor: float = 1.0,
) -> bool:
    """Report whether ``smaller`` lies below ``factor * larger``: in the median, and by the sign
    test at ``level``."""
    smaller, scaled = np.asarray(smaller), factor * np.asarray(larger)
    p = sign_test(smaller, scaled)
    wins = int((smaller < scaled).sum())
    detail = (
        f"medians {np.median(smaller):.3g} < {np.median(scaled):.3g}, "
        f"{wins} of {len(smaller)} seeds, p = {p:.1e}"
    )
    return report(name, np.median(smaller) < np.median(scaled) and p < level, detail)


def trend(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation of ``y`` with ``x``."""
    return float(spearmanr(x, y).statistic)


def report(name: str, holds: bool, detail: str) -> bool:
    """Print one criterion and hand back whether it holds."""
    print(f"{'pass' if holds else 'FAIL'}  {name}: {detail}")
    return bool(holds)


def figure_path(name: str, quick: bool = False, folder: Path = FIGURES) -> Path:
    """Where the figure of a script lies; that of a ``--quick`` run replaces none."""
    folder = Path(gettempdir()) if quick else folder
    folder.mkdir(exist_ok=True)
    return folder / f"{name}.png"


def arguments(doc: str, seeds: int, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags every script takes: ``seeds``, ``quick`` and ``threads`` (set at once).

    With ``--quick`` and no ``--seeds`` there are two seeds.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, help=f"number of seeds (default {seeds})")
    parser.add_argument("--quick", action="store_true", help="a few seconds, criteria only shown")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    if args.seeds is None:
        args.seeds = 2 if args.quick else seeds
    torch.set_num_threads(args.threads)
    return args
