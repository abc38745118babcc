"""Distinct numbers among many, by a mask of the range that they lie in where that is no longer than
they are many: a sort of millions of positions takes most of the time of reading a large program.
Rows of numbers by the numbers that they spell, which are sorted many times faster than rows are."""

from __future__ import annotations

import torch
from torch import Tensor

#: Length of a range for each number in it, up to which a mask is faster than a sort.
SPARSE = 2


def distinct(numbers: Tensor) -> Tensor:
    """Ascending, of ``numbers [n]``, int64."""
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


def row_numbers(rows: Tensor) -> Tensor:
    """Equal rows ``[n, m]`` of integers from 0 on get equal numbers ``[n]``, in the rows' order.

    As ``rows.unique(dim=0, return_inverse=True)[1]``, many times faster.
    """
    number, count = torch.zeros(len(rows), dtype=torch.int64, device=rows.device), 1
    if len(rows) < 2:
        return number
    for k, size in enumerate((rows.amax(0) + 1).tolist()):
        if size == 1:  # equal in all
            continue
        column = rows[:, k]
        if count * size >= 2**63:
            number = distinct_with_places(number)[1]
            count = len(rows)
        number, count = number * size + column, count * size
    return distinct_with_places(number)[1]


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows ``[k, m]`` that differ, in order, and :func:`row_numbers`."""
    if rows.shape[1] > len(rows):  # few long ones: the sort is less than a step for every column
        return rows.unique(dim=0, return_inverse=True)
    number = row_numbers(rows)
    count = int(number.max()) + 1 if len(rows) else 0
    at = torch.arange(len(rows), device=rows.device)
    first = at.new_empty(count).scatter_(0, number, at)  # any one of its equals
    return rows[first], number


def _mask(numbers: Tensor) -> tuple[int, Tensor] | None:
    """The lowest number and which ones of its range there are; None where that is too long."""
    if not len(numbers):
        return None
    low, high = (int(end) for end in numbers.aminmax())
    if high - low >= SPARSE * len(numbers):
        return None
    is_there = torch.zeros(high - low + 1, dtype=torch.bool, device=numbers.device)
    is_there[numbers - low] = True
    return low, is_there
