"""What was begun and fails is undone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def undone_on_error(parts: Sequence[object]) -> Iterator[None]:
    """Objects have the attributes that they had, if what follows raises. They are to be replaced,
    not changed in place: nothing is copied."""
    kept = [(part, dict(vars(part))) for part in parts]
    try:
        yield
    except BaseException:
        for part, attributes in kept:
            vars(part).clear()
            vars(part).update(attributes)
        raise
