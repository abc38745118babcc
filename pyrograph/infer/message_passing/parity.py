"""Messages of factors that depend on the parity of binary nodes alone, without their tables.

With A and B the values at even and odd parity, rho = (A^alpha - B^alpha) / (A^alpha + B^alpha) and
d_j = (n_j(0) - n_j(1)) / (n_j(0) + n_j(1)) for the cavities n_j,

    m_{a -> i}(x_i)^alpha ~ 1 + (-1)^x_i rho prod_{j != i} d_j

so that a check on k bits costs O(k) and not O(2^k). At alpha = 0 the exponent is the limit,
log m_{a -> i}(x_i) = (-1)^x_i (log A - log B) / 2 prod_{j != i} d_j with d_j under the beliefs.

Source: Gallager (1962); Kschischang, Frey & Loeliger (2001), the tanh rule.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.errors import OptionError
from pyrograph.graph import FactorGroup
from pyrograph.infer.message_passing.families import ZERO, Categorical, is_zero

#: Smallest arity at which parity is looked for, and largest at which it is checked on all states.
LEAST_ARITY, CHECKED_ARITY = 5, 12
PROBES = 512


class ParityFactors:
    """Parity checks on ``k`` binary nodes, hard or soft; messages ``[E k, 2]``.

    Args:
        log_values: ``[E, 2]`` log f at even and at odd parity.
        alpha: ``[E]``.
        rows: of each slot, ``[E]`` rows of the family.
        family: index of the family.
    """

    def __init__(self, log_values: Tensor, alpha: Tensor, rows: list[Tensor], family: int):
        self.log_values, self.alpha = log_values.clamp_min(ZERO), alpha
        self.arity = len(rows)
        self.rows, self.families = [torch.stack(rows, 1).flatten()], [family]
        self.is_mean_field = bool((alpha == 0).all())
        zero = is_zero(self.log_values)
        scaled = torch.where(zero, ZERO, alpha.unsqueeze(1) * self.log_values)
        self._log_total = scaled.logsumexp(1)
        self._rho = torch.tanh((scaled[:, 0] - scaled[:, 1]) / 2)

    @property
    def num_factors(self) -> int:
        return len(self.alpha)

    def start(self, families: list[Categorical]) -> list[Tensor]:
        return [families[self.families[0]].flat(self.num_factors * self.arity)]

    def _own(self, beliefs: list) -> Tensor:
        return beliefs[self.families[0]].index_select(0, self.rows[0])

    def _cavity(self, messages: list[Tensor], beliefs: list) -> Tensor:
        power = self.alpha.repeat_interleave(self.arity).unsqueeze(1)
        cavity = self._own(beliefs) - power * messages[0]
        return torch.where(is_zero(messages[0]), ZERO, cavity)

    def _differences(self, log_value: Tensor) -> Tensor:
        """d_j, ``[E, k]``."""
        return torch.tanh((log_value[:, 0] - log_value[:, 1]) / 2).view(-1, self.arity)

    def update(self, messages: list[Tensor], beliefs: list) -> tuple[list[Tensor], Tensor | None]:
        """New messages, and ``[E]`` which factors have no mass."""
        if self.is_mean_field:
            half = (self.log_values[:, 0] - self.log_values[:, 1]) / 2
            lean = half.unsqueeze(1) * _others(self._differences(self._own(beliefs)))
            value = torch.stack([lean, -lean], 2)
            return [(value - value.amax(2, keepdim=True)).flatten(0, 1)], None
        cavity = self._cavity(messages, beliefs)
        lean = self._rho.unsqueeze(1) * _others(self._differences(cavity))
        # certainty only from certainties: short of it the sum of tiny terms was rounded away
        certain = is_zero(cavity.amin(1)).view(-1, self.arity)
        sure = _others(certain.to(lean)).bool() & (self._rho.abs() == 1).unsqueeze(1)
        most = 1 - torch.finfo(lean.dtype).eps
        lean = torch.where(sure, lean, lean.clamp(-most, most))
        value = torch.stack([torch.log1p(lean), torch.log1p(-lean)], 2)
        value = value / self.alpha.view(-1, 1, 1)
        value = (value - value.amax(2, keepdim=True)).flatten(0, 1)
        return [torch.nan_to_num(value, neginf=ZERO)], self._is_empty(cavity)

    def _is_empty(self, cavity: Tensor) -> Tensor:
        certain = is_zero(cavity.amin(1)).view(-1, self.arity).all(1)
        lean = self._rho * self._differences(cavity).prod(1)
        return certain & (lean == -1)

    def log_ratio(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """``[E]``: (1 / alpha) log E_q (f / prod_j m_j)^alpha, and its limit at alpha = 0."""
        own = self._own(beliefs)
        if self.is_mean_field:
            even = self._differences(own).prod(1)
            half = (self.log_values[:, 0] - self.log_values[:, 1]) / 2
            said = (own.softmax(1) * messages[0]).sum(1).view(-1, self.arity).sum(1)
            return self.log_values.mean(1) + half * even - said
        cavity = self._cavity(messages, beliefs)
        lean = self._rho * self._differences(cavity).prod(1)
        mass = self._log_total - math.log(2) + torch.log1p(lean)
        gap = (cavity.logsumexp(1) - own.logsumexp(1)).view(-1, self.arity).sum(1)
        return (mass + gap) / self.alpha

    def marginals(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """Refused: a belief over the scope would be the table that this class avoids.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            f"the belief over a parity check on {self.arity} nodes has 2^{self.arity} entries and "
            "is not kept; ask for the marginals of its nodes."
        )


def _others(value: Tensor) -> Tensor:
    """Product over all other columns, ``[E, k]``, zeros allowed."""
    one = torch.ones_like(value[:, :1])
    before = torch.cat([one, value[:, :-1]], 1).cumprod(1)
    after = torch.cat([value[:, 1:], one], 1).flip(1).cumprod(1).flip(1)
    return before * after


def parity_values(group: FactorGroup) -> Tensor | None:
    """``[E, 2]`` log f at even and odd parity, if that is all that the factors depend on.

    Up to :data:`CHECKED_ARITY` nodes every state is looked at, beyond it :data:`PROBES` random
    ones and those with at most one node in state 1.
    """
    k = group.arity
    if k < LEAST_ARITY or any(site.cardinality != 2 for site in group.slots):
        return None
    device = group.scope.device
    if k <= CHECKED_ARITY:
        states = torch.cartesian_prod(*[torch.arange(2, device=device)] * k)
    else:
        generator = torch.Generator().manual_seed(0)
        random = torch.randint(2, (PROBES, k), generator=generator).to(device)
        single = torch.eye(k, dtype=torch.int64, device=device)
        states = torch.cat([torch.zeros_like(single[:1]), single, random, 1 - random])
    odd = states.sum(1) % 2 == 1
    first = [int((~odd).nonzero()[0]), int(odd.nonzero()[0])]
    values = None
    for part in torch.arange(len(states), device=device).split(256):
        slots = [
            site.enumeration.to(device)[states[part, s]]
            .unsqueeze(1)
            .expand(-1, group.num_factors, *site.event_shape)
            for s, site in enumerate(group.slots)
        ]
        found = group.log_prob(slots)
        if values is None:
            if max(first) >= len(part):
                return None
            values = found[first].t()
        if not torch.equal(found, values.t()[odd[part].long()]):
            return None
    return values
