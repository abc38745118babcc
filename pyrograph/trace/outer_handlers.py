"""Pyro's handlers around a call, as handlers around the model.

What looks at a program is entered last and would stand within the handlers that are active already,
as in

    with poutine.condition(data={"x": x}):
        posterior = pg.fit(model, ...)

Pyro asks the innermost first: ``x`` would be taken for latent before it is given its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyro.poutine.block_messenger import BlockMessenger
from pyro.poutine.runtime import _PYRO_STACK


@contextmanager
def with_outer_handlers(model: Callable) -> Iterator[Callable]:
    """The model within the handlers that are active, which meanwhile stand nowhere else.

    Those around the innermost ``poutine.block``, and this one, stay where they are: it keeps
    statements from them.
    """
    blocks = [k for k, m in enumerate(_PYRO_STACK) if isinstance(m, BlockMessenger)]
    start = blocks[-1] + 1 if blocks else 0
    active = _PYRO_STACK[start:]
    if not active:
        yield model
        return

    def within(*args: Any, **kwargs: Any) -> Any:
        depth = len(_PYRO_STACK)
        _PYRO_STACK.extend(active)
        try:
            return model(*args, **kwargs)
        finally:
            del _PYRO_STACK[depth:]

    del _PYRO_STACK[start:]
    try:
        yield within
    finally:
        _PYRO_STACK[start:] = active
