"""Which factors are affine in one product over their nodes, f = a + b prod_i lambda_i(x_i), by
their values.

Values around one state, P(x) = 1 there, give all lambdas if a is known, as (f - a) / (f_0 - a). It
is 0 of products, 1 of noisy or; otherwise it comes of the two halves S and T of the nodes, moved to
their other states one after the other and together,

    (f_S - a) (f_T - a) = (f_0 - a) (f_ST - a)

The first of these that has the factor's values, and derivatives, at other states as well is taken.
That this proves the form takes that all states were tried, or that the factor is a function of one
quantity (:mod:`.one_quantity`), tried at many values of it: at random states, most of which may
have P = 0, and on the way there.

Values are computed in double precision. Where the program clamps probabilities, as Bernoulli does
at the eps of its dtype, f may be off by as much for each node; where one node alone makes it that
small, a is what the clamp leaves. So of single probabilities: products and powers of them have
values below the clamp's bound, and where no value is far above it all forms look the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.graph import FactorGroup
from pyrograph.infer.message_passing.discrete.one_quantity import reads_one_quantity
from pyrograph.infer.message_passing.discrete.parity import CHECKED_VALUES
from pyrograph.infer.message_passing.discrete.same_derivatives import same_derivatives
from pyrograph.infer.message_passing.nodes.log_values import LOG_2, ZERO, is_zero

aten = torch.ops.aten

#: Entries of a factor's table above which its form is looked at.
LEAST_ENTRIES = 2**8
#: Random states tried of factors that are known to read one quantity, and of others.
KNOWN_TRIALS, TRIALS = 32, 512
#: States from P = 1 downwards that are tried of all factors.
STEPS = 16
#: States at which derivatives are compared.
COMPARED = 16
#: Largest difference of a log value, as a share of 1 + its size.
TOLERANCE = 1e-8
#: Times that a better state is looked for.
CLIMBS = 5
#: Numbers of nodes read at once.
CHUNK = 2**17
#: Error of a product's rounding, in eps for each of its nodes.
ROUNDING = 8.0
#: Least size of a factor's largest value, as a multiple of what others are off by for a clamp.
FAR_ABOVE = 1e3
#: Largest bound of a clamp that is one of rounding.
CLAMPED = 1.01 * torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class OneProduct:
    """Factors A (1 - P) + B P with P a product of lambdas in [0, 1].

    Attributes:
        log_ends: ``[E, 2]`` log A and log B, of which A is minus infinity where f is a product.
        log_weights: of each slot, ``[E, 2, c]`` log lambda and log (1 - lambda).
        is_proved: whether they cannot differ from it at a state not tried.
    """

    log_ends: Tensor
    log_weights: list[Tensor]
    is_proved: bool

    @property
    def is_product(self) -> Tensor:
        """``[E]``: whether f is a product of functions of single nodes."""
        return is_zero(self.log_ends[:, 0])

    @property
    def has_effects(self) -> Tensor:
        """``[E]``: whether some node changes the value. Where none does P may be 0 wherever it was
        looked at."""
        return torch.stack([~is_zero(w[:, 1]).all(1) for w in self.log_weights]).any(0)

    def log_values(self, codes: Tensor) -> Tensor:
        """``[S, E]`` at states ``[S, E or 1, k]``."""
        log_p = 0.0
        for weight, code in zip(self.log_weights, codes.unbind(2), strict=True):
            place = code.t().expand(len(weight), -1)  # [E, S]
            kept, lost = (w.gather(1, place) for w in weight.unbind(1))
            is_near = lost < -LOG_2
            near = torch.log1p(-torch.where(is_near, lost, -LOG_2).exp())
            log_p = log_p + torch.where(is_near, near, kept)
        rest = _log_apart(torch.zeros_like(log_p), log_p)
        parts = self.log_ends.unsqueeze(2) + torch.stack([rest, log_p], 1)
        nothing = is_zero(parts).all(1)
        found = torch.where(nothing.unsqueeze(1), 0.0, parts).logsumexp(1)
        return torch.where(nothing, ZERO, found).t()


def product_values(group: FactorGroup) -> OneProduct | None:
    """The factors as such, in double precision; None if some are not, or their tables are small."""
    cards = [site.cardinality for site in group.slots]
    if not group.is_discrete or math.prod(cards) <= LEAST_ENTRIES:
        return None
    fine = replace(group, _program=group.program.in_dtype(torch.float64))
    values = _Values(fine, cards)
    with torch.no_grad():
        if not values.are_finite:
            return None
    for knows_a in (True, False):
        found = values.form(knows_a)
        if found is not None and values.are(found):
            return found
    return None


class _Values:
    """Log values of a group's factors where it pays to look.

    Args:
        group: whose program computes in double precision; cards: states of its slots.
    """

    def __init__(self, group: FactorGroup, cards: list[int]):
        self.group, self.cards = group, cards
        self.device = group.scope.device
        self._reads_one = reads_one_quantity(group)
        self._is_proved = self._reads_one or group.num_entries <= CHECKED_VALUES
        self._bound = _clamp_of(group)
        rounding = ROUNDING * torch.finfo(torch.float64).eps * group.arity
        self._clamped = self._bound + rounding if self._bound else 0.0  # largest such value
        # all lambdas are quotients by one value: where that is clamped they all are off
        self._slack = group.arity * self._bound + rounding if self._bound else 0.0
        count = group.num_factors
        self._each = max(1, CHUNK // (count * len(cards)))  # states at once
        none = torch.zeros(count, len(cards), dtype=torch.int64, device=self.device)
        last = none + torch.tensor(cards, device=self.device) - 1
        at_first = self._around(none)
        # where P is 0 none of its factors changes anything
        is_flat = self._is_flat(at_first).unsqueeze(1)
        at_last = self._around(last) if bool(is_flat.any()) else at_first
        pairs = zip(at_first, at_last, strict=True)
        self._around_start = [torch.where(is_flat, b, a) for a, b in pairs]
        self._start = torch.where(is_flat, last, none)
        self._ends: dict[Callable, tuple[Tensor, list[Tensor]]] = {}

    def _end(self, extreme: Callable[[Tensor, int], Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The state ``[E, k]`` where f is largest or smallest, if it is of the form, and values
        around it. What each node does alone tells, but where P is so small that it is lost."""
        if extreme not in self._ends:
            state, around = self._start, self._around_start
            for _ in range(CLIMBS):
                better = _best(around, state, extreme)
                if torch.equal(better, state):
                    break
                state, around = better, self._around(better)
            self._ends[extreme] = state, around
        return self._ends[extreme]

    @cached_property
    def _may_be_clamped(self) -> Tensor:
        """``[E]``: whether the largest value, of this form, is far above what is clamped."""
        largest = torch.stack([v.detach().amax(1) for v in self._end(torch.amax)[1]]).amax(0)
        return largest.exp() >= FAR_ABOVE * self._slack

    @staticmethod
    def _is_flat(around: list[Tensor]) -> Tensor:
        return torch.stack([(v == v[:, :1]).all(1) for v in around]).all(0)

    @property
    def are_finite(self) -> bool:
        return not any(bool((v.isnan() | (v == torch.inf)).any()) for v in self._around_start)

    def _at(self, codes: Tensor) -> Tensor:
        """``[S, E]`` at states ``[S, E or 1, k]``, a chunk at a time."""
        return torch.cat([self._chunk(some) for some in codes.split(self._each)])

    def _chunk(self, codes: Tensor) -> Tensor:
        codes = codes.expand(-1, self.group.num_factors, -1)
        pairs = zip(self.group.slots, codes.unbind(2), strict=True)
        return self.group.log_prob([s.enumeration.to(self.device)[code] for s, code in pairs])

    def _around(self, state: Tensor) -> list[Tensor]:
        """By slot, ``[E, c]`` where all other slots are in this state ``[E, k]``."""
        card = torch.tensor(self.cards, device=self.device)
        slot = torch.arange(len(card), device=self.device).repeat_interleave(card - 1)
        shift = torch.cat([torch.arange(1, c, device=self.device) for c in self.cards])
        parts = [self._chunk(state.unsqueeze(0))]
        for slots, shifts in zip(slot.split(self._each), shift.split(self._each), strict=True):
            moved = (state[:, slots] + shifts) % card[slots]  # [E, S]
            at = slots.view(-1, 1, 1).expand(-1, len(state), 1)
            codes = state.expand(len(slots), -1, -1).scatter(2, at, moved.t().unsqueeze(2))
            parts.append(self._chunk(codes))
        found = torch.cat(parts)
        around, first = [], 1
        for own, c in zip(state.unbind(1), self.cards, strict=True):
            value = torch.cat([found[:1], found[first : first + c - 1]]).t()  # by shift
            first += c - 1
            place = (torch.arange(c, device=self.device) - own.unsqueeze(1)) % c
            around.append(value.gather(1, place))
        return around

    # ------------------------------------------------------------------ the form
    def form(self, knows_a: bool) -> OneProduct | None:
        """What they are if they are of the form.

        Args:
            knows_a: whether a is taken for 0 or 1 where that fits, and only else computed.
        """
        trials = self._trials(KNOWN_TRIALS)
        truth = self._at(trials).detach()
        chosen: OneProduct | None = None
        fits = torch.zeros(self.group.num_factors, dtype=torch.bool, device=self.device)
        for end, around, log_a in self._candidates(knows_a):
            found = _form_around(around, end, log_a, self._is_proved)
            with torch.no_grad():
                is_new = ~fits & self._agree(found, trials, truth).all(0) & found.has_effects
                near = _ladder(around, end)
                is_new &= self._agree(found, near, self._at(near)).all(0)
            chosen = found if chosen is None else _either(is_new, found, chosen)
            fits = fits | is_new
            if bool(fits.all()):
                return chosen
        return None

    def _candidates(self, knows_a: bool) -> Iterator[tuple[Tensor, list[Tensor], Tensor]]:
        """The state of P = 1, ``[E, k]``, values around it, and ``[E]`` log a."""
        one = torch.zeros_like(self._around_start[0][:, 0].detach())
        if knows_a:
            # where one node alone makes a probability 0 the clamp is what is left of f
            least = torch.stack([v.detach().amin(1) for v in self._around_start]).amin(0)
            is_clamped = least.exp() <= self._clamped
            yield self._start, self._around_start, torch.where(is_clamped, least, torch.nan)
            yield self._start, self._around_start, one + ZERO
            yield self._start, self._around_start, one
            yield *self._end(torch.amax), one + ZERO
            yield *self._end(torch.amin), one
        log_a = self._log_a()
        yield *self._end(torch.amin), log_a
        yield *self._end(torch.amax), log_a

    def _log_a(self) -> Tensor:
        """By halves of the nodes, in turn by what they change."""
        high, low = self._end(torch.amax)[0], self._end(torch.amin)[0]
        values = [v.detach().exp() for v in self._around_start]
        change = torch.stack([v.amax(1) - v.amin(1) for v in values], 1)
        rank = change.argsort(1, descending=True).argsort(1)
        is_even = rank % 2 == 0
        first = torch.where(is_even, high, low)
        second = torch.where(is_even, low, high)
        log_f = self._at(torch.stack([low, first, second, high]))
        neither, one, other, both = log_f.exp()
        over = one + other - neither - both
        a = (one * other - neither * both) / torch.where(over == 0, 1.0, over)
        return torch.where(a > 0, torch.where(a > 0, a, 1.0).log(), ZERO)

    # ------------------------------------------------------------------ trials
    def _trials(self, count: int) -> Tensor:
        """Random states ``[S, 1, k]``: with few to all nodes away from their first state, and from
        their last."""
        generator = torch.Generator().manual_seed(0)
        cards = torch.tensor(self.cards, device="cpu")
        size = count, len(cards)
        share = torch.rand(count, 1, generator=generator, dtype=torch.float64, device="cpu")
        share[:2] = 1.0
        moves = torch.rand(size, generator=generator, dtype=torch.float64, device="cpu") < share
        place = torch.rand(size, generator=generator, dtype=torch.float64, device="cpu")
        shift = moves * (1 + (place * (cards - 1)).long())
        end = torch.arange(count, device="cpu").unsqueeze(1) % 2 * (cards - 1)
        return ((end + shift) % cards).unsqueeze(1).to(self.device)

    def _agree(self, found: OneProduct, states: Tensor, truth: Tensor) -> Tensor:
        """``[S, E]``: whether values are as they should be."""
        ours, f = found.log_values(states), truth.exp()
        off = (ours.exp() - f).abs() <= self._slack
        is_one = (f <= 1) & (f >= self._bound * (1 - TOLERANCE)) & self._may_be_clamped
        return _is_same(ours, truth) | (is_one & off)

    def are(self, found: OneProduct) -> bool:
        """Whether the factors are of this form, as far as it is looked at, and their derivatives
        those of the form."""
        with torch.no_grad():
            for states in self._states():
                if not bool(self._agree(found, states, self._at(states)).all()):
                    return False
        states = self._trials(COMPARED)
        value = self._at(states)
        if not value.requires_grad:
            return True
        ours = found.log_values(states)
        # elsewhere one of them is clamped
        same = _is_same(ours.detach(), value.detach()) & value.isfinite()
        pair = (torch.where(same, v, 0.0) for v in (value, ours))
        return same_derivatives(self.group.attached_constants, *pair)

    def _states(self) -> Iterator[Tensor]:
        """The ends of what a quantity can be; of factors that may read more than one also all
        states, or random ones where these are too many."""
        yield torch.stack(
            [
                _best(self._around_start, self._start, extreme)
                for extreme in (torch.amax, torch.amin)
            ]
        )
        if not self._is_proved:
            yield from self._trials(TRIALS).split(KNOWN_TRIALS)
        if self._reads_one or not self._is_proved:
            return
        every = torch.arange(math.prod(self.cards), device=self.device)
        for number in every.split(self._each):
            codes = []
            for card in self.cards:
                codes.append(number % card)
                number = torch.div(number, card, rounding_mode="floor")
            yield torch.stack(codes, 1).unsqueeze(1)


