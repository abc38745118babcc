"""Matrix functions, batched over leading axes: every output element reads its whole matrix."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyrograph.shapes import broadcast_shapes
from pyrograph.trace.rules.fallback import dense
from pyrograph.trace.tape import Rule

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

aten = torch.ops.aten


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
    lead = broadcast_shapes(*(t.shape[:2] for t in batch_first))
    inputs = [t.expand(*lead, *t.shape[2:]) for t in batch_first]
    if func is aten.linalg_matrix_exp.default:  # refuses strided batches
        inputs = [t.contiguous() for t in inputs]
    out = func(*inputs, *others, **dict(options))
    out = out if output is None else out[output]
    return out.reshape(*lead, core).movedim(0, -1)


def matrix(rec: Recorder, func, args, kwargs):
    ranks_in, ranks_out = MATRIX[func]
    inputs, others = args[: len(ranks_in)], args[len(ranks_in) :]
    out = func(*args, **kwargs)
    if any(t.dim() < r for t, r in zip(inputs, ranks_in, strict=True)):
        return dense(rec, func, args, kwargs)
    batch = broadcast_shapes(
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


def solve_triangular(rec: Recorder, func, args, kwargs):
    """Columns of the right-hand side are solved apart, so each is a block of its own."""
    a, b = args
    left = kwargs.get("left", True)
    out = func(*args, **kwargs)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
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


def solve_vector(rec, func, args, kwargs):
    """A vector on the right-hand side is a matrix of one column."""
    a, b = args
    if b.dim() == a.dim():
        return matrix(rec, func, args, kwargs)
    with rec.again():
        x, *factors = func(a, b.unsqueeze(-1), **kwargs)
        return (x.squeeze(-1), *factors)
