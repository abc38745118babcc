"""Checks of what functions of circuits are handed; the texts name it."""

from __future__ import annotations

import math
from typing import Any

from pyrograph.circuits.circuit import Circuit
from pyrograph.errors import OptionError


def number(name: str, value: Any) -> float:
    """A number, which may be infinite.

    Raises:
        OptionError: it is none, or NaN.
    """
    try:
        found = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, RuntimeError):  # None, several numbers
        found = math.nan
    if math.isnan(found):
        raise OptionError(f"{name}={value!r} is not a number")
    return found


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number, at least ``least``; 2.0 is one.

    Raises:
        OptionError: it is not.
    """
    found = math.nan if isinstance(value, bool) else number(name, value)
    if not (math.isfinite(found) and found == int(found) and found >= least):
        raise OptionError(f"{name}={value!r}: a whole number, at least {least}")
    return int(found)


def check_smoothing(name: str, value: Any) -> float:
    """Pseudo-observations.

    Raises:
        OptionError: they are no number, or out of range.
    """
    found = number(name, value)
    if not 0 <= found < math.inf:
        raise OptionError(f"{name}={value!r}: pseudo-observations are finite, 0 or more")
    return found


def check_circuits(*circuits: Any) -> None:
    """Raise unless all are circuits.

    Raises:
        OptionError: one is another object.
    """
    for other in circuits:
        if not isinstance(other, Circuit):
            raise OptionError(
                f"{other!r} is no circuit, as compile_graph, the learners and Circuit.from_nodes "
                "return one"
            )
