"""Sums and products of a circuit that is being split; see :mod:`~.splitting`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class Product:
    """One state of its variable, and sums of the variable's children in order of the tree."""

    state: int
    sums: list[int]
    num_parents: int = 0


@dataclass(slots=True)
class Sum:
    """A sum of a variable.

    Attributes:
        counts: ``[2, children]``, of the rows to learn from and of those to validate with.
        weights: ``[children]``.
        rows: row numbers of each edge.
    """

    variable: int
    products: list[int]
    counts: np.ndarray
    weights: np.ndarray
    rows: list[np.ndarray] = field(default_factory=list)
    num_parents: int = 0

    def log_likelihood(self) -> np.ndarray:
        """``[2]``, what this sum adds to the log likelihood of either set of rows."""
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = self.counts * np.log(self.weights)
        return np.where(self.counts > 0, parts, 0.0).sum(1)


def shrunk(counts: np.ndarray, prior: np.ndarray, strength: float) -> np.ndarray:
    """Frequencies after ``strength`` pseudo-observations distributed as the prior; the prior where
    there is no observation at all."""
    total = counts.sum() + strength
    return prior if total <= 0 else (counts + strength * prior) / total
