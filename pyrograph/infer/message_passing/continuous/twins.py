"""Factors that are the same function of the same continuous nodes.

The labels of a mixture are drawn with the same weights, one each: under mean field the expectations
of log f over the weights, in every state of the label, are the same for all of them, and are taken
once. So are those of all items that an annotator gives one label to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.trace.distinct import row_numbers

#: Factors are looked at one each where they are so many times as many.
TIMES = 2


def one_of_each(local: LocalDensity, rows: list[Tensor]) -> tuple[Tensor, Tensor] | None:
    """One factor of every set of twins, ascending, and ``[E]`` whose twin each is; None where there
    are none, or few.

    Args:
        rows: ``[E]`` of each continuous slot's nodes in their family.
    """
    of_scope = row_numbers(torch.stack(rows, 1))
    if TIMES * (int(of_scope.max()) + 1) > local.num_factors:
        return None
    twin = row_numbers(torch.stack([of_scope, local.functions], 1))
    number = int(twin.max()) + 1
    if TIMES * number > local.num_factors:
        return None
    at = torch.arange(local.num_factors, device=twin.device)
    first = at.new_empty(number).scatter_(0, twin, at)  # any one of its equals
    first, order = first.sort()
    row = torch.empty_like(order).scatter_(0, order, at[:number])
    return first, row[twin]
