"""From a factor graph to the parts of the Bethe free energy.

Factors of equal scopes share one belief: their entropy counts once, as if they were one factor. So
those that compute much alike are multiplied into one (:mod:`~..message_passing.shared_work`).

Scopes whose continuous nodes C are the same, whatever their discrete ones, share more than nodes,
such as rows of a mixture with labels all of its means; with full covariance they share their
correlations. So C is a region of its own beside scopes and nodes,

    sum_a H(b_a) + sum_C (1 - m_C) H(b_C) + sum_i (1 - d_i) H(b_i)

where m_C counts the scopes with discrete nodes too, C counts among the scopes whether or not a
factor reads just C, and d_i counts those of i's scopes that have other continuous nodes once a C.
Without C, as in the paper, whose scopes share single nodes, every row but one would take the
entropy of which mode the means are in once more than it gives: one mode alone would be left.
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
from pyrograph.infer.qbethe.piecewise import PiecewisePotential
from pyrograph.infer.qbethe.potentials import (
    IntegratedPotential,
    Potential,
    QuadraticPotential,
    TablePotential,
    Wiring,
    zero_states,
)
from pyrograph.trace.distinct import row_numbers


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
        is_forest: whether the scopes close no cycle, but through nodes correlated in all of them.
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
    kinds, kind, row = _kinds(graph)
    scopes, place = _scopes(graph, kind)
    parts, part_of = _parts(scopes, kinds, kind)
    cores, ties = [], {}
    for nodes in parts:
        wiring = _wiring(nodes, kind, row)
        own = ScopeEntropies(wiring, [kinds[k].size for k in wiring.kinds], nodes)
        cores.append(own)
        if is_full:
            wiring.ties = f"tie_{len(ties)}", torch.arange(len(nodes), device=nodes.device)
            ties[wiring.ties[0]] = len(nodes), num_ties(own.sizes)
    entropies = _entropies(scopes, cores, part_of, kinds, kind, row)
    counting = [torch.ones(len(k.nodes), device=graph.device, dtype=graph.dtype) for k in kinds]
    for nodes in [*parts, *_beside(scopes, part_of, kinds, kind)]:
        wiring = _wiring(nodes, kind, row)
        for k, rows in zip(wiring.kinds, wiring.rows, strict=True):
            counting[k] = counting[k].index_add(0, rows, -counting[k].new_ones(len(rows)))
    wirings, potentials = [], []
    for number, group in enumerate(graph.factors):
        wiring = _wiring(group.scope, kind, row)
        if is_full and number in place and place[number][0] in part_of:
            mine, at = place[number]
            own, rows = part_of[mine]
            wiring.ties = f"tie_{own}", rows[at]
        wirings.append(wiring)
        potentials += _potentials(graph, group, wiring, closed_forms)
    forest = _is_forest(scopes, parts, part_of, kinds, kind)
    correlated = cores if is_full else []
    joins = is_forest([core.nodes for core in correlated], graph.num_nodes)
    return Network(
        kinds,
        kind,
        row,
        wirings,
        potentials,
        entropies,
        correlated,
        counting,
        ties,
        forest,
        joins,
    )


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


def _scopes(graph: FactorGraph, kind: Tensor) -> tuple[list[Tensor], dict[int, tuple[int, Tensor]]]:
    """Different scopes ``[S, arity]`` of two and more nodes, those of like nodes together; and of
    every group of such factors which of these tensors theirs are in, at which rows ``[E]``."""
    scopes: list[Tensor] = []
    place: dict[int, tuple[int, Tensor]] = {}
    wide = [n for n, group in enumerate(graph.factors) if group.arity > 1]
    for arity in sorted({graph.factors[n].arity for n in wide}):
        mine = [n for n in wide if graph.factors[n].arity == arity]
        unique, inverse = _different([graph.factors[n].scope for n in mine])
        name_of = torch.zeros(len(unique), dtype=torch.int64, device=unique.device)
        at = torch.zeros_like(name_of)
        for index in _alike(kind[unique]):
            name_of[index], at[index] = len(scopes), torch.arange(len(index), device=index.device)
            scopes.append(unique[index])
        for n, own in zip(mine, inverse, strict=True):
            # the nodes of a group's slots are of one kind
            place[n] = int(name_of[own[0]]), at[own]
    return scopes, place


def _different(rows: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Different rows of ``[E, k]`` tensors, and where theirs are among them."""
    every = torch.cat(rows)
    inverse = row_numbers(every)
    unique = every.new_empty(int(inverse.max()) + 1, every.shape[1])
    unique = unique.index_copy_(0, inverse, every)
    return unique, list(inverse.split([len(own) for own in rows]))


