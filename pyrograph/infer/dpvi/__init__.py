"""Discrete particle variational inference."""

from pyrograph.infer.dpvi.engine import DPVI
from pyrograph.infer.dpvi.sequential import SequentialDPVI

__all__ = ["DPVI", "SequentialDPVI"]
