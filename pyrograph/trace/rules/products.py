"""Matrix products, as sums of products: ``out[i, j] = sum_k a[i, k] b[k, j]``.

A constant zero entry is no dependence, so a sparse matrix written densely gives sparse scopes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyrograph.trace.tape import Operand, Rule

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder


def replay_dot(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    a, b = operands
    for left, right in ((a, b), (b, a)):
        # One latent vector read by all blocks, against constants: a plain matrix product.
        if left.shape[-1] == 1 and right.shape[0] == 1 and right.shape[-1] > 1:
            return left[..., 0] @ right[0]
    return (a * b).sum(1)


DOT = Rule(replay_dot, None)


def bmm(rec: Recorder, func, args, kwargs):
    a, b = args[0], args[1]
    out = func(*args, **kwargs)
    if out.numel() == 0:
        return out
    batch, m, k, n = *a.shape, b.shape[2]
    if k == 0:
        return out
    shape = (batch, m, n, k)
    left = rec.operand(a, lambda t: t.unsqueeze(2).expand(shape), 1)
    right = rec.operand(b, lambda t: t.transpose(1, 2).unsqueeze(1).expand(shape), 1)
    left, right = _drop_zeros(left, right), _drop_zeros(right, left)
    return rec.emit(DOT, 1, [left, right], out, [a, b])


def _drop_zeros(operand: Operand, other: Operand) -> Operand:
    """Ids that meet a constant zero become constants."""
    if operand.ids is None or other.values is None:
        return operand
    if other.values.requires_grad:  # zero only for now
        return operand
    zero = other.values == 0
    if other.ids is not None:
        zero = zero & (other.ids == 0)
    if not bool(zero.any()):
        return operand
    values = operand.values
    if values is None:
        values = torch.zeros((1, 1), dtype=operand.dtype, device="cpu").expand(operand.ids.shape)
    return Operand(operand.ids.masked_fill(zero, 0), values, operand.dtype)
