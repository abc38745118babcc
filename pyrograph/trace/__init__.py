"""A Pyro program as element-wise log densities: recorded, sliced, split into terms."""

from pyrograph.trace.sites import Site

__all__ = ["Site"]
