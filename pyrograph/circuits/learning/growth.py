"""Which edge is split next, on which variable, and when to stop; see :mod:`~.strudel`."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

import numpy as np
import torch
from tqdm import tqdm

from pyrograph.circuits.learning.chow_liu import PairCounts, mutual_information
from pyrograph.circuits.learning.splitting import Splitting
from pyrograph.circuits.learning.table import Table

#: Steps between two exact validations where validation rows miss values.
BETWEEN = 10
#: In the place of a variable that is not chosen yet.
UNKNOWN = -1
#: Nats below which a variable tells nothing of the others.
INDEPENDENT = 1e-12


class Growth:
    """Splits chosen one after the other.

    Attributes:
        history: sum, edge and variable of every split.
    """

    def __init__(
        self,
        table: Table,
        valid: Table | None,
        smoothing: float,
        shrinkage: float,
        copy_depth: int = 1,
        edge: str = "flow",
        variable: str = "mutual information",
    ):
        self.table, self.valid, self.shrinkage = table, valid, shrinkage
        self.copy_depth, self.edge, self.variable = copy_depth, edge, variable
        self._counts = PairCounts.of(table, smoothing)
        self._tree = self._counts.tree()
        self._rows, self._weight = _joined(table, valid)
        self._one_hot = Table(self._rows, table.cards, self._weight[:, 0]).one_hot()
        self._columns = np.split(np.arange(sum(table.cards)), np.cumsum(table.cards)[:-1])
        self.history: list[tuple[int, int, int]] = []
        self.splitting = self._tree_circuit()
        self._heap: list[tuple[float, float, int, int, int]] = []
        self._enter(self.splitting.sums)

    def _tree_circuit(self) -> Splitting:
        start = Splitting.of_tree(
            self._tree, self._counts.conditional, self.table.cards, self.shrinkage
        )
        start.meet(self._rows, self._weight)
        return start

    def run(self, num_steps: int, patience: int, max_edges: float, bar: tqdm) -> Splitting:
        """Grow; the circuit of the best validation, or the last one, of at most so many edges."""
        every = 1 if self.valid is None or self.valid.is_complete else min(BETWEEN, patience)
        best, best_step, step = self.score(self.splitting), 0, 0
        while step < num_steps and step - best_step < patience and self.step():
            if self.splitting.num_edges > max_edges:
                break
            step += 1
            bar.update()
            if self.valid is None:
                best_step = step
            elif step % every == 0:
                score = self.score(self.splitting)
                if score > best:
                    best, best_step = score, step
                bar.set_postfix(valid=f"{score:.4f}")
        if step % every:  # not every step was validated, nor was the last one
            last = self._after(step)
            if self.score(last) > best:
                return last
        return self._after(best_step)

    def score(self, splitting: Splitting) -> float:
        """Mean log likelihood of the validation rows, else of the others."""
        if self.valid is None:
            return float(splitting.log_likelihood[0] / self.table.weight.sum())
        total = self.valid.weight.sum()
        if self.valid.is_complete:
            return float(splitting.log_likelihood[1] / total)
        log_p = splitting.circuit().log_prob(self.valid.tensor())
        return float(log_p.numpy() @ self.valid.weight / total)

    def _after(self, num_steps: int) -> Splitting:
        """The circuit after the first steps."""
        if num_steps == len(self.history):
            return self.splitting
        again = self._tree_circuit()
        for number, edge, x in self.history[:num_steps]:
            again.split(number, edge, x, self.copy_depth)
        return again

    def step(self) -> bool:
        """One split; False if none is left."""
        while self._heap:
            _, flow, number, product, x = heapq.heappop(self._heap)
            unit = self.splitting.sums.get(number)
            if unit is None or product not in unit.products:
                continue
            edge = unit.products.index(product)
            if unit.counts[0, edge] != flow:  # a later entry has the present flow
                continue
            if x == UNKNOWN:
                told, x = self._variable(unit.variable, unit.rows[edge])
                if told <= INDEPENDENT:
                    continue
                if self.edge == "dependence":  # so far it was only bounded
                    heapq.heappush(self._heap, (-flow * told, flow, number, product, x))
                    continue
            self.history.append((number, edge, x))
            self._enter(self.splitting.split(number, edge, x, self.copy_depth))
            return True
        return False

    def _enter(self, numbers: Iterable[int]) -> None:
        """Make the edges of these sums candidates."""
        for number in sorted(numbers):
            unit = self.splitting.sums[number]
            scope = self._tree.below[unit.variable]
            if not scope:
                continue
            most = sum(math.log(self.table.cards[v]) for v in scope)
            for flow, product in zip(unit.counts[0].tolist(), unit.products, strict=True):
                if flow > 0:
                    key = {"flow": -flow, "dependence": -flow * most}.get(self.edge)
                    key = float(torch.rand((), device="cpu")) if key is None else key
                    heapq.heappush(self._heap, (key, flow, number, product, UNKNOWN))

    def _variable(self, top: int, rows: np.ndarray) -> tuple[float, int]:
        """Of the variables below one, how much the best tells of the others, and which it is."""
        scope = self._tree.below[top]
        weight = self._weight[rows, 0]
        rows, weight = rows[weight > 0], weight[weight > 0]
        # variables that are constant here tell nothing, and cost nothing
        varying = [v for v in scope if (self._rows[rows, v] != self._rows[rows[0], v]).any()]
        if not varying:
            return 0.0, UNKNOWN
        if self.variable == "random":
            return math.inf, varying[int(torch.randint(len(varying), (), device="cpu"))]
        one_hot = self._one_hot[np.ix_(rows, np.concatenate([self._columns[v] for v in varying]))]
        first = np.concatenate([[0], np.cumsum([self.table.cards[v] for v in varying])])
        counts = (one_hot * weight[:, None]).T @ one_hot
        told = mutual_information(counts, first, 0.0).sum(1)
        best = int(told.argmax())
        return float(told[best]), varying[best]


def _joined(table: Table, valid: Table | None) -> tuple[np.ndarray, np.ndarray]:
    """Rows of both, ``[U, D]``, and their weights ``[U, 2]``."""
    if valid is None or not valid.is_complete:
        return table.codes, np.stack([table.weight, 0 * table.weight], 1)
    rows, group = np.unique(np.concatenate([table.codes, valid.codes]), axis=0, return_inverse=True)
    weight = np.zeros((len(rows), 2))
    group = group.reshape(-1)
    weight[group[: len(table.codes)], 0] = table.weight
    weight[group[len(table.codes) :], 1] = valid.weight
    return rows, weight
