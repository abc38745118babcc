"""The expectation of log sigmoid(x) under x ~ N(m, s^2), to rounding, and its derivatives.

A narrow Gaussian is integrated on Gauss-Hermite points. A wide one falls between them the bend at
0, but there is little of it:

    log sigmoid(x) = min(x, 0) - log(1 + exp(-|x|))

The first is known, m Phi(-m / s) - s phi(m / s), and the second gone from 36 on, so that on either
side of 0 some Gauss-Legendre points have it times a density as wide as that.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pyrograph.quadrature import gauss_hermite

#: Standard deviations from which a Gaussian is wide.
WIDE = 1.0
#: Points for narrow and for wide ones, and where the latter end.
NARROW_POINTS, WIDE_POINTS, END = 32, 48, 36.0
#: The latter's, from -1 to 1, and their weights.
ON_UNIT = np.polynomial.legendre.leggauss(WIDE_POINTS)
#: Numbers evaluated at once.
CHUNK = 2**20


def expected_log_sigmoid(mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E log sigmoid(x), its derivative by the mean and that by the standard deviation.

    Args:
        mean, sd: of one shape, in double precision.
    """
    pieces = [own.reshape(-1).split(CHUNK // WIDE_POINTS) for own in (mean, sd)]
    found = [_expected(m, s) for m, s in zip(*pieces, strict=True)]
    return tuple(torch.cat(own).view(mean.shape) for own in zip(*found, strict=True))


def _expected(mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    is_wide = sd > WIDE
    one = torch.ones_like(sd)  # in the place of others, of which no derivative overflows
    narrow = _of_narrow(mean, torch.where(is_wide, one, sd))
    if not bool(is_wide.any()):
        return narrow
    wide = _of_wide(mean, torch.where(is_wide, sd, one))
    return tuple(torch.where(is_wide, *both) for both in zip(wide, narrow, strict=True))


def _of_narrow(mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z, weight = gauss_hermite(NARROW_POINTS, 1, mean.dtype, mean.device)
    x = mean + z * sd  # [n, M]
    slope = torch.sigmoid(-x)
    return weight @ logsigmoid(x), weight @ slope, (weight * z[:, 0]) @ slope


def _of_wide(mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = (torch.as_tensor(a, device="cpu").to(mean) for a in ON_UNIT)
    x = (x + 1) * (END / 2)
    weight = weight * (END / 2) * torch.log1p((-x).exp())
    x, weight = torch.cat([x, -x]), torch.cat([weight, weight])
    z = (x[:, None] - mean) / sd  # [n, M]
    share = (-0.5 * z.square()).exp() / (sd * math.sqrt(2 * math.pi))
    below = torch.special.ndtr(-mean / sd)
    density = (-0.5 * (mean / sd).square()).exp() / math.sqrt(2 * math.pi)
    return (
        mean * below - sd * density - weight @ share,
        below - weight @ (share * z) / sd,
        -density - weight @ (share * (z.square() - 1)) / sd,
    )
