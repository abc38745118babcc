"""Pointwise operations: element i of the output reads element i of every input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyrograph.trace.rules.fallback import decompose
from pyrograph.trace.rules.slots import SLOT, frozen
from pyrograph.trace.tape import Operand, Rule

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

aten = torch.ops.aten


POINTWISE = {
    aten.binary_cross_entropy_with_logits.default,
    aten.log_sigmoid_forward.default,
    aten.special_entr.default,
    aten.atan2.default,
    aten.huber_loss.default,
    aten.threshold.default,
}


#: Constant, whatever the tensor, if the number beside it is zero.
ZERO_SCALAR = {aten.mul.Tensor, aten.mul.Scalar, aten.pow.Tensor_Scalar}


#: Pointwise operations that do not broadcast.
SAME_SHAPE = {aten.binary_cross_entropy_with_logits.default, aten.huber_loss.default}


def replay_pointwise(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    template, options = static
    if not options and len(template) == len(operands):
        out = func(*operands)
    else:
        queue = iter(operands)
        args = [next(queue) if a is SLOT else a for a in template]
        out = func(*args, **{k: next(queue) if v is SLOT else v for k, v in options})
    return out[0] if isinstance(out, tuple) else out


def replay_same_shape(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    """For functions that do not broadcast by themselves."""
    return replay_pointwise(func, static, list(torch.broadcast_tensors(*operands)))


def replay_further_output(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    """Output j of a function with several, such as ``frexp``."""
    template, options, j = static
    queue = iter(operands)
    args = [next(queue) if a is SLOT else a for a in template]
    return func(*args, **{k: next(queue) if v is SLOT else v for k, v in options})[j]


def pointwise(rec: Recorder, func, args, kwargs):
    out = func(*args, **kwargs)
    result = out[0] if isinstance(out, tuple) else out
    if result.numel() == 0:
        return out
    averages = func in SAME_SHAPE and _reduction(func, args, kwargs) != 0
    if averages or (result.dim() == 0 and any(isinstance(a, Tensor) and a.dim() for a in args)):
        return decompose(rec, func, args, kwargs)  # on replay it would average over evaluations
    if func in ZERO_SCALAR and not isinstance(args[1], Tensor) and args[1] == 0:
        return out
    shape = result.shape
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    # PyTorch lets a 0-dim tensor follow the dtype of the others; on replay every operand has axes.
    float_type = next((t.dtype for t in tensors if t.dim() and t.is_floating_point()), None)

    def operand(t: Tensor) -> Operand:
        follow = t.dim() == 0 and t.is_floating_point() and not rec.is_latent(t)
        return rec.scalar_operand(t, shape, float_type if follow else None)

    operands = [operand(t) for t in tensors]
    static = (
        tuple(SLOT if isinstance(a, Tensor) else frozen(a) for a in args),
        tuple((k, SLOT if isinstance(v, Tensor) else frozen(v)) for k, v in kwargs.items()),
    )
    replay = replay_same_shape if func in SAME_SHAPE else replay_pointwise
    rec.emit(Rule(replay, func, static), 1, operands, result, tensors)
    for j, further in enumerate(out[1:] if isinstance(out, tuple) else (), start=1):
        if further.shape == shape:
            rule = Rule(replay_further_output, func, (*static, j))
            rec.emit(rule, 1, operands, further, tensors)
    if func in (aten.mul.Tensor, aten.pow.Tensor_Tensor):
        _forget_zeros(rec, result, tensors if func is aten.mul.Tensor else tensors[1:], shape)
    return out


def _reduction(func, args, kwargs) -> int:
    """0 of losses that are returned number by number."""
    names = [argument.name for argument in func._schema.arguments]
    return (dict(zip(names, args, strict=False)) | kwargs).get("reduction", 1)


def _forget_zeros(rec: Recorder, out: Tensor, factors: list[Tensor], shape) -> None:
    """``0 * x`` is the constant 0 and ``x ** 0`` the constant 1: no dependence."""
    for t in factors:
        if (rec.differentiable and t.requires_grad) or rec.range_of(t) is not None:
            continue  # a parameter or a latent is zero only for now
        zero = t == 0
        if not bool(zero.any()):
            continue
        if rec.is_latent(t):  # some of its elements may be constants
            zero = zero & (rec.ids(t) == 0)
        rec.write(out, rec.ids_or_zero(out).masked_fill(zero.expand(shape), 0))


def cast(rec: Recorder, func, args, kwargs):
    source, dtype = args[0], kwargs.get("dtype", args[0].dtype)
    out = func(*args, **kwargs)
    if out.numel() == 0:
        return out
    if dtype == source.dtype:  # a copy, perhaps to another device
        rec.write(out, rec.ids(source).to(out.device), rec.level(source))
        return out
    cast = pointwise(rec, func, (source,), {"dtype": dtype})
    rec.write(out, rec.ids(cast).to(out.device), rec.level(cast))
    return out
