"""The statistics of a collapsed mixture's clusters, kept up to date one element at a time.

Row r of the pool holds what a component keeps of the elements of a cluster and of the prior: the
sum of t(x_i), or where sums would cancel, location and spread. Statistics come first in memory,
``[m, R]``, so that sums over few dimensions run over long rows. They are in double precision
whatever the data's, and so is what is computed from them; scores are in the data's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.distributions.seating import Seating, resized, twin

#: Elements that leave, one after the other, leave more than this share of a cluster's spread, else
#: it is counted anew from those who stay: a difference would have lost its digits.
LOSS = 1e-6
#: Elements of clusters, and their deviations from the clusters' locations, looked at in one go.
AT_ONCE = 2**22


class MixtureTerm:
    """Base of the components' terms: they add ``prior`` and ``scores``.

    Attributes:
        dtype: of the scores.
        table: ``[n, m]``, t(x_i).
        totals: ``[m, limit]``, of all rows of the pool.
        prior: ``[m]``, of an empty cluster.
    """

    prior: Tensor

    def __init__(self, component, data: Tensor):
        data, self.dtype = data.detach(), component.dtype
        self.component = component = component.detached().in_double()
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
        return self.log_marginals_of(sizes, self.totals)

    def log_marginals_of(self, sizes: Tensor, totals: Tensor) -> Tensor:
        """``[...]``, of clusters of these sizes ``[...]`` with statistics ``[m, ...]``."""
        sums = totals.movedim(0, -1) - self.prior
        return self.component.log_marginal(sizes.to(sums.dtype), sums, self.centre)

    def totals_of(self, members: Tensor) -> Tensor:
        """Statistics ``[m, U]`` of clusters with these elements, ``[U, n]`` bool."""
        return (self.prior + members.to(self.table.dtype) @ self.table).T

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
        members = seating.members()
        step = max(1, AT_ONCE // max(1, members.shape[1]))
        parts = [self.totals_of(part) for part in members.split(step)]
        self.totals = torch.cat(parts, 1).contiguous()
