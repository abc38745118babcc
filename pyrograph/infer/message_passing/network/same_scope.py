"""Factors on the same nodes, multiplied into one; Gaussian ones on some of them too.

Two factors on one pair of nodes, such as a transition and what is observed of it, close a cycle of
the factor graph, though their product is a factor like any other: a chain stays a chain. At
alpha = 1 the product is what belongs into one belief, and where alpha is one of each scope (an edge
of spanning trees); under mean field expectations of log densities add up on whatever scopes. Other
alphas say how each factor is projected, and such factors stay apart. Of factors that are integrated
by quadrature see :mod:`.on_one_grid` and :mod:`.shared_work`, of conjugate ones
:mod:`.conjugate_products`.

Products of functions of a difference are functions of it; those beside a table go into the table.

Gaussian factors whose nodes are among those of another are part of it likewise (:mod:`.contained`):
observations of sums of more and more innovations are one factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.graph import FactorGroup
from pyrograph.infer.message_passing.continuous.quadratic import of_whole_nodes
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.discrete.differences import table_of_differences
from pyrograph.infer.message_passing.network.contained import contained
from pyrograph.infer.message_passing.nodes.basis import Basis, Combinations, Entries
from pyrograph.infer.message_passing.nodes.families import add_sites
from pyrograph.trace.distinct import row_numbers

#: Most numbers of nodes that are read whole where factors on some of them are multiplied.
WIDE = 4


@dataclass(frozen=True)
class Tables:
    """Like discrete factors of two or more nodes.

    Attributes:
        group, index: ``[E]`` factors of a group.
        log_table: ``[E, c_1, ..., c_k]``; or of pairs that depend on the difference of their states
            alone, ``[E, 2 c - 1]`` by this.
        alpha: ``[E]``.
    """

    group: FactorGroup
    index: Tensor
    log_table: Tensor
    alpha: Tensor

    @property
    def is_difference(self) -> bool:
        """Whether the values are those by difference."""
        return self.log_table.dim() == 2


@dataclass(frozen=True)
class Locals:
    """Like factors with continuous nodes.

    Attributes:
        group, index: ``[E]`` factors of a group.
        local: their log densities.
        alpha: ``[E]``.
    """

    group: FactorGroup
    index: Tensor
    local: LocalDensity
    alpha: Tensor

    def only(self, which: Tensor) -> Locals:
        """Some of them, in order."""
        if len(which) == len(self.index):
            return self
        own = self.local
        local = LocalDensity(own.group, which, own.like, own.graph, own.is_whole)
        return Locals(self.group, self.index[which], local, self.alpha[which])


@dataclass(frozen=True)
class Merged:
    """Factors that are part of others.

    Attributes:
        group, index: ``[E]`` factors of a group.
        block, row: the block, and ``[E]`` the factor of it, whose belief is theirs.
        columns: ``[E, d]`` which numbers of that belief; None for all.
    """

    group: FactorGroup
    index: Tensor
    block: int
    row: Tensor
    columns: Tensor | None = None


@dataclass(frozen=True)
class Part:
    """Gaussian factors that are part of products.

    Attributes:
        factors: ``E`` of them.
        row: ``[E]`` the products.
        columns: ``[E, d]`` their nodes' numbers among those of the products; None for all.
    """

    factors: Locals
    row: Tensor
    columns: Tensor | None

    def basis(self, function: Gaussian, width: int) -> Basis:
        """What they read of the products' ``width`` numbers; None for all of them."""
        local = self.factors.local
        basis = of_whole_nodes(local.bases, local.nodes_widths, function.shift)
        if self.columns is None:
            return None if basis is None else Combinations(basis)
        if basis is None:
            return Entries(self.columns, width)
        columns = self.columns.unsqueeze(1).expand_as(basis)
        return Combinations(basis.new_zeros(*basis.shape[:2], width).scatter(2, columns, basis))


