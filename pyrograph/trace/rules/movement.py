"""Operations that only move elements: the same operation runs on the ids.

Where the index itself is latent they are look-ups, and where they add up, accumulations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from pyrograph.trace.rules.lookups import latent_index
from pyrograph.trace.rules.writes import accumulate

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

aten = torch.ops.aten


#: Operations that only move elements, with the positions of their index arguments.
MOVEMENT: dict[Any, tuple[int, ...]] = {
    aten.index.Tensor: (1,),
    aten._unsafe_index.Tensor: (1,),
    aten.index_select.default: (2,),
    aten.gather.default: (2,),
    aten.take.default: (1,),
    aten.embedding.default: (1,),
    aten.masked_select.default: (1,),
    aten.where.self: (0,),
    aten.masked_fill.Scalar: (1,),
    aten.masked_scatter.default: (1,),
    aten.scatter.src: (2,),
    aten.scatter.value: (2,),
    aten.index_put.default: (1,),
    aten.index_copy.default: (2,),
    aten.index_fill.int_Scalar: (2,),
    aten.cat.default: (),
    aten.stack.default: (),
    aten.clone.default: (),
    aten.contiguous.default: (),
    aten._unsafe_view.default: (),
    aten.flip.default: (),
    aten.roll.default: (),
    aten.repeat.default: (),
    aten.repeat_interleave.self_int: (),
    aten.constant_pad_nd.default: (),
    aten.tril.default: (),
    aten.triu.default: (),
    aten.diag_embed.default: (),
    aten.diagonal_copy.default: (),
    aten.select_scatter.default: (),
    aten.slice_scatter.default: (),
    aten.diagonal_scatter.default: (),
    aten.unfold_copy.default: (),
    aten.block_diag.default: (),
}


#: Which positional argument is a fill value (a constant: id 0).
FILL = {
    aten.masked_fill.Scalar: 2,
    aten.scatter.value: 3,
    aten.index_fill.int_Scalar: 3,
    aten.constant_pad_nd.default: 2,
}


def _index_tensors(func: Any, args: tuple) -> list[Tensor]:
    found = []
    for p in MOVEMENT[func]:
        items = args[p] if isinstance(args[p], (list, tuple)) else [args[p]]
        found += [t for t in items if isinstance(t, Tensor)]
    return found


def movement(rec: Recorder, func, args, kwargs):
    indices = _index_tensors(func, args)
    if any(rec.is_latent(i) for i in indices):
        return latent_index(rec, func, args, kwargs, indices)
    if func is aten.index_put.default and len(args) > 3 and args[3]:
        return accumulate(rec, func, args, kwargs)
    out = func(*args, **kwargs)
    if rec.is_latent(out):
        return out  # the operation turned out to be a view
    places = MOVEMENT[func]
    sources = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]

    def to_ids(value: Any) -> Any:
        return tree_map(lambda v: rec.ids_or_zero(v) if isinstance(v, Tensor) else v, value)

    id_args = tuple(a if p in places else to_ids(a) for p, a in enumerate(args))
    id_kwargs = to_ids(kwargs)
    if func in FILL and len(id_args) > FILL[func]:
        id_args = (*id_args[: FILL[func]], 0)
    id_kwargs = {k: v for k, v in id_kwargs.items() if k not in ("dtype", "memory_format", "value")}
    rec.write(out, func(*id_args, **id_kwargs), max(rec.level(t) for t in sources))
    return out


def view(rec: Recorder, func, args, kwargs):
    """A view shares its storage's shadow; one that had to copy (``reshape``) moves the ids too."""
    out = func(*args, **kwargs)
    outs = out if isinstance(out, (list, tuple)) else [out]
    if not all(rec.is_latent(t) or t.numel() == 0 for t in outs):
        ids = func(rec.ids(args[0]), *args[1:], **kwargs)
        for t, t_ids in zip(outs, ids if isinstance(ids, (list, tuple)) else [ids], strict=True):
            rec.write(t, t_ids, rec.level(args[0]))
    return out
