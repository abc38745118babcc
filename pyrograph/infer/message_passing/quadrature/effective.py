"""Cavities of several nodes as functions of the combinations u = A v that a factor reads.

For a Gaussian function n(v), the product of the cavities,

    int n(v) dv given A v = u   =   exp(c) g(u),         v | u ~ N(v_0 + K u, R)

so that moments of v under f(u)^alpha n(v) follow from those of u under f^alpha g,

    E v = v_0 + K E u,      Cov v = R + K (Cov u) K'

With a proper n, of covariance C, g is N(A E v, A C A') up to a factor, and

    K = C A' (A C A')^-1,      R = C - K A C

A node that nothing else speaks of has a flat cavity: a value that was not observed, or is still to
come. Then n has no mass, but with rows B that complete those of A to an orthonormal basis, P the
precision of n and h its shift,

    g = exp(-u' (P_AA - P_AB P_BB^-1 P_BA) u / 2 + (h_A - P_AB P_BB^-1 h_B)' u),    P_AB = A P B'
    K = A' - B' P_BB^-1 P_BA,     v_0 = B' P_BB^-1 h_B,     R = B' P_BB^-1 B

as long as P_BB is positive definite: what the factor does not read is held by the others. If f is
the density of that node given the others its message to these is constant, as it must be.

All are about points of expansion, of which numbers far from zero lose no digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import apply, block_diagonal, inverse, stacked, times_blocks
from pyrograph.beliefs.natural import where

#: Rounding of a precision, in units of the dtype's.
SLACK = 100.0


@dataclass(frozen=True)
class Effective:
    """What the cavities of factors make of u, and of v given u.

    Shapes:
        g: batch ``[D, E]``, dimension r; log_rest: ``[D, E]``, c.
        start: ``[D, E, R]``, v_0; gain: ``[D, E, R, r]``, K.
        around, taken: ``[D, E, R, R]`` and ``[D, E, r, r]``, with R = around - K taken K'.
    """

    g: Gaussian
    log_rest: Tensor
    start: Tensor
    gain: Tensor
    around: Tensor
    taken: Tensor

    def moments(self, mean: Tensor, covariance: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """Mean ``[D, E, r_i]`` and covariance of a part of v, from those of u."""
        gain = self.gain[..., part, :]
        there = self.start[..., part] + apply(gain, mean)
        return there, self.around[..., part, part] + gain @ (covariance - self.taken) @ gain.mT


class Rest:
    """What factors do not read.

    Args:
        joint: ``[D, E, r, R]``, A, with orthonormal rows.
        takes_flat: whether flat cavities may be used at all.
    """

    def __init__(self, joint: Tensor, takes_flat: bool = True):
        self.joint, self.takes_flat = joint, takes_flat

    @cached_property
    def basis(self) -> Tensor:
        """B, ``[D, E, R - r, R]``: rows that complete those of A."""
        return torch.linalg.qr(self.joint.mT, mode="complete").Q[..., self.joint.shape[-2] :].mT

    def sorted(self, cavities: list[Gaussian]) -> tuple[Tensor, Tensor]:
        """``[E]`` which factors may use their cavities, and which of these have flat ones, or so
        nearly that their covariances would leave no digits of the others'."""
        proper = torch.stack([c.is_proper for c in cavities]).all(0)
        if not self.takes_flat:
            return proper, torch.zeros_like(proper)
        size = torch.stack([c.precision.abs().amax((1, 2)) for c in cavities]).amax(0)
        eps = torch.finfo(size.dtype).eps
        slack = SLACK * eps * size
        nearly = [c.is_nearly_proper | _lowered(c, -slack).is_proper for c in cavities]
        nearly = torch.stack(nearly).all(0)
        steep = torch.stack([_lowered(c, eps**0.5 * size).is_proper for c in cavities]).all(0)
        flat = nearly & ~steep
        rows = flat.nonzero().squeeze(1)
        if len(rows):
            basis = self.basis[:, rows]
            inner = Gaussian(basis @ stacked(cavities).precision[rows] @ basis.mT, basis[..., 0])
            held = _lowered(inner, slack[rows]).is_proper.all(0)
            flat = flat.index_copy(0, rows, held)
        return proper | flat, flat


def _lowered(g: Gaussian, by: Tensor) -> Gaussian:
    eye = torch.eye(g.d, dtype=by.dtype, device=by.device)
    return Gaussian(g.precision - by[..., None, None] * eye, g.shift)


def effective(rest: Rest, cavities: list[Gaussian], flat: Tensor) -> Effective:
    """Of cavities in v, batch ``[E]``, about points of expansion.

    Args:
        flat: ``[E]`` which factors have flat ones, see :meth:`Rest.sorted`.
    """
    joint, rows = rest.joint, flat.nonzero().squeeze(1)
    if not len(rows):
        return _of_proper(joint, cavities)
    found = _of_proper(joint, [where(flat, standard_normal(c), c) for c in cavities])
    others = _of_flat(joint[:, rows], rest.basis[:, rows], stacked(cavities)[rows])

    def put(all_of_them: Tensor, some: Tensor) -> Tensor:
        return all_of_them.index_copy(1, rows, some)

    return Effective(
        found.g.mapped(put, others.g),
        put(found.log_rest, others.log_rest),
        put(found.start, others.start),
        put(found.gain, others.gain),
        put(found.around, others.around),
        put(found.taken, others.taken),
    )


def _of_proper(joint: Tensor, cavities: list[Gaussian]) -> Effective:
    mean = torch.cat([c.mean for c in cavities], 1)
    own = [c.covariance for c in cavities]
    across = times_blocks(joint, own)  # [D, E, r, R]: of K components K^2 numbers, not K^3
    centre, taken = apply(joint, mean), across @ joint.mT
    g = Gaussian.from_moments(centre, taken)
    gain = across.mT @ g.precision
    log_rest = sum(c.log_mass for c in cavities) - g.log_mass
    around = block_diagonal(own)
    around = around.expand(len(joint), *around.shape)
    return Effective(g, log_rest, mean - apply(gain, centre), gain, around, taken)


def _of_flat(joint: Tensor, rest: Tensor, whole: Gaussian) -> Effective:
    across = joint @ whole.precision @ rest.mT  # [D, E, r, R - r]
    inner = Gaussian(rest @ whole.precision @ rest.mT, apply(rest, whole.shift))
    share = across @ inverse(inner.precision)
    g = Gaussian(
        joint @ whole.precision @ joint.mT - share @ across.mT,
        apply(joint, whole.shift) - apply(share, inner.shift),
    )
    start = apply(rest.mT, inner.mean)
    gain = joint.mT - rest.mT @ share.mT
    around = rest.mT @ inner.covariance @ rest
    return Effective(g, inner.log_mass, start, gain, around, torch.zeros_like(g.precision))


def standard_normal(like: Gaussian) -> Gaussian:
    """N(0, I) of the same batch."""
    eye = torch.eye(like.d, dtype=like.shift.dtype, device=like.shift.device)
    return Gaussian(eye.expand_as(like.precision), torch.zeros_like(like.shift))
