"""Discrete particle variational inference."""

from pyrograph.infer.dpvi.engine import DPVI

__all__ = ["DPVI"]