def _parts(
    scopes: list[Tensor], kinds: list[Kind], kind: Tensor
) -> tuple[list[Tensor], dict[int, tuple[int, Tensor]]]:
    """Different sets ``[C, k]`` of the continuous nodes, two and more, of scopes, those of like
    nodes together; and for the scopes that have such which of these tensors theirs are in, at
    which rows ``[S]``."""
    found: dict[tuple[int, ...], dict[int, Tensor]] = {}
    for number, nodes in enumerate(scopes):
        own = nodes[:, _slots(nodes, kinds, kind, is_discrete=False)]
        if own.shape[1] > 1:
            found.setdefault(tuple(kind[own[0]].tolist()), {})[number] = own
    parts: list[Tensor] = []
    part_of: dict[int, tuple[int, Tensor]] = {}
    for own in found.values():
        unique, inverse = _different(list(own.values()))
        part_of.update((n, (len(parts), rows)) for n, rows in zip(own, inverse, strict=True))
        parts.append(unique)
    return parts, part_of


def _slots(nodes: Tensor, kinds: list[Kind], kind: Tensor, is_discrete: bool) -> list[int]:
    """Of like scopes ``[S, k]``."""
    of_slots = kind[nodes[0]].tolist()
    return [slot for slot, k in enumerate(of_slots) if kinds[k].is_discrete == is_discrete]


def _beside(
    scopes: list[Tensor],
    part_of: dict[int, tuple[int, Tensor]],
    kinds: list[Kind],
    kind: Tensor,
) -> list[Tensor]:
    """What scopes have beside sets of continuous nodes: all nodes of others."""
    found = []
    for number, nodes in enumerate(scopes):
        mine = _slots(nodes, kinds, kind, is_discrete=True)
        if number not in part_of:
            found.append(nodes)
        elif mine:
            found.append(nodes[:, mine])
    return found


def _entropies(
    scopes: list[Tensor],
    cores: list[ScopeEntropies],
    part_of: dict[int, tuple[int, Tensor]],
    kinds: list[Kind],
    kind: Tensor,
    row: Tensor,
) -> list[ScopeEntropies]:
    """Of scopes and of sets of continuous nodes, as often as these count."""
    times = [torch.ones(core.num_scopes, device=kind.device) for core in cores]
    found = []
    for number, nodes in enumerate(scopes):
        mine, core = _slots(nodes, kinds, kind, is_discrete=True), None
        if number in part_of:
            if not mine:
                continue  # it is a set of continuous nodes
            own, rows = part_of[number]
            times[own].index_add_(0, rows, -torch.ones_like(rows, dtype=times[own].dtype))
            is_shared = cores[own].num_scopes < len(nodes)  # it is looked at once, not by row
            if is_shared or cores[own].wiring.ties is not None:
                core = cores[own], rows
        chosen = nodes if core is None else nodes[:, mine]
        wiring = _wiring(chosen, kind, row)
        sizes = [kinds[k].size for k in wiring.kinds]
        found.append(ScopeEntropies(wiring, sizes, chosen, core))
    counted = (core.counted(t) for core, t in zip(cores, times, strict=True))
    return [*(own for parts in counted for own in parts), *found]


def _is_forest(
    scopes: list[Tensor],
    parts: list[Tensor],
    part_of: dict[int, tuple[int, Tensor]],
    kinds: list[Kind],
    kind: Tensor,
) -> bool:
    """Whether regions make a forest: a set of correlated nodes is one node more, which its nodes
    hang from and the discrete nodes of its scopes."""
    first, edges, number = [], [], len(kind)
    for part in parts:
        first.append(number + torch.arange(len(part), device=part.device).unsqueeze(1))
        edges.append(torch.cat([part, first[-1]], 1))
        number += len(part)
    for n, nodes in enumerate(scopes):
        if n not in part_of:
            edges.append(nodes)
            continue
        discrete = nodes[:, _slots(nodes, kinds, kind, is_discrete=True)]
        if discrete.shape[1]:
            own, rows = part_of[n]
            edges.append(torch.cat([discrete, first[own][rows]], 1))
    return is_forest(edges, number)


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
