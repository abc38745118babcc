"""The statistics of a collapsed mixture's clusters, kept up to date one element at a time.

Row r of the pool holds the sum of t(x_i) over the elements of a cluster, plus the component's prior
row where the prior is of the same form. Statistics come first in memory, ``[m, R]``, so that sums
over few dimensions run over long rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.distributions.seating import Seating, resized, twin


class MixtureTerm:
    """Base of the components' terms: they add ``prior`` and ``scores``.

    Attributes:
        table: ``[n, m]``, t(x_i).
        totals: ``[m, limit]``, of all rows of the pool.
        prior: ``[m]``, of an empty cluster.
    """

    prior: Tensor

    def __init__(self, component, data: Tensor):
        data = data.detach()
        self.component = component = component.detached()
        self.centre = component.centre(data)
        self.table = component.statistics(data, self.centre)
        self.columns = self.table.unsqueeze(-1).unbind(0)
        #: Sizes of a cluster, for what depends on nothing else; the last one for rows that are
        #: out of use, which may be scored too.
        self.sizes = torch.arange(len(data) + 2, dtype=component.dtype, device=data.device)

    def log_prob(self, seating: Seating) -> Tensor:
        sizes = seating.sizes
        terms = torch.where(sizes > 0, self.log_marginals(sizes), 0)
        return terms.take(seating.rows).sum(1)

    def log_marginals(self, sizes: Tensor) -> Tensor:
        """``[limit]``, of the data of the clusters, which have these sizes."""
        totals = self.totals.T - self.prior
        return self.component.log_marginal(sizes.to(totals.dtype), totals, self.centre)

    def append(self, i: int, source: Tensor, start: int, sign: int, seating: Seating) -> None:
        totals = self.totals.index_select(1, source).add_(self.columns[i], alpha=sign)
        self.totals.narrow(1, start, source.size(0)).copy_(totals)

    def tidy(self, kept: Tensor, length: int) -> None:
        self.totals = resized(self.totals, kept, length)

    def copy(self) -> MixtureTerm:
        new = twin(self)
        new.totals = self.totals.clone()
        return new

    def rebuild(self, seating: Seating) -> None:
        sums = seating.members().to(self.table.dtype) @ self.table
        self.totals = (self.prior + sums).T.contiguous()
