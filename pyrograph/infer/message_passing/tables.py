"""Messages of discrete factors given by their tables; for the equations see :mod:`.slots`.

Sums run over exponentials of shifted logs and matrix products where the table has no zero and
its range fits the dtype, else in the log domain.

Source: Minka (2005), eqs (54), (66) and (85).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.message_passing.slots import SlotFactors, exp, log

#: Largest number of entries that the tables of a group may have.
MAX_ENTRIES = 2**27


class TableFactors(SlotFactors):
    """Like discrete factors.

    Args:
        log_table: ``[E, c_1, ..., c_k]``, minus infinity where the factor is zero.
        alpha: ``[E]``.
        rows: of each slot, ``[E]`` rows of its family.
        families: index of each slot's family.
    """

    def __init__(self, log_table: Tensor, alpha: Tensor, rows: list[Tensor], families: list[int]):
        super().__init__(log_table, alpha, rows, families)
        self.log_table = log_table
        if self.is_plain and not self.is_mean_field:
            table = self.scaled if self.scaled.requires_grad else self._few(self.scaled)
            self.peak = table.flatten(1).amax(1)
            self.kernel = (table - self.peak.view(-1, *(1,) * (table.dim() - 1))).exp()

    def sums(self, cavities: list[Tensor]) -> list[Tensor]:
        if not self.is_plain:
            return self.exact_sums(cavities)
        plain = [exp(n - n.amax(1, keepdim=True)) for n in cavities]
        return [log(self._plain_sum(plain, i)) for i in range(self.arity)]

    def _contract(self, plain: list[Tensor], i: int) -> Tensor:
        """Sum over all slots but i, the last first so that what remains shrinks fast."""
        value = self._few(self.kernel)
        for j in reversed(range(self.arity)):
            if j == i:
                continue
            after = 1 if j < i else 0  # slot i still stands behind
            weight = plain[j].view(self.num_factors, *(1,) * j, -1, *(1,) * after)
            value = (value * weight).sum(j + 1)
        return value.expand(self.num_factors, -1)

    def exact_sums(self, cavities: list[Tensor]) -> list[Tensor]:
        axes = range(1, self.arity + 1)
        return [
            self._tilted(cavities, without_slot=i).logsumexp([k for k in axes if k != i + 1])
            for i in range(self.arity)
        ]

    def _tilted(self, cavities: list[Tensor], without_slot: int | None = None) -> Tensor:
        value = self.scaled
        for j, n in enumerate(cavities):
            if j != without_slot:
                value = value + n.view(len(n), *(1,) * j, -1, *(1,) * (self.arity - 1 - j))
        return value

    def _log_mass(self, cavities: list[Tensor]) -> Tensor:
        if not self.is_plain:
            return self._tilted(cavities).flatten(1).logsumexp(1)
        peaks = [n.amax(1, keepdim=True) for n in cavities]
        plain = [exp(n - p) for n, p in zip(cavities, peaks, strict=True)]
        total = (self._plain_sum(plain, 0) * plain[0]).sum(1).log()
        return total + self.peak + torch.cat(peaks, 1).sum(1)

    def _plain_sum(self, plain: list[Tensor], i: int) -> Tensor:
        """Sum over all slots but i of the plain kernel and cavities, ``[E, c_i]``."""
        if self.arity != 2:
            return self._contract(plain, i)
        other = plain[1 - i]
        kernel = self._few(self.kernel)
        if len(kernel) == 1:
            return other @ (kernel[0].mT if i == 0 else kernel[0])
        if i == 0:
            return (kernel @ other.unsqueeze(2)).squeeze(2)
        return (other.unsqueeze(1) @ kernel).squeeze(1)

    def _expectations(self, beliefs: list) -> list[Tensor]:
        probs = [q.softmax(1) for q in self._own(beliefs)]
        out = []
        for i in range(self.arity):
            value = self.log_table
            for j in reversed(range(self.arity)):
                if j != i:
                    after = 1 if j < i else 0
                    weight = probs[j].view(self.num_factors, *(1,) * j, -1, *(1,) * after)
                    value = (value * weight).sum(j + 1)
            out.append(value)
        return out
