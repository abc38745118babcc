"""Gaussian functions in natural parameters, many at once.

    g(x) = exp(-x' P x / 2 + h' x),      log int g = h' P^-1 h / 2 - log det P / 2 + d log(2 pi) / 2

The natural parameters are P and h, see :mod:`.natural`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.beliefs.natural import Natural, picked

LOG_2PI = math.log(2 * math.pi)
#: Negative natural parameters that count as zero.
FLAT = 1e-12
#: Dimensions in which sums over numbers are written out.
FEW_NUMBERS = 4


@dataclass(frozen=True)
class Gaussian(Natural):
    """exp(-x' P x / 2 + h' x).

    Shapes:
        precision: ``[*batch, d, d]``, P, symmetric.
        shift: ``[*batch, d]``, h.
    """

    precision: Tensor
    shift: Tensor

    @classmethod
    def flat(cls, batch: tuple[int, ...], d: int, like: Tensor) -> Gaussian:
        """The constant 1."""
        return cls(like.new_zeros(*batch, d, d), like.new_zeros(*batch, d))

    @classmethod
    def from_moments(cls, mean: Tensor, covariance: Tensor) -> Gaussian:
        """Proportional to N(mean, covariance).

        Shapes:
            mean: ``[*batch, d]``; covariance: ``[*batch, d, d]``, positive definite.
        """
        precision = inverse(covariance)
        return cls(precision, apply(precision, mean))

    def __getitem__(self, index) -> Gaussian:
        """Some of the batch, with the moments that are known."""
        found = super().__getitem__(index)
        known = {"covariance", "mean", "is_proper"} & vars(self).keys()
        vars(found).update({name: picked(vars(self)[name], index) for name in known})
        return found

    @property
    def d(self) -> int:
        return self.shift.shape[-1]

    @cached_property
    def _cholesky(self) -> tuple[Tensor, Tensor]:
        if self.d == 1:
            return self.precision.clamp_min(0).sqrt(), self.precision[..., 0, 0] <= 0
        factor, info = torch.linalg.cholesky_ex(self.precision)
        return factor, info != 0

    @cached_property
    def is_proper(self) -> Tensor:
        """``[*batch]``: whether it can be normalised."""
        return ~self._cholesky[1] & self.precision.isfinite().all(-1).all(-1)

    @property
    def is_nearly_proper(self) -> Tensor:
        """``[*batch]``: proper or flat in some directions, up to rounding."""
        size = self.precision.abs().amax((-1, -2)).clamp_min(1)
        eye = torch.eye(self.d, dtype=size.dtype, device=size.device)
        slack = FLAT * size[..., None, None] * eye
        return self.is_proper | Gaussian(self.precision + slack, self.shift).is_proper

    @cached_property
    def covariance(self) -> Tensor:
        """``[*batch, d, d]``; of proper ones only."""
        return self.precision.reciprocal() if self.d == 1 else _cholesky_inverse(*self._cholesky)

    @property
    def variance(self) -> Tensor:
        """``[*batch, d]``: the covariance's diagonal."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    @cached_property
    def mean(self) -> Tensor:
        """``[*batch, d]``; of proper ones only."""
        return apply(self.covariance, self.shift)

    def about(self, point: Tensor) -> Gaussian:
        """g(point + y) / g(point) as a function of y: numbers far from 0 lose no digits in it."""
        found = Gaussian(self.precision, self.shift - apply(self.precision, point))
        if not torch.is_grad_enabled():  # what is of the precision alone is known of both
            known = {"_cholesky", "covariance", "is_proper"} & vars(self).keys()
            vars(found).update({name: vars(self)[name] for name in known})
        return found

    @property
    def log_mass(self) -> Tensor:
        """``[*batch]``: log of the integral; of proper ones only."""
        return 0.5 * (self.shift * self.mean).sum(-1) + self.log_mass_over_peak

    @property
    def log_mass_over_peak(self) -> Tensor:
        """``[*batch]``: log of the integral of g / max g; of proper ones only."""
        half_log_det = self._cholesky[0].diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return 0.5 * self.d * LOG_2PI - half_log_det

    def log_value(self, x: Tensor) -> Tensor:
        """log g(x): ``[*batch]`` of ``x [*batch, d]``."""
        if self.d > FEW_NUMBERS or x.dim() <= self.shift.dim():
            return (x * (self.shift - 0.5 * apply(self.precision, x))).sum(-1)
        # many points of few numbers: a fifth of the time of sums over their last dimension
        numbers, value = x.unbind(-1), x.new_zeros(())
        for i, own in enumerate(numbers):
            slope = torch.addcmul(self.shift[..., i], self.precision[..., i, i], own, value=-0.5)
            for j, other in enumerate(numbers[:i]):
                slope = torch.addcmul(slope, self.precision[..., i, j], other, value=-1)
            value = torch.addcmul(value, slope, own)
        return value


def apply(matrix: Tensor, vector: Tensor) -> Tensor:
    """``[*batch, m, d] @ [*batch, d]``, without a batched product where a plain one will do."""
    if matrix.dim() <= vector.dim():  # one matrix for many vectors, which are then its columns
        return torch.einsum("...ij,...j->...i", matrix, vector)
    if matrix.shape[-1] == 1:
        return matrix[..., 0] * vector
    if matrix.shape[-2] == 1:
        return (matrix[..., 0, :] * vector).sum(-1, keepdim=True)
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def block_diagonal(blocks: list[Tensor]) -> Tensor:
    """``[*batch, sum r, sum d]`` of ``[*batch, r, d]`` each."""
    if len(blocks) == 1:
        return blocks[0]
    total, start, rows = sum(b.shape[-1] for b in blocks), 0, []
    for block in blocks:
        d = block.shape[-1]
        rows.append(torch.nn.functional.pad(block, (start, total - start - d)))
        start += d
    return torch.cat(rows, -2)


def stacked(parts: list[Gaussian]) -> Gaussian:
    """Product of functions of different variables, as one of all."""
    if len(parts) == 1:
        return parts[0]
    precision = block_diagonal([p.precision for p in parts])
    return Gaussian(precision, torch.cat([p.shift for p in parts], 1))


def times_blocks(matrix: Tensor, blocks: list[Tensor]) -> Tensor:
    """``[*batch, m, sum r] @ block_diagonal(blocks)``, without the zeros between blocks."""
    if all(block.shape[-2:] == (1, 1) for block in blocks):
        return matrix * torch.cat([block[..., 0] for block in blocks], -1).unsqueeze(-2)
    parts = matrix.split([block.shape[-2] for block in blocks], -1)
    return torch.cat([part @ block for part, block in zip(parts, blocks, strict=True)], -1)


def inverse(matrix: Tensor) -> Tensor:
    """Of symmetric positive definite ``[*batch, d, d]``; NaN where it is not positive definite."""
    if matrix.shape[-1] == 1:
        return torch.where(matrix > 0, matrix, torch.nan).reciprocal()
    factor, info = torch.linalg.cholesky_ex(matrix)
    return _cholesky_inverse(factor, info != 0)


def _cholesky_inverse(factor: Tensor, failed: Tensor) -> Tensor:
    """NaN where the factorisation failed; LAPACK refuses zeros on a diagonal."""
    failed = failed[..., None, None]
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    value = torch.cholesky_inverse(torch.where(failed, eye, factor))
    return value.masked_fill(failed, torch.nan)
