"""Gamma and beta numbers that factors read: of some nodes, others in other states.

A mixture's likelihood reads the rate of its component, an edge between blocks the probability of
that pair of blocks. Sums of such numbers are of no family, so that u holds them as they stand,
each in the column of one that a state chooses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs import Natural


@dataclass(frozen=True)
class Chosen:
    """A number of u.

    Attributes:
        column: in u.
        slots: continuous slots of like beliefs.
        which: ``[D, E]``, the position in ``slots`` of the one that it is.
    """

    column: int
    slots: list[int]
    which: Tensor

    def of(self, parts: list[Natural]) -> Natural:
        """Of functions of the continuous slots, batch ``[E]``, the one chosen: batch ``[D, E]``."""
        first, *others = (parts[k] for k in self.slots)

        def chosen(*values: Tensor) -> Tensor:
            return torch.stack(values).gather(0, self.which)

        return first._with(chosen, *others)

    def is_slot(self, k: int) -> Tensor:
        """``[D, E]`` where it is this slot's."""
        if k not in self.slots:
            return torch.zeros_like(self.which, dtype=torch.bool)
        return self.which == self.slots.index(k)


def chosen_among(reach: Tensor, slots: list[int], column: int) -> list[Chosen]:
    """As few numbers of u, from a column on, as hold all that any state reads of some slots.

    Args:
        reach: ``[D, E, len(slots)]``, whether their numbers are read.
    """
    most = max(1, int(reach.sum(-1).max()))
    order = reach.to(torch.uint8).sort(dim=-1, descending=True, stable=True).indices
    return [Chosen(column + n, slots, order[..., n]) for n in range(most)]
