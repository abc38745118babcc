"""Ratios of the densities of a mixture's components, at points of every component.

    r_l[n, m] = b_m(x_ln) / b_l(x_ln),          x_ln = mean_l + scale_l z_n,     m != l

where m is one of the M = L - 1 others (:func:`.components.others`). For independent numbers, with
shift a = (mean_l - mean_m) / scale_m and stretch b = scale_l / scale_m,

    log r = sum_d ( log b_d + z_d^2 / 2 - (a_d + b_d z_d)^2 / 2 )

whose derivatives need three sums over the points only, of h = r (d F / d r) times 1, z, z^2:

    d F / d a = - sum_n h (a + b z),      d F / d b = sum_n h / b - sum_n h z (a + b z)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from pyrograph.beliefs.gaussian import apply
from pyrograph.infer.qbethe.components import others
from pyrograph.infer.qbethe.first_order import first_order

#: Largest log ratio of a node: products of some do not overflow. So large ones come at points
#: without weight.
LARGEST = 40.0
#: Smallest, which is nothing beside any weight: exponentials that underflow take ten times as long.
LEAST = -80.0


def bounded(log_ratio: Tensor) -> Tensor:
    """Ratios of which products do not overflow."""
    return log_ratio.clamp(LEAST, LARGEST).exp()


class IndependentRatios(torch.autograd.Function):
    """``[B, L, N, M, V]``, of which products do not overflow.

    Shapes:
        mean, scale: ``[B, L, V, d]``, of independent numbers.
        z: ``[N, d]``.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, mean: Tensor, scale: Tensor, z: Tensor) -> Tensor:
        shift, stretch, inverse = _relative(mean, scale)
        gain = stretch.log().sum(0)  # [B, L, M, V]
        half = 0.5 * z.square().sum(1)
        ratio = gain.unsqueeze(2) + half[:, None, None]
        for a, b, at in zip(shift, stretch, z.unbind(1), strict=True):
            off = torch.addcmul(a.unsqueeze(2), b.unsqueeze(2), at[:, None, None])
            ratio.addcmul_(off, off, value=-0.5)
        ctx.is_cut = bool(gain.amax() + half.amax() > LARGEST)
        ratio.clamp_(LEAST, LARGEST).exp_()
        ctx.save_for_backward(shift, stretch, inverse, z, ratio)
        return ratio

    @staticmethod
    @first_order
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        shift, stretch, inverse, z, ratio = ctx.saved_tensors
        h = grad * ratio
        if ctx.is_cut:
            h.masked_fill_(ratio > 0.999 * math.exp(LARGEST), 0.0)
        powers = torch.cat([torch.ones_like(z[:, :1]), z, z.square()], 1).t()
        sums = (powers @ h.flatten(3)).unflatten(3, ratio.shape[3:])  # [B, L, 1 + 2 d, M, V]
        none, first, second = sums.split([1, z.shape[1], z.shape[1]], 2)
        none, first, second = none.movedim(2, 0), first.movedim(2, 0), second.movedim(2, 0)
        by_shift = -torch.addcmul(shift * none, stretch, first)
        by_stretch = none / stretch - torch.addcmul(shift * first, stretch, second)
        part = by_shift * inverse
        by_mean = part.sum(3) - _as_others(part)
        other = torch.addcmul(by_shift * shift, by_stretch, stretch).mul_(inverse)
        by_scale = (by_stretch * inverse).sum(3) - _as_others(other)
        return by_mean.movedim(0, -1), by_scale.movedim(0, -1), None


def _relative(mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shift, stretch and 1 / scale of the others, ``[d, B, L, M, V]``."""
    mean, scale = mean.movedim(-1, 0), scale.movedim(-1, 0)
    index = others(mean.shape[2], mean.device)[0]
    inverse = _of_others(scale.reciprocal(), index)
    shift = (mean.unsqueeze(3) - _of_others(mean, index)).mul_(inverse)
    return shift, scale.unsqueeze(3) * inverse, inverse


def _of_others(value: Tensor, index: Tensor) -> Tensor:
    """``[d, B, L, M, V]`` of ``[d, B, L, V]``."""
    return value.index_select(2, index.flatten()).unflatten(2, index.shape)


def _as_others(value: Tensor) -> Tensor:
    """What every component gets as another, ``[d, B, L, V]`` of ``[d, B, L, M, V]``."""
    index = others(value.shape[2], value.device)[1]
    total = value[:, :, :, 0].index_select(2, index[:, 0])
    for column in range(1, value.shape[3]):
        total += value[:, :, :, column].index_select(2, index[:, column])
    return total


def normal_log_ratio(mean: Tensor, root: Tensor, z: Tensor) -> Tensor:
    """log N_m / N_l of the others, ``[B, L, N, M, S]``, at the points ``z [N, d]`` of every
    component l."""
    index = others(mean.shape[1], mean.device)[0]
    x = mean.unsqueeze(2) + apply(root.unsqueeze(2), z[:, None, :])
    eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device).expand_as(root)
    inverse = torch.linalg.solve_triangular(root, eye, upper=False)
    off = apply(inverse[:, index].unsqueeze(2), x.unsqueeze(3) - mean[:, index].unsqueeze(2))
    log_det = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    ratio = -0.5 * off.square().sum(-1) + 0.5 * z.square().sum(1)[:, None, None]
    return ratio + log_det[:, :, None, None] - log_det[:, index].unsqueeze(2)


def ratio_at_drawn_states(log_p: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """p_m / p_l of the others, ``[B, L, N, M, S]``, at states drawn from every component l by
    normal points, and weights ``[B, L, N, S]``, ones with the derivative of log p_l."""
    log_p = log_p.transpose(2, 3)  # [B, L, c, S]
    with torch.no_grad():
        ends = log_p.exp().cumsum(2)[:, :, :-1].unsqueeze(2)  # [B, L, 1, c - 1, S]
        state = (torch.special.ndtr(z)[:, None, None] > ends).sum(3)  # [B, L, N, S]
    own = log_p.gather(2, state)
    in_states = ratio_in_states(log_p)
    index = state.unsqueeze(3).expand(-1, -1, -1, in_states.shape[3], -1)
    return in_states.gather(2, index), (own - own.detach()).exp()


def ratio_in_states(log_p: Tensor) -> Tensor:
    """p_m / p_l of the others in every state, ``[B, L, c, M, S]`` of ``[B, L, c, S]``."""
    theirs = log_p[:, others(log_p.shape[1], log_p.device)[0]].transpose(2, 3)
    return bounded(theirs - log_p.unsqueeze(3))
