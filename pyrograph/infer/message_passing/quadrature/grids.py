"""Where quadrature points are laid, and evenly spaced ones over all that counts.

Gauss-Hermite points lie about the moments. Of evenly spaced ones in one dimension a tail or a small
mode far away decides about the variance: they are laid over every point whose share of the mass or
of the variance counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

#: Reach of evenly spaced points in standard deviations.
REACH = 8.0
#: Share of mass or variance that counts; and least share of evenly spaced points that are laid
#: where something counts: a grid stays where it is as long as that holds, since the integrand's
#: edges would jump over moving points for ever.
COUNTS, LEAST = 1e-12, 0.5
#: Error of second differences, in units of the dtype's precision.
ROUNDING = 16.0
#: Deviations, and relative variances, by which grids that are near each other may differ.
NEAR = 0.5


@dataclass(frozen=True)
class Grid:
    """Where points are laid: u = mean + root z.

    Shapes:
        mean: ``[D, E, r]``; root: ``[D, E, r, r]``, lower triangular.
    """

    mean: Tensor
    root: Tensor

    def is_near(self, other: Grid, within: float = NEAR) -> bool:
        """Whether all grids are moved, in deviations, and scaled by little."""
        off = (other.mean - self.mean).unsqueeze(-1)
        moved = torch.linalg.solve_triangular(self.root, off, upper=False)
        scaled = torch.linalg.solve_triangular(self.root, other.root, upper=False)
        eye = torch.eye(self.root.shape[-1], dtype=off.dtype, device=off.device)
        apart = torch.stack([moved.abs().amax(), (scaled @ scaled.mT - eye).abs().amax()])
        return bool(apart.amax() < within)

    @property
    def log_volume(self) -> Tensor:
        """Of the unit cube in z, ``[D, E]``."""
        return self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@torch.no_grad()
def reached(share: Tensor, z: Tensor) -> Tensor:
    """First and last of the points ``z [N, 1, 1, 1]`` that count for mass or variance,
    ``[2, D, E]``, of weights ``[N, D, E]``."""
    z = z.squeeze(-1)
    square = share * (z - (share * z).sum(0)).square()
    counts = (share > COUNTS) | (square > COUNTS * square.sum(0))
    low = torch.where(counts, z, torch.inf).amin(0)
    return torch.stack([low, torch.where(counts, z, -torch.inf).amax(0)])


@torch.no_grad()
def every_second(share: Tensor, z: Tensor) -> Tensor:
    """Mass and second moment on every second of the points ``z [N, 1, 1, 1]``, and the second
    moment on all: ``[3, D, E]``, of weights ``[N, D, E]`` that sum to 1."""
    square = share * z.squeeze(-1).square()
    return torch.stack([2 * share[::2].sum(0), 2 * square[::2].sum(0), square.sum(0)])


@torch.no_grad()
def is_concave(log_f: Tensor) -> Tensor:
    """``[]``: whether log f is concave at evenly spaced points ``[N, D, E]``, but for rounding."""
    rounding = ROUNDING * torch.finfo(log_f.dtype).eps
    bend = (log_f[2:] + log_f[:-2]).sub_(log_f[1:-1], alpha=2)
    return (bend.sub_(log_f[1:-1].abs(), alpha=rounding) <= rounding).all()


def reached_together(share: list[Tensor], reach: list[Tensor]) -> Tensor:
    """The same of all pieces, of these shares ``[D, E]`` of the mass: of those that have any."""
    both = list(zip(share, reach, strict=True))
    low = torch.stack([torch.where(s > COUNTS, r[0], torch.inf) for s, r in both])
    high = torch.stack([torch.where(s > COUNTS, r[1], -torch.inf) for s, r in both])
    return torch.stack([low.amin(0), high.amax(0)])


def laid_over(reach: Tensor, grid: Grid, peak: Grid, few: Tensor, count: int) -> Grid:
    """Where evenly spaced points are laid next, in one dimension: over all that counts. Where they
    are too few for that, over the peak.

    Args:
        reach: see :func:`reached`; few: ``[D, E]`` where few points carry the weight.
        grid: of these points; peak: the one over the moments; count: of the points.
    """
    step = 2 * REACH / (count - 1)
    side = torch.tensor([-1.0, 1.0], dtype=reach.dtype, device=reach.device)[:, None, None]
    at_edge = REACH - side * reach < step / 2
    # what counts at an edge may go on beyond it
    low, high = reach + side * (step + REACH * LEAST * at_edge.to(reach))
    wide = (high - low) / (2 * REACH)  # of the grid's width
    stays = ~few & ~at_edge.any(0) & (wide > LEAST)
    narrows = ~few | (wide < LEAST)
    centre = torch.where(narrows, (low + high) / 2, 0.0)[..., None]
    mean = torch.where(narrows[..., None], grid.mean + grid.root[..., 0] * centre, peak.mean)
    root = torch.where(narrows[..., None, None], grid.root * wide[..., None, None], peak.root)
    return Grid(
        torch.where(stays[..., None], grid.mean, mean),
        torch.where(stays[..., None, None], grid.root, root),
    )


def evenly_spaced(count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Points ``[count, 1, 1, 1]`` over :data:`REACH`, and the log of the length each stands for,
    ``[count, 1, 1]``."""
    z = torch.linspace(-REACH, REACH, count, dtype=like.dtype, device=like.device)
    volume = torch.full_like(z, math.log(2 * REACH / (count - 1)))
    volume[[0, -1]] -= math.log(2)
    return z[:, None, None, None], volume[:, None, None]
