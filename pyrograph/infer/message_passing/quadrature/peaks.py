"""Peaks of a function of two or three numbers, which points of boxes may fall between.

    z_k = 2 Phi^-1(h_k)                 Sobol points h_k, twice as wide as what surrounds a factor
    z <- argmax over z, z +- s d_j      s doubled where that is higher, else quartered

The best points of every slice along every axis climb, in turned axes d_j every time. Nothing is
differentiated, so that edges and kinks do not matter, and no point is taken for a mode: what is
found tells boxes to look there.

Source: compass search (Kolda, Lewis & Torczon 2003, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from pyrograph.infer.message_passing.densities.checked import NOTHING
from pyrograph.infer.message_passing.quadrature.grids import REACH

#: Most points to begin with, and fewest that are worth the search; how many of them are a slice.
MOST, FEWEST, SLICE = 2**12, 2**8, 2**6
#: Deviations of a frame that spans :data:`REACH` in which the points are drawn.
WIDTH = 2.0
#: Steps up, and the length of the first, in units of the points' mean distance.
STEPS, FIRST_STEP = 24, 0.5
#: Part of the room that the search may take, about; and numbers that are compared at once.
PART, AT_ONCE = 16, 2**18

#: Log values ``[N, D, E]`` at points ``[N, D, E, r]``.
LogValue = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Peaks:
    """The highest points that were found, ``[S, D, E, r]``, and the logs of the values there,
    ``[S, D, E]``."""

    z: Tensor
    value: Tensor

    def highest_in(self, low: Tensor, edge: Tensor) -> Tensor:
        """``[M, D, E]``: the log value of the highest peak in boxes ``[M, D, E, r]``, that of
        zeros where there is none."""
        top = low.new_full(low.shape[:-1], NOTHING)
        some = max(1, AT_ONCE // max(1, low.numel()))
        for z, value in zip(self.z.split(some), self.value.split(some), strict=True):
            z = z[:, None]
            inside = ((z >= low) & (z <= low + edge)).all(-1)
            there = torch.where(inside, value[:, None], NOTHING)
            top = there.amax(0).maximum(top)
        return top


def climbed(log_value: LogValue, shape: torch.Size, like: Tensor, room: int) -> Peaks | None:
    """Peaks of functions of ``shape [D, E, r]``; None where there is no room for a search.

    Args:
        room: points of a function, about.
    """
    count = min(MOST, 2 ** int(math.log2(max(1, room // PART))))
    if count < FEWEST:
        return None
    dim = shape[-1]
    z = _spread(count, dim).to(like)[:, None, None].expand(count, *shape)
    value = log_value(z)
    chosen = torch.cat([_best_of_slices(value, z[:, 0, 0, j]) for j in range(dim)])
    value = value.gather(0, chosen)
    z = z.gather(0, chosen[..., None].expand(*chosen.shape, dim))
    step = torch.full_like(value, FIRST_STEP * 2 * WIDTH * count ** (-1 / dim))
    turned = torch.eye(dim, dtype=like.dtype, device=like.device)
    turn = _turn(dim).to(like)
    for _ in range(STEPS):
        ways = torch.cat([turned, -turned])[:, None, None, None]  # [2 r, 1, 1, 1, r]
        there = (z + step[..., None] * ways).clamp(-REACH, REACH)
        best, way = log_value(there.flatten(0, 1)).view(there.shape[:-1]).max(0)
        is_higher = best > value
        at = way[None, ..., None].expand(1, *z.shape)
        z = torch.where(is_higher[..., None], there.gather(0, at)[0], z)
        value = torch.where(is_higher, best, value)
        step = torch.where(is_higher, 2 * step, step / 4)
        turned = turned @ turn
    return Peaks(z, value)


def _best_of_slices(value: Tensor, coordinate: Tensor) -> Tensor:
    """Rows ``[count / SLICE, D, E]`` of the highest of ``value [count, D, E]`` among neighbours
    along an axis, ``coordinate [count]``."""
    order = coordinate.argsort().view(-1, SLICE)
    best = value[order].argmax(1)
    return order.gather(1, best.flatten(1)).view_as(best)


@lru_cache(maxsize=8)
def _spread(count: int, dim: int) -> Tensor:
    inside = SobolEngine(dim, scramble=True, seed=0).draw(count, dtype=torch.float64)
    return (WIDTH * torch.special.ndtri(inside.clamp(1e-12, 1 - 1e-12))).clamp(-REACH, REACH)


@lru_cache(maxsize=2)
def _turn(dim: int) -> Tensor:
    """A rotation that comes back to no axis soon: by the golden angle in every plane in turn."""
    angle = math.pi * (3 - math.sqrt(5))
    out = torch.eye(dim, dtype=torch.float64, device="cpu")
    for i in range(dim - 1):
        plane = torch.eye(dim, dtype=torch.float64, device="cpu")
        plane[i, i] = plane[i + 1, i + 1] = math.cos(angle)
        plane[i, i + 1], plane[i + 1, i] = -math.sin(angle), math.sin(angle)
        out = out @ plane
    return out
