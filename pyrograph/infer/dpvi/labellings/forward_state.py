"""What a forward pass over labellings reads and writes; see :mod:`.forward`."""

from __future__ import annotations

import math
from itertools import accumulate

import torch
from torch import Tensor

from pyrograph.distributions.chinese_restaurant import SeatingPrior
from pyrograph.distributions.dirichlet_categorical import DirichletCategoricalTerm
from pyrograph.distributions.incremental import Clusters
from pyrograph.distributions.normal_inverse_gamma import NormalInverseGammaTerm, parts

COVERED = {SeatingPrior, NormalInverseGammaTerm, DirichletCategoricalTerm}


def is_covered(clusters: Clusters) -> bool:
    """Whether the terms of these labels are those of the equations above."""
    kinds = [type(term) for term in clusters.terms]
    return kinds.count(SeatingPrior) == 1 and len(kinds) > 1 and COVERED.issuperset(kinds)


class Sums:
    """What data and priors are to a pass; m numbers per cluster: -m, 2 b_n, symbols' counts, size.

    Attributes:
        dims, width: D dimensions in all, and 1 if their kappa_n and a_n are the same, else D.
        table, columns: what elements add to these, ``[m, n]``, and per element ``[m, 1]``: y, which
            turns -m into the gap y - m, 0, and counts.
        points: y per element, ``[D, 1]``.
        prior: of an empty cluster, ``[m]``.
        power: a_n by size n, ``[w, n + 1]``.
        ahead: r_n, a_n+1, and c_n without cost, ``[2 w + 1, n + 1]``.
        joining: the same and a_n of the first dimension if any, ``[2 w + 2, n + 1]``.
        first: c_0.
        by_product: whether logs of products may stand for sums of logs.
        rows: terms of the data and which of the m they read.
        symbols: per data of symbols, its first sum and the elements' symbols.
        log_total: sum of log(alpha + u) over u < t, by t.
    """

    def __init__(self, clusters: Clusters):
        of_kind = {kind: [t for t in clusters.terms if type(t) is kind] for kind in COVERED}
        (seats,) = of_kind[SeatingPrior]
        normal, symbolic = of_kind[NormalInverseGammaTerm], of_kind[DirichletCategoricalTerm]
        widths = [t.widths for t in normal]
        data = [parts(t.table.T, d) for t, (_, d) in zip(normal, widths, strict=True)]
        prior = [parts(t.prior, d) for t, (_, d) in zip(normal, widths, strict=True)]
        by_size = [parts(t.by_size, w) for t, (w, _) in zip(normal, widths, strict=True)]
        # y and -m of all data, then 2 b_n
        data = [own[k] for k in (0, 1) for own in data] + [t.table.T for t in symbolic]
        prior = [own[k] for k in (0, 1) for own in prior] + [t.prior for t in symbolic]
        self.table = torch.cat([*data, torch.ones_like(data[0][:1])])
        self.columns = self.table.T.contiguous().unsqueeze(-1).unbind(0)
        self.prior = torch.cat([*prior, self.table.new_zeros(1)])
        self.dims = sum(d for _, d in widths)
        same = [w for w, _ in widths] == [1]
        self.width = 1 if same else self.dims
        looked_up = [
            own[k].expand(1 if same else d, -1)
            for k in (0, 1)
            for own, (_, d) in zip(by_size, widths, strict=True)
        ]
        constant = seats.log_weight.to(self.table) + sum(own[2].diff() for own in by_size)
        constant = constant - sum(t.by_size[:-1] for t in symbolic)
        both = torch.cat([self.table.new_zeros(0, len(constant) + 1), *looked_up])
        ratio, power = both[: self.width], both[self.width :]
        self.power = power[:, :-1]
        self.ahead = torch.cat([ratio[:, :-1], power[:, 1:], constant.unsqueeze(0)])
        first_power = self.power[:1] if self.dims else torch.zeros_like(self.ahead[:1])
        self.joining = torch.cat([self.ahead, first_power])
        self.points = self.table[: self.dims].T.unsqueeze(-1).unbind(0)
        self.by_product = same and self._is_in_range()
        self.rows, self.symbols, start = [], [], 0
        for term, (_, d) in zip(normal, widths, strict=True):
            own = torch.arange(start, start + d, device="cpu")
            self.rows.append((term, torch.cat([own, self.dims + own])))
            start += d
        start += self.dims
        for term in symbolic:
            self.symbols.append((start, term.symbols))
            self.rows.append((term, slice(start, start + len(term.prior))))
            start += len(term.prior)
        self.alpha = seats.alpha
        self.log_total = list(accumulate(seats.log_total, initial=0.0))
        sizes = torch.zeros(1, 1, dtype=torch.int64, device=self.prior.device)
        self.first = float(self.ahead[-1, 0] + self.costs(self.prior.view(-1, 1, 1), sizes))

    def _is_in_range(self) -> bool:
        """Whether every product of 2 b_n over dimensions is: each element adds (y - m)^2 at most,
        and m is amid the data and the prior."""
        y, minus_l = self.table[: self.dims], self.prior[: self.dims]
        twice_b = self.prior[self.dims : 2 * self.dims]
        far = y.abs().amax(1).maximum(minus_l.abs())
        least, most = twice_b.log(), (twice_b + 4 * y.shape[1] * far.square()).log()
        info = torch.finfo(twice_b.dtype)
        top, bottom = float(most.clamp_min(0).sum()), float(least.clamp_max(0).sum())
        return top < math.log(info.max) - 1 and bottom > math.log(info.tiny) + 1

    def costs(self, sums: Tensor, sizes: Tensor) -> Tensor:
        """``[K, C]`` of clusters with ``[m, K, C]`` and sizes ``[K, C]``."""
        return (self.power[:, sizes] * sums[self.dims : 2 * self.dims].log()).sum(0)

    def log_marginals(self, whole: Tensor, sizes: Tensor) -> Tensor:
        """``[K, C]`` of all data, from ``[m, K, C]`` and sizes ``[K, C]``."""
        return sum(term.log_marginals_of(sizes, whole[rows]) for term, rows in self.rows)


