"""Recorded argument lists, with slots where the operands go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _Slot:
    """Stands for "the next operand" in a recorded argument list."""

    def __repr__(self) -> str:
        return "slot"

    def __reduce__(self) -> str:
        return "SLOT"  # a copy is this one, found by its name


SLOT = _Slot()


def frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Call:
    """A whole argument list, flat, with its tree; compared by identity: never merged."""

    def __init__(self, leaves: list, spec: Any) -> None:
        self.leaves, self.spec = leaves, spec

    def map(self, function: Callable[[Any], Any]) -> Call:
        return Call([function(leaf) for leaf in self.leaves], self.spec)
