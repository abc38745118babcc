"""Arithmetic on log values of states, ``[E, c]``: zeros, sums, and how they lie in memory.

Rows of states are short. So that arithmetic on them is vectorised over the nodes or factors, these
are the innermost axis in memory, see :func:`states_apart`; shapes do not tell.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

LOG_2 = math.log(2)
#: Numbers in a term of a sum from which on terms are added one by one, not laid out side by side.
ONE_TERM = 2**11
#: Fewest states for which products of tables are matrix products, and numbers that are worked on at
#: once where they are not.
MATRIX_STATES, CHUNK = 10, 2**22
#: Log of a zero. Zeros come of hard constraints alone and are final: a cavity takes the factor's
#: own zeros along instead of dividing by them.
ZERO = -torch.inf


def is_zero(log_value: Tensor) -> Tensor:
    """Which log values are zeros."""
    return log_value == ZERO


def bounded(log_value: Tensor, cavity: Tensor) -> Tensor:
    """A factor's sums of a node's states, but for those that a node's belief has no use for.

    Around a cycle of hard constraints messages about a state may fall without end, faster and
    faster; by then they are as good as zero, but no zero, and sums with them lose all digits. Of
    the belief's best state at 0 they stop at -L, or, where the rest of the node speaks for the
    state, that much lower: a belief below exp(-L) stays below it, no other one moves.

    Args:
        log_value, cavity: ``[E, c]``, of the sums and of what they are multiplied by.
    """
    depth = torch.finfo(log_value.dtype).eps ** -0.4  # L: 1.8e6 in double, 590 in single precision
    both = log_value + cavity
    is_best = both == both.amax(1, keepdim=True)
    best = torch.where(is_best, log_value, ZERO).amax(1, keepdim=True)
    is_best = is_best & (log_value == best)  # of several the one that the factor speaks for most
    other = torch.where(is_best, cavity, ZERO).amax(1, keepdim=True)
    said, rest = log_value - _finite(best), cavity - _finite(other)
    return torch.where(is_zero(said), ZERO, torch.maximum(said, -depth - rest.clamp_min(0)))


def _finite(log_value: Tensor) -> Tensor:
    return torch.where(is_zero(log_value), 0.0, log_value)


def finite_peak(log_value: Tensor) -> Tensor:
    """Largest log value of every row, ``[E, 1]``, and 0 where all are zeros."""
    return _finite(log_value.amax(1, keepdim=True))


def states_apart(value: Tensor) -> Tensor:
    """``[E, ...]`` laid out in memory as ``[..., E]``: several times as fast to work on where what
    follows E is short."""
    return value.movedim(0, -1).contiguous().movedim(-1, 0)


def rows_of(value: Tensor, rows: Tensor) -> Tensor:
    """``value[rows]`` of ``[V, c, ...]``, laid out like it."""
    return value.movedim(0, -1).index_select(-1, rows).movedim(-1, 0)


def add_rows(total: Tensor, rows: Tensor, value: Tensor) -> Tensor:
    """``total`` ``[V, c]`` with ``value`` ``[E, c]`` added at its rows."""
    return total.t().index_add(1, rows, value.t()).t()


def summed_out(value: Tensor, weight: Tensor, axis: int) -> Tensor:
    """sum_x value(x) weight(x) over the states x of one axis.

    Args:
        value: ``[E, c_1, ..., c_k]``, or of one factor ``[1, c_1, ..., c_k]`` that serves all.
        weight: ``[E, c_axis]``; axis: from 0.

    Shapes:
        output: ``[E, c_1, ..., c_k]`` without c_axis.
    """
    value, weight = value.movedim(0, -1), weight.t()
    if value.shape[-1] == 1:
        return (value.squeeze(-1).movedim(axis, -1) @ weight).movedim(-1, 0)
    value = value.movedim(axis, 0)
    if value[0].numel() < ONE_TERM:
        shape = len(weight), *(1,) * (value.dim() - 2), -1
        return (value * weight.view(shape)).sum(0).movedim(-1, 0)
    first, *rest = zip(value.unbind(), weight.unbind(), strict=True)
    total = first[0] * first[1]
    for term in rest:
        total = total.addcmul_(*term)
    return total.movedim(-1, 0)


def without(log_value: Tensor, divisor: Tensor) -> Tensor:
    """Quotient of log values where the divisor is not zero, zero elsewhere."""
    return torch.where(is_zero(divisor), ZERO, log_value - divisor)


def log_sum(value: Tensor, dim: int) -> Tensor:
    """log of sums of exponentials, of nothing but zeros with no derivative instead of NaN."""
    if not value.requires_grad:
        return value.logsumexp(dim)
    nothing = is_zero(value).all(dim, keepdim=True)
    found = torch.where(nothing, 0.0, value).logsumexp(dim)
    return torch.where(nothing.squeeze(dim), ZERO, found)


def log_product(left: Tensor, right: Tensor) -> Tensor:
    """log sum_v exp(left_v + right_v) of tables ``[n, v, a]`` and ``[n, v, b]``: ``[n, a, b]``.

    A matrix product of exponentials in units of their largest ones. Where the sum is so small that
    terms may have been lost it is done again in the log domain, in bounded memory.
    """
    if left.shape[1] < MATRIX_STATES:
        return _log_product(left, right)
    of_left, of_right = (_finite(side.amax(1, keepdim=True)) for side in (left, right))
    total = exp(left - of_left).mT @ exp(right - of_right)
    kind = torch.finfo(total.dtype)
    found = log(total) + of_left.mT + of_right
    lost = total < kind.tiny / kind.eps
    if bool(lost.any()):
        has = [(~is_zero(side)).to(total) for side in (left, right)]
        lost &= has[0].mT @ has[1] > 0  # sums of nothing but zeros are right
        again = lost.flatten(1).any(1).nonzero().squeeze(1)
        found[again] = _log_product(left[again], right[again])
    return found


def _log_product(left: Tensor, right: Tensor) -> Tensor:
    (_, states, a), b = left.shape, right.shape[2]
    each = max(1, CHUNK // max(1, states * a * b))
    parts = zip(left.split(each), right.split(each), strict=True)
    return torch.cat([(x.unsqueeze(3) + y.unsqueeze(2)).logsumexp(1) for x, y in parts])


def exp(x: Tensor) -> Tensor:
    """exp(x); torch's exp2 is several times as fast on a CPU."""
    return (x * (1 / LOG_2)).exp2_()


def log(x: Tensor) -> Tensor:
    """log(x), by log2 for the same reason."""
    return x.log2().mul_(LOG_2)


def log_1p_exp(x: Tensor) -> Tensor:
    """log (1 + e^x); torch's softplus leaves the 1 out from 20 on, which costs 2e-9."""
    return -logsigmoid(-x)
