"""Pasts of a filter: K paths that grow node by node, as back pointers.

A step keeps, of every new path, which old one it goes on from and the state of the new node. What
later factors read is a window of recent nodes, so a step costs O(K width of the window) and not
O(K length). Whole paths are put together, in one pass backwards, when somebody asks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.dpvi.clusters import Clusters
from pyrograph.infer.dpvi.network import Network


class Paths:
    """K paths through the nodes of a network, in an order.

    Args:
        network: of all nodes.
        sequence: ``[V]`` the nodes as they come in.
        x: ``[V, K]`` states of the nodes that are in.
        score: ``[K]`` of the factors whose nodes are all in.
        position: number of nodes that are in.

    Attributes:
        place: ``[V]`` of the nodes in the order.
        bound: log of the sum of the scores.
    """

    def __init__(self, network: Network, sequence: Tensor, x: Tensor, score: Tensor, position: int):
        device = network.cards.device
        self.network, self.sequence, self.position = network, sequence, position
        self.score, self.bound = score, score.logsumexp(0)
        self.place = torch.empty_like(sequence)
        self.place[sequence] = torch.arange(len(sequence), device=device)
        last = self._last_read()
        self._row, width = _rows(sequence.tolist(), last.tolist())
        row = torch.tensor(self._row, device=device)
        self._arriving: dict[int, Clusters] = {}
        self._member = torch.zeros(len(sequence), dtype=torch.int64, device="cpu")
        for c in network.cards.unique().tolist():
            nodes = (network.cards == c).nonzero()
            self._member[nodes.squeeze(1).cpu()] = torch.arange(len(nodes), device="cpu")
            self._arriving[c] = Clusters(network, nodes, self.place, row)
        # the window of a path lies together in memory, so that one is copied at once
        small = torch.uint8 if int(network.cards.max()) <= 2**8 else x.dtype
        self._recent = torch.zeros(x.shape[1], width, dtype=small, device=device).t()
        is_read = (self.place < position) & (last >= position)
        self._recent[row[is_read]] = x[is_read].to(small)
        self._restart(x)

    def __len__(self) -> int:
        return len(self.score)

    def _last_read(self) -> Tensor:
        """``[V]`` places of the last nodes that come in with a factor of each."""
        last = self.place.clone()
        for group in self.network.tables:
            end = self.place[group.scope].amax(1, keepdim=True).expand_as(group.scope)
            last.scatter_reduce_(0, group.scope.flatten(), end.flatten(), "amax")
        return last

    def _restart(self, x: Tensor) -> None:
        self._before, self._start = x, self.position
        self._parents: list[Tensor] = []
        self._states: list[Tensor] = []

    # ------------------------------------------------------------------ steps
    @property
    def node(self) -> int:
        """The next one."""
        return int(self.sequence[self.position])

    def candidates(self) -> Tensor:
        """Scores ``[K, c]`` with the next node in each of its states."""
        clusters = self._arriving[int(self.network.cards[self.node])]
        local = clusters.local_scores(self._recent, int(self._member[self.node]))[0]
        return self.score.unsqueeze(1) + local

    def grow(self, parent: Tensor, state: Tensor, score: Tensor) -> None:
        """Go on from paths ``parent [K]`` with the next node in ``state [K]``."""
        self._recent = self._recent.t().index_select(0, parent).t()
        self._recent[self._row[self.node]] = state
        self._parents.append(parent)
        self._states.append(state)
        self.score, self.bound = score, score.logsumexp(0)
        self.position += 1

    def states(self) -> Tensor:
        """Whole paths ``[V, K]``; nodes that are not in are in their first state."""
        at = torch.arange(len(self), device=self.score.device)
        rows = []
        for parent, state in zip(reversed(self._parents), reversed(self._states), strict=True):
            rows.append(state[at])
            at = parent[at]
        x = self._before[:, at]
        if rows:
            x[self.sequence[self._start : self.position]] = torch.stack(rows[::-1])
        self._restart(x)
        return x.clone()


def _rows(sequence: list[int], last: list[int]) -> tuple[list[int], int]:
    """Where the window keeps each node, and how many rows it needs: a node's row is free for others
    when all that read it are in."""
    row, free, width = [0] * len(sequence), [], 0
    ending: dict[int, list[int]] = {}
    for t, node in enumerate(sequence):
        free += ending.pop(t, [])
        if not free:
            free, width = [width], width + 1
        row[node] = free.pop()
        if last[node] > t:
            ending.setdefault(last[node], []).append(row[node])
        else:
            free.append(row[node])
    return row, width
