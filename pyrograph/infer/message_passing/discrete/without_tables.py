"""Factors of any number of discrete nodes, whose tables are not kept.

Nodes of one family are one port: a factor with n of them sends n messages through it. Cavities are
q_i / m_i^alpha, log values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.errors import OptionError
from pyrograph.infer.message_passing.nodes.families import Categorical
from pyrograph.infer.message_passing.nodes.log_values import rows_of, without


class WithoutTables:
    """What is alike of such factors: messages ``[E n, c]`` by port.

    Args:
        alpha: ``[E]``.
        rows: of each slot, ``[E]`` rows of its family.
        families: index of each slot's family.

    Attributes:
        kind: of factors, as messages name it; has_zeros: whether messages may be minus infinity.
            Both are set by subclasses.
    """

    kind: str
    has_zeros: bool

    def __init__(self, alpha: Tensor, rows: list[Tensor], families: list[int]):
        self.alpha, self._rows, self._families = alpha, rows, families
        self.families = sorted(set(families))
        self._slots = [[k for k, f in enumerate(families) if f == own] for own in self.families]
        self.rows = [torch.stack([rows[k] for k in own], 1).flatten() for own in self._slots]

    @property
    def num_factors(self) -> int:
        return len(self.alpha)

    @property
    def arity(self) -> int:
        return len(self._rows)

    @property
    def senders(self) -> list[Tensor]:
        """By port, the factor that sends each message."""
        factors = torch.arange(self.num_factors, device=self.alpha.device)
        return [factors.repeat_interleave(len(own)) for own in self._slots]

    def start(self, families: list[Categorical]) -> list[Tensor]:
        return [
            families[f].flat(len(rows)) for f, rows in zip(self.families, self.rows, strict=True)
        ]

    def _own(self, beliefs: list) -> list[Tensor]:
        """Beliefs, by port."""
        return [rows_of(beliefs[f], r) for f, r in zip(self.families, self.rows, strict=True)]

    def _cavities(self, messages: list[Tensor], beliefs: list) -> list[Tensor]:
        found = []
        for own, sent, slots in zip(self._own(beliefs), messages, self._slots, strict=True):
            sent = self.alpha.repeat_interleave(len(slots)).unsqueeze(1) * sent
            found.append(without(own, sent) if self.has_zeros else own - sent)
        return found

    def _gap(self, cavities: list[Tensor], beliefs: list) -> Tensor:
        """``[E]``: log of the masses of cavities over those of beliefs, of all nodes."""
        total = 0.0
        for own, cavity in zip(self._own(beliefs), cavities, strict=True):
            gap = cavity.logsumexp(1) - own.logsumexp(1)
            total = total + gap.view(self.num_factors, -1).sum(1)
        return total

    def marginals(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """Refused: a belief over the scope would be the table that these classes avoid.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            f"the belief over a {self.kind} of {self.arity} nodes is as large as its table and is "
            "not kept; ask for the marginals of its nodes."
        )