def _best(around: list[Tensor], state: Tensor, extreme: Callable[[Tensor, int], Tensor]) -> Tensor:
    """``[E, k]``: where each node, moved alone, makes f largest or smallest; of like values the
    state that it is in."""
    found = []
    for value, own in zip(around, state.unbind(1), strict=True):
        value, own = value.detach(), own.unsqueeze(1)
        is_best = value == extreme(value, 1).unsqueeze(1)
        best = is_best.to(torch.uint8).argmax(1, keepdim=True)
        found.append(torch.where(is_best.gather(1, own), own, best))
    return torch.cat(found, 1)


def _ladder(around: list[Tensor], end: Tensor) -> Tensor:
    """States ``[S, E, k]`` that more and more nodes have moved to from ``end``, those first that
    change f least: P takes many values between 1 and 0 also where most nodes alone make it 0."""
    top = around[0].gather(1, end[:, :1]).detach().exp()
    parts = []
    for value in around:
        apart = (value.detach().exp() - top).abs()
        parts.append(torch.where(apart > 0, apart, torch.inf).min(1))
    change, state = (torch.stack(v, 1) for v in zip(*parts, strict=True))
    rank = change.argsort(1).argsort(1)
    steps = torch.linspace(math.log(2), math.log(end.shape[1]), STEPS, device=end.device)
    moved = (rank < steps.exp().round().unique().view(-1, 1, 1)) & change.isfinite()
    return torch.where(moved, state, end)


