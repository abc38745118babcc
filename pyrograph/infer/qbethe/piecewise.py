"""Expected potentials that are polynomials between kinks, in closed form.

Their expectations are those of :mod:`pyrograph.beliefs.expected_pieces`. If all polynomials are
linear, with slopes g_j, the same is less work:

    E f(u) = p_K(m) + sum_k (g_k - g_{k+1}) E min(u - t_k, 0),   E min(u - t, 0) = -s (z Phi + phi)

So truncated absolute differences, Laplace densities and hinges cost no
quadrature, and the optimiser finds no error of one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.beliefs.expected_pieces import LEAST, expected_pieces
from pyrograph.infer.qbethe.components import Components
from pyrograph.infer.qbethe.numbers import Closed, ExpectedOfNumbers, OnLine, expected_together
from pyrograph.infer.qbethe.potentials import IntegratedPotential
from pyrograph.infer.qbethe.rules import Rules
from pyrograph.trace.forms.pieces import Pieces, find_pieces


class PiecewisePotential(IntegratedPotential):
    """Factors of single numbers that depend on one combination of them, in pieces."""

    pieces: Pieces
    is_by_points = False
    _integral: OnLine

    @classmethod
    def recognised(cls, potential: IntegratedPotential) -> IntegratedPotential:
        """The potential with its integrals in closed form, or as it is."""
        local = potential.local
        if potential.lever is None or local.group.is_differentiable:
            return potential

        def leaves(u: Tensor) -> list[Tensor]:
            return [(a * u).t() for a in potential.lever]

        def values(u: Tensor) -> Tensor:
            return local.at_scalars([a * u for a in potential.lever])

        with torch.no_grad():
            pieces = find_pieces(local.program, leaves, local.like, local.num_factors)
            if pieces is None or not pieces.agree_with(values):
                return potential
        found = cls(local, potential.wiring)
        found.pieces = pieces
        is_linear = not bool(pieces.coefficients[0].any())
        own = (ExpectedLines if is_linear else ExpectedPieces)(pieces)
        is_tied = bool(found.wiring.ties)
        found._integral = OnLine(torch.ones_like(found.lever[:1]) if is_tied else found.lever, own)
        return found

    def closed(self, mixture: Components) -> Closed | None:
        return None if self.wiring.ties else (self.numbers, self._integral)

    def expected(self, mixture: Components, rules: Rules) -> Tensor:
        closed = self.closed(mixture)
        if closed is not None:
            return expected_together([closed], mixture)
        return ExpectedOfNumbers.apply(*self.line_moments(mixture), [(None, 1, self._integral)])


class ExpectedPieces:
    """E f summed over factors, ``[B, L]``, and its derivatives by mean and sd, ``[B, L, E]``."""

    def __init__(self, pieces: Pieces):
        self.pieces = pieces

    def __call__(self, mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, by_mean, by_sd = expected_pieces(self.pieces, mean, sd)
        return value.sum(-1), by_mean, by_sd


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
