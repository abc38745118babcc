"""Discrete factors with one port per node, whatever form their values are kept in.

With the cavity n_j = q_j / m_{a -> j}^alpha of every node of factor a,

    m_{a -> i}(x_i)^alpha = sum_{x \\ i} f_a(x)^alpha prod_{j != i} n_j(x_j)

and at alpha = 0 the limit log m_{a -> i}(x_i) = E_{q \\ i} log f_a. Alpha = 1 is belief
propagation, alpha = 0 mean field. The mass of the tilted distribution gives the evidence.

Source: Minka (2005), eqs (54), (66) and (85).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from pyrograph.infer.message_passing.nodes.families import Categorical
from pyrograph.infer.message_passing.nodes.log_values import (
    ZERO,
    bounded,
    finite_peak,
    is_zero,
    rows_of,
    without,
)

#: Shares of the largest exponent that a factor's range may use before sums go to the log domain.
RANGE = 0.75


class SlotFactors(ABC):
    """Like discrete factors; what they send is log values of states, ``[E, c_i]`` a slot.

    Args:
        log_value: ``[E, ...]`` what the factors are made of, minus infinity for a zero; fastest
            laid out by :func:`.log_values.states_apart`.
        alpha: ``[E]``.
        rows: of each slot, ``[E]`` rows of its family.
        families: index of each slot's family.

    Attributes:
        shared: ``[c_0, c_1]`` exp(-peak) f^alpha where it is the same for all of many pairs, and
            without derivatives; else None.
        potts: ``[E]`` or ``[1]`` a >= 0 and b >= 0 of pairs with exp(-peak) f^alpha = a + b where
            both states are the same, and a elsewhere; without derivatives; else None.
    """

    shared: Tensor | None = None
    potts: tuple[Tensor, Tensor] | None = None

    def __init__(self, log_value: Tensor, alpha: Tensor, rows: list[Tensor], families: list[int]):
        self.rows, self.families = rows, families
        self.alpha = alpha
        self.has_zeros = bool(is_zero(log_value).any())
        self.is_mean_field = bool((alpha == 0).all())
        self.is_one = bool((alpha == 1).all())  # of small tables powers would take a tenth
        width = alpha.view(-1, *(1,) * (log_value.dim() - 1))
        self.scaled = log_value if self.is_mean_field or self.is_one else width * log_value
        with torch.no_grad():
            flat = self.scaled.flatten(1)
            limit = RANGE * math.log(torch.finfo(flat.dtype).max)
            spread = flat.amax(1) - flat.amin(1) if flat.numel() else flat.new_zeros(1)
            # whether sums may be taken over plain numbers
            self.is_plain = not self.has_zeros and bool((spread < limit).all())
            self._is_alike = len(flat) > 1 and bool((flat == flat[:1]).all())

    def _few(self, value: Tensor) -> Tensor:
        """The first factor's values where they serve all; derivatives are of each one's own."""
        needs_all = torch.is_grad_enabled() and value.requires_grad
        return value[:1] if self._is_alike and not needs_all else value

    def _of_potts(self, weight: Tensor) -> Tensor | None:
        """``[E, c]``: a sum_y n(y) + b n(x), of ``[E, c]`` n, in O(c); of positive terms alone, so
        that no digits are lost. None of other factors, or where derivatives are needed."""
        if self.potts is None or (torch.is_grad_enabled() and self.scaled.requires_grad):
            return None
        a, b = self.potts
        return torch.addcmul((a * weight.sum(1)).unsqueeze(1), b.unsqueeze(1), weight)

    @abstractmethod
    def part(self, which: Tensor) -> SlotFactors:
        """Some of the factors, ``which [e]`` ascending."""

    @abstractmethod
    def sums(self, cavities: list[Tensor]) -> list[Tensor]:
        """:meth:`exact_sums` up to a constant, by the fastest way."""

    def bounded_sums(self, cavities: list[Tensor]) -> list[Tensor]:
        """:meth:`sums`, that of a state which has as good as no belief no lower than need be."""
        found = self.sums(cavities)
        if not self.has_zeros:
            return found
        return [bounded(value, n) for value, n in zip(found, cavities, strict=True)]

    @abstractmethod
    def plain_sums(self, cavities: list[Tensor], i: int) -> Tensor:
        """exp(-peak) times the sums towards slot i, of plain numbers; where :attr:`is_plain`."""

    @abstractmethod
    def exact_sums(self, cavities: list[Tensor]) -> list[Tensor]:
        """Log of sum_{x minus i} f^alpha prod_{j != i} n_j, ``[E, c_i]`` for every slot i."""

    @abstractmethod
    def _expected(self, probs: list[Tensor], i: int) -> Tensor:
        """E_{q minus i} log f, ``[E, c_i]``, of every slot's probabilities."""

    @abstractmethod
    def _tilted(self, cavities: list[Tensor]) -> Tensor:
        """f^alpha prod_j n_j, ``[E, c_1, ..., c_k]`` log values."""

    @abstractmethod
    def _log_mass(self, cavities: list[Tensor]) -> Tensor:
        """``[E]``: log of sum_x f^alpha prod_j n_j."""

    @property
    def num_factors(self) -> int:
        return len(self.alpha)

    @property
    def arity(self) -> int:
        return len(self.rows)

    @property
    def senders(self) -> list[Tensor]:
        """By port, the factor that sends each message."""
        return [torch.arange(self.num_factors, device=self.alpha.device)] * self.arity

    def start(self, families: list[Categorical]) -> list[Tensor]:
        return [families[f].flat(self.num_factors) for f in self.families]

    def _own(self, beliefs: list) -> list[Tensor]:
        return [rows_of(beliefs[f], r) for f, r in zip(self.families, self.rows, strict=True)]

    def _probs(self, beliefs: list) -> list[Tensor]:
        return [q.t().softmax(0).t() for q in self._own(beliefs)]

    def cavities(self, messages: list[Tensor], beliefs: list) -> list[Tensor]:
        """n_j, ``[E, c_j]`` log values; a state that the factor itself excludes stays out."""
        out = []
        for own, message in zip(self._own(beliefs), messages, strict=True):
            sent = message if self.is_one else self.alpha.unsqueeze(1) * message
            out.append(without(own, sent) if self.has_zeros else own - sent)
        return out

    def update(self, messages: list[Tensor], beliefs: list) -> tuple[list[Tensor], Tensor | None]:
        """New messages, normalised to a largest value of one, and which factors have no mass; None
        where none has zeros."""
        if self.is_mean_field:
            probs = self._probs(beliefs)
            found = [self._expected(probs, i) for i in range(self.arity)]
        else:
            found = self.bounded_sums(self.cavities(messages, beliefs))
        empty, out = torch.zeros_like(self.alpha, dtype=torch.bool), []
        for value in found:
            if self.has_zeros:
                empty = empty | is_zero(value.amax(1))
            value = value - finite_peak(value)
            is_final = self.is_mean_field or self.is_one
            out.append(value if is_final else value / self.alpha.unsqueeze(1))
        return out, empty if self.has_zeros else None

    def log_ratio(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """``[E]``: (1 / alpha) log E_q (f / prod_j m_j)^alpha, and its limit at alpha = 0."""
        if self.is_mean_field:
            probs = self._probs(beliefs)
            value = (self._expected(probs, 0) * probs[0]).sum(1)
            for p, m in zip(probs, messages, strict=True):
                value = value - (p * m).sum(1)
            return value
        own = self._own(beliefs)
        mass = self._log_mass(self.cavities(messages, beliefs))
        return (mass - sum(q.logsumexp(1) for q in own)) / self.alpha

    def largest_ratio(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """``[E]``, of pairs: (1 / alpha) log max_{x_j} E_{q_i} (f / (m_i m_j))^alpha, the larger of
        both directions; at least :meth:`log_ratio`."""
        own = self._own(beliefs)
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
            value = self._joined(self._own(beliefs))
        else:
            value = self._tilted(self.cavities(messages, beliefs))
        flat = value.flatten(1)
        return (flat - flat.logsumexp(1, keepdim=True)).view(value.shape)

    @staticmethod
    def _joined(parts: list[Tensor]) -> Tensor:
        """Sums of one log value per slot, ``[E, c_1, ..., c_k]``."""
        value, arity = torch.zeros_like(parts[0][0, 0]), len(parts)
        for j, part in enumerate(parts):
            value = value + part.view(len(part), *(1,) * j, -1, *(1,) * (arity - 1 - j))
        return value


def potts_of(same: Tensor, apart: Tensor) -> tuple[Tensor, Tensor] | None:
    """See :attr:`SlotFactors.potts`; of values where states are the same and where they differ,
    ``[E, ...]``."""
    if not (same.numel() and apart.numel()):
        return None
    same, apart = same.flatten(1), apart.flatten(1)
    high, low = same[:, :1], apart[:, :1]
    found = (same == high).all() & (apart == low).all() & (high >= low).all()
    return (low.squeeze(1).clone(), (high - low).squeeze(1)) if bool(found) else None
