"""Factors that are sums, divided into terms of fewer numbers.

    log f(x) = c + sum_t g_t(B_t x),      rank B_t < rank of f

The density of a vector of independent numbers is one factor of one node, ``.to_event(1)``, and a
product of as many factors of one number each; a likelihood of many observations likewise is one of
few combinations of coefficients each. No grid serves so many numbers jointly, one of each term
does. Terms are factors like any others: those of the same site on a plate.

A sum is left whole if one of its terms depends on as many combinations of numbers as it does, from
the innermost sum outwards, as that of one observation; terms of a factor that depend on the same
combinations are one. Sums are followed through signs and constant scales, not through products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.graph.terms import (
    Numbers,
    TermGroup,
    as_factors,
    leaves_of,
    of_factors,
    on_their_nodes,
)
from pyrograph.infer.message_passing.densities.dependence import Dependence
from pyrograph.infer.message_passing.densities.in_states import states_of
from pyrograph.infer.message_passing.densities.spans import ranks, span
from pyrograph.trace.distinct import row_numbers
from pyrograph.trace.expand import Children, Expander
from pyrograph.trace.split import Level, below, sums_of

#: Most numbers that all terms may read, each its nodes.
MOST_NUMBERS = 2**26
#: By what squared lengths of projections on the same combinations may differ.
ALIKE = 1e-7


@dataclass(frozen=True)
class Divided:
    """What factors are sums of.

    Attributes:
        groups: terms, by the slots that they read.
        constant: ``[]``, c of all factors.
        is_apart: whether no two terms of a factor depend on the same numbers, so that it is a
            product of functions of independent ones: what they depend on adds up.
    """

    groups: list[TermGroup]
    constant: Tensor
    is_apart: bool


class _Sums(Expander):
    """Sums alone: products with a latent number stay as they are."""

    def _products(self, a, b, block: Tensor, source: Tensor) -> Children | None:
        if all(getattr(side, "ids", None) is not None for side in (a, b)):
            return None
        return super()._products(a, b, block, source)

    def _quotients(self, a, b, block: Tensor, source: Tensor) -> Children | None:
        if getattr(b, "ids", None) is not None:
            return None
        return super()._quotients(a, b, block, source)


@dataclass(frozen=True)
class _Spans:
    """Which combinations numbers depend on.

    Attributes:
        rows: that span them, ``[D, n, m, W]``; rank: ``[D, n]``, how many they are.
        rounding: what of a direction is.
    """

    rows: Tensor
    rank: Tensor
    rounding: float

    def part(self, which: Tensor) -> _Spans:
        return _Spans(self.rows[:, which], self.rank[:, which], self.rounding)

    @staticmethod
    def joined(parts: list[_Spans]) -> _Spans:
        most = max(part.rows.shape[2] for part in parts)
        rows = [
            torch.nn.functional.pad(part.rows, (0, 0, 0, most - part.rows.shape[2]))
            for part in parts
        ]
        return _Spans(torch.cat(rows, 1), torch.cat([p.rank for p in parts], 1), parts[0].rounding)

    def alike(self, row: Tensor) -> Tensor:
        """Equal numbers ``[n]`` where those of one factor, ``row [n]``, depend on the same: random
        vectors have the same projections."""
        generator = torch.Generator().manual_seed(0)
        number = row_numbers(torch.cat([row.unsqueeze(1), self.rank.t()], 1))
        for rows, rank in zip(self.rows, self.rank, strict=True):
            size = torch.zeros(len(row), 2, dtype=torch.float64, device="cpu")
            shape = (rows.shape[-1], 2)
            probe = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
            probe = probe / probe.norm(dim=0)
            for r in rank.unique().tolist():
                which = (rank == r).nonzero().squeeze(1)
                basis = None if r == 0 else span(rows[which], self.rounding, rows.shape[-1])
                if basis is not None:
                    size[which] = (basis @ probe).square().sum(-2)
            for own in size.unbind(1):
                number = row_numbers(torch.stack([number, _nearby(own)], 1))
        return number


def _nearby(value: Tensor) -> Tensor:
    """Equal numbers of values ``[n]`` between which there is no gap."""
    ascending, order = value.sort()
    number = torch.zeros_like(order)
    number[order[1:]] = (ascending.diff() > ALIKE).cumsum(0)
    return number


def divided(graph: FactorGraph, group: FactorGroup, index: Tensor, like: Tensor) -> Divided | None:
    """Factors ``index [E]`` of a group as terms of fewer numbers; None where none is a sum of such.

    Args:
        like: dtype and device.
    """
    with torch.enable_grad():  # constants may be attached to the program's tensors
        tree = _Tree(graph, group, index, like)
        found = tree.terms()
    if found is None:
        return None
    numbers, constant, is_apart = found
    return Divided(list(on_their_nodes(graph, group, numbers)), constant.to(like), is_apart)


class _Tree:
    """Sums of sums, as far as they depend on more than one combination."""

    def __init__(self, graph: FactorGraph, group: FactorGroup, index: Tensor, like: Tensor):
        self._graph, self._group, self._like = graph, group, like
        self._whole, self._expander = of_factors(graph, group, index, _Sums)
        self._width = sum(site.width for site in group.slots)
        row = torch.arange(len(index), device="cpu")
        one = torch.ones(len(index), dtype=torch.float64, device="cpu")
        level = Level(row, one, self._whole.ids.clone(), row)
        self._levels, self._spans = [level], [self._spans_of(level)]
        for level in self._further():
            self._levels.append(level)
            self._spans.append(self._spans_of(level))

    def _further(self) -> Iterator[Level]:
        """Levels below the last one, while they are not too large."""
        while True:
            wide = (self._spans[-1].rank.amax(0) > 1).nonzero().squeeze(1)
            level = below(self._expander, self._levels[-1], wide)
            if level is None:
                return
            if len(level.ids) * self._width > MOST_NUMBERS:
                self._levels[-1].is_sum[:] = False
                return
            yield level

    def _spans_of(self, level: Level) -> _Spans:
        numbers = Numbers(self._whole.tape, level.ids, self._whole.row[level.row])
        terms = as_factors(self._graph, self._group, numbers)
        program = terms.program.in_dtype(self._like.dtype)
        states = states_of(terms.slots, self._like.device)
        widths = [site.width for site in terms.slots if not site.is_discrete]
        generator = torch.Generator().manual_seed(0)
        read = Dependence(terms, program, states, widths, self._like, generator)
        rows = read.rows
        if rows is None:  # the numbers themselves
            reads = leaves_of(self._graph, terms)
            is_continuous = [
                torch.full((site.width,), not site.is_discrete, device="cpu")
                for site in terms.slots
            ]
            rows = torch.diag_embed(reads[:, torch.cat(is_continuous)].double())
            rows = rows.expand(len(states), *rows.shape)
        rows = rows.cpu()
        return _Spans(rows, ranks(rows, read.rank_tolerance), read.rank_tolerance)

    def terms(self) -> tuple[Numbers, Tensor, bool] | None:
        """The largest ones that depend on less than what they are terms of, and the constant; and
        whether they are apart."""
        whole = self._whole_sums()
        if bool(whole[0].all()):
            return None
        active = torch.ones_like(whole[0])
        row, ids, coef, spans = [], [], [], []
        constant = torch.zeros((), dtype=torch.float64, device="cpu")
        for depth, (level, own) in enumerate(zip(self._levels, whole, strict=True)):
            found = (active & own).nonzero().squeeze(1)
            is_open = active & ~own
            row.append(level.row[found])
            spans.append(self._spans[depth].part(found))
            if depth == 0:  # elements that stay whole keep their constants
                ids.append(self._whole.ids[found])
                coef.append(torch.ones_like(level.coef[found]))
                constant = constant + level.chain_constant[is_open].sum()
            else:
                ids.append(level.ids[found])
                coef.append(level.coef[found])
                constant = constant + level.chain_constant[active].sum()
            constant = constant + level.sum_constant[is_open].sum()
            if depth + 1 < len(whole):
                active = is_open[self._levels[depth + 1].parent]
        rows = torch.cat(row)
        every = _Spans.joined(spans)
        number = every.alike(rows)
        order = number.argsort(stable=True)
        tape, number = self._whole.tape, number[order]
        ids, coef = torch.cat(ids)[order], torch.cat(coef)[order]
        sums = sums_of(tape, ids, coef, number, self._expander.dtype)
        first = torch.ones_like(number, dtype=torch.bool)
        first[1:] = number.diff() > 0
        kept = order[first]
        total = torch.zeros_like(self._spans[0].rank).index_add(1, rows[kept], every.rank[:, kept])
        is_apart = bool((total == self._spans[0].rank).all())
        return Numbers(tape, sums, self._whole.row[rows[kept]]), constant, is_apart

    def _whole_sums(self) -> list[Tensor]:
        """By level, which numbers are left whole."""
        most: list[Tensor] = []
        for depth in range(len(self._levels) - 1, -1, -1):
            level, own = self._levels[depth], self._spans[depth].rank.sum(0)
            if most:
                terms = torch.zeros_like(own)
                terms.scatter_reduce_(0, self._levels[depth + 1].parent, most[0], "amax")
                own = torch.where(level.is_sum, terms, own)
            most.insert(0, own)
        return [
            ~level.is_sum | (terms >= spans.rank.sum(0))
            for level, spans, terms in zip(self._levels, self._spans, most, strict=True)
        ]
