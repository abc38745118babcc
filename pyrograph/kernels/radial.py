"""Radial kernels k(x, y) = f(t), t = ||x - y||^2 / h: values, gradients and mixed derivatives.

With delta = x - y on one coordinate,

    d k / dx        =  (2 / h) f'(t) delta
    d^2 k / dx dy   = -(2 / h) f'(t) - (4 / h^2) f''(t) delta^2

so a kernel is its profile (f, f', f''). Everything a Stein operator needs over all pairs of
particles is then a few products of an ``[n, n]`` profile matrix with ``[rows, n]`` blocks:
no difference of particles is ever formed.

Source: Wang, Zeng & Liu (2018), eq (8) and Theorem 2; Gorham & Mackey (2017) for the IMQ.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.graph.devices import at_once
from pyrograph.kernels.additive import Summable
from pyrograph.kernels.bandwidth import (
    Bandwidth,
    augmented,
    cancels,
    check_bandwidth,
    pairwise_squared,
)
from pyrograph.kernels.protocol import Block, SteinSums

#: Pairs of particles that are held at once.
MAX_PAIRS = 2**22


@dataclass(frozen=True)
class Moments:
    """Sums over l of profile(l, m) times a row. ``[B, w, n]`` but for the last two.

    ``curvature`` ``[B]`` is sum_lm f''(t_lm) ||x_l - x_m||^2 over the own coordinates.
    """

    value_score: Tensor
    slope_own: Tensor
    slope: Tensor
    curvature: Tensor | None


class Radial(Summable, ABC):
    """Base of the radial kernels; a subclass gives :meth:`profile` with f(0) = 1.

    Args:
        bandwidth: ``"median"``, ``"fast"`` or h itself, see :mod:`.bandwidth`.
    """

    num_bandwidths = 1

    def __init__(self, bandwidth: Bandwidth = "median"):
        self.bandwidth = check_bandwidth(bandwidth)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(bandwidth={self.bandwidth!r})"

    @property
    @abstractmethod
    def slope_at_zero(self) -> float:
        """f'(0)."""

    @abstractmethod
    def profile(self, t: Tensor, *, second: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
        """f, f' and, if asked, f'' at ``t`` >= 0, which may be overwritten."""

    def gram(self, x: Tensor, y: Tensor, h: Tensor | float) -> Tensor:
        """k(x_l, y_m) for points ``[n, d]`` and ``[m, d]``: ``[n, m]``."""
        center = y.mean(0).detach()
        x, y = x - center, y - center
        kind, (of_x, of_y) = x.dtype, (x.square().sum(1), y.square().sum(1))
        if bool(cancels(torch.maximum(of_x.amax(), of_y.amax()), h)):
            return self.gram(x.double(), y.double(), h).to(kind)
        squared = (of_x[:, None] + of_y - 2 * x @ y.t()).clamp_min_(0)
        return self.profile(squared.div_(h), second=False)[0]

    def bandwidths(self, block: Block) -> Tensor:
        return block.bandwidth(self.bandwidth)[:, None]

    def moments(self, z: Tensor, block: Block, discrepancy: bool) -> Moments:
        """The sums of :class:`Moments`, for ``z`` ``[B, c, n]`` scopes in units of sqrt(h)."""
        own, width = block.own, block.own.shape[1]
        rows = torch.cat([own, torch.ones_like(own[:, :1])], 1)
        left, right = augmented(z)
        parts = []
        for piece in right.split(columns_at_once(left), 2):
            squared = (left.transpose(1, 2) @ piece).clamp_min_(0)
            f, slope, curvature = self.profile(squared, second=discrepancy)
            of_curvature = [rows @ curvature] if discrepancy else []
            parts.append(torch.cat([block.score @ f, rows @ slope, *of_curvature], 1))
        values, slopes, *curvatures = torch.cat(parts, 2).split(
            [width, width + 1, width + 1] if discrepancy else [width, width + 1], 1
        )
        return Moments(
            value_score=values,
            slope_own=slopes[:, :-1],
            slope=slopes[:, -1:],
            curvature=spread(own, *curvatures) if discrepancy else None,
        )

    def stein(self, block: Block, h: Tensor, *, discrepancy: bool = True) -> SteinSums:
        """Direction and discrepancy of the nodes of a block, see :class:`.protocol.Kernel`."""
        n = block.own.shape[-1]
        h = h[:, :, None]
        sums = self.moments(block.scope * h.rsqrt(), block, discrepancy)
        repulsion = (2 / h) * (sums.slope_own - block.own * sums.slope)
        direction = (sums.value_score + repulsion) / n
        if not discrepancy:
            return SteinSums(direction, None, None)
        one = h[:, 0, 0]
        width = block.own.shape[1]
        mixed = -(2 * width / one) * sums.slope.sum((1, 2)) - 4 * (sums.curvature / one) / one
        attraction = (block.score * (sums.value_score + 2 * repulsion)).sum((1, 2))
        diagonal = block.score.square().sum((1, 2)) - (2 * width * n * self.slope_at_zero) / one
        return SteinSums(direction, attraction + mixed, diagonal)

    def pairs(self, block: Block, h: Tensor) -> Tensor:
        """Stein kernel of every pair of particles, summed over the nodes of a block."""
        one, width = h[:, :, None], block.own.shape[1]
        squared = pairwise_squared(block.scope * one.rsqrt()).clamp_min_(0)
        f, slope, curvature = self.profile(squared)
        score, own = block.score, block.own
        # (s_m - s_l) (x_l - x_m) summed over the own coordinates
        cross = score.transpose(1, 2) @ own
        along = (score * own).sum(1)
        drift = cross + cross.transpose(1, 2) - along[:, :, None] - along[:, None, :]
        apart = pairwise_squared(own).clamp_min_(0)
        terms = (score.transpose(1, 2) @ score) * f + (2 / one) * slope * (drift - width)
        # h of coincident particles is so small that its square underflows
        return (terms - (2 / one) * (2 / one * apart * curvature)).sum(0)


def columns_at_once(rows: Tensor) -> int:
    """Particles of ``rows [B, w, n]`` whose pairs with all n are held at once."""
    count, _, n = rows.shape
    return max(1, at_once(MAX_PAIRS, rows.device) // (count * n))


def spread(own: Tensor, sums: Tensor) -> Tensor:
    """sum_lm w_lm (x_l - x_m)^2 from sums = [x w; 1 w], w symmetric: ``[B]``."""
    return 2 * (own.square() * sums[:, -1:] - own * sums[:, :-1]).sum((1, 2))
