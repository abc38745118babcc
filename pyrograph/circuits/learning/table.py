"""Rows of codes to learn from: checked, and equal rows joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyrograph.circuits.options import whole
from pyrograph.circuits.structure.leaves import MISSING, numbers
from pyrograph.errors import OptionError, ShapeMismatch

#: Largest code of a variable: its tables would not fit in memory, and single precision does not
#: tell larger codes apart.
MOST_CODES = 2**24


@dataclass(frozen=True, eq=False)
class Table:
    """Distinct rows and how often they occur.

    Attributes:
        codes: ``[U, D]`` int64, -1 where missing.
        cards: number of states of each variable.
        weight: ``[U]``, total weight of each row.
    """

    codes: np.ndarray
    cards: tuple[int, ...]
    weight: np.ndarray

    @property
    def is_complete(self) -> bool:
        return bool((self.codes != MISSING).all())

    @property
    def num_variables(self) -> int:
        return len(self.cards)

    def tensor(self) -> Tensor:
        """The codes as a circuit reads them."""
        return torch.from_numpy(self.codes)

    def with_values(self) -> np.ndarray:
        """Numbers of the columns that have a value in some row; the first if there is none."""
        found = np.flatnonzero((self.codes != MISSING).any(0))
        return found if len(found) else np.zeros(1, np.int64)

    def columns(self, kept: np.ndarray) -> Table:
        """Some columns alone."""
        return Table(self.codes[:, kept], tuple(self.cards[v] for v in kept), self.weight)

    def one_hot(self) -> np.ndarray:
        """``[U, sum of cards]``; a missing value has no one."""
        columns = [self.codes[:, v, None] == np.arange(c) for v, c in enumerate(self.cards)]
        return np.concatenate(columns, 1).astype(np.float64)


def read_table(
    data: Tensor,
    cards: Sequence[int] | None = None,
    weights: Tensor | None = None,
    name: str = "data",
) -> Table:
    """A table of data.

    Args:
        data: ``[N, D]`` codes 0, 1, ... (a tensor, an array or a table); NaN or -1 is missing.
        cards: numbers of states; by default the largest code of the column and one more, and at
            least 2.
        weights: ``[N]``, how often each row counts; default once.

    Raises:
        ShapeMismatch: no rows or columns, or lengths that differ.
        OptionError: a value is no code or not below its number of states, a weight is negative, or
            a column has no value and ``cards`` is not given.
    """
    values = numbers(data).detach().cpu().numpy()
    if values.ndim != 2 or not values.size:
        raise ShapeMismatch(
            f"{name} has shape {values.shape}; expected [N, D] with at least one row and column"
        )
    missing = np.isnan(values) | (values == MISSING)
    wrong = ~missing & ((values < 0) | (values != np.floor(values)) | np.isinf(values))
    if wrong.any():
        row, v = np.argwhere(wrong)[0]
        raise OptionError(
            f"row {row} of {name} has the value {values[row, v]:g} of variable {v}; values are "
            "codes 0, 1, ..., and missing is NaN or -1. Bin real columns first"
        )
    if (values > MOST_CODES).any():
        row, v = np.argwhere(values > MOST_CODES)[0]
        raise OptionError(
            f"row {row} of {name} has the value {values[row, v]:g} of variable {v}: variables have "
            f"codes up to {MOST_CODES:,}. Number the values that occur 0, 1, ..."
        )
    codes = np.where(missing, MISSING, values).astype(np.int64)
    found = codes.max(0) + 1
    if cards is None:
        if missing.all(0).any():
            raise OptionError(
                f"variable {int(missing.all(0).argmax())} has no value in {name}: give cards, the "
                "numbers of states"
            )
        cards = np.maximum(found, 2).tolist()
    if not isinstance(cards, Sequence | np.ndarray | Tensor):
        raise OptionError(f"cards={cards!r}: one number of states for each column")
    if len(cards) != codes.shape[1]:
        raise ShapeMismatch(f"cards has {len(cards)} numbers for {codes.shape[1]} columns")
    cards = [whole(f"cards[{v}]", card) for v, card in enumerate(cards)]
    for v, card in enumerate(cards):
        if found[v] > card:
            raise OptionError(
                f"variable {v} has the code {found[v] - 1} in {name} and {card} states by cards"
            )
    count = row_weights(weights, len(codes))
    rows, group = np.unique(codes, axis=0, return_inverse=True)
    total = np.bincount(group.reshape(-1), count, len(rows))
    return Table(rows, tuple(cards), total)


def row_weights(weights: Tensor | None, num_rows: int) -> np.ndarray:
    """How often each row counts, ``[N]``; default once.

    Raises:
        ShapeMismatch: there is not one for each row.
        OptionError: one is negative or not finite, all are zero, or their sum overflows.
    """
    if weights is None:
        return np.ones(num_rows)
    found = numbers(weights).detach().cpu().numpy()
    if found.shape != (num_rows,):
        raise ShapeMismatch(f"weights have shape {found.shape}; expected [{num_rows}]")
    if not (np.isfinite(found).all() and (found >= 0).all() and found.any()):
        raise OptionError("weights are finite, not negative, and not all zero")
    with np.errstate(over="ignore"):
        total = found.sum()
    if not np.isfinite(total):
        raise OptionError(
            f"weights of up to {found.max():.3g} add up to more than floating point holds: divide "
            "them by one number"
        )
    return found
