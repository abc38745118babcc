"""Which factors depend on a weighted count of their nodes alone, f(x) = g(sum_i n_i(x_i)), by their
values.

A factor is known to be a function of few numbers, each a sum of functions of single nodes
(:mod:`.sums_read`). What every node adds to each is computed; where all of it comes in multiples of
one unit, the number is told by a whole one. Several, t_1 to t_A of 0 to C_a, are one count in a
mixed radix, t = t_1 + (C_1 + 1) t_2 + ..., that is as much a sum over nodes. So g is known from one
state for each count, with no trial of others; some are looked at for what rounding may do, as
sums of 0.1 to a threshold, and for the derivatives, which those of free weights that start out
alike would not be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.graph import FactorGroup
from pyrograph.infer.message_passing.discrete.noisy_or_values import LEAST_ENTRIES
from pyrograph.infer.message_passing.discrete.same_derivatives import same_derivatives
from pyrograph.infer.message_passing.discrete.sums_read import SumsRead, sums_read
from pyrograph.trace.localize import LocalProgram

#: Smallest arity at which counts are looked for.
LEAST_ARITY = 3
#: How many times as many entries as a step of messages has numbers a table must have.
SHARE = 4
#: Most numbers of a group that messages take at once.
MAX_NUMBERS = 2**24
#: Rounding of what a node adds, as a share of the largest.
ROUNDING = 1e-9
#: Sums of multiples of 1 / FINEST are exact up to LARGEST / FINEST.
FINEST, LARGEST = 2.0**16, 2.0**40
#: Largest difference of a log value, as a share of 1 + its size.
TOLERANCE = 1e-8
#: The same of what was computed in a narrow dtype.
NARROW = 1e-2
#: Random states at which values and derivatives are compared.
TRIALS = 32
#: Numbers of nodes read at once.
CHUNK = 2**17


@dataclass(frozen=True)
class Counts:
    """Values of factors of a weighted count.

    Attributes:
        weights: of each slot, ``[E, c]`` whole numbers n_i, the smallest of each node 0.
        log_values: ``[E, C + 1]`` log g; of counts that no state has, that of 0.
    """

    weights: list[Tensor]
    log_values: Tensor

    @property
    def size(self) -> int:
        """C + 1."""
        return self.log_values.shape[1]

    def only(self, which: Tensor) -> Counts:
        """Of some factors."""
        return Counts([w[which] for w in self.weights], self.log_values[which])

    def widened(self, size: int) -> Counts:
        """With as many counts as this, which no state has."""
        none = self.log_values[:, :1].expand(-1, size - self.size)
        return replace(self, log_values=torch.cat([self.log_values, none], 1))

    def table(self) -> Tensor:
        """Log values of all states, ``[E, c_1, ..., c_k]``."""
        k, count = len(self.weights), 0
        for slot, weight in enumerate(self.weights):
            count = count + weight.view(len(weight), *(1,) * slot, -1, *(1,) * (k - 1 - slot))
        return self.log_values.gather(1, count.flatten(1)).view(count.shape)

    def at(self, codes: Tensor) -> Tensor:
        """``[S, E]`` log f at states ``[S, E, k]``."""
        places = (code.t() for code in codes.unbind(2))
        pairs = zip(self.weights, places, strict=True)
        count = sum(weight.gather(1, place) for weight, place in pairs)
        return self.log_values.gather(1, count).t()


def count_values(group: FactorGroup) -> Counts | None:
    """The factors as such, in double precision; None if they are not known to be, or their tables
    are hardly larger."""
    cards = [site.cardinality for site in group.slots]
    states, k = sum(cards), len(cards)
    size = math.prod(cards)
    if k < LEAST_ARITY or size <= max(LEAST_ENTRIES, SHARE * states * (k + 1)):
        return None
    most = min(size // (SHARE * states), MAX_NUMBERS // (group.num_factors * k * max(cards)))
    values = _Values(group, cards)
    for scales in (False, True):
        read = sums_read(values.group, scales)
        weights = None if read is None else values.weights(read, most)
        found = None if weights is None else values.counts(weights, read.is_smooth)
        if found is not None:
            return found
    return None


class _Values:
    """A group's factors in double precision.

    Args:
        group: of ``E`` factors; cards: states of its ``k`` slots.
    """

    def __init__(self, group: FactorGroup, cards: list[int]):
        self.own_program = group.program
        self.group = replace(group, _program=group.program.in_dtype(torch.float64))
        self.cards = torch.tensor(cards, device=group.scope.device)
        self._count, self._each = group.num_factors, max(1, CHUNK // group.scope.numel())

    def _at(self, program: LocalProgram, codes: Tensor) -> Tensor:
        """``[S, n]`` numbers of a program at states ``[S, E, k]``, a chunk at a time."""
        return torch.cat([self._chunk(program, some) for some in codes.split(self._each)])

    def _chunk(self, program: LocalProgram, codes: Tensor) -> Tensor:
        pairs = zip(self.group.slots, codes.unbind(2), strict=True)
        values = [site.enumeration.to(code.device)[code] for site, code in pairs]
        return program([v.t() if v.dim() == 2 else v.flatten(1).t() for v in values]).t()

    # ------------------------------------------------------------------ whole numbers
    def weights(self, read: SumsRead, most: int) -> Tensor | None:
        """``[E, k, c]`` what nodes add to a count of at most ``most``; states that a node does not
        have are as its last."""
        with torch.no_grad():
            least, added = self._added(read)
        if not bool(added.isfinite().all()):
            return None
        if not (read.is_smooth or (_are_exact(least, read) and _are_exact(added, read))):
            return None
        whole = _in_units(added, most)
        if whole is None:
            return None
        whole = _without_doubles(_upwards(whole))
        radix = whole.amax(3).sum(2) + 1  # [E, A]
        if float(radix.double().prod(1).amax()) > most:
            return None
        unit = radix.cumprod(1) // radix
        return (unit.view(*unit.shape, 1, 1) * whole).sum(1)

    def _added(self, read: SumsRead) -> tuple[Tensor, Tensor]:
        """``[E, A, k, 1]`` and ``[E, A, k, c]``: numbers that factors read where one node is in
        each of its states and all others are in their first, the smallest and what is above it."""
        most, device = int(self.cards.max()), self.cards.device
        slot = torch.arange(len(self.cards), device=device).repeat_interleave(most)
        state = torch.arange(most, device=device).repeat(len(self.cards))
        state = torch.minimum(state, self.cards[slot] - 1)
        codes = torch.zeros(len(slot), len(self.cards), dtype=torch.int64, device=device)
        codes = codes.scatter(1, slot.unsqueeze(1), state.unsqueeze(1))
        value = self._at(read.program, codes.unsqueeze(1).expand(-1, self._count, -1))
        value = value[:, read.place].movedim(0, -1).unflatten(-1, (-1, most))
        value = torch.where(read.is_read[..., None, None], value, 0.0)
        least = value.amin(3, keepdim=True)
        return least, value - least

    # ------------------------------------------------------------------ values
    def counts(self, weights: Tensor, is_smooth: bool) -> Counts | None:
        """What they are by one state for each count, if others do not contradict it, nor thresholds
        that their own dtype puts elsewhere."""
        first, last = _states_of(weights, self.cards)
        slots = zip(weights.unbind(1), self.cards.tolist(), strict=True)
        log_values = self._at(self.group.program, first).t()
        found = Counts([w[:, :card] for w, card in slots], log_values)
        generator = torch.Generator().manual_seed(0)
        size = TRIALS, self._count, len(self.cards)
        place = torch.rand(size, generator=generator, dtype=torch.float64, device="cpu")
        random = (place.to(self.cards.device) * self.cards).long()
        with torch.no_grad():
            if not bool(_is_same(found.at(last), self._at(self.group.program, last)).all()):
                return None
            if not is_smooth and self.own_program is not self.group.program:
                own = self._at(self.own_program, first).t()
                if not bool(_is_same(log_values, own, NARROW).all()):
                    return None
        value, ours = self._at(self.group.program, random), found.at(random)
        same = _is_same(ours.detach(), value.detach())
        if not bool(same.all()):
            return None
        pair = (torch.where(value.detach().isfinite(), v, 0.0) for v in (value, ours))
        return found if same_derivatives(self.group.attached_constants, *pair) else None


def _is_same(ours: Tensor, truth: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    near = (ours - truth).abs() <= tolerance * (1 + truth.abs())
    return (ours == truth) | (near & truth.isfinite()) | (ours.isnan() & truth.isnan())


def _are_exact(value: Tensor, read: SumsRead) -> bool:
    """Whether sums of ``[E, A, ...]``, which means are divided by their number of, have no
    rounding."""
    terms = read.terms[..., None, None]
    whole = value * FINEST * terms
    slack = torch.where(terms > 1, ROUNDING * FINEST, 0.0)
    return bool((((whole - whole.round()).abs() <= slack) & (whole.abs() < LARGEST)).all())


def _in_units(added: Tensor, most: int) -> Tensor | None:
    """``[E, A, k, c]`` in whole numbers, by Euclid's algorithm on all that is added to a number;
    None where it would be more than ``most``."""
    flat = added.flatten(2)
    slack = ROUNDING * flat.amax(2, keepdim=True)
    unit, rest = torch.full_like(slack, torch.inf), flat
    while True:
        rest = torch.where(rest <= slack, torch.inf, rest)
        least = rest.amin(2, keepdim=True)
        if bool(least.isinf().all()):
            break
        unit = torch.minimum(unit, least)
        if bool((added.amax(3).sum(2, keepdim=True) > (most + 0.5) * unit).any()):
            return None
        rest = (flat - (flat / unit).round() * unit).abs()
    return torch.where(unit.isinf(), 0.0, flat / unit).round().long().view(added.shape)


def _upwards(whole: Tensor) -> Tensor:
    """``[E, A, k, c]`` such that the first state that changes a number raises it: numbers that rise
    and fall together are the same."""
    change = (whole - whole[..., :1]).flatten(2)
    first = (change != 0).to(torch.uint8).argmax(2, keepdim=True)
    falls = (change.gather(2, first) < 0).unsqueeze(3)
    return torch.where(falls, whole.amax(3, keepdim=True) - whole, whole)


def _without_doubles(whole: Tensor) -> Tensor:
    """``[E, A, k, c]`` with zeros for numbers that are those before."""
    kept = list(whole.unbind(1))
    for a, own in enumerate(kept):
        for other in kept[:a]:
            same = (own == other).flatten(1).all(1)
            kept[a] = torch.where(same.view(-1, 1, 1), 0, kept[a])
    return torch.stack(kept, 1)


def _states_of(weights: Tensor, cards: Tensor) -> tuple[Tensor, Tensor]:
    """Two states of each count, ``[C + 1, E, k]``, with low states of the last nodes, and high
    ones; of counts that there are not those of 0."""
    size = int(weights.amax(2).sum(1).amax()) + 1
    count = torch.arange(size, device=weights.device)
    every = weights.transpose(0, 1).unsqueeze(3)  # [k, E, c, 1]
    reached = [(count == 0).expand(len(weights), -1)]  # by the nodes before
    for weight, card in zip(every, cards.tolist(), strict=True):
        reached.append(_can_be(reached[-1], count - weight[:, :card]).any(1))
    total = torch.where(reached[-1], count, 0)
    found = []
    for is_high in (False, True):
        left, codes = total, []
        for k in reversed(range(len(cards))):
            rest = left.unsqueeze(1) - every[k, :, : cards[k]]
            can_be = _can_be(reached[k], rest).to(torch.uint8)
            code = can_be.flip(1).argmax(1) if is_high else can_be.argmax(1)
            code = cards[k] - 1 - code if is_high else code
            left = rest.gather(1, code.unsqueeze(1)).squeeze(1)
            codes.append(code)
        found.append(torch.stack(codes[::-1], 2).transpose(0, 1))
    return found[0], found[1]


def _can_be(reached: Tensor, rest: Tensor) -> Tensor:
    """Whether counts ``[E, c, C + 1]`` are reached, ``[E, C + 1]``."""
    wide = reached.unsqueeze(1).expand(-1, rest.shape[1], -1)
    return (rest >= 0) & wide.gather(2, rest.clamp_min(0))
