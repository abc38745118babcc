"""Checks of engine options; the texts name the option and what it may be."""

import difflib
import inspect

import torch

from pyrograph.errors import OptionError


def floating(name: str, value: torch.dtype | None) -> torch.dtype | None:
    """Single or double precision, which is what decompositions of matrices have, or None.

    Raises:
        OptionError: it is neither.
    """
    if value not in (None, torch.float32, torch.float64):
        raise OptionError(f"{name}={value!r} must be torch.float32 or torch.float64")
    return value


def refuse_unknown(engine: type, unknown: dict) -> None:
    """Raise for keyword arguments that no class of the engine's line takes.

    Raises:
        OptionError: listing the valid options and the nearest to the first unknown one.
    """
    if not unknown:
        return
    valid: dict[str, None] = {}
    fixed: set[str] = set()
    for cls in engine.__mro__:
        if "__init__" in vars(cls):
            parameters = inspect.signature(cls.__init__).parameters.values()
            named = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
            valid |= dict.fromkeys(name for name in named if name not in fixed)
        fixed |= set(vars(cls).get("fixes", ()))
    name = next(iter(unknown))
    near = difflib.get_close_matches(name, valid, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise OptionError(
        f"{engine.__name__} has no option {name!r}.{hint} Its options: {', '.join(valid)}."
    )
