"""Log densities of a loop's statements, taken together.

A loop of a thousand small statements would spend its time in a thousand calls of ``log_prob``.
Statements of one elementary distribution and equal shapes wait until the program has run (Pyro,
too, takes log densities then), are stacked along a new leading axis, and take one call.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyro.distributions as dist
import torch
from torch import Tensor

#: Elementary distributions: log_prob treats batch elements apart. With what rebuilds them; of
#: "probs" and "logits" whichever was given.
PARAMETERS: dict[type, tuple[str, ...]] = {
    dist.Bernoulli: ("probs", "logits"),
    dist.Categorical: ("probs", "logits"),
    dist.Exponential: ("rate",),
    dist.Gamma: ("concentration", "rate"),
    dist.Laplace: ("loc", "scale"),
    dist.Normal: ("loc", "scale"),
    dist.Poisson: ("rate",),
    dist.StudentT: ("df", "loc", "scale"),
}

#: Fewer statements are not worth taking together (nor, in the graph, grouping under one name).
LOOP_STATEMENTS = 8


def _parameters(fn: object) -> dict[str, Tensor]:
    names = PARAMETERS[type(fn)]
    if names == ("probs", "logits"):
        given = vars(fn)
        names = ("probs",) if given.get("probs") is fn._param else ("logits",)
    return {name: getattr(fn, name) for name in names}


class LoopStatements:
    """Statements that wait for their likes, by their place among all statements."""

    def __init__(self) -> None:
        self._waiting: dict[tuple, list[tuple[int, object, dict[str, Tensor], Tensor]]] = {}

    def take(self, place: int, msg: dict) -> bool:
        """Whether the statement will be answered by :meth:`log_probs`."""
        fn, value = msg["fn"], msg["value"]
        plain = msg["mask"] is None and isinstance(msg["scale"], (int, float)) and msg["scale"] == 1
        if type(fn) not in PARAMETERS or not plain or msg["args"] or msg["kwargs"]:
            return False
        shape = fn.batch_shape
        parameters = _parameters(fn)
        if value.shape != shape or any(p.shape[: len(shape)] != shape for p in parameters.values()):
            return False
        key = (
            type(fn),
            value.dtype,
            shape,
            *((n, p.shape, p.dtype) for n, p in parameters.items()),
        )
        self._waiting.setdefault(key, []).append((place, fn, parameters, value))
        return True

    def log_probs(self) -> Iterator[tuple[int, Tensor]]:
        """``(place, log density)`` of every statement taken."""
        for waiting in self._waiting.values():
            places, fns, parameters, values = zip(*waiting, strict=True)
            if len(places) < LOOP_STATEMENTS:
                yield from ((k, f.log_prob(v)) for k, f, v in zip(places, fns, values, strict=True))
                continue
            stacked = {n: torch.stack([p[n] for p in parameters]) for n in parameters[0]}
            together = type(fns[0])(**stacked, validate_args=False).log_prob(torch.stack(values))
            yield from zip(places, together.unbind(0), strict=True)
