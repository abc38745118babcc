"""The statistics of a collapsed mixture's clusters, kept up to date one element at a time.

Slot c of particle p holds the sum of t(x_i) over its elements, plus the component's prior row where
the prior is of the same form; a slot that empties holds the prior row exactly. Statistics come
first in memory, ``[m, P, C]``, so that sums over few dimensions run over long rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.distributions.incremental import Seating, twin


class MixtureTerm:
    """Base of the components' terms: they add ``prior`` and ``scores``.

    Attributes:
        table: ``[n, m]``, t(x_i).
        totals: ``[m, P, C]``.
        prior: ``[m]``, of an empty slot.
    """

    prior: Tensor

    def __init__(self, component, data: Tensor):
        data = data.detach()
        self.component = component = component.detached()
        self.centre = component.centre(data)
        self.table = component.statistics(data, self.centre)
        self.columns = self.table.unsqueeze(-1).unbind(0)
        #: 0, ..., n: the sizes of a cluster, for what depends on nothing else.
        self.sizes = torch.arange(len(data) + 1, dtype=component.dtype, device=data.device)

    def log_prob(self, seating: Seating) -> Tensor:
        counts = seating.counts.to(self.totals.dtype)
        totals = self.totals.movedim(0, -1) - self.prior
        terms = self.component.log_marginal(counts, totals, self.centre)
        return torch.where(counts > 0, terms, 0).sum(-1)

    def move(self, i: int, slot: Tensor, sign: int, seating: Seating) -> None:
        rows, at = self.totals.flatten(1), seating.at
        if sign > 0:
            shape = (len(rows), len(at))
            rows.scatter_add_(1, at.expand(shape), self.columns[i].expand(shape))
            return
        empty = seating.counts.view(-1)[at] == 0
        rows[:, at] = torch.where(empty, self.prior.unsqueeze(-1), rows[:, at] - self.columns[i])

    def select(self, index: Tensor, memo: dict) -> MixtureTerm:
        new = twin(self)
        new.totals = self.totals.index_select(1, index)
        return new

    def grow(self, capacity: int, seating: Seating) -> None:
        shape = self.totals.shape[:2] + (capacity - self.totals.shape[2],)
        self.totals = torch.cat([self.totals, self.prior[:, None, None].expand(shape)], dim=2)

    def rebuild(self, seating: Seating) -> None:
        there = [i for i, inside in enumerate(seating.inside) if inside]
        slots = torch.arange(seating.capacity, device=self.table.device)
        member = seating.labels[:, None, there] == slots[:, None]
        sums = member.to(self.table.dtype) @ self.table[there]
        self.totals = (self.prior + sums).movedim(-1, 0).contiguous()
