"""``torch.autograd.Function``s of the program's own, through which latents go.

What their ``forward`` computes is recorded like anything else, and the graph differentiates that.
Their ``backward`` is not: it may be another function's, as that of a straight-through estimate is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pyrograph.trace.record import Recorder

#: Whose Functions are derivatives of what they compute.
TRUSTED = ("torch", "pyro")


@contextmanager
def functions_watched(recorder: Recorder) -> Iterator[dict[str, str]]:
    """Yields names of Functions and where they were first applied, filled in as the program runs.

    Watched is what ``Function.apply`` calls: programs keep bound copies of ``apply`` itself. It is
    no public part of torch; without it nothing is watched.
    """
    base = getattr(torch.autograd.function, "_SingleLevelFunction", None)
    found: dict[str, str] = {}
    if base is None:
        yield found
        return

    def apply(cls: type, *args: Any) -> Any:
        is_own = cls.__module__.partition(".")[0] not in TRUSTED and cls.__name__ not in found
        if is_own and any(recorder.is_latent(a) for a in args):
            found[cls.__name__] = recorder.place()
        return super(base, cls).apply(*args)

    before = vars(base).get("apply")  # that of a program that traces another one
    base.apply = classmethod(apply)
    try:
        yield found
    finally:
        if before is None:
            del base.apply
        else:
            base.apply = before
