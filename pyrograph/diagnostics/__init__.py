"""How good an approximation is, and what can be made of its particles."""

from pyrograph.diagnostics.ksd import graphical_ksd, stein_gram
from pyrograph.diagnostics.mmd import mmd
from pyrograph.diagnostics.score import value_and_score
from pyrograph.diagnostics.spread import variance_ratio
from pyrograph.diagnostics.stein_points import stein_thinning, stein_weights

__all__ = [
    "graphical_ksd",
    "mmd",
    "stein_gram",
    "stein_thinning",
    "stein_weights",
    "value_and_score",
    "variance_ratio",
]
