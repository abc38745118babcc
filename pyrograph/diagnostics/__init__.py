"""How good an approximation is."""

from pyrograph.diagnostics.ksd import graphical_ksd
from pyrograph.diagnostics.mmd import mmd
from pyrograph.diagnostics.score import value_and_score

__all__ = ["graphical_ksd", "mmd", "value_and_score"]
