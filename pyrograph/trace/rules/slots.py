"""Recorded argument lists, with slots where the operands go."""

from __future__ import annotations

from typing import Any


class _Slot:
    """Stands for "the next operand" in a recorded argument list."""

    def __repr__(self) -> str:
        return "slot"


SLOT = _Slot()


def frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
