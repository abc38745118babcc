"""Rules of boxes: Gauss-Legendre points along every axis, and what they say of a function.

    int f  ~  volume sum_q w_q f(low + edge x_q),        x_q in [0, 1]^r

How far the values along an axis are from those of a polynomial is seen from the last two
coefficients of their sum of Legendre polynomials,

    c_n = (n + 1/2) sum_q w_q f(x_q) P_n(x_q)

Source: Gauss-Legendre quadrature, Abramowitz & Stegun (1964), section 25.4.29.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from pyrograph.infer.message_passing.densities.checked import NOTHING

#: Points per dimension, by dimension.
RULE = {2: 6, 3: 4}
#: Nats by which zeros count as lower than the highest point of a box.
LOWER = 1e3
#: How many times what is lost to a neighbour a ridge between points may be higher: the foot of one
#: that stands on a hill is not seen.
STEEPER = 3.0


def points(low: Tensor, edge: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Points ``[m, q, D, E, r]`` of the rules of some boxes, and log volumes ``[m, q, D, E]``."""
    dim = low.shape[-1]
    node, log_weight = _legendre(dim)
    node, log_weight = node.to(low)[:, None, None], log_weight.to(low)[:, None, None]
    boxes = max(1, size // len(node))
    for corner, width in zip(low.split(boxes), edge.split(boxes), strict=True):
        volume = torch.where(is_there(width), width.log().sum(-1), NOTHING)
        yield corner[:, None] + width[:, None] * node, volume[:, None] + log_weight


def is_there(edge: Tensor) -> Tensor:
    """``[M, D, E]``: not a box that stands in."""
    return edge[..., 0] > 0


def _legendre(dim: int) -> tuple[Tensor, Tensor]:
    """Nodes ``[q, r]`` on the unit cube, logs of their weights ``[q]``."""
    x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(RULE[dim]))
    nodes = torch.cartesian_prod(*[(x + 1) / 2] * dim)
    return nodes, torch.cartesian_prod(*[(w / 2).log()] * dim).sum(-1)


def _last_coefficients(dim: int) -> Tensor:
    """``[2, RULE]``: of values at the rule's nodes along an axis, the contributions to the last two
    coefficients of a sum of Legendre polynomials."""
    x, w = np.polynomial.legendre.leggauss(RULE[dim])
    orders = np.arange(RULE[dim] - 2, RULE[dim])
    values = np.polynomial.legendre.legvander(x, RULE[dim] - 1)[:, orders]
    return torch.from_numpy((values * w[:, None] * (orders + 0.5)).T.copy())


def roughness(value: Tensor, top: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """Along every axis, of log values ``[m, q, D, E]`` whose highest is ``top [m, D, E]``: the nats
    by which they vary, on average, and how far their exponentials are from being polynomials;
    ``[m, D, E, r]`` both."""
    dim = low.shape[-1]
    last = _last_coefficients(dim).to(low)
    value = value - top[:, None]
    share = value.exp()
    value = torch.where(value < NOTHING / 2, -LOWER, value)
    ranges, tails = [], []
    for j in range(dim):
        parts = RULE[dim] ** j, RULE[dim], RULE[dim] ** (dim - 1 - j)
        lines = value.unflatten(1, parts)
        ranges.append((lines.amax(2) - lines.amin(2)).mean((1, 2)))
        ends = torch.einsum("cq,mpqs...->mcps...", last, share.unflatten(1, parts))
        tails.append(ends.abs().sum((1, 2, 3)))
    return torch.stack(ranges, -1), torch.stack(tails, -1)


def between(value: Tensor, dim: int) -> Tensor:
    """What log values ``[m, q, D, E]`` may be between their points, ``[m, D, E]``: a ridge that
    passes between two of these is higher than one of them by no more than what is lost from there
    to a neighbour, on its way down, or :data:`STEEPER` times that."""
    value = value.clamp_min(NOTHING)
    most = []
    for j in range(dim):
        lines = value.unflatten(1, (RULE[dim] ** j, RULE[dim], RULE[dim] ** (dim - 1 - j)))
        steps = lines.diff(dim=2).abs()
        none = torch.zeros_like(lines[:, :, :1])
        to_last, to_next = torch.cat([none, steps], 2), torch.cat([steps, none], 2)
        most.append((lines + STEEPER * to_last.maximum(to_next)).amax((1, 2, 3)))
    return torch.stack(most).amax(0)
