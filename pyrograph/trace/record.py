"""Record a program's operations on latent numbers, element by element.

While a :class:`Recorder` is active every ATen call passes through it. A storage that holds
latent numbers has a *shadow*: the id of each of its elements (see ``tape.py``). A view needs
no rule, since the shadow is viewed with the same strides; pure data movement runs the same
operation on the shadow; only computing operations become steps. The rules are the table in
``operations.py``; this file is the machinery they share.

Python that reads a latent's value would silently lose its scope, so it raises: reads that
dispatch (``.item()``, ``float``, ``if``) are refused by the table, those that do not
(``.tolist()``, ``.numpy()``, ``torch.tensor([...])``) by :class:`PythonReads`.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor
from torch.overrides import enable_reentrant_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from pyrograph.errors import (
    LatentMutationError,
    StructureError,
    UnsupportedOperation,
)
from pyrograph.trace.fused import fused_kernels_off
from pyrograph.trace.messages import TOLD, Messages
from pyrograph.trace.operations import handler_of, sparse_handler_of
from pyrograph.trace.python_reads import PythonReads, memory_watched
from pyrograph.trace.rules.lookups import pool_look_up
from pyrograph.trace.shadow import Shadow
from pyrograph.trace.table_rows import Rows, TableResults
from pyrograph.trace.tape import Operand, Rule, Step

#: Ids one operation may read, all its blocks together; 1 GB of memory at the limit.
MAX_READS = 64_000_000

#: Dtypes whose numbers survive a round trip through Python.
_EXACT = {torch.float64, torch.float32, torch.int64, torch.int32, torch.bool}


@cache
def _is_random(func: object) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _rows(arranged: Tensor, num_core: int) -> Tensor:
    """``[blocks, *core]``; of blocks that are all the same view one."""
    blocks = arranged.dim() - num_core
    core = arranged.shape[blocks:]
    pairs = zip(arranged.shape[:blocks], arranged.stride()[:blocks], strict=True)
    if all(n == 1 or s == 0 for n, s in pairs):
        for k in range(blocks):
            arranged = arranged.narrow(k, 0, 1)
    return arranged.reshape(-1, *core)


class Recorder(Messages, TorchDispatchMode):
    """Collects :attr:`steps` from the operations on latent numbers."""

    def __init__(self, differentiable: bool = False) -> None:
        super().__init__()
        self.differentiable = differentiable  # whether constants stay attached to autograd
        self._steps: list[Step | None] = []  # None: rows that nothing has read
        self.leaf_sites: list[tuple[str, int, int]] = []  # (site, first leaf, number of leaves)
        self.num_leaves = 0
        self.paused = False  # set while the library itself looks at values
        self.statement: str | None = None  # whose log density is being computed
        self.last_statement: str | None = None
        self.random_draws: list[str] = []  # where constants were drawn, in case they matter
        self.printed: list[str] = []  # where latents became text, in case it chooses anything
        self.refused: StructureError | None = None  # the first refusal, which a program may catch
        self._next_id = 1
        self._shadows: dict[int, Shadow] = {}
        self._leaves: dict[int, str] = {}
        self._tables: dict[tuple, tuple[Tensor, Tensor]] = {}  # the table and our copy
        self._tables_of_rows: dict[tuple[int, int], Tensor] = {}
        self.positions: dict[tuple, Tensor] = {}  # of look-ups, by shapes
        self.table_results = TableResults()
        self.has_rows = False  # whether any rows of tables are at hand
        self.has_run = False  # whether what is read now is read outside of all dispatch

    # ------------------------------------------------------------------ dispatch
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: PyTorch then does not wrap every dispatch in a compiler guard (a third of the
        time on small tensors); nothing is compiled while a program is read."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        shadows = self._shadows
        for a in args:
            if isinstance(a, Tensor):
                if a.layout is not torch.strided or a.untyped_storage()._cdata in shadows:
                    break
            elif isinstance(a, (list, tuple)) and any(self.is_latent(b) for b in a):
                break
        else:
            if not any(isinstance(a, Tensor) and self.is_latent(a) for a in kwargs.values()):
                if _is_random(func) and len(self.random_draws) < TOLD:
                    self.random_draws.append(f"{func} {self.place()}")
                return func(*args, **kwargs)
        try:
            if any(isinstance(a, Tensor) and a.layout is not torch.strided for a in args):
                return self._sparse(func, args, kwargs)
            return handler_of(func)(self, func, args, kwargs)
        except StructureError as error:
            self.refused = self.refused or error
            raise

    def _sparse(self, func, args, kwargs):
        """Operations among sparse constants pass; of those with latents, products have a rule."""
        if any(self.is_latent(a) for a in (*args, *kwargs.values())):
            handler = sparse_handler_of(func)
            if handler is not None:
                return handler(self, func, args, kwargs)
            raise UnsupportedOperation(
                f"{self.place()}: {func} combines a sparse constant with a latent. Use "
                f".to_dense(), whose zeros are no dependence, or index with its non-zeros and sum."
            )
        return func(*args, **kwargs)

    # ------------------------------------------------------------------ shadows
    def is_latent(self, t: object) -> bool:
        return (
            isinstance(t, Tensor)
            and t.layout is torch.strided
            and t.untyped_storage()._cdata in self._shadows
        )

    def ids(self, t: Tensor) -> Tensor | None:
        """Ids of a tensor's elements, in its shape (a view), or None when it is constant."""
        shadow = self._shadows.get(t.untyped_storage()._cdata)
        if shadow is None:
            return None
        self._record_rows(shadow)
        if t.is_complex():
            raise UnsupportedOperation(
                f"{self.place()}: complex numbers that depend on latents are not supported; write "
                f"their real and imaginary parts."
            )
        if t.element_size() != shadow.item_bytes:
            raise UnsupportedOperation(
                f"{self.place()}: a latent is reinterpreted as {t.dtype}; convert with .to(dtype)."
            )
        return shadow.ids.as_strided(t.size(), t.stride(), t.storage_offset())

    def ids_or_zero(self, t: Tensor) -> Tensor:
        ids = self.ids(t)
        return torch.zeros_like(t, dtype=torch.int64) if ids is None else ids

    def write(self, t: Tensor, ids: Tensor | int, level: int = 0) -> None:
        """The elements of ``t`` now have these ids."""
        shadow = self._shadows.get(t.untyped_storage()._cdata)
        if shadow is None:
            if isinstance(ids, int) and ids == 0:
                return
            numel = t.untyped_storage().nbytes() // t.element_size()
            shadow = self._shadows[t.untyped_storage()._cdata] = Shadow(t, level, numel)
        self._record_rows(shadow)
        shadow.level = max(shadow.level, level)
        shadow.overwrite(t, ids)

    def level(self, t: Tensor) -> int:
        shadow = self._shadows.get(t.untyped_storage()._cdata)
        return 0 if shadow is None else shadow.level

    def leaf(self, site: str, value: Tensor) -> Tensor:
        """A tensor whose elements are leaves."""
        value = value.detach().clone(memory_format=torch.contiguous_format)
        if value.numel():
            address = value.untyped_storage()._cdata
            self._shadows[address] = Shadow(value, 0, value.numel(), -1 - self.num_leaves)
            self._leaves[address] = site
        self.leaf_sites.append((site, self.num_leaves, value.numel()))
        self.num_leaves += value.numel()
        return value

    def forbid_leaf(self, t: Tensor, func: object) -> None:
        site = self._leaves.get(t.untyped_storage()._cdata)
        if site is not None:
            raise LatentMutationError(
                f'{self.place()}: latent site "{site}" is changed in place ({func}), which would '
                f"erase the scope of its prior. Work on a copy: {site} = {site}.clone()."
            )

    # ------------------------------------------------------------------ steps
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
            if view.numel() > MAX_READS:
                raise self.over_budget(view.numel(), MAX_READS)
            core = view.shape[view.dim() - num_core :]
            shadow = self._shadows[t.untyped_storage()._cdata]
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

    def is_attached(self, t: Tensor) -> bool:
        return self.differentiable and t.requires_grad

    @contextmanager
    def again(self) -> Iterator[None]:
        """A rule's own operations inside are recorded too."""
        with enable_reentrant_dispatch() if self.differentiable else nullcontext(), self:
            yield

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

    def scalar_operand(self, t: Tensor, shape: torch.Size, dtype: torch.dtype | None) -> Operand:
        """What the elements of a pointwise result of this shape read of ``t``."""
        ids = self.range_of(t)
        if ids is not None and len(ids) == shape.numel():
            return Operand(ids, None, dtype or t.dtype)
        is_number = t.numel() == 1 and t.dtype in _EXACT and not self.is_attached(t)
        if ids is None and is_number and not self.is_latent(t):
            return Operand(None, t.item(), dtype or t.dtype)
        return self.operand(t, lambda v: v.expand(shape), 0, dtype)

    def range_of(self, t: Tensor) -> range | None:
        """A latent tensor's ids, where they are consecutive."""
        shadow = self._shadows.get(t.untyped_storage()._cdata)
        if shadow is None or shadow.first is None or shadow.numel != t.numel():
            return None
        self._record_rows(shadow)
        if shadow.item_bytes != t.element_size() or not t.is_contiguous():
            return None
        step = -1 if shadow.first < 0 else 1
        return range(shadow.first, shadow.first + step * shadow.numel, step)

    def table_operand(self, t: Tensor) -> Operand:
        """A constant table that blocks look up, ``[1, size]``; one copy for all reads."""
        # an inference tensor counts no writes, so that each read of it has its own copy
        version = object() if t.is_inference() else t._version
        # of one storage there may be several with derivatives of their own
        own = id(t) if self.is_attached(t) else None
        key = (t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride(), version, own)
        known = self._tables.get(key)
        if known is None:
            with self.attached(t):
                table = t.contiguous() if self.is_attached(t) else t.detach()  # see _constants
                known = self._tables[key] = (t, table.reshape(1, -1).clone().cpu())
        return Operand(None, known[1], t.dtype, pool=True)

    def emit(
        self,
        rule: Rule,
        width: int,
        operands: list[Operand],
        out: Tensor,
        sources: list[Tensor],
    ) -> Tensor:
        """Record a step whose numbers are ``out``'s elements, row-major; returns ``out``."""
        numel = out.numel()
        if numel == 0:
            return out
        level = 1 + max(self.level(t) for t in sources)
        first, count = self._next_id, numel // width
        self._steps.append(Step(rule, first, count, width, tuple(operands), level, out.dtype))
        self._next_id += numel
        constant = self._constant_blocks(operands, count)
        storage = out.untyped_storage()
        whole = storage.nbytes() == numel * out.element_size()
        if constant is None and whole and out.is_contiguous():
            self._shadows[storage._cdata] = Shadow(out, level, numel, first)
            return out
        ids = torch.arange(first, first + numel, device=out.device)
        if constant is not None:
            ids = ids.masked_fill(constant.to(out.device).repeat_interleave(width), 0)
        self.write(out, ids.view(out.shape), level)
        return out

    @property
    def steps(self) -> list[Step]:
        return [step for step in self._steps if step is not None]

    # ------------------------------------------------------------------ rows of tables
    def postpone(self, out: Tensor, rows: Rows) -> Tensor:
        """``out`` holds rows of a table, recorded once something reads them; returns ``out``, all
        of its storage and contiguous."""
        level = 1 + max(self.level(t) for t in rows.places.sources)
        shadow = Shadow(out, level, out.numel(), self._next_id)
        shadow.rows, shadow.place = rows, len(self._steps)
        self._shadows[out.untyped_storage()._cdata] = shadow
        self._next_id += out.numel()
        self._steps.append(None)
        self.has_rows = True
        return out

    def rows(self, t: Tensor) -> Rows | None:
        """What a latent tensor holds where that is rows of a table."""
        shadow = self._shadows.get(t.untyped_storage()._cdata)
        found = None if shadow is None else shadow.rows
        if found is None or t.numel() != shadow.numel or not t.is_contiguous():
            return None
        places, table = found.places, found.table
        lead = len(places.batch)
        if t.shape[:lead] != places.batch or t.element_size() != shadow.item_bytes:
            return None
        if t.shape[lead:] == table.shape[1:]:
            return found
        with self.attached(table):
            return Rows(places, table.reshape(len(table), *t.shape[lead:]))

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

    def _record_rows(self, shadow: Shadow) -> None:
        """Record the step that looks up a storage's rows, if none has been yet."""
        if shadow.place is None:
            return
        places, table = shadow.rows.places, shadow.rows.table
        if shadow.numel > MAX_READS:
            raise self.over_budget(shadow.numel, MAX_READS)
        places = places.within(table.shape[1:].numel())
        rule, operands = pool_look_up(self, table, places)
        kind = shadow.tensor.dtype
        step = Step(rule, shadow.first, shadow.numel, 1, tuple(operands), shadow.level, kind)
        self._steps[shadow.place], shadow.place = step, None

    @staticmethod
    def _constant_blocks(operands: list[Operand], count: int) -> Tensor | None:
        """``[count]``, True where a block reads no latent (parts of a tensor may be constant)."""
        if any(o.values is None for o in operands):
            return None
        constant = torch.ones(count, dtype=torch.bool, device="cpu")
        for o in operands:
            if o.ids is not None:
                constant &= (o.ids == 0).reshape(count, -1).all(1)
        return constant if bool(constant.any()) else None


@contextmanager
def recording(differentiable: bool = False) -> Iterator[Recorder]:
    """Both modes, for the duration of a block, without fused kernels; yields the recorder."""
    recorder = Recorder(differentiable)
    collecting = gc.isenabled()
    gc.disable()  # nothing recorded is garbage, and scanning it again and again is slow
    try:
        with (
            torch.set_grad_enabled(differentiable),
            fused_kernels_off(),
            memory_watched(recorder),
            PythonReads(recorder),
            recorder,
        ):
            yield recorder
    finally:
        if collecting:
            gc.enable()
