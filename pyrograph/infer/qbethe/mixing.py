"""What mixing adds to the entropies of nodes and of pairs, with derivatives by hand.

    M = - sum_l w_l sum_n p_n log s_l[n],             s_l[n] = w_l + sum_m w_m r_l[n, m]
    M = - sum_l w_l sum_{n, n'} p_n p'_n' log s_l[n, n'],
                                      s_l[n, n'] = w_l + sum_m w_m r_l[n, m] r'_l[n', m]

m stands for the M = L - 1 other components of l (:func:`.components.others`), r and r' for their
ratios to component l at the points of two nodes, or of two groups of them. For pairs s is L N N'
numbers each, many more than their ratios, and automatic differentiation would keep several such
arrays, and ratios for every end of a pair beside those of the nodes. Here all of them live for a
block of pairs only, which stays in the cache:

    d M / d r_l[n, m]  = - w_m sum_n' D r'_l[n', m],      D = w_l p_n p'_n' / s_l[n, n']
    d M / d w_m        = - sum_l,n,n' D r_l[n, m] r'_l[n', m] - sum_{n, n'} p p' log s_m
    d M / d p_n        = - w_l sum_n' p'_n' log s_l[n, n']

where r_l[n, l] = 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from pyrograph.graph.devices import at_once
from pyrograph.infer.qbethe.components import others
from pyrograph.infer.qbethe.first_order import first_order

#: Numbers of s held at once, and pairs at least: the innermost loops run over pairs.
BLOCK, LEAST_PAIRS = 2**17, 256
#: Rows that follow each other are read as they lie if at most so many are read per pair.
FULLNESS = 1.25


class NodeMixing(torch.autograd.Function):
    """M of every node, ``[B, V]``.

    Shapes:
        weights: ``[B, L]``.
        ratio: ``[B, L, N, M, V]``.
        p: weights of the points, ``[B, L, N, V]``, or constants ``[N]``.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, weights: Tensor, ratio: Tensor, p: Tensor) -> Tensor:
        theirs = _of_others(weights)
        s = weights[:, :, None, None]
        for m in range(ratio.shape[3]):
            s = torch.addcmul(s, ratio[:, :, :, m], theirs[:, :, m, None, None])
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
            by_weight = d.sum((2, 3, 4)) + _as_others((d * ratio).sum((2, 4))) - own
        if ctx.needs_input_grad[2]:
            by_p = -up * s.log()
        return by_weight, d * _of_others(weights)[:, :, None, :, None], by_p


@dataclass(frozen=True)
class Run:
    """Pairs of rows of two tables.

    Attributes:
        here, there: ``[S]`` rows, or slices of as many that follow each other.
        times: ``[S]``, how often a pair counts: 0 where rows of slices make none. None: once.
    """

    here: Tensor | slice
    there: Tensor | slice
    times: Tensor | None = None

    def __len__(self) -> int:
        return self.here.stop - self.here.start if isinstance(self.here, slice) else len(self.here)

    def split(self, size: int) -> Iterator[Run]:
        """Parts of ``size`` pairs and a last one."""
        for start in range(0, len(self), size):
            parts = (self.here, self.there, self.times)
            yield Run(*(_cut(rows, start, min(start + size, len(self))) for rows in parts))


def _cut(rows: Tensor | slice | None, start: int, stop: int) -> Tensor | slice | None:
    if isinstance(rows, slice):
        return slice(rows.start + start, rows.start + stop)
    return None if rows is None else rows[start:stop]


def runs(here: Tensor, there: Tensor) -> list[Run]:
    """Pairs ``[S]``, sorted so that as many as can be follow each other: as in chains and on
    grids, whose numbers need not be collected by row then, which takes longer than the sums.
    """
    apart = there - here
    found = []
    left = torch.ones_like(here, dtype=torch.bool)
    steps, counts = apart.unique(return_counts=True)
    for step in steps[counts >= LEAST_PAIRS].tolist():
        alike = apart == step
        first = here[alike]
        start, stop = int(first.min()), int(first.max()) + 1
        if stop - start > FULLNESS * len(first):
            continue
        left &= ~alike
        times = torch.bincount(first - start)
        is_whole = bool((times == 1).all())
        there_too = slice(start + step, stop + step)
        found.append(Run(slice(start, stop), there_too, None if is_whole else times))
    return [*found, Run(here[left], there[left])] if bool(left.any()) else found


