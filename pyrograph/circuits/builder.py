"""Circuits written unit by unit, where equal units are one unit.

Numbers are logs. Units are dropped unless the root reads them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import torch

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.structure.leaves import Domain
from pyrograph.circuits.structure.units import INPUT, PRODUCT, SUM, Units


class Builder:
    """Each method returns the number of a unit, that of an equal one if there is one.

    Args:
        cards: numbers of states of the variables; None of real ones.
    """

    def __init__(self, cards: Sequence[int | None]):
        self.cards = tuple(cards)
        self._number: dict[Hashable, int] = {}
        self._kind: list[int] = []
        self._var: list[int] = []
        self._children: list[tuple[int, ...]] = []
        self._numbers: list[tuple[float, ...]] = []

    def _unit(
        self, kind: int, var: int, children: tuple[int, ...], numbers: tuple[float, ...]
    ) -> int:
        key = (kind, var, children, numbers)
        if key not in self._number:
            self._number[key] = len(self._kind)
            for column, value in zip(
                (self._kind, self._var, self._children, self._numbers), key, strict=True
            ):
                column.append(value)
        return self._number[key]

    def categorical(self, var: int, log_probs: Iterable[float]) -> int:
        """An input of a discrete variable."""
        return self._unit(INPUT, var, (), tuple(map(float, log_probs)))

    def indicator(self, var: int, state: int) -> int:
        """The input that is 1 at one state."""
        return self.categorical(
            var, (0.0 if s == state else -math.inf for s in range(self.cards[var]))
        )

    def gaussian(self, var: int, loc: float, scale: float) -> int:
        """An input of a real variable."""
        return self._unit(INPUT, var, (), (float(loc), float(scale)))

    def product(self, children: Iterable[int]) -> int:
        """Of any order of children; that of one child is the child."""
        below = tuple(sorted(children))
        return below[0] if len(below) == 1 else self._unit(PRODUCT, -1, below, ())

    def sum(self, children: Sequence[int], log_weights: Sequence[float]) -> int:
        """Of any order of children; that of one child of weight 1 is the child."""
        pairs = sorted(zip(children, map(float, log_weights), strict=True))
        below, weights = zip(*pairs, strict=True)
        return below[0] if weights == (0.0,) else self._unit(SUM, -1, below, weights)

    def circuit(self, root: int) -> Circuit:
        """What is below a unit, float64."""
        used = np.zeros(root + 1, bool)
        used[root] = True
        for n in range(root, -1, -1):
            if used[n]:
                used[list(self._children[n])] = True
        kept = np.flatnonzero(used).tolist()
        number = np.cumsum(used) - 1
        units = Units.of_lists(
            [self._kind[n] for n in kept],
            [self._var[n] for n in kept],
            [number[list(self._children[n])] for n in kept],
        )
        width = max((c for c in self.cards if c is not None), default=1)
        tables, loc, scale, weights = [], [], [], []
        for n in kept:
            if self._kind[n] == SUM:
                weights += self._numbers[n]
            elif self._kind[n] == INPUT:
                real = self.cards[self._var[n]] is None
                row = () if real else self._numbers[n]
                tables.append([*row, *[-math.inf] * (width - len(row))])
                mean, deviation = self._numbers[n] if real else (math.nan, math.nan)
                loc.append(mean)
                scale.append(deviation)
        domain = Domain(self.cards, units.var[units.kind == INPUT])
        numbers = (
            torch.tensor(values, dtype=torch.float64, device="cpu")
            for values in (weights, tables, loc, scale)
        )
        return Circuit(units, domain, *numbers)
