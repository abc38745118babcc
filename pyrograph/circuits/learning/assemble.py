"""From a split circuit to a :class:`~pyrograph.circuits.circuit.Circuit`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.structure.leaves import Domain
from pyrograph.circuits.structure.units import INPUT, PRODUCT, SUM, Units

if TYPE_CHECKING:
    from pyrograph.circuits.learning.splitting import Splitting


def assemble(
    circuit: Splitting,
    weights: Sequence[Mapping[int, np.ndarray]],
    mixing: np.ndarray | None = None,
) -> Circuit:
    """A circuit, or a mixture of circuits of one structure.

    Args:
        weights: of each component, those of every sum.
        mixing: ``[components]``.

    A sum whose products hold one variable and nothing else is a categorical input; one with a
    single product is that product.
    """
    writer = _Writer(circuit)
    roots = [writer.component(own) for own in weights]
    if len(roots) > 1:
        writer.add_sum(roots, np.asarray(mixing))
    return writer.finish()


def beside_uniform(circuit: Circuit, columns: np.ndarray, cards: Sequence[int]) -> Circuit:
    """A circuit times uniform distributions of other variables, all of them discrete.

    Args:
        columns: ``[D]``, the numbers that its variables have among all.
        cards: of all.
    """
    units, size = circuit.units, len(circuit.units)
    others = np.setdiff1d(np.arange(len(cards)), columns)
    count = len(others)
    var = np.where(units.var < 0, -1, columns[units.var])
    every = Units(
        np.r_[units.kind, [INPUT] * count, PRODUCT].astype(np.int8),
        np.r_[var, others, -1],
        np.r_[units.start, [units.num_edges] * count, units.num_edges + count + 1],
        np.r_[units.child, np.arange(size - 1, size + count)],
    )
    shape = len(circuit.log_table) + count, max(cards)
    table = torch.full(shape, -torch.inf, dtype=torch.float64, device="cpu")
    own = circuit.log_table.detach()
    table[: len(own), : own.shape[1]] = own
    for row, v in enumerate(others.tolist(), start=len(own)):
        table[row, : cards[v]] = -math.log(cards[v])
    none = torch.full((len(table),), torch.nan, dtype=torch.float64, device="cpu")
    domain = Domain(tuple(cards), every.var[every.kind == INPUT])
    log_weights = circuit.log_weights.detach()
    return Circuit(every, domain, log_weights, table, none, none.clone())


class _Writer:
    def __init__(self, circuit: Splitting):
        self.circuit = circuit
        self.kind: list[int] = []
        self.var: list[int] = []
        self.children: list[list[int]] = []
        #: of each input, states and their weights
        self.table: list[tuple[list[int], np.ndarray]] = []
        self.weight: list[np.ndarray] = []
        self._indicator: dict[tuple[int, int], int] = {}
        rank = {v: k for k, v in enumerate(reversed(circuit.tree.order))}
        self._order = sorted(circuit.sums, key=lambda n: (rank[circuit.sums[n].variable], n))

    def component(self, weights: Mapping[int, np.ndarray]) -> int:
        """The root of one component."""
        sums: dict[int, int] = {}
        products: dict[int, int] = {}
        for n in self._order:
            unit = self.circuit.sums[n]
            v = unit.variable
            states = [self.circuit.products[p].state for p in unit.products]
            if not self.circuit.tree.children[v]:
                sums[n] = self._categorical(v, states, weights[n])
                continue
            for p, state in zip(unit.products, states, strict=True):
                if p not in products:
                    below = [sums[m] for m in self.circuit.products[p].sums]
                    products[p] = self._add(PRODUCT, -1, [self._state(v, state), *below])
            below = [products[p] for p in unit.products]
            sums[n] = below[0] if len(below) == 1 else self.add_sum(below, weights[n])
        return sums[self.circuit.root]

    def add_sum(self, children: list[int], weights: np.ndarray) -> int:
        self.weight.append(weights)
        return self._add(SUM, -1, children)

    def _categorical(self, v: int, states: list[int], weights: np.ndarray) -> int:
        if len(states) == 1:
            return self._state(v, states[0])
        self.table.append((states, weights))
        return self._add(INPUT, v, [])

    def _state(self, v: int, state: int) -> int:
        if (v, state) not in self._indicator:
            self.table.append(([state], np.ones(1)))
            self._indicator[v, state] = self._add(INPUT, v, [])
        return self._indicator[v, state]

    def _add(self, kind: int, var: int, children: list[int]) -> int:
        self.kind.append(kind)
        self.var.append(var)
        self.children.append(children)
        return len(self.kind) - 1

    def finish(self) -> Circuit:
        units = Units.of_lists(self.kind, self.var, self.children)
        cards = self.circuit.cards
        table = np.zeros((len(self.table), max(cards)))
        for row, (states, own) in zip(table, self.table, strict=True):
            # two products of a leaf may hold one state in parts that were split apart
            np.add.at(row, states, own)
        with np.errstate(divide="ignore"):
            np.log(table, out=table)
        none = torch.full((len(table),), torch.nan, dtype=torch.float64, device="cpu")
        weights = np.concatenate([np.zeros(0), *self.weight])
        return Circuit(
            units,
            Domain(cards, units.var[units.kind == INPUT]),
            torch.from_numpy(weights).log(),
            torch.from_numpy(table),
            none,
            none.clone(),
        )