class PairMixing(torch.autograd.Function):
    """M summed over pairs, ``[B]``.

    Shapes:
        weights: ``[B, L]``.
        first, second: ratios ``[B, L, N, M, V]`` and ``[B, L, N', M, V']``.
        p, q: weights of their points, ``[B, L, N or N', V or V']``, or constants ``[N or N']``.
        pairs: of rows in V and V'.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        weights: Tensor,
        first: Tensor,
        second: Tensor,
        p: Tensor,
        q: Tensor,
        pairs: list[Run],
    ) -> Tensor:
        needed = ctx.needs_input_grad[1:5]
        a, p = _End(first, needed[0]), _End(p, needed[2])
        b, q = _End(second, needed[1], a), _End(q, needed[3], p)
        by_weight, total = torch.zeros_like(weights), torch.zeros_like(weights)
        numbers = weights.numel() * first.shape[2] * second.shape[2]
        each = max(LEAST_PAIRS, at_once(BLOCK, weights.device) // numbers)
        for run in pairs:
            count = math.ceil(len(run) / each)
            for block in run.split(math.ceil(len(run) / max(1, count))):
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
        return *grads, None


class _End:
    """Numbers of one end of all pairs, and their derivatives.

    Args:
        table: ``[..., V]``, or constants ``[N]``.
        is_free: whether derivatives are wanted.
        other: the other end. If it has the same table, it has the derivatives of both.
    """

    def __init__(self, table: Tensor, is_free: bool, other: _End | None = None):
        self.table = table
        shares = other is not None and other.table is table
        self.grad = other.grad if shares else None
        if is_free and not shares:
            self.grad = torch.zeros_like(table, memory_format=torch.contiguous_format)
        #: What is left to hand back: the other end does for a table of both.
        self.result = None if shares else self.grad

    @property
    def is_constant(self) -> bool:
        """Whether numbers are the same for all rows."""
        return self.table.dim() == 1

    def at(self, rows: Tensor | slice) -> Tensor:
        """``[..., S]``, or constants ``[1, 1, N, 1]``."""
        if self.is_constant:
            return self.table.view(1, 1, -1, 1)
        return self.table[..., rows] if isinstance(rows, slice) else columns(self.table, rows)

    def add(self, rows: Tensor | slice, value: Tensor) -> None:
        """Derivatives at rows."""
        if isinstance(rows, slice):
            self.grad[..., rows].add_(value)
            return
        flat = self.grad.view(-1, self.grad.shape[-1])
        flat.scatter_add_(1, rows.expand(len(flat), -1), value.reshape(len(flat), -1))


def _block(
    weights: Tensor, first: _End, second: _End, p: _End, q: _End, pairs: Run, is_free: bool
) -> tuple[Tensor, Tensor]:
    """Sum of p p' log s and, if the weights are free, the first part of the derivative by them,
    ``[B, L]`` both; the other derivatives are added to those of the ends."""
    w = _of_others(weights)[:, :, None, :, None]
    own = weights[:, :, None, None, None]
    # [B, L, N, M, S], [B, L, N', M, S]
    ratio, b = first.at(pairs.here), second.at(pairs.there)
    a = ratio * w
    # [B, L, N, 1, S], [B, L, 1, N', S]
    pa, qb = p.at(pairs.here).unsqueeze(3), q.at(pairs.there).unsqueeze(2)
    counted = qb if pairs.times is None else qb * pairs.times
    s = _mixed(own, a, b)  # [B, L, N, N', S]
    share = pa * counted if p.is_constant and q.is_constant else None  # else as large as s
    by_weight = torch.zeros_like(weights)
    if is_free or first.grad is not None or second.grad is not None:
        if share is None:
            d = torch.div(own * -pa, s).mul_(counted)
        else:
            d = torch.div(own * -share, s)
        along = _sum_over_points(d, b)
        if is_free:
            by_weight = d.sum((2, 3, 4)) + _as_others((along * ratio).sum((2, 4)))
        if first.grad is not None:
            first.add(pairs.here, along.mul_(w))
        if second.grad is not None:
            second.add(pairs.there, _sum_over_points(d.transpose(2, 3), a))
    log_s = s.log_()
    if p.grad is not None:
        p.add(pairs.here, -(own * counted * log_s).sum(3))
    if q.grad is not None:
        up = own if pairs.times is None else own * pairs.times
        q.add(pairs.there, -(up * pa * log_s).sum(2))
    if share is None:
        return (log_s.mul_(counted).sum(3) * pa[:, :, :, 0]).sum((2, 3)), by_weight
    if share.shape[-1] == 1:
        return (log_s.sum(-1, keepdim=True) * share).sum((2, 3, 4)), by_weight
    return log_s.mul_(share).sum((2, 3, 4)), by_weight


def _mixed(own: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``[B, L, N, N', S]``: own and the sum over m of ``a [B, L, N, M, S]`` times
    ``b [B, L, N', M, S]``."""
    if a.shape[-1] == 1:
        return (a[..., 0] @ b[..., 0].mT).unsqueeze(-1).add_(own)
    s = torch.addcmul(own, a[:, :, :, None, 0], b[:, :, None, :, 0])
    for m in range(1, a.shape[3]):
        s.addcmul_(a[:, :, :, None, m], b[:, :, None, :, m])
    return s


def _sum_over_points(d: Tensor, r: Tensor) -> Tensor:
    """``[B, L, N, M, S]``: sum over n' of ``d [B, L, N, N', S]`` times ``r [B, L, N', M, S]``."""
    if r.shape[-1] < r.shape[2]:  # many points of few pairs, one after the other, take longer
        return torch.einsum("blnks,blkms->blnms", d, r)
    along = d[:, :, :, 0, None] * r[:, :, None, 0]
    for n in range(1, r.shape[2]):
        along.addcmul_(d[:, :, :, n, None], r[:, :, None, n])
    return along


def _of_others(weights: Tensor) -> Tensor:
    """``[B, L, M]``: of every component the weights of the others."""
    return weights[:, others(weights.shape[1], weights.device)[0]]


def _as_others(value: Tensor) -> Tensor:
    """What every component gets as another, ``[B, L]`` of ``[B, L, M]``."""
    index = others(value.shape[1], value.device)[1]
    return value.gather(1, index.expand_as(value)).sum(2)


def columns(value: Tensor, rows: Tensor) -> Tensor:
    """``value[..., rows]``, read along contiguous numbers."""
    flat = value.reshape(-1, value.shape[-1]).index_select(1, rows)
    return flat.view(*value.shape[:-1], len(rows))


def spread(value: Tensor, at: Tensor | None) -> Tensor:
    """``value[..., at]``, left as it is where all are the one there is."""
    return value if at is None or value.shape[-1] == 1 else columns(value, at)
