"""How circuits break their variables apart, and where they agree on it.

A smooth, decomposable circuit is *structured* if the scopes of its units are nested or disjoint:
then there is a vtree that every product follows. Two circuits are *compatible* if the scopes of
both together are. The scopes are the *regions*: each is one variable, or is broken apart into its
largest parts. A product whose children are finer than the parts of its region is regrouped, so that
in the end all products of a region, of all circuits, have the same parts.

Source: Li, Zeng, Vergari & Van den Broeck (2021), definitions 2.3 and 3.3; Pipatsrisawat & Darwiche
(2008) for vtrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from pyrograph.circuits.structure.units import INPUT, PRODUCT, SUM, Units, describe, variables
from pyrograph.errors import IncompatibleCircuits


@dataclass(frozen=True, eq=False)
class Regions:
    """The scopes of circuits, parts first, the whole last.

    Attributes:
        scopes: of each region.
        parts: the regions it is broken into; none of a single variable.
    """

    scopes: list[int]
    parts: list[tuple[int, ...]]

    @staticmethod
    def of(*circuits: Units, names: Sequence[str] = ()) -> Regions:
        """The regions of circuits over the same variables.

        Raises:
            IncompatibleCircuits: two scopes overlap without one containing the other.
        """
        found: dict[int, tuple[int, int]] = {}  # scope -> (circuit, unit)
        for k, units in enumerate(circuits):
            for n, scope in enumerate(units.scopes):
                found.setdefault(scope, (k, n))
        for units in circuits:
            for v in variables(units.scopes[-1]):
                found.setdefault(1 << v, (0, len(circuits[0]) - 1))
        scopes = sorted(found, key=lambda s: (s.bit_count(), s))
        single: dict[int, int] = {}  # variable -> its region
        above = list(range(len(scopes)))  # a region that has it, itself if there is none so far
        parts = []
        for r, scope in enumerate(scopes):
            below: list[int] = []
            rest = scope
            if not scope & (scope - 1):
                single[scope.bit_length() - 1] = r
                rest = 0
            while rest:
                part = single[(rest & -rest).bit_length() - 1]
                while above[part] != part:  # up to the largest so far, on ever shorter ways
                    above[part] = above[above[part]]
                    part = above[part]
                other = scopes[part]
                if other & ~scope:
                    raise IncompatibleCircuits(
                        _clash(circuits, names, found[scope], found[other], scope, other)
                    )
                below.append(part)
                rest &= ~other
            for part in below:
                above[part] = r
            parts.append(tuple(sorted(below)))
        return Regions(scopes, parts)

    def __len__(self) -> int:
        return len(self.scopes)

    def depth_first(self) -> Iterator[int]:
        """Parts before what they are parts of, and right before it: the largest first, so that few
        regions wait for the others of their whole."""
        order, stack = [], [len(self) - 1]
        while stack:
            order.append(stack.pop())
            stack += reversed(self.parts[order[-1]])
        return reversed(order)


def _clash(circuits, names, first, second, scope: int, other: int) -> str:
    (k, n), (j, m) = first, second
    of = [f" of {name}" for name in names] or [""] * len(circuits)
    return (
        f"{circuits[k].name(n)}{of[k]} has the scope {describe(scope)} and {circuits[j].name(m)}"
        f"{of[j]} the scope {describe(other)}: they overlap, so that no vtree fits both. Build or "
        "learn both circuits along one vtree"
    )


@dataclass(frozen=True, eq=False)
class Level:
    """Sums of a region whose children come before them.

    Attributes:
        unit: ``[S]``.
        source: ``[S, width]`` rows of the region, filled up with any row.
        weight: ``[S, width]`` index of the weight, filled up with -1.
    """

    unit: np.ndarray
    source: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True, eq=False)
class Rows:
    """The units of one circuit in one region: inputs and products first, then sums by levels.

    Attributes:
        inputs: positions of the region's inputs among the circuit's inputs.
        below: ``[products, parts]`` rows in the parts' regions.
        levels: of sums.
        kept: rows that are read by other regions, or the root.
        plans: per device, what :func:`.mixing.plan` made of the sums.
    """

    inputs: np.ndarray
    below: np.ndarray
    levels: list[Level]
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    plans: dict = field(default_factory=dict, repr=False)


@lru_cache(maxsize=64)
def regions_of(*circuits: Units, names: tuple[str, ...] = ()) -> Regions:
    """:meth:`Regions.of`, kept: structures do not change, and are asked for again and again."""
    return Regions.of(*circuits, names=names)


@lru_cache(maxsize=64)
def arranged(units: Units, regions: Regions) -> list[Rows]:
    """:func:`arrange`, kept."""
    return arrange(units, regions)


def arrange(units: Units, regions: Regions) -> list[Rows]:
    """A circuit's units by regions; ``kept`` of the last region is the root."""
    region_of = {scope: r for r, scope in enumerate(regions.scopes)}
    region = [region_of[scope] for scope in units.scopes]
    members: list[list[int]] = [[] for _ in regions.scopes]
    for n, r in enumerate(region):
        members[r].append(n)
    products, asked = _regrouped(units, regions, region, members)
    inputs = {n: k for k, n in enumerate(units.of_kind(INPUT))}
    edge_of_sum = np.cumsum(units.edge_is_sum) - 1
    out = []
    for r, parts in enumerate(regions.parts):
        mine = [n for n in members[r] if units.kind[n] == INPUT]
        row: dict[object, int] = {key: k for k, key in enumerate([*mine, *products[r]])}
        sums = [n for n in members[r] if units.kind[n] == SUM]
        levels = list(_levels(units, sums, row, edge_of_sum))
        shape = len(products[r]), len(parts)
        below = np.array(list(products[r].values()), np.int64).reshape(shape)
        kept = np.array([row[key] for key in asked[r]], np.int64)
        out.append(Rows(np.array([inputs[n] for n in mine], np.int64), below, levels, kept))
    return out


