"""Messages of discrete factors given by their tables; for the equations see :mod:`.slots`.

Sums run over exponentials of shifted logs. Of tables with zeros, or of a range that does not fit
the dtype, they run again in the log domain where they are so small that terms may have been lost;
of a few such tables, in the log domain at once.

Source: Minka (2005), eqs (54), (66) and (85).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.message_passing.discrete.slots import SlotFactors, potts_of
from pyrograph.infer.message_passing.nodes.log_values import (
    ZERO,
    exp,
    finite_peak,
    is_zero,
    log,
    rows_of,
    states_apart,
    summed_out,
)

#: Largest number of entries that the tables of a group may have.
MAX_ENTRIES = 2**27
#: Entries of a group's tables from which on it pays to look for sums that have lost terms.
LOOKED_AT = 2**14


class TableFactors(SlotFactors):
    """Like discrete factors.

    Args:
        log_table: ``[E, c_1, ..., c_k]``, minus infinity where the factor is zero.
        alpha: ``[E]``.
        rows: of each slot, ``[E]`` rows of its family.
        families: index of each slot's family.
    """

    def __init__(self, log_table: Tensor, alpha: Tensor, rows: list[Tensor], families: list[int]):
        log_table = states_apart(log_table)
        super().__init__(log_table, alpha, rows, families)
        self.log_table = log_table
        if not self.is_mean_field:
            table = self.scaled if self.scaled.requires_grad else self._few(self.scaled)
            self.peak = table.flatten(1).amax(1)
            self.kernel = (table - self.peak.view(-1, *(1,) * (table.dim() - 1))).exp()
            if self.arity == 2:
                self._read_pairs(self.kernel.detach())

    def part(self, which: Tensor) -> TableFactors:
        rows = [own[which] for own in self.rows]
        return TableFactors(rows_of(self.log_table, which), self.alpha[which], rows, self.families)

    def _read_pairs(self, kernel: Tensor) -> None:
        (_, c, other) = kernel.shape
        self.shared = kernel[0] if self._is_alike else None
        if c == other:
            # from the second on, every (c + 1)th entry is on the diagonal
            apart = kernel.flatten(1)[:, 1:].unflatten(1, (c - 1, c + 1))[..., :-1]
            self.potts = potts_of(kernel.diagonal(dim1=1, dim2=2), apart)

    def sums(self, cavities: list[Tensor]) -> list[Tensor]:
        if self.is_plain:
            plain = [exp(n - n.amax(1, keepdim=True)) for n in cavities]
            return [log(self.plain_sums(plain, i)) for i in range(self.arity)]
        graph = torch.is_grad_enabled() and any(v.requires_grad for v in (self.scaled, *cavities))
        if graph or self.scaled.numel() < LOOKED_AT:
            return self.exact_sums(cavities)
        plain, found = [exp(n - finite_peak(n)) for n in cavities], []
        kind = torch.finfo(self.kernel.dtype)
        for i in range(self.arity):
            total = self.plain_sums(plain, i)
            found.append(log(total))
            lost = self._lost(total < kind.tiny / kind.eps, cavities, i)
            if len(lost):
                again = [rows_of(n, lost) for n in cavities]
                found[i][lost] = self._log_sum(self._tilted(again, i, lost), i)
        return found

    def _lost(self, is_small: Tensor, cavities: list[Tensor], i: int) -> Tensor:
        """Factors with a small sum towards slot i that is none of zeros alone."""
        rows = is_small.any(1).nonzero().squeeze(1)
        if not len(rows):
            return rows
        has = [(~is_zero(rows_of(n, rows))).to(self.kernel) for n in cavities]
        value = (~is_zero(rows_of(self.scaled, rows))).to(self.kernel)
        return rows[(is_small[rows] & (self._contract(value, has, i) > 0)).any(1)]

    def plain_sums(self, cavities: list[Tensor], i: int) -> Tensor:
        found = self._of_potts(cavities[1 - i]) if self.arity == 2 else None
        return self._contract(self._few(self.kernel), cavities, i) if found is None else found

    def _contract(self, value: Tensor, weights: list[Tensor], i: int) -> Tensor:
        """Sum over all slots but i, the last first so that what remains shrinks fast."""
        for j in reversed(range(self.arity)):
            if j != i:
                value = summed_out(value, weights[j], j)
        return value

    def exact_sums(self, cavities: list[Tensor]) -> list[Tensor]:
        return [self._log_sum(self._tilted(cavities, i), i) for i in range(self.arity)]

    def _log_sum(self, tilted: Tensor, i: int) -> Tensor:
        """Over all slots but i, ``[E, c_i]``."""
        others = [j for j in range(self.arity) if j != i]
        tilted = tilted.movedim(0, -1)
        if not tilted.requires_grad:
            return tilted.logsumexp(others).t()
        # the derivative of a sum of nothing but zeros would be NaN
        nothing = is_zero(tilted).all(others[0], keepdim=True)
        for j in others[1:]:
            nothing = nothing.all(j, keepdim=True)
        found = torch.where(nothing, 0.0, tilted).logsumexp(others, keepdim=True)
        return torch.where(nothing, ZERO, found).flatten(0, -2).t()

    def _tilted(
        self, cavities: list[Tensor], without_slot: int | None = None, only: Tensor | None = None
    ) -> Tensor:
        value = self.scaled if only is None else rows_of(self.scaled, only)
        for j, n in enumerate(cavities):
            if j != without_slot:
                value = value + n.view(len(n), *(1,) * j, -1, *(1,) * (self.arity - 1 - j))
        return value

    def _log_mass(self, cavities: list[Tensor]) -> Tensor:
        if not self.is_plain:
            return self._tilted(cavities).flatten(1).logsumexp(1)
        peaks = [n.amax(1, keepdim=True) for n in cavities]
        plain = [exp(n - p) for n, p in zip(cavities, peaks, strict=True)]
        total = (self.plain_sums(plain, 0) * plain[0]).sum(1).log()
        return total + self.peak + torch.cat(peaks, 1).sum(1)

    def _expected(self, probs: list[Tensor], i: int) -> Tensor:
        return self._contract(self._few(self.log_table), probs, i)
