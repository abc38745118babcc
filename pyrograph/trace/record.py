"""Record a program's operations on latent numbers, element by element.

While a :class:`Recorder` is active every ATen call passes through it. A storage that holds
latent numbers has a *shadow*: the id of each of its elements (see ``tape.py``). A view needs
no rule, since the shadow is viewed with the same strides; pure data movement runs the same
operation on the shadow; only computing operations become steps. The rules are the table in
``operations.py``; this file and ``operands.py``, of what steps read, are the machinery they share.

Python that reads a latent's value would silently lose its scope, so it raises: reads that
dispatch (``.item()``, ``float``, ``if``) are refused by the table, those that do not
(``.tolist()``, ``.numpy()``, ``torch.tensor([...])``) by :class:`PythonReads`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
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
from pyrograph.trace.messages import TOLD
from pyrograph.trace.operands import Operands
from pyrograph.trace.operations import handler_of, sparse_handler_of
from pyrograph.trace.python_reads import PythonReads, memory_watched
from pyrograph.trace.rules.lookups import pool_look_up
from pyrograph.trace.shadow import Shadow
from pyrograph.trace.table_rows import Rows, TableResults
from pyrograph.trace.tape import Operand, Rule, Step


@cache
def _is_random(func: object) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


class Recorder(Operands, TorchDispatchMode):
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

    @contextmanager
    def again(self) -> Iterator[None]:
        """A rule's own operations inside are recorded too."""
        with enable_reentrant_dispatch() if self.differentiable else nullcontext(), self:
            yield

    # ------------------------------------------------------------------ shadows
    def is_latent(self, t: object) -> bool:
        return (
            isinstance(t, Tensor)
            and t.layout is torch.strided
            and t.untyped_storage()._cdata in self._shadows
        )

    def shadow(self, t: Tensor) -> Shadow | None:
        """Of a tensor's storage; None when it is constant."""
        return self._shadows.get(t.untyped_storage()._cdata)

    def ids(self, t: Tensor) -> Tensor | None:
        """Ids of a tensor's elements, in its shape (a view), or None when it is constant."""
        shadow = self.shadow(t)
        if shadow is None:
            return None
        self._record_rows(shadow)
        if t.is_complex():
            raise UnsupportedOperation(
                f"{self.place()}: complex numbers that depend on latents are not supported; write "
                f"their real and imaginary parts. A Fourier or cosine transform of n numbers is a "
                f"product with its matrix, as x @ idct(torch.eye(n)); HaarReparam, which is real, "
                f"takes the place of DiscreteCosineReparam."
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
        shadow = self.shadow(t)
        if shadow is None:
            if isinstance(ids, int) and ids == 0:
                return
            numel = t.untyped_storage().nbytes() // t.element_size()
            shadow = self._shadows[t.untyped_storage()._cdata] = Shadow(t, level, numel)
        self._record_rows(shadow)
        shadow.level = max(shadow.level, level)
        shadow.overwrite(t, ids)

    def level(self, t: Tensor) -> int:
        shadow = self.shadow(t)
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
    def range_of(self, t: Tensor) -> range | None:
        """A latent tensor's ids, where they are consecutive."""
        shadow = self.shadow(t)
        if shadow is None or shadow.first is None or shadow.numel != t.numel():
            return None
        self._record_rows(shadow)
        if shadow.item_bytes != t.element_size() or not t.is_contiguous():
            return None
        step = -1 if shadow.first < 0 else 1
        return range(shadow.first, shadow.first + step * shadow.numel, step)

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
        shadow = self.shadow(t)
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

    def _record_rows(self, shadow: Shadow) -> None:
        """Record the step that looks up a storage's rows, if none has been yet."""
        if shadow.place is None:
            return
        places, table = shadow.rows.places, shadow.rows.table
        self.refuse_over_budget(shadow.numel)
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
