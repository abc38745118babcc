"""Copies of a product, conditioned to states of a variable below it; see :mod:`~.splitting`."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pyrograph.circuits.learning.partition import Sum, shrunk

if TYPE_CHECKING:
    from pyrograph.circuits.learning.splitting import Splitting


@dataclass(frozen=True)
class Level:
    """Units of one variable on the path.

    Attributes:
        slot: the place of its sums in the products of the level above.
    """

    slot: int
    sums: list[int]
    products: list[int]


class Copier:
    """Copies along one path; weights are those before the first copy.

    Attributes:
        changed: sums that are new or have lost rows.
    """

    def __init__(self, circuit: Splitting, levels: list[Level], depth: int):
        self.circuit, self.levels, self.depth = circuit, levels, depth
        self.changed: set[int] = set()
        self._weights: dict[int, np.ndarray] = {}
        for level in levels[1:]:
            for n in level.sums:
                self._weights_of(n)

    def conditioned(self, top: int, states: Set[int], inside: np.ndarray) -> tuple[int, float]:
        """The copy of the first level's product given states of the last level's variable, and
        their probability under it.

        Args:
            inside: ``[U]`` bool, the rows that move to the copy.
        """
        circuit = self.circuit
        beside: dict[int, int] = {}
        # of products that are possible given the states: probability, and the copy
        probability: dict[int, float] = {}
        copy: dict[int, int] = {}
        for p in self.levels[-1].products:
            unit = circuit.products[p]
            if unit.state in states:
                probability[p] = 1.0
                copy[p] = self._with(unit.state, unit.sums, -1, -1, beside, inside)
        for level, above in zip(self.levels[:0:-1], self.levels[-2::-1], strict=True):
            share: dict[int, float] = {}
            copied: dict[int, int] = {}
            for n in level.sums:
                unit = circuit.sums[n]
                kept = [i for i, p in enumerate(unit.products) if p in copy]
                if not kept:
                    continue
                joint = self._weights_of(n)[kept] * [probability[unit.products[i]] for i in kept]
                share[n] = float(joint.sum())
                prior = joint / share[n] if share[n] > 0 else np.full(len(kept), 1 / len(kept))
                copied[n] = self._take(
                    n, kept, [copy[unit.products[i]] for i in kept], prior, inside
                )
            probability, copy_above = {}, {}
            for p in above.products:
                unit = circuit.products[p]
                n = unit.sums[level.slot]
                if n in copied:
                    probability[p] = share[n]
                    copy_above[p] = self._with(
                        unit.state, unit.sums, level.slot, copied[n], beside, inside
                    )
            copy = copy_above
        return copy[top], probability[top]

    def _with(
        self,
        state: int,
        sums: list[int],
        slot: int,
        on_path: int,
        beside: dict[int, int],
        inside: np.ndarray,
    ) -> int:
        """A product with the sum of the path, and copies of the others."""
        below = [
            on_path if k == slot else self._beside(n, self.depth, beside, inside)
            for k, n in enumerate(sums)
        ]
        return self.circuit.add_product(state, below)

    def _beside(self, n: int, depth: int, done: dict[int, int], inside: np.ndarray) -> int:
        """The copy of a sum off the path; the sum itself below the depth or where no row moves."""
        if n in done:
            return done[n]
        unit = self.circuit.sums[n]
        if depth == 0 or not self._any_row(unit, inside):
            return n
        products = unit.products
        if depth > 1:
            products = [
                self.circuit.add_product(
                    self.circuit.products[p].state,
                    [
                        self._beside(m, depth - 1, done, inside)
                        for m in self.circuit.products[p].sums
                    ],
                )
                for p in products
            ]
        every = list(range(len(products)))
        done[n] = self._take(n, every, list(products), self._weights_of(n), inside)
        return done[n]

    def _any_row(self, unit: Sum, inside: np.ndarray) -> bool:
        weight = self.circuit.weight
        return any(weight[own[inside[own]], 0].any() for own in unit.rows)

    def _take(
        self, n: int, kept: list[int], products: list[int], prior: np.ndarray, inside: np.ndarray
    ) -> int:
        """A sum that takes the rows inside from sum n."""
        circuit, unit = self.circuit, self.circuit.sums[n]
        rows = []
        for i in kept:
            own = unit.rows[i]
            moves = inside[own]
            rows.append(own[moves])
            if len(rows[-1]):
                unit.rows[i] = own[~moves]
                # a difference of fractional weights would leave a rounding error where 0 is left
                unit.counts[:, i] = circuit.weight.take(unit.rows[i], 0).sum(0)
        counts, shrinkage = circuit.count(rows), circuit.shrinkage
        unit.weights = shrunk(unit.counts[0], self._weights_of(n), shrinkage)
        weights = shrunk(counts[0], prior, shrinkage)
        new = circuit.add_sum(Sum(unit.variable, products, counts, weights, rows))
        self.changed |= {n, new}
        return new

    def _weights_of(self, n: int) -> np.ndarray:
        if n not in self._weights:
            self._weights[n] = self.circuit.sums[n].weights
        return self._weights[n]
