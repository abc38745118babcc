"""Mixture beliefs in the Bethe free energy."""

from pyrograph.infer.qbethe.autoguide import AutoQBethe
from pyrograph.infer.qbethe.engine import QBethe

__all__ = ["AutoQBethe", "QBethe"]
