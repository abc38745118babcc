"""Factors of weighted counts on the same nodes, multiplied as tables are (:mod:`.same_scope`).

Those of the same count are one of their product: five readings of one sum close no cycle. Those of
different counts, and those beside a table, go by their tables where these are small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.graph import FactorGroup
from pyrograph.infer.message_passing.discrete.count_values import Counts
from pyrograph.infer.message_passing.network.same_scope import Merged, Tables
from pyrograph.trace.distinct import row_numbers


@dataclass(frozen=True)
class CountPart:
    """Like factors of weighted counts.

    Attributes:
        group, index: ``[E]`` factors of a group.
        counts: their values.
        alpha: ``[E]``.
    """

    group: FactorGroup
    index: Tensor
    counts: Counts
    alpha: Tensor

    @property
    def scope(self) -> Tensor:
        """``[E, k]`` node ids."""
        return self.group.scope[self.index]

    @property
    def key(self) -> Tensor:
        """``[E, ...]``, of each factor's count."""
        return torch.cat([self.scope, *self.counts.weights], 1)

    @property
    def num_entries(self) -> int:
        """Of the table of one factor."""
        return self.group.num_entries // self.group.num_factors

    def only(self, which: Tensor) -> CountPart:
        """Some of them, in order."""
        return replace(
            self, index=self.index[which], counts=self.counts.only(which), alpha=self.alpha[which]
        )

    @property
    def tables(self) -> Tables:
        return Tables(self.group, self.index, self.counts.table(), self.alpha)


def multiplied_counts(
    parts: list[CountPart], one_alpha: bool
) -> tuple[list[CountPart], list[Merged]]:
    """One factor for each count of each scope: the first, times the others.

    Args:
        one_alpha: whether factors on one scope have the same alpha, which is their product's.

    Returns:
        the parts, in order; and factors that are part of others, blocks being numbered likewise.
    """
    alike: dict[tuple, list[CountPart]] = {}
    for part in parts:
        sizes = tuple(weight.shape[1] for weight in part.counts.weights)
        alike.setdefault(sizes, []).append(part)
    out, merged = [], []
    for some in alike.values():
        found = _multiplied(some, one_alpha)
        merged += [replace(m, block=m.block + len(out)) for m in found[1]]
        out += found[0]
    return out, merged


def _multiplied(parts: list[CountPart], one_alpha: bool) -> tuple[list[CountPart], list[Merged]]:
    """Of factors of as many nodes, of as many states."""
    alpha = torch.cat([part.alpha for part in parts])
    number = row_numbers(torch.cat([part.key for part in parts]))
    every = torch.arange(len(number), device=number.device)
    first = torch.full_like(number, len(number)).scatter_reduce(0, number, every, "amin")[number]
    first = torch.where((alpha == 1) | one_alpha, first, every)
    is_first = first == every
    if bool(is_first.all()):
        return parts, []
    size = max(part.counts.size for part in parts)
    values = torch.cat([part.counts.widened(size).log_values for part in parts])
    values = torch.zeros_like(values).index_add(0, first, values)
    sizes, out, merged = [len(part.index) for part in parts], [], []
    for part, own, value in zip(parts, is_first.split(sizes), values.split(sizes), strict=True):
        if bool(own.any()):
            counts = replace(part.counts.only(own), log_values=value[own])
            out.append(replace(part.only(own), counts=counts))
    counts = torch.tensor([len(part.index) for part in out], device=first.device)
    place = (is_first.cumsum(0) - 1)[first]  # of the first, among all that are left
    block = torch.bucketize(place, counts.cumsum(0), right=True)
    row = place - (counts.cumsum(0) - counts)[block]
    columns = (v.split(sizes) for v in (~is_first, block, row))
    for part, is_gone, owner, at in zip(parts, *columns, strict=True):
        for o in owner[is_gone].unique().tolist():
            mine = is_gone & (owner == o)
            merged.append(Merged(part.group, part.index[mine], o, at[mine]))
    return out, merged


def beside_others(
    parts: list[CountPart], tables: list[Tables], one_alpha: bool, most: int
) -> list[Tensor]:
    """``[E]`` of each part, which factors have the nodes of others that are tables, or of other
    counts: those to make tables of; none of a part that would have more entries than ``most``.

    Args:
        one_alpha: as for :func:`multiplied_counts`.
    """
    found = []
    for part in parts:
        k = part.group.arity
        alike = [p for p in parts if p.key.shape[1] == part.key.shape[1]]
        counts = torch.cat([p.key for p in alike]).unique(dim=0)[:, :k]
        others = [t.group.scope[t.index] for t in tables if t.group.arity == k]
        number = row_numbers(torch.cat([part.scope, counts, *others]))
        own, rest = number[: len(part.index)], number[len(part.index) :]
        total = rest.bincount(minlength=int(number.max()) + 1)[own]
        wanted = (total > 1) & ((part.alpha == 1) | one_alpha)
        found.append(wanted & (part.num_entries * int(wanted.sum()) <= most))
    return found
