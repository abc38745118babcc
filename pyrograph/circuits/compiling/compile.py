"""A discrete Pyro program as a circuit: smooth, structured, deterministic, exact.

    u_v[ctx](x) = sum_s w_v[ctx, s] [x_v = s] prod_{c below v} u_c[ctx_c](x)

along an elimination tree: ctx are the states of the variables above v that are still needed, w_v
the factors that are complete at v. One table at a time, all assignments at once:

* every unit is scaled to mass 1; what it is scaled by goes up into w;
* equal units are one unit (so are functions that differ by a factor only), zeros give none;
* states s with the same units below are one input with several states, not several products.

So zeros, equal values and contexts that do not matter make the circuit smaller than the tables,
whose sizes bound it and are checked beforehand.

Source: Mateescu, Dechter & Marinescu (2008), "AND/OR multi-valued decision diagrams"; Darwiche
(2003) for the trace of an elimination as a circuit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.compiling.blocks import Blocks
from pyrograph.circuits.compiling.clamped import clamped_state
from pyrograph.circuits.compiling.elimination import EliminationTree, balanced_tree, neighborhoods
from pyrograph.circuits.compiling.tables import LogTables, read_evidence, read_tables
from pyrograph.circuits.options import number
from pyrograph.circuits.structure.rows import equal_rows
from pyrograph.errors import OptionError, UnsupportedFactor, ZeroMass
from pyrograph.graph import FactorGraph

#: Edges and numbers of inputs that are allowed by default.
MAX_EDGES = 2**22
#: Numbers of the table of all inputs, one row as wide as the widest, for every edge of the budget.
PADDING = 32
#: Bytes at work for one entry of the largest table, and of one edge.
ENTRY_BYTES, EDGE_BYTES = 120, 60
#: Logs of weights that agree to so many decimals are equal.
DECIMALS = 13


def compile_graph(
    graph: FactorGraph,
    evidence: Mapping[tuple[str, tuple[int, ...]], Any] | None = None,
    order: str | Sequence[tuple[str, tuple[int, ...]]] = "minfill",
    *,
    max_edges: int = MAX_EDGES,
) -> Circuit:
    """The circuit of a program whose latent sites are all discrete, or given.

    Args:
        graph: from :func:`pyrograph.trace_graph`.
        evidence: ``{node label: value}``; these keep their variable, with a single state. Nodes of
            a site that has no list of states (a continuous one) are given too, in the graph's
            space: all of them, or in ``fixed=`` of the graph. Their state is 0, the only one.
        order: ``"minfill"``, or all unobserved nodes, the first eliminated first.
        max_edges: budget for edges and numbers of inputs.

    Returns:
        A circuit over ``graph.nodes`` in their order, states numbered as in the sites' supports,
        on the graph's device, float64. It is not normalised: ``log_mass()`` is log Z, with
        constants, of the nodes that are not observed.

    Raises:
        UnsupportedSite: a site is not finite and discrete, and not given.
        UnsupportedFactor: the circuit may exceed the budget, decided before it is built; or the
            table of its inputs does, decided before it is laid out.
        NonFiniteDensity: a factor is NaN or plus infinity in some state.
        ZeroMass: no state is possible.
        OptionError: ``evidence`` or ``order`` name what is not there, or the budget is no number.
    """
    if not isinstance(graph, FactorGraph):
        raise OptionError(
            f"compile_graph takes a graph, pg.trace_graph(model, ...), not {type(graph).__name__}"
        )
    max_edges = number("max_edges", max_edges)
    given = read_evidence(graph, evidence)
    if not graph.nodes:
        raise OptionError("the program has no latent site: there is no variable for a circuit")
    # a site without a list of states has one state, its evidence
    values = {v: value for v, value in given.items() if isinstance(value, Tensor)}
    states = {v: 0 if v in values else state for v, state in given.items()}
    every = read_tables(graph, values)
    tables = every.given(states)
    tree = _tree(graph, tables, states, order, max_edges)
    _check_size(graph.nodes, tree, max_edges)
    circuit = _Build(tables, tree, graph.nodes, max_edges, states).circuit().to(graph.device)
    circuit.clamped_state = clamped_state(graph, every.tables, values, states)
    return circuit


def compile_tables(tables: LogTables, names: Sequence[Any], max_edges: int = MAX_EDGES) -> Circuit:
    """The circuit of a product of tables, see :func:`compile_graph`.

    Args:
        names: what variables are called in messages.
    """
    neighbors = neighborhoods(tables.scopes, len(tables.cards))
    tree = balanced_tree(neighbors, tables.cards, max_edges)
    _check_size(names, tree, max_edges)
    return _Build(tables, tree, names, max_edges).circuit()


def _tree(
    graph: FactorGraph, tables: LogTables, states: Mapping[int, int], order, max_edges: float
) -> EliminationTree:
    neighbors = neighborhoods(tables.scopes, len(tables.cards))
    if order == "minfill":
        return balanced_tree(neighbors, tables.cards, max_edges)
    if isinstance(order, str) or not isinstance(order, Iterable):
        raise OptionError(f'order={order!r}: it is "minfill" or a sequence of node labels')
    number = {label: v for v, label in enumerate(graph.nodes)}
    order = list(order)
    try:
        unknown = [label for label in order if label not in number]
    except TypeError as error:  # a list, which no dict looks up
        raise OptionError(
            f"order={order!r}: node labels are tuples, such as {graph.nodes[0]!r}"
        ) from error
    if unknown:
        raise OptionError(f"order names the node {unknown[0]!r}, which is not there")
    given = [number[label] for label in order if number[label] not in states]
    missing = set(range(len(tables.cards))) - set(given) - set(states)
    if missing or len(set(given)) < len(given):
        what = f"misses {graph.nodes[min(missing)]!r}" if missing else "has one of its nodes twice"
        raise OptionError(f"order {what}; it has every unobserved node once")
    return EliminationTree.of_order([*given, *states], neighbors, tables.cards)


def _check_size(
    names: Sequence[tuple[str, tuple[int, ...]]], tree: EliminationTree, max_edges: int
) -> None:
    """Compare the tables' sizes with the budget."""
    edges = tree.most_edges
    if edges > max_edges:
        bags = {v: tree.num_states((v, *tree.context[v])) for v in tree.order}
        widest = max(bags, key=bags.get)
        largest = bags[widest]
        bag = [names[u] for u in (widest, *tree.context[widest])]
        shown = ", ".join(map(_node, bag[:5]))
        shown += ", ..." if len(bag) > 5 else ""
        raise UnsupportedFactor(
            f"the circuit may take {edges:,} edges, over the budget of {max_edges:,.0f}: the "
            f"elimination order has width {tree.width} and a table of {largest:,} states, over "
            f"{len(bag)} nodes ({shown}). Give evidence on some of them "
            "(evidence={label: value}), as pg.CollapsedBBIS does; or an order of your own "
            "(order=[label, ...]); or use pg.BP, which is approximate; or raise max_edges (it may "
            f"then take {(largest * ENTRY_BYTES + edges * EDGE_BYTES) / 1e9:.2g} GB)."
        )


