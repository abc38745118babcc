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
from collections.abc import Callable

import torch
from torch import Tensor

from pyrograph.errors import OptionError
from pyrograph.graph import FactorGroup
from pyrograph.infer.message_passing.discrete.symmetry import is_symmetric
from pyrograph.infer.message_passing.nodes.families import Categorical
from pyrograph.infer.message_passing.nodes.log_values import is_zero, rows_of, without

#: Smallest arity at which parity is looked for.
LEAST_ARITY = 5
#: Values of a group up to which all its states are looked at, and numbers read at once.
CHECKED_VALUES, CHUNK = 2**22, 2**20
#: Orders of the nodes in which probes set them to 1, by rotation and at random.
ORDERS = 64


class ParityFactors:
    """Parity checks on ``k`` binary nodes, hard or soft; messages ``[E k, 2]``.

    Args:
        log_values: ``[E, 2]`` log f at even and at odd parity.
        alpha: ``[E]``.
        rows: of each slot, ``[E]`` rows of the family.
        family: index of the family.
    """

    def __init__(self, log_values: Tensor, alpha: Tensor, rows: list[Tensor], family: int):
        self.log_values, self.alpha = log_values, alpha
        self.arity = len(rows)
        self.rows, self.families = [torch.stack(rows, 1).flatten()], [family]
        self.has_zeros = True
        self.is_mean_field = bool((alpha == 0).all())
        scaled = log_values if self.is_mean_field else alpha.unsqueeze(1) * log_values
        self._log_total = scaled.logsumexp(1)
        gap = scaled[:, 0] - scaled[:, 1]
        self._log_rho, self._sign = _log_tanh_of_half(gap.abs()), _sign(gap)

    @property
    def num_factors(self) -> int:
        return len(self.alpha)

    @property
    def senders(self) -> list[Tensor]:
        """By port, the factor that sends each message."""
        factors = torch.arange(self.num_factors, device=self.alpha.device)
        return [factors.repeat_interleave(self.arity)]

    def part(self, which: Tensor) -> ParityFactors:
        """Some of the factors, ``which [e]`` ascending."""
        rows = list(self.rows[0].view(-1, self.arity)[which].unbind(1))
        return ParityFactors(self.log_values[which], self.alpha[which], rows, self.families[0])

    def start(self, families: list[Categorical]) -> list[Tensor]:
        return [families[self.families[0]].flat(self.num_factors * self.arity)]

    def _own(self, beliefs: list) -> Tensor:
        return rows_of(beliefs[self.families[0]], self.rows[0])

    def _cavity(self, messages: list[Tensor], beliefs: list) -> Tensor:
        power = self.alpha.repeat_interleave(self.arity).unsqueeze(1)
        return without(self._own(beliefs), power * messages[0])

    def _leans(self, log_value: Tensor) -> tuple[Tensor, Tensor]:
        """Log size and sign of d_j, ``[E, k]``."""
        odds = (log_value[:, 0] - log_value[:, 1]).view(-1, self.arity)
        return _log_tanh_of_half(odds.abs()), _sign(odds)

    def update(self, messages: list[Tensor], beliefs: list) -> tuple[list[Tensor], Tensor | None]:
        """New messages, and ``[E]`` which factors have no mass."""
        if self.is_mean_field:
            size, sign = self._leans(self._own(beliefs))
            half = (self.log_values[:, 0] - self.log_values[:, 1]) / 2
            lean = half.unsqueeze(1) * _others(sign, torch.mul) * _others(size, torch.add).exp()
            value = torch.stack([lean.flatten(), -lean.flatten()]).t()
            return [value - value.amax(1, keepdim=True)], None
        cavity = self._cavity(messages, beliefs)
        size, sign = self._leans(cavity)
        log_product = self._log_rho.unsqueeze(1) + _others(size, torch.add)
        towards_even = self._sign.unsqueeze(1) * _others(sign, torch.mul) > 0
        # with t the product's size: log (1 - t) - log (1 + t) of the state that it speaks against
        against = (-torch.expm1(log_product)).log() - torch.log1p(log_product.exp())
        against = against / self.alpha.unsqueeze(1)
        nothing = torch.zeros_like(against)
        even = torch.where(towards_even, nothing, against)
        odd = torch.where(towards_even, against, nothing)
        mass = self._log_mass(size, sign)
        sent = torch.stack([even.flatten(), odd.flatten()]).t()
        return [sent], is_zero(mass) | mass.isnan()

    def _log_mass(self, size: Tensor, sign: Tensor) -> Tensor:
        """``[E]``: log of sum f^alpha prod_j n_j / sum n_j."""
        log_product = self._log_rho + size.sum(1)
        for_it = self._sign * sign.prod(1) > 0
        rest = torch.where(
            for_it, torch.log1p(log_product.exp()), (-torch.expm1(log_product)).log()
        )
        return self._log_total - math.log(2) + rest

    def log_ratio(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """``[E]``: (1 / alpha) log E_q (f / prod_j m_j)^alpha, and its limit at alpha = 0."""
        own = self._own(beliefs)
        if self.is_mean_field:
            size, sign = self._leans(own)
            even = sign.prod(1) * size.sum(1).exp()
            half = (self.log_values[:, 0] - self.log_values[:, 1]) / 2
            said = (own.softmax(1) * messages[0]).sum(1).view(-1, self.arity).sum(1)
            return self.log_values.mean(1) + half * even - said
        cavity = self._cavity(messages, beliefs)
        mass = self._log_mass(*self._leans(cavity))
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


def _sign(x: Tensor) -> Tensor:
    """-1 below zero and 1 from there on, in the precision of x, whatever torch's default is."""
    return torch.where(x < 0, -1, 1).to(x)


def _log_tanh_of_half(x: Tensor) -> Tensor:
    """log tanh(x / 2) for x >= 0, to full precision at both ends."""
    small = (x.clamp_max(1) / 2).tanh().log()
    return torch.where(x < 1, small, torch.log1p(-2 / (1 + x.clamp_min(1).exp())))


def _others(value: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Sum or product over all other columns, ``[E, k]``, without undoing any."""
    is_sum = combine is torch.add
    scan = torch.cumsum if is_sum else torch.cumprod
    start = torch.zeros_like(value[:, :1]) if is_sum else torch.ones_like(value[:, :1])
    before = scan(torch.cat([start, value[:, :-1]], 1), 1)
    after = scan(torch.cat([value[:, 1:], start], 1).flip(1), 1).flip(1)
    return combine(before, after)


def parity_values(group: FactorGroup) -> Tensor | None:
    """``[E, 2]`` log f at even and at odd parity, if that is all that the factors depend on.

    Of symmetric functions (:mod:`.symmetry`) one state for every number of ones is looked at; of
    others the :func:`probes`, and then all states unless :func:`rests_on_probes`.
    """
    k = group.arity
    if k < LEAST_ARITY or any(site.cardinality != 2 for site in group.slots):
        return None
    one_of_each = _ones(k, torch.arange(k, device="cpu"))
    values = _log_values(group, one_of_each[:2]).t()
    # what never changes is no check, and may be something that the probes miss
    if bool((values[:, 0] == values[:, 1]).any()) or not _agree(group, values, one_of_each):
        return None
    if is_symmetric(group):
        return values
    more = probes(k)[k + 1 :]
    if not all(_agree(group, values, states) for states in more.split(_at_once(group))):
        return None
    if not rests_on_probes(group):
        node = torch.arange(k, device="cpu")
        for number in torch.arange(2**k, device="cpu").split(_at_once(group)):
            if not _agree(group, values, number.unsqueeze(1) >> node & 1):
                return None
    return values


def rests_on_probes(group: FactorGroup) -> bool:
    """Whether factors that were found to be checks may differ from them at a state not tried."""
    return 2**group.arity * group.num_factors > CHECKED_VALUES and not is_symmetric(group)


def probes(arity: int) -> Tensor:
    """States ``[S, arity]`` with all numbers of ones: in runs from here and there, round the end,
    and at random; and those next to all zeros and to all ones.

    The first ``arity + 1`` have no one, one, and so forth.
    """
    generator = torch.Generator().manual_seed(0)
    node = torch.arange(arity, device="cpu")
    start = node[:: -(-arity // ORDERS)].unsqueeze(1)
    keys = torch.rand(ORDERS, arity, generator=generator, dtype=torch.float64, device="cpu")
    random = keys.argsort(1)
    order = torch.cat([(node - start) % arity, random])
    single = torch.eye(arity, dtype=torch.int64, device="cpu")
    return torch.cat([_ones(arity, order).flatten(0, 1), single, 1 - single])


def _ones(arity: int, order: Tensor) -> Tensor:
    """States ``[..., arity + 1, arity]`` with no one, one, and so forth, those first in order."""
    num_ones = torch.arange(arity + 1, device="cpu").unsqueeze(1)
    return (order.unsqueeze(-2) < num_ones).long()


def _at_once(group: FactorGroup) -> int:
    """States."""
    return max(1, CHUNK // (group.arity * group.num_factors))


def _agree(group: FactorGroup, values: Tensor, states: Tensor) -> bool:
    """Whether the factors are ``values`` ``[E, 2]`` of the parity at states ``[S, k]``."""
    parity = states.sum(1).to(values.device) % 2
    return torch.equal(_log_values(group, states), values.t()[parity])


def _log_values(group: FactorGroup, states: Tensor) -> Tensor:
    """``[S, E]`` log f of all factors at states ``[S, k]``."""
    return group.log_prob_of_states(states.to(group.scope.device).unbind(1))
