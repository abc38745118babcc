"""Distinct numbers among many, by a mask of the range that they lie in where that is no longer than
they are many: a sort of millions of positions takes most of the time of reading a large program."""

from __future__ import annotations

import torch
from torch import Tensor

#: Length of a range for each number in it, up to which a mask is faster than a sort.
SPARSE = 2


def distinct(numbers: Tensor) -> Tensor:
    """Ascending, of ``numbers [n]``, int64 on the CPU."""
    mask = _mask(numbers)
    if mask is None:
        return numbers.unique()
    low, is_there = mask
    return is_there.nonzero().squeeze(1) + low


def distinct_with_places(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and ``[n]`` where each number stands among them."""
    mask = _mask(numbers)
    if mask is None:
        return numbers.unique(return_inverse=True)
    low, is_there = mask
    place = is_there.cumsum(0) - 1
    return is_there.nonzero().squeeze(1) + low, place[numbers - low]


def _mask(numbers: Tensor) -> tuple[int, Tensor] | None:
    """The lowest number and which ones of its range there are; None where that is too long."""
    if not len(numbers):
        return None
    low, high = (int(end) for end in numbers.aminmax())
    if high - low >= SPARSE * len(numbers):
        return None
    is_there = torch.zeros(high - low + 1, dtype=torch.bool, device="cpu")
    is_there[numbers - low] = True
    return low, is_there
