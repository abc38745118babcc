"""Log densities of a loop's statements, taken together.

A loop of a thousand small statements would spend its time in a thousand calls of ``log_prob``.
Statements of one elementary distribution and equal shapes wait until the program has run (Pyro,
too, takes log densities then), are stacked along a new leading axis, and take one call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

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


class Waiting(NamedTuple):
    """A statement by its place among all statements."""

    place: int
    fn: Any
    parameters: dict[str, Tensor]
    value: Tensor


class LoopStatements:
    """Statements that wait for their likes."""

    def __init__(self) -> None:
        self._waiting: dict[tuple, list[Waiting]] = {}

    def take(self, rec: Recorder, place: int, msg: dict) -> bool:
        """Whether the statement will be in one of the :meth:`groups`."""
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
            *((n, p.shape, p.dtype, rec.is_latent(p)) for n, p in parameters.items()),
        )
        self._waiting.setdefault(key, []).append(Waiting(place, fn, parameters, value))
        return True

    def groups(self) -> Iterator[list[Waiting]]:
        """The statements taken: those that are worth it together, others one by one."""
        for alike in self._waiting.values():
            if len(alike) < LOOP_STATEMENTS:
                yield from ([one] for one in alike)
            else:
                yield alike


def log_probs(group: list[Waiting]) -> Iterable[Tensor]:
    """Log densities of one group's statements."""
    if len(group) == 1:
        return [group[0].fn.log_prob(group[0].value)]
    stacked = {n: torch.stack([w.parameters[n] for w in group]) for n in group[0].parameters}
    together = type(group[0].fn)(**stacked, validate_args=False)
    return together.log_prob(torch.stack([w.value for w in group])).unbind(0)
