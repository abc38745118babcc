"""Devices that tensors can be used on."""

from __future__ import annotations

import torch

from pyrograph.errors import OptionError


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
