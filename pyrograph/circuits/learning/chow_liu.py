"""The tree of highest likelihood.

    p(x) = p(x_r) prod_v p(x_v | x_parent(v)),    the tree maximises sum_v I(x_v; x_parent(v))

Mutual informations of all pairs are one matrix product of one-hot rows, O(N C^2) for C states in
all; the tree is a spanning tree of the largest sum. It is rooted at its centre, so that the circuit
is as shallow as the tree allows. Probabilities are counts with ``smoothing`` pseudo-observations
spread evenly over the states of each pair (BDeu), so that the distribution does not depend on the
root.

Source: Chow & Liu (1968); Buntine (1991) for the smoothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.learning.em import fit_parameters
from pyrograph.circuits.learning.partition import shrunk
from pyrograph.circuits.learning.splitting import Splitting
from pyrograph.circuits.learning.table import Table, read_table
from pyrograph.circuits.learning.tree import Tree
from pyrograph.circuits.options import check_smoothing
from pyrograph.errors import OptionError

#: Rows that are counted at once.
CHUNK = 2**14
#: Most states of all variables together: counts of pairs are 2 GB, beside some copies.
MOST_STATES = 2**14
#: Pseudo-observations for each row, where EM starts without a prior: pairs that are never present
#: together would keep probability 0 else, and rows that need them be impossible.
START = 0.01


def learn_chow_liu(
    data: Tensor,
    *,
    cards: Sequence[int] | None = None,
    smoothing: float = 1.0,
    weights: Tensor | None = None,
) -> Circuit:
    """A smooth, structured, deterministic circuit of the most likely tree.

    Where values are missing, the tree is that of the pairs that are present (pairwise complete
    rows), and its probabilities, from the same pairs, are improved by EM until they settle.

    Args:
        data: ``[N, D]`` codes; NaN or -1 is missing.
        cards: numbers of states; by default the largest code and one more, at least 2.
        smoothing: pseudo-observations; 0 is maximum likelihood (where values are missing, EM then
            starts from slightly smoothed frequencies, which give every row a probability).
        weights: ``[N]``, how often each row counts.

    Raises:
        ShapeMismatch: data is not ``[N, D]``, or empty.
        OptionError: a value is no code, a variable has no value and no prior (``smoothing=0``)
            or no ``cards``, or the variables have too many states for counts of all pairs.
    """
    table = read_table(data, cards, weights)
    smoothing = check_smoothing("smoothing", smoothing)
    counts = PairCounts.of(table, smoothing)
    tree = counts.tree()
    if table.is_complete:
        return Splitting.of_tree(tree, counts.conditional, table.cards).circuit()
    start = replace(counts, smoothing=smoothing or START * table.weight.sum())
    circuit = Splitting.of_tree(tree, start.conditional, table.cards).circuit()
    return fit_parameters(
        circuit, table.tensor(), weights=table.weight, smoothing=smoothing, prior=circuit
    )


def _check_states(cards: Sequence[int]) -> None:
    """Raise if counts of all pairs of states would not fit.

    Raises:
        OptionError: naming the variable of most states.
    """
    total, widest = sum(cards), int(np.argmax(cards))
    if total > MOST_STATES:
        raise OptionError(
            f"the variables have {total:,} states together, variable {widest} alone "
            f"{cards[widest]:,}: counts of all pairs of states would take "
            f"{8 * total**2 / 1e9:,.1f} GB. Leave out a column that only numbers the rows, and "
            f"join values that are rare; {MOST_STATES:,} states are possible"
        )


@dataclass(frozen=True, eq=False)
class PairCounts:
    """How often two states occur together.

    Attributes:
        counts: ``[C, C]`` for the C states of all variables, of pairwise complete rows.
        first: ``[D + 1]``, where the states of each variable begin.
        smoothing: pseudo-observations for each pair.
    """

    counts: np.ndarray
    first: np.ndarray
    smoothing: float

    @staticmethod
    def of(table: Table, smoothing: float = 0.0) -> PairCounts:
        _check_states(table.cards)
        first = np.concatenate([[0], np.cumsum(table.cards)])
        counts = np.zeros((first[-1], first[-1]))
        for begin in range(0, len(table.codes), CHUNK):
            part = slice(begin, begin + CHUNK)
            rows = Table(table.codes[part], table.cards, table.weight[part])
            one_hot = rows.one_hot()
            counts += (one_hot * rows.weight[:, None]).T @ one_hot
        seen = np.add.reduceat(np.diag(counts), first[:-1])
        if smoothing == 0 and not seen.all():
            raise OptionError(
                f"variable {int(seen.argmin())} has no value, and smoothing=0 is no prior: drop "
                "the column or smooth"
            )
        return PairCounts(counts, first, smoothing)

    def mutual_information(self) -> np.ndarray:
        """``[D, D]`` nats, of the smoothed frequencies; the diagonal is 0."""
        return mutual_information(self.counts, self.first, self.smoothing)

    def tree(self) -> Tree:
        import networkx as nx

        with np.errstate(over="ignore", invalid="ignore"):  # refused next
            information = self.mutual_information()
        if not np.isfinite(information).all():
            raise OptionError(
                f"counts of {self.counts.max():.3g} with smoothing={self.smoothing:g} are beyond "
                "the range of floating point: divide weights and smoothing by one number"
            )
        # the solver takes zeros for edges that are not there
        distance = np.triu(1 + information.max() - information, 1)
        found = minimum_spanning_tree(distance).tocoo()
        graph = nx.Graph()
        graph.add_nodes_from(range(len(information)))
        graph.add_edges_from(zip(found.row.tolist(), found.col.tolist(), strict=True))
        return Tree.rooted(graph, min(nx.center(graph)))

    def conditional(self, v: int, parent: int | None) -> np.ndarray:
        """Probabilities ``[c_parent, c_v]``, and ``[1, c_v]`` of the root."""
        own = slice(self.first[v], self.first[v + 1])
        counts = np.diag(self.counts[own, own])[None]
        if parent is not None:
            counts = self.counts[self.first[parent] : self.first[parent + 1], own]
        even = np.full(counts.shape[1], 1 / counts.shape[1])
        return np.stack([shrunk(row, even, self.smoothing / len(counts)) for row in counts])


def mutual_information(counts: np.ndarray, first: np.ndarray, smoothing: float) -> np.ndarray:
    """I(x_v; x_w) for all pairs, from counts ``[C, C]`` of states together."""
    cards = np.diff(first)
    share, width = np.repeat(smoothing / cards, cards), np.repeat(cards, cards)
    joint = counts + share[:, None] / width
    # of one pair: sum p log p - sum p log(row) - sum p log(column), with n p = joint
    into = np.add.reduceat
    rows = into(joint, first[:-1], 1)  # [C, D], counts of a state where w is present
    total = into(rows, first[:-1], 0)
    joint_part = into(into(_x_log_x(joint), first[:-1], 0), first[:-1], 1)
    row_part = into(_x_log_x(rows), first[:-1], 0)
    nats = joint_part - row_part - row_part.T + _x_log_x(total)
    nats = np.divide(nats, total, out=np.zeros_like(nats), where=total > 0)
    upper = np.triu(np.maximum(nats, 0.0), 1)  # sums in the other order round differently
    return upper + upper.T


def _x_log_x(x: np.ndarray) -> np.ndarray:
    return x * np.log(np.where(x > 0, x, 1.0))
