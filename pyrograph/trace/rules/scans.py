"""Prefix sums and their kin: element k of the output reads elements 0..k."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyrograph.trace.rules.pointwise import pointwise
from pyrograph.trace.rules.reductions import replay_reduction, row
from pyrograph.trace.tape import Operand, Rule

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

aten = torch.ops.aten


#: Longest row whose prefixes are taken directly (length squared reads); longer ones in two levels.
DIRECT_PREFIX = 32


#: Scans as a reduction over "everything so far", with the neutral element.
PREFIX = {
    aten.cumsum.default: (aten.sum.dim_IntList, True, 0.0),
    aten.cumprod.default: (aten.prod.dim_int, False, 1.0),
    aten.logcumsumexp.default: (aten.logsumexp.default, True, -math.inf),
    aten.cummax.default: (aten.amax.default, True, -math.inf),
    aten.cummin.default: (aten.amin.default, True, math.inf),
}


#: Scans that also tell where the value is; that reads the whole row.
WITH_PLACES = {aten.cummax.default, aten.cummin.default}


COMBINE = {
    aten.cumsum.default: torch.add,
    aten.cumprod.default: torch.mul,
    aten.logcumsumexp.default: torch.logaddexp,
    aten.cummax.default: torch.maximum,
    aten.cummin.default: torch.minimum,
}


def running_extreme(rec: Recorder, func, args, kwargs):
    """``cummax`` and ``cummin``: of values the prefixes, of places the whole row."""
    found = row(rec, func, args, kwargs)
    x = args[0]
    if x.dim() == 0 or not x.dtype.is_floating_point:
        return found
    return prefix(rec, func, args, kwargs), found[1]


def _scan(func: Any, *args, **kwargs) -> Tensor:
    out = func(*args, **kwargs)
    return out[0] if func in WITH_PLACES else out


def prefix(rec: Recorder, func, args, kwargs):
    x, dim = args[0], args[1]
    if x.dim() == 0 or x.numel() == 0:
        return pointwise(rec, func, args, kwargs) if x.dim() == 0 else _scan(func, *args, **kwargs)
    dtype = kwargs.get("dtype")
    length = x.shape[dim]
    if length > DIRECT_PREFIX:
        with rec.again():
            return _two_level_prefix(func, x if dtype is None else x.to(dtype), dim)
    out = _scan(func, *args, **kwargs)
    single, listed, neutral = PREFIX[func]

    def arrange(t: Tensor) -> Tensor:
        return t.movedim(dim, -1).reshape(-1, 1, length).expand(-1, length, length)

    operand = rec.operand(x, arrange, 1)
    count = len(operand.ids)
    later = (
        torch.ones(length, length, dtype=torch.bool, device="cpu")
        .triu(1)
        .repeat(count // length, 1)
    )
    values = (
        torch.zeros((), dtype=x.dtype, device="cpu") if operand.values is None else operand.values
    )
    with rec.attached(x):
        values = values.expand(count, length).masked_fill(later, neutral)
    operand = Operand(operand.ids.masked_fill(later, 0), values, x.dtype)
    options = () if dtype is None else (("dtype", dtype),)
    rule = Rule(replay_reduction, single, (options, listed, None))
    rec.emit(rule, 1, [operand], out.movedim(dim, -1), [x])
    return out


def _two_level_prefix(func: Any, x: Tensor, dim: int) -> Tensor:
    """Prefixes inside chunks, then the chunks' totals: length^1.5 reads instead of length^2."""
    rows = x.movedim(dim, -1)
    length = rows.shape[-1]
    chunk = min(math.isqrt(length - 1) + 1, DIRECT_PREFIX)
    neutral = PREFIX[func][2]
    padded = torch.nn.functional.pad(rows, (0, -length % chunk), value=neutral)
    inside = _scan(func, padded.reshape(*rows.shape[:-1], -1, chunk), -1)
    before = _scan(func, inside[..., -1], -1)[..., :-1]
    before = torch.nn.functional.pad(before, (1, 0), value=neutral)
    whole = COMBINE[func](inside, before.unsqueeze(-1)).reshape(*rows.shape[:-1], -1)
    return whole[..., :length].movedim(-1, dim)
