"""In-place operations, and accumulation: writes to the ids of a storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyrograph.errors import UnsupportedOperation
from pyrograph.trace.rules.fallback import decompose

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

aten = torch.ops.aten


ACCUMULATE = {aten.index_add.default, aten.scatter_add.default}


def accumulate(rec: Recorder, func, args, kwargs):
    """``index_add`` and its kin as gathers of the bins and their sums.

    Bins are gathered with those of like size, padded to the next power of two: a full one widens
    no others.
    """
    x = args[0]
    where = args[2] if func in ACCUMULATE else None
    if where is not None and rec.is_latent(where):
        raise UnsupportedOperation(
            f"{rec.place()}: {func} adds at a position given by {rec.sites_behind(where)}. Use a "
            f"product with a one-hot vector instead."
        )
    at = torch.arange(x.numel(), device=x.device).view(x.shape)
    if func is aten.index_put.default:
        target = at[tuple(slice(None) if i is None else i for i in args[1])]
        source = args[2].expand(target.shape)
    elif func is aten.index_add.default:
        target, source = at.index_select(args[1], args[2]), args[3]
    else:
        index = args[2]
        box = tuple(slice(n) for n in index.shape)
        source = args[3][box]
        grid = torch.meshgrid(
            *(torch.arange(n, device=x.device) for n in index.shape), indexing="ij"
        )
        target = at[tuple(index if d == args[1] % x.dim() else g for d, g in enumerate(grid))]
    target = target.reshape(-1)
    order = target.argsort(stable=True)
    bins, count = target.unique(return_counts=True)
    log_size = torch.frexp((count - 1).double()).exponent  # rounded up
    gathers = []
    place = torch.full((x.numel(),), len(bins), device=x.device)  # that of the padding
    for k in log_size.unique().tolist():
        mine = log_size == k
        is_filled = torch.arange(1 << k, device=x.device) < count[mine].unsqueeze(1)
        slots = torch.full(is_filled.shape, len(target), device=x.device)
        slots[is_filled] = order[mine.repeat_interleave(count)]
        first = sum(map(len, gathers))
        place[bins[mine]] = torch.arange(first, first + len(slots), device=x.device)
        gathers.append(slots)
    with rec.again():
        padded = torch.nn.functional.pad(source.reshape(-1), (0, 1))
        sums = torch.cat([*(padded[slots].sum(-1) for slots in gathers), padded[-1:]])
        added = sums[place].view(x.shape).to(x.dtype)  # sums of whole numbers are int64
        return x + added * kwargs["alpha"] if "alpha" in kwargs else x + added


def copy(rec: Recorder, func, args, kwargs):
    target, source = args[0], args[1]
    rec.forbid_leaf(target, func)
    if rec.is_latent(source) and source.dtype != target.dtype:
        with rec.again():
            source = source.to(target.dtype)
    out = func(target, source)
    rec.write(target, rec.ids_or_zero(source).expand(target.shape), rec.level(source))
    return out


def fill(rec: Recorder, func, args, kwargs):
    rec.forbid_leaf(args[0], func)
    out = func(*args, **kwargs)
    value = args[1] if len(args) > 1 else None
    if rec.is_latent(value):
        rec.write(args[0], rec.ids(value).expand(args[0].shape), rec.level(value))
    else:
        rec.write(args[0], 0)
    return out


def in_place(rec: Recorder, func, args, kwargs):
    written = [i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None]
    if written != [0] and "out" not in kwargs:  # such as a batch norm's running mean
        return decompose(rec, func, args, kwargs)
    name = func._schema.name.split("::")[1].rstrip("_")
    packet = getattr(aten, name, None)
    twin = getattr(packet, func._overloadname, None)
    target = args[0]
    if "out" in kwargs:
        target, kwargs = kwargs["out"], {k: v for k, v in kwargs.items() if k != "out"}
        twin = getattr(packet, "Tensor" if func._overloadname == "out" else "default", None)
        twin = twin or getattr(packet, "default", None)
    if twin is None or not isinstance(target, Tensor):
        raise UnsupportedOperation(
            f"{rec.place()}: no rule for the in-place operation {func} on latents; use the form "
            f"that returns a new tensor."
        )
    rec.forbid_leaf(target, func)
    with rec.again():
        result = twin(*args, **kwargs)
    if target.shape != result.shape and not rec.is_latent(target):
        target.resize_(result.shape)  # an empty ``out``, as PyTorch does it
    target.copy_(result)
    rec.write(target, rec.ids_or_zero(result).expand(target.shape), rec.level(result))
    return target
