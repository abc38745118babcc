"""Programs too wide for a circuit, some of whose nodes are always held.

The circuit of the other nodes c given the held ones s is needed for every value of s. Every factor
gets copies of its own of the held nodes it reads, so that these connect nothing any more: the
circuit is that of c alone with leaves for the copies,

    P(y_c, copies) = prod_a f_a(y_c, copies of a),      P(y_c, all copies at x_s) = p(y_c, x_s),

compiled once and evaluated at evidence on all copies. Its width is that of the graph without the
held nodes.

The Stein kernel of two such samples (see ``stein``) is, with rho_i = p(not_i x_s) / p(x_s),
E(x, y) the expected kernel of p(y_c | x_s) and p(y_c | y_s), and k_s the kernel of held nodes,

    sum_i   k_s(inv_i x, inv_i y) E(x, y)
          - rho_i(y) k_s(inv_i x, y) E(x, not_i y) - rho_i(x) k_s(x, inv_i y) E(not_i x, y)
          + rho_i(x) rho_i(y) k_s(x, y) E(not_i x, not_i y).

Source: Li, Zeng, Vergari & Van den Broeck (2021), proposition 5.5; the copies are Pearl's (1988)
cutset conditioning, kept symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.compiling.compile import MAX_EDGES, compile_tables
from pyrograph.circuits.compiling.elimination import EliminationTree, min_fill, neighborhoods
from pyrograph.circuits.compiling.tables import LogTables, read_tables
from pyrograph.circuits.expectations.evidence import (
    Evidence,
    expected_kernels,
    num_passes,
    num_products,
)
from pyrograph.circuits.expectations.expected import common_regions, num_pairs
from pyrograph.circuits.expectations.kernel_units import KernelUnits
from pyrograph.circuits.expectations.kernels import Hamming, Kernel
from pyrograph.circuits.expectations.sides import CircuitSide
from pyrograph.circuits.expectations.stein import bar_of, pairs_at_once, refuse_work
from pyrograph.circuits.expectations.univariate import Ones, Univariate, check_matrices
from pyrograph.circuits.structure.leaves import MISSING
from pyrograph.errors import ZeroMass
from pyrograph.graph import FactorGraph


def nodes_to_hold(graph: FactorGraph, max_width: int) -> list[int]:
    """Nodes without which the graph has at most this width, chosen greedily: of the widest bag of
    a min-fill order, the node with most neighbours, until the width fits."""
    tables = read_tables(graph)
    neighbors = neighborhoods(tables.scopes, len(tables.cards))
    held: list[int] = []
    while True:
        order = min_fill(neighbors, tables.cards)
        tree = EliminationTree.of_order(order, neighbors, tables.cards)
        if tree.width <= max_width:
            return sorted(held)
        widest = max(tree.order, key=lambda v: len(tree.context[v]))
        node = max(sorted(tree.bag(widest)), key=lambda v: len(neighbors[v]))
        held.append(node)
        for u in neighbors[node]:
            neighbors[u].discard(node)
        neighbors[node] = set()


@dataclass(frozen=True, eq=False)
class _Padded(Kernel):
    """One product of a kernel, on the nodes that are summed out; 1 on copies."""

    factors: Sequence[Univariate]

    def terms(self, num_variables: int) -> list[tuple[float, list[Univariate]]]:
        return [(1.0, list(self.factors))]


class HeldCircuit:
    """The conditionals of some nodes given all others, as one circuit.

    Args:
        graph: of a discrete program.
        held: numbers of the nodes that every sample holds.
        max_edges: budget.
        tables: of the graph's factors; default as they are.

    Attributes:
        cards: numbers of states of the graph's nodes.
        circuit: over the nodes that are summed out and the copies.
        columns: ``[variables of circuit]``, the node of each.

    Raises:
        UnsupportedFactor: the circuit would be too large even so.
    """

    def __init__(
        self,
        graph: FactorGraph,
        held: Sequence[int],
        max_edges: int = MAX_EDGES,
        tables: LogTables | None = None,
    ):
        tables = read_tables(graph) if tables is None else tables
        is_held = set(held)
        free = [v for v in range(len(tables.cards)) if v not in is_held]
        number = {v: k for k, v in enumerate(free)}
        columns, scopes = list(free), []
        for scope in tables.scopes:
            own = []
            for v in scope:
                if v in is_held:
                    own.append(len(columns))
                    columns.append(v)
                else:
                    own.append(number[v])
            scopes.append(tuple(own))
        columns += sorted(is_held - set(columns))  # those that no factor reads
        cards = tuple(tables.cards[v] for v in columns)
        separate = LogTables(cards, scopes, tables.tables, tables.constant)
        names = [graph.nodes[v] for v in columns]
        self._set(
            compile_tables(separate, names, max_edges).to(graph.device),
            torch.tensor(columns, device=graph.device),
            tables.cards,
        )

    def _set(self, circuit: Circuit, columns: Tensor, cards: tuple[int, ...]) -> None:
        self.circuit, self.columns, self.cards = circuit, columns, cards
        self._first = torch.stack([(columns == v).nonzero()[0, 0] for v in range(len(cards))])

    @classmethod
    def of_parts(cls, circuit: Circuit, columns: Tensor, cards: Sequence[int]) -> HeldCircuit:
        """From its attributes."""
        found = cls.__new__(cls)
        found._set(circuit, columns, tuple(cards))
        return found

    def to(self, device: torch.device) -> HeldCircuit:
        """Itself, moved there as modules are."""
        self._set(self.circuit.to(device), self.columns.to(device), self.cards)
        return self

    def num_pairs(self, num_held: int) -> int:
        """As :func:`.expected.num_pairs`, of all passes of a Stein kernel."""
        return (1 + 2 * num_held) * num_pairs(self.circuit)

    def log_prob(self, points: Tensor) -> Tensor:
        """log p of codes ``[n, V]``, -1 where summed out; held nodes are given."""
        return self.circuit.log_prob(points[:, self.columns])

    def marginals(self, points: Tensor) -> list[Tensor]:
        """Of every node ``[n, c]`` given the held ones."""
        found = self.circuit.marginals(points[:, self.columns])
        return [found[k] for k in self._first.tolist()]

    def fill_in(self, points: Tensor) -> Tensor:
        """One draw of what is missing in every row."""
        return self.circuit.fill_in(points[:, self.columns])[:, self._first]

    def stein_gram(
        self, points: Tensor, kernel: Kernel | None = None, *, progress: bool = False
    ) -> Tensor:
        """The Stein kernel of all pairs of samples ``[n, V]``, see above: ``[n, n]``.

        Args:
            progress: show a bar where it takes longer than a second.

        Raises:
            ZeroMass: a sample is impossible.
            UnsupportedFactor: it would take hours.
        """
        kernel = Hamming() if kernel is None else kernel
        held = (points != MISSING).any(0).nonzero().squeeze(1).tolist()
        regions = common_regions(self.circuit, self.circuit)
        side = CircuitSide(self.circuit, regions, self._given(points[:1]))
        terms = [
            (weight, factors, self._units(held, factors))
            for weight, factors in kernel.terms(len(self.cards))
        ]
        length = math.isqrt(min(pairs_at_once(side, units) for _, _, units in terms))
        here = self._evidence(side, points, length)
        # a square one, and for every held node one that is square and one that is not
        square, every = num_passes(here, here), len(here) ** 2
        passes = len(terms) * (square + len(held) * (square + every))
        per_pass = num_products(here, here, terms[0][2]) / square
        refuse_work(per_pass * passes, len(points), len(points))
        total = torch.zeros(len(points), len(points), dtype=torch.float64, device=points.device)
        with bar_of(passes, progress) as bar:
            for weight, factors, units in terms:
                total += weight * self._of_product(here, points, held, factors, units, bar)
        return (total + total.t()) / 2

    def _units(self, held: list[int], factors: Sequence[Univariate]) -> KernelUnits:
        """A product of kernels on the nodes that are summed out."""
        is_held = set(held)
        own = [Ones() if v in is_held else factors[v] for v in self.columns.tolist()]
        regions = common_regions(self.circuit, self.circuit)
        return KernelUnits(_Padded(own), regions, self.circuit)

    def _evidence(self, side: CircuitSide, points: Tensor, length: int) -> Evidence:
        return Evidence(side, self._given(points), length)

    def _of_product(
        self,
        here: Evidence,
        points: Tensor,
        held: list[int],
        factors: Sequence[Univariate],
        units: KernelUnits,
        bar: tqdm,
    ) -> Tensor:
        log_mass = _possible(here)
        plain = expected_kernels(here, here, units, bar)
        others, matrices = self._of_the_others(points, held, factors)
        total = torch.zeros_like(plain)
        for k, i in enumerate(held):
            card = self.cards[i]
            moved = points.clone()
            moved[:, i] = (points[:, i] + 1) % card
            there = self._evidence(here.whole, moved, here.length)
            rho = (_possible(there) - log_mass).exp()
            # [x, y]: rho_i(y) E(x, not_i y)
            crossed = rho * expected_kernels(here, there, units, bar)
            both = rho.unsqueeze(1) * rho * expected_kernels(there, there, units, bar)
            at, before = points[:, i], (points[:, i] - 1) % card
            table = matrices[k]
            mixed = table[before][:, at]  # k_i(inv x, y)
            term = table[before][:, before] * plain - mixed * crossed
            term += table[at][:, at] * both - (mixed * crossed).t()
            total += others[k] * term
        return total

    def _given(self, points: Tensor) -> Tensor:
        return self.circuit.domain.check(points[:, self.columns])

    def _of_the_others(
        self, points: Tensor, held: list[int], factors: Sequence[Univariate]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The kernel of all held nodes but one, for each of them, and their tables."""
        check_matrices(self.cards, held)
        matrices = [factors[i].matrix(self.cards[i]).to(points.device) for i in held]
        values = [
            table[points[:, i]][:, points[:, i]] for table, i in zip(matrices, held, strict=True)
        ]
        one = torch.ones(len(points), len(points), dtype=torch.float64, device=points.device)
        before, after = [one], [one]
        for k in range(len(values) - 1):
            before.append(before[-1] * values[k])
            after.append(after[-1] * values[-1 - k])
        return [b * a for b, a in zip(before, reversed(after), strict=True)], matrices


def _possible(evidence: Evidence) -> Tensor:
    """``[N]``, log masses.

    Raises:
        ZeroMass: one is impossible.
    """
    log_mass = evidence.log_mass
    if not bool(log_mass.isfinite().all()):
        row = int((~log_mass.isfinite()).nonzero()[0])
        raise ZeroMass(
            f"sample {row}, or one of its neighbours, has probability zero under the program"
        )
    return log_mass
