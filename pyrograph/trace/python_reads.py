"""Reads of a latent's value that never reach the dispatcher.

``.tolist()``, ``.numpy()``, ``torch.tensor([...])`` and ``pickle`` copy numbers out behind its
back and would silently lose the scope: refused. Indexing by a 0-dim latent and ``one_hot`` read
the value only to do what a gather or a comparison does as well: those are done instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import dlpack

from pyrograph.errors import StructureError, UnsupportedOperation

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

_READS = {
    Tensor.tolist: ".tolist()",
    Tensor.numpy: ".numpy()",
    Tensor.__array__: "numpy conversion",
    Tensor.__dlpack__: "from_dlpack",
    Tensor.__deepcopy__: "copy.deepcopy",
    Tensor.__float__: "float() or a legacy constructor",
    Tensor.__int__: "int()",
    Tensor.__index__: "an index, range() or a legacy constructor",
}
#: Printing a latent while debugging a program does no harm; text that chooses a branch does.
_PRINTING = {Tensor.__repr__, Tensor.__format__}
_BUILDERS = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor}
_WATCHED = {
    Tensor.__getitem__,
    Tensor.__setitem__,
    torch.nn.functional.one_hot,
    *_READS,
    *_PRINTING,
    *_BUILDERS,
}


class PythonReads(TorchFunctionMode):
    """Refuses reads that never reach the dispatcher; lets a 0-dim latent index a tensor."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in _WATCHED or self.recorder.paused:
            return func(*args, **kwargs)
        try:
            return self._watched(func, args, kwargs)
        except StructureError as error:
            self.recorder.refused = self.recorder.refused or error
            raise

    def _watched(self, func, args: tuple, kwargs: dict):
        if func is Tensor.__getitem__:
            return self._getitem(*args)
        if func is Tensor.__setitem__:
            return self._setitem(*args)
        if func in _PRINTING:
            return self._text(func, args)
        given = (*args, *kwargs.values())
        if func is torch.nn.functional.one_hot and any(map(self.recorder.is_latent, given)):
            return self._one_hot(*args, **kwargs)
        if func in _READS and self.recorder.is_latent(args[0]):
            raise self.recorder.control_flow(_READS[func], args[0])
        if func in _BUILDERS:
            # a latent tensor itself is copied properly
            latent = self._first_latent([data for data in given if not isinstance(data, Tensor)])
            if latent is not None:
                raise self.recorder.control_flow(f"{func.__name__}([...])", latent)
        return func(*args, **kwargs)

    def _text(self, func, args: tuple):
        if self.recorder.is_latent(args[0]):
            self.recorder.note_printed(args[0])
        self.recorder.paused = True
        try:
            return func(*args)
        finally:
            self.recorder.paused = False

    def _first_latent(self, data: object) -> Tensor | None:
        """A latent inside nested lists."""
        if isinstance(data, (list, tuple)):
            for item in data:
                if self.recorder.is_latent(item):
                    return item
                found = self._first_latent(item)
                if found is not None:
                    return found
        return None

    def _getitem(self, x: Tensor, index: object) -> Tensor:
        """``x[z]``: indexing by a 0-dim tensor would read its value, so select by gathering."""
        keys = index if isinstance(index, tuple) else (index,)
        if not any(self._is_scalar_latent(k) for k in keys):
            return Tensor.__getitem__(x, index)
        consumed = sum(
            (k.dim() if k.dtype is torch.bool else 1) if isinstance(k, Tensor) else 1
            for k in keys
            if k is not None and k is not Ellipsis
        )
        if Ellipsis in [k if k is Ellipsis else None for k in keys]:
            at = next(i for i, k in enumerate(keys) if k is Ellipsis)
            fill = (slice(None),) * (x.dim() - consumed)
            keys = keys[:at] + fill + keys[at + 1 :]
        dim, selected, rest = 0, [], []
        for k in keys:
            if self._is_scalar_latent(k):
                selected.append((dim, k))
            else:
                rest.append(k)
            if k is not None:
                dim += k.dim() if isinstance(k, Tensor) and k.dtype is torch.bool else 1
        for d, z in reversed(selected):
            x = torch.ops.aten.index.Tensor(x, [None] * d + [z.long().to(x.device)])
        return x[tuple(rest)] if rest else x

    def _setitem(self, x: Tensor, index: object, value: object) -> None:
        """``x[z] = v`` writes where a latent says: refused; ``x[condition] = v`` is a choice."""
        keys = index if isinstance(index, tuple) else (index,)
        for key in keys:
            if self._is_scalar_latent(key):
                raise UnsupportedOperation(
                    f"{self.recorder.place()}: an assignment writes to a position given by "
                    f"{self.recorder.sites_behind(key)}. Read instead of writing: build the result "
                    f"with torch.where or a one-hot product."
                )
        only = keys[0]
        if (
            len(keys) == 1
            and isinstance(only, Tensor)
            and only.dim() == 0
            and only.dtype is torch.bool
            and self.recorder.is_latent(only)
        ):
            with self, self.recorder:
                x.copy_(
                    torch.where(only, torch.as_tensor(value, dtype=x.dtype, device=x.device), x)
                )
            return
        Tensor.__setitem__(x, index, value)

    def _one_hot(self, input: Tensor, num_classes: int = -1) -> Tensor:
        """PyTorch's own, whose names these are, checks the labels in Python."""
        if num_classes < 0:
            raise self.recorder.control_flow("one_hot without num_classes", input)
        with self:
            return (input.unsqueeze(-1) == torch.arange(num_classes, device=input.device)).long()

    def _is_scalar_latent(self, key: object) -> bool:
        return (
            isinstance(key, Tensor)
            and key.dim() == 0
            and not key.dtype.is_floating_point
            and key.dtype is not torch.bool
            and self.recorder.is_latent(key)
        )


class _Copied:
    """A latent as ``copy.copy`` takes it apart and puts it together; bytes are not made of it."""

    def __init__(self, latent: Tensor, recorder: Recorder) -> None:
        self.latent, self.recorder = latent, recorder

    def together(self) -> Tensor:
        return self.latent.detach()

    def __reduce_ex__(self, protocol: int) -> NoReturn:
        refuse(self.recorder, "pickle or torch.save", self.latent)


def refuse(recorder: Recorder, what: str, latent: Tensor) -> NoReturn:
    """Raise, and remember it for a program that catches it."""
    error = recorder.control_flow(what, latent)
    recorder.refused = recorder.refused or error
    raise error


@contextmanager
def memory_watched(recorder: Recorder) -> Iterator[None]:
    """Reads that no mode sees, as PyTorch does them in C or by storages: refused inside."""
    reduce, to_dlpack = Tensor.__reduce_ex__, dlpack.to_dlpack

    def reduce_watched(self: Tensor, protocol: int) -> tuple[Callable, tuple]:
        if recorder.is_latent(self):
            return _Copied.together, (_Copied(self, recorder),)
        return reduce(self, protocol)

    def to_dlpack_watched(tensor: Tensor) -> object:
        if recorder.is_latent(tensor):
            refuse(recorder, "to_dlpack", tensor)
        return to_dlpack(tensor)

    Tensor.__reduce_ex__ = reduce_watched
    torch.to_dlpack = dlpack.to_dlpack = to_dlpack_watched
    try:
        yield
    finally:
        Tensor.__reduce_ex__ = reduce
        torch.to_dlpack = dlpack.to_dlpack = to_dlpack