def _is_same(ours: Tensor, truth: Tensor) -> Tensor:
    near = (ours - truth).abs() <= TOLERANCE * (1 + truth.abs())
    return (ours == truth) | (near & truth.isfinite())


def _clamp_of(group: FactorGroup) -> float:
    """Where probabilities are clamped for rounding; 0 if none are."""
    clamps = [c.rule.static for c in group.program.lines if c.rule.func is aten.clamp.default]
    bounds = [n for args, _ in clamps for n in args if isinstance(n, float) and 0 < n <= CLAMPED]
    return max(bounds, default=0.0)


def _form_around(around: list[Tensor], end: Tensor, log_a: Tensor, is_proved: bool) -> OneProduct:
    """What factors are by their values around the state ``[E, k]`` of P = 1."""
    log_a = log_a.unsqueeze(1)
    top = around[0].gather(1, end[:, :1])
    scale = _log_apart(top, log_a)
    weights = [
        torch.stack([_log_apart(v, log_a) - scale, _log_apart(v, top) - scale], 1).clamp_max(0)
        for v in around
    ]
    return OneProduct(torch.cat([log_a, top], 1), weights, is_proved)


def _either(is_first: Tensor, first: OneProduct, second: OneProduct) -> OneProduct:
    """By factor, ``[E]``."""
    ends = torch.where(is_first.unsqueeze(1), first.log_ends, second.log_ends)
    mask = is_first.view(-1, 1, 1)
    pairs = zip(first.log_weights, second.log_weights, strict=True)
    return OneProduct(ends, [torch.where(mask, a, b) for a, b in pairs], first.is_proved)


def _log_apart(one: Tensor, other: Tensor) -> Tensor:
    """log |e^one - e^other|."""
    high, low = torch.maximum(one, other), torch.minimum(one, other)
    is_same = high == low
    gap = torch.where(is_same, -1.0, low - high)
    return torch.where(is_same, ZERO, torch.where(is_same, 0.0, high) + (-torch.expm1(gap)).log())
