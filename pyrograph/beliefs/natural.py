"""Functions in natural parameters, many at once: what messages and beliefs have in common.

    g(z) = exp(eta' T(z))

Products add natural parameters, quotients subtract them, powers scale them. A quotient may be
improper: a site of expectation propagation is any such function, a belief a proper one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

N = TypeVar("N", bound="Natural")


class Natural:
    """A batch of functions; the fields of the dataclasses below are its natural parameters."""

    def parameters(self) -> dict[str, Tensor]:
        """By name; each has the batch's dimensions first."""
        return {name: getattr(self, name) for name in _names(type(self))}

    def mapped(self: N, operation: Callable[..., Tensor], *others: Natural) -> N:
        """The functions whose parameters are ``operation`` of these ones' and, if given, of the
        same ones of others."""
        kind, parts = type(self), (self, *others)
        return kind(*[operation(*[getattr(part, name) for part in parts]) for name in _names(kind)])

    def __add__(self: N, other: N) -> N:
        """Product of the functions."""
        return self.mapped(torch.add, other)

    def __sub__(self: N, other: N) -> N:
        """Quotient of the functions."""
        return self.mapped(torch.sub, other)

    def __rmul__(self: N, power: float | Tensor) -> N:
        """Power of the functions, a number or ``[*batch]``."""
        if not isinstance(power, Tensor):
            return self.mapped(lambda value: power * value)
        return self.mapped(lambda value: _widened(power, value) * value)

    def __getitem__(self: N, index) -> N:
        """Some of the batch."""
        return self.mapped(lambda value: picked(value, index))

    def in_double(self: N) -> N:
        """The same in double precision: these ones, if they are."""
        values = self.parameters().values()
        is_double = all(value.dtype == torch.float64 for value in values)
        return self if is_double else self.mapped(Tensor.double)

    def detach(self: N) -> N:
        return self.mapped(Tensor.detach)


def picked(value: Tensor, index) -> Tensor:
    """``value[index]``; of rows by their numbers, from 0, in a third of the time."""
    is_rows = isinstance(index, Tensor) and index.dim() == 1 and index.dtype == torch.int64
    if is_rows and index.device == value.device:
        return value.index_select(0, index)
    return value[index]


@cache
def _names(kind: type[Natural]) -> tuple[str, ...]:
    """Of its parameters: they are asked for at every step of every message."""
    return tuple(field.name for field in fields(kind))


def where(condition: Tensor, a: N, b: N) -> N:
    """``a`` where the condition ``[*batch]`` holds, else ``b``."""
    return a.mapped(lambda x, y: torch.where(_widened(condition, x), x, y), b)


def _widened(batch: Tensor, value: Tensor) -> Tensor:
    return batch.view(batch.shape + (1,) * (value.dim() - batch.dim()))
