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

At alpha = 1 so are those on labels and one continuous node whose product has a grid of one
dimension, which costs no more than theirs: counts whose log rate is a number plus a label's, or of
an unknown number of trials with an unknown chance. Apart they close a cycle, around which they tell
each other the same again: after some hundred counts a label was certain whose chance is .3, the
evidence nats too low, and along ridges (n p is known, n is not) messages crawled for hundreds of
sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.graph.products import product
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.network.same_scope import Locals
from pyrograph.infer.message_passing.quadrature.conditional import quadratic_coordinates
from pyrograph.infer.message_passing.quadrature.tilted import POINTS
from pyrograph.trace.distinct import row_numbers

#: Steps of a program from which on its factors may share some. Others are not looked at.
DEEP = 40
#: A product has to save so many times the numbers.
SAVES = 4


@dataclass(frozen=True)
class Multiplied:
    """Products of factors of a group.

    Attributes:
        whole: they, in the places of their first factors.
        others: ``[F]`` the factors that they are made of besides.
        row: ``[F]`` of which product.
    """

    whole: Locals
    others: Tensor
    row: Tensor

    @property
    def index(self) -> Tensor:
        """All factors in them."""
        return torch.cat([self.whole.index, self.others])


class ProductDensity(LocalDensity):
    """Products of as many factors each.

    Args:
        group: the products.
        factors: what they are made of.
        rows: ``[U, n]`` of these.
    """

    def __init__(self, group: FactorGroup, factors: LocalDensity, rows: Tensor):
        self.factors, self.rows = factors, rows
        every = torch.arange(len(rows), device=rows.device)
        super().__init__(group, every, factors.like, factors.graph)

    def part(self, which: Tensor) -> LocalDensity:
        found = super().part(which)
        found.rows = self.rows[which]
        vars(found).pop("_apart", None)
        return found

    @cached_property
    def _apart(self) -> tuple[LocalDensity, Tensor]:
        """What all products are made of, and of which each is."""
        every, order = self.rows.flatten().sort()
        row = torch.div(order, self.rows.shape[1], rounding_mode="floor")
        return self.factors.part(every), row

    def name(self, e: int) -> str:
        first, *others = self.rows[e].tolist()
        return f"{self.factors.name(first)} (times {len(others)} others on its nodes)"

    def name_at(self, u: Tensor, d: int, e: int) -> str:
        """Of the factor that has no finite value there, if one has none."""
        factors = self.factors.part(self.rows[e])
        x = [node[:, :, [e]].expand(-1, -1, len(self.rows[e]), -1) for node in self.nodes(u)]
        value = factors.at_nodes(x)[0, d].detach()
        for bad in (value.isnan() | (value == torch.inf), value == -torch.inf):
            if bool(bad.any()):
                return factors.name(int(bad.nonzero()[0]))
        return self.name(e)

    def with_zeros_as(self, least: float, value: Tensor, u: Tensor) -> Tensor:
        """The same, by zeros of single factors: what the others of a product say stays."""
        there = (value == -torch.inf).flatten(1).any(1).nonzero().squeeze(1)
        factors, row = self._apart
        each = factors.at_nodes([node[:, :, row] for node in self.nodes(u[there])])
        each = factors.with_zeros_as(least, each, u[there])
        whole = each.new_zeros(*each.shape[:2], len(self.rows)).index_add(2, row, each)
        return value.index_copy(0, there, whole)


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
    kept, products = [], []
    for part in parts:
        found = []
        is_deep = len(part.local.program.lines) >= DEEP
        if (is_deep or _is_label_and_number(part)) and not is_closed(part):
            found = [
                own for rows in _alike(part, one_alpha) if (own := _product(graph, part, rows))
            ]
        gone = torch.cat([part.index[:0], *(own.index for own in found)])
        rest = (~torch.isin(part.index, gone)).nonzero().squeeze(1)
        if len(rest):
            kept.append(part.only(rest))
        products += found
    return kept, products


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
    """None where it has no grid, or would neither save much nor open a cycle of labels."""
    first, others = part.index[rows[:, 0]], part.index[rows[:, 1:]].flatten()
    local = ProductDensity(product(graph, part.group, part.index[rows]), part.local, rows)
    whole = Locals(part.group, first, local, part.alpha[rows[:, 0]])
    dim = _grid_dim(whole)
    if dim not in POINTS:
        return None
    row = torch.arange(len(rows), device=rows.device).repeat_interleave(rows.shape[1] - 1)
    if dim == 1 and _is_label_and_number(part):
        return Multiplied(whole, others, row)
    apart = min(dim, _num_read(part.local))
    share = rows.numel() / len(part.index)
    numbers = POINTS[apart] ** apart * share * part.local.program.num_numbers
    if SAVES * POINTS[dim] ** dim * local.program.num_numbers > numbers:
        return None
    return Multiplied(whole, others, row)


def _is_label_and_number(part: Locals) -> bool:
    """Whether factors are on discrete nodes and one continuous one, at alpha = 1."""
    return len(part.local.continuous) == 1 < part.group.arity and bool((part.alpha == 1).all())


def _grid_dim(whole: Locals) -> int:
    """Of products, without what is integrated in closed form."""
    whole.local.reduce_jointly()
    is_above = bool((whole.alpha > 0).all())
    return whole.local.dim - len(quadratic_coordinates(whole.local) if is_above else [])


def _num_read(local: LocalDensity) -> int:
    """Most numbers that a factor reads. Of nodes of one number each all are taken for read: what
    combinations of them takes as long to find out as many sweeps do."""
    if max(local.read_widths) == 1:
        return len(local.read_widths)
    return int(local.num_read.max())
