"""What a change of some nodes of a discrete factor graph does to its score.

    L_j(s) = sum_{a touching cluster j} log f_a(s, rest)

A cluster is a node, or a few: L_j is all that its states change, so candidates are scored by the
factors around them and never by all (Saeedi et al. 2017, eq (12)). Clusters are scored side by
side, and so are particles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.infer.dpvi.network import Network, Seen, Tables
from pyrograph.trace.distinct import row_numbers

#: Entries looked up at once.
CHUNK = 2**20


@dataclass(frozen=True)
class _Touching:
    """Factors of one group that touch clusters in the same slots.

    Attributes:
        seen: their tables; cards: of the cluster's nodes, 1 where the factors do not touch them.
        place: ``[R]`` where the values of a factor start, factors ordered by cluster.
        cluster: ``[R]``; start: ``[n + 1]`` where the rows of a cluster start.
        fixed: slots whose nodes are not in the cluster, ``[R]`` nodes each, with what their states
            add to the place.
    """

    seen: Seen
    cards: list[int]
    place: Tensor
    cluster: Tensor
    start: Tensor
    fixed: list[tuple[Tensor, int]]

    def part(self, which: Tensor) -> _Touching:
        """Rows of some of the clusters, ``[n]``, in their order."""
        count = self.start.diff()[which]
        end = count.cumsum(0)
        own = torch.arange(len(which), device=which.device).repeat_interleave(count)
        within = torch.arange(len(own), device=which.device) - (end - count)[own]
        rows = self.start[which][own] + within
        start = torch.nn.functional.pad(end, (1, 0))
        fixed = [(nodes[rows], stride) for nodes, stride in self.fixed]
        return replace(self, place=self.place[rows], cluster=own, start=start, fixed=fixed)

    def at(self, x: Tensor, rows: slice) -> Tensor:
        """``[r, K, cards]`` of some rows, everything else as in ``x [V, K]``."""
        place = self.place[rows].unsqueeze(1)
        for nodes, stride in self.fixed:
            place = place.add(x.index_select(0, nodes[rows]), alpha=stride)
        return self.seen.at(place).view(*place.shape, *self.cards)


class Clusters:
    """Clusters of nodes with as many states each, and the factors that touch them.

    A factor may touch several clusters: it is then one of each, at the others' present states.

    Args:
        nodes: ``[n, m]``, distinct in a row.
        position: ``[V]`` of the nodes in an order; then a factor touches only the cluster of its
            last node.
        row: ``[V]`` where the nodes stand in ``x``; by default by their numbers.
    """

    def __init__(
        self,
        network: Network,
        nodes: Tensor,
        position: Tensor | None = None,
        row: Tensor | None = None,
    ):
        self.network, self.nodes, self.position, self.row = network, nodes, position, row
        self.cards = network.cards[nodes[0]].tolist()
        grids = torch.meshgrid(*(torch.arange(c, device="cpu") for c in self.cards), indexing="ij")
        #: ``[T, m]`` all joint states, the last node's fastest.
        self.states = torch.stack([g.flatten() for g in grids], 1).to(nodes.device)
        self.strides = [math.prod(self.cards[k + 1 :]) for k in range(len(self.cards))]
        touching = [t for group in network.tables for t in self._around(group)]
        #: ``[n, T]`` what factors of no other nodes say.
        self._alone = torch.zeros(
            len(nodes), self.num_states, dtype=torch.float64, device=nodes.device
        )
        for t in touching:
            if not t.fixed:
                self._alone.index_add_(
                    0, t.cluster, self._every(t.at(nodes.new_zeros(0), slice(None)))
                )
        self._touching = [t for t in touching if t.fixed]

    def __len__(self) -> int:
        return len(self.nodes)

    def part(self, which: Tensor) -> Clusters:
        """Some of the clusters, ``[n]``."""
        found = copy(self)
        found.nodes, found._alone = self.nodes[which], self._alone[which]
        found._touching = [t.part(which) for t in self._touching]
        return found

    @property
    def num_states(self) -> int:
        return len(self.states)

    def _around(self, group: Tables) -> Iterator[_Touching]:
        """Rows (factor, cluster) by the slots in which the cluster's nodes stand."""
        n, m = self.nodes.shape
        device = self.nodes.device
        owner = torch.arange(n, device=device).repeat_interleave(m)
        place = torch.arange(m, device=device).repeat(n)
        order = self.nodes.flatten().argsort(stable=True)
        node = self.nodes.flatten()[order]
        owner, place = owner[order], place[order]
        pairs = []
        for slot in range(group.scope.shape[1]):
            first = torch.searchsorted(node, group.scope[:, slot].contiguous())
            last = torch.searchsorted(node, group.scope[:, slot].contiguous(), right=True)
            count = last - first
            factor = torch.arange(len(group.scope), device=node.device).repeat_interleave(count)
            within = torch.arange(len(factor), device=node.device)
            within = within - (count.cumsum(0) - count).repeat_interleave(count)
            at = first[factor] + within
            slots = torch.full_like(factor, slot)
            pairs.append(torch.stack([owner[at], factor, slots, place[at]], 1))
        found = torch.cat(pairs)
        if not len(found):
            return
        key = found[:, 0] * len(group.scope) + found[:, 1]
        rows, inverse = key.unique(return_inverse=True)
        where = torch.full((len(rows), group.scope.shape[1]), -1, device=key.device)
        where[inverse, found[:, 2]] = found[:, 3]
        cluster = torch.div(rows, len(group.scope), rounding_mode="floor")
        factor = rows - cluster * len(group.scope)
        if self.position is not None:
            last = self.position[group.scope[factor]].amax(1)
            is_last = last == self.position[self.nodes[cluster, 0]]
            where, cluster, factor = where[is_last], cluster[is_last], factor[is_last]
        pattern = row_numbers(where + 1)
        for k in range(int(pattern.max()) + 1 if len(pattern) else 0):
            chosen = (pattern == k).nonzero().squeeze(1)
            of, own, places = factor[chosen], cluster[chosen], where[chosen[0]].tolist()
            touched = sorted({at for at in places if at >= 0})
            slots = tuple(touched.index(at) if at >= 0 else -1 for at in places)
            seen = group.seen_by(slots)
            others = [slot for slot, at in enumerate(places) if at < 0]
            fixed = []
            for slot, step in zip(others, seen.steps, strict=True):
                rest = group.scope[of, slot]
                fixed.append((rest if self.row is None else self.row[rest], step))
            cards = [c if at in touched else 1 for at, c in enumerate(self.cards)]
            start = torch.searchsorted(own, torch.arange(n + 1, device=own.device))
            yield _Touching(seen, cards, of * seen.size, own, start, fixed)

    def _every(self, said: Tensor) -> Tensor:
        """``[r, K * T]`` of all joint states, of what is said to some nodes' ones."""
        shape = *said.shape[: -len(self.cards)], *self.cards
        return said.expand(shape).reshape(len(said), -1)

    def current(self, x: Tensor, only: slice = slice(None)) -> Tensor:
        """``[n, K]`` the clusters' states in ``x [V, K]``."""
        at = self.nodes[only]
        return sum(s * x.index_select(0, at[:, p]) for p, s in enumerate(self.strides))

    def local_scores(self, x: Tensor, only: int | None = None) -> Tensor:
        """L ``[n, K, T]``: what the factors around each cluster say to its states, everything
        else as in ``x [V, K]``; of one cluster alone if ``only`` is given."""
        particles, states = x.shape[1], self.num_states
        own = slice(None) if only is None else slice(only, only + 1)
        out = self._alone[own].repeat(1, particles)
        size = max(1, CHUNK // (particles * states))
        for t in self._touching:
            ends = (0, len(t.place)) if only is None else t.start[only : only + 2].tolist()
            for first in range(*ends, size):
                rows = slice(first, min(first + size, ends[1]))
                said = self._every(t.at(x, rows))
                if only is None:
                    out.index_add_(0, t.cluster[rows], said)
                else:
                    out += said.sum(0)
        return out.view(len(out), particles, states)
