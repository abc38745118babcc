"""The state of an urn over moves between states: who moved where, one row per particle."""

from __future__ import annotations

import torch
from torch import Tensor


class Moves:
    """Counts of moves, batched over particles; row 0 is the start, row 1 + j moves out of state j.

    Attributes:
        pairs: ``[P, C + 1, C]``, n_jc.
        entered: ``[P, C]``, n_.c; the move from the start counts.
        tables: ``[P, C]``, tables per dish of the franchise (those that were told).
        last: ``[P]``, the row of the next move.
    """

    def __init__(self, pairs: Tensor, entered: Tensor, tables: Tensor, last: Tensor):
        self.pairs, self.entered, self.tables, self.last = pairs, entered, tables, last
        self._particle = torch.arange(len(last), device=last.device)

    @classmethod
    def empty(cls, num_particles: int, capacity: int, dtype, device) -> Moves:
        zeros = torch.zeros(num_particles, capacity + 1, capacity, dtype=dtype, device=device)
        start = torch.zeros(num_particles, dtype=torch.long, device=device)
        return cls(zeros, torch.zeros_like(zeros[:, 0]), torch.zeros_like(zeros[:, 0]), start)

    @property
    def capacity(self) -> int:
        return self.entered.shape[-1]

    def row(self) -> Tensor:
        """``[P, C]``: counts of the moves out of the last state."""
        return self.pairs[self._particle, self.last]

    def unvisited(self, row: Tensor) -> Tensor:
        """``[P, C]``: moves into states that the last one has not visited, 0 for the others."""
        return self.entered.masked_fill(row > 0, 0)

    def first_new(self) -> Tensor:
        """``[P, C]``: True at the first state never entered."""
        free = self.entered == 0
        return free & (free.cumsum(-1) == 1)

    def paper_scores(self, alpha: Tensor, gamma: Tensor) -> Tensor:
        """``[P, C]``: log probability of the next state, -inf for all new states but the first."""
        alpha, gamma = alpha.unsqueeze(-1), gamma.unsqueeze(-1)
        row = self.row()
        unvisited = self.unvisited(row)
        oracle = (unvisited + gamma * self.first_new()) / (unvisited.sum(-1, keepdim=True) + gamma)
        return ((row + alpha * oracle) / (row.sum(-1, keepdim=True) + alpha)).log()

    def append(self, state: Tensor, new_table: Tensor | None = None) -> None:
        """One more move, to ``state [P]``; ``new_table [P]`` where it opened a table."""
        one = torch.ones_like(self.entered[:, :1])
        self.pairs[self._particle, self.last, state] += 1
        self.entered.scatter_add_(-1, state.unsqueeze(-1), one)
        if new_table is not None:
            self.tables.scatter_add_(-1, state.unsqueeze(-1), one * new_table.unsqueeze(-1))
        self.last = state + 1

    def grow(self, capacity: int) -> None:
        more = capacity - self.capacity
        self.pairs = torch.nn.functional.pad(self.pairs, (0, more, 0, more))
        self.entered, self.tables = (
            torch.nn.functional.pad(part, (0, more)) for part in (self.entered, self.tables)
        )

    def select(self, index: Tensor) -> Moves:
        return Moves(self.pairs[index], self.entered[index], self.tables[index], self.last[index])
