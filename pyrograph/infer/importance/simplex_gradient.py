"""Derivatives of the weights on the simplex that make w'Kw least.

On the support P the weights are K_PP^-1 1 / (1' K_PP^-1 1), so that implicitly

    dw_P = -M dK_PP w_P,    M = K_PP^-1 - K_PP^-1 1 1' K_PP^-1 / (1' K_PP^-1 1),

and nothing changes off it: one solve on the support, O(|P|^3 / 3). Exact where the support does not
change with K (multipliers off it are positive) and K_PP is regular.

Source: Amos & Kolter (2017), "OptNet", equation (6), for this program.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyrograph.infer.importance.ridge import cholesky_with_ridge
from pyrograph.infer.importance.simplex_qp import minimise_on_simplex, symmetric_part


def simplex_weights(gram: Tensor) -> Tensor:
    """The weights of least w'Kw, differentiable in K.

    Where the support changes, derivatives are those of one of its sides. Points whose diagonal is
    zero share all weight equally: on this face the weights are constant, and derivatives zero.

    Args:
        gram: ``[n, n]``; its symmetric part is used.

    Shapes:
        output: ``[n]``, of the dtype and device of ``gram``. Once differentiable.

    Raises:
        ShapeMismatch, OptionError: see :func:`minimise_on_simplex`.
    """
    return _Implicit.apply(gram)


class _Implicit(torch.autograd.Function):
    """Derivatives of the optimality conditions on the support."""

    @staticmethod
    def forward(ctx, gram: Tensor) -> Tensor:
        weights = minimise_on_simplex(gram, polish=True).weights
        ctx.save_for_backward(gram, weights)
        return weights.to(gram)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> Tensor:
        gram, weights = ctx.saved_tensors
        support = weights.nonzero().squeeze(1)
        at = support.to(gram.device)
        w, k = weights[support], symmetric_part(gram[at][:, at])
        if not bool(k.diagonal().any()):
            return torch.zeros_like(gram)
        seed = upstream.detach().to("cpu", torch.float64)[support]
        factor, _ = cholesky_with_ridge(k)
        sides = torch.stack([seed, torch.ones_like(seed)], 1)
        a, z = torch.cholesky_solve(sides, factor).unbind(1)
        a = a - z * (a.sum() / z.sum())
        out = torch.zeros(gram.shape, dtype=torch.float64, device="cpu")
        outer = torch.outer(a, w)
        out[support.unsqueeze(1), support] = -(outer + outer.t()) / 2
        return out.to(gram)
