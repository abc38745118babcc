"""Messages of discrete factors given by their tables.

With the cavity n_j = q_j / m_{a -> j}^alpha of every node of factor a,

    m_{a -> i}(x_i)^alpha = sum_{x \\ i} f_a(x)^alpha prod_{j != i} n_j(x_j)

and at alpha = 0 the limit log m_{a -> i}(x_i) = E_{q \\ i} log f_a. Alpha = 1 is belief
propagation, alpha = 0 mean field. The mass of the tilted distribution gives the evidence.

Sums run over exponentials of shifted logs and matrix products where the table has no zero and
its range fits the dtype, else in the log domain.

Source: Minka (2005), eqs (54), (66) and (85).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.infer.message_passing.families import (
    ZERO,
    Categorical,
    finite_peak,
    is_zero,
    without,
)

LOG_2 = math.log(2)
#: Shares of the largest exponent that a table's range may use before sums go to the log domain.
RANGE = 0.75


class TableFactors:
    """Like discrete factors.

    Args:
        log_table: ``[E, c_1, ..., c_k]``, minus infinity where the factor is zero.
        alpha: ``[E]``.
        rows: of each slot, ``[E]`` rows of its family.
        families: index of each slot's family.
    """

    def __init__(self, log_table: Tensor, alpha: Tensor, rows: list[Tensor], families: list[int]):
        self.rows, self.families = rows, families
        self.alpha = alpha
        zero = is_zero(log_table)
        self.has_zeros = bool(zero.any())
        self.log_table = log_table
        self.is_mean_field = bool((alpha == 0).all())
        width = alpha.view(-1, *(1,) * (log_table.dim() - 1))
        self.scaled = self.log_table if self.is_mean_field else width * self.log_table
        self._choose_form()

    def _choose_form(self) -> None:
        """Whether sums are taken over plain numbers, and whether one table serves all factors."""
        with torch.no_grad():
            flat = self.scaled.flatten(1)
            limit = RANGE * math.log(torch.finfo(flat.dtype).max)
            spread = flat.amax(1) - flat.amin(1) if flat.numel() else flat.new_zeros(1)
            self.is_plain = not self.has_zeros and bool((spread < limit).all())
            alike = len(flat) > 1 and bool((flat == flat[:1]).all())
        if self.is_plain and not self.is_mean_field:
            table = self.scaled[:1] if alike else self.scaled
            self.peak = table.flatten(1).amax(1)
            self.kernel = (table - self.peak.view(-1, *(1,) * (table.dim() - 1))).exp()

    @property
    def num_factors(self) -> int:
        return len(self.alpha)

    @property
    def arity(self) -> int:
        return len(self.rows)

    def start(self, families: list[Categorical]) -> list[Tensor]:
        return [families[f].flat(self.num_factors) for f in self.families]

    def cavities(self, messages: list[Tensor], beliefs: list) -> list[Tensor]:
        """n_j, ``[E, c_j]`` log values; a state that the factor itself excludes stays out."""
        out = []
        for f, rows, message in zip(self.families, self.rows, messages, strict=True):
            own, sent = beliefs[f].index_select(0, rows), self.alpha.unsqueeze(1) * message
            out.append(without(own, sent) if self.has_zeros else own - sent)
        return out

    def update(self, messages: list[Tensor], beliefs: list) -> tuple[list[Tensor], Tensor]:
        """New messages, normalised to a largest value of one, and which factors have no mass."""
        if self.is_mean_field:
            found = self._expectations(beliefs)
        else:
            found = self.sums(self.cavities(messages, beliefs))
        empty, out = torch.zeros_like(self.alpha, dtype=torch.bool), []
        for value in found:
            if self.has_zeros:
                empty = empty | is_zero(value.amax(1))
            value = value - finite_peak(value)
            out.append(value if self.is_mean_field else value / self.alpha.unsqueeze(1))
        return out, empty if self.has_zeros else None

    def sums(self, cavities: list[Tensor]) -> list[Tensor]:
        """:meth:`exact_sums` up to a constant, by the fastest way."""
        if not self.is_plain:
            return self.exact_sums(cavities)
        plain = [_exp(n - n.amax(1, keepdim=True)) for n in cavities]
        return [self._plain_sum(plain, i).log2() * LOG_2 for i in range(self.arity)]

    def _contract(self, plain: list[Tensor], i: int) -> Tensor:
        """Sum over all slots but i, the last first so that what remains shrinks fast."""
        value = self.kernel
        for j in reversed(range(self.arity)):
            if j == i:
                continue
            after = 1 if j < i else 0  # slot i still stands behind
            weight = plain[j].view(self.num_factors, *(1,) * j, -1, *(1,) * after)
            value = (value * weight).sum(j + 1)
        return value.expand(self.num_factors, -1)

    def exact_sums(self, cavities: list[Tensor]) -> list[Tensor]:
        """Log of sum_{x minus i} f^alpha prod_{j != i} n_j, ``[E, c_i]`` for every slot i."""
        axes = range(1, self.arity + 1)
        return [
            self._tilted(cavities, without_slot=i).logsumexp([k for k in axes if k != i + 1])
            for i in range(self.arity)
        ]

    def _tilted(self, cavities: list[Tensor], without_slot: int | None = None) -> Tensor:
        """f^alpha prod_j n_j, ``[E, c_1, ..., c_k]`` log values."""
        value = self.scaled
        for j, n in enumerate(cavities):
            if j != without_slot:
                value = value + n.view(len(n), *(1,) * j, -1, *(1,) * (self.arity - 1 - j))
        return value

    def _log_mass(self, cavities: list[Tensor]) -> Tensor:
        """``[E]``: log of sum_x f^alpha prod_j n_j."""
        if not self.is_plain:
            return self._tilted(cavities).flatten(1).logsumexp(1)
        peaks = [n.amax(1, keepdim=True) for n in cavities]
        plain = [_exp(n - p) for n, p in zip(cavities, peaks, strict=True)]
        total = (self._plain_sum(plain, 0) * plain[0]).sum(1).log()
        return total + self.peak + torch.cat(peaks, 1).sum(1)

    def _plain_sum(self, plain: list[Tensor], i: int) -> Tensor:
        """Sum over all slots but i of the plain kernel and cavities, ``[E, c_i]``."""
        if self.arity != 2:
            return self._contract(plain, i)
        other = plain[1 - i]
        if len(self.kernel) == 1:
            return other @ (self.kernel[0].mT if i == 0 else self.kernel[0])
        if i == 0:
            return (self.kernel @ other.unsqueeze(2)).squeeze(2)
        return (other.unsqueeze(1) @ self.kernel).squeeze(1)

    def _expectations(self, beliefs: list) -> list[Tensor]:
        """E_{q minus i} log f, ``[E, c_i]`` for every slot i."""
        probs = [
            beliefs[f].index_select(0, rows).softmax(1)
            for f, rows in zip(self.families, self.rows, strict=True)
        ]
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

    def log_ratio(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """``[E]``: (1 / alpha) log E_q (f / prod_j m_j)^alpha, and its limit at alpha = 0."""
        own = [beliefs[f].index_select(0, r) for f, r in zip(self.families, self.rows, strict=True)]
        if self.is_mean_field:
            value = (self._expectations(beliefs)[0] * own[0].softmax(1)).sum(1)
            for q, m in zip(own, messages, strict=True):
                value = value - (q.softmax(1) * m).sum(1)
            return value
        mass = self._log_mass(self.cavities(messages, beliefs))
        return (mass - sum(q.logsumexp(1) for q in own)) / self.alpha

    def largest_ratio(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """``[E]``, of pairs: (1 / alpha) log max_{x_j} E_{q_i} (f / (m_i m_j))^alpha, the larger of
        both directions; at least :meth:`log_ratio`."""
        own = [beliefs[f].index_select(0, r) for f, r in zip(self.families, self.rows, strict=True)]
        cavities = self.cavities(messages, beliefs)
        sums = self.exact_sums(cavities)
        found = []
        for j, i in ((0, 1), (1, 0)):
            ratio = sums[j] - self.alpha.unsqueeze(1) * messages[j]
            # what is excluded anyway adds nothing to Z
            possible = ~(is_zero(sums[j]) | is_zero(own[j]))
            ratio = torch.where(possible, ratio, ZERO).amax(1)
            found.append((ratio - own[i].logsumexp(1)) / self.alpha)
        return torch.maximum(*found)

    def marginals(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """Beliefs over the scopes, ``[E, c_1, ..., c_k]`` log values, normalised.

        f^alpha prod_j n_j; at alpha = 0 the product of the nodes' beliefs.
        """
        if self.is_mean_field:
            value = self.log_table.new_zeros(self.log_table.shape)
            for j, (f, rows) in enumerate(zip(self.families, self.rows, strict=True)):
                q = beliefs[f].index_select(0, rows)
                value = value + q.view(len(q), *(1,) * j, -1, *(1,) * (self.arity - 1 - j))
        else:
            value = self._tilted(self.cavities(messages, beliefs))
        flat = value.flatten(1)
        return (flat - flat.logsumexp(1, keepdim=True)).view(value.shape)


def _exp(x: Tensor) -> Tensor:
    """exp(x); torch's exp2 is several times as fast on a CPU."""
    return torch.exp2(x * (1 / LOG_2))
