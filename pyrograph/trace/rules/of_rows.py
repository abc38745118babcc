"""Operations on rows that latent indices choose, see :mod:`pyrograph.trace.table_rows`.

Each is tried before the rule of its family. Where an operation does more than act on every row by
itself, in the same way, it does nothing: then the rows are recorded, and the rule follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from pyrograph.trace.rules.lookups import look_up_places
from pyrograph.trace.rules.pointwise import SAME_SHAPE, ZERO_SCALAR
from pyrograph.trace.rules.reductions import default_axis, reduction_form
from pyrograph.trace.table_rows import Places, Rows, key_of, lies_at
from pyrograph.trace.tape import stack_operands

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

aten = torch.ops.aten
Handler = Callable[["Recorder", Any, tuple, dict], Any]
#: A function and its arguments.
Call = tuple[Callable, tuple, dict]

#: Whose result does not depend on what a constant 0 stands beside.
FORGETFUL = {aten.mul.Tensor, aten.pow.Tensor_Tensor}


def by_rows(of_rows: Handler, rule: Handler) -> Handler:
    """A rule, and what is tried before it where programs hold rows: None if it does not apply."""

    def handler(rec: Recorder, func, args, kwargs):
        if rec.has_rows:
            out = of_rows(rec, func, args, kwargs)
            if out is not None:
                return out
        return rule(rec, func, args, kwargs)

    return handler


def _tensors(*arguments: Any) -> list[Tensor]:
    return [t for t in tree_leaves(arguments) if isinstance(t, Tensor)]


def pointwise_of_rows(rec: Recorder, func, args, kwargs):
    """Of rows and of constants that are the same for all of them."""
    if func in SAME_SHAPE or (func in ZERO_SCALAR and _is_zero(args[1])):
        return None
    tensors = _tensors(args, kwargs)
    latent = [t for t in tensors if rec.is_latent(t)]
    found = [rec.rows(t) for t in latent]
    if any(rows is None or rows.places is not found[0].places for rows in found):
        return None
    places = found[0].places
    dims = max(t.dim() for t in tensors)
    tail = dims - len(places.batch)
    # numbers, of which nothing is saved; or rows that stand for something else
    if not tail or any(t.dim() != dims for t in latent):
        return None
    for t in tensors:
        if rec.is_latent(t):
            continue
        if t.shape[: max(0, t.dim() - tail)].numel() != 1:
            return None
        if func in FORGETFUL and bool((t == 0).any()):
            return None

    def of_table(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if rec.is_latent(value):
            return rec.rows(value).table
        return value.reshape(value.shape[value.dim() - tail :]) if value.dim() > tail else value

    def call() -> Call:
        return (func, *tree_map(of_table, (args, kwargs)))

    return _computed(rec, (func, args, kwargs), call, places)


def _is_zero(value: Any) -> bool:
    return not isinstance(value, Tensor) and value == 0


def reduction_of_rows(rec: Recorder, func, args, kwargs):
    """Reductions, and operations on whole axes, within the rows."""
    rows = rec.rows(args[0])
    if rows is None:
        return None
    lead, num_dims = len(rows.places.batch), args[0].dim()
    if num_dims == lead:
        return None
    names, single, is_list = reduction_form(func)
    given = dict(zip(names[1:], args[1:], strict=False)) | kwargs
    dims = given.pop("dim", default_axis(func))
    dims = [dims] if isinstance(dims, int) else list(dims or range(num_dims))
    dims = [d % num_dims - lead for d in dims]
    if not dims or min(dims) < 0 or (len(dims) > 1 and not is_list):
        return None
    given["dim"] = [d + 1 for d in dims] if is_list else dims[0] + 1
    return _computed(rec, (func, args, kwargs), lambda: (single, (rows.table,), given), rows.places)


def movement_of_rows(rec: Recorder, func, args, kwargs):
    """Numbers of rows, rows of several statements side by side, copies."""
    if func is aten.gather.default:
        return _gathered(rec, func, args, kwargs)
    if func is aten.stack.default:
        return _stacked(rec, func, args, kwargs)
    rows = rec.rows(args[0]) if func is aten.clone.default else None
    out = None if rows is None else func(*args, **kwargs)
    return rec.postpone(out, rows) if out is not None and out.is_contiguous() else None


def _gathered(rec: Recorder, func, args, kwargs):
    """One number, or some, of every row, by an index that may be latent too."""
    x, dim, index = args[:3]
    rows = rec.rows(x)
    if rows is None or rows.table.dim() != 2 or dim % x.dim() != x.dim() - 1:
        return None
    if index.shape[:-1] != x.shape[:-1] or not index.numel():
        return None
    width = x.shape[-1]
    if not rec.is_latent(index):
        return look_up_places(
            rec, func(*args, **kwargs), rows.table, rows.places.within(width, index.cpu())
        )
    operand = rec.scalar_operand(index, index.shape, None)
    if operand.values is not None:
        return None
    places = rows.places.within(width, torch.zeros(index.shape, dtype=torch.int64, device="cpu"))
    places = Places(
        places.batch,
        places.base,
        (*places.indices, operand),
        (*places.static, (width, 1)),
        (*places.sources, index),
    )
    return look_up_places(rec, func(*args, **kwargs), rows.table, places)


def _stacked(rec: Recorder, func, args, kwargs):
    """Along a new first axis, as the statements of a loop are."""
    found = [rec.rows(t) for t in args[0]]
    if any(rows is None for rows in found) or (args[1:] or (kwargs.get("dim", 0),))[0] != 0:
        return None
    head, places = found[0], [rows.places for rows in found]
    if any(
        (rows.table.shape, rows.table.dtype) != (head.table.shape, head.table.dtype)
        or (rows.places.batch, rows.places.static) != (head.places.batch, head.places.static)
        for rows in found
    ):
        return None
    keys = [lies_at(rows.table) for rows in found]
    tables = dict(zip(keys, (rows.table for rows in found), strict=True))
    table = head.table
    if len(tables) > 1:
        if not _may_compute(rec, len(tables) * table.numel(), len(found) * args[0][0].numel()):
            return None
        with _attached(rec, list(tables.values())):
            table = torch.cat(list(tables.values()))
    first = {key: k * len(head.table) for k, key in enumerate(tables)}
    counts = [len(p.base) for p in places]
    columns = zip(*(p.indices for p in places), strict=True)
    together = Places(
        torch.Size((len(places), *head.places.batch)),
        torch.cat([p.base + first[key] for p, key in zip(places, keys, strict=True)]),
        tuple(stack_operands(list(column), counts)[0] for column in columns),
        head.places.static,
        tuple(source for p in places for source in p.sources),
    )
    return rec.postpone(func(*args, **kwargs), Rows(together, table))


def _computed(rec: Recorder, call: Call, call_of_table: Callable[[], Call], places: Places):
    """The result of a call, whose rows are those of what another one makes of the table."""
    func, args, kwargs = call
    tensors = _tensors(args, kwargs)
    read = [rec.rows(t).table if rec.is_latent(t) else t for t in tensors]
    own = [table for t, table in zip(tensors, read, strict=True) if rec.is_latent(t)]
    out = func(*args, **kwargs)
    outs = out if isinstance(out, tuple) else (out,)
    if not all(t.is_contiguous() and t.numel() for t in outs):
        return None
    chosen = max(t.numel() for t in outs)
    made = len(own[0]) * chosen // len(places.base)
    size = max(made, *(table.numel() for table in own))
    with _attached(rec, read):
        tables = _of_table(rec, call_of_table(), own, size, chosen)
    if tables is None:
        return None
    for t, table in zip(outs, tables, strict=True):
        if t.shape != (*places.batch, *table.shape[1:]) or t.dtype != table.dtype:
            return None
    for t, table in zip(outs, tables, strict=True):
        rec.postpone(t, Rows(places, table))
    return out


def _of_table(
    rec: Recorder, call: Call, own: list[Tensor], size: int, chosen: int
) -> tuple[Tensor, ...] | None:
    """What a call makes of tables ``own``, one of this size, of which so many numbers are chosen;
    what is known since a loop made it before. None where the table is too large."""
    try:
        key = key_of(call, own)
    except TypeError:
        key = None
    known = None if key is None else rec.table_results.known(key)
    if known is not None:
        return known
    if not _may_compute(rec, size, chosen):
        return None
    func, args, kwargs = tree_map(lambda v: v.cpu() if isinstance(v, Tensor) else v, call)
    out = func(*args, **kwargs)
    tables = out if isinstance(out, tuple) else (out,)
    if key is not None:
        rec.table_results.keep(key, tables, call)
    return tables


def _may_compute(rec: Recorder, size: int, chosen: int) -> bool:
    """Whether a table is no larger than what is chosen of it, or may be computed ahead."""
    if size <= chosen:
        return True
    if size > rec.table_results.left:
        return False
    rec.table_results.left -= size
    return True


def _attached(rec: Recorder, tensors: Sequence[Tensor]):
    """Within, what is made of these tensors differentiates with respect to them."""
    return next((rec.attached(t) for t in tensors if rec.is_attached(t)), nullcontext())
