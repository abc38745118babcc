"""Devices that tensors can be used on, and how much at once."""

from __future__ import annotations

import torch

from pyrograph.errors import OptionError

#: Blocks of a GPU for one that fits a processor's cache: it has to start a kernel for every step of
#: each, which takes as long as millions of numbers do.
LARGER = 32


def at_once(numbers: int, device: torch.device) -> int:
    """Numbers of a block of work, of which ``numbers`` fit a processor's cache."""
    return numbers if device.type == "cpu" else LARGER * numbers


def usable_device(device: torch.device | str | int) -> torch.device:
    """A device, tried with one number.

    Raises:
        OptionError: it is none, or no tensor can be used there.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"device={device!r} is no device: {error}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"device={device!r}: this torch has no CUDA device")
    try:
        torch.zeros((), device=found).item()
    except (RuntimeError, AssertionError) as error:  # what torch was not built with asserts
        first = str(error).partition("\n")[0].partition(". ")[0]
        raise OptionError(
            f'device={device!r}: no tensor can be used there ({first}); use "cpu", or "cuda" '
            "where there is one"
        ) from error
    return found
