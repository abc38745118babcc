"""Expectations of functions that are polynomials between kinks, under normal densities.

With u ~ N(m, s^2), kinks t_k, z_k = (t_k - m) / s, and a polynomial p_j of degree 2 between two of
them, expanded about m,

    E f(u) = sum_j p_j(m) D Phi_j - s p_j'(m) D phi_j + s^2 p_j'' / 2 (D Phi_j - D (z phi)_j)

where D is the difference of the values at both ends. f is continuous, so the derivatives are

    d/dm E f = E f',      d/ds E f = E z f'

from the same numbers.

Source: a generalisation of E min(|x|, l) under a normal density.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.trace.forms.pieces import Pieces

#: Exponents of the density, at least: denormal numbers take long.
LEAST = -80.0


def expected_pieces(pieces: Pieces, mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E f and its derivatives by mean and standard deviation, ``[*batch, E]`` each.

    Args:
        mean, sd: ``[*batch, E]`` of the number that each factor is a function of.
    """
    shape = (-1, *(1,) * (mean.dim() - 1), mean.shape[-1])
    z = (pieces.kinks.view(shape) - mean) / sd  # [K, *batch, E]
    density = torch.exp((-0.5 * z.square()).clamp_min(LEAST)) / math.sqrt(2 * math.pi)
    mass = _steps(0.5 * (1 + torch.erf(z / math.sqrt(2))), 1.0)  # [K + 1, *batch, E]
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
    return total - sd * tilt + sd.square() * curve, by_mean, 2 * sd * curve - tilt


def _steps(at_kinks: Tensor, last: float) -> Tensor:
    """Differences over the stretches of what is 0 at minus infinity and ``last`` at infinity."""
    zero = torch.zeros_like(at_kinks[:1])
    return torch.diff(at_kinks, dim=0, prepend=zero, append=zero + last)
