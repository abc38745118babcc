"""Operations without a rule: PyTorch's own decomposition, else one dense block (warned)."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._pytree import tree_flatten, tree_unflatten

from pyrograph.errors import DenseScopeWarning, UnsupportedOperation
from pyrograph.trace.rules.refusals import refuse_random
from pyrograph.trace.rules.slots import SLOT, Call
from pyrograph.trace.tape import Rule

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder


def decompose(rec: Recorder, func, args, kwargs):
    with rec.again():
        if func._can_decompose():  # into operations with gradients; the table's may be ``prims``
            return func.decompose(*args, **kwargs)
        if func in decomposition_table:
            return decomposition_table[func](*args, **kwargs)
    raise UnsupportedOperation(f"{rec.place()}: no rule for {func} on latents.")


def undo_prim(rec: Recorder, func, args, kwargs):
    """Decompositions may end in ``prims``, which have no gradients: use what they stand for."""
    with rec.again():
        return func.impl_aten(*args, **kwargs)


def replay_dense(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    call, output = static

    def one(*tensors: Tensor) -> Tensor:
        queue = iter(tensors)
        args, kwargs = tree_unflatten(
            [next(queue) if a is SLOT else a for a in call.leaves], call.spec
        )
        out = func(*args, **kwargs)
        return (out if output is None else out[output]).reshape(-1)

    samples = max(t.shape[-1] for t in operands)
    count = max(t.shape[0] for t in operands)
    stacked = [  # contiguous: some kernels read memory in order, whatever the strides
        t.movedim(-1, 0).expand(samples, count, *t.shape[1:-1]).flatten(0, 1).contiguous()
        for t in operands
    ]
    out = torch.func.vmap(one)(*stacked)
    return out.reshape(samples, count, -1).movedim(0, -1)


def _as_it_is(rec: Recorder, leaf: Any) -> Any:
    """A constant argument, kept from what the program may write to it later."""
    if not isinstance(leaf, Tensor):
        return leaf
    with rec.attached(leaf):
        return leaf.clone()


def dense(rec: Recorder, func, args, kwargs):
    """No rule: one block in which every output element reads every latent input element."""
    out = func(*args, **kwargs)
    leaves, spec = tree_flatten((args, kwargs))
    latent = [t for t in leaves if isinstance(t, Tensor) and rec.is_latent(t)]
    outs = out if isinstance(out, (tuple, list)) else (out,)
    if any(isinstance(t, Tensor) and t.layout is not torch.strided for t in outs):
        raise UnsupportedOperation(
            f"{rec.place()}: {func} makes a sparse tensor of {rec.sites_behind(latent[0])}, which "
            f"is not followed. Write its product with a vector v as torch.zeros(rows).index_add(0, "
            f"row, entries * v[column]), or fill a dense matrix: matrix[row, column] = entries."
        )
    warnings.warn(
        f"{rec.place()}: no dependence rule for {func}; its result is taken to depend on all of "
        f"its inputs.",
        DenseScopeWarning,
        stacklevel=2,
    )
    operands = [rec.operand(t, lambda v: v.unsqueeze(0), t.dim()) for t in latent]
    call = Call([SLOT if rec.is_latent(t) else _as_it_is(rec, t) for t in leaves], spec)
    for j, result in enumerate(outs):
        if not isinstance(result, Tensor) or result.numel() == 0:
            continue
        output = j if isinstance(out, (tuple, list)) else None
        rule = Rule(replay_dense, func, (call, output))
        rec.emit(rule, result.numel(), operands, result, latent)
    return out


def random(rec: Recorder, func, args, kwargs):
    """What is tagged as random; some layers are so even where they draw nothing."""
    given = {a.name: a.default_value for a in func._schema.arguments}
    given.update(zip(given, args, strict=False), **kwargs)
    # a share of nothing is left out, or the layer is not in training
    if 0 not in map(given.get, ("dropout_p", "dropout", "train")):
        return refuse_random(rec, func, args, kwargs)
    is_decomposed = func in decomposition_table or func._can_decompose()
    return (decompose if is_decomposed else dense)(rec, func, args, kwargs)
