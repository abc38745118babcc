"""What mixing adds to the entropies of nodes and of pairs, with derivatives by hand.

    M = - sum_l w_l sum_n p_n log s_l[n],             s_l[n] = sum_m w_m r_l[n, m]
    M = - sum_l w_l sum_{n, n'} p_n p'_n' log s_l[n, n'],
                                      s_l[n, n'] = sum_m w_m r_l[n, m] r'_l[n', m]

r and r' are ratios of component m to component l at the points of two nodes, or of two groups of
them. For pairs s is L N N' numbers each, many more than their ratios, and automatic differentiation
would keep several such arrays, and ratios for every end of a pair beside those of the nodes. Here
all of them live for a block of pairs only, which stays in the cache:

    d M / d r_l[n, m]  = - w_m sum_n' D r'_l[n', m],      D = w_l p_n p'_n' / s_l[n, n']
    d M / d w_m        = - sum_l,n,n' D r_l[n, m] r'_l[n', m] - sum_{n, n'} p p' log s_m
    d M / d p_n        = - w_l sum_n' p'_n' log s_l[n, n']
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from pyrograph.infer.qbethe.first_order import first_order

#: Numbers of s held at once, and pairs at least: the innermost loops run over pairs.
BLOCK, LEAST_PAIRS = 2**17, 256


class NodeMixing(torch.autograd.Function):
    """M of every node, ``[B, V]``.

    Shapes:
        weights: ``[B, L]``.
        ratio: ``[B, L, N, M, V]``.
        p: weights of the points, ``[B, L, N, V]``, or constants ``[N]``.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, weights: Tensor, ratio: Tensor, p: Tensor) -> Tensor:
        s = ratio[:, :, :, 0] * weights[:, 0, None, None, None]
        for m in range(1, weights.shape[1]):
            s.addcmul_(ratio[:, :, :, m], weights[:, m, None, None, None])
        ctx.save_for_backward(weights, ratio, p, s)
        average = torch.einsum("n,blnv->blv" if p.dim() == 1 else "blnv,blnv->blv", p, s.log())
        return -(weights.unsqueeze(-1) * average).sum(1)

    @staticmethod
    @first_order
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, ratio, p, s = ctx.saved_tensors
        up = grad[:, None, None] * weights[:, :, None, None]  # [B, L, 1, V]
        p = p.view(1, 1, -1, 1) if p.dim() == 1 else p
        d = torch.div(up * -p, s).unsqueeze(3)  # [B, L, N, 1, V]
        by_weight = by_p = None
        if ctx.needs_input_grad[0]:
            own = (grad[:, None, None] * p * s.log()).sum((2, 3))
            by_weight = (d * ratio).sum((1, 2, 4)) - own
        if ctx.needs_input_grad[2]:
            by_p = -up * s.log()
        return by_weight, d * weights[:, None, None, :, None], by_p


