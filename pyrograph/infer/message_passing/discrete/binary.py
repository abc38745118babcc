"""Messages between pairs of binary nodes as log odds.

For a positive table f = [[f00, f01], [f10, f11]] raised to alpha, and cavity log odds y of node j,

    alpha log m_{a -> i} = log (f10 + f11 e^y) - log (f00 + f01 e^y)

and at alpha = 0, with p the belief in state 1 of node j,

    log m_{a -> i} = log (f10 / f00) + p log (f11 f00 / (f10 f01)).

Both directions of all factors are one vector: into the first nodes, then into the second.

Source: Minka (2005), eq (54), for two states.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.infer.message_passing.nodes.families import Odds
from pyrograph.infer.message_passing.nodes.log_values import log_1p_exp

LOG_2 = math.log(2)
#: Log values of a table lie within this of each other.
RANGE = 40.0
#: Cavities beyond these log odds say the same to rounding, as e^40 is past any dtype's precision.
SATURATED = 2 * RANGE


class BinaryFactors:
    """Positive factors on two binary nodes; messages ``[2 E]``.

    Args:
        log_table: ``[E, 2, 2]``, finite, of a spread below :data:`RANGE` (for alpha beyond 1, alpha
            times them).
        alpha: ``[E]``.
        rows: ``[E]`` rows of the first and of the second nodes in their family.
        family: index of that family.
    """

    def __init__(self, log_table: Tensor, alpha: Tensor, rows: list[Tensor], family: int):
        self.log_table, self.alpha = log_table, alpha
        self.has_zeros = False
        self.rows, self.families = [torch.cat(rows)], [family]
        self.is_mean_field = bool((alpha == 0).all())
        self.is_one = bool((alpha == 1).all())
        self._alpha = torch.cat([alpha, alpha])
        if self.is_mean_field:
            t = log_table
            rise = [t[:, 1, 0] - t[:, 0, 0], t[:, 0, 1] - t[:, 0, 0]]
            self._rise = torch.cat(rise)
            self._bend = (t[:, 1, 1] - t[:, 1, 0] - t[:, 0, 1] + t[:, 0, 0]).repeat(2)
        else:
            scaled = log_table if self.is_one else alpha.view(-1, 1, 1) * log_table
            self._peak = scaled.amax((1, 2))
            k = (scaled - self._peak.view(-1, 1, 1)).exp()
            self._up0 = torch.cat([k[:, 1, 0], k[:, 0, 1]])
            self._up1 = k[:, 1, 1].repeat(2)
            self._down0 = k[:, 0, 0].repeat(2)
            self._down1 = torch.cat([k[:, 0, 1], k[:, 1, 0]])

    @property
    def num_factors(self) -> int:
        return len(self.alpha)

    @property
    def senders(self) -> list[Tensor]:
        """By port, the factor that sends each message."""
        return [torch.arange(self.num_factors, device=self.alpha.device).repeat(2)]

    def part(self, which: Tensor) -> BinaryFactors:
        """Some of the factors, ``which [e]`` ascending."""
        rows = list(self.rows[0].view(2, -1)[:, which].unbind())
        return BinaryFactors(self.log_table[which], self.alpha[which], rows, self.families[0])

    def start(self, families: list[Odds]) -> list[Tensor]:
        return [families[self.families[0]].flat(2 * self.num_factors)]

    def _cavity(self, messages: list[Tensor], beliefs: list) -> Tensor:
        own = beliefs[self.families[0]].index_select(0, self.rows[0])
        return own.sub_(messages[0] if self.is_one else self._alpha * messages[0])

    def update(self, messages: list[Tensor], beliefs: list) -> tuple[list[Tensor], None]:
        """New messages; no factor can be without mass."""
        if self.is_mean_field:
            p = beliefs[self.families[0]].index_select(0, self.rows[0]).sigmoid()
            return [torch.addcmul(self._rise, _other(p), self._bend)], None
        # in place: on a large graph fresh memory costs as much as the arithmetic
        y = _other(self._cavity(messages, beliefs)).clamp_(-SATURATED, SATURATED).exp_()
        up = torch.addcmul(self._up0, self._up1, y)
        down = torch.addcmul(self._down0, self._down1, y)
        new = up.div_(down).log2_().mul_(LOG_2)  # faster than log on a CPU
        return [new if self.is_one else new / self._alpha], None

    def log_ratio(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """``[E]``: (1 / alpha) log E_q (f / prod_j m_j)^alpha, and its limit at alpha = 0."""
        own = beliefs[self.families[0]].index_select(0, self.rows[0])
        if self.is_mean_field:
            p = own.sigmoid()
            pairs = torch.exp(self._log_pairs(own))
            said = (p * messages[0]).view(2, -1).sum(0)
            return (pairs * self.log_table).sum((1, 2)) - said
        y = self._cavity(messages, beliefs)
        (high, high_other), (low, low_other) = y.sigmoid().view(2, -1), (-y).sigmoid().view(2, -1)
        count = self.num_factors
        up = self._up0[:count] * low_other + self._up1[:count] * high_other
        down = self._down0[:count] * low_other + self._down1[:count] * high_other
        tilted = (low * down + high * up).log() + self._peak
        return (tilted + (log_1p_exp(y) - log_1p_exp(own)).view(2, -1).sum(0)) / self.alpha

    def largest_ratio(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """``[E]``: (1 / alpha) log max_{x_j} E_{q_i} (f / (m_i m_j))^alpha, the larger of both
        directions; at least :meth:`log_ratio`."""
        own = beliefs[self.families[0]].index_select(0, self.rows[0]).view(2, -1)
        y = self._cavity(messages, beliefs).view(2, -1)
        said = (self._alpha * messages[0]).view(2, -1)
        table, zero = self.scaled, torch.zeros_like(y[0])
        found = []
        for j, i, axis in ((0, 1, 2), (1, 0, 1)):
            cavity = torch.stack([zero, y[i]], 1).unsqueeze(3 - axis)
            ratio = (table + cavity).logsumexp(axis) - torch.stack([zero, said[j]], 1)
            found.append((ratio.amax(1) - log_1p_exp(own[i])) / self.alpha)
        return torch.maximum(*found)

    @property
    def scaled(self) -> Tensor:
        """``[E, 2, 2]``: alpha log f."""
        return self.alpha.view(-1, 1, 1) * self.log_table

    @staticmethod
    def _log_pairs(odds: Tensor) -> Tensor:
        """Log of the product of two distributions given by their odds: ``[E, 2, 2]``."""
        log_p = -log_1p_exp(torch.stack([odds, -odds], 1))
        a, b = log_p.view(2, -1, 2)
        return a.unsqueeze(2) + b.unsqueeze(1)

    def marginals(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """Beliefs over the pairs, ``[E, 2, 2]`` log values, normalised."""
        if self.is_mean_field:
            return self._log_pairs(beliefs[self.families[0]].index_select(0, self.rows[0]))
        value = self._log_pairs(self._cavity(messages, beliefs)) + self.scaled
        return value - value.flatten(1).logsumexp(1).view(-1, 1, 1)


def _other(both: Tensor) -> Tensor:
    """The other node's half in each half."""
    return both.view(2, -1).flip(0).flatten()
