"""Continuous nodes that have no integrals to take: that nothing holds in place (masked out, in all
states of discrete nodes or in one, or known only jointly with others), or that are read in too many
states."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.errors import InferenceError
from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.graph.adrift import refuse_adrift
from pyrograph.graph.checked import refuse_many_states
from pyrograph.graph.masked_out import unread_nodes
from pyrograph.infer.message_passing.densities.in_states import leaves_in_states, states_of
from pyrograph.infer.message_passing.network.network import Family
from pyrograph.infer.message_passing.nodes.families import Continuous
from pyrograph.trace.forms.reach import leaves_that_reach
from pyrograph.trace.sites import JACOBIAN

#: Numbers of all factors of a group in all states, beyond which it counts as reading its nodes.
MOST_NUMBERS = 2**24


def refuse_without_integrals(graph: FactorGraph) -> None:
    """Refuse graphs whose continuous nodes are read in too many states, or are not held.

    Raises:
        UnsupportedFactor, InferenceError: naming the first factor or nodes.
    """
    refuse_many_states(graph)
    _refuse_masked_out(graph)
    _refuse_unheld_states(graph)
    refuse_adrift(graph)


def _refuse_masked_out(graph: FactorGraph) -> None:
    """Refuse continuous nodes that no factor reads: a flat belief is none.

    Raises:
        InferenceError: naming the first one.
    """
    for node in unread_nodes(graph).tolist():
        site, index = graph.nodes[node]
        if not graph.sites[site].is_discrete:
            raise InferenceError(
                f'no factor reads node "{site}"{list(index)}, so that it has no belief: its prior '
                "is masked out, and so is all that depends on it. Give it a prior, or sample the "
                "elements alone that factors read (index the data by the mask, ahead of the plate)."
            )


def _refuse_unheld_states(graph: FactorGraph) -> None:
    """Refuse discrete nodes of which a state leaves a continuous one without any factor: there the
    density is flat, and its integral infinite.

    Raises:
        InferenceError: naming the first ones.
    """
    groups = [g for g in graph.factors if not all(n.endswith(JACOBIAN) for n in g.statements)]
    is_held = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    for group in groups:
        if not _reads_in_states(group):
            is_held[group.scope.flatten()] = True
    reads = torch.zeros(graph.num_nodes, dtype=torch.int64, device=graph.device)
    missed = []
    for group in groups:
        own = [k for k, site in enumerate(group.slots) if not site.is_discrete]
        if not _reads_in_states(group) or bool(is_held[group.scope[:, own]].all()):
            continue
        for node, others, read in _read(group):
            some = read.any(0) & ~is_held[node]
            reads.index_add_(0, node[some], torch.ones_like(node[some]))
            for other, values in others:
                for state in range(int(values.max()) + 1):
                    never = some & ~read[values == state].any(0)
                    number = torch.full_like(node[never], state)
                    missed.append(torch.stack([node[never], other[never], number], 1))
    if not missed:
        return
    rows, counts = torch.cat(missed).unique(dim=0, return_counts=True)
    for node, other, state in rows[counts == reads[rows[:, 0]]].tolist():
        if _is_possible(groups, other, state):
            (site, index), (of, at) = graph.nodes[node], graph.nodes[other]
            value = graph.sites[of].enumeration[state].tolist()
            raise InferenceError(
                f'no factor reads node "{site}"{list(index)} where "{of}"{list(at)} is {value}: '
                "the density is flat there, and the posterior improper. Let the site keep its "
                "prior in every state: mask the observations alone."
            )


def _reads_in_states(group: FactorGroup) -> bool:
    """Whether what factors read of continuous nodes may hang on the states of discrete ones."""
    cards = [site.cardinality for site in group.slots if site.is_discrete]
    if not cards or group.is_discrete:
        return False
    width = sum(site.width for site in group.slots)
    return math.prod(cards) * group.num_factors * width <= MOST_NUMBERS


#: A node per factor, discrete ones beside it with their states, and where it is read.
Read = tuple[Tensor, list[tuple[Tensor, Tensor]], Tensor]


def _read(group: FactorGroup) -> Iterator[Read]:
    """Of every continuous slot its nodes ``[E]``; of the discrete slots the nodes and, in each of D
    joint states, the state; and whether a factor reads the first in the joint state, ``[D, E]``."""
    states = states_of(group.slots, group.scope.device)
    leaves = leaves_in_states(group.slots, states, group.num_factors)
    found = leaves_that_reach(group.program, leaves)
    discrete = [k for k, site in enumerate(group.slots) if site.is_discrete]
    others = [(group.scope[:, k], values) for k, values in zip(discrete, states.t(), strict=True)]
    for k, site in enumerate(group.slots):
        if not site.is_discrete:
            read = found[k].t().reshape(len(states), group.num_factors, -1).any(2)
            yield group.scope[:, k], others, read


def _is_possible(groups: Sequence[FactorGroup], node: int, state: int) -> bool:
    """Whether factors of a discrete node alone leave it in a state."""
    for group in groups:
        if group.is_discrete and group.arity == 1:
            own = (group.scope[:, 0] == node).nonzero().squeeze(1)
            if len(own) and bool((group.part(own).table()[:, state] == -torch.inf).any()):
                return False
    return True


def refuse_improper(
    graph: FactorGraph, families: Sequence[Family], beliefs: Sequence[Tensor | Natural]
) -> None:
    """Refuse beliefs that are no distributions.

    Raises:
        InferenceError: naming the first node.
    """
    for family, belief in zip(families, beliefs, strict=True):
        if isinstance(family, Continuous) and not bool(belief.is_proper.all()):
            node = int(family.nodes[~belief.is_proper][0])
            site, index = graph.nodes[node]
            raise InferenceError(
                f'node "{site}"{list(index)} has no proper belief: no message holds it in place by '
                "itself. Give the site a proper prior, or put what is known of it only jointly "
                "with others into one vector site."
            )