class State:
    """All clusters of K particles, with the views of them that a step reads.

    Attributes:
        whole: ``[R, K, C]``: m numbers, c, and what is looked up of the next size.
    """

    def __init__(self, whole: Tensor, sums: Sums):
        m, w = len(sums.prior), sums.width
        self.whole, self.flat = whole, whole.flatten(1)
        self.sums, self.c = self.flat[:m], self.flat[m]
        self.ratio, self.power = self.flat[m + 1 : m + 1 + w], self.flat[m + 1 + w :]
        self.same_power = self.flat[-1]
        self.symbols = [self.flat[row:].unbind(0) for row, _ in sums.symbols]


class Room:
    """The memory of a step for K particles with C slots: two states in turn, and what is between.

    Attributes:
        ahead: ``[D + m + 1, K C]`` of every cluster with the element that comes in: r g, then g,
            the rest of the m numbers, and cost.
        parent_and_slot: ``[2, K C]``; chosen: ``[2, K]`` those of the extensions that are kept.
        joined: ``[D + R + 2, K]``: r g, what the element's new clusters hold, c without cost, and
            a_n.
    """

    def __init__(self, sums: Sums, count: int, slots: int):
        m, d, w = len(sums.prior), sums.dims, sums.width
        like, self.sums, self.count, self.slots = sums.prior, sums, count, slots
        rows, flat = m + 1 + 2 * w, count * slots
        self.state, self.other = (State(like.new_empty(rows, count, slots), sums) for _ in range(2))
        self.ahead = like.new_zeros(d + m + 1, flat)
        self.pull, self.ahead_sums, self.ahead_cost = self.ahead.split([d, m, 1])
        self.ahead_cost = self.ahead_cost[0]
        self.gap, self.twice_b = self.ahead_sums[:d], self.ahead_sums[d : 2 * d]
        self.log_b, self.logs = like.new_empty(d, flat), like.new_empty(flat)
        self.gain = like.new_empty(flat)
        self.gains = self.gain.view(count, slots)
        self.score = like.new_empty(count, slots, dtype=torch.float64)
        self.scores = self.score.view(-1)
        self.joined = like.new_empty(d + rows + 2, count)
        self.joined_ahead, self.joined_pull = self.joined[: d + m + 1], self.joined[:d]
        self.joined_rows, self.constant, self.joined_power = self.joined[d:-2], *self.joined[-2:]
        self.joined_m, self.joined_size = self.joined_rows[:d], self.joined_rows[m - 1]
        self.joined_c, self.looked_up = self.joined_rows[m], self.joined[d + m + 1 :]
        self.size = torch.empty(count, dtype=torch.int64, device=like.device)
        parent = torch.arange(count, device=like.device)
        slot = torch.arange(slots, device=like.device)
        self.parent_and_slot = torch.stack([parent.repeat_interleave(slots), slot.repeat(count)])
        self.chosen = self.size.new_empty(2, count)
        self.parent, self.slot = self.chosen
        self.place, self.start = torch.empty_like(self.size), slots * parent
        self.places = self.place.expand(rows, count)

    def __reduce__(self) -> tuple:
        """Made anew in copies: ``pickle`` would leave the views each a memory of their own."""
        return _holding, (self.sums, self.count, self.slots, self.state.whole)


def _holding(sums: Sums, count: int, slots: int, whole: Tensor) -> Room:
    room = Room(sums, count, slots)
    room.state.whole.copy_(whole)
    return room
