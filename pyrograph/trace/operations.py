"""The table of operations: how each output element depends on the input elements.

Families, in the order in which :func:`handler_of` looks them up:

====================  =========================================================
views                 nothing to do: the shadow is viewed with the storage
constants             ``zeros_like`` and the like read only the shape
movement              the same operation runs on the ids
pointwise             element i of the output reads element i of every input
matrix products       multiply and sum; a constant zero entry is no dependence
reductions            one block per kept position, its core the reduced axes
prefixes              ``cumsum``: element k reads elements 0..k
rows                  ``softmax``, ``sort``: every output reads its whole row
matrices              ``cholesky``, ``solve``: every output reads its matrix
look-ups              indexing by a latent: the index and every entry it may name
in place              the functional twin, then a write to the shadow
refused               control flow, random draws, latent shapes
otherwise             PyTorch's own decomposition, else one dense block (warned)
====================  =========================================================

A replay function gets operands ``[count, *core, S]`` (or 1 for the last axis, or for the first
where all blocks agree) and returns ``[count, width, S]`` or ``[count, S]``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._pytree import tree_flatten, tree_unflatten

from pyrograph.errors import (
    DenseScopeWarning,
    RandomDrawError,
    ScopeBudgetError,
    UnsupportedOperation,
)
from pyrograph.trace.tape import Operand, Rule

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

aten = torch.ops.aten
Handler = Callable[["Recorder", Any, tuple, dict], Any]

#: Longest row whose prefixes are taken directly (length squared reads); longer ones in two levels.
DIRECT_PREFIX = 128


class _Slot:
    """Stands for "the next operand" in a recorded argument list."""

    def __repr__(self) -> str:
        return "slot"


SLOT = _Slot()


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# ---------------------------------------------------------------------- views and constants
def _run(rec, func, args, kwargs):
    return func(*args, **kwargs)


CONSTANTS = {
    aten.full_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.empty_like.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten._linalg_check_errors.default,
    aten.sym_size.default,
}

# ---------------------------------------------------------------------- movement
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


def _movement(rec: Recorder, func, args, kwargs):
    indices = _index_tensors(func, args)
    if any(rec.is_latent(i) for i in indices):
        return _latent_index(rec, func, args, kwargs)
    if func is aten.index_put.default and len(args) > 3 and args[3]:
        return _accumulate(rec, func, args, kwargs)
    out = func(*args, **kwargs)
    if out.untyped_storage()._cdata in rec._shadows:
        return out  # the operation turned out to be a view
    known = {id(i) for i in indices}
    leaves, spec = tree_flatten((args, kwargs))
    sources = [t for t in leaves if isinstance(t, Tensor)]
    ids = [
        rec.ids_or_zero(t) if isinstance(t, Tensor) and id(t) not in known else t for t in leaves
    ]
    id_args, id_kwargs = tree_unflatten(ids, spec)
    if func in FILL and len(id_args) > FILL[func]:
        id_args = (*id_args[: FILL[func]], 0)
    id_kwargs = {k: v for k, v in id_kwargs.items() if k not in ("dtype", "memory_format", "value")}
    rec.write(out, func(*id_args, **id_kwargs), max(rec.level(t) for t in sources))
    return out


# ---------------------------------------------------------------------- pointwise
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
    if len(template) == len(operands) and not options and func not in SAME_SHAPE:
        out = func(*operands)
        return out[0] if isinstance(out, tuple) else out
    queue = iter(operands)
    if func in SAME_SHAPE:
        queue = iter(torch.broadcast_tensors(*operands))
    args = [next(queue) if a is SLOT else a for a in template]
    out = func(*args, **{k: next(queue) if v is SLOT else v for k, v in options})
    return out[0] if isinstance(out, tuple) else out


def _pointwise(rec: Recorder, func, args, kwargs):
    out = func(*args, **kwargs)
    result = out[0] if isinstance(out, tuple) else out
    if result.numel() == 0:
        return out
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
        tuple(SLOT if isinstance(a, Tensor) else _frozen(a) for a in args),
        tuple((k, SLOT if isinstance(v, Tensor) else _frozen(v)) for k, v in kwargs.items()),
    )
    rule = Rule(replay_pointwise, func, static)
    rec.emit(rule, 1, operands, result, tensors)
    if func in (aten.mul.Tensor, aten.pow.Tensor_Tensor):
        _forget_zeros(rec, result, tensors if func is aten.mul.Tensor else tensors[1:], shape)
    return out


def _forget_zeros(rec: Recorder, out: Tensor, constants: list[Tensor], shape) -> None:
    """``0 * x`` is the constant 0 and ``x ** 0`` the constant 1: no dependence."""
    for t in constants:
        if not rec.is_latent(t):
            zero = t == 0
            if bool(zero.any()):
                rec.write(out, rec.ids_or_zero(out).masked_fill(zero.expand(shape), 0))


def _cast(rec: Recorder, func, args, kwargs):
    source, dtype = args[0], kwargs.get("dtype", args[0].dtype)
    out = func(*args, **kwargs)
    if dtype == source.dtype:  # a copy, perhaps to another device
        rec.write(out, rec.ids(source).to(out.device), rec.level(source))
        return out
    cast = _pointwise(rec, func, (source,), {"dtype": dtype})
    rec.write(out, rec.ids(cast).to(out.device), rec.level(cast))
    return out


# ---------------------------------------------------------------------- matrix products
def replay_dot(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    a, b = operands
    for left, right in ((a, b), (b, a)):
        # One latent vector read by all blocks, against constants: a plain matrix product.
        if left.shape[-1] == 1 and right.shape[0] == 1 and right.shape[-1] > 1:
            return left[..., 0] @ right[0]
    return (a * b).sum(1)


DOT = Rule(replay_dot, None)


def _bmm(rec: Recorder, func, args, kwargs):
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
    zero = other.values == 0
    if other.ids is not None:
        zero = zero & (other.ids == 0)
    if not bool(zero.any()):
        return operand
    values = operand.values
    if values is None:
        values = torch.zeros((1, 1), dtype=operand.dtype).expand(operand.ids.shape)
    return Operand(operand.ids.masked_fill(zero, 0), values, operand.dtype)


def _mm(rec, func, args, kwargs):
    return torch.bmm(args[0].unsqueeze(0), args[1].unsqueeze(0)).squeeze(0)


def _mv(rec, func, args, kwargs):
    return torch.bmm(args[0].unsqueeze(0), args[1].view(1, -1, 1)).view(-1)


def _dot(rec, func, args, kwargs):
    return torch.bmm(args[0].view(1, 1, -1), args[1].view(1, -1, 1)).view(())


def _distances(rec, func, args, kwargs):
    """``cdist``: entry (i, j) reads row i of one and row j of the other."""
    a, b, p = args[:3]
    return torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), ord=p, dim=-1)


def _pair_distances(rec, func, args, kwargs):
    x = args[0]
    i, j = torch.triu_indices(len(x), len(x), 1, device=x.device)
    return torch.linalg.vector_norm(x[i] - x[j], ord=args[1] if len(args) > 1 else 2, dim=-1)


def _median(rec, func, args, kwargs):
    return args[0].reshape(-1).median(0).values


def _solve_vector(rec, func, args, kwargs):
    """A vector on the right-hand side is a matrix of one column."""
    a, b = args
    if b.dim() == a.dim():
        return _matrix(rec, func, args, kwargs)
    with rec:
        x, *factors = func(a, b.unsqueeze(-1), **kwargs)
        return (x.squeeze(-1), *factors)


def _addmm(rec, func, args, kwargs):
    base, a, b = args
    beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
    product = a @ b
    if alpha != 1:
        product = product * alpha
    return product + (base if beta == 1 else base * beta)


def _rerun(rewrite: Handler) -> Handler:
    """The rewriting uses recorded operations itself."""

    def handler(rec: Recorder, func, args, kwargs):
        with rec:
            return rewrite(rec, func, args, kwargs)

    return handler


# ---------------------------------------------------------------------- reductions
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
TWO_OUTPUTS = {
    aten.max.dim,
    aten.min.dim,
    aten.median.dim,
    aten.mode.default,
    aten.kthvalue.default,
}


def _norm(x: Tensor, options: dict) -> Tensor:
    """``linalg.vector_norm(x, dim=1)``: an order of magnitude slower unless that axis is dense."""
    rows = x.movedim(1, -1)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    return torch.linalg.vector_norm(rows, **{**options, "dim": -1})


def replay_reduction(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    options, listed, output = static
    if func is aten.linalg_vector_norm.default:
        return _norm(operands[0], dict(options))
    out = func(operands[0], **{"dim": [1] if listed else 1, **dict(options)})
    return out if output is None else out[output]


@cache
def _reduction_form(func: Any) -> tuple[list[str], Any, bool | None]:
    """Argument names, the one-axis form, and whether its ``dim`` is a list (None: has none)."""
    single = WHOLE.get(func, func)
    dim = next((a.type for a in single._schema.arguments if a.name == "dim"), None)
    names = [a.name for a in func._schema.arguments]
    return names, single, None if dim is None else "List[int]" in str(dim)


def _reduction(rec: Recorder, func, args, kwargs):
    x = args[0]
    out = func(*args, **kwargs)
    names, single, listed = _reduction_form(func)
    if listed is None:
        return _dense(rec, func, args, kwargs)
    given = dict(zip(names, args, strict=False)) | kwargs
    dims = given.pop("dim", None)
    dims = [dims] if isinstance(dims, int) else list(dims or ())
    dims = sorted({d % max(x.dim(), 1) for d in dims}) or list(range(x.dim()))
    keep = [d for d in range(x.dim()) if d not in dims]
    core = math.prod(x.shape[d] for d in dims) if x.dim() else 1
    count = x.numel() // max(core, 1)
    if x.numel() == 0:
        return out

    def arrange(t: Tensor) -> Tensor:
        return t.permute(keep + dims).reshape(count, core) if t.dim() else t.reshape(1, 1)

    options = tuple((k, _frozen(v)) for k, v in given.items() if k not in ("self", "keepdim"))
    operand = rec.operand(x, arrange, 1)
    outs = out if isinstance(out, tuple) else (out,)
    for j, result in enumerate(outs):
        static = (options, listed, j if isinstance(out, tuple) else None)
        rule = Rule(replay_reduction, single, static)
        rec.emit(rule, 1, [operand], result, [x])
    return out


# ---------------------------------------------------------------------- prefixes
#: Scans as a reduction over "everything so far", with the neutral element.
PREFIX = {
    aten.cumsum.default: (aten.sum.dim_IntList, True, 0.0),
    aten.cumprod.default: (aten.prod.dim_int, False, 1.0),
    aten.logcumsumexp.default: (aten.logsumexp.default, True, -math.inf),
}
COMBINE = {
    aten.cumsum.default: torch.add,
    aten.cumprod.default: torch.mul,
    aten.logcumsumexp.default: torch.logaddexp,
}


def _prefix(rec: Recorder, func, args, kwargs):
    x, dim = args[0], args[1]
    if x.dim() == 0 or x.numel() == 0:
        return _pointwise(rec, func, args, kwargs) if x.dim() == 0 else func(*args, **kwargs)
    dtype = kwargs.get("dtype")
    length = x.shape[dim]
    if length > DIRECT_PREFIX:
        with rec:
            return _two_level_prefix(func, x if dtype is None else x.to(dtype), dim)
    out = func(*args, **kwargs)
    single, listed, neutral = PREFIX[func]
    later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)

    def arrange(t: Tensor) -> Tensor:
        rows = t.movedim(dim, -1).reshape(-1, 1, length).expand(-1, length, length)
        if t.dtype == torch.int64 and t is not x:
            return rows.masked_fill(later, 0)
        return rows.masked_fill(later, neutral)

    operand = rec.operand(x, arrange, 1)
    if operand.values is None:
        blank = torch.full((1, 1), neutral, dtype=x.dtype).expand(operand.ids.shape)
        operand = Operand(operand.ids, blank, x.dtype)
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
    inside = func(padded.reshape(*rows.shape[:-1], -1, chunk), -1)
    before = func(inside[..., -1], -1)[..., :-1]
    before = torch.nn.functional.pad(before, (1, 0), value=neutral)
    whole = COMBINE[func](inside, before.unsqueeze(-1)).reshape(*rows.shape[:-1], -1)
    return whole[..., :length].movedim(-1, dim)


# ---------------------------------------------------------------------- rows
ROWS = {
    aten._softmax.default,
    aten._log_softmax.default,
    aten.sort.default,
    aten.sort.stable,
    aten.cummax.default,
    aten.cummin.default,
    aten.topk.default,
}


def replay_row(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    options, output = static
    out = func(operands[0], **{**dict(options), "dim": 1})
    return out if output is None else out[output]


def _row(rec: Recorder, func, args, kwargs):
    x = args[0]
    out = func(*args, **kwargs)
    if x.numel() == 0:
        return out
    names = [a.name for a in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    dim = given.pop("dim", -1)
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


# ---------------------------------------------------------------------- matrices
#: Trailing axes that form one input, and one output, of an operation batched over the rest.
MATRIX: dict[Any, tuple[tuple[int, ...], tuple[int, ...]]] = {
    aten.linalg_cholesky_ex.default: ((2,), (2, 0)),
    aten.linalg_inv_ex.default: ((2,), (2, 0)),
    aten._linalg_slogdet.default: ((2,), (0, 0, 2, 1)),
    aten._linalg_det.default: ((2,), (0, 2, 1)),
    aten._linalg_eigh.default: ((2,), (1, 2)),
    aten._linalg_svd.default: ((2,), (2, 1, 2)),
    aten.linalg_qr.default: ((2,), (2, 2)),
    aten.linalg_lu_factor_ex.default: ((2,), (2, 1, 0)),
    aten.linalg_matrix_exp.default: ((2,), (2,)),
    aten._linalg_solve_ex.default: ((2, 2), (2, 2, 1, 0)),
    aten.cholesky_solve.default: ((2, 2), (2,)),
    aten.cholesky_inverse.default: ((2,), (2,)),
    aten.triangular_solve.default: ((2, 2), (2, 2)),
}


def replay_matrix(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    others, options, output, core = static
    batch_first = [t.movedim(-1, 0) for t in operands]  # [S or 1, count or 1, *core]
    lead = torch.broadcast_shapes(*(t.shape[:2] for t in batch_first))
    out = func(*(t.expand(*lead, *t.shape[2:]) for t in batch_first), *others, **dict(options))
    out = out if output is None else out[output]
    return out.reshape(*lead, core).movedim(0, -1)


def _matrix(rec: Recorder, func, args, kwargs):
    ranks_in, ranks_out = MATRIX[func]
    inputs, others = args[: len(ranks_in)], args[len(ranks_in) :]
    out = func(*args, **kwargs)
    if any(t.dim() < r for t, r in zip(inputs, ranks_in, strict=True)):
        return _dense(rec, func, args, kwargs)
    batch = torch.broadcast_shapes(
        *(t.shape[: t.dim() - r] for t, r in zip(inputs, ranks_in, strict=True))
    )
    operands = [
        rec.operand(t, lambda v, r=r: v.expand(*batch, *v.shape[v.dim() - r :]), r)
        for t, r in zip(inputs, ranks_in, strict=True)
    ]
    outs = tuple(out) if isinstance(out, tuple) else (out,)
    options = tuple(kwargs.items())
    for j, (result, rank) in enumerate(zip(outs, ranks_out, strict=True)):
        if result.numel() == 0 or not result.dtype.is_floating_point:
            continue  # pivots and error flags
        width = math.prod(result.shape[result.dim() - rank :])
        static = (others, options, j if isinstance(out, tuple) else None, width)
        rule = Rule(replay_matrix, func, static)
        rec.emit(rule, width, operands, result, list(inputs))
    return out


def _solve_triangular(rec: Recorder, func, args, kwargs):
    """Columns of the right-hand side are solved apart, so each is a block of its own."""
    a, b = args
    left = kwargs.get("left", True)
    out = func(*args, **kwargs)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    n = a.shape[-1]
    apart = b.shape[-1] if left else b.shape[-2]
    columns = rec.operand(
        b, lambda t: (t.mT if left else t).expand(*batch, apart, n).unsqueeze(-1), 2
    )
    matrix = rec.operand(
        a, lambda t: (t if left else t.mT).unsqueeze(-3).expand(*batch, apart, n, n), 2
    )
    options = {k: v for k, v in kwargs.items() if k != "left"}
    if not left:
        options["upper"] = not options["upper"]
    rule = Rule(replay_matrix, func, ((), tuple(options.items()), None, n))
    rec.emit(rule, n, [matrix, columns], out.mT if left else out, [a, b])
    return out


# ---------------------------------------------------------------------- look-ups by a latent
def _offset(static: tuple, indices: list[Tensor]) -> Tensor:
    """Position of an entry relative to the first one, wrapped as PyTorch wraps."""
    return sum(
        torch.remainder(i.long(), size) * stride
        for i, (size, stride) in zip(indices, static, strict=True)
    )


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
        pool = rec.table_operand(table)
        where = Operand(None, position.reshape(-1).cpu(), torch.int64)
        static = tuple((size, stride) for _, stride, size in latent)
        rule, operands = Rule(replay_pool, None, static), [pool, where, *indices]
    elif count == 1 and (whole := rec.range_of(table)) is not None and table.dim() == 1:
        # One latent vector, one index: all of it may be read.
        candidates = Operand(
            torch.arange(whole.start, whole.stop, whole.step)[None], None, table.dtype
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
        if count * len(offsets) > 50_000_000:
            raise ScopeBudgetError(
                f"{rec.place()}: a latent index chooses among {len(offsets):,} latent entries for "
                f"each of {count:,} elements. Hold the index with fixed={{...}}, or use a smaller "
                f"table."
            )
        reach = position.reshape(-1, 1) + offsets
        candidates = rec.operand(table, lambda t: t.reshape(-1)[reach], 1)
        strides = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
        rule = Rule(replay_choice, None, tuple(zip(sizes, strides, strict=True)))
        operands = [candidates, *indices]
    return rec.emit(rule, 1, operands, out, sources)


def _latent_index(rec: Recorder, func, args, kwargs):
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
    with rec:
        if func is aten.where.self:
            pass
        elif func is aten.index_select.default:
            x, dim, index = args
            return x[(slice(None),) * (dim % x.dim()) + (index,)]
        elif func is aten.embedding.default:
            return args[0][args[1]]
        elif func is aten.take.default:
            return args[0].reshape(-1)[args[1]]
        elif func is aten.masked_fill.Scalar:
            value = torch.full((), args[2], dtype=args[0].dtype, device=args[0].device)
            return torch.where(args[1], value, args[0])
        elif func is aten.index_put.default:
            x, index, value = args[:3]
            if len(index) == 1 and index[0].dtype == torch.bool and value.numel() == 1:
                mask = index[0].reshape(index[0].shape + (1,) * (x.dim() - index[0].dim()))
                return torch.where(mask, value.reshape(()), x)
    if func is aten.where.self:
        return _pointwise(rec, func, args, kwargs)
    if func is aten.masked_select.default:
        raise rec.latent_shape(func, args[1])
    latent = next(i for i in _index_tensors(func, args) if rec.is_latent(i))
    raise UnsupportedOperation(
        f"{rec.place()}: {func} writes to a position given by {rec.sites_behind(latent)}. Read "
        f"instead of writing: build the result with torch.where or a one-hot product."
    )


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
    shape = torch.broadcast_shapes(*(i.shape for i in index if i is not None))
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


def _row_major(shape: torch.Size) -> list[int]:
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    return strides


# ---------------------------------------------------------------------- accumulation and writes
def _accumulate(rec: Recorder, func, args, kwargs):
    """``index_add`` and its kin as a padded gather and a sum."""
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
    count = torch.bincount(target, minlength=x.numel())
    rank = torch.arange(len(order), device=x.device) - (count.cumsum(0) - count)[target[order]]
    slots = torch.full((x.numel(), max(int(count.max()), 1)), len(target), device=x.device)
    slots[target[order], rank] = order
    with rec:
        padded = torch.nn.functional.pad(source.reshape(-1), (0, 1))
        added = padded[slots].sum(-1).view(x.shape)
        return x + added * kwargs["alpha"] if "alpha" in kwargs else x + added


ACCUMULATE = {aten.index_add.default, aten.scatter_add.default}


def _copy(rec: Recorder, func, args, kwargs):
    target, source = args[0], args[1]
    rec.forbid_leaf(target, func)
    if rec.is_latent(source) and source.dtype != target.dtype:
        with rec:
            source = source.to(target.dtype)
    out = func(target, source)
    rec.write(target, rec.ids_or_zero(source).expand(target.shape), rec.level(source))
    return out


def _fill(rec: Recorder, func, args, kwargs):
    rec.forbid_leaf(args[0], func)
    out = func(*args, **kwargs)
    value = args[1] if len(args) > 1 else None
    ids = rec.ids(value) if isinstance(value, Tensor) else None
    rec.write(args[0], 0 if ids is None else ids.expand(args[0].shape))
    return out


def _in_place(rec: Recorder, func, args, kwargs):
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
    with rec:
        result = twin(*args, **kwargs)
    target.copy_(result)
    rec.write(target, rec.ids_or_zero(result).expand(target.shape), rec.level(result))
    return target


# ---------------------------------------------------------------------- refused
CONTROL = {
    aten._local_scalar_dense.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.allclose.default,
    aten._is_all_true.default,
    aten._is_any_true.default,
}


def _refuse_control_flow(rec: Recorder, func, args, kwargs):
    latent = next(a for a in args if rec.is_latent(a))
    what = "if, float(), int(), bool() or .item()" if "local_scalar" in str(func) else str(func)
    raise rec.control_flow(what, latent)


def _refuse_random(rec: Recorder, func, args, kwargs):
    latent = next(a for a in tree_flatten((args, kwargs))[0] if rec.is_latent(a))
    raise RandomDrawError(
        f"{rec.place()}: {func} draws random numbers that depend on {rec.sites_behind(latent)}. "
        f"Draw them with pyro.sample, so that they are a site of the model."
    )


def _refuse_shape(rec: Recorder, func, args, kwargs):
    raise rec.latent_shape(func, next(a for a in args if rec.is_latent(a)))


# ---------------------------------------------------------------------- fallbacks
def _decompose(rec: Recorder, func, args, kwargs):
    with rec:
        known = decomposition_table.get(func)
        return known(*args, **kwargs) if known else func.decompose(*args, **kwargs)


class _Call:
    """An argument list compared by identity: dense blocks are never merged."""

    def __init__(self, leaves: list, spec: Any) -> None:
        self.leaves, self.spec = leaves, spec


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
    stacked = [
        t.movedim(-1, 0).expand(samples, count, *t.shape[1:-1]).flatten(0, 1) for t in operands
    ]
    out = torch.func.vmap(one)(*stacked)
    return out.reshape(samples, count, -1).movedim(0, -1)


def _dense(rec: Recorder, func, args, kwargs):
    """No rule: one block in which every output element reads every latent input element."""
    out = func(*args, **kwargs)
    warnings.warn(
        f"{rec.place()}: no dependence rule for {func}; its result is taken to depend on all of "
        f"its inputs.",
        DenseScopeWarning,
        stacklevel=2,
    )
    leaves, spec = tree_flatten((args, kwargs))
    latent = [t for t in leaves if isinstance(t, Tensor) and rec.is_latent(t)]
    operands = [rec.operand(t, lambda v: v.unsqueeze(0), t.dim()) for t in latent]
    call = _Call([SLOT if rec.is_latent(t) else t for t in leaves], spec)
    outs = out if isinstance(out, (tuple, list)) else (out,)
    for j, result in enumerate(outs):
        if not isinstance(result, Tensor) or result.numel() == 0:
            continue
        output = j if isinstance(out, (tuple, list)) else None
        rule = Rule(replay_dense, func, (call, output))
        rec.emit(rule, result.numel(), operands, result, latent)
    return out


@cache
def handler_of(func: Any) -> Handler:
    """The rule for an ATen operation."""
    tags = func.tags
    name = func._schema.name
    special: dict[Any, Handler] = {
        aten.copy_.default: _copy,
        aten.zero_.default: _fill,
        aten.fill_.Scalar: _fill,
        aten.fill_.Tensor: _fill,
        aten._to_copy.default: _cast,
        aten.bmm.default: _bmm,
        aten.mm.default: _rerun(_mm),
        aten.mv.default: _rerun(_mv),
        aten.dot.default: _rerun(_dot),
        aten.vdot.default: _rerun(_dot),
        aten.addmm.default: _rerun(_addmm),
        aten.addmv.default: _rerun(_addmm),
        aten.baddbmm.default: _rerun(_addmm),
        aten.linalg_solve_triangular.default: _solve_triangular,
        aten._linalg_solve_ex.default: _solve_vector,
        aten._cdist_forward.default: _rerun(_distances),
        aten._pdist_forward.default: _rerun(_pair_distances),
        aten.median.default: _rerun(_median),
    }
    if func in special:
        return special[func]
    if func in CONTROL or torch.Tag.data_dependent_output in tags:
        return _refuse_control_flow
    if torch.Tag.nondeterministic_seeded in tags:
        return _refuse_random
    if name in ("aten::set_", "aten::resize_", "aten::resize"):
        return _refuse_shape
    if func.is_view or func in CONSTANTS or torch.Tag.inplace_view in tags:
        return _run
    if func._schema.is_mutable:
        return _in_place
    if func in ACCUMULATE:
        return _accumulate
    if func in MOVEMENT:
        return _movement
    if func in PREFIX:
        return _prefix
    if func in ROWS:
        return _row
    if func in MATRIX:
        return _matrix
    if torch.Tag.pointwise in tags or func in POINTWISE:
        return _pointwise
    if torch.Tag.dynamic_output_shape in tags:
        return _refuse_shape
    if torch.Tag.reduction in tags or func in WHOLE or func in TWO_OUTPUTS:
        return _reduction
    if func in decomposition_table or func._can_decompose():
        return _decompose
    return _dense