def _regrouped(
    units: Units, regions: Regions, region: list[int], members: list[list[int]]
) -> tuple[list[dict[object, list[int]]], list[dict[object, int]]]:
    """Per region, its products by what is read of every part, and what is read of itself: units,
    or new products, which are tuples of units."""
    products: list[dict[object, list[int]]] = [{} for _ in regions.scopes]
    above = {part: r for r, parts in enumerate(regions.parts) for part in parts}
    # from the whole down: what is asked of each region, as a unit or a new product of units
    asked: list[dict[object, int]] = [{} for _ in regions.scopes]
    below_of: list[dict[object, tuple[object, ...]]] = [{} for _ in regions.scopes]
    asked[-1][len(units) - 1] = 0
    for r in reversed(range(len(regions))):
        if not regions.parts[r]:
            continue
        for n in members[r]:
            if units.kind[n] == PRODUCT:
                below_of[r][n] = tuple(units.children(n).tolist())
        for key in asked[r]:
            if isinstance(key, tuple):
                below_of[r][key] = key
        for key, children in below_of[r].items():
            split: dict[int, list[int]] = {part: [] for part in regions.parts[r]}
            for c in children:
                part = region[c]
                while part != r and above[part] != r:
                    part = above[part]
                split[part].append(c)
            keys = []
            for part, group in split.items():
                wanted = group[0] if len(group) == 1 else tuple(sorted(group))
                if len(group) == 1 and region[group[0]] != part:
                    raise IncompatibleCircuits(
                        f"{units.name(group[0])} has the scope "
                        f"{describe(units.scopes[group[0]])} where the scope "
                        f"{describe(regions.scopes[part])} is needed: the circuit is not smooth"
                    )
                keys.append(asked[part].setdefault(wanted, len(asked[part])))
            products[r][key] = keys
    return products, asked


def _levels(
    units: Units, sums: list[int], row: dict[object, int], edge_of_sum: np.ndarray
) -> Iterator[Level]:
    """Sums of a region, after their children; their rows are added to ``row``."""
    waiting = sums
    while waiting:
        ready = [n for n in waiting if all(c in row for c in units.children(n).tolist())]
        if not ready:
            raise IncompatibleCircuits(
                f"{units.name(waiting[0])} adds children of different scopes: the circuit is not "
                "smooth"
            )
        width = max(len(units.children(n)) for n in ready)
        source = np.zeros((len(ready), width), np.int64)
        weight = np.full((len(ready), width), -1, np.int64)
        for s, n in enumerate(ready):
            children = units.children(n).tolist()
            source[s, : len(children)] = [row[c] for c in children]
            weight[s, : len(children)] = edge_of_sum[units.start[n] : units.start[n + 1]]
        for n in ready:
            row[n] = len(row)
        done = set(ready)
        waiting = [n for n in waiting if n not in done]
        yield Level(np.array(ready), source, weight)
