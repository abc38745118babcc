"""Many pieces of evidence against many others: expected kernels of all pairs, block by block.

A pass of ``expected`` goes over all pairs of the patterns of two blocks, which are as long as the
widest region allows. Every block is evaluated once, whatever it is paired with, and pieces that are
equal are one. What all passes together will cost is known beforehand.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor
from tqdm import tqdm

from pyrograph.circuits.expectations.expected import pairs
from pyrograph.circuits.expectations.kernel_units import KernelUnits
from pyrograph.circuits.expectations.sides import CircuitSide, sizes


class Evidence:
    """Pieces of evidence under a circuit.

    Args:
        side: the circuit, whatever its own evidence.
        points: ``[N, D]`` (checked, NaN where missing).
        length: distinct pieces in a block.

    Attributes:
        whole: the circuit under all distinct pieces.
        point: ``[N]``, the number of each piece among the distinct ones.
    """

    def __init__(self, side: CircuitSide, points: Tensor, length: int):
        # NaN is not equal to itself
        found, self.point = points.nan_to_num(math.inf).unique(dim=0, return_inverse=True)
        self.length = length
        self._parts = found.masked_fill(found.isinf(), torch.nan).split(length)
        self.whole = side.at(torch.cat(self._parts))

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self._parts)

    @cached_property
    def blocks(self) -> list[CircuitSide]:
        """The circuit under each of them."""
        return [self.whole.at(part) for part in self._parts]

    @property
    def log_mass(self) -> Tensor:
        """``[N]`` float64, of every piece."""
        return torch.cat([block.log_mass for block in self.blocks])[self.point]

    def num_patterns(self, r: int) -> int:
        """Of a region, all blocks together, at most."""
        return min(self.whole.patterns.count[r], len(self._parts[0])) * len(self)


def num_passes(left: Evidence, right: Evidence) -> int:
    """Of :func:`expected_kernels`."""
    return len(left) * (len(left) + 1) // 2 if left is right else len(left) * len(right)


def num_products(left: Evidence, right: Evidence, units: KernelUnits) -> int:
    """Products of units that :func:`expected_kernels` takes, at most."""
    per_pair = sizes([left.whole, right.whole])
    total = sum(s * left.num_patterns(r) * right.num_patterns(r) for r, s in enumerate(per_pair))
    share = num_passes(left, right) / (len(left) * len(right))
    return math.ceil(share * units.num_units * total)


def expected_kernels(
    left: Evidence, right: Evidence, units: KernelUnits, bar: tqdm, stein: bool = False
) -> Tensor:
    """``[N, M]``, under all pairs of pieces; the Stein channel of circuits that carry it.

    Args:
        bar: moves on with every pass.
    """
    is_square = left is right
    rows = []
    for i, block in enumerate(left.blocks):
        row = []
        for other in right.blocks[i if is_square else 0 :]:
            value = pairs(block, other, units)[int(stein)]
            row.append(value[block.patterns.point][:, other.patterns.point])
            bar.update()
        rows.append(torch.cat(row, 1))
    if is_square:  # the upper triangle says it all
        width = rows[0].shape[1]
        rows = [torch.nn.functional.pad(row, (width - row.shape[1], 0)) for row in rows]
    value = torch.cat(rows)
    if is_square:
        value = value.triu() + value.triu(1).t()
    return value[left.point][:, right.point]
