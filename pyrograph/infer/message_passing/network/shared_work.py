"""Factors on one scope that compute much alike, multiplied into one.

A likelihood that recurs in its parameters, as of an ARMA or a GARCH series, has a factor for every
time, each of which computes all that was before: O(T^2) numbers for every point, on T grids. Their
product

    F(x) = prod_t f_t(x)

computes it once, O(T), on one grid, and is projected as a whole. At alpha = 1 the product is what
belongs into one belief, as in :mod:`.same_scope`, and at alpha = 0 averages add up.

With W numbers that a program computes for a point, and P points of a grid, factors are multiplied
where

    4 P(F) W(F)  <=  P(f_1) W(f_1, ..., f_T)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.network.product_density import (
    Like,
    Multiplied,
    apart_from,
    product_of,
)
from pyrograph.infer.message_passing.network.same_scope import Locals
from pyrograph.infer.message_passing.quadrature.conditional import quadratic_coordinates
from pyrograph.infer.message_passing.quadrature.tilted import POINTS
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
) -> tuple[list[Locals], list[Multiplied]]:
    """Factors that stay as they are, and products.

    Args:
        is_closed: whether factors need no points, or their beliefs are no Gaussians.
        one_alpha: whether factors on one scope have the same alpha, which is their product's.
    """
    deep = [p for p in parts if len(p.local.program.lines) >= DEEP and not is_closed(p)]
    found = [_product(graph, part, rows) for part in deep for rows in _alike(part, one_alpha)]
    products = [product for product in found if product is not None]
    return apart_from(products, parts), products


def _alike(part: Locals, one_alpha: bool) -> Iterator[Tensor]:
    """Factors ``[U, n]`` that may be multiplied, those of a row on one scope and n > 1 alike, by
    their first."""
    alpha = part.alpha
    eligible = torch.arange(len(alpha), device=alpha.device)
    if not one_alpha:
        eligible = ((alpha == 0) | (alpha == 1)).nonzero().squeeze(1)
    number = row_numbers(part.group.scope[part.index[eligible]])
    count = number.bincount()
    by_scope = number.argsort(stable=True)
    alike = count[number[by_scope]]
    for n in count.unique().tolist():
        if n > 1:
            rows = by_scope[alike == n].view(-1, n)
            yield eligible[rows[rows[:, 0].argsort()]]


def _product(graph: FactorGraph, part: Locals, rows: Tensor) -> Multiplied | None:
    """None where it has no grid, or would not save much."""
    found = product_of(graph, *_members(part, rows))
    dim = _grid_dim(found.whole)
    if dim not in POINTS:
        return None
    apart = min(dim, _num_read(part.local))
    share = rows.numel() / len(part.index)
    numbers = POINTS[apart] ** apart * share * part.local.program.num_numbers
    if SAVES * POINTS[dim] ** dim * found.whole.local.program.num_numbers > numbers:
        return None
    return found


def _grid_dim(part: Locals) -> int:
    """Numbers that factors are integrated over by points: without those in closed form."""
    part.local.reduce_jointly()
    is_above = bool((part.alpha > 0).all())
    return part.local.dim - len(quadratic_coordinates(part.local) if is_above else [])


def _members(part: Locals, rows: Tensor) -> tuple[Like, list[Like]]:
    """First factors of products, and the others, of rows ``[U, n]`` of factors on one scope."""
    every = torch.arange(len(rows), device=rows.device)
    others, order = rows[:, 1:].flatten().sort()
    row = torch.div(order, rows.shape[1] - 1, rounding_mode="floor")
    return Like(part, rows[:, 0], every), [Like(part, others, row)]


def _num_read(local: LocalDensity) -> int:
    """Most numbers that a factor reads. Of nodes of one number each all are taken for read: what
    combinations of them takes as long to find out as many sweeps do."""
    if max(local.read_widths) == 1:
        return len(local.read_widths)
    return int(local.num_read.max())