@dataclass(frozen=True)
class Product:
    """Gaussian factors of whole nodes, each the product of some on one scope.

    Attributes:
        group, index: ``[U]`` of each product the first that has all of its nodes.
        parts: these first, and the others.
    """

    group: FactorGroup
    index: Tensor
    parts: list[Part]

    @property
    def widths(self) -> list[int]:
        """Numbers of each node."""
        return self.parts[0].factors.local.nodes_widths

    def function(self) -> Gaussian:
        """Batch ``[U]``, in the numbers of whole nodes."""
        width, like = sum(self.widths), self.parts[0].factors.local.like
        total = Gaussian.flat((len(self.index),), width, like)
        for part in self.parts:
            own = part.factors.local.quadratic
            total = add_sites(total, part.row, own, part.basis(own, width))
        return total

    def log_density(self, x: Tensor) -> Tensor:
        """``[U]`` at ``[U, sum of widths]``."""
        total = x.new_zeros(len(x), dtype=torch.float64)
        for part in self.parts:
            own = x[part.row]
            own = own if part.columns is None else own.gather(1, part.columns)
            local = part.factors.local
            nodes = [v[None, None] for v in own.split(local.nodes_widths, 1)]
            total = total.index_add(0, part.row, local.at_nodes(nodes)[0, 0].double())
        return total.to(x)


def multiplied(tables: list[Tables], one_alpha: bool) -> tuple[list[Tables], list[Merged]]:
    """The tables with one factor for each scope: the first, times the others, in double precision.

    Scopes are in order of nodes, so that equal ones have the same slots. Blocks are numbered as the
    tables that are returned.

    Args:
        tables: those by difference last.
        one_alpha: whether factors on one scope have the same alpha, which is their product's.
    """
    eligible = [(part.alpha == 1) | one_alpha for part in tables]
    owners = _owners(tables, eligible, [torch.zeros_like(own) for own in eligible])
    if owners is None:
        return tables, []
    kept = [(owner < 0).nonzero().squeeze(1) for owner, _ in owners]
    number = torch.tensor([len(rows) > 0 for rows in kept], device="cpu").cumsum(0) - 1
    products, merged = [part.log_table.double() for part in tables], []
    for k, (owner, place) in enumerate(owners):
        for o in owner[owner >= 0].unique().tolist():
            which = (owner == o).nonzero().squeeze(1)
            value = tables[k].log_table[which].double()
            firsts, at = place[which].unique(return_inverse=True)
            others = value.new_zeros(len(firsts), *value.shape[1:]).index_add(0, at, value)
            if tables[k].is_difference and not tables[o].is_difference:
                others = table_of_differences(others)
            products[o] = products[o].index_add(0, firsts, others)
            row = torch.searchsorted(kept[o], place[which])
            merged.append(Merged(tables[k].group, tables[k].index[which], int(number[o]), row))
    out = [
        Tables(part.group, part.index[rows], table[rows], part.alpha[rows])
        for part, table, rows in zip(tables, products, kept, strict=True)
        if len(rows)
    ]
    return out, merged


def multiplied_gaussians(
    parts: list[Locals], is_gaussian: Callable[[Locals], bool], one_alpha: bool
) -> tuple[list[Locals], list[Product]]:
    """The factors whose scopes are theirs alone, and products of the others.

    Args:
        one_alpha: as for :func:`multiplied`.
    """
    is_mean_field = all(bool((part.alpha == 0).all()) for part in parts)
    plain = [(part.alpha == 1) | is_mean_field for part in parts]
    eligible = [
        (own | one_alpha) & (len(part.local.continuous) > 1 and is_gaussian(part))
        for part, own in zip(parts, plain, strict=True)
    ]
    narrow = [
        own & some & (max(part.local.nodes_widths) <= WIDE)
        for part, own, some in zip(parts, eligible, plain, strict=True)
    ]
    owners = _owners(parts, eligible, narrow)
    if owners is None:
        return parts, []
    alone = [owner < 0 for owner, _ in owners]
    for owner, place in owners:
        for o in owner[owner >= 0].unique().tolist():
            alone[o][place[owner == o]] = False
    products = []
    for o, (own, _) in enumerate(owners):
        first = ((own < 0) & ~alone[o]).nonzero().squeeze(1)
        if not len(first):
            continue
        row = torch.arange(len(first), device=first.device)
        every = [Part(parts[o].only(first), row, None)]
        for part, (owner, place) in zip(parts, owners, strict=True):
            which = (owner == o).nonzero().squeeze(1)
            if len(which):
                row = torch.searchsorted(first, place[which])
                factors = part.only(which)
                every.append(Part(factors, row, _columns(factors, every[0].factors, row)))
        products.append(Product(parts[o].group, parts[o].index[first], every))
    out = [
        part if bool(mine.all()) else part.only(mine.nonzero().squeeze(1))
        for part, mine in zip(parts, alone, strict=True)
        if bool(mine.any())
    ]
    return out, products


