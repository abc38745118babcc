"""Derivatives by hand, of which there are no further ones.

``once_differentiable`` of torch refuses a second derivative only where it goes through the incoming
one. Where it goes through saved tensors alone, as in a sum of such functions, it is silently zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

Backward = Callable[..., tuple[Tensor | None, ...]]


def first_order(backward: Backward) -> Backward:
    """A ``backward`` whose results raise NotImplementedError if they are differentiated."""

    @wraps(backward)
    def refusing(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            found = backward(ctx, *grads)
        if not torch.is_grad_enabled():
            return found
        return tuple(None if v is None else _Last.apply(v.requires_grad_()) for v in found)

    return refusing


class _Last(torch.autograd.Function):
    """The same number, without a derivative."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:
        raise NotImplementedError(
            "free energies of mixtures have first derivatives only: take differences of them"
        )
