"""Factors that are conjugate to their continuous nodes in every state of their discrete ones,

    f(d, z) = exp(c_d + sum_j s_dj' T_j(z_j))

where z_j are nodes that state d reads, each with the statistics T_j of its family. Whether factors
are, and what s_dj is, is found by looking, densely and far out: behind a threshold a factor may be
another. Factors that are known to be the same function are looked at once.

s of a Dirichlet variable x of K numbers takes no K values, but the slope at one point and one value
more: T = log x, and x' dT = 0, so that a slope J' s, J = dT / dz, leaves a multiple of x open.

Source: Winn & Bishop (2005), section 2.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from pyro.distributions import constraints
from torch import Tensor

from pyrograph.beliefs import Conjugate, LogDirichlet, LogitBeta
from pyrograph.infer.message_passing.densities.chosen import Chosen, chosen_among
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.nodes.log_values import is_zero
from pyrograph.trace.forms.alike import functions_of

#: How far numbers of beliefs are looked at: from -z to z, and to a smaller z where 1 - expit(z) has
#: too few digits further out; logarithms of Dirichlet numbers to one less the largest.
REACH = {torch.float64: (30.0, 20.0), torch.float32: (13.0, 6.0)}
REACH_OF_SHARES = {torch.float64: 25.0, torch.float32: 9.0}
#: Share of it where a state reads several nodes.
OF_MANY = 0.8
#: Logarithms of odds between every second Dirichlet number and the others where the value is read
#: that a slope leaves open.
STEP = 2.0
#: What a factor may be off by, as a share of its terms.
NEAR = 1e-7
#: Fewest and most points there, and numbers altogether. Where factors are tens of thousands, what
#: none of the others has can be missed in one of them if it is narrower than x to 1.6 x.
FEWEST, MOST, NUMBERS = 2**7, 2**14, 2**22
#: Share of it where points are of many numbers, and not dense anyway.
WIDE = 8
#: Numbers at once: what stays in a cache; and that factors read which are looked at together.
CHUNK, TOGETHER = 2**18, 2**22
#: Shifts of the points by factor.
GOLDEN = (5**0.5 - 1) / 2
#: Errors of what is left of 1, in units of the precision.
LEFT = 8

#: Family and number of unconstrained numbers of what a term is about.
Kind = tuple[type[Conjugate], int]


@dataclass(frozen=True)
class Terms:
    """Of E factors in D states.

    Attributes:
        log_scale: c, ``[D, E]``, minus infinity for zeros.
        chosen: which node each term is about.
        said: s of each term, batch ``[D, E]``.
    """

    log_scale: Tensor
    chosen: list[Chosen]
    said: list[Conjugate]


def conjugate_terms(local: LocalDensity, families: Sequence[type[Conjugate]]) -> Terms | None:
    """What factors are, if they all are conjugate.

    Args:
        local: the factors, in double precision; families: of their continuous slots.
    """
    which = functions_of(local.group.program).to(local.index.device)
    number = int(which.max()) + 1
    at = torch.arange(local.num_factors, device=which.device)
    first = at.new_empty(number).scatter_(0, which, at).sort()  # any one of its equals
    row = torch.empty_like(first.indices).scatter_(0, first.indices, at[:number])[which]
    local = local.part(first.values)
    chosen, kinds = _chosen(local, families)
    of_one, parts = local.num_states * sum(local.nodes_widths), []
    for index in torch.arange(number, device=row.device).split(max(1, TOGETHER // of_one)):
        own = [replace(each, which=each.which[:, index]) for each in chosen]
        part = local if len(index) == number else local.part(index)
        found = _Looked(part, own, kinds).found()
        if found is None:
            return None
        parts.append(found)
    log_scale = torch.cat([part.log_scale for part in parts], 1)[:, row]
    said = []
    for same in zip(*(part.said for part in parts), strict=True):
        natural = torch.cat([s.natural for s in same], 1)[:, row]
        said.append(type(same[0])(natural))
    chosen = [replace(each, which=each.which[:, row]) for each in chosen]
    return Terms(log_scale, chosen, said)


def _chosen(
    local: LocalDensity, families: Sequence[type[Conjugate]]
) -> tuple[list[Chosen], list[Kind]]:
    """What terms are about, and of which family and how many numbers."""
    every = list(zip(families, local.nodes_widths, strict=True))
    chosen: list[Chosen] = []
    kinds: list[Kind] = []
    for kind in dict.fromkeys(every):
        slots = [k for k, other in enumerate(every) if other == kind]
        found = chosen_among(local.nodes_reached[..., slots], slots, len(chosen))
        chosen += found
        kinds += [kind] * len(found)
    return chosen, kinds


def precision_of(local: LocalDensity) -> torch.dtype:
    """Of the programs' own numbers: limits that they keep to are at it."""
    own = {local.group.slots[k].dtype for k in local.continuous}
    return torch.float32 if torch.float32 in (*own, local.like.dtype) else torch.float64


def reach_of(family: type[Conjugate], precision: torch.dtype) -> tuple[float, float]:
    """How far below and above 0 numbers of a family are looked at."""
    low, high = REACH[precision]
    return low, high if family is LogitBeta else low


