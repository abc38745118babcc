"""What a circuit's structure allows: smoothness, decomposability, a vtree, determinism.

Determinism of a structured circuit is decided exactly, in the number of pairs of units of each
region: see ``overlap``.

Source: Choi, Vergari & Van den Broeck (2020), definitions 11-14 and section 6.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from torch import Tensor

from pyrograph.circuits.structure.decisions import decides
from pyrograph.circuits.structure.leaves import Domain
from pyrograph.circuits.structure.overlap import Overlap, live_children
from pyrograph.circuits.structure.regions import arranged, regions_of
from pyrograph.circuits.structure.units import INPUT, PRODUCT, SUM, Units, describe, variables
from pyrograph.errors import IncompatibleCircuits

NAMES = ("smooth", "decomposable", "structured", "deterministic")


def not_smooth(units: Units) -> str:
    """Empty, or a sum and a child of another scope."""
    number: dict[int, int] = {}
    which = np.array([number.setdefault(scope, len(number)) for scope in units.scopes])
    unlike = units.edge_is_sum & (which[units.child] != which[units.parent])
    if not unlike.any():
        return ""
    edge = np.flatnonzero(unlike)[0]
    n, c = units.parent[edge], units.child[edge]
    return (
        f"{units.name(n)} has the scope {describe(units.scopes[n])}, its child "
        f"{c} only {describe(units.scopes[c])}"
    )


def not_decomposable(units: Units) -> str:
    """Empty, or a product whose children share variables."""
    size = np.array([scope.bit_count() for scope in units.scopes])
    parts = np.bincount(units.parent, size[units.child], len(units))
    wrong = np.flatnonzero((units.kind == PRODUCT) & (parts > size))
    if not len(wrong):
        return ""
    n, seen = wrong[0], 0
    for c in units.children(n):
        if seen & units.scopes[c]:
            break
        seen |= units.scopes[c]
    both = describe(seen & units.scopes[c])
    return f"two children of {units.name(n)} share the variables {both}"


class Properties:
    """Decided when asked for, and kept."""

    def __init__(self, units: Units, domain: Domain, log_table: Tensor, log_weights: Tensor):
        self.units, self._cards = units, domain.cards
        self._real = [self._cards[v] is None for v in domain.var]
        self._read(log_table, log_weights)

    def _read(self, log_table: Tensor, log_weights: Tensor) -> None:
        #: ``[I, c]``, which states are possible; a real input is positive everywhere.
        self._possible = (log_table.detach() > -np.inf).cpu().numpy()
        self._possible[self._real] = True
        self._weighted = (log_weights.detach() > -np.inf).cpu().numpy()

    def now(self, log_table: Tensor, log_weights: Tensor) -> None:
        """Take up numbers that have changed: with other zeros, determinism is decided anew."""
        possible, weighted = self._possible, self._weighted
        self._read(log_table, log_weights)
        same = np.array_equal(possible, self._possible) and np.array_equal(weighted, self._weighted)
        if not same:
            self.__dict__.pop("_not_deterministic", None)

    def all(self) -> dict[str, bool]:
        return {name: not self.problem(name) for name in NAMES}

    def problem(self, name: str) -> str:
        """Empty if the circuit has the property, else a unit that breaks it."""
        return getattr(self, f"_not_{name}")

    @cached_property
    def _not_smooth(self) -> str:
        return not_smooth(self.units)

    @cached_property
    def _not_decomposable(self) -> str:
        return not_decomposable(self.units)

    @cached_property
    def _not_structured(self) -> str:
        broken = self._not_smooth or self._not_decomposable
        if broken:
            return broken
        try:
            self._regions = regions_of(self.units)
        except IncompatibleCircuits as clash:
            return str(clash)
        return ""

    @cached_property
    def _not_deterministic(self) -> str:
        if self._not_smooth or self._not_decomposable:
            return self._not_smooth or self._not_decomposable
        if decides(self.units, self._possible, self._weighted).all():
            return ""  # the general way is quadratic in the units of a region
        if self._not_structured:
            return self._by_single_variables()
        rows = arranged(self.units, self._regions)
        overlap = Overlap(
            self._regions,
            rows,
            rows,
            (self._possible, self._possible),
            (self._weighted, self._weighted),
            self._cards,
        )
        for region, together in zip(rows, overlap.together, strict=True):
            for level in region.levels:
                live = live_children(level, self._weighted)
                for n, (source, _) in zip(level.unit, live, strict=True):
                    clash = np.triu(together[np.ix_(source, source)], 1)
                    if clash.any():
                        return (
                            f"{int(clash.sum())} pairs of children of {self.units.name(n)} are "
                            "positive together"
                        )
        return ""

    def _by_single_variables(self) -> str:
        """Disjoint in the states of a single variable: enough, but not necessary."""
        units = self.units
        support: list[dict[int, int]] = []
        inputs = 0
        for n in range(len(units)):
            if units.kind[n] == INPUT:
                bits = np.flatnonzero(self._possible[inputs]).tolist()
                support.append({int(units.var[n]): sum(1 << b for b in bits)})
                inputs += 1
                continue
            merged: dict[int, int] = {}
            for c in units.children(n):
                for v, bits in support[c].items():
                    merged[v] = merged.get(v, 0) | bits
            support.append(merged)
        for n in units.of_kind(SUM):
            children = units.children(n).tolist()
            shared = variables(units.scopes[n])
            for i, a in enumerate(children):
                for b in children[:i]:
                    if all(support[a][v] & support[b][v] for v in shared):
                        return (
                            f"children {b} and {a} of {units.name(n)} share states of every "
                            "variable, and without a vtree no more can be said"
                        )
        return ""
