"""Whether a run goes on with the arguments, and the parameters, that it was set up for."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyro
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyrograph.graph.arguments import bound, inner


def by_position(model: Callable, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The same arguments, by position wherever the model's signature says which is which, with
    the defaults of those left out."""
    found = bound(model, args, kwargs)
    return (args, kwargs) if found is None else (found.args, found.kwargs)


def versions(value: Any, above: tuple[int, ...] = ()) -> list[int]:
    """How often each tensor among (nested) arguments was changed in place."""
    if isinstance(value, Tensor):
        return [] if value.is_inference() else [value._version]
    parts, above = _parts(value, above)
    return [version for part in parts for version in versions(part, above)]


def _parts(value: Any, above: tuple[int, ...]) -> tuple[list | tuple, tuple[int, ...]]:
    """What lists, tuples, dicts, dataclasses and namespaces hold, and the ids of the latter above
    it, which may hold one another."""
    if isinstance(value, list | tuple):
        return value, above
    if isinstance(value, dict):
        return list(value.values()), above
    fields = None if id(value) in above else _fields(value)
    return ([], above) if fields is None else (list(fields.values()), (*above, id(value)))


def _fields(value: Any) -> dict[str, Any] | None:
    """Of a dataclass or a namespace; None of others, whose attributes may be caches."""
    if isinstance(value, SimpleNamespace):
        return vars(value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type | nn.Module):
        return None
    names = (field.name for field in dataclasses.fields(value))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def copied(value: Any, above: tuple[int, ...] = ()) -> Any:
    """(Nested) arguments whose arrays, containers, dataclasses and namespaces do not change with
    the caller's; of tensors the versions tell."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (list, tuple):
        return type(value)(copied(part, above) for part in value)
    if type(value) is dict:
        return {key: copied(part, above) for key, part in value.items()}
    fields = None if id(value) in above else _fields(value)
    if fields is None:
        return value
    found = copy.copy(value)
    for name, part in fields.items():
        object.__setattr__(found, name, copied(part, (*above, id(value))))  # frozen ones too
    return found


def same(a: Any, b: Any) -> bool:
    """Whether two (nested) arguments are equal, tensors and arrays by value."""
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        alike = isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape
        if not alike or a.dtype != b.dtype:
            return False
        a, b = a.cpu(), b.cpu()
        return bool(((a == b) | (a.isnan() & b.isnan())).all())  # NaN are held-out cells
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    fields = _fields(a)
    try:
        return bool(a == b) if fields is None else same(fields, _fields(b))
    except (RuntimeError, TypeError, ValueError):
        return False


class ParametersRead(Messenger):
    """Which parameters of Pyro's store a program reads meanwhile, and their values after that."""

    def __init__(self) -> None:
        super().__init__()
        self._names: set[str] = set()
        #: Of each, which tensor it is, how often it was changed in place, and its value.
        self._found: dict[str, tuple[int, int, Tensor]] = {}

    def _pyro_param(self, msg: dict[str, Any]) -> None:
        self._names.add(msg["name"])

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for name, value in pyro.get_param_store().named_parameters():
            if name in self._names:
                self._found[name] = id(value), value._version, value.detach().clone()

    def changed(self, by_value: bool = True) -> str | None:
        """One that has another value by now, or is gone; not by value, of those written to as torch
        counts it (through ``.data`` it does not)."""
        if not self._found:
            return None
        store = dict(pyro.get_param_store().named_parameters())
        for name, (*kept, value) in self._found.items():
            now = store.get(name)
            is_new = by_value or now is None or kept != [id(now), now._version]
            if is_new and (now is None or not same(now.detach(), value)):
                return f'pyro.param "{name}"'
        return None


class TensorsHeld:
    """Parameters and buffers of modules: of the one that the model is, or is a method of, and of
    those among its arguments."""

    def __init__(self, model: Callable, args: tuple, kwargs: dict) -> None:
        owner = inner(model)
        while isinstance(owner, functools.partial):
            owner = inner(owner.func)
        owner = getattr(owner, "__self__", owner)
        self._modules = list(_modules_in([owner, args, kwargs]))
        #: Of each the tensor, how often it was changed in place, and its value.
        self._found = {
            name: (value, _version(value), value.detach().clone())
            for name, value in self._tensors().items()
        }

    def _tensors(self) -> dict[tuple[int, str], Tensor]:
        return {
            (i, name): value
            for i, module in enumerate(self._modules)
            for of_kind in (module.named_parameters(), module.named_buffers())
            for name, value in of_kind
        }

    def changed(self, by_value: bool = True) -> str | None:
        """As :meth:`ParametersRead.changed`."""
        now = self._tensors() if by_value else {}  # looking them up takes longer than a step may
        for key, (held, version, value) in self._found.items():
            found = now.get(key) if by_value else held
            is_new = by_value or _version(held) != version
            if is_new and (found is None or not same(found.detach(), value)):
                return f'"{key[1]}" of the module {type(self._modules[key[0]]).__name__}'
        return None


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version


def _modules_in(value: Any, above: tuple[int, ...] = ()) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    parts, above = _parts(value, above)
    for part in parts:
        yield from _modules_in(part, above)
