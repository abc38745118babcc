"""Expectations at alpha = 0 in closed form, where log f is a sum of products of statistics,

    log f(u) = sum A_{k, l, ...} M_k(s) T_l(t_1) ...,      M = (1, s_i, s_i s_j),  T = (1, T_1, T_2)

for Gaussian numbers s and gamma or beta ones t of u, as a normal density is with its mean and its
precision. With independent beliefs expectations of products are products of expectations, and what
a message says is A with all but one of them put in. A is read once, from as many points as it has
numbers, about where log f is largest in s.

That log f is quadratic in s is known from the factors' steps; that it is linear in T is seen at
points far out, as for conjugate factors (:mod:`.conjugate_terms`).

Source: Winn & Bishop (2005), section 2.3, for multilinear functions of statistics.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable
from copy import copy

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate
from pyrograph.infer.message_passing.continuous.conjugate_terms import (
    FEWEST,
    MOST,
    NEAR,
    NUMBERS,
    WIDE,
    precision_of,
    reach_of,
)
from pyrograph.infer.message_passing.continuous.mean_field import Expectations
from pyrograph.infer.message_passing.densities.checked import CHUNK
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.quadrature.conditional import stencil
from pyrograph.trace.forms.degree import polynomial_degree

#: Most numbers of A for a factor in a state.
MOST_TERMS = 200
#: Steps towards the largest value: of data far from 0 the first ones are short of digits.
STEPS = 3
#: Values of which rounding, in units of the precision, leaves less than this are no use.
ROUNDING = 1e-6
#: Where steps of a unit change log f by no more than rounding, how much wider ones are tried, and
#: how often.
WIDER, TIMES = 2.0**10, 5
#: How far out the Gaussian numbers are looked at, in units of the width of f.
SPREAD = 3.0


class ClosedForm:
    """Of a set of like factors.

    Args:
        local: their density in effective coordinates, in double precision.
        families: of its chosen numbers.
    """

    def __init__(self, local: LocalDensity, families: list[type[Conjugate]]):
        self.local, self.families = local, families
        self.conjugate = [number.column for number in local.chosen]
        self.gaussian = [n for n in range(local.dim) if n not in self.conjugate]
        self._size = (local.num_states, local.num_factors)
        like, precision = local.like, precision_of(local)
        steps = stencil(len(self.gaussian)).to(like)
        #: Where each kind of number is put, and what makes coefficients of values there.
        self._places, self._solve = [steps], [torch.linalg.inv(_monomials(steps))]
        for family in families:
            low, high = reach_of(family, precision)
            places = like.new_tensor([[0.0], [-low / 3], [high / 3]])
            self._places.append(places)
            self._solve.append(torch.linalg.inv(_with_one(family.statistics(places))))
        self._centre = like.new_zeros(*self._size, len(self.gaussian))
        self._unit = torch.ones_like(self._centre)
        self._known: Tensor | None = None

    @staticmethod
    def of(local: LocalDensity, families: list[type[Conjugate]]) -> ClosedForm | None:
        """None where log f is another function."""
        given = {*local.discrete, *(local.continuous[k] for c in local.chosen for k in c.slots)}
        if polynomial_degree(local.group.program, given) > 2:
            return None
        size = local.dim - len(local.chosen)
        if (size + 1) * (size + 2) // 2 * 3 ** len(families) > MOST_TERMS:
            return None
        out = ClosedForm(local, families)
        found = out._centred()
        if found is None or not out._is_all(found):
            return None
        if not local.group.is_differentiable:
            out._known = found
        return out

    def part(self, which: Tensor) -> ClosedForm:
        """Some of the factors, ``which [e]`` ascending."""
        out = copy(self)
        out.local, out._size = self.local.part(which), (self._size[0], len(which))
        out._centre, out._unit = self._centre[:, which], self._unit[:, which]
        out._known = None if self._known is None else self._known[:, which]
        return out

    # ------------------------------------------------------------------ expectations
    def __call__(self, moments: tuple[Tensor, Tensor], others: list[Conjugate]) -> Expectations:
        """Of log f and its derivatives.

        Args:
            moments: mean ``[D, E, r]`` and covariance ``[D, E, r, r]`` of u.
            others: beliefs of the chosen numbers, batch ``[D, E]``.
        """
        coefficients = self._read() if self._known is None else self._known
        own, unit = self.gaussian, self._unit
        mean = (moments[0][..., own] - self._centre) / unit
        covariance = moments[1][..., own, :][..., own] / (unit[..., :, None] * unit[..., None, :])
        expected = [_expected_monomials(mean, covariance)]
        expected += [_with_one(q.expected) for q in others]
        of_s = _put_in(coefficients, expected, but=0)
        slope, bend = _derivatives(of_s, mean)
        natural = [_put_in(coefficients, expected, but=j)[..., 1:] for j in range(1, len(expected))]
        slope, bend = slope / unit, bend / (unit[..., :, None] * unit[..., None, :])
        if self.conjugate:
            at = torch.tensor(own, device=mean.device)
            across = bend.new_zeros(*bend.shape[:-1], self.local.dim).index_copy(-1, at, bend)
            bend = bend.new_zeros(*self._size, self.local.dim, self.local.dim)
            bend = bend.index_copy(-2, at, across)
            slope = slope.new_zeros(*self._size, self.local.dim).index_copy(-1, at, slope)
        return Expectations((of_s * expected[0]).sum(-1), slope, bend, natural)

    # ------------------------------------------------------------------ reading
    def _values(self, y: Tensor, t: list[Tensor]) -> Tensor:
        """log f ``[N, D, E]`` at Gaussian numbers about the centres, in units, ``[N, D, E, s]``,
        and others, ``[N, D, E]`` each."""
        u = self.local.like.new_zeros(*y.shape[:3], self.local.dim)
        u[..., self.gaussian] = self._centre + self._unit * y
        for column, value in zip(self.conjugate, t, strict=True):
            u[..., column] = value
        each = self._size[0] * self.local.numbers_at_once
        return torch.cat([self.local(piece) for piece in u.split(max(1, CHUNK // each))])

    def _read(self) -> Tensor:
        """A, ``[D, E, terms of s, 3, ...]``, of s about the centres, in units."""
        at = list(itertools.product(*(range(len(own)) for own in self._places)))
        rows = torch.tensor(at, device=self.local.like.device).unbind(1)
        s, *t = (own[row] for own, row in zip(self._places, rows, strict=True))
        values = self._values(
            s[:, None, None].expand(-1, *self._size, -1), [own[:, :, None] for own in t]
        )
        found = values.movedim(0, -1).unflatten(-1, [len(own) for own in self._places])
        for axis, solve in enumerate(self._solve, 2):
            found = (found.movedim(axis, -1) @ solve.mT).movedim(-1, axis)
        return found

    @torch.no_grad()
    def _centred(self) -> Tensor | None:
        """A about where f is largest in s, in units of how wide it is there, with the others where
        they are looked at first; None if values are no numbers, or have no digits left."""
        eps = torch.finfo(self.local.like.dtype).eps
        firsts = [f.statistics(p[:1]) for f, p in zip(self.families, self._places[1:], strict=True)]
        first = [_with_one(own).expand(*self._size, -1) for own in firsts]
        self._widen(first)
        for _ in range(STEPS if self.gaussian else 0):
            found = _put_in(self._read(), [self._centre, *first], but=0)
            if not bool(found.isfinite().all()):
                return None
            slope, bend = _derivatives(found, torch.zeros_like(self._centre))
            width = -bend.diagonal(dim1=-2, dim2=-1)
            least = torch.linalg.eigvalsh(-bend).amin(-1, keepdim=True)
            is_peak = least > NEAR * width.amax(-1, keepdim=True)
            eye = torch.eye(slope.shape[-1], dtype=bend.dtype, device=bend.device)
            root = torch.linalg.cholesky(torch.where(is_peak[..., None], -bend, eye))
            there = torch.cholesky_solve(slope.unsqueeze(-1), root).squeeze(-1)
            self._centre = torch.where(is_peak, self._centre + self._unit * there, self._centre)
            self._unit = torch.where(is_peak, self._unit * width.abs().rsqrt(), self._unit)
        found = self._read()
        # of NaN and infinite numbers it is not below
        return found if float(found.abs().amax()) * eps < ROUNDING else None

    def _widen(self, first: list[Tensor]) -> None:
        """Units in which differences have digits: of data in large units, steps of 1 leave them
        none. Of numbers that no step tells of, as those a state does not read, they stay."""
        least = torch.finfo(self.local.like.dtype).eps ** 0.5
        start = self._unit
        if not self.gaussian:
            return
        for _ in range(TIMES):
            found = _put_in(self._read(), [self._centre, *first], but=0)
            slope, bend = _derivatives(found, torch.zeros_like(self._centre))
            change = slope.abs() + bend.abs().amax(-1)
            is_blind = change < least * found[..., :1].abs()
            if not bool(is_blind.any()):
                return
            self._unit = torch.where(is_blind, WIDER * self._unit, self._unit)
        self._unit = torch.where(is_blind, start, self._unit)

    @torch.no_grad()
    def _is_all(self, found: Tensor) -> bool:
        """Whether log f is A and linear in the statistics of the others too, at points at
        random."""
        if not self.families:
            return True
        generator = torch.Generator().manual_seed(0)
        number = NUMBERS // (self._size[0] * self.local.numbers_at_once)
        number = min(MOST, max(FEWEST, number)) // WIDE
        shape = (number, *self._size)

        def drawn(draw: Callable[..., Tensor], *size: int) -> Tensor:
            value = draw(*shape, *size, generator=generator, dtype=torch.float64, device="cpu")
            return value.to(self.local.like)

        y, t = SPREAD * drawn(torch.randn, len(self.gaussian)), []
        for family in self.families:
            low, high = reach_of(family, precision_of(self.local))
            t.append(-low + (low + high) * drawn(torch.rand))
        parts = [_monomials(y)]
        both = zip(self.families, t, strict=True)
        parts += [_with_one(family.statistics(own[..., None])) for family, own in both]
        total = _put_in(found, parts)
        size = _put_in(found.abs(), [part.abs() for part in parts])
        near = max(self.local.rounding, NEAR) * (1 + size)
        return bool(((self._values(y, t) - total).abs() <= near).all())


def _monomials(y: Tensor) -> Tensor:
    """M: ``[..., 1 + s + s (s + 1) / 2]`` of ``y [..., s]``."""
    i, j = torch.triu_indices(y.shape[-1], y.shape[-1], device=y.device)
    return torch.cat([y.new_ones(*y.shape[:-1], 1), y, y[..., i] * y[..., j]], -1)


def _expected_monomials(mean: Tensor, covariance: Tensor) -> Tensor:
    i, j = torch.triu_indices(mean.shape[-1], mean.shape[-1], device=mean.device)
    count = 1 + mean.shape[-1]
    around = torch.nn.functional.pad(covariance[..., i, j], (count, 0))
    return _monomials(mean) + around


def _derivatives(of_s: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Slope ``[..., s]`` at a point and second derivatives of a quadratic function by its
    coefficients ``[..., M]``."""
    size = at.shape[-1]
    i, j = torch.triu_indices(size, size, device=at.device)
    half = of_s.new_zeros(*of_s.shape[:-1], size, size)
    half[..., i, j] = of_s[..., 1 + size :]
    bend = half + half.mT
    return of_s[..., 1 : 1 + size] + (bend @ at.unsqueeze(-1)).squeeze(-1), bend


def _with_one(statistics: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(statistics[..., :1]), statistics], -1)


def _put_in(coefficients: Tensor, parts: list[Tensor], but: int | None = None) -> Tensor:
    """A ``[D, E, n_0, n_1, ...]`` with numbers ``[D, E, n_j]``, or ``[N, D, E, n_j]``, put in for
    all axes, but for one."""
    axes = string.ascii_lowercase[: len(parts)]
    put = [axis for axis in range(len(parts)) if axis != but]
    lead = "NDE" if parts[-1].dim() == 4 else "DE"
    operands = ",".join([f"DE{axes}", *(lead + axes[axis] for axis in put)])
    kept = "" if but is None else axes[but]
    return torch.einsum(f"{operands}->{lead}{kept}", coefficients, *(parts[axis] for axis in put))
