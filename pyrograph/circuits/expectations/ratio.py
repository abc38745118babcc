"""The measures q(not_i .) - q(.) p(not_i .) / p(.) of all variables i, as one circuit.

With every state possible under p, both terms are triple products over the same denominator,

    mu_i(y) = ( q(not_i y) p(y) - q(y) p(not_i y) ) / p(y),

so a circuit of triples (a, b, c) of units of q, p and p stands for a(y) b(y) / c(y), with a or b
moved at the leaf of variable i. A sum of c is turned round by determinism, where one child c_j is
positive at a time: 1 / c(y) = sum_j [c_j(y) > 0] / (w_j c_j(y)). Triples that are never positive,
neither in place nor with a leaf moved, are left out. At most |q| |p|^2 triples, in compiled models
far fewer.

Source: Li, Zeng, Vergari & Van den Broeck (2021), corollary 4.7 and proposition 5.4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.expectations.scaling import LogLeaf
from pyrograph.circuits.expectations.sides import Patterns, Side, moderate
from pyrograph.circuits.structure.overlap import Overlap, live_children
from pyrograph.circuits.structure.regions import Level, Regions, Rows, arranged

Triple = tuple[int, int, int]


class RatioSide(Side):
    """Triples of units, by regions.

    Args:
        q, p: smooth, decomposable, compatible; p deterministic and positive.
        regions: of both and the kernel.
    """

    stein = True

    def __init__(self, q: Circuit, p: Circuit, regions: Regions):
        self.q, self.p = q, p
        self._rows = arranged(q.units, regions), arranged(p.units, regions)
        self._inputs: dict[int, np.ndarray] = {}
        triples = _Triples(q, p, regions, *self._rows)
        rows, (a, b, c) = triples.arranged()
        self._triples = triples.of_inputs
        of_q, self._table_q, self.log_scale = moderate(q)
        of_p, self._table_p, _ = moderate(p)
        log_weights = _weight(of_q, a) + _weight(of_p, b) - _weight(of_p, c)
        patterns = Patterns.none(regions, log_weights.device)
        super().__init__(regions, rows, log_weights, patterns)

    def make_leaf(self, r: int) -> LogLeaf:
        card = self.p.cards[self.regions.scopes[r].bit_length() - 1]
        a, b, c = self._triples[r].T
        of_q, of_p = self._rows[0][r].inputs, self._rows[1][r].inputs
        q = self._table_q[of_q[a], :card]
        p, below = (self._table_p[of_p[k], :card] for k in (b, c))
        possible = below > -torch.inf
        # a second where keeps NaN out of the derivatives
        below = torch.where(possible, below, 0.0)
        logs = (q + p, q.roll(-1, 1) + p, q + p.roll(-1, 1))
        return LogLeaf(*(torch.where(possible, x - below, -torch.inf).unsqueeze(1) for x in logs))


def _weight(log_weights: Tensor, index: np.ndarray) -> Tensor:
    """Log weights, 0 where the index is -1."""
    padded = torch.cat([log_weights, log_weights.new_zeros(1)])
    return padded[torch.as_tensor(index, device=padded.device)]


class _Triples:
    """The triples that are reached from the three roots."""

    def __init__(
        self, q: Circuit, p: Circuit, regions: Regions, of_q: list[Rows], of_p: list[Rows]
    ):
        self.regions, self.of_q, self.of_p = regions, of_q, of_p
        states = [(c.log_table.detach() > -np.inf).cpu().numpy() for c in (q, p)]
        weighted = [(c.log_weights.detach() > -np.inf).cpu().numpy() for c in (q, p)]
        self._weighted = weighted

        def overlap(first: int, second: int, neighbours: bool) -> Overlap:
            rows = (of_q, of_p)
            return Overlap(
                regions,
                rows[first],
                rows[second],
                (states[first], states[second]),
                (weighted[first], weighted[second]),
                p.cards,
                neighbours,
            )

        # a at the next state of c's, b at the next state of c's
        self._qp, self._pp = overlap(0, 1, False), overlap(1, 1, False)
        self._pq_near, self._pp_near = overlap(1, 0, True).near, overlap(1, 1, True).near
        #: per region ``[n, 3]`` rows of the inputs' triples
        self.of_inputs: list[np.ndarray] = []

    def _possible(self, r: int, triple: Triple) -> bool:
        a, b, c = triple
        q_c, p_c = self._qp.together[r][a, c], self._pp.together[r][b, c]
        if q_c and p_c:
            return True
        return bool((q_c and self._pp_near[r][c, b]) or (p_c and self._pq_near[r][c, a]))

    def arranged(self) -> tuple[list[Rows], tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Rows of every region, and the indices of the weights of each edge of their sums."""
        regions = self.regions
        asked: list[dict[Triple, int]] = [{} for _ in range(len(regions))]
        top = (int(self.of_q[-1].kept[0]), int(self.of_p[-1].kept[0]))
        asked[-1][top[0], top[1], top[1]] = 0
        edges: list[tuple[int, int, int]] = []
        rows: list[Rows] = []
        for r in reversed(range(len(regions))):
            rows.append(self._region(r, asked, edges))
        rows.reverse()
        self.of_inputs.reverse()
        index = np.array(edges, np.int64).reshape(-1, 3)
        return rows, (index[:, 0], index[:, 1], index[:, 2])

    def _region(self, r: int, asked: list[dict[Triple, int]], edges: list) -> Rows:
        of = (self.of_q[r], self.of_p[r], self.of_p[r])
        num_base = [len(rows.inputs) + len(rows.below) for rows in of]
        children = [_children(rows, w) for rows, w in zip(of, self._three(), strict=True)]
        reached = _Reached(num_base, children, partial(self._possible, r))
        for triple in asked[r]:
            reached.visit(triple)
        base = reached.base
        parts = self.regions.parts[r]
        keys = np.array(list(base), np.int64).reshape(-1, 3)
        self.of_inputs.append(keys if not parts else keys[:0])
        below = np.zeros((len(base) if parts else 0, len(parts)), np.int64)
        for k, part in enumerate(parts):
            lower = (self.of_q[part].kept, self.of_p[part].kept, self.of_p[part].kept)
            found = np.stack(
                [low[rows.below[keys[:, j], k]] for j, (low, rows) in enumerate(zip(lower, of))], 1
            )
            for n, triple in enumerate(map(tuple, found.tolist())):
                below[n, k] = asked[part].setdefault(triple, len(asked[part]))
        levels, number = reached.levels(edges)
        inputs = np.arange(len(base)) if not parts else np.zeros(0, np.int64)
        kept = np.array([number[t] for t in asked[r]], np.int64)
        return Rows(inputs, below, levels, kept)

    def _three(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._weighted[0], self._weighted[1], self._weighted[1]


class _Reached:
    """The triples of a region that are asked for, and all that these need, by their height.

    Args:
        num_base: of the three, how many rows are inputs or products.
        children: of the three, rows and weights of the children of every sum.
        possible: whether a triple of the region is not zero everywhere.

    Attributes:
        base: triples of inputs and products, numbered in the order in which they were met.
    """

    def __init__(
        self,
        num_base: list[int],
        children: list[list[list[tuple[int, int]]]],
        possible: Callable[[Triple], bool],
    ):
        self._num_base, self._children, self._possible = num_base, children, possible
        self.base: dict[Triple, int] = {}
        #: Of a triple with a sum its children, and the weight of each edge in the place of its sum.
        self._sums: dict[Triple, list[tuple[Triple, tuple[int, int, int]]]] = {}
        #: Above inputs and products; -1 of those that are nothing.
        self._height: dict[Triple, int] = {}

    def visit(self, top: Triple) -> None:
        """Take in a triple, and all below it."""
        stack, height = [top], self._height
        while stack:
            triple = stack[-1]
            if triple in height:
                stack.pop()
                continue
            which = next((k for k in range(3) if triple[k] >= self._num_base[k]), None)
            if which is None:
                height[triple] = 0
                self.base[triple] = len(self.base)
            elif triple not in self._sums:
                self._sums[triple] = found = self._opened(triple, which)
                stack += [child for child, _ in found if child not in height]
            else:
                found = [pair for pair in self._sums[triple] if height[pair[0]] >= 0]
                self._sums[triple] = found
                height[triple] = 1 + max((height[child] for child, _ in found), default=-2)

    def _opened(self, triple: Triple, which: int) -> list[tuple[Triple, tuple[int, int, int]]]:
        """The triples with the children of one of the three sums in its place."""
        found = []
        for row, weight in self._children[which][triple[which] - self._num_base[which]]:
            child = (*triple[:which], row, *triple[which + 1 :])
            if self._possible(child):
                own = tuple(weight if k == which else -1 for k in range(3))
                found.append((child, own))
        return found

    def levels(self, edges: list[tuple[int, int, int]]) -> tuple[list[Level], dict[Triple, int]]:
        """Sums from the lowest to the highest, whose weights are added to ``edges``, and the number
        of every triple."""
        number, levels = dict(self.base), []
        for h in range(1, 1 + max(self._height.values(), default=0)):
            own = [t for t in self._sums if self._height[t] == h]
            width = max(len(self._sums[t]) for t in own)
            source = np.zeros((len(own), width), np.int64)
            weight = np.full((len(own), width), -1, np.int64)
            for s, triple in enumerate(own):
                for j, (child, index) in enumerate(self._sums[triple]):
                    source[s, j], weight[s, j] = number[child], len(edges)
                    edges.append(index)
            for triple in own:
                number[triple] = len(number)
            levels.append(Level(np.zeros(len(own), np.int64), source, weight))
        return levels, number


def _children(rows: Rows, weighted: np.ndarray) -> list[list[tuple[int, int]]]:
    """Per sum of a region: rows and weights of its children."""
    return [
        list(zip(source.tolist(), weight.tolist(), strict=True))
        for level in rows.levels
        for source, weight in live_children(level, weighted)
    ]
