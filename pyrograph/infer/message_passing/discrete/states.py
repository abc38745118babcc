"""Binary pairs in the form of tables: messages of states instead of odds."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.message_passing.discrete.binary import BinaryFactors
from pyrograph.infer.message_passing.discrete.slots import SlotFactors
from pyrograph.infer.message_passing.discrete.tables import TableFactors
from pyrograph.infer.message_passing.nodes.families import Categorical, Odds
from pyrograph.infer.message_passing.nodes.log_values import finite_peak


def as_states(belief: Tensor) -> Tensor:
    """Log values ``[V, 2]`` of log odds ``[V]``; log values stay."""
    return torch.stack([torch.zeros_like(belief), belief], 1) if belief.dim() == 1 else belief


def family_of_states(family: Categorical | Odds) -> Categorical:
    """A family whose base are log values of states."""
    if isinstance(family, Categorical):
        return family
    return Categorical(family.nodes, as_states(family.base) + family.scale.unsqueeze(1))


def as_slots(block: BinaryFactors | SlotFactors) -> SlotFactors:
    """The same factors with one port per slot."""
    if isinstance(block, SlotFactors):
        return block
    rows = list(block.rows[0].chunk(2))
    return TableFactors(block.log_table, block.alpha, rows, block.families * 2)


def by_slot(messages: list[Tensor]) -> list[Tensor]:
    """Messages of binary pairs, one tensor of odds, as one of states per slot."""
    if messages[0].dim() == 1:
        return [as_states(part) for part in messages[0].chunk(2)]
    return messages


def in_form_of(block: BinaryFactors | SlotFactors, slots: list[Tensor]) -> list[Tensor]:
    """Inverse of :func:`by_slot`."""
    if isinstance(block, SlotFactors):
        return slots
    return [torch.cat([m[:, 1] - m[:, 0] for m in slots])]


def normalised(log_value: Tensor) -> Tensor:
    """Scaled to a largest value of one."""
    return log_value - finite_peak(log_value)
