"""From a factor graph to the parts of the Bethe free energy.

Factors of equal scopes share one belief, so those that compute much alike are multiplied into one
(:mod:`~..message_passing.shared_work`). What entropies there are: :mod:`.regions`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.errors import UnsupportedFactor
from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.graph.checked import table_of
from pyrograph.graph.forest import is_forest
from pyrograph.graph.kinds import by_kind
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.discrete.tables import MAX_ENTRIES
from pyrograph.infer.message_passing.network.same_scope import Locals
from pyrograph.infer.message_passing.network.shared_work import multiplied_where_shared
from pyrograph.infer.qbethe.components import Kind, num_ties
from pyrograph.infer.qbethe.conditional import ConditionalPotential
from pyrograph.infer.qbethe.entropy import ScopeEntropies
from pyrograph.infer.qbethe.exponential import ExponentialPotential
from pyrograph.infer.qbethe.nodes import Nodes, different
from pyrograph.infer.qbethe.piecewise import PiecewisePotential
from pyrograph.infer.qbethe.potentials import (
    IntegratedPotential,
    Potential,
    QuadraticPotential,
    TablePotential,
    zero_states,
)
from pyrograph.infer.qbethe.regions import Regions, sets_of
from pyrograph.infer.qbethe.wiring import Tie, Wiring


@dataclass
class Network:
    """What the Bethe free energy is made of.

    Attributes:
        kinds: of nodes; kind: ``[num_nodes]`` of each node; row: ``[num_nodes]`` in its kind.
        wirings: of the groups of factors, in the graph's order.
        potentials: of their factors, or of products of these.
        scopes: different scopes of two and more nodes, by the kinds of their nodes.
        correlated: different sets of continuous nodes that are correlated, by their kinds.
        counting: per kind ``[V]``, 1 - d_i.
        num_ties: free numbers of the correlations, ``(sets, numbers)`` by parameter.
        is_forest: whether the regions close no cycle.
        joins: whether sets of correlated nodes close none, so that they make one Gaussian of a
            component.
    """

    kinds: list[Kind]
    kind: Tensor
    row: Tensor
    wirings: list[Wiring]
    potentials: list[Potential]
    scopes: list[ScopeEntropies]
    correlated: list[ScopeEntropies]
    counting: list[Tensor]
    num_ties: dict[str, tuple[int, int]]
    is_forest: bool
    joins: bool


def build(graph: FactorGraph, is_full: bool, closed_forms: bool | None) -> Network:
    """Sort nodes, factors and scopes.

    Args:
        is_full: whether nodes of a scope are correlated within a component.
        closed_forms: of potentials in pieces; None for those of more than one node. With False
            exponentials are integrated by points too.

    Raises:
        UnsupportedFactor: a discrete factor has zeros, or a table too large.
    """
    by_kind = _by_kind(graph)
    scopes, place = _scopes(graph, by_kind)
    sets = sets_of(scopes, by_kind)
    correlated, ties = [], {}
    for nodes in sets.nodes if is_full else []:
        own, name = by_kind.entropies(nodes), f"tie_{len(ties)}"
        every = torch.arange(len(nodes), device=nodes.device)
        own.wiring.ties.append(Tie(name, every, slice(0, nodes.shape[1])))
        correlated.append(own)
        ties[name] = len(nodes), num_ties(own.sizes)
    regions = Regions(scopes, by_kind, [(o.wiring.ties[0].name, o.nodes) for o in correlated])
    wirings, potentials = [], []
    for number, group in enumerate(graph.factors):
        wiring = by_kind.wiring(group.scope)
        if is_full and number in place and place[number][0] in sets.of:
            mine, at = place[number]
            own, rows = sets.of[mine]
            wiring.ties.append(Tie(f"tie_{own}", rows[at], correlated[own].wiring.ties[0].slots))
        wirings.append(wiring)
        potentials += _potentials(graph, group, wiring, closed_forms)
    return Network(
        by_kind.kinds,
        by_kind.kind,
        by_kind.row,
        wirings,
        potentials,
        regions.entropies(),
        correlated,
        regions.counting(graph.constant),
        ties,
        regions.is_forest,
        is_forest([own.nodes for own in correlated], graph.num_nodes),
    )


def _by_kind(graph: FactorGraph) -> Nodes:
    nodes, kind, row = by_kind(
        graph, lambda s: (s.is_discrete, s.cardinality if s.is_discrete else s.width)
    )
    kinds = [Kind(own, size, is_discrete) for (is_discrete, size), own in nodes.items()]
    return Nodes(kinds, kind, row)


def _scopes(
    graph: FactorGraph, by_kind: Nodes
) -> tuple[list[Tensor], dict[int, tuple[int, Tensor]]]:
    """Different scopes ``[S, arity]`` of two and more nodes, those of like nodes together; and of
    every group of such factors which of these tensors theirs are in, at which rows ``[E]``."""
    scopes: list[Tensor] = []
    place: dict[int, tuple[int, Tensor]] = {}
    wide = [n for n, group in enumerate(graph.factors) if group.arity > 1]
    for arity in sorted({graph.factors[n].arity for n in wide}):
        mine = [n for n in wide if graph.factors[n].arity == arity]
        unique, inverse = different([graph.factors[n].scope for n in mine])
        name_of = torch.zeros(len(unique), dtype=torch.int64, device=unique.device)
        at = torch.zeros_like(name_of)
        for index in by_kind.alike(unique):
            name_of[index], at[index] = len(scopes), torch.arange(len(index), device=index.device)
            scopes.append(unique[index])
        for n, own in zip(mine, inverse, strict=True):
            # the nodes of a group's slots are of one kind
            place[n] = int(name_of[own[0]]), at[own]
    return scopes, place


def _potentials(
    graph: FactorGraph, group: FactorGroup, wiring: Wiring, closed_forms: bool | None
) -> list[Potential]:
    """Of the factors of a group that stay as they are, and of products of others."""
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
        return [TablePotential(table, wiring)]
    every = torch.arange(group.num_factors, device=graph.device)
    local = LocalDensity(group, every, like, graph)
    alone = [Locals(group, every, local, like.new_ones(len(every)))]

    def is_closed(part: Locals) -> bool:
        """Whether integrals of the factors, told by their last, are closed forms."""
        one = part.only(part.index[-1:])
        found = _potential(one.local, wiring.part(one.index), closed_forms)
        return not isinstance(found, IntegratedPotential) or not found.is_by_points

    kept, products = multiplied_where_shared(graph, alone, is_closed, one_alpha=True)
    parts = [*kept, *(product.whole for product in products)]
    return [_potential(part.local, wiring.part(part.index), closed_forms) for part in parts]


def _potential(local: LocalDensity, wiring: Wiring, closed_forms: bool | None) -> Potential:
    if local.quadratic is not None:
        return QuadraticPotential(local, wiring)
    local.reduce_jointly()
    potential = IntegratedPotential(local, wiring)
    wanted = local.group.arity > 1 if closed_forms is None else closed_forms
    if closed_forms is not False:
        exponential = ExponentialPotential.recognised(potential)
        if exponential is not None:
            return exponential
    if potential.dim > 1:
        return ConditionalPotential.recognised(potential)
    return PiecewisePotential.recognised(potential) if wanted else potential
