"""Rows of constant tables that latent indices choose.

    t[b, v] = table[row_b, v],    row_b = base_b + sum_k stride_k z_k[b]

What a program computes of every row by itself is the same for all who choose it,

    op(table[row]) = op(table)[row]

so that it is computed of the table (``rules/of_rows.py``), and what the program holds stays a
choice of rows, recorded as a step only once something else reads it. ``Categorical(probs[z])``
reads one number of each row in the end: without this every word would read its whole vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyrograph.trace.tape import Operand

#: Numbers that may be computed of tables larger than what is chosen from them, as in a loop, of
#: which every turn chooses one row.
AHEAD = 2**24
#: Results that are remembered, for loops over one table, and numbers of a constant beside it that
#: its bytes may name.
REMEMBERED, NAMED = 256, 1024


@dataclass(frozen=True, eq=False)
class Places:
    """Which row of a table each element chooses.

    Attributes:
        batch: shape of the elements, B in all.
        base: ``[B]`` int64, on the CPU.
        indices: of the latent numbers z_k, ``[B]`` each; static: their numbers of positions and
            strides.
        sources: the tensors that hold them.
    """

    batch: torch.Size
    base: Tensor
    indices: tuple[Operand, ...]
    static: tuple[tuple[int, int], ...]
    sources: tuple[Tensor, ...]

    def within(self, width: int, at: Tensor | None = None) -> Places:
        """Places of the numbers of rows, which are ``width`` long: of all, or of those
        ``at [*batch, n]``."""
        at = torch.arange(width, device="cpu") if at is None else at.reshape(len(self.base), -1)
        count = at.shape[-1]
        return Places(
            torch.Size((*self.batch, count)),
            (self.base.unsqueeze(1) * width + at).reshape(-1),
            tuple(_repeated(operand, count) for operand in self.indices),
            tuple((size, stride * width) for size, stride in self.static),
            self.sources,
        )


def _repeated(operand: Operand, count: int) -> Operand:
    """Every id so many times."""
    ids = operand.ids
    if count == 1:
        return operand
    if isinstance(ids, range):
        ids = torch.arange(ids.start, ids.stop, ids.step, device="cpu")
    return operand._replace(ids=ids.repeat_interleave(count))


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of ``table [R, *tail]``, which nothing writes to: a tensor ``[*batch, *tail]``."""

    places: Places
    table: Tensor


class TableResults:
    """What was computed of tables, and how much may still be computed ahead."""

    def __init__(self) -> None:
        self.left = AHEAD
        self._known: dict[tuple, tuple[tuple[Tensor, ...], Any]] = {}

    def known(self, key: tuple) -> tuple[Tensor, ...] | None:
        found = self._known.get(key)
        return None if found is None else found[0]

    def keep(self, key: tuple, tables: tuple[Tensor, ...], read: Any) -> None:
        """For as long as ``read`` is kept too: the key names tensors by where they lie."""
        if len(self._known) >= REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[key] = tables, read


def lies_at(t: Tensor) -> tuple:
    """Which memory a tensor reads, and how; of one with derivatives itself."""
    if t.requires_grad:  # others may read the same memory
        return (id(t),)
    return t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride(), t.dtype


def key_of(value: Any, tables: list[Tensor]) -> tuple:
    """A name of arguments: of tables, which nothing writes to, where they lie, of other tensors
    their bytes (what writes to them by ``.data`` or numpy is not counted).

    Raises:
        TypeError: some have no name.
    """
    if isinstance(value, Tensor):
        if any(value is table for table in tables):
            return (Tensor, *lies_at(value))
        if value.requires_grad or value.numel() > NAMED:
            raise TypeError("no name is known")
        number = value.detach().cpu().reshape(-1).view(torch.uint8)
        return (Tensor, value.shape, value.dtype, bytes(number.tolist()))
    if isinstance(value, dict):
        value = tuple(value.items())
    if isinstance(value, (list, tuple)):
        return tuple(key_of(part, tables) for part in value)
    hash(value)
    return (type(value), value.hex() if isinstance(value, float) else value)
