"""Nodes with conjugate beliefs that factors read: others in other states.

A mixture's likelihood reads the rate of its component, an edge between blocks the probability of
that pair of blocks. Sums of such numbers are of no family, so that u holds them as they stand,
each in the column of one that a state chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs import Natural


@dataclass(frozen=True)
class Chosen:
    """One of the nodes that every state reads; a number of u where it is one.

    Attributes:
        column: which one of them; in u.
        slots: continuous slots of like beliefs.
        which: ``[D, E]``, the position in ``slots`` of the one that it is.
    """

    column: int
    slots: list[int]
    which: Tensor

    def of(self, parts: list[Natural]) -> Natural:
        """Of functions of the continuous slots, batch ``[E]``, the one chosen: batch ``[D, E]``."""
        first, *others = (parts[k] for k in self.slots)
        return first.mapped(lambda *values: self._chosen(values), *others)

    def among(self, values: Sequence[Tensor]) -> Tensor:
        """Of ``[E, n]`` of the continuous slots those of the one chosen, ``[D, E, n]``."""
        return self._chosen([values[k] for k in self.slots])

    def _chosen(self, values: Sequence[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0].expand(len(self.which), *values[0].shape)
        every = torch.arange(len(values[0]), device=self.which.device)
        return torch.stack(tuple(values))[self.which, every]

    def is_slot(self, k: int) -> Tensor:
        """``[D, E]`` where it is this slot's."""
        if k not in self.slots:
            return torch.zeros_like(self.which, dtype=torch.bool)
        return self.which == self.slots.index(k)


def chosen_among(reach: Tensor, slots: list[int], column: int) -> list[Chosen]:
    """As few, from a column on, as hold all that any state reads of some slots.

    Args:
        reach: ``[D, E, len(slots)]``, whether their nodes are read.
    """
    most = max(1, int(reach.sum(-1).max()))
    if most == len(slots):
        here = torch.zeros(reach.shape[:2], dtype=torch.int64, device=reach.device)
        return [Chosen(column + n, [k], here) for n, k in enumerate(slots)]
    order = reach.to(torch.uint8).sort(dim=-1, descending=True, stable=True).indices
    return [Chosen(column + n, slots, order[..., n]) for n in range(most)]
