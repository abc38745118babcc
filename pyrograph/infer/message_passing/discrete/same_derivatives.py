"""Whether two computations of the same values have the same derivatives."""

from __future__ import annotations

import torch
from torch import Tensor


def same_derivatives(inputs: list[Tensor], found: Tensor, expected: Tensor) -> bool:
    """Whether ``found`` and ``expected``, of one shape and equal, depend on the inputs in the same
    way; minus infinities count for nothing. A function of free parameters may have another's values
    where these start out."""
    if not found.requires_grad:
        return True
    # one random combination of all rows of the Jacobian: rows that differ do not cancel
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(found.shape, generator=generator, dtype=torch.float64, device="cpu")
    weight = weight.to(found)
    ours, theirs = (
        torch.autograd.grad(
            torch.where(v.isfinite(), v, 0.0), inputs, weight, retain_graph=True, allow_unused=True
        )
        for v in (found, expected)
    )
    tolerance = torch.finfo(found.dtype).eps ** 0.5
    for one, other in zip(ours, theirs, strict=True):
        if (one is None) != (other is None):
            return False
        if one is not None:
            scale = one.abs().amax() + other.abs().amax()
            if not bool(((one - other).abs() <= tolerance * scale).all()):
                return False
    return True