def _columns(inner: Locals, outer: Locals, row: Tensor) -> Tensor | None:
    """``[E, d]`` where numbers of the nodes of factors are among those of others; None if all."""
    if inner.group.arity == outer.group.arity:
        return None
    own, others = inner.group.scope[inner.index], outer.group.scope[outer.index][row]
    slot = (own.unsqueeze(2) == others.unsqueeze(1)).byte().argmax(2)
    widths = torch.tensor(outer.local.nodes_widths, device=slot.device)
    start = (widths.cumsum(0) - widths)[slot]
    columns = [
        start[:, k, None] + torch.arange(width, device=slot.device)
        for k, width in enumerate(inner.local.nodes_widths)
    ]
    return torch.cat(columns, 1)


def _owners(
    parts: Sequence[Tables | Locals], eligible: list[Tensor], narrow: list[Tensor]
) -> list[tuple[Tensor, Tensor]] | None:
    """Of every factor the part ``[E]`` and the place in it ``[E]`` of the first on its scope, or on
    the one largest scope that has all of its nodes; -1 if it is the first itself. None if all are
    apart.

    Args:
        parts: factors.
        eligible: ``[E]`` which of each may be multiplied.
        narrow: ``[E]`` which may be with those on larger scopes.
    """
    by_arity: dict[int, list[int]] = {}
    for k, part in enumerate(parts):
        by_arity.setdefault(part.group.arity, []).append(k)
    ends = torch.tensor([len(part.index) for part in parts], device="cpu").cumsum(0).tolist()
    starts = [end - len(part.index) for end, part in zip(ends, parts, strict=True)]
    if not parts:
        return None
    first = torch.arange(ends[-1], device=parts[0].index.device)  # of all factors, part by part
    scopes, numbers = [], []
    for members in by_arity.values():
        chosen = [eligible[k].nonzero().squeeze(1) for k in members]
        scope = [
            parts[k].group.scope[parts[k].index[own]]
            for k, own in zip(members, chosen, strict=True)
        ]
        number = torch.cat([own + starts[k] for k, own in zip(members, chosen, strict=True)])
        same = row_numbers(torch.cat(scope))
        every = torch.arange(len(same), device=same.device)
        place = torch.full_like(same, len(same)).scatter_reduce(0, same, every, "amin")[same]
        first[number] = number[place]
        kept = torch.cat(narrow)[number] & (place == every)
        scopes.append(torch.cat(scope)[kept])
        numbers.append(number[kept])
    inner, outer = contained(scopes)
    number = torch.cat(numbers)
    first = first.index_copy(0, number[inner], number[outer])
    first = first[first]  # of factors whose first is now part of another
    every = torch.arange(len(first), device=first.device)
    if bool((first == every).all()):
        return None
    part = torch.bucketize(first, torch.tensor(ends, device=first.device), right=True)
    place = first - torch.tensor(starts, device=first.device)[part]
    own = first == every
    owner, place = part.masked_fill(own, -1), place.masked_fill(own, -1)
    sizes = [len(part.index) for part in parts]
    return list(zip(owner.split(sizes), place.split(sizes), strict=True))
