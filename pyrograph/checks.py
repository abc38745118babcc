"""What a whole number, a number and a flag are, wherever the library is handed one.

Python's and NumPy's count, and what is alone in an array or a tensor without dimensions, unless it
requires grad, which would be lost. Truth values are no numbers, though Python's True is 1; text is
none, though ``float`` reads it; and no floating number is whole, not 3.0 either.
"""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrograph.errors import OptionError


def whole_number(value: Any) -> int | None:
    """A whole number as Python's; None of what is none."""
    if type(value) is int:  # of the many in a large model nearly all
        return value
    value = _alone(value)
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def real_number(value: Any) -> float:
    """A number as Python's float, which may be infinite; NaN of what is none, or beyond floats."""
    value = _alone(value)
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        return math.nan


def count(name: str, value: Any, least: int = 1) -> int:
    """A whole number, at least ``least``.

    Raises:
        OptionError: it is not.
    """
    found = whole_number(value)
    if found is None or found < least:
        raise OptionError(f"{name}={value!r} must be a whole number, at least {least}")
    return found


def seeded(seed: Any) -> torch.Generator:
    """A generator that starts from ``seed``.

    Raises:
        OptionError: it is no whole number of 64 bits.
    """
    found = whole_number(seed)
    if found is None or not -(2**63) <= found < 2**63:
        raise OptionError(f"seed={seed!r} must be a whole number of 64 bits")
    return torch.Generator().manual_seed(found)


def positive(name: str, value: Any) -> float:
    """A finite number above 0.

    Raises:
        OptionError: it is not.
    """
    found = real_number(value)
    if not 0 < found < math.inf:
        raise OptionError(f"{name}={value!r} must be a finite number above 0")
    return found


def fraction(name: str, value: Any) -> float:
    """A number in [0, 1).

    Raises:
        OptionError: it is not.
    """
    found = real_number(value)
    if not 0 <= found < 1:
        raise OptionError(f"{name}={value!r} must lie in [0, 1)")
    return found


def flag(name: str, value: Any) -> bool:
    """True or False.

    Raises:
        OptionError: it is neither.
    """
    found = _alone(value)
    if not isinstance(found, bool):
        raise OptionError(f"{name}={value!r} must be True or False")
    return found


def _alone(value: Any) -> Any:
    """What is alone in an array or a tensor, as Python's; None of other arrays and tensors."""
    if not isinstance(value, Tensor | np.ndarray | np.generic):
        return value
    return None if value.ndim or getattr(value, "requires_grad", False) else value.item()
