"""Elimination trees: in which order variables are summed out, and what each still depends on.

Eliminating v joins what reads it into one function of its *context*, the later variables that it
or the variables eliminated into it share a factor with; v hangs below the first of them. Time and
size go by the numbers of joint states of v and its context. Starting from a min-fill order, the
tree is hung up at its middle, and also cut apart at its middles; both give trees that are less
deep, the second wider ones.

Source: Kjaerulff (1990) for min-fill; Darwiche (2001), "Recursive conditioning", for balance.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations


@dataclass(frozen=True, eq=False)
class EliminationTree:
    """What an order of elimination comes to.

    Attributes:
        order: variables, the first eliminated first.
        parent: of each variable; -1 of those that are eliminated last in their component.
        context: of each variable, ascending: all are above it in the tree.
        cards: numbers of states.
    """

    order: tuple[int, ...]
    parent: tuple[int, ...]
    context: tuple[tuple[int, ...], ...]
    cards: tuple[int, ...]

    @staticmethod
    def of_order(
        order: Sequence[int], neighbors: Sequence[set[int]], cards: Sequence[int]
    ) -> EliminationTree:
        """Of any order of all variables of a graph."""
        position = {v: k for k, v in enumerate(order)}
        pending: list[set[int]] = [set() for _ in neighbors]
        parent = [-1] * len(neighbors)
        context: list[tuple[int, ...]] = [()] * len(neighbors)
        for k, v in enumerate(order):
            above = {u for u in neighbors[v] if position[u] > k} | pending[v]
            above.discard(v)
            context[v] = tuple(sorted(above))
            if above:
                parent[v] = min(above, key=position.__getitem__)
                pending[parent[v]] |= above
            pending[v] = set()
        return EliminationTree(tuple(order), tuple(parent), tuple(context), tuple(cards))

    @cached_property
    def children(self) -> list[list[int]]:
        below: list[list[int]] = [[] for _ in self.parent]
        for v in self.order:
            if self.parent[v] >= 0:
                below[self.parent[v]].append(v)
        return below

    @property
    def width(self) -> int:
        """Largest number of variables in a context."""
        return max(map(len, self.context), default=0)

    def num_states(self, variables: Iterable[int]) -> int:
        return math.prod(self.cards[v] for v in variables)

    @cached_property
    def most_edges(self) -> int:
        """Of a circuit along the tree: entries of all tables over a variable and its context, and
        of products of what is below it."""
        edges = 0
        for v in self.order:
            below = self.children[v]
            read = set().union(*(self.context[c] for c in below)) | {v}
            edges += self.num_states((v, *self.context[v]))
            edges += (1 + len(below)) * self.num_states(read) * bool(below)
        return edges

    @cached_property
    def num_pairs(self) -> int:
        """Of units for one variable, at each of its states: what comparing two circuits goes by."""
        return sum(self.num_states(self.context[v]) ** 2 * self.cards[v] for v in self.order)

    @cached_property
    def depth(self) -> int:
        """Variables on the longest path down."""
        depth = [0] * len(self.parent)
        for v in reversed(self.order):
            depth[v] = 1 + (depth[self.parent[v]] if self.parent[v] >= 0 else 0)
        return max(depth, default=0)

    def bag(self, v: int) -> set[int]:
        return {v, *self.context[v]}


def neighborhoods(scopes: Iterable[Sequence[int]], num_variables: int) -> list[set[int]]:
    """Which variables share a factor."""
    found: list[set[int]] = [set() for _ in range(num_variables)]
    for scope in scopes:
        for v in scope:
            found[v].update(scope)
    for v, around in enumerate(found):
        around.discard(v)
    return found


def min_fill(neighbors: Sequence[set[int]], cards: Sequence[int]) -> list[int]:
    """The order that eliminates next what adds the fewest edges.

    Ties go to the smallest table, then to the lowest number.
    """
    graph = [set(around) for around in neighbors]
    log_card = [math.log(c) for c in cards]

    def price(v: int) -> tuple[int, float, int]:
        around = graph[v]
        inner = sum(len(graph[u] & around) for u in around) // 2
        missing = len(around) * (len(around) - 1) // 2 - inner
        return missing, round(sum(log_card[u] for u in around) + log_card[v], 9), v

    current = [price(v) for v in range(len(graph))]
    heap = list(current)
    heapq.heapify(heap)
    order, done = [], [False] * len(graph)
    while heap:
        entry = heapq.heappop(heap)
        v = entry[2]
        if done[v] or entry != current[v]:
            continue
        order.append(v)
        done[v] = True
        around = graph[v]
        touched = set(around)
        for a, b in combinations(sorted(around), 2):
            if b not in graph[a]:
                touched |= graph[a] & graph[b]
                graph[a].add(b)
                graph[b].add(a)
        for u in around:
            graph[u].discard(v)
        for u in touched:
            if not done[u]:
                current[u] = price(u)
                heapq.heappush(heap, current[u])
    return order


def balanced_tree(
    neighbors: Sequence[set[int]], cards: Sequence[int], max_edges: float = math.inf
) -> EliminationTree:
    """A min-fill tree, or one made of it that is worth its size.

    Depth costs layers: log Z and marginals of a chain take ten times as long as where it is cut
    apart. Size costs pairs of units, by which kernel discrepancies go: with more than a few states
    minutes in the place of seconds. The tree of the smallest pairs * depth^0.6 is taken, of those
    that cannot exceed the budget if there is one, else the smallest. So a chain of 500 binary
    variables is cut apart (four times the pairs, 16 variables deep and not 500); one of 500
    variables with three states or more is hung up at its middle, as a grid is.
    """
    first = EliminationTree.of_order(min_fill(neighbors, cards), neighbors, cards)
    bags = _BagTree(first)
    trees = [first]
    for order in (bags.from_the_middle(), bags.cut_apart()):
        trees.append(EliminationTree.of_order(order, neighbors, cards))
    affordable = [tree for tree in trees if tree.most_edges <= max_edges]
    if not affordable:
        return min(trees, key=lambda t: t.most_edges)
    return min(affordable, key=lambda t: math.log(t.num_pairs or 1) + 0.6 * math.log(t.depth or 1))


class _BagTree:
    """The variables with their contexts as a junction tree: neighbouring bags share a context."""

    def __init__(self, tree: EliminationTree):
        self.tree = tree
        self.links = [
            [*tree.children[v], *([tree.parent[v]] if tree.parent[v] >= 0 else [])]
            for v in range(len(tree.parent))
        ]
        #: in how many bags a variable is: those in many are decided early
        self.uses = [1] * len(tree.parent)
        for context in tree.context:
            for v in context:
                self.uses[v] += 1
        self.roots = [v for v in tree.order if tree.parent[v] < 0]

    def from_the_middle(self) -> list[int]:
        """Every component hung up at the middle of its longest path."""
        down: list[int] = []
        decided: set[int] = set()
        for root in self.roots:
            one_end = self._walk(root)[-1]
            walk, before = self._walk_with_links(one_end)
            path = [walk[-1]]
            while before[path[-1]] >= 0:
                path.append(before[path[-1]])
            for bag in self._walk(path[len(path) // 2]):
                self._decide(bag, decided, down)
        return down[::-1]

    def cut_apart(self) -> list[int]:
        """The bag at the centre of a component first, then those of what is left of it."""
        down: list[int] = []
        decided: set[int] = set()
        removed = [False] * len(self.links)
        waiting = list(reversed(self.roots))
        while waiting:
            centre = self._centre(waiting.pop(), removed)
            self._decide(centre, decided, down)
            removed[centre] = True
            waiting += [u for u in self.links[centre] if not removed[u]]
        return down[::-1]

    def _decide(self, bag: int, decided: set[int], down: list[int]) -> None:
        new = sorted(self.tree.bag(bag) - decided, key=lambda v: (-self.uses[v], v))
        down += new
        decided.update(new)

    def _walk_with_links(
        self, start: int, removed: Sequence[bool] | None = None
    ) -> tuple[list[int], dict[int, int]]:
        walk, before = [start], {start: -1}
        for v in walk:
            for u in self.links[v]:
                if u not in before and not (removed and removed[u]):
                    before[u] = v
                    walk.append(u)
        return walk, before

    def _walk(self, start: int) -> list[int]:
        return self._walk_with_links(start)[0]

    def _centre(self, start: int, removed: Sequence[bool]) -> int:
        """The bag that leaves no part of more than half."""
        walk, before = self._walk_with_links(start, removed)
        size = dict.fromkeys(walk, 1)
        largest = dict.fromkeys(walk, 0)
        for v in reversed(walk):
            if before[v] >= 0:
                size[before[v]] += size[v]
                largest[before[v]] = max(largest[before[v]], size[v])
        return min(walk, key=lambda v: (max(largest[v], len(walk) - size[v]), v))