class _Looked:
    """Factors at points of the nodes that they read.

    Args:
        chosen, kinds: what terms are about, by :func:`_chosen`.

    Attributes:
        count: numbers of them in all states, F; those of a state follow each other.
        numbers: that one point of all has; at_once: points.
    """

    def __init__(self, local: LocalDensity, chosen: list[Chosen], kinds: list[Kind]):
        self.local, self.size = local, (local.num_states, local.num_factors)
        self.count = local.num_states * local.num_factors
        self.like = local.like
        self.precision = precision_of(local)
        self.chosen, self.kinds = chosen, kinds
        self.rounding = [self._rounding(number.slots) for number in self.chosen]
        self.numbers = self.count * sum(local.nodes_widths)
        self.at_once = max(1, CHUNK // self.numbers)
        self.generator = torch.Generator().manual_seed(0)
        self.centre = 0.0

    # ------------------------------------------------------------------ values
    def values(self, z: Sequence[Tensor]) -> Tensor:
        """log f ``[N, F]`` at points ``[N, F, d]`` of what each term is about."""
        x = []
        for k, width in enumerate(self.local.nodes_widths):
            own = self.like.new_zeros(len(z[0]), *self.size, width)
            for number, value in zip(self.chosen, z, strict=True):
                if k in number.slots:
                    there = number.is_slot(k)[..., None]
                    own = torch.where(there, value.view(-1, *self.size, width), own)
            x.append(own)
        return self.local.at_nodes(x).flatten(1)

    def found(self) -> Terms | None:
        """The terms. Products of many numbers, as of what is left of a stick, are too small in the
        middle of all: then from nearer to one end, and the other."""
        count = len(self.kinds)
        is_one = count == 1 or all(family is LogDirichlet for family, _ in self.kinds)
        for self.centre in [0.0] if is_one else [0.0, -math.log(count), math.log(count)]:
            terms = self._terms()
            if terms is not None:
                return terms
        return None

    def _terms(self) -> Terms | None:
        places = [self._places(*kind) for kind in self.kinds]
        zeros = is_zero(self.values(self._at([p[:1] for p in places]))[0])

        def values(z: Sequence[Tensor]) -> Tensor:
            # a zero has to be one everywhere, and counts as a constant
            found = self.values(z)
            return torch.where(zeros, torch.where(is_zero(found), 0.0, torch.nan), found)

        origin = values(self._at([p[:1] for p in places]))
        scale, said = origin[0], []
        for j, (place, (family, _)) in enumerate(zip(places, self.kinds, strict=True)):
            moved = [p[:1].expand(len(place) - 1, -1) for p in places]
            moved[j] = place[1:]
            statistics = family.statistics(place)
            pieces = zip(*(m.split(self.at_once) for m in moved), strict=True)
            there = torch.cat([values(self._at(piece)) for piece in pieces])
            off, rise = statistics[1:] - statistics[0], there - origin
            if family is LogDirichlet:
                towards, slope = self._slope(values, places, j, origin.requires_grad)
                slope = slope.masked_fill(zeros, 0.0)
                off, rise = torch.cat([towards, off]), torch.cat([slope, rise])
            found = torch.linalg.solve(off, rise)
            said.append(found)
            scale = scale - statistics[0] @ found
        if not self._are_near(values, scale, said):
            return None
        scale = scale.masked_fill(zeros, -torch.inf).view(self.size)
        both = zip(said, self.kinds, strict=True)
        sent = [family(s.t().reshape(*self.size, -1)) for s, (family, _) in both]
        return Terms(scale, self.chosen, sent)

    @torch.enable_grad()
    def _slope(
        self,
        values: Callable[[Sequence[Tensor]], Tensor],
        places: list[Tensor],
        j: int,
        is_learnt: bool,
    ) -> tuple[Tensor, Tensor]:
        """J' ``[d, p]`` of a term's statistics at the first of its places, and the slope of log f
        ``[d, F]``, itself with derivatives where the factors have parameters that are learnt."""
        family, _ = self.kinds[j]
        place = places[j][:1]
        each = place.expand(place.shape[1] + 1, -1).clone().requires_grad_()
        # number k of copy k; not by torch's jacobian, with which it loads sympy, a second
        (towards,) = torch.autograd.grad(family.statistics(each).diagonal().sum(), each)
        z = self._at([p[:1] for p in places])
        z[j] = z[j].clone().requires_grad_()
        value = values(z).sum()
        if not value.requires_grad:  # a constant
            return towards.mT, torch.zeros_like(z[j][0]).t()
        options = {"create_graph": is_learnt, "materialize_grads": True}
        (slope,) = torch.autograd.grad(value, z[j], **options)
        return towards.mT, slope[0].t()

    def _at(self, places: list[Tensor]) -> list[Tensor]:
        return [p.unsqueeze(1).expand(-1, self.count, -1) for p in places]

    def _places(self, family: type[Conjugate], width: int) -> Tensor:
        """``[n, d]`` points that a term's numbers are known from, with the slope at the first of
        Dirichlet ones."""
        if family is LogDirichlet:
            logs = self.like.new_zeros(2, width + 1)
            logs[1, ::2] = STEP
            return family.at(logs.exp())
        low, high = self._reach(family)
        return self.centre + self.like.new_tensor([[0.0], [-low / 3], [high / 3]])

    # ------------------------------------------------------------------ whether that is all
    @torch.no_grad()
    def _are_near(
        self,
        values: Callable[[Sequence[Tensor]], Tensor],
        scale: Tensor,
        said: list[Tensor],
    ) -> bool:
        """Whether the terms ``[p, F]`` and scales ``[F]`` are what factors are elsewhere."""
        # fewer points of each of many factors, but others of every one
        is_wide = LogDirichlet in (family for family, _ in self.kinds)
        share = WIDE if is_wide else 1
        fewest, most, numbers = (number // share for number in (FEWEST, MOST, NUMBERS))
        number = min(most, max(fewest, numbers // self.numbers))
        for piece in torch.arange(number, device="cpu").split(self.at_once):
            reach = self._shares(len(piece))
            z = [self._points(piece, number, j, reach[..., j]) for j in range(len(self.kinds))]
            total, terms = scale.expand(len(piece), -1), scale.abs()
            allowed = torch.zeros_like(total)
            for own, s, rounding, (family, _) in zip(
                z, said, self.rounding, self.kinds, strict=True
            ):
                parts = s.t() * family.statistics(own)
                total, terms = total + parts.sum(-1), terms + parts.abs().sum(-1)
                allowed = allowed + self._lost(family, own, s.t(), rounding)
            error = max(self.local.rounding, NEAR) * (1 + terms) + allowed
            if not bool(((values(z) - total).abs() <= error).all()):
                return False
        return True

    def _shares(self, number: int) -> Tensor:
        """``[n, F, terms]``: how far out each one goes, as a share of the way, which all of them
        share: where many numbers are far out their product is none. Few are, mostly."""
        drawn = self._drawn((number, self.count, len(self.kinds))).log() ** 4
        return drawn / drawn.sum(-1, keepdim=True)

    def _points(self, piece: Tensor, number: int, j: int, reach: Tensor) -> Tensor:
        """``[n, F, d]``: of the points of this number these ones, of a term. Evenly spaced where
        the first is about a single number, else at random.

        Args:
            reach: ``[n, F]``, the share of the way out that counts as all of it.
        """
        family, width = self.kinds[j]
        size = (len(piece), self.count)
        if family is LogDirichlet:
            drawn = self._drawn((*size, width + 1)) - 1
            drawn = REACH_OF_SHARES[self.precision] * reach.unsqueeze(-1) * drawn
            return family.at(drawn.to(self.like).exp())
        if j == 0:
            every = torch.arange(self.count, dtype=torch.float64, device="cpu")
            share = (piece.unsqueeze(1) + (GOLDEN * every).frac()) / number
        else:
            share = self._drawn(size)
        low, high = self._reach(family)
        z = self.centre + reach * (-low + (low + high) * share)
        return z.to(self.like).unsqueeze(-1)

    def _drawn(self, size: tuple[int, ...]) -> Tensor:
        return torch.rand(size, generator=self.generator, dtype=torch.float64, device="cpu")

    def _reach(self, family: type[Conjugate]) -> tuple[float, float]:
        low, high = reach_of(family, self.precision)
        share = OF_MANY if len(self.kinds) > 1 else 1.0
        return share * low, share * high

    def _rounding(self, slots: list[int]) -> float:
        """Errors of expit(z) and 1 - expit(z) in units of the precision: of x between bounds a and
        b the distances to these are known to |a| and |b|, and either to the larger one where a
        program takes one from the other, as Bernoulli(1 - x) does."""
        own = [self.local.group.slots[self.local.continuous[k]].support for k in slots]
        return max(map(_rounding_of, own))

    def _lost(self, family: type[Conjugate], z: Tensor, said: Tensor, rounding: float) -> Tensor:
        """What rounding of the numbers at ``z [n, F, d]`` costs a term ``[F, p]``."""
        eps = torch.finfo(self.like.dtype).eps
        if family is LogitBeta:
            z = z[..., 0]
            lower, upper = ((sign * z).exp() for sign in (-1, 1))
            return eps * rounding * (lower * said[:, 0].abs() + upper * said[:, 1].abs())
        if family is LogDirichlet:
            # of a stick of which all but little is broken off, the rest has few digits; and
            # where equal sticks are broken is a constant of the program's precision
            lost = eps * z.exp().sum(-1) + torch.finfo(self.precision).eps
            return LEFT * lost * said.abs().sum(-1)
        return torch.zeros_like(z[..., 0])


def _rounding_of(support: constraints.Constraint) -> float:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if not (hasattr(support, "lower_bound") and hasattr(support, "upper_bound")):
        return 0.0
    low, high = (
        torch.as_tensor(bound, device="cpu") for bound in (support.lower_bound, support.upper_bound)
    )
    return LEFT * float((torch.maximum(low.abs(), high.abs()) / (high - low)).amax())
