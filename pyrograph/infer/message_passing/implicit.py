"""Derivatives of beliefs at a fixed point, without going back through the iteration.

Messages at a fixed point solve m = F(m, theta), so that

    dm/dtheta = (I - dF/dm)^-1 dF/dtheta

Backwards, g = (I - dF/dm')^-1 v is found by GMRES from products with dF/dm', each one pass back
through a sweep. The evidence needs none of this: eq (66) is stationary in the messages, so its
derivative is the direct one, the expectation of d log f_a / dtheta under the factors' beliefs.
Both are first derivatives only: what messages do to them is not followed further, and to ask for
more raises.

Source: the implicit function theorem; Bai, Kolter & Koltun (2019) for its use with autograd.
"""

from __future__ import annotations

import warnings
from copy import copy

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

from pyrograph.errors import ConvergenceWarning
from pyrograph.infer.message_passing.network.messages import Messages, flattened, unflattened
from pyrograph.infer.message_passing.network.network import Network

#: Of the linear system; in single precision ten times its rounding.
RELATIVE_TOLERANCE = 1e-10
#: Vectors that GMRES keeps, and how often it starts anew.
RESTART, MAX_RESTARTS = 50, 20


def attached(network: Network, messages: Messages) -> Messages:
    """The same messages, of a fixed point, differentiable with respect to the tensors that the
    factors came from."""
    start = [[m.detach() for m in block] for block in messages]

    def sweep(flat: Tensor) -> Tensor:
        current = unflattened(flat, start)
        beliefs = network.beliefs_of(current)
        return flattened(
            [  # of copies: updates move grids, and this is no step of the run
                copy(block).update(sent, beliefs)[0]
                for block, sent in zip(network.blocks, current, strict=True)
            ]
        )

    with torch.enable_grad():
        fixed = flattened(start)
        once = sweep(fixed)
        if not once.requires_grad:
            return start
        point = fixed.clone().requires_grad_()
        image = sweep(point)

    def backward(gradient: Tensor | None) -> Tensor | None:
        refuse_second_derivatives(gradient)
        return None if gradient is None else _solve(image, point, gradient)

    # the values of the fixed point itself, the derivative of one sweep
    result = torch.where(fixed.isinf(), fixed, fixed + (once - once.detach()))
    result.register_hook(backward)
    return unflattened(result, start)


def refuse_second_derivatives(gradient: Tensor | None) -> None:
    """A hook of a tensor whose derivative is right but has none of its own.

    Raises:
        NotImplementedError: the backward pass is recorded (``create_graph=True``).
    """
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "evidence and marginals of message passing have first derivatives only: leave out "
            "create_graph=True, and for second ones take differences of first ones"
        )


def _solve(image: Tensor, point: Tensor, gradient: Tensor) -> Tensor:
    """g = dF/dm' g + gradient."""

    def apply(vector: np.ndarray) -> np.ndarray:
        g = torch.from_numpy(vector).to(point)
        (back,) = torch.autograd.grad(image, point, g, retain_graph=True)
        return (g - back).double().cpu().numpy()

    size = len(gradient)
    right = gradient.double().cpu().numpy()
    operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
    eps = float(torch.finfo(point.dtype).eps)
    tolerance = max(RELATIVE_TOLERANCE, 10 * eps)
    found, failed = gmres(
        operator, right, rtol=tolerance, restart=min(RESTART, size), maxiter=MAX_RESTARTS
    )
    if failed:
        warnings.warn(
            "the linear system for derivatives of marginals was not solved to tolerance: the fixed "
            "point is nearly degenerate, and these derivatives are rough",
            ConvergenceWarning,
            stacklevel=2,
        )
    return torch.from_numpy(found).to(gradient)