class PairMixing(torch.autograd.Function):
    """M summed over pairs, ``[B]``.

    Shapes:
        weights: ``[B, L]``.
        first, second: ratios ``[B, L, N, M, V]`` and ``[B, L, N', M, V']``.
        p, q: weights of their points, ``[B, L, N or N', V or V']``, or constants ``[N or N']``.
        here, there: rows of the ends in V and V', ``[S]``; None if they are as the tables are.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        weights: Tensor,
        first: Tensor,
        second: Tensor,
        p: Tensor,
        q: Tensor,
        here: Tensor | None,
        there: Tensor | None,
    ) -> Tensor:
        needed = ctx.needs_input_grad[1:5]
        a, p = _End(first, here, needed[0]), _End(p, here, needed[2])
        b, q = _End(second, there, needed[1], a), _End(q, there, needed[3], p)
        by_weight, total = torch.zeros_like(weights), torch.zeros_like(weights)
        pairs = first.shape[-1] if here is None else len(here)
        numbers = weights.numel() * first.shape[2] * second.shape[2]
        count = math.ceil(pairs / max(LEAST_PAIRS, BLOCK // numbers))
        size = math.ceil(pairs / max(1, count))
        for start in range(0, pairs, size):
            block = slice(start, start + size)
            value, own = _block(weights, a, b, p, q, block, ctx.needs_input_grad[0])
            total += value
            by_weight += own
        ctx.save_for_backward(by_weight - total, *(x.result for x in (a, b, p, q)))
        return -(weights * total).sum(1)

    @staticmethod
    @first_order
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = (
            None if g is None else g * grad.view(-1, *(1,) * (g.dim() - 1))
            for g in ctx.saved_tensors
        )
        return *grads, None, None


class _End:
    """Numbers of one end of all pairs, and their derivatives.

    Args:
        table: ``[..., V]``, or constants ``[N]``.
        rows: of the ends in it, ``[S]``, or None if they are as the table is.
        is_free: whether derivatives are wanted.
        other: the other end. If it has the same table, it has the derivatives of both.
    """

    def __init__(
        self, table: Tensor, rows: Tensor | None, is_free: bool, other: _End | None = None
    ):
        self.table, self.rows = table, rows
        shares = other is not None and other.table is table
        self.grad = other.grad if shares else None
        if is_free and not shares:
            self.grad = torch.zeros_like(table, memory_format=torch.contiguous_format)
        #: What is left to hand back: the other end does for a table of both.
        self.result = None if shares else self.grad

    def at(self, block: slice) -> Tensor:
        """``[..., S]`` of a block of pairs, or constants ``[1, 1, N, 1]``."""
        if self.table.dim() == 1:
            return self.table.view(1, 1, -1, 1)
        return (
            self.table[..., block] if self.rows is None else columns(self.table, self.rows[block])
        )

    def add(self, block: slice, value: Tensor) -> None:
        """Of the derivatives of a block."""
        if self.rows is None:
            self.grad[..., block].add_(value)
            return
        rows, flat = self.rows[block], self.grad.view(-1, self.grad.shape[-1])
        flat.scatter_add_(1, rows.expand(len(flat), -1), value.reshape(len(flat), -1))


def _block(
    weights: Tensor,
    first: _End,
    second: _End,
    p: _End,
    q: _End,
    block: slice,
    is_free: bool,
) -> tuple[Tensor, Tensor]:
    """Sum of p p' log s and, if the weights are free, the first part of the derivative by them,
    ``[B, L]`` both; the other derivatives are added to those of the ends."""
    w = weights[:, None, None, :, None]
    own = weights[:, :, None, None, None]
    ratio, b = first.at(block), second.at(block)  # [B, L, N, M, S], [B, L, N', M, S]
    a = ratio * w
    pa, qb = p.at(block).unsqueeze(3), q.at(block).unsqueeze(2)  # [B, L, N, 1, S], [B, L, 1, N', S]
    s = a[:, :, :, None, 0] * b[:, :, None, :, 0]  # [B, L, N, N', S]
    for m in range(1, weights.shape[1]):
        s.addcmul_(a[:, :, :, None, m], b[:, :, None, :, m])
    share = pa * qb
    by_weight = torch.zeros_like(weights)
    if is_free or first.grad is not None or second.grad is not None:
        d = torch.div(own * -share, s)
        along = d[:, :, :, 0, None] * b[:, :, None, 0]
        for n in range(1, b.shape[2]):
            along.addcmul_(d[:, :, :, n, None], b[:, :, None, n])
        if is_free:
            by_weight = (along * ratio).sum((1, 2, 4))
        if first.grad is not None:
            first.add(block, along.mul_(w))
        if second.grad is not None:
            along = d[:, :, 0, :, None] * a[:, :, 0, None]
            for n in range(1, a.shape[2]):
                along.addcmul_(d[:, :, n, :, None], a[:, :, n, None])
            second.add(block, along)
    log_s = s.log_()
    if p.grad is not None:
        p.add(block, -(own * qb * log_s).sum(3))
    if q.grad is not None:
        q.add(block, -(own * pa * log_s).sum(2))
    if share.shape[-1] == 1:
        return (log_s.sum(-1, keepdim=True) * share).sum((2, 3, 4)), by_weight
    return log_s.mul_(share).sum((2, 3, 4)), by_weight


def columns(value: Tensor, rows: Tensor) -> Tensor:
    """``value[..., rows]``, read along contiguous numbers."""
    flat = value.reshape(-1, value.shape[-1]).index_select(1, rows)
    return flat.view(*value.shape[:-1], len(rows))
