"""Relations of elements to each other under one partition: an element moves its row and its column.

With x_c and y_c the entries from an element to those of cluster c and back, as ones and zeros, and
s its entry with itself, joining cluster r changes the cells (r, c) and (c, r) of all c,

    score = sum_{c != r} [ f(n_rc + x_c) - f(n_rc) + f(n_cr + y_c) - f(n_cr) ]
            + f(n_rr + x_r + y_r + s) - f(n_rr),        f(n) = log B(a + n_1, b + n_0)

In an undirected network a pair of clusters has one cell, pairs of elements count once and none is
beside itself,

    score = sum_c [ f(n_rc + x_c) - f(n_rc) ]

O(C^2) and O(C^2) per particle, after O(n) to count the row and the column.

Source: Kemp et al. (2006), section 2; Nowicki & Snijders (2001) for networks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from pyrograph.distributions.beta_bernoulli import Cells
from pyrograph.distributions.seating import Seating


class NetworkTerm(ABC):
    """A relation as a term over the seating of its rows, which are its columns."""

    def __init__(self, cells: Cells):
        self.cells, self.dtype = cells, cells.dtype

    @abstractmethod
    def scores(self, i: int, seating: Seating) -> Tensor:
        """``[P, C]``, see :class:`.incremental.ParticleTerm`."""

    @abstractmethod
    def move(self, i: int, slot: Tensor, sign: int, seating: Seating) -> None: ...

    @abstractmethod
    def log_prob(self, seating: Seating) -> Tensor: ...

    def _gains(self) -> Tensor:
        """log B of every cell beyond that of an empty one, ``[P, C, C]``."""
        empty = self.cells.log_beta(torch.zeros_like(self.cells.counts[:, :1, :1, :1]))
        return self.cells.log_beta(self.cells.counts) - empty

    def select(self, index: Tensor, memo: dict) -> NetworkTerm:
        return type(self)(self.cells.select(index, memo))

    def grow(self, capacity: int, seating: Seating) -> None:
        if self.cells.counts.shape[-1] < capacity:
            self.cells.grow()

    def rebuild(self, seating: Seating) -> None:
        self.cells.seatings = [seating, seating]
        self.cells.rebuild()


class DirectedTerm(NetworkTerm):
    """Entry (i, j) is of i to j, and (i, i) of i to itself."""

    def scores(self, i: int, seating: Seating) -> Tensor:
        log_beta, now = self.cells.log_beta, self.cells.counts
        row, column = self.cells.line(0, i), self.cells.line(1, i)  # [2, P, 1, C]
        before = log_beta(now)
        rows = log_beta(now + row) - before
        columns = log_beta(now + column.mT) - before
        own = _own(now) + row.squeeze(-2) + column.squeeze(-2) + self._with_itself(i)
        both = log_beta(own) - _own(before)
        gain = rows.sum(-1) - _own(rows) + columns.sum(-2) - _own(columns) + both
        return gain.to(self.dtype)

    def move(self, i: int, slot: Tensor, sign: int, seating: Seating) -> None:
        self.grow(seating.capacity, seating)  # slots may be there already
        particle = torch.arange(len(slot), device=slot.device)
        row, column = (self.cells.line(axis, i).squeeze(-2) for axis in (0, 1))
        self.cells.counts[:, particle, slot] += sign * row
        self.cells.counts.mT[:, particle, slot] += sign * column
        _own(self.cells.counts)[:, particle, slot] += sign * self._with_itself(i).squeeze(-1)

    def _with_itself(self, i: int) -> Tensor:
        """``[2, 1, 1]``."""
        return self.cells.values[:, i, i].view(2, 1, 1)

    def log_prob(self, seating: Seating) -> Tensor:
        return self._gains().sum((-1, -2))


class UndirectedTerm(NetworkTerm):
    """Entries (i, j) and (j, i) are one, and there are none of i with itself.

    Counts are of pairs, in both cells of two clusters.
    """

    def scores(self, i: int, seating: Seating) -> Tensor:
        now = self.cells.counts
        gain = self.cells.log_beta(now + self.cells.line(0, i)) - self.cells.log_beta(now)
        return gain.sum(-1).to(self.dtype)

    def move(self, i: int, slot: Tensor, sign: int, seating: Seating) -> None:
        self.grow(seating.capacity, seating)  # slots may be there already
        particle = torch.arange(len(slot), device=slot.device)
        row = sign * self.cells.line(0, i).squeeze(-2)
        self.cells.counts[:, particle, slot] += row
        row = row.scatter(-1, slot.expand(2, -1).unsqueeze(-1), 0)  # that cell has it already
        self.cells.counts.mT[:, particle, slot] += row

    def log_prob(self, seating: Seating) -> Tensor:
        return self._gains().triu().sum((-1, -2))

    def rebuild(self, seating: Seating) -> None:
        super().rebuild(seating)
        _own(self.cells.counts).div_(2, rounding_mode="floor")  # from both ends


def _own(cells: Tensor) -> Tensor:
    """Of every cluster with itself."""
    return cells.diagonal(dim1=-2, dim2=-1)
