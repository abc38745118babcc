"""Reductions (one block per kept position) and operations on whole rows (softmax, sort)."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyrograph.trace.rules.refusals import refuse_shape
from pyrograph.trace.rules.slots import frozen
from pyrograph.trace.tape import Rule

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

aten = torch.ops.aten


#: Whole-tensor forms and the one-axis form that replays them.
WHOLE = {
    aten.sum.default: aten.sum.dim_IntList,
    aten.mean.default: aten.mean.dim,
    aten.prod.default: aten.prod.dim_int,
    aten.max.default: aten.amax.default,
    aten.min.default: aten.amin.default,
    aten.any.default: aten.any.dim,
    aten.all.default: aten.all.dim,
}


#: Reductions that carry no such tag.
ONE_AXIS = {aten.median.dim, aten.nanmedian.dim, aten.mode.default, aten.kthvalue.default}


def replay_reduction(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    options, listed, output = static
    x, axis = operands[0], 1
    outermost = x.stride(2) > x.stride(0)  # evaluations, in memory: reduce without mixing layouts
    if outermost:
        x, axis = x.permute(2, 0, 1), 2
    elif func is aten.linalg_vector_norm.default:  # ten times slower unless its axis is dense
        x, axis = x.movedim(1, 2).contiguous(), 2
    out = func(x, **{"dim": [axis] if listed else axis, **dict(options)})
    out = out if output is None else out[output]
    return out.t() if outermost else out


@cache
def reduction_form(func: Any) -> tuple[list[str], Any, bool | None]:
    """Argument names, the one-axis form, and whether its ``dim`` is a list (None: has none)."""
    single = WHOLE.get(func, func)
    dim = next((a.type for a in single._schema.arguments if a.name == "dim"), None)
    names = [a.name for a in func._schema.arguments]
    return names, single, None if dim is None else "List[int]" in str(dim)


@cache
def default_axis(func: Any) -> int | list[int] | None:
    """What is reduced where nothing is said, None for all axes."""
    return next((a.default_value for a in func._schema.arguments if a.name == "dim"), None)


def has_dim(func: Any) -> bool:
    """Whether a reduction has a form along one axis."""
    return reduction_form(func)[2] is not None


def reduction(rec: Recorder, func, args, kwargs):
    x = args[0]
    out = func(*args, **kwargs)
    names, single, listed = reduction_form(func)
    given = dict(zip(names, args, strict=False)) | kwargs
    dims = given.pop("dim", default_axis(func))
    dims = [dims] if isinstance(dims, int) else list(dims or ())
    dims = sorted({d % max(x.dim(), 1) for d in dims}) or list(range(x.dim()))
    keep = [d for d in range(x.dim()) if d not in dims]
    core = math.prod(x.shape[d] for d in dims) if x.dim() else 1
    count = x.numel() // max(core, 1)
    if x.numel() == 0:
        return out

    def arrange(t: Tensor) -> Tensor:
        return t.permute(keep + dims).reshape(count, core) if t.dim() else t.reshape(1, 1)

    options = tuple((k, frozen(v)) for k, v in given.items() if k not in ("self", "keepdim"))
    operand = rec.operand(x, arrange, 1)
    outs = out if isinstance(out, tuple) else (out,)
    for j, result in enumerate(outs):
        static = (options, listed, j if isinstance(out, tuple) else None)
        rule = Rule(replay_reduction, single, static)
        rec.emit(rule, 1, [operand], result, [x])
    return out


def bincount(rec: Recorder, func, args, kwargs):
    """Latent weights, added up by constant positions."""
    where, *given = args
    if rec.is_latent(where):
        return refuse_shape(rec, func, args, kwargs)
    given = dict(zip(("weights", "minlength"), given, strict=False)) | kwargs
    weights = given["weights"]
    dtype = weights.dtype if weights.dtype == torch.float32 else torch.float64
    length = max(given.get("minlength", 0), 1 + max(where.tolist(), default=-1))
    with rec.again():
        weights = weights.to(dtype)
        return weights.new_zeros(length).index_add(0, where, weights)


ROWS = {
    aten._softmax.default,
    aten._log_softmax.default,
    aten.sort.default,
    aten.sort.stable,
    aten.topk.default,
}


def replay_row(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    options, output = static
    out = func(operands[0], **{**dict(options), "dim": 1})
    return out if output is None else out[output]


def row(rec: Recorder, func, args, kwargs):
    x = args[0]
    out = func(*args, **kwargs)
    if x.numel() == 0:
        return out
    names = [a.name for a in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    dim = given.pop("dim", default_axis(func))
    options = tuple((k, v) for k, v in given.items() if k != "self")
    length = x.shape[dim] if x.dim() else 1

    def arrange(t: Tensor) -> Tensor:
        return (t.movedim(dim, -1) if t.dim() else t).reshape(-1, length)

    operand = rec.operand(x, arrange, 1)
    outs = out if isinstance(out, tuple) else (out,)
    for j, result in enumerate(outs):
        rule = Rule(replay_row, func, (options, j if isinstance(out, tuple) else None))
        rows = result.movedim(dim, -1) if result.dim() else result
        width = rows.shape[-1] if result.dim() else 1
        rec.emit(rule, width, [operand], rows, [x])
    return out
