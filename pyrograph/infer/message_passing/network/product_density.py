"""Products of factors on one scope, as factors that are integrated by quadrature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.graph.products import product
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.network.same_scope import Locals


@dataclass(frozen=True)
class Like:
    """Like factors, each part of a product.

    Attributes:
        part, which: ``[F]`` which of a part's factors, ascending.
        row: ``[F]`` of which product.
    """

    part: Locals
    which: Tensor
    row: Tensor

    @property
    def group(self) -> FactorGroup:
        return self.part.group

    @property
    def index(self) -> Tensor:
        """``[F]`` the factors of the group."""
        return self.part.index[self.which]


@dataclass(frozen=True)
class Multiplied:
    """Products of factors.

    Attributes:
        whole: they, in the places of their first factors.
        first, others: what they are made of.
    """

    whole: Locals
    first: Like
    others: list[Like]


class ProductDensity(LocalDensity):
    """Products of factors.

    Args:
        whole: the products, in the places of their first factors.
        first: these.
        others: what they are made of besides.
    """

    def __init__(self, whole: FactorGroup, first: Like, others: Sequence[Like]):
        local = first.part.local
        self._made_of = [(own.part.local, own.which, own.row) for own in (first, *others)]
        every = torch.arange(whole.num_factors, device=first.row.device)
        super().__init__(whole, every, local.like, local.graph, local.is_whole)

    def part(self, which: Tensor) -> LocalDensity:
        found = super().part(which)
        number = torch.full((self.num_factors,), -1, device=which.device)
        number[which] = torch.arange(len(which), device=which.device)
        made_of = [(local, own, number[row]) for local, own, row in self._made_of]
        found._made_of = [(local, own[row >= 0], row[row >= 0]) for local, own, row in made_of]
        vars(found).pop("_apart", None)
        return found

    @cached_property
    def _apart(self) -> list[tuple[LocalDensity, Tensor]]:
        """What all products are made of, and of which each is."""
        return [(local.part(own), row) for local, own, row in self._made_of if len(own)]

    def name(self, e: int) -> str:
        local, own, row = self._made_of[0]
        first = local.name(int(own[row == e][0]))
        count = sum(int((row == e).sum()) for _, _, row in self._made_of)
        return f"{first} (times {count - 1} others on its nodes)"

    def name_at(self, u: Tensor, d: int | None, e: int) -> str:
        """Of the factor that has no finite value there, if one has none."""
        values = [self._at(factors, row, u)[0].detach() for factors, row in self._apart]
        for is_bad in (lambda v: v.isnan() | (v == torch.inf), lambda v: v == -torch.inf):
            for (factors, row), value in zip(self._apart, values, strict=True):
                bad = is_bad(value if d is None else value[[d]]).all(0) & (row == e)
                if bool(bad.any()):
                    return factors.name(int(bad.nonzero()[0]))
        return self.name(e)

    def zero_beside_nan(self, value: Tensor, u: Tensor) -> Tensor:
        """As where a factor excludes a state, in which points reach where another one overflows."""
        lost = value.isnan()
        there = lost.flatten(1).any(1).nonzero().squeeze(1)
        zeros = torch.zeros_like(value[there], dtype=torch.int64)
        for factors, row in self._apart:
            own = self._at(factors, row, u[there]) == -torch.inf
            zeros = zeros.index_add(2, row, own.long())
        return lost.index_copy(0, there, lost[there] & (zeros > 0))

    def with_zeros_as(self, least: float, value: Tensor, u: Tensor) -> Tensor:
        """The same, by zeros of single factors: what the others of a product say stays."""
        there = (value == -torch.inf).flatten(1).any(1).nonzero().squeeze(1)
        whole = torch.zeros_like(value[there])
        for factors, row in self._apart:
            each = self._at(factors, row, u[there])
            each = factors.with_zeros_as(least, each, u[there])
            whole = whole.index_add(2, row, each)
        return value.index_copy(0, there, whole)

    def _at(self, factors: LocalDensity, row: Tensor, u: Tensor) -> Tensor:
        """log f ``[N, D, F]`` of what products ``row [F]`` are made of, at ``u [N, D, E, r]``."""
        return factors.at_nodes([node[:, :, row] for node in self.nodes(u)])


def product_of(graph: FactorGraph, first: Like, others: Sequence[Like]) -> Multiplied:
    """Products of factors, at the alpha of their first ones.

    Args:
        first: one factor of each product, ascending; others: the other ones.
    """
    places = torch.cat([own.group.index[own.index] for own in others])
    row = torch.cat([own.row for own in others])
    whole = product(graph, first.group, first.index, padded(places, row, len(first.row)))
    local, alpha = ProductDensity(whole, first, others), first.part.alpha[first.which]
    return Multiplied(Locals(first.group, first.index, local, alpha), first, list(others))


def num_multiplied(first: Like, others: Sequence[Like]) -> Tensor:
    """``[U]`` how many factors make each of the products."""
    return torch.cat([own.row for own in (first, *others)]).bincount()


def apart_from(products: Sequence[Multiplied], parts: Sequence[Locals]) -> list[Locals]:
    """What is left of parts without their factors that products are made of."""
    gone = [like for found in products for like in (found.first, *found.others)]
    kept = []
    for part in parts:
        own = torch.zeros(len(part.index), dtype=torch.bool, device=part.index.device)
        for like in gone:
            if like.part is part:
                own[like.which] = True
        if not bool(own.all()):
            kept.append(part.only((~own).nonzero().squeeze(1)))
    return kept


def padded(values: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """Values ``[F]`` by their rows, ``[num_rows, most]``; -1 behind them."""
    order = row.argsort(stable=True)
    count = row.bincount(minlength=num_rows)
    start = (count.cumsum(0) - count)[row[order]]
    out = values.new_full((num_rows, int(count.max())), -1)
    out[row[order], torch.arange(len(row), device=row.device) - start] = values[order]
    return out
