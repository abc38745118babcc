"""Checks of what functions of circuits are handed; the texts name it."""

from __future__ import annotations

import math
from typing import Any

from pyrograph.checks import real_number
from pyrograph.circuits.circuit import Circuit
from pyrograph.errors import OptionError


def number(name: str, value: Any) -> float:
    """A number, which may be infinite.

    Raises:
        OptionError: it is none, or NaN.
    """
    found = real_number(value)
    if math.isnan(found):
        raise OptionError(f"{name}={value!r} is not a number")
    return found


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number of a column, at least ``least``: 2.0 is one, since gaps make columns floats.

    Raises:
        OptionError: it is not.
    """
    found = real_number(value)
    if not (found.is_integer() and found >= least):
        raise OptionError(f"{name}={value!r} must be a whole number, at least {least}")
    return int(found)


def check_smoothing(name: str, value: Any) -> float:
    """Pseudo-observations.

    Raises:
        OptionError: they are no number, or out of range.
    """
    found = real_number(value)
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
