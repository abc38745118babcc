"""What the scripts of this folder share: where figures go, the tests of the other folders."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch

# the clock; paired tests and pass lines
sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "svgd")]

import significance
from significance import arguments, report, sign_test

__all__ = ["arguments", "figure_path", "report", "sign_test"]

torch.set_default_dtype(torch.float64)
figure_path = partial(significance.figure_path, folder=Path(__file__).parent / "figures")
