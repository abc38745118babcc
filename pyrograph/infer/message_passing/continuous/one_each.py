"""Blocks whose factors send one message by every port, the nodes of one slot."""

from __future__ import annotations

import torch
from torch import Tensor


class OneEach:
    """Part of such blocks.

    Attributes:
        alpha: ``[E]``.
        rows: of each slot, ``[E]`` rows of its family.
    """

    alpha: Tensor
    rows: list[Tensor]

    @property
    def num_factors(self) -> int:
        return len(self.alpha)

    @property
    def senders(self) -> list[Tensor]:
        """By port, the factor that sends each message."""
        return [torch.arange(self.num_factors, device=self.alpha.device)] * len(self.rows)
