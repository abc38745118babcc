"""Moments of tilted distributions, f(u)^alpha g(u), on points that are given, and on grids that are
moved to where the weight is; and whether those on other points are the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import LOG_2PI, apply
from pyrograph.errors import NonFiniteDensity
from pyrograph.graph.devices import at_once
from pyrograph.infer.message_passing.densities.checked import CheckedDensity
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.quadrature.boxes import Boxes
from pyrograph.infer.message_passing.quadrature.grids import Grid, is_concave, laid_over
from pyrograph.infer.message_passing.quadrature.sums import (
    Sums,
    Surroundings,
    Tilted,
    Weighed,
    summed,
    together,
)
from pyrograph.quadrature import gauss_hermite

#: Grids are moved again while fewer points than this carry the weight, at most so many times.
FEW_POINTS, MAX_MOVES = 4.0, 12
#: A grid shrinks to no less than this share of its variance at once.
SHRINK = 0.05
#: In one dimension a grid whose mean is farther out than this share of its points is followed by
#: one so many times as wide: a peak may lie thousands of deviations beyond its edge, as that of a
#: Poisson factor of a large count does from a cavity that other counts make.
EDGE, GROWTH = 0.8, 4.0
#: Numbers that a step of the factors' programs may compute for all points of a grid.
COMPUTED = 2**27
#: Numbers of the points that are weighed at once: arrays that fit a processor's cache.
PIECE = 2**16
#: Points of a piece that are worth the calls, and the numbers that they may then be.
SHORTEST, LARGEST = 64, 2**18
#: Sums over pieces that are kept apart: of many factors a piece has few points, and all sums
#: together would be as many numbers as the points.
KEPT = 16
#: Functions whose log falls by less over a standard deviation of the grid count as flat; and how
#: often the distance is doubled at which what they leave to the factor is looked for.
FLAT, DOUBLINGS = 1e-6, 40

#: Shares of mass and second moment that a scan may miss and count as sure.
SURE = 0.01

#: Points ``[N, D, E, r]`` of a grid, and the logs of the volumes they stand for ``[N, D, E]``; or
#: the same for all factors.
Points = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Agreement:
    """What few points and a scan may differ by, and what the scan may cost.

    Attributes:
        mass: of log masses; moments: of means, in standard deviations, and of variances, relative.
        enough: see :func:`lay`; numbers: of the points of all factors.
    """

    mass: float
    moments: float
    enough: float
    numbers: int


class MomentsOnPoints:
    """Moments for a set of like factors.

    Args:
        local: their density in effective coordinates.
        alpha: ``[E]``, not 0.
        dim: of the grid; num_points: per dimension, of the few Gauss-Hermite points.
    """

    def __init__(self, local: LocalDensity, alpha: Tensor, dim: int, num_points: int):
        self.local, self.alpha, self.dim = local, alpha, dim
        self.density = CheckedDensity(local)
        self._num_points = num_points
        self._has_negative = bool((alpha < 0).any())

    @cached_property
    def _few(self) -> Points:
        return self._tensor_grid(self._num_points)

    def _tensor_grid(self, num_points: int) -> Points:
        like = self.local.like
        z, w = gauss_hermite(num_points, self.dim, like.dtype, like.device)
        volume = w.log() + 0.5 * z.square().sum(1) + 0.5 * self.dim * LOG_2PI
        return z[:, None, None], volume[:, None, None]

    def use_alpha(self, alpha: Tensor) -> None:
        """Go on with other alphas ``[E]``, of the same signs."""
        self.alpha = alpha

    def _points_in(self, numbers: int) -> int:
        """Points of all factors in all states for which so many numbers are read, and no more than
        :data:`COMPUTED` computed in one step."""
        each = self.local.num_states * self._evaluations
        read = each * self.local.num_factors * sum(self.local.read_widths)
        computed = each * self.local.program.num_widest
        return min(numbers // max(1, read), COMPUTED // max(1, computed))

    def _moved_over(self, g: Surroundings, origin: Tensor, grid: Grid, points: Points) -> Tilted:
        found = self._on(g, origin, grid, points)
        for _ in range(MAX_MOVES - 1):
            if not found.has_few:
                break
            try:
                found = self._on(g, origin, found.grid, points)
            except NonFiniteDensity:  # a wider grid may reach where f is no number
                break
        return found

    def _on(self, g: Surroundings, origin: Tensor, grid: Grid, points: Points | Boxes) -> Tilted:
        sums = self._weighed(g, origin, grid, points)
        self.density.refuse_nothing(sums.is_nothing, origin)
        with torch.no_grad():
            few = 1 / sums.squares < FEW_POINTS
            floor = SHRINK * grid.root @ grid.root.mT
            mean, covariance = self._on_grid(sums.mean, sums.covariance)
            if self.dim > 1:  # few along an axis, though not altogether
                width = grid.root.square().sum(-1)
                few = few | (covariance.diagonal(dim1=-2, dim2=-1) < SHRINK * width).any(-1)
            root, info = torch.linalg.cholesky_ex(covariance + floor * few[..., None, None])
            at_edge = torch.zeros_like(few)
            if self.dim == 1:
                off = (mean - grid.mean) / grid.root[..., 0]
                at_edge = off.abs().squeeze(-1) > EDGE * points[0].abs().amax()
                root = torch.where(at_edge[..., None, None], GROWTH * grid.root, root)
            keep = (info != 0)[..., None]
            peak = Grid(
                torch.where(keep, grid.mean, mean).detach(),
                torch.where(keep[..., None], grid.root, root).detach(),
            )
            there = peak
            if sums.reach is not None:
                there = laid_over(sums.reach, grid, peak, few, len(points[0]))
                there = Grid(
                    torch.where(at_edge[..., None], peak.mean, there.mean),
                    torch.where(at_edge[..., None, None], peak.root, there.root),
                )
            has_few = bool((few | at_edge).any())
        moments = sums.log_mass, sums.mean, sums.covariance, sums.expected
        return Tilted(*moments, there, peak, has_few, sums.half)

    def _weighed(self, g: Surroundings, origin: Tensor, grid: Grid, points: Points | Boxes) -> Sums:
        """Sums over all points, some at a time."""
        even = self.dim == 1 and points is not self._few
        found: list[Sums] = []
        for z, volume in _pieces(points, self._piece(grid)):
            if len(found) == KEPT:
                found = [together(found)]
            found.append(summed(self._weights(g, origin, grid, z), g, z, volume, even))
        return together(found)

    @torch.no_grad()
    def _widened(self, g: Gaussian, origin: Tensor, first: Grid) -> Grid:
        """Where g is flat the grid is laid over nothing but a guess: wide enough to reach where
        f is largest at points that double their distance."""
        flat = g.precision[..., 0, 0] * first.root[..., 0, 0].square() < FLAT
        if not bool(flat.any()):
            return first
        steps = 2.0 ** torch.arange(DOUBLINGS, device=first.mean.device, dtype=first.mean.dtype)
        z = torch.cat([torch.zeros_like(steps[:1]), steps, -steps]).view(-1, 1, 1, 1)
        u = first.mean + first.root[..., 0] * z
        try:
            value = self.alpha * self.density(u) + g.log_value(u - origin)
        except NonFiniteDensity:  # f may be no number so far out
            return first
        reach = z.abs()[value.argmax(0), 0, 0, 0]  # [D, E]
        wide = torch.where(flat, reach.clamp_min(1), 1.0)[..., None, None]
        return Grid(first.mean, first.root * wide)

    def _is_concave(self, grid: Grid, points: Points) -> bool:
        """Whether log f is known to be concave at evenly spaced points of a grid: not of numbers
        that are integrated in closed form."""
        if self.dim < self.local.dim:
            return False
        before = None
        for z, _ in _pieces(points, self._piece(grid)):
            log_f = self.density(grid.mean + apply(grid.root, z), grid.mean).detach()
            log_f = log_f if before is None else torch.cat([before, log_f])
            if not bool(is_concave(log_f)):
                return False
            before = log_f[-2:]
        return True

    def _piece(self, grid: Grid) -> int:
        """Points that are weighed at once: an even number, so that pieces begin with the same
        half."""
        numbers = grid.mean[..., 0].numel() * self.local.dim * self._evaluations
        most, largest = (at_once(n, grid.mean.device) // max(1, numbers) for n in (PIECE, LARGEST))
        return max(2, most, min(SHORTEST, largest)) // 2 * 2

    #: How often f is evaluated for a point.
    _evaluations = 1

    def _differ(
        self, found: Tilted, scan: Tilted, within: Agreement, unsure: Tensor | float = 0.0
    ) -> bool:
        """Whether moments on few points are not those of the scan, whose masses are off by less
        than ``unsure [D, E]``."""
        off = (found.log_mass - scan.log_mass).abs()
        is_sure = (scan.half - 1).abs().amax(0) < SURE
        moved = self._moments_apart(found, scan, within.moments)
        return bool(((off > within.mass) & (off > unsure) | (is_sure & moved)).any())

    def _moments_apart(self, found: Tilted, other: Tilted, within: float) -> Tensor:
        """``[D, E]`` whether means or variances on a grid differ by more than this."""
        mean, covariance = self._on_grid(found.mean, found.covariance)
        expected, width = self._on_grid(other.mean, other.covariance)
        variance, width = (m.diagonal(dim1=-2, dim2=-1) for m in (covariance, width))
        spread = (variance / width - 1).abs() > within
        return (spread | ((mean - expected).square() > within**2 * width)).any(-1)

    def _on_grid(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of u's numbers that the grid is laid over."""
        return mean, covariance

    def _weights(self, g: Surroundings, origin: Tensor, grid: Grid, z: Tensor) -> Weighed:
        """Of points ``[N, D, E, r]`` of a grid."""
        u = grid.mean + apply(grid.root, z)
        value = self.density(u, grid.mean)
        if self._has_negative:
            self.density.refuse_zeros(value, u, self.alpha, grid.mean)
        log_weight = self.alpha * value + g.log_value(u - origin) + grid.log_volume
        return Weighed(u, log_weight, value)


def _pieces(points: Points | Boxes, size: int) -> Iterator[Points]:
    """Some of the points at a time."""
    if isinstance(points, Boxes):
        return points.pieces(size)
    return zip(*(part.split(size) for part in points), strict=True)
