"""Sums over the points of a grid: masses and moments of tilted distributions f(u)^alpha g(u).

    w_k = f(u_k)^alpha g(u_k) dV_k,     mass = sum_k w_k,     E u = sum_k w_k u_k / mass, ...

in logarithms, and of the points some at a time, put together afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate, Gaussian, Natural
from pyrograph.infer.message_passing.densities.checked import NOTHING
from pyrograph.infer.message_passing.quadrature.grids import (
    Grid,
    every_second,
    reached,
    reached_together,
)


@dataclass(frozen=True)
class Product:
    """A product of functions of different numbers, some of them gamma or beta ones.

    Attributes:
        parts: functions of batch ``[E]``; slices: the numbers of u that each one is about.
    """

    parts: list[Natural]
    slices: list[slice]

    def log_value(self, u: Tensor) -> Tensor:
        """``[*batch, E]`` of ``u [*batch, E, r]``."""
        return sum(p.log_value(u[..., s]) for p, s in zip(self.parts, self.slices, strict=True))

    def statistics(self, u: Tensor) -> Tensor:
        """Of the gamma and beta parts, two each: ``[*batch, E, 2 m]``."""
        both = zip(self.parts, self.slices, strict=True)
        return torch.cat([p.statistics(u[..., s]) for p, s in both if isinstance(p, Conjugate)], -1)


Surroundings = Gaussian | Product


@dataclass(frozen=True)
class Tilted:
    """Log mass ``[D, E]`` of f^alpha g (g not normalised), mean ``[D, E, r]``, covariance
    ``[D, E, r, r]``, expectations of g's statistics ``[D, E, k]``, the grid for the next time, the
    one laid over the moments, whether too few points carried the weight, and, of evenly spaced ones
    and of boxes, what part of the mass and of the second moment fewer points find,
    ``[2, D, E]``."""

    log_mass: Tensor
    mean: Tensor
    covariance: Tensor
    expected: Tensor
    grid: Grid
    peak: Grid
    has_few: bool
    half: Tensor | None


@dataclass(frozen=True)
class Weighed:
    """Points of a grid, and what they weigh but for the volumes they stand for.

    Shapes:
        u: ``[N, D, E, r]``; log_weight: ``[N, D, E]``; log_f: ``[N, D, E]``, zeros as NOTHING.
        around: ``[N, D, E, s, s]``, the covariance of numbers that are integrated in closed form,
            of u less its point in units of ``place [D, E, r, s]``. None if there are none.
    """

    u: Tensor
    log_weight: Tensor
    log_f: Tensor
    around: Tensor | None = None
    place: Tensor | None = None

    @property
    def is_zero(self) -> Tensor:
        """``[N, D, E]``."""
        return self.log_f <= NOTHING


@dataclass(frozen=True)
class Sums:
    """Of :class:`Tilted`, over some points; and sums of squared weights ``[D, E]``, ``[E]``
    whether a factor is zero at all of these points, and of evenly spaced ones the first and the
    last z that count, ``[2, D, E]``, and what :func:`.every_second` finds, ``[3, D, E]``."""

    log_mass: Tensor
    mean: Tensor
    covariance: Tensor
    expected: Tensor
    squares: Tensor
    is_nothing: Tensor
    reach: Tensor | None
    seconds: Tensor | None

    @property
    def half(self) -> Tensor | None:
        """Mass and second moment on every second point, as shares of those on all,
        ``[2, D, E]``: near 1 where there are enough points."""
        if self.seconds is None:
            return None
        mass, square, whole = self.seconds
        return torch.stack([mass, square / whole])


def summed(points: Weighed, g: Surroundings, z: Tensor, volume: Tensor, even: bool) -> Sums:
    """Over points of logs of volumes ``[N, D, E]``.

    Args:
        z: where they lie on the grid, ``[N, D, E, r]``; even: whether evenly spaced.
    """
    u, is_zero = points.u, points.is_zero
    # of points that only stand in the sum may be less than nothing
    log_w = (points.log_weight + volume).masked_fill(is_zero, NOTHING).clamp_min(NOTHING)
    peak = log_w.detach().amax(0)
    weight = (log_w - peak).exp()
    mass = weight.sum(0)
    share, log_mass = weight / mass, peak + mass.log()
    mean = (share[..., None] * u).sum(0)
    off = u - mean
    if off.shape[-1] == 1:  # a third of the time of the contraction
        covariance = (share[..., None] * off * off).sum(0).unsqueeze(-1)
    else:
        covariance = torch.einsum("nde,nder,ndes->ders", share, off, off)
    if points.around is not None:
        around = (share[..., None, None] * points.around).sum(0)
        covariance = covariance + points.place @ around @ points.place.mT
    return Sums(
        log_mass,
        mean,
        covariance,
        (share[..., None] * g.statistics(u)).sum(0) if isinstance(g, Product) else mean,
        share.square().sum(0),
        is_zero.flatten(0, 1).all(0),
        reached(share, z) if even else None,
        every_second(share, z) if even else None,
    )


def together(pieces: list[Sums]) -> Sums:
    """Sums over the points of all pieces."""
    if len(pieces) == 1:
        return pieces[0]
    log_mass = torch.stack([p.log_mass for p in pieces]).logsumexp(0)
    share = [(p.log_mass - log_mass).exp()[..., None] for p in pieces]
    both = list(zip(share, pieces, strict=True))
    mean = sum(s * p.mean for s, p in both)
    off = [p.mean - mean for p in pieces]
    reach = seconds = None
    if pieces[0].reach is not None:
        reach = reached_together([s[..., 0] for s in share], [p.reach for p in pieces])
        seconds = sum(s[..., 0] * p.seconds for s, p in both)
    return Sums(
        log_mass,
        mean,
        sum(
            s[..., None] * (p.covariance + o[..., :, None] * o[..., None, :])
            for (s, p), o in zip(both, off, strict=True)
        ),
        sum(s * p.expected for s, p in both),
        sum(s[..., 0].square() * p.squares for s, p in both),
        torch.stack([p.is_nothing for p in pieces]).all(0),
        reach,
        seconds,
    )
