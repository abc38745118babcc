"""Factors on the same nodes, multiplied into one.

Two factors on one pair of nodes, such as a transition and what is observed of it, close a cycle of
the factor graph, though their product is a factor like any other: a chain stays a chain. At
alpha = 1 the product is what belongs into one belief; other alphas say how each factor is
projected, and such factors stay apart. So do factors that are integrated by quadrature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.graph import FactorGroup
from pyrograph.graph.grouping import row_numbers
from pyrograph.infer.message_passing.families import add_sites
from pyrograph.infer.message_passing.quadratic import of_whole_nodes
from pyrograph.infer.message_passing.reduction import LocalDensity


@dataclass(frozen=True)
class Tables:
    """Like discrete factors.

    Attributes:
        group, index: ``[E]`` factors of a group.
        log_table: ``[E, c_1, ..., c_k]``.
        alpha: ``[E]``.
    """

    group: FactorGroup
    index: Tensor
    log_table: Tensor
    alpha: Tensor


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
        index, own = self.index[which], which.tolist()
        local = LocalDensity(self.group, index, self.local.like, lambda e: self.local.name(own[e]))
        return Locals(self.group, index, local, self.alpha[which])


@dataclass(frozen=True)
class Merged:
    """Factors that are part of others.

    Attributes:
        group, index: ``[E]`` factors of a group.
        block, row: the block, and ``[E]`` the factor of it, whose belief is theirs.
    """

    group: FactorGroup
    index: Tensor
    block: int
    row: Tensor


@dataclass(frozen=True)
class Product:
    """Gaussian factors of whole nodes, each the product of some on one scope.

    Attributes:
        group, index: ``[U]`` the first of each product.
        parts: factors, and ``[E]`` the products that they are part of.
    """

    group: FactorGroup
    index: Tensor
    parts: list[tuple[Locals, Tensor]]

    @property
    def widths(self) -> list[int]:
        """Numbers of each node."""
        return self.parts[0][0].local.nodes_widths

    def function(self) -> Gaussian:
        """Batch ``[U]``, in the numbers of whole nodes."""
        total = Gaussian.flat((len(self.index),), sum(self.widths), self.parts[0][0].local.like)
        for part, row in self.parts:
            own = part.local.quadratic
            basis = of_whole_nodes(part.local.bases, self.widths, own.shift)
            total = add_sites(total, row, own, basis)
        return total

    def log_density(self, x: Tensor) -> Tensor:
        """``[U]`` at ``[U, sum of widths]``."""
        total = x.new_zeros(len(x), dtype=torch.float64)
        for part, row in self.parts:
            nodes = [v[None, None] for v in x[row].split(self.widths, 1)]
            total = total.index_add(0, row, part.local.at_nodes(nodes)[0, 0].double())
        return total.to(x)


def multiplied(tables: list[Tables]) -> tuple[list[Tables], list[Merged]]:
    """The tables with one factor for each scope: the first, times the others, in double precision.

    Scopes are in order of nodes, so that equal ones have the same slots. Blocks are numbered as the
    tables that are returned.
    """
    owners = _owners([(part, part.alpha == 1) for part in tables])
    if owners is None:
        return tables, []
    kept = [(owner < 0).nonzero().squeeze(1) for owner, _ in owners]
    number = torch.tensor([len(rows) > 0 for rows in kept], device="cpu").cumsum(0) - 1
    products, merged = [part.log_table.double() for part in tables], []
    for k, (owner, place) in enumerate(owners):
        for o in owner[owner >= 0].unique().tolist():
            which = (owner == o).nonzero().squeeze(1)
            other = tables[k].log_table[which].double()
            products[o] = products[o].index_add(0, place[which], other)
            row = torch.searchsorted(kept[o], place[which])
            merged.append(Merged(tables[k].group, tables[k].index[which], int(number[o]), row))
    out = [
        Tables(part.group, part.index[rows], table[rows], part.alpha[rows])
        for part, table, rows in zip(tables, products, kept, strict=True)
        if len(rows)
    ]
    return out, merged


def multiplied_gaussians(
    parts: list[Locals], is_gaussian: Callable[[Locals], bool]
) -> tuple[list[Locals], list[Product]]:
    """The factors whose scopes are theirs alone, and products of the others."""
    eligible = [
        (part.alpha == 1) & (len(part.local.continuous) > 1 and is_gaussian(part)) for part in parts
    ]
    owners = _owners(list(zip(parts, eligible, strict=True)))
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
        every = [(parts[o].only(first), torch.arange(len(first), device=first.device))]
        for part, (owner, place) in zip(parts, owners, strict=True):
            which = (owner == o).nonzero().squeeze(1)
            if len(which):
                every.append((part.only(which), torch.searchsorted(first, place[which])))
        products.append(Product(parts[o].group, parts[o].index[first], every))
    out = [
        part if bool(mine.all()) else part.only(mine.nonzero().squeeze(1))
        for part, mine in zip(parts, alone, strict=True)
        if bool(mine.any())
    ]
    return out, products


def _owners(
    parts: Sequence[tuple[Tables | Locals, Tensor]],
) -> list[tuple[Tensor, Tensor]] | None:
    """Of every factor the part ``[E]`` and the place in it ``[E]`` of the first on its scope; -1
    if it is the first itself. None if all are apart.

    Args:
        parts: factors, and ``[E]`` which may be multiplied.
    """
    by_arity: dict[int, list[int]] = {}
    for k, (part, _) in enumerate(parts):
        by_arity.setdefault(part.group.arity, []).append(k)
    none = [torch.full_like(part.index, -1) for part, _ in parts]
    owners = [(owner, owner.clone()) for owner in none]
    found = False
    for members in by_arity.values():
        chosen = [parts[k][1].nonzero().squeeze(1) for k in members]
        scope = [parts[k][0].group.scope[parts[k][0].index[own]] for k, own in zip(members, chosen)]
        same = row_numbers(torch.cat(scope))
        if len(same) == 0 or int(same.max()) + 1 == len(same):
            continue
        found = True
        every = torch.arange(len(same), device=same.device)
        first = torch.full_like(same, len(same)).scatter_reduce(0, same, every, "amin")[same]
        which = torch.cat([torch.full_like(own, k) for k, own in zip(members, chosen)])
        place = torch.cat(chosen)
        later = first != every
        sizes = [len(own) for own in chosen]
        own_later, own_first = later.split(sizes), first.split(sizes)
        for k, own, is_later, f in zip(members, chosen, own_later, own_first, strict=True):
            owners[k][0][own[is_later]] = which[f[is_later]]
            owners[k][1][own[is_later]] = place[f[is_later]]
    return owners if found else None
