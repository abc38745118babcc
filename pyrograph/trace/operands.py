"""What a step reads of a tensor: the ids of latent numbers, and the values of constant ones.

A rule arranges the tensor as its blocks read it. Ids are views of those of its storage; constants
are copied, since the program may write over them later, and stay attached to what they were
computed from where the recorder is differentiable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.overrides import enable_reentrant_dispatch

from pyrograph.trace.messages import Messages
from pyrograph.trace.tape import Operand

#: Ids one operation may read, all its blocks together; 1 GB of memory at the limit.
MAX_READS = 64_000_000

#: Dtypes whose numbers survive a round trip through Python.
_EXACT = {torch.float64, torch.float32, torch.int64, torch.int32, torch.bool}


def _rows(arranged: Tensor, num_core: int) -> Tensor:
    """``[blocks, *core]``; of blocks that are all the same view one."""
    blocks = arranged.dim() - num_core
    core = arranged.shape[blocks:]
    pairs = zip(arranged.shape[:blocks], arranged.stride()[:blocks], strict=True)
    if all(n == 1 or s == 0 for n, s in pairs):
        for k in range(blocks):
            arranged = arranged.narrow(k, 0, 1)
    return arranged.reshape(-1, *core)


class Operands(Messages):
    """Part of :class:`.record.Recorder`, which has ``is_latent``, ``shadow``, ``ids`` and
    ``range_of``.

    Attributes:
        differentiable: whether constants stay attached to autograd.
        paused: set while the library itself looks at values.
        has_run: whether what is read now is read outside of all dispatch.
    """

    differentiable: bool
    paused: bool
    has_run: bool

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[tuple, tuple[Tensor, Tensor]] = {}  # the table and our copy
        self._tables_of_rows: dict[tuple[int, int], Tensor] = {}

    def refuse_over_budget(self, numbers: int) -> None:
        """
        Raises:
            ScopeBudgetError: one operation reads more latent numbers than :data:`MAX_READS`.
        """
        if numbers > MAX_READS:
            raise self.over_budget(numbers, MAX_READS)

    def operand(
        self,
        t: Tensor,
        arrange: Callable[[Tensor], Tensor],
        num_core: int = 0,
        dtype: torch.dtype | None = None,
    ) -> Operand:
        """What the blocks read of ``t``, on the CPU; ``arrange`` gives ``[*blocks, *core]``."""
        ids = self.ids(t)
        if ids is not None:
            view = arrange(ids)
            self.refuse_over_budget(view.numel())
            core = view.shape[view.dim() - num_core :]
            shadow = self.shadow(t)
            ids = shadow.read(view.reshape(-1, *core).cpu())
            if not shadow.mixed or not bool((ids == 0).any()):
                return Operand(ids, None, dtype or t.dtype)
        return Operand(ids, *self._constants(t, arrange, num_core, dtype))

    def _constants(
        self,
        t: Tensor,
        arrange: Callable[[Tensor], Tensor],
        num_core: int,
        dtype: torch.dtype | None,
    ) -> tuple[Tensor, torch.dtype]:
        """Constant values as the blocks read them, and their dtype."""
        if self.is_attached(t):
            values = self._looked_up(t, arrange, num_core)
        else:
            values = _rows(arrange(t.detach()), num_core)
            if values.untyped_storage()._cdata == t.untyped_storage()._cdata:
                values = values.clone()
        with self.attached(t):
            values = values.cpu()
            if dtype is not None:
                values = values.to(dtype)
        return values, values.dtype

    def _looked_up(self, t: Tensor, arrange: Callable[[Tensor], Tensor], num_core: int) -> Tensor:
        """An attached tensor's numbers as the blocks read them.

        Their positions are arranged, 0 being that of a zero, and the numbers looked up: what makes
        a tensor from none, as a reshape that copies does, cannot be dispatched from within a
        dispatch.
        """
        pairs = zip(t.shape, t.stride(), strict=True)
        shape = [1 if s == 0 and n > 1 else n for n, s in pairs]  # once where it is expanded
        positions = torch.arange(1, math.prod(shape) + 1, device=t.device).view(shape)
        index = _rows(arrange(positions.expand(t.shape)), num_core)
        with self.attached(t):
            for k, n in enumerate(shape):
                t = t.narrow(k, 0, n)
            return torch.cat([t.new_zeros(1), t.contiguous().view(-1)])[index]

    def scalar_operand(self, t: Tensor, shape: torch.Size, dtype: torch.dtype | None) -> Operand:
        """What the elements of a pointwise result of this shape read of ``t``."""
        ids = self.range_of(t)
        if ids is not None and len(ids) == shape.numel():
            return Operand(ids, None, dtype or t.dtype)
        is_number = t.numel() == 1 and t.dtype in _EXACT and not self.is_attached(t)
        if ids is None and is_number and not self.is_latent(t):
            return Operand(None, t.item(), dtype or t.dtype)
        return self.operand(t, lambda v: v.expand(shape), 0, dtype)

    def table_operand(self, t: Tensor) -> Operand:
        """A constant table that blocks look up, ``[1, size]``; one copy for all reads."""
        # an inference tensor counts no writes, so that each read of it has its own copy
        version = object() if t.is_inference() else t._version
        # of one storage there may be several with derivatives of their own
        own = id(t) if self.is_attached(t) else None
        place = t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride(), t.dtype
        key = (*place, version, own)
        known = self._tables.get(key)
        if known is None:
            with self.attached(t):
                table = t.contiguous() if self.is_attached(t) else t.detach()  # see _constants
                known = self._tables[key] = (t, table.reshape(1, -1).clone().cpu())
        return Operand(None, known[1], t.dtype, pool=True)

    def table_of_rows(self, t: Tensor, num_axes: int) -> Tensor:
        """Our copy of a constant table, ``[R, *tail]``, its first axes taken together; one tensor
        for all reads."""
        table = self.table_operand(t).values
        key = id(table), num_axes  # which is kept
        if key not in self._tables_of_rows:
            with self.attached(table):
                rows = t.shape[:num_axes].numel()
                self._tables_of_rows[key] = table.view(rows, *t.shape[num_axes:])
        return self._tables_of_rows[key]

    # ------------------------------------------------------------------ derivatives
    def is_attached(self, t: Tensor) -> bool:
        return self.differentiable and t.requires_grad

    @contextmanager
    def attached(self, t: Tensor) -> Iterator[None]:
        """What is computed of a constant inside differentiates with respect to the tensors that
        it came from; below the dispatcher autograd is off otherwise."""
        if not self.is_attached(t) or self.paused:  # or within already
            yield
            return
        before, self.paused = self.paused, True
        try:
            with nullcontext() if self.has_run else enable_reentrant_dispatch():
                yield
        finally:
            self.paused = before
