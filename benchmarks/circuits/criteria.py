"""What the scripts of this folder share: where figures go, the tests of the other folders."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import gettempdir

import torch

FIGURES = Path(__file__).parent / "figures"
# the clock; paired tests and pass lines
sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "svgd")]

import significance  # noqa: E402
from significance import report, sign_test  # noqa: E402

__all__ = ["arguments", "figure_path", "report", "sign_test"]


def figure_path(name: str, quick: bool = False) -> Path:
    """Where the figure of a script lies; that of a ``--quick`` run replaces none."""
    folder = Path(gettempdir()) if quick else FIGURES
    folder.mkdir(exist_ok=True)
    return folder / f"{name}.png"


def arguments(doc: str, seeds: int, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags ``seeds``, ``quick`` and ``threads``, in double precision."""
    torch.set_default_dtype(torch.float64)
    return significance.arguments(doc, seeds, argv)
