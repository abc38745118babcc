"""Where the nodes of like factors and scopes stand, and what correlates them in a component."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.beliefs.gaussian import block_diagonal
from pyrograph.infer.qbethe.components import Components


@dataclass(frozen=True)
class Tie:
    """What correlates continuous nodes of a scope.

    Attributes:
        name: of the ``tie`` parameter; rows: ``[E]`` of it.
        slots: which of the scope's continuous ones.
    """

    name: str
    rows: Tensor
    slots: slice


@dataclass
class Wiring:
    """Where the nodes of like factors stand.

    Attributes:
        kinds: of every slot.
        rows: of every slot, ``[E]`` rows of its kind.
        ties: none if the nodes of a scope are independent in a component.
    """

    kinds: list[int]
    rows: list[Tensor]
    ties: list[Tie]

    def part(self, which: Tensor) -> Wiring:
        """Of some of the factors, ``[e]``."""
        ties = [replace(tie, rows=tie.rows[which]) for tie in self.ties]
        return Wiring(self.kinds, [rows[which] for rows in self.rows], ties)

    def correlation_root(self, mixture: Components, widths: list[int]) -> Tensor:
        """Lower triangular root ``[B, L, E, R, R]`` of the correlation of a scope's whitened
        numbers, of which some are correlated.

        Args:
            widths: of the scope's continuous nodes.
        """
        blocks, end = [], 0
        for tie in self.ties:
            own = mixture.correlation_root(tie.name, widths[tie.slots], tie.rows)
            blocks += [_identity(sum(widths[end : tie.slots.start]), own), own]
            end = tie.slots.stop
        blocks.append(_identity(sum(widths[end:]), blocks[-1]))
        return block_diagonal([block for block in blocks if block.shape[-1]])


def _identity(size: int, like: Tensor) -> Tensor:
    """``[*batch, size, size]`` beside ``like [*batch, R, R]``."""
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return eye.expand(*like.shape[:-2], size, size)
