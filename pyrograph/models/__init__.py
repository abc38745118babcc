"""Models learned from data, each an ordinary Pyro program that any engine runs on."""

from pyrograph.models.chow_liu import ChowLiuTree
from pyrograph.models.parzen import Parzen, silverman_bandwidth

__all__ = ["ChowLiuTree", "Parzen", "silverman_bandwidth"]
