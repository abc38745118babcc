"""Orthonormal bases of what rows span, many at once."""

from __future__ import annotations

import torch
from torch import Tensor

#: Projections of axes whose squared lengths differ by less are as long as each other.
ALIKE = 1e-6


def span(rows: Tensor, rounding: float, most: int) -> Tensor | None:
    """Orthonormal basis of rows, ``[..., r, d]`` of ``[..., m, d]``, where r is the largest rank;
    None if that is d, or ``most`` or more. Columns count in units of their own.

    Args:
        rounding: what of a direction is rounding.
    """
    rows = directions(rows)
    unit = or_one(rows.abs().amax(-2, keepdim=True))
    _, size, right = torch.linalg.svd(directions(rows / unit), full_matrices=False)
    rank = int(_ranks(size, rounding).max())
    if rank >= min(most, rows.shape[-1]):
        return None
    basis = directions(right[..., : max(rank, 1), :] * unit)
    basis = _aligned(torch.linalg.qr(basis.mT).Q.mT)
    share = (basis / unit).abs()
    basis = torch.where(share > rounding * share.amax(-1, keepdim=True), basis, 0.0)
    is_axis = (basis != 0).sum(-1, keepdim=True) == 1
    return torch.where(is_axis, basis.round(), basis)


def ranks(rows: Tensor, rounding: float) -> Tensor:
    """Rank ``[...]`` of rows ``[..., m, d]``, as :func:`span` has it."""
    rows = directions(rows)
    unit = or_one(rows.abs().amax(-2, keepdim=True))
    return _ranks(torch.linalg.svdvals(directions(rows / unit)), rounding)


def _ranks(size: Tensor, rounding: float) -> Tensor:
    return (size > rounding * size[..., :1].clamp_min(1)).sum(-1)


def directions(rows: Tensor) -> Tensor:
    """Rows ``[..., d]`` scaled to length 1, those of length 0 as they are."""
    return rows / or_one(rows.norm(dim=-1, keepdim=True))


def _aligned(basis: Tensor) -> Tensor:
    """Orthonormal rows ``[..., r, d]`` of the span of such, single axes where the span holds them:
    Gram-Schmidt on the projections of the axes, the longest first."""
    rows = []
    for _ in range(basis.shape[-2]):
        size = basis.square().sum(-2)  # [..., d]
        longest = (size > size.amax(-1, keepdim=True) - ALIKE).to(torch.uint8).argmax(-1)
        place = longest[..., None, None].expand(*basis.shape[:-1], 1)
        along = basis.gather(-1, place)  # [..., r, 1]
        along = along / along.norm(dim=-2, keepdim=True)
        rows.append(along.mT @ basis)
        basis = basis - along @ rows[-1]
    return torch.cat(rows, -2)


def or_one(size: Tensor) -> Tensor:
    """Sizes, 1 in the place of 0."""
    return torch.where(size > 0, size, 1.0)


def steepness(numbers: Tensor, free: list[Tensor], generator: torch.Generator) -> Tensor:
    """How steep numbers are that are linear in leaves: their change along a random direction."""
    weight = torch.ones_like(numbers).requires_grad_()
    # not by grad_outputs, with which torch loads sympy, a second
    total = (numbers * weight).sum()
    slopes = torch.autograd.grad(total, free, create_graph=True, allow_unused=True)

    def direction(like: Tensor) -> Tensor:
        drawn = torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu")
        return drawn.to(like)

    along = sum((slope * direction(slope)).sum() for slope in slopes if slope is not None)
    (change,) = torch.autograd.grad(along, weight)
    return or_one(change.detach().abs())
