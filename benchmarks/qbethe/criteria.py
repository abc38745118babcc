"""What the scripts of this folder share: pass lines, flags, where figures go, baselines' path."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import gettempdir

import torch

FIGURES = Path(__file__).parent / "figures"
# grid, particle and expectation particle belief propagation; the clock
sys.path += [str(Path(__file__).parents[1] / "message_passing"), str(Path(__file__).parents[1])]


def report(name: str, holds: bool, detail: str) -> bool:
    """Print one criterion and hand back whether it holds."""
    print(f"{'pass' if holds else 'FAIL'}  {name}: {detail}", flush=True)
    return bool(holds)


def figure_path(name: str, quick: bool = False) -> Path:
    """Where the figure of a script lies; that of a ``--quick`` run replaces none."""
    folder = Path(gettempdir()) if quick else FIGURES
    folder.mkdir(exist_ok=True)
    return folder / f"{name}.png"


def flags(doc: str) -> argparse.ArgumentParser:
    """The flags that every script takes."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds, criteria only shown")
    parser.add_argument("--threads", type=int, default=1)
    return parser


def arguments(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None = None
) -> argparse.Namespace:
    """Values of the flags; ``threads`` is set at once, with float64."""
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.set_default_dtype(torch.float64)
    return args
