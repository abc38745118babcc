"""What the scripts of this folder share: pass lines, flags and where figures go."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import gettempdir

import torch

FIGURES = Path(__file__).parent / "figures"


def report(name: str, holds: bool, detail: str) -> bool:
    """Print one criterion and hand back whether it holds."""
    print(f"{'pass' if holds else 'FAIL'}  {name}: {detail}")
    return bool(holds)


def figure_path(name: str, quick: bool = False) -> Path:
    """Where the figure of a script lies; that of a ``--quick`` run replaces none."""
    folder = Path(gettempdir()) if quick else FIGURES
    folder.mkdir(exist_ok=True)
    return folder / f"{name}.png"


def arguments(doc: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags every script takes: ``quick`` and ``threads`` (set at once, with float64)."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds, criteria only shown")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.set_default_dtype(torch.float64)
    return args
