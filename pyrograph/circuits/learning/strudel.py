"""Structure by splits: deterministic circuits that grow where most rows pass.

Starting from the Chow-Liu tree, each step takes the edge of a sum with the most flow (eFLOW), and in
its scope the variable with the largest sum of mutual informations, over the rows of the edge, with
the other variables of the scope (vMI), and splits the edge on that variable, see
:mod:`~pyrograph.circuits.learning.splitting`. The circuit stays smooth, structured along the tree
and deterministic, so its parameters are counts, and the likelihood of the rows that it learns from
never falls if nothing is smoothed. With validation rows the best circuit so far is returned.

Missing values are drawn from the Chow-Liu circuit given the values that are present,
``num_completions`` times; the structure is learnt from the completed rows (one step of Monte Carlo
structural EM), the parameters by EM from the rows as they are.

Source: Dang, Vergari & Van den Broeck (2020), "Strudel", algorithm 1 and section 4 (mixtures).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.learning.chow_liu import (
    PairCounts,
    check_smoothing,
    learn_chow_liu,
    mutual_information,
)
from pyrograph.circuits.learning.completion import draw_missing
from pyrograph.circuits.learning.em import fit_parameters
from pyrograph.circuits.learning.mixture import fit_mixture
from pyrograph.circuits.learning.splitting import Splitting
from pyrograph.circuits.learning.table import Table, read_table
from pyrograph.errors import OptionError, ShapeMismatch

EDGES = ("flow", "random")
VARIABLES = ("mutual information", "random")

#: Steps between two exact validations where validation rows miss values.
BETWEEN = 10
#: Nats below which a variable tells nothing of the others.
INDEPENDENT = 1e-12


def learn_strudel(
    data: Tensor,
    *,
    valid: Tensor | None = None,
    cards: Sequence[int] | None = None,
    num_steps: int = 500,
    edge: str = "flow",
    variable: str = "mutual information",
    copy_depth: int = 1,
    smoothing: float = 1.0,
    patience: int = 100,
    num_components: int = 1,
    num_completions: int = 5,
    weights: Tensor | None = None,
    progress: bool = True,
) -> Circuit:
    """A structured circuit, deterministic if it has one component, learnt from data.

    Args:
        data: ``[N, D]`` codes; NaN or -1 is missing.
        valid: ``[M, D]``, rows whose likelihood chooses the number of steps.
        cards: numbers of states; by default the largest code of data and valid and one more, at
            least 2.
        num_steps: splits at most.
        edge: "flow", or "random" (by flow).
        variable: "mutual information", or "random".
        copy_depth: sums beside the path to the variable that a split copies; 0 copies least.
        smoothing: pseudo-observations of every sum: of the tree spread evenly, of a copy like what
            it was copied from.
        patience: steps without a better validation after which it stops.
        num_components: above 1, a mixture of circuits of the learnt structure, by EM.
        num_completions: draws for the rows that miss values.
        weights: ``[N]``, how often each row counts.
        progress: show a bar.

    Random choices draw from torch's generator.

    Raises:
        ShapeMismatch: data is not ``[N, D]``, or empty, or valid has other columns.
        OptionError: a value is no code, or an option has a value that it cannot have.
    """
    smoothing = check_smoothing(smoothing)
    _check_options(
        edge,
        variable,
        num_steps=num_steps,
        copy_depth=copy_depth,
        num_components=num_components,
        num_completions=num_completions,
        patience=patience,
    )
    table, checked = _read(data, valid, cards, weights)
    if table.is_complete:
        completed = table
    else:
        start = learn_chow_liu(
            table.tensor(),
            cards=table.cards,
            smoothing=smoothing,
            weights=torch.as_tensor(table.weight),
        )
        completed = draw_missing(start, table, num_completions)
    growth = Growth(completed, checked, smoothing, copy_depth, edge, variable)
    with tqdm(total=num_steps, disable=not progress) as bar:
        best = growth.run(num_steps, patience, bar)
    if num_components > 1:
        circuit = fit_mixture(best, num_components, smoothing)
    else:
        circuit = best.circuit()
    if table.is_complete:
        return circuit
    return fit_parameters(
        circuit, table.tensor(), smoothing=smoothing, prior=circuit, weights=table.weight
    )


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
        copy_depth: int = 1,
        edge: str = "flow",
        variable: str = "mutual information",
    ):
        self.table, self.valid, self.smoothing = table, valid, smoothing
        self.copy_depth, self.edge, self.variable = copy_depth, edge, variable
        self._counts = PairCounts.of(table, smoothing)
        self._tree = self._counts.tree()
        self._rows, self._weight = _joined(table, valid)
        self._one_hot = Table(self._rows, table.cards, self._weight[:, 0]).one_hot()
        self._columns = np.split(np.arange(sum(table.cards)), np.cumsum(table.cards)[:-1])
        self.history: list[tuple[int, int, int]] = []
        self.splitting = self._tree_circuit()
        self._heap: list[tuple[float, float, int, int]] = []
        self._enter(self.splitting.sums)

    def _tree_circuit(self) -> Splitting:
        start = Splitting.of_tree(
            self._tree, self._counts.conditional, self.table.cards, self.smoothing
        )
        start.meet(self._rows, self._weight)
        return start

    def run(self, num_steps: int, patience: int, bar: tqdm) -> Splitting:
        """Grow; the circuit of the best validation, or the last one."""
        best, best_step = self.score(), 0
        for step in range(1, num_steps + 1):
            if not self.step():
                break
            bar.update()
            if self.valid is None:
                continue
            if self.valid.is_complete or step % BETWEEN == 0:
                score = self.score()
                if score > best:
                    best, best_step = score, step
                bar.set_postfix(valid=f"{score:.4f}")
            if step - best_step >= patience:
                break
        if self.valid is None or best_step == len(self.history):
            return self.splitting
        return self.replay(best_step)

    def score(self) -> float:
        """Mean log likelihood of the validation rows, else of the others."""
        if self.valid is None:
            return float(self.splitting.log_likelihood[0] / self.table.weight.sum())
        total = self.valid.weight.sum()
        if self.valid.is_complete:
            return float(self.splitting.log_likelihood[1] / total)
        log_p = self.splitting.circuit().log_prob(self.valid.tensor())
        return float(log_p.numpy() @ self.valid.weight / total)

    def replay(self, num_steps: int) -> Splitting:
        """The circuit after the first steps."""
        again = self._tree_circuit()
        for number, edge, x in self.history[:num_steps]:
            again.split(number, edge, x, self.copy_depth)
        return again

    def step(self) -> bool:
        """One split; False if none is left."""
        while self._heap:
            _, flow, number, product = heapq.heappop(self._heap)
            unit = self.splitting.sums.get(number)
            if unit is None or product not in unit.products:
                continue
            edge = unit.products.index(product)
            if unit.counts[0, edge] != flow:  # a later entry has the present flow
                continue
            x = self._variable(unit.variable, unit.rows[edge])
            if x is not None:
                self.history.append((number, edge, x))
                self._enter(self.splitting.split(number, edge, x, self.copy_depth))
                return True
        return False

    def _enter(self, numbers: Iterable[int]) -> None:
        """Make the edges of these sums candidates."""
        for number in sorted(numbers):
            unit = self.splitting.sums[number]
            if not self._tree.children[unit.variable]:
                continue
            for flow, product in zip(unit.counts[0].tolist(), unit.products, strict=True):
                if flow > 0:
                    key = -flow if self.edge == "flow" else float(torch.rand(()))
                    heapq.heappush(self._heap, (key, flow, number, product))

    def _variable(self, top: int, rows: np.ndarray) -> int | None:
        """Below a variable, the one that tells most of the others; None if all are independent."""
        scope = self._tree.below[top]
        weight = self._weight[rows, 0]
        rows, weight = rows[weight > 0], weight[weight > 0]
        # variables that are constant here tell nothing, and cost nothing
        varying = [v for v in scope if (self._rows[rows, v] != self._rows[rows[0], v]).any()]
        if not varying:
            return None
        if self.variable == "random":
            return varying[int(torch.randint(len(varying), ()))]
        one_hot = self._one_hot[np.ix_(rows, np.concatenate([self._columns[v] for v in varying]))]
        first = np.concatenate([[0], np.cumsum([self.table.cards[v] for v in varying])])
        counts = (one_hot * weight[:, None]).T @ one_hot
        told = mutual_information(counts, first, 0.0).sum(1)
        best = int(told.argmax())
        return varying[best] if told[best] > INDEPENDENT else None


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


def _read(
    data: Tensor, valid: Tensor | None, cards: Sequence[int] | None, weights: Tensor | None
) -> tuple[Table, Table | None]:
    table = read_table(data, cards, weights)
    if valid is None:
        return table, None
    checked = read_table(valid, cards if cards is not None else None, name="valid")
    if checked.num_variables != table.num_variables:
        raise ShapeMismatch(
            f"valid has {checked.num_variables} columns and data {table.num_variables}"
        )
    most = tuple(max(pair) for pair in zip(table.cards, checked.cards, strict=True))
    return replace(table, cards=most), replace(checked, cards=most)


def _check_options(edge: str, variable: str, **numbers: int) -> None:
    if edge not in EDGES or variable not in VARIABLES:
        raise OptionError(
            f"edge={edge!r}, variable={variable!r}: edge is one of {EDGES}, variable of {VARIABLES}"
        )
    for name, value in numbers.items():
        least = 0 if name in ("num_steps", "copy_depth") else 1
        if value != int(value) or value < least:
            raise OptionError(f"{name}={value!r}: a whole number, at least {least}")
