"""Factors on one scope that compute much alike, multiplied into one.

A likelihood that recurs in its parameters, as of an ARMA or a GARCH series, has a factor for every
time, each of which computes all that was before: O(T^2) for every point, on T grids. Their product
computes it once, O(T), on one grid, and is projected as a whole. At alpha = 1 the product is what
belongs into one belief, as in :mod:`.same_scope`, and at alpha = 0 averages add up.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from pyrograph.graph import FactorGraph
from pyrograph.graph.products import product
from pyrograph.infer.message_passing.reduction import LocalDensity
from pyrograph.infer.message_passing.same_scope import Locals, Merged
from pyrograph.infer.message_passing.tilted import POINTS
from pyrograph.trace.distinct import row_numbers

#: Steps of a program from which on its factors may share some. Others are not looked at.
DEEP = 40
#: A product has to save so many times the numbers.
SAVES = 4


def multiplied_where_shared(
    graph: FactorGraph,
    parts: list[Locals],
    is_closed: Callable[[Locals], bool],
    one_alpha: bool,
) -> tuple[list[Locals], list[tuple[Locals, Merged]]]:
    """Factors that stay as they are, and products, each with what is part of it (of block 0).

    Args:
        is_closed: whether factors need no points, or their beliefs are no Gaussians.
        one_alpha: whether factors on one scope have the same alpha, which is their product's.
    """
    kept, products = [], []
    for part in parts:
        found = None if is_closed(part) else _product(graph, part, one_alpha)
        if found is None:
            kept.append(part)
        else:
            products.append(found)
    return kept, products


def _product(graph: FactorGraph, part: Locals, one_alpha: bool) -> tuple[Locals, Merged] | None:
    """None where it would not save much."""
    local, alpha = part.local, part.alpha
    may_be = one_alpha or bool(((alpha == 0) | (alpha == 1)).all())
    if len(local.program.lines) < DEEP or not may_be:
        return None
    number = row_numbers(part.group.scope[part.index])
    count = number.bincount()
    if int(count.min()) < 2 or int(count.min()) < int(count.max()):
        return None
    rows = number.argsort(stable=True).view(-1, int(count[0]))
    rows = rows[rows[:, 0].argsort()]
    group = product(graph, part.group, part.index[rows])
    first, others = part.index[rows[:, 0]], part.index[rows[:, 1:]].flatten()
    names = [local.name(e) for e in rows[:, 0].tolist()]
    whole = LocalDensity(
        group,
        torch.arange(len(rows), device=first.device),
        local.like,
        lambda e: f"{names[e]}, times {rows.shape[1] - 1} others on its nodes,",
    )
    work = _work(whole)
    if work == torch.inf or SAVES * work > _work(local):
        return None
    row = torch.arange(len(rows), device=first.device).repeat_interleave(rows.shape[1] - 1)
    return Locals(part.group, first, whole, alpha[rows[:, 0]]), Merged(part.group, others, 0, row)


def _work(local: LocalDensity) -> float:
    """Numbers that a sweep computes; infinity where all of what is read needs too many points (of
    what is quadratic given the rest it does not)."""
    read = int(local.num_read.max())
    points = POINTS[read] ** read if read in POINTS else torch.inf
    return points * local.program.num_numbers