def _node(label: tuple[str, tuple[int, ...]]) -> str:
    """A node in a message."""
    site, index = label
    return site + (str(list(index)) if index else "")


@dataclass(eq=False)
class _Function:
    """Scaled units of one variable, for every state of its context.

    Attributes:
        unit: ``[cards of the context]``, -1 where it is zero.
        log_scale: of the same shape.
    """

    unit: np.ndarray
    log_scale: np.ndarray


@dataclass(eq=False)
class _Build:
    """Bottom-up along the tree."""

    tables: LogTables
    tree: EliminationTree
    names: Sequence[Any]
    max_edges: int
    states: Mapping[int, int] = field(default_factory=dict)
    blocks: Blocks = field(default_factory=Blocks)

    def circuit(self) -> Circuit:
        cards = self.tables.cards
        position = {v: k for k, v in enumerate(self.tree.order)}
        complete: list[list[int]] = [[] for _ in cards]
        for a, scope in enumerate(self.tables.scopes):
            complete[min(scope, key=position.__getitem__)].append(a)
        functions: dict[int, _Function] = {}
        tops, log_z = [], self.tables.constant
        for v in self.tree.order:
            if v in self.states:
                table = np.full((1, cards[v]), -np.inf)
                table[0, self.states[v]] = 0.0
                tops.append(self.blocks.inputs(v, table))
                continue
            below = [(self.tree.context[c], functions.pop(c)) for c in self.tree.children[v]]
            functions[v] = self._eliminate(v, complete[v], below)
            if self.tree.parent[v] < 0:
                top = functions.pop(v)
                tops.append(int(top.unit))
                log_z += float(top.log_scale)
        if log_z == -np.inf:
            raise ZeroMass(
                "no state of the program is possible"
                + (" under this evidence" if self.states else "")
                + ": its factors contradict each other"
            )
        root = tops[0] if len(tops) == 1 else self.blocks.products(np.array([tops]))
        self.blocks.sums(np.array([0, 1]), np.array([root]), np.array([log_z]))
        widest = int(np.argmax(cards))
        self._check_padding(widest, self.blocks.num_inputs())
        return self.blocks.circuit(cards)

    def _check_padding(self, v: int, num_inputs: int) -> None:
        """Compare a table of inputs, whose rows are as wide as that of a variable, with the
        budget."""
        card = self.tables.cards[v]
        numbers = num_inputs * card
        if numbers > PADDING * self.max_edges:
            raise UnsupportedFactor(
                f"the circuit has {num_inputs:,} inputs, whose tables are all as wide as that of "
                f"{_node(self.names[v])}, {card:,} states: {8 * numbers / 1e9:.2g} "
                f"GB, over the budget of {8 * PADDING * self.max_edges / 1e9:.2g} GB. Give "
                "evidence on that node (evidence={label: value}), or bin its values; or raise "
                f"max_edges to at least {-(-numbers // PADDING):,}."
            )

    def _eliminate(
        self, v: int, factors: Sequence[int], below: Sequence[tuple[tuple[int, ...], _Function]]
    ) -> _Function:
        bag = (*self.tree.context[v], v)
        shape = tuple(self.tables.cards[u] for u in bag)
        weight = np.zeros(shape)
        for a in factors:
            weight += _aligned(self.tables.tables[a], self.tables.scopes[a], bag)
        for context, function in below:
            weight += _aligned(function.log_scale, context, bag)
        weight = weight.reshape(-1, shape[-1])
        if below:
            parts, part = self._parts(bag, shape, below)
            unit, log_scale = self._decided(v, weight, parts, part.reshape(weight.shape))
        else:
            unit, log_scale = self._leaves(v, weight)
        return _Function(unit.reshape(shape[:-1]), log_scale.reshape(shape[:-1]))

    def _leaves(self, v: int, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One input per distribution of v."""
        log_scale = np.logaddexp.reduce(weight, axis=1)
        possible = np.flatnonzero(log_scale > -np.inf)
        unit = np.full(len(weight), -1)
        if len(possible):
            table = weight[possible] - log_scale[possible, None]
            first, same = equal_rows([*np.round(table, DECIMALS).T])
            unit[possible] = self.blocks.inputs(v, table[first]) + same
        return unit, log_scale

    def _parts(
        self, bag: Sequence[int], shape: Sequence[int], below
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distinct tuples of the units below, ``[Q, children]``, and which are read at each state
        of v and its context."""
        read = tuple(u for u in bag if any(u in context for context, _ in below))
        cards = tuple(self.tables.cards[u] for u in read)
        columns = [
            np.broadcast_to(_aligned(function.unit, context, read), cards).reshape(-1)
            for context, function in below
        ]
        first, same = equal_rows(columns)
        parts = np.stack([column[first] for column in columns], 1)
        return parts, np.broadcast_to(_aligned(same.reshape(cards), read, bag), shape)

    def _decided(
        self, v: int, weight: np.ndarray, parts: np.ndarray, part: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """One sum per function of v and what is below it, over products of inputs and parts."""
        row, state = np.nonzero(weight > -np.inf)
        unit, log_scale = np.full(len(weight), -1), np.full(len(weight), -np.inf)
        if not len(row):
            return unit, log_scale
        # states of one row that read the same part are grouped
        key = row * len(parts) + part[row, state]
        by_key = np.argsort(key, kind="stable")
        row, state, own, key = row[by_key], state[by_key], weight[row, state][by_key], key[by_key]
        begin = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
        mass = _log_sums(own, begin)
        choice = self._choices(v, weight.shape[1], begin, state, own, mass)
        row, key = row[begin], key[begin] % len(parts)
        first, product = equal_rows([choice, key])
        product += self.blocks.products(np.column_stack([choice[first], parts[key[first]]]))
        # rows are sums of their groups
        by_product = np.lexsort((product, row))
        product, mass, row = product[by_product], mass[by_product], row[by_product]
        begin = np.flatnonzero(np.r_[True, row[1:] != row[:-1]])
        total = _log_sums(mass, begin)
        length = np.diff(np.r_[begin, len(row)])
        place = np.arange(len(row)) - np.repeat(begin, length)
        which = np.repeat(np.arange(len(begin)), length)
        children = np.full((len(begin), length.max()), -1)
        log_weights = np.full(children.shape, 1.0)
        children[which, place] = product
        log_weights[which, place] = mass - total[which]
        first, same = equal_rows([*children.T, *np.round(log_weights, DECIMALS).T])
        found = children[first, 0]
        several = np.flatnonzero(length[first] > 1)
        if len(several):
            kept = first[several]
            used = children[kept] >= 0
            start = np.r_[0, length[kept].cumsum()]
            found[several] = np.arange(len(several)) + self.blocks.sums(
                start, children[kept][used], log_weights[kept][used]
            )
        unit[row[begin]], log_scale[row[begin]] = found[same], total
        return unit, log_scale

    def _choices(self, v, card, begin, state, own, mass) -> np.ndarray:
        """The input of each group of states: indicators, and distributions over several states."""
        length = np.diff(np.r_[begin, len(state)])
        alone = np.unique(state[begin[length == 1]])
        several = np.flatnonzero(length > 1)
        self._check_padding(v, max(len(alone), len(several)))
        indicator = np.full((len(alone), card), -np.inf)
        indicator[np.arange(len(alone)), alone] = 0.0
        choice = self.blocks.inputs(v, indicator) + np.searchsorted(alone, state[begin])
        if len(several):
            row = np.full(len(begin), -1)
            row[several] = np.arange(len(several))
            group = np.repeat(np.arange(len(begin)), length)
            inside = row[group] >= 0
            table = np.full((len(several), card), -np.inf)
            table[row[group[inside]], state[inside]] = own[inside] - mass[group[inside]]
            first, same = equal_rows([*np.round(table, DECIMALS).T])
            choice[several] = self.blocks.inputs(v, table[first]) + same
        return choice


def _aligned(values: np.ndarray, scope: Sequence[int], onto: Sequence[int]) -> np.ndarray:
    """With one axis per variable of ``onto``, of length 1 where ``scope`` lacks it."""
    place = [onto.index(v) for v in scope]
    shape = [1] * len(onto)
    for k, axis in enumerate(place):
        shape[axis] = values.shape[k]
    return values.transpose(np.argsort(place)).reshape(shape)


def _log_sums(values: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Log of sums of exponentials of the stretches that begin there."""
    top = np.maximum.reduceat(values, begin)
    length = np.diff(np.r_[begin, len(values)])
    total = np.add.reduceat(np.exp(values - np.repeat(top, length)), begin)
    return top + np.log(total)
