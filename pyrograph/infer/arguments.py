"""Whether a run goes on with the arguments, and the parameters, that it was set up for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyrograph.graph.arguments import bound


def by_position(model: Callable, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The same arguments, by position wherever the model's signature says which is which, with
    the defaults of those left out."""
    found = bound(model, args, kwargs)
    return (args, kwargs) if found is None else (found.args, found.kwargs)


def versions(value: Any) -> list[int]:
    """How often each tensor among (nested) arguments was changed in place."""
    if isinstance(value, Tensor):
        return [] if value.is_inference() else [value._version]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [version for part in value for version in versions(part)]


def copied(value: Any) -> Any:
    """(Nested) arguments whose arrays and containers do not change with the caller's; of tensors
    the versions tell."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (list, tuple):
        return type(value)(copied(part) for part in value)
    if type(value) is dict:
        return {key: copied(part) for key, part in value.items()}
    return value


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
    try:
        return bool(a == b)
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
        """One that has another value by now; not by value, of those written to as torch counts it
        (through ``.data`` it does not)."""
        if not self._found:
            return None
        for name, now in pyro.get_param_store().named_parameters():
            if name in self._found:
                *kept, value = self._found[name]
                is_new = by_value or kept != [id(now), now._version]
                if is_new and not same(now.detach(), value):
                    return name
        return None
