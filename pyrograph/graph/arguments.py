"""The arguments of a program, which is run several times with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from pyrograph.errors import OptionError


def bound(model: Callable, args: tuple, kwargs: dict) -> inspect.BoundArguments | None:
    """The arguments by name, with the defaults of those left out; None where the model has no
    signature, or they do not fit it, which the model will say."""
    try:
        found = inspect.signature(inner(model)).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return None
    found.apply_defaults()
    return found


def inner(model: Callable) -> Callable:
    """What takes a program's arguments: the function inside Pyro's handlers, a module's forward."""
    # a handler used as a decorator leaves a partial of a method of Pyro's, without a signature
    while _name(getattr(getattr(model, "func", None), "func", None)) == "_context_wrap":
        model = model.func.args[1]
    return model.forward if isinstance(model, nn.Module) else model


def _name(function: Any) -> str:
    return getattr(function, "__name__", "")


def refuse_iterators(model: Callable, args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Whether every run of the program finds the same in its arguments.

    Raises:
        OptionError: one is an iterator, or holds one in lists, tuples or dicts; or the program is a
            generator function, of which a call runs nothing.
    """
    if inspect.isgeneratorfunction(inner(model)):
        raise OptionError(
            "the model is a generator function, as it holds a yield: a call of it runs none of its "
            "statements. Give a function that samples and returns."
        )
    fitting = bound(model, args, dict(kwargs))
    by_name = {str(i): value for i, value in enumerate(args)} | dict(kwargs)
    for name, value in (by_name if fitting is None else fitting.arguments).items():
        found = _iterator_in(value)
        if found is not None:
            raise OptionError(
                f'argument "{name}" {"is" if found is value else "holds"} an iterator '
                f"({type(found).__name__}), which one run of the program uses up, and it is run "
                "several times: give a list"
            )


def _iterator_in(value: Any) -> Iterator | None:
    """The first iterator among (nested) values."""
    if isinstance(value, Iterator):
        return value
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return None
    return next((found for found in map(_iterator_in, value) if found is not None), None)
