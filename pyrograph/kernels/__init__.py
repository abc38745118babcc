"""Kernels, their bandwidths and their localities."""

from pyrograph.kernels.additive import Own, Sum, Summable
from pyrograph.kernels.imq import IMQ
from pyrograph.kernels.linear import Linear
from pyrograph.kernels.locality import Blanket, Global, Locality, Mixed, RandomNeighbors
from pyrograph.kernels.protocol import Block, Kernel, SteinSums
from pyrograph.kernels.radial import Radial
from pyrograph.kernels.rbf import RBF
from pyrograph.kernels.scopes import Bucket, Layout
from pyrograph.kernels.stein import Field, SteinOperator

__all__ = [
    "IMQ",
    "RBF",
    "Blanket",
    "Block",
    "Bucket",
    "Field",
    "Global",
    "Kernel",
    "Layout",
    "Linear",
    "Locality",
    "Mixed",
    "Own",
    "Radial",
    "RandomNeighbors",
    "SteinOperator",
    "SteinSums",
    "Sum",
    "Summable",
]
