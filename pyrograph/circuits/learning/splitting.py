"""A deterministic circuit that is being split, and which rows of the data go where.

The variables form a tree. A *sum* of variable v adds *products* that each hold v in one state and
have a sum for every child of v. A row takes one edge of every sum that it meets, so the rows of the
edges are a partition of those of the sum: what all flows of the circuit amount to is a list of row
numbers per edge, O(N D) numbers however large the circuit. With maximum likelihood weights,

    w_c = n_c / n,    log likelihood = sum over edges of n_c log w_c

*Splitting* an edge on a variable x replaces its product c by one copy c_t for each state t of x. A
copy has own sums on the path down to x, conditioned to the state, and beside the path down to a
depth; deeper ones are shared. The new weights are those of the circuit as it was, shrunk with s
pseudo-observations, so that a split with few rows changes little, and one without rows nothing:

    w_ct = w_c (n_ct + s P_c(t)) / (n_c + s),    in copies  w = (n_t + s w_old(. | t)) / (n_t + s)

Only rows of the edge move: the cost of a split is that of the path.

Source: Dang, Vergari & Van den Broeck (2020), section 3 (splits); the shrinkage is ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.learning.assemble import assemble
from pyrograph.circuits.learning.copying import Copier, Level
from pyrograph.circuits.learning.partition import Product, Sum, shrunk
from pyrograph.circuits.learning.tree import Tree


class Splitting:
    """See the module.

    Attributes:
        root: number of the root sum.
    """

    def __init__(self, tree: Tree, cards: Sequence[int], shrinkage: float = 0.0):
        self.tree, self.cards, self.shrinkage = tree, tuple(cards), shrinkage
        self.sums: dict[int, Sum] = {}
        self.products: dict[int, Product] = {}
        self.root = -1
        # of both sets of rows: what is finite of the log likelihood, and how many sums add -inf
        self._total = np.zeros((2, 2))
        self._share: dict[int, np.ndarray] = {}
        #: of the circuit that :meth:`circuit` returns
        self.num_edges = 0
        self._next = 0
        self.codes = np.zeros((0, len(cards)), np.int64)
        self.weight = np.zeros((0, 2))

    @staticmethod
    def of_tree(
        tree: Tree,
        conditional: Callable[[int, int | None], np.ndarray],
        cards: Sequence[int],
        shrinkage: float = 0.0,
    ) -> Splitting:
        """The tree's distribution.

        Args:
            conditional: of a variable and its parent, probabilities ``[c_parent, c]``, and
                ``[1, c]`` of the root.
            shrinkage: pseudo-observations s of splits.
        """
        self = Splitting(tree, cards, shrinkage)
        # of each variable and state, sums of the children
        below: list[list[list[int]]] = [[[] for _ in range(c)] for c in cards]
        for v in reversed(tree.order):
            states = range(cards[v])
            products = [self.add_product(t, below[v][t]) for t in states]
            for state, weights in enumerate(conditional(v, tree.parent[v])):
                unit = Sum(v, list(products), np.zeros((2, cards[v])), weights)
                number = self.add_sum(unit)
                if tree.parent[v] is None:
                    self.root = number
                else:
                    below[tree.parent[v]][state].append(number)
        for product in self.products.values():  # their variables came in reverse
            product.sums.sort(key=lambda number: self.sums[number].variable)
        return self

    def meet(self, codes: np.ndarray, weight: np.ndarray) -> None:
        """Send complete rows down.

        Args:
            codes: ``[U, D]``.
            weight: ``[U, 2]``, for learning and for validation.
        """
        self.codes, self.weight = codes, weight
        above = {self.root: [np.arange(len(codes), dtype=np.int32)]}
        while above:
            following: dict[int, list[np.ndarray]] = defaultdict(list)
            for number, parts in above.items():
                unit, rows = self.sums[number], np.concatenate(parts)
                state = codes[rows, unit.variable]
                unit.rows = [rows[state == self.products[p].state] for p in unit.products]
                unit.counts = self.count(unit.rows)
                for p, part in zip(unit.products, unit.rows, strict=True):
                    for below in self.products[p].sums:
                        following[below].append(part)
            above = following
        self._refresh(self.sums)

    @property
    def log_likelihood(self) -> np.ndarray:
        """``[2]``, of the rows to learn from and to validate with."""
        return np.where(self._total[1] > 0, -np.inf, self._total[0])

    def circuit(self) -> Circuit:
        return assemble(self, [{n: unit.weights for n, unit in self.sums.items()}])

    # ------------------------------------------------------------------ one split
    def split(self, number: int, edge: int, x: int, depth: int) -> set[int]:
        """Replace a product by copies for the states of x.

        Args:
            number: of the sum.
            edge: which of its children.
            x: a variable strictly below the sum's.
            depth: how many sums beside the path have copies.

        Returns:
            Numbers of all sums that changed.
        """
        above = self.sums[number]
        old, rows = above.products[edge], above.rows[edge]
        path = self.tree.path(above.variable, x)
        levels = self._levels(old, above.variable, path)
        groups = self._groups(rows, x, {self.products[p].state for p in levels[-1].products})
        copier = Copier(self, levels, depth)
        copies, shares = [], []
        for states, own in groups:
            inside = np.zeros(len(self.codes), bool)
            inside[own] = True
            copy, probability = copier.conditioned(old, states, inside)
            copies.append(copy)
            shares.append(probability)
        split_rows = [own for _, own in groups]
        counts, prior = self.count(split_rows), np.array(shares)
        weights = above.weights[edge] * shrunk(counts[0], prior / prior.sum(), self.shrinkage)
        above.weights = np.concatenate([above.weights[:edge], weights, above.weights[edge + 1 :]])
        self.num_edges -= self._width(above)
        above.products[edge : edge + 1] = copies
        self.num_edges += self._width(above)
        above.rows[edge : edge + 1] = split_rows
        above.counts = np.concatenate(
            [above.counts[:, :edge], counts, above.counts[:, edge + 1 :]], 1
        )
        for copy in copies:
            self.products[copy].num_parents += 1
        changed = copier.changed | {number}
        self._drop(old)
        self._refresh(changed)
        return changed & self.sums.keys()

    def _levels(self, top: int, variable: int, path: Sequence[int]) -> list[Level]:
        """What lies on the path below a product of a variable."""
        levels = [Level(-1, [], [top])]
        for v in path:
            slot = self.tree.children[variable].index(v)
            sums = dict.fromkeys(self.products[p].sums[slot] for p in levels[-1].products)
            products = dict.fromkeys(p for n in sums for p in self.sums[n].products)
            levels.append(Level(slot, list(sums), list(products)))
            variable = v
        return levels

    def _groups(
        self, rows: np.ndarray, x: int, possible: set[int]
    ) -> list[tuple[set[int], np.ndarray]]:
        """Sets of states, and their rows: each state that is met, and the others with the rarest
        of them."""
        code = self.codes[rows, x]
        count = np.bincount(code, self.weight[rows, 0], self.cards[x])
        met = [t for t in sorted(possible) if count[t] > 0]
        rarest = min(met, key=lambda t: count[t])
        groups = []
        for t in met:
            states = {t} | (possible - set(met) if t == rarest else set())
            groups.append((states, rows[np.isin(code, list(states))]))
        return groups

    # ------------------------------------------------------------------ bookkeeping
    def add_product(self, state: int, sums: list[int]) -> int:
        self._next += 1
        self.products[self._next] = Product(state, sums)
        self.num_edges += len(sums) + bool(sums)
        for n in sums:
            self.sums[n].num_parents += 1
        return self._next

    def add_sum(self, unit: Sum) -> int:
        self._next += 1
        self.sums[self._next] = unit
        self.num_edges += self._width(unit)
        for p in unit.products:
            self.products[p].num_parents += 1
        return self._next

    def _drop(self, product: int) -> None:
        """One parent less; what has none left goes."""
        waiting = [product]
        while waiting:
            p = waiting.pop()
            unit = self.products[p]
            unit.num_parents -= 1
            if unit.num_parents:
                continue
            del self.products[p]
            self.num_edges -= len(unit.sums) + bool(unit.sums)
            for n in unit.sums:
                self.sums[n].num_parents -= 1
                if not self.sums[n].num_parents:
                    gone = self.sums.pop(n)
                    self.num_edges -= self._width(gone)
                    waiting += gone.products
                    self._total -= self._share.pop(n, 0.0)

    def _width(self, unit: Sum) -> int:
        """Edges of a sum: none of a categorical input, or where it is its only product."""
        is_input = not self.tree.children[unit.variable]
        return 0 if is_input or len(unit.products) == 1 else len(unit.products)

    def count(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack([self.weight.take(own, 0).sum(0) for own in rows], 1)

    def _refresh(self, numbers: Iterable[int]) -> None:
        for n in numbers:
            if n in self.sums:
                self._total -= self._share.get(n, 0.0)
                share = self.sums[n].log_likelihood()
                finite = np.isfinite(share)
                self._share[n] = np.stack([np.where(finite, share, 0.0), ~finite])
                self._total += self._share[n]
