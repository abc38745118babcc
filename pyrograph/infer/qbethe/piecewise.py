"""Expected potentials that are polynomials between kinks, in closed form.

With u ~ N(m, s^2), kinks t_k, z_k = (t_k - m) / s, and a polynomial p_j of degree 2 between two of
them, expanded about m,

    E f(u) = sum_j p_j(m) D Phi_j - s p_j'(m) D phi_j + s^2 p_j'' / 2 (D Phi_j - D (z phi)_j)

where D is the difference of the values at both ends. f is continuous, so the derivatives are

    d/dm E f = E f',      d/ds E f = E z f'

from the same numbers. If all polynomials are linear, with slopes g_j, the same is less work:

    E f(u) = p_K(m) + sum_k (g_k - g_{k+1}) E min(u - t_k, 0),   E min(u - t, 0) = -s (z Phi + phi)

So truncated absolute differences, Laplace densities and hinges cost no
quadrature, and the optimiser finds no error of one.

Source: a generalisation of E min(|x|, l) under a normal density.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.infer.qbethe.components import Components
from pyrograph.infer.qbethe.numbers import Closed, ExpectedOfNumbers, OnLine, expected_together
from pyrograph.infer.qbethe.potentials import IntegratedPotential
from pyrograph.infer.qbethe.ratios import LEAST
from pyrograph.infer.qbethe.rules import Rules
from pyrograph.trace.pieces import Pieces, find_pieces

#: Rounding errors that the check of a closed form may show, in units of the dtype's precision.
ROUNDING = 3e3
#: Points at which it is checked, and how far off, in units of the stretches between kinks.
CHECKS = 32
SCALES = (1.0, 0.1, 10.0, 100.0)


class PiecewisePotential(IntegratedPotential):
    """Factors of single numbers that depend on one combination of them, in pieces."""

    pieces: Pieces
    _integral: OnLine

    @classmethod
    def recognised(cls, potential: IntegratedPotential) -> IntegratedPotential:
        """The potential with its integrals in closed form, or as it is."""
        local = potential.local
        if potential.lever is None or local.group.is_differentiable:
            return potential

        def leaves(u: Tensor) -> list[Tensor]:
            return [(a * u).t() for a in potential.lever]

        with torch.no_grad():
            pieces = find_pieces(local.program, leaves, local.like, local.num_factors)
            if pieces is None or not _agrees(pieces, potential):
                return potential
        found = cls(local, potential.wiring)
        found.pieces = pieces
        is_linear = not bool(pieces.coefficients[0].any())
        own = (ExpectedLines if is_linear else ExpectedPieces)(pieces)
        is_tied = found.wiring.ties is not None
        found._integral = OnLine(torch.ones_like(found.lever[:1]) if is_tied else found.lever, own)
        return found

    def closed(self, mixture: Components) -> Closed | None:
        return None if self.wiring.ties is not None else (self.numbers, self._integral)

    def expected(self, mixture: Components, rules: Rules) -> Tensor:
        closed = self.closed(mixture)
        if closed is not None:
            return expected_together([closed], mixture)
        return ExpectedOfNumbers.apply(*self.line_moments(mixture), [(None, 1, self._integral)])


@torch.no_grad()
def _agrees(pieces: Pieces, potential: IntegratedPotential) -> bool:
    """Whether the pieces are the factors, up to rounding: at points near the kinks and far off."""
    generator = torch.Generator().manual_seed(0)
    shape = (CHECKS, *pieces.origin.shape)
    spread = torch.tensor(SCALES, device="cpu").repeat(CHECKS // len(SCALES)).view(-1, 1, 1)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    noise = (spread * noise).to(pieces.origin)
    u = (pieces.origin + pieces.unit * noise).flatten(0, 1)
    theirs = potential.local.at_scalars([a * u for a in potential.lever])
    if not bool(theirs.isfinite().all()):
        return False
    size = pieces.coefficients.abs().sum(0).amax(0) * (1 + (u / pieces.unit.amin(0)).square())
    bound = ROUNDING * torch.finfo(u.dtype).eps * (1 + theirs.abs() + size)
    return bool(((pieces(u) - theirs).abs() <= bound).all())


class ExpectedPieces:
    """E f summed over factors, ``[B, L]``, and its derivatives by mean and sd, ``[B, L, E]``."""

    def __init__(self, pieces: Pieces):
        self.pieces = pieces

    def __call__(self, mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pieces, shape = self.pieces, (-1, 1, 1, mean.shape[-1])
        z = (pieces.kinks.view(shape) - mean) / sd  # [K, B, L, E]
        density = torch.exp((-0.5 * z.square()).clamp_min(LEAST)) / math.sqrt(2 * math.pi)
        mass = _steps(0.5 * (1 + torch.erf(z / math.sqrt(2))), 1.0)  # [K + 1, B, L, E]
        first = _steps(density, 0.0)
        second = mass - _steps(z * density, 0.0)
        unit = pieces.unit.view(shape)
        v = (mean - pieces.origin.view(shape)) / unit
        a, b, c = (x.view(shape) for x in pieces.coefficients)
        value = (a * v + b) * v + c
        slope = (2 * a * v + b) / unit
        bend = a / unit.square()
        total = (value * mass).sum(0)
        by_mean = (slope * mass).sum(0) - 2 * sd * (bend * first).sum(0)
        tilt, curve = (slope * first).sum(0), (bend * second).sum(0)
        return (total - sd * tilt + sd.square() * curve).sum(-1), by_mean, 2 * sd * curve - tilt


class ExpectedLines:
    """The same of functions that are linear between kinks."""

    def __init__(self, pieces: Pieces):
        self.kinks = pieces.kinks[:, None, None]  # [K, 1, 1, E]
        self.half = 0.5 * pieces.bends[:, None, None]
        self.dense = self.half * math.sqrt(2 / math.pi)
        #: The last of the lines.
        self.slope, self.origin = pieces.slopes[-1], pieces.origin[-1]
        self.value = pieces.coefficients[2, -1]

    def __call__(self, mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = (self.kinks - mean).div_(sd * math.sqrt(2))  # z / sqrt(2), [K, B, L, E]
        density = y.square().neg_().clamp_min_(LEAST).exp_().mul_(self.dense).sum(0)
        mass = torch.addcmul(self.half, torch.erf(y), self.half)
        by_mean = mass.sum(0)
        below = torch.add(density, mass.mul_(y).sum(0), alpha=math.sqrt(2))
        line = torch.addcmul(self.value, self.slope, mean - self.origin)
        value = line.addcmul_(sd, below, value=-1).sum(-1)
        return value, by_mean.add_(self.slope), density.neg_()


def _steps(at_kinks: Tensor, last: float) -> Tensor:
    """Differences over the stretches of what is 0 at minus infinity and ``last`` at infinity."""
    zero = torch.zeros_like(at_kinks[:1])
    return torch.diff(at_kinks, dim=0, prepend=zero, append=zero + last)
