"""Look-ups by a latent index: the result depends on the index and on every entry it may name.

    out[e] = table.flat[position[e] + sum_k stride_k * index_k[e]]

A constant table is one pool that all elements look up; of a table with latent entries every
element holds its own candidates. As in PyTorch negative positions count from the end, and there
are none beyond it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pyrograph.errors import InvalidProgram, ScopeBudgetError, UnsupportedOperation
from pyrograph.shapes import broadcast_shapes
from pyrograph.trace.rules.pointwise import pointwise
from pyrograph.trace.table_rows import Places, Rows
from pyrograph.trace.tape import Operand, Rule

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

aten = torch.ops.aten

#: Latent entries that one look-up may choose among, those of all its elements together.
MAX_CANDIDATES = 50_000_000

#: Version, least and largest position of the indices at hand; an entry goes with its tensor.
_ends_seen = WeakTensorKeyDictionary()


def _offset(static: tuple, indices: list[Tensor]) -> Tensor:
    """Position of an entry relative to the first one."""
    return sum(
        _from_the_start(i.long(), size) * stride
        for i, (size, stride) in zip(indices, static, strict=True)
    )


def _from_the_start(index: Tensor, size: int) -> Tensor:
    """Positions in 0 .. size - 1 of those in -size .. size - 1.

    Raises:
        InvalidProgram: one is outside.
    """
    if is_functorch_wrapped_tensor(index):  # under vmap nothing can be asked
        return torch.remainder(index, size)
    if not index.numel():
        return index
    low, high = _ends(index)
    if low >= 0 and high < size:
        return index
    if low < -size or high >= size:
        raise InvalidProgram(
            f"a latent index takes the value {high if high >= size else low} in a table of {size} "
            f"entries, whose positions are 0 to {size - 1} (or -{size} to -1, from the end). Give "
            "the table an entry for every state of the index, or the index fewer states."
        )
    return torch.where(index < 0, index + size, index)


def _ends(index: Tensor) -> tuple[int, int]:
    """Least and largest position, read from the device once for all look-ups by one index."""
    if index.is_inference():  # has no version to tell whether it has changed
        return tuple(torch.stack(index.aminmax()).tolist())
    version, *ends = _ends_seen.get(index, (None,))
    if version != index._version:
        ends = torch.stack(index.aminmax()).tolist()
        _ends_seen[index] = (index._version, *ends)
    return tuple(ends)


def replay_pool(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    """A constant table: ``table[position + offset of the latent indices]``."""
    table, position, *indices = operands
    return table.reshape(-1)[position + _offset(static, indices)]


def replay_choice(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    """A table with latent entries: every block holds its own candidates."""
    candidates, *indices = operands
    at = _offset(static, indices).unsqueeze(1)
    count = max(candidates.shape[0], at.shape[0])
    samples = max(candidates.shape[-1], at.shape[-1])
    candidates = candidates.expand(count, -1, samples)
    return candidates.gather(1, at.expand(count, 1, samples)).squeeze(1)


def _look_up(
    rec: Recorder,
    table: Tensor,
    out: Tensor,
    position: Tensor,
    latent: list[tuple[Tensor, int, int]],
) -> Tensor:
    """``out[e] = table.flat[position[e] + sum_k stride_k * index_k[e]]``; index, stride, size."""
    count = out.numel()
    if count == 0:
        return out
    indices = [rec.scalar_operand(i, out.shape, None) for i, _, _ in latent]
    sources = [table, *(i for i, _, _ in latent)]
    if not rec.is_latent(table):
        static = tuple((size, stride) for _, stride, size in latent)
        where = position.reshape(-1).cpu()
        places = Places(out.shape, where, tuple(indices), static, tuple(sources))
        return look_up_places(rec, out, table, places)
    if count == 1 and (whole := rec.range_of(table)) is not None and table.dim() == 1:
        # One latent vector, one index: all of it may be read.
        candidates = Operand(
            torch.arange(whole.start, whole.stop, whole.step, device="cpu")[None], None, table.dtype
        )
        rule = Rule(replay_choice, None, ((latent[0][2], 1),))
        operands = [candidates, *indices]
    else:
        sizes = [size for _, _, size in latent]
        offsets = torch.zeros(1, dtype=torch.int64, device=table.device)
        for _, stride, size in latent:
            offsets = (offsets[:, None] + torch.arange(size, device=table.device) * stride).reshape(
                -1
            )
        if count * len(offsets) > MAX_CANDIDATES:
            raise ScopeBudgetError(
                f"{rec.place()}: a latent index chooses among {len(offsets):,} latent entries for "
                f"each of {count:,} elements, over the budget of {MAX_CANDIDATES:,} in all "
                f"(pyrograph.trace.rules.lookups.MAX_CANDIDATES). Hold the index with "
                f"fixed={{...}}, or use a smaller table."
            )
        reach = position.reshape(-1, 1) + offsets
        candidates = rec.operand(table, lambda t: t.reshape(-1)[reach], 1)
        strides = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
        rule = Rule(replay_choice, None, tuple(zip(sizes, strides, strict=True)))
        operands = [candidates, *indices]
    return rec.emit(rule, 1, operands, out, sources)


def look_up_places(rec: Recorder, out: Tensor, table: Tensor, places: Places) -> Tensor:
    """``out[e] = table.flat[base_e + sum_k stride_k index_k[e]]`` of a constant table."""
    rule, operands = pool_look_up(rec, table, places)
    return rec.emit(rule, 1, operands, out, list(places.sources))


def pool_look_up(rec: Recorder, table: Tensor, places: Places) -> tuple[Rule, list[Operand]]:
    """The step of it."""
    where = Operand(None, places.base, torch.int64)
    operands = [rec.table_operand(table), where, *places.indices]
    return Rule(replay_pool, None, places.static), operands


def latent_index(rec: Recorder, func, args, kwargs, indices: list[Tensor]):
    if func in (aten.index.Tensor, aten._unsafe_index.Tensor):
        return _index_by_latent(rec, func, args)
    if func is aten.gather.default:
        x, dim, index = args[:3]
        if x.dim() == 0:
            return x.expand(index.shape).clone()
        out = func(x, dim, index)
        key = (x.shape, dim, index.shape)
        position = rec.positions.get(key)
        if position is None:
            at = torch.arange(x.numel(), device=x.device).view(x.shape)
            position = rec.positions[key] = at.gather(dim, torch.zeros_like(index))
        entry = (index, _row_major(x.shape)[dim], x.shape[dim])
        return _look_up(rec, x, out, position, [entry])
    with rec.again():
        if func is aten.where.self:
            pass
        elif func is aten.index_select.default:
            x, dim, index = args
            return x[(slice(None),) * (dim % x.dim()) + (index.reshape(-1),)]
        # x[z] would read a 0-dim index in Python
        elif func is aten.embedding.default:
            return aten.index.Tensor(args[0], [args[1].long()])
        elif func is aten.take.default:
            return aten.index.Tensor(args[0].reshape(-1), [args[1].long()])
        elif func is aten.masked_fill.Scalar:
            value = torch.full((), args[2], dtype=args[0].dtype, device=args[0].device)
            return torch.where(args[1], value, args[0])
        elif func in (aten.scatter.value, aten.scatter.src):
            x, dim, index, value = args[:4]
            if _covers(x, dim, index):
                return _scattered(x, dim, index, value)
        elif func is aten.index_put.default:
            x, index, value = args[:3]
            if len(index) == 1 and index[0].dtype == torch.bool and value.numel() == 1:
                mask = index[0].reshape(index[0].shape + (1,) * (x.dim() - index[0].dim()))
                return torch.where(mask, value.reshape(()), x)
    if func is aten.where.self:
        return pointwise(rec, func, args, kwargs)
    if func is aten.masked_select.default:
        raise rec.latent_shape(func, args[1])
    latent = next(i for i in indices if rec.is_latent(i))
    raise UnsupportedOperation(
        f"{rec.place()}: {func} writes to a position given by {rec.sites_behind(latent)}. Read "
        f"instead of writing: build the result with torch.where or a one-hot product."
    )


def _covers(x: Tensor, dim: int, index: Tensor) -> bool:
    """Whether every row of a table along an axis is written to."""
    if not x.dim():
        return False
    rest = [size for axis, size in enumerate(x.shape) if axis != dim % x.dim()]
    return rest == [size for axis, size in enumerate(index.shape) if axis != dim % x.dim()]


def _scattered(x: Tensor, dim: int, index: Tensor, value: Tensor | complex) -> Tensor:
    """What a scatter writes, by comparison with every place: a one-hot encoding, mostly."""
    places = torch.arange(x.shape[dim], device=x.device)
    places = places.view([-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())])
    for k in range(index.shape[dim]):  # later ones write over earlier ones
        new = value.narrow(dim, k, 1) if isinstance(value, Tensor) else x.new_tensor(value)
        x = torch.where(index.narrow(dim, k, 1) == places, new, x)
    return x


def _index_by_latent(rec: Recorder, func, args):
    x, index = args
    latent = [i is not None and rec.is_latent(i) for i in index]
    if any(dyn and i.dtype == torch.bool for i, dyn in zip(index, latent, strict=True)):
        raise rec.latent_shape(func, next(i for i in index if i is not None and rec.is_latent(i)))
    out = func(x, index)
    if any(i is not None and i.dtype == torch.bool for i in index):  # constant masks: positions
        expanded: list[Tensor | None] = []
        for i in index:
            mask = i is not None and i.dtype == torch.bool
            expanded += list(i.nonzero().unbind(1)) if mask else [i]
        index = expanded
        latent = [i is not None and rec.is_latent(i) for i in index]
    rows = None if rec.is_latent(x) else _rows_chosen(rec, x, index, latent, out)
    if rows is not None:
        return rec.postpone(out, rows)
    key = (x.shape, tuple(None if i is None else i.shape for i in index))
    cacheable = all(dyn or i is None for i, dyn in zip(index, latent, strict=True))
    position = rec.positions.get(key) if cacheable else None
    if position is None:
        at = torch.arange(x.numel(), device=x.device).view(x.shape)
        still = [torch.zeros_like(i) if dyn else i for i, dyn in zip(index, latent, strict=True)]
        position = func(at, still)
        if cacheable:
            rec.positions[key] = position
    strides = _row_major(x.shape)
    if out.dim() == 0 or all(i is None or i.dim() == 0 for i in index):
        entries = [
            (i, strides[d], x.shape[d])
            for d, (i, dyn) in enumerate(zip(index, latent, strict=True))
            if dyn
        ]
        return _look_up(rec, x, out, position, entries)
    shape = broadcast_shapes(*(i.shape for i in index if i is not None))
    places = [d for d, i in enumerate(index) if i is not None]
    adjacent = places == list(range(places[0], places[-1] + 1))
    lead = places[0] if adjacent else 0
    tail = out.dim() - lead - len(shape)
    entries = []
    for d, (i, dyn) in enumerate(zip(index, latent, strict=True)):
        if dyn:
            view = i.expand(shape).reshape((1,) * lead + tuple(shape) + (1,) * tail)
            entries.append((view.expand(out.shape), strides[d], x.shape[d]))
    return _look_up(rec, x, out, position, entries)


def _rows_chosen(
    rec: Recorder, x: Tensor, index: list[Tensor | None], latent: list[bool], out: Tensor
) -> Rows | None:
    """Rows of a constant table, by indices of its first axes; None where they are numbers, or lie
    otherwise."""
    while index[-1] is None:
        index = index[:-1]
    num_axes = len(index)
    if any(i is None for i in index) or x.shape[num_axes:].numel() <= 1 or not out.numel():
        return None
    if not out.is_contiguous():  # of a table whose axes lie in another order
        return None
    axes = x.shape[:num_axes]
    batch = broadcast_shapes(*(i.shape for i in index))
    strides = _row_major(axes)
    indices, static = [], []
    for i, stride, size, is_latent in zip(index, strides, axes, latent, strict=False):
        if not is_latent:
            continue
        operand = rec.scalar_operand(i, batch, None)
        if operand.values is not None:  # parts of it are constants
            return None
        indices.append(operand)
        static.append((size, stride))
    base = torch.zeros(batch, dtype=torch.int64, device="cpu")
    for i, stride, size, is_latent in zip(index, strides, axes, latent, strict=False):
        if not is_latent:
            at = i.cpu()
            base = base + torch.where(at < 0, at + size, at) * stride
    sources = tuple(i for i, is_latent in zip(index, latent, strict=False) if is_latent)
    places = Places(batch, base.reshape(-1), tuple(indices), tuple(static), sources)
    return Rows(places, rec.table_of_rows(x, num_axes))


def _row_major(shape: torch.Size) -> list[int]:
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return strides
