"""The table of operations: how each output element depends on the input elements.

Families, in the order in which :func:`handler_of` looks them up:

====================  =========================================================
prims                 what they stand for
of their own          products, convolutions, writes and more: :data:`SPECIAL`
control flow          refused, as are random draws and latent shapes
constants             ``zeros_like`` and the like read only the shape
views                 nothing to do: the shadow is viewed with the storage
in place              the functional twin, then a write to the shadow
accumulations         gathers of the bins and their sums
movement              the same operation runs on the ids; by a latent index it is
                      a look-up of the index and every entry it may name
prefixes              ``cumsum``, ``cummax``: element k reads elements 0..k
rows                  ``softmax``, ``sort``: every output reads its whole row
matrices              ``cholesky``, ``svd``: every output reads its matrix
pointwise             element i of the output reads element i of every input
reductions            one block per kept position, its core the reduced axes
otherwise             PyTorch's own decomposition, else one dense block (warned)
====================  =========================================================

Of rows that a latent index chooses from a constant table what is computed of each by itself is
computed of the table first: movement, rows, pointwise and reductions (``table_rows.py``).

The rules are in ``rules/``, one family a file. A replay function gets operands
``[count, *core, S]`` (or 1 for the last axis, or for the first where all blocks agree) and
returns ``[count, width, S]`` or ``[count, S]``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import decomposition_table

from pyrograph.trace.rules.convolutions import convolution
from pyrograph.trace.rules.fallback import decompose, dense, random, undo_prim
from pyrograph.trace.rules.matrices import MATRIX, matrix, solve_triangular, solve_vector
from pyrograph.trace.rules.movement import MOVEMENT, movement, view
from pyrograph.trace.rules.of_rows import (
    by_rows,
    movement_of_rows,
    pointwise_of_rows,
    reduction_of_rows,
)
from pyrograph.trace.rules.pointwise import POINTWISE, cast, pointwise
from pyrograph.trace.rules.products import bmm
from pyrograph.trace.rules.reductions import (
    ONE_AXIS,
    ROWS,
    WHOLE,
    bincount,
    has_dim,
    reduction,
    row,
)
from pyrograph.trace.rules.refusals import (
    CONTROL,
    refuse_control_flow,
    refuse_ctc_loss,
    refuse_least_squares,
    refuse_reinterpretation,
    refuse_shape,
)
from pyrograph.trace.rules.rewrites import (
    addcdiv,
    addcmul,
    addmm,
    bucketize,
    distances,
    dot,
    embedding_bag,
    lerp,
    median,
    mm,
    mv,
    pair_distances,
    rerun,
    sparse_product,
)
from pyrograph.trace.rules.scans import PREFIX, WITH_PLACES, prefix, running_extreme
from pyrograph.trace.rules.writes import ACCUMULATE, accumulate, copy, fill, in_place

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

aten = torch.ops.aten
Handler = Callable[["Recorder", Any, tuple, dict], Any]

#: Products that a constant sparse matrix may be a factor of.
SPARSE_PRODUCTS = {
    aten.mv.default,
    aten.mm.default,
    aten.addmm.default,
    aten._sparse_mm.default,
    aten._sparse_addmm.default,
}

#: Operations that read only shapes, or where a tensor lies.
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
    aten.is_pinned.default,
    aten._has_same_storage_numel.default,
}


#: Operations with a rule of their own.
SPECIAL: dict[Any, Handler] = {
    aten.copy_.default: copy,
    aten.zero_.default: fill,
    aten.fill_.Scalar: fill,
    aten.fill_.Tensor: fill,
    aten._to_copy.default: cast,
    aten.bmm.default: bmm,
    aten.convolution.default: convolution,
    aten.mm.default: rerun(mm),
    aten.mv.default: rerun(mv),
    aten.dot.default: rerun(dot),
    aten.vdot.default: rerun(dot),
    aten.addmm.default: rerun(addmm),
    aten.addmv.default: rerun(addmm),
    aten.baddbmm.default: rerun(addmm),
    aten.linalg_solve_triangular.default: solve_triangular,
    aten._linalg_solve_ex.default: solve_vector,
    aten._cdist_forward.default: rerun(distances),
    aten._pdist_forward.default: rerun(pair_distances),
    aten.median.default: rerun(median),
    aten._embedding_bag.default: embedding_bag,
    aten._embedding_bag_forward_only.default: embedding_bag,
    aten.bincount.default: bincount,
    aten.addcmul.default: rerun(addcmul),
    aten.addcdiv.default: rerun(addcdiv),
    aten.lerp.Tensor: rerun(lerp),
    aten.lerp.Scalar: rerun(lerp),
    aten.bucketize.Tensor: rerun(bucketize),
    aten.view.dtype: refuse_reinterpretation,
    aten.linalg_lstsq.default: refuse_least_squares,
    aten._ctc_loss.default: refuse_ctc_loss,
    aten._ctc_loss.Tensor: refuse_ctc_loss,
}


def _run(rec, func, args, kwargs):
    return func(*args, **kwargs)


@cache
def handler_of(func: Any) -> Handler:
    """The rule for an ATen operation."""
    tags = func.tags
    name = func._schema.name
    if func.namespace == "prims":
        return undo_prim
    if func in SPECIAL:
        return SPECIAL[func]
    if func in CONTROL or torch.Tag.data_dependent_output in tags:
        return refuse_control_flow
    if torch.Tag.nondeterministic_seeded in tags:
        return random
    if name in ("aten::set_", "aten::resize_", "aten::resize"):
        return refuse_shape
    if func in CONSTANTS or torch.Tag.inplace_view in tags:
        return _run
    if func.is_view:
        return view
    if func._schema.is_mutable:
        return in_place
    if func in ACCUMULATE:
        return accumulate
    if func in MOVEMENT:
        return by_rows(movement_of_rows, movement)
    if func in WITH_PLACES:
        return running_extreme
    if func in PREFIX:
        return prefix
    if func in ROWS:
        return by_rows(reduction_of_rows, row)
    if func in MATRIX:
        return matrix
    if torch.Tag.pointwise in tags or func in POINTWISE:
        return by_rows(pointwise_of_rows, pointwise)
    if torch.Tag.dynamic_output_shape in tags:
        return refuse_shape
    if (torch.Tag.reduction in tags or func in WHOLE or func in ONE_AXIS) and has_dim(func):
        return by_rows(reduction_of_rows, reduction)
    if func in decomposition_table or func._can_decompose():
        return decompose
    return dense


def sparse_handler_of(func: Any) -> Handler | None:
    """The rule for an operation that has a sparse constant among its arguments."""
    return rerun(sparse_product) if func in SPARSE_PRODUCTS else None
