"""From a factor graph to the parts of the Bethe free energy.

Factors of equal scopes share one belief: their entropy counts once, as if they were one factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.errors import UnsupportedFactor
from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.graph.checked import table_of
from pyrograph.graph.forest import is_forest
from pyrograph.graph.grouping import row_numbers
from pyrograph.graph.kinds import by_kind
from pyrograph.infer.message_passing.reduction import LocalDensity
from pyrograph.infer.message_passing.tables import MAX_ENTRIES
from pyrograph.infer.qbethe.components import Kind, num_ties
from pyrograph.infer.qbethe.entropy import ScopeEntropies
from pyrograph.infer.qbethe.piecewise import PiecewisePotential
from pyrograph.infer.qbethe.potentials import (
    IntegratedPotential,
    Potential,
    QuadraticPotential,
    TablePotential,
    Wiring,
    zero_states,
)


@dataclass
class Network:
    """What the Bethe free energy is made of.

    Attributes:
        kinds: of nodes; kind: ``[num_nodes]`` of each node; row: ``[num_nodes]`` in its kind.
        potentials: of the groups of factors, in the graph's order.
        scopes: different scopes of two and more nodes, by the kinds of their nodes.
        counting: per kind ``[V]``, 1 - d_i.
        num_ties: free numbers of the correlations, ``(scopes, numbers)`` by parameter.
        is_forest: whether the scopes close no cycle.
        joins: whether their continuous nodes close none, so that correlations within scopes make
            one Gaussian of a component.
    """

    kinds: list[Kind]
    kind: Tensor
    row: Tensor
    potentials: list[Potential]
    scopes: list[ScopeEntropies]
    counting: list[Tensor]
    num_ties: dict[str, tuple[int, int]]
    is_forest: bool
    joins: bool


def build(graph: FactorGraph, is_full: bool, closed_forms: bool | None) -> Network:
    """Sort nodes, factors and scopes.

    Args:
        is_full: whether nodes of a scope are correlated within a component.
        closed_forms: of potentials in pieces; None for those of more than one node.

    Raises:
        UnsupportedFactor: a discrete factor has zeros, or a table too large.
    """
    kinds, kind, row = _kinds(graph)
    scopes, ties, place = _scopes(graph, kinds, kind, row, is_full)
    counting = [torch.ones(len(k.nodes), device=graph.device, dtype=graph.dtype) for k in kinds]
    for scope in scopes:
        for k, rows in zip(scope.wiring.kinds, scope.wiring.rows, strict=True):
            counting[k] = counting[k].index_add(0, rows, -counting[k].new_ones(len(rows)))
    potentials = []
    for number, group in enumerate(graph.factors):
        wiring = _wiring(group.scope, kind, row)
        wiring.ties = place.get(number)
        potentials.append(_potential(graph, group, wiring, closed_forms))
    different = [torch.stack(scope.nodes, 1) for scope in scopes]
    forest = is_forest(different, graph.num_nodes)
    numbers = [_continuous(scope, kinds) for scope in scopes]
    joins = is_forest([nodes for nodes in numbers if nodes.shape[1] > 1], graph.num_nodes)
    return Network(kinds, kind, row, potentials, scopes, counting, ties, forest, joins)


def _continuous(scope: ScopeEntropies, kinds: list[Kind]) -> Tensor:
    """``[S, slots]``, the continuous nodes of scopes."""
    slots = zip(scope.wiring.kinds, scope.nodes, strict=True)
    nodes = [own for kind, own in slots if not kinds[kind].is_discrete]
    return torch.stack(nodes, 1) if nodes else scope.nodes[0].new_zeros(scope.num_scopes, 0)


def _kinds(graph: FactorGraph) -> tuple[list[Kind], Tensor, Tensor]:
    nodes, kind, row = by_kind(
        graph, lambda s: (s.is_discrete, s.cardinality if s.is_discrete else s.width)
    )
    kinds = [Kind(own, size, is_discrete) for (is_discrete, size), own in nodes.items()]
    return kinds, kind, row


def _alike(kinds: Tensor) -> list[Tensor]:
    """Rows of ``[E, k]`` that agree, as index tensors."""
    labels = row_numbers(kinds)
    return [(labels == k).nonzero().squeeze(1) for k in labels.unique()]


def _wiring(scope: Tensor, kind: Tensor, row: Tensor) -> Wiring:
    columns = scope.unbind(1)
    return Wiring([int(kind[c[0]]) for c in columns], [row[c] for c in columns], None)


def _scopes(
    graph: FactorGraph, kinds: list[Kind], kind: Tensor, row: Tensor, is_full: bool
) -> tuple[list[ScopeEntropies], dict[str, tuple[int, int]], dict[int, tuple[str, Tensor]]]:
    """Entropies of the different scopes, the sizes of their ties, and for every group of wide
    factors the name of the ties and the rows of its scopes in them."""
    entropies: list[ScopeEntropies] = []
    ties: dict[str, tuple[int, int]] = {}
    place: dict[int, tuple[str, Tensor]] = {}
    wide = [n for n, group in enumerate(graph.factors) if group.arity > 1]
    for arity in sorted({graph.factors[n].arity for n in wide}):
        mine = [n for n in wide if graph.factors[n].arity == arity]
        every = torch.cat([graph.factors[n].scope for n in mine])
        inverse = row_numbers(every)
        unique = every.new_empty(int(inverse.max()) + 1, arity).index_copy_(0, inverse, every)
        name_of = torch.zeros(len(unique), dtype=torch.int64, device=unique.device)
        at = torch.zeros_like(name_of)
        names: list[str | None] = []
        for index in _alike(kind[unique]):
            wiring = _wiring(unique[index], kind, row)
            sizes = [kinds[k].size for k in wiring.kinds]
            is_tied = is_full and not any(kinds[k].is_discrete for k in wiring.kinds)
            name = f"tie_{len(entropies)}" if is_tied else None
            if name is not None:
                ties[name] = (len(index), num_ties(sizes))
                wiring.ties = name, torch.arange(len(index), device=index.device)
            name_of[index], at[index] = len(names), torch.arange(len(index), device=index.device)
            names.append(name)
            entropies.append(ScopeEntropies(wiring, sizes, list(unique[index].unbind(1))))
        start = 0
        for n in mine:
            own = inverse[start : start + graph.factors[n].num_factors]
            start += len(own)
            name = names[int(name_of[own[0]])]  # the nodes of a group's slots are of one kind
            if name is not None:
                place[n] = name, at[own]
    return entropies, ties, place


def _potential(
    graph: FactorGraph, group: FactorGroup, wiring: Wiring, closed_forms: bool | None
) -> Potential:
    like = graph.constant.detach().new_zeros(0)
    if group.is_discrete:
        table = table_of(graph, group, MAX_ENTRIES).to(like)
        bad = zero_states(table)
        if bad is not None:
            raise UnsupportedFactor(
                f"{graph.factor_name(group, bad)} has zeros: a mixture of products gives every "
                "state some mass, and its free energy would be minus infinity. Use pg.BP, or "
                "replace the zeros by small numbers."
            )
        return TablePotential(table, wiring)
    every = torch.arange(group.num_factors, device=graph.device)
    local = LocalDensity(group, every, like, lambda e: graph.factor_name(group, e))
    if local.quadratic is not None:
        return QuadraticPotential(local, wiring)
    local.reduce_jointly()
    potential = IntegratedPotential(local, wiring)
    wanted = group.arity > 1 if closed_forms is None else closed_forms
    return PiecewisePotential.recognised(potential) if wanted else potential
