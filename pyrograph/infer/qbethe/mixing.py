"""What mixing adds to the entropies of pairs, with its derivatives, in blocks that stay in cache.

    M = - sum_l w_l sum_{n, n'} p_n p'_n' log s_l[n, n']
    s_l[n, n'] = sum_m w_m r_l[n, m] r'_l[n', m]

r and r' are ratios of component m to component l at the points of two nodes, or of two groups of
them. s is L N N' numbers for a pair, many more than its ratios, and automatic differentiation would
keep several such arrays. Here they live for a block of pairs only:

    d M / d r_l[n, m]  = - w_m sum_n' D r'_l[n', m],      D = w_l p_n p'_n' / s_l[n, n']
    d M / d w_m        = sum_l,n r_l[n, m] (d M / d r_l[n, m]) / w_m - sum_{n, n'} p p' log s_m
    d M / d p_n        = - w_l sum_n' p'_n' log s_l[n, n']
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

#: Numbers of s held at once: some megabytes.
BLOCK = 2**20


class PairMixing(torch.autograd.Function):
    """M summed over pairs, ``[B]``.

    Shapes:
        weights: ``[B, L]``.
        first, second: ratios ``[B, L, N, M, S]`` and ``[B, L, N', M, S]``.
        p, q: weights of their points, ``[B, L, N or N', S]``, or constants ``[1, 1, N or N', 1]``.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, weights: Tensor, first: Tensor, second: Tensor, p: Tensor, q: Tensor
    ) -> Tensor:
        inputs = (first, second, p, q)
        needed = ctx.needs_input_grad[1:]
        grads = [
            torch.zeros_like(x) if need else None for x, need in zip(inputs, needed, strict=True)
        ]
        by_weight = torch.zeros_like(weights)
        total = 0.0
        points = first.shape[2] * second.shape[2]
        size = max(1, BLOCK // (weights.numel() * points))
        for start in range(0, first.shape[-1], size):
            block = slice(start, start + size)
            a, b, pa, qb = (x if x.shape[-1] == 1 else x[..., block] for x in inputs)
            of_block = [g if g is None else g[..., block] for g in grads]
            value, own = _block(weights, a, b, pa, qb, of_block)
            total = total + value  # [B, L]
            by_weight += own
        ctx.save_for_backward(by_weight - total, *grads)
        return -(weights * total).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return tuple(
            None if g is None else g * grad.view(-1, *(1,) * (g.dim() - 1))
            for g in ctx.saved_tensors
        )


def _block(
    weights: Tensor, first: Tensor, second: Tensor, p: Tensor, q: Tensor, grads: list[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Sum of p p' log s and the first part of the derivative by the weights, ``[B, L]`` both; the
    other derivatives go to ``grads``."""
    w = weights[:, None, None, :, None]
    a, b = (w * first).unsqueeze(3), second.unsqueeze(2)  # [B, L, N, 1, M, S], [B, L, 1, N', M, S]
    s = a[..., 0, :] * b[..., 0, :]
    for m in range(1, weights.shape[1]):
        s.addcmul_(a[..., m, :], b[..., m, :])
    share = p.unsqueeze(3) * q.unsqueeze(2)  # [B, L, N, N', S]
    of_first, of_second, of_p, of_q = grads
    by_weight = torch.zeros_like(weights)
    own = weights[:, :, None, None, None]
    if of_first is not None or of_second is not None:
        d = (own * share).div(s).neg_()
        for m in range(weights.shape[1]):
            along = (d * b[..., m, :]).sum(3)
            by_weight[:, m] = (along * first[..., m, :]).flatten(1).sum(1)
            if of_first is not None:
                of_first[..., m, :] = along.mul_(weights[:, m, None, None, None])
            if of_second is not None:
                of_second[..., m, :] = (d * a[..., m, :]).sum(2)
    log_s = s.log_()
    if of_p is not None:
        of_p.sub_((own * q.unsqueeze(2) * log_s).sum(3))
    if of_q is not None:
        of_q.sub_((own * p.unsqueeze(3) * log_s).sum(2))
    return (log_s.mul_(share)).sum((2, 3, 4)), by_weight
