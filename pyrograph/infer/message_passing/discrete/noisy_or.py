"""Messages of factors that are affine in one product over their nodes, without tables: noisy or,
noisy and, and the like.

    f(x) = A (1 - P(x)) + B P(x),     P(x) = prod_i lambda_i(x_i),     0 <= lambda_i <= 1

An effect with independent causes, each of which fails with probability lambda_i = 1 - q_i where it
is present, is seen with A = 1 and B = 1 - lambda_0, the leak (Pearl 1988); not seen, f is a product
alone, which single nodes absorb, so that only effects seen cost anything (Heckerman 1989). Under
the normalised cavities n_j, with r_j = E lambda_j and R_i = prod_{j != i} r_j,

    m_{a -> i}(x_i) = A (1 - R_i) + A R_i (1 - lambda_i(x_i)) + B R_i lambda_i(x_i)

and the mass of f under all of them is A (1 - R) + B R: O(k) and not O(2^k). No term is negative, so
that no digits are lost: 1 - lambda_i comes as such, and log r_j = log (1 - s_j) of
s_j = E (1 - lambda_j). Where log R_i is so small that 1 - R_i is lost, it is sum_{j != i} s_j.

Powers of f other than 1 are no sums of few products, nor is log f: alpha is 1.

Source: Pearl (1988), section 4.3.2; Heckerman (1989), "A tractable inference algorithm for
diagnosing multiple diseases".
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.message_passing.discrete.without_tables import WithoutTables
from pyrograph.infer.message_passing.nodes.log_values import (
    LOG_2,
    ZERO,
    bounded,
    finite_peak,
    is_zero,
    log_sum,
)

#: -log R_i below which 1 - R_i is the sum of all s_j, to a relative error of this.
TINY = 1e-18


class NoisyOrFactors(WithoutTables):
    """Factors of ``k`` discrete nodes that are affine in one product; messages ``[E n, c]`` by
    family, of its n slots. They are computed in double precision.

    Args:
        log_ends: ``[E, 2]`` log A and log B.
        log_weights: of each slot, ``[E, 2, c]`` log lambda and log (1 - lambda).
        alpha: ``[E]``, ones.
        rows: of each slot, ``[E]`` rows of its family.
        families: index of each slot's family.
    """

    kind, is_mean_field = "noisy or", False

    def __init__(
        self,
        log_ends: Tensor,
        log_weights: list[Tensor],
        alpha: Tensor,
        rows: list[Tensor],
        families: list[int],
    ):
        super().__init__(alpha, rows, families)
        self._log_ends, self._log_weights = log_ends, log_weights
        ends = log_ends.double()
        self._log_a, self._log_b = ends[:, :1], ends[:, 1:]
        # [2, E, n, c]
        self._weights = [
            torch.stack([log_weights[k] for k in own], 2).transpose(0, 1).double()
            for own in self._slots
        ]
        kept = any(bool(is_zero(w[0]).any()) for w in self._weights)
        self.has_zeros = bool(is_zero(self._log_b).any() | (is_zero(self._log_a).any() & kept))

    def part(self, which: Tensor) -> NoisyOrFactors:
        """Some of the factors, ``which [e]`` ascending."""
        return NoisyOrFactors(
            self._log_ends[which],
            [w[which] for w in self._log_weights],
            self.alpha[which],
            [r[which] for r in self._rows],
            self._families,
        )

    def _products(self, cavities: list[Tensor]) -> tuple[Tensor, Tensor]:
        """log s_j and log r_j, ``[E, k]``, port by port."""
        log_s, log_r = [], []
        for cavity, (kept, lost) in zip(cavities, self._weights, strict=True):
            log_p = cavity.double().log_softmax(1).reshape(kept.shape)
            s, r = log_sum(log_p + lost, 2), log_sum(log_p + kept, 2)
            is_near = s < -LOG_2
            near = torch.log1p(-torch.where(is_near, s, -LOG_2).exp())
            log_s.append(s)
            log_r.append(torch.where(is_near, near, r))
        return torch.cat(log_s, 1), torch.cat(log_r, 1)

    def update(self, messages: list[Tensor], beliefs: list) -> tuple[list[Tensor], Tensor | None]:
        """New messages, normalised to a largest value of one, and ``[E]`` which factors have no
        mass; None where none has zeros."""
        cavities = self._cavities(messages, beliefs)
        log_s, log_r = self._products(cavities)
        others = _others(log_r)
        rest = self._log_a + _log_rest(others, _log_of_others(log_s))
        first, out = 0, []
        for message, cavity, (kept, lost) in zip(messages, cavities, self._weights, strict=True):
            mine = slice(first, first + kept.shape[1])
            first = mine.stop
            through = others[:, mine].unsqueeze(2)
            parts = [
                rest[:, mine].unsqueeze(2).expand(kept.shape),
                self._log_a.unsqueeze(2) + through + lost,
                self._log_b.unsqueeze(2) + through + kept,
            ]
            sent = log_sum(torch.stack(parts), 0).view(message.shape).to(message)
            sent = bounded(sent, cavity) if self.has_zeros else sent
            out.append(sent - finite_peak(sent))
        if not self.has_zeros:
            return out, None
        mass = self._log_mass(log_s, log_r)
        return out, is_zero(mass) | mass.isnan()

    def _log_mass(self, log_s: Tensor, log_r: Tensor) -> Tensor:
        """``[E]``: log of the mean of f under the cavities."""
        total = log_r.sum(1, keepdim=True)
        rest = _log_rest(total, log_sum(log_s, 1).unsqueeze(1))
        return log_sum(torch.cat([self._log_a + rest, self._log_b + total], 1), 1)

    def log_ratio(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """``[E]``: log E_q (f / prod_j m_j)."""
        cavities = self._cavities(messages, beliefs)
        mass = self._log_mass(*self._products(cavities))
        mass = mass + self._gap(cavities, beliefs)
        return mass.to(self.alpha)


def _others(value: Tensor) -> Tensor:
    """Sums over all other columns, ``[E, k]``, without undoing any."""
    none = torch.zeros_like(value[:, :1])
    before = torch.cat([none, value[:, :-1]], 1).cumsum(1)
    after = torch.cat([value[:, 1:], none], 1).flip(1).cumsum(1).flip(1)
    return before + after


def _log_of_others(log_value: Tensor) -> Tensor:
    """Log of sums over all other columns."""
    peak = finite_peak(log_value.detach())
    total = _others((log_value - peak).exp())
    is_none = total == 0
    return torch.where(is_none, ZERO, torch.where(is_none, 1.0, total).log() + peak)


def _log_rest(log_r: Tensor, log_s: Tensor) -> Tensor:
    """log (1 - R), of log R and of the log of the sum of s."""
    is_tiny = log_r > -TINY
    return torch.where(is_tiny, log_s, (-torch.expm1(torch.where(is_tiny, -1.0, log_r))).log())
