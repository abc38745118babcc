"""Where in a user's program something happens, for messages, by the stack of calls."""

from __future__ import annotations

import os
import traceback

import pyro
import torch

_OWN = os.path.dirname(os.path.dirname(__file__))
_READER = os.path.join(os.path.dirname(__file__), "program.py")
_OTHERS = os.path.dirname(torch.__file__), os.path.dirname(pyro.__file__)


def program_line() -> str | None:
    """File, number and text of the innermost line that is not a library's; None when the program
    has run, and only its caller is left."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename == _READER and frame.name == "_read_program":
            return None
        if not frame.filename.startswith((_OWN, *_OTHERS, "<")):
            line = f" `{frame.line.strip()}`" if frame.line else ""
            return f"{os.path.basename(frame.filename)}:{frame.lineno}{line}"
    return None


def is_in_assertion() -> bool:
    """Whether the line that is run is an ``assert`` of PyTorch's or Pyro's own, which leaves the
    program as it is or stops it."""
    frames = reversed(traceback.extract_stack())
    modes = {"__torch_function__", "__torch_dispatch__"}  # others', such as a default device
    frame = next(f for f in frames if not f.filename.startswith(_OWN) and f.name not in modes)
    return frame.filename.startswith(_OTHERS) and (frame.line or "").startswith("assert ")
