"""Quadratic functions of single numbers, expected under normal densities.

About points c where a factor is flat, or nearly,

    log f(x) = f(c) + g u - P u^2 / 2,        u = x - c
    E log f  = log f(E x) - P v / 2

which keeps the digits that x far from zero would lose, and costs no run of the program.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.infer.message_passing.densities.reduction import LocalDensity

#: Slopes are compared a unit apart, and this share of the numbers' size, which rounding may need.
STEP = 2.0**-12
#: Steps to c: at the first point slopes of a far and narrow factor may have few digits.
NEWTON_STEPS = 3


@dataclass(frozen=True)
class Expanded:
    """Of all factors.

    Shapes:
        centre, slope, curvature: ``[E]``, c, g and -P.
        value: f(c), its sum.
    """

    centre: Tensor
    slope: Tensor
    curvature: Tensor
    value: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, local: LocalDensity, centre: Tensor, unit: Tensor) -> Expanded:
        """Of factors of one number known to be quadratic.

        Args:
            centre, unit: ``[E]``, where the number is looked for at first, and on which scale: what
                rounding leaves of a curvature there is all that matters there.
        """
        value, slope = _with_slope(local, centre)
        for _ in range(NEWTON_STEPS):
            peak = centre - slope / _curvature(local, centre, slope, unit)
            peak = torch.where(peak.isfinite(), peak, centre)
            there, slope_there = _with_slope(local, peak)
            # a curvature that is all rounding would send the centre anywhere
            is_flatter = slope_there.abs() < 0.5 * slope.abs()
            centre = torch.where(is_flatter, peak, centre)
            value = torch.where(is_flatter, there, value)
            slope = torch.where(is_flatter, slope_there, slope)
        return cls(centre, slope, _curvature(local, centre, slope, unit), value.sum())

    def __call__(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See :data:`~.numbers.Integral`."""
        u = mean - self.centre  # [B, L, 1, E]
        by_mean = torch.addcmul(self.slope, self.curvature, u)
        twice = torch.add(self.slope, by_mean).mul_(u).addcmul_(self.curvature, variance)
        value = torch.add(self.value, twice.sum((2, 3)), alpha=0.5)
        return value, by_mean, self.curvature.expand_as(by_mean)


def _with_slope(local: LocalDensity, x: Tensor) -> tuple[Tensor, Tensor]:
    """log f and its derivative at ``[E]``."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        value = local.at_scalars([x.unsqueeze(0)])[0]
        (slope,) = torch.autograd.grad(value.sum(), x, allow_unused=True, materialize_grads=True)
    return value.detach(), slope


def _curvature(local: LocalDensity, x: Tensor, slope: Tensor, unit: Tensor) -> Tensor:
    """Second derivative at ``[E]``, where the first is known: a difference of slopes."""
    aside = x + unit + STEP * x.abs()
    return (_with_slope(local, aside)[1] - slope) / (aside - x)
