"""The units of a circuit as arrays: what is below what.

A circuit is a directed acyclic graph. An *input* unit is a univariate distribution, a *product*
multiplies its children, a *sum* adds them with weights. Units are numbered children first; the last
one is the root. The *scope* of a unit is the set of variables below it, held as the bits of an
integer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pyrograph.errors import InvalidCircuit

INPUT, PRODUCT, SUM = 0, 1, 2
KINDS = ("input", "product", "sum")


@dataclass(frozen=True, eq=False)
class Units:
    """Structure without numbers.

    Attributes:
        kind: ``[N]``, one of INPUT, PRODUCT, SUM.
        var: ``[N]``, the variable of an input; -1 elsewhere.
        start: ``[N + 1]``; the children of unit n are ``child[start[n] : start[n + 1]]``.
        child: ``[E]``.

    Raises:
        InvalidCircuit: a child comes after its parent, an inner unit has no child, or a product has
            one.
    """

    kind: np.ndarray
    var: np.ndarray
    start: np.ndarray
    child: np.ndarray

    def __post_init__(self) -> None:
        if not len(self.kind):
            raise InvalidCircuit("a circuit has at least one unit, the root")
        fan_in = np.diff(self.start)
        wrong = np.flatnonzero((fan_in == 0) & (self.kind != INPUT))
        if len(wrong):
            raise InvalidCircuit(f"{self.name(wrong[0])} has no children")
        wrong = np.flatnonzero((fan_in == 1) & (self.kind == PRODUCT))
        if len(wrong):
            raise InvalidCircuit(
                f"{self.name(wrong[0])} has one child: write it as a sum of weight 1"
            )
        wrong = np.flatnonzero((self.child >= self.parent) | (self.child < 0))
        if len(wrong):
            n = self.parent[wrong[0]]
            raise InvalidCircuit(
                f"{self.name(n)} has the child {self.child[wrong[0]]}: list children before parents"
            )

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def num_edges(self) -> int:
        return len(self.child)

    @cached_property
    def parent(self) -> np.ndarray:
        """``[E]``, the unit whose edge it is."""
        return np.repeat(np.arange(len(self.kind)), np.diff(self.start))

    @cached_property
    def edge_is_sum(self) -> np.ndarray:
        """``[E]``."""
        return self.kind[self.parent] == SUM

    def children(self, n: int) -> np.ndarray:
        return self.child[self.start[n] : self.start[n + 1]]

    def name(self, n: int) -> str:
        return f"{KINDS[self.kind[n]]} unit {int(n)}"

    def of_kind(self, kind: int) -> Iterator[int]:
        return map(int, np.flatnonzero(self.kind == kind))

    @cached_property
    def scopes(self) -> list[int]:
        """The variables below each unit, bit i for variable i."""
        scopes: list[int] = []
        children, start = self.child.tolist(), self.start.tolist()
        for n, var in enumerate(self.var.tolist()):
            scope = 0 if var < 0 else 1 << var
            for c in children[start[n] : start[n + 1]]:
                scope |= scopes[c]
            scopes.append(scope)
        return scopes

    @cached_property
    def depth(self) -> np.ndarray:
        """``[N]``, 0 for inputs, else one more than the deepest child."""
        depth: list[int] = []
        children, start = self.child.tolist(), self.start.tolist()
        for n in range(len(self.kind)):
            below = children[start[n] : start[n + 1]]
            depth.append(1 + max(depth[c] for c in below) if below else 0)
        return np.array(depth)

    def below_root(self) -> tuple[Units, np.ndarray, np.ndarray]:
        """What the root is made of, and which units ``[N]`` and edges ``[E]`` these were."""
        used = self.reached(np.ones(self.num_edges, bool))
        edges = used[self.parent]
        return self.part(used, edges), used, edges

    def reached(self, edges: np.ndarray) -> np.ndarray:
        """Units ``[N]`` that the root is made of, along some edges ``[E]``."""
        used = np.zeros(len(self), bool)
        used[-1] = True
        depth = self.depth[self.parent]
        order = np.argsort(depth, kind="stable")  # a child is less deep than its parents
        for level in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)[::-1]:
            of_used = level[edges[level] & used[self.parent[level]]]
            used[self.child[of_used]] = True
        return used

    def part(self, used: np.ndarray, edges: np.ndarray) -> Units:
        """Some units ``[N]`` alone, with some of their edges ``[E]``, numbered anew."""
        number = np.cumsum(used) - 1
        fan_in = np.bincount(self.parent[edges], minlength=len(self))[used]
        start = np.concatenate([[0], fan_in.cumsum()])
        return Units(self.kind[used], self.var[used], start, number[self.child[edges]])

    @staticmethod
    def of_lists(
        kind: Sequence[int], var: Sequence[int], children: Sequence[Sequence[int]]
    ) -> Units:
        """From one list of children per unit."""
        lengths = np.fromiter(map(len, children), np.int64, len(children))
        start = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
        child = np.fromiter((c for below in children for c in below), np.int64, int(start[-1]))
        return Units(np.array(kind, np.int8), np.array(var, np.int64), start, child)


def variables(scope: int) -> list[int]:
    """The variables of a scope, ascending."""
    found = []
    while scope:
        low = scope & -scope
        found.append(low.bit_length() - 1)
        scope ^= low
    return found


def describe(scope: int) -> str:
    """A scope in a message."""
    every = variables(scope)
    shown = ", ".join(map(str, every[:8]))
    return f"{{{shown}{', ...' if len(every) > 8 else ''}}}"
