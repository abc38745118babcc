"""The joint distribution of beliefs whose scopes close no cycle (:mod:`pyrograph.beliefs.forest`).

Discrete and continuous nodes make forests of their own: factors of both keep no joint belief. Nodes
that hang from no other are drawn from their own beliefs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate, Gaussian, JointForest, Natural
from pyrograph.beliefs.forest import (
    NumberBranches,
    NumberTree,
    StateBranches,
    StateTree,
    number_branches,
    renumbered,
    state_branches,
)
from pyrograph.graph.forest import is_forest, parent_slots
from pyrograph.posterior.scopes import Scopes

#: Entries of all tables, or covariances, from which joint draws are made: some 500 MB on the way.
MOST_ENTRIES = 2**25


@torch.inference_mode(False)  # guides are trained from it
def joint_of_beliefs(
    graph,
    family: Tensor,
    row: Tensor,
    beliefs: Sequence[Tensor | Natural],
    scopes: Sequence[Scopes],
) -> JointForest | None:
    """The forest over all sites but those with gamma, beta and Dirichlet beliefs.

    None where no factor tells of dependence, where such factors of discrete nodes, or of continuous
    ones, close a cycle, where their tables or covariances have more than :data:`MOST_ENTRIES`
    entries, and where some Gaussian over a scope is improper.

    Args:
        family, row, beliefs: of nodes, see :class:`~pyrograph.posterior.beliefs.BeliefPosterior`.
        scopes: of factors.
    """
    told = _told(graph, family, beliefs, scopes)
    if told is None:
        return None
    tables, normals = told
    shapes, num_states, discrete, continuous = {}, {}, [], []
    every = torch.arange(graph.num_nodes, device=row.device)
    for name, site in graph.sites.items():
        nodes = every[graph.nodes_of(name)]
        belief = beliefs[int(family[nodes[0]])]
        if isinstance(belief, Tensor):
            shapes[name], num_states[name] = torch.Size([site.num_nodes]), belief.shape[1]
            discrete.append(nodes)
        elif not isinstance(belief, Conjugate):
            shapes[name] = torch.Size([site.num_nodes, belief.d])
            continuous.append(nodes)
    alone = [(every[family == f], belief.detach()) for f, belief in enumerate(beliefs)]
    alone = [(nodes, belief[row[nodes]]) for nodes, belief in alone]
    states = numbers = None
    if discrete:
        own = [(nodes, belief) for nodes, belief in alone if isinstance(belief, Tensor)]
        states = _state_tree(torch.cat(discrete), tables, own, graph.num_nodes)
    if continuous:
        own = [(nodes, belief) for nodes, belief in alone if isinstance(belief, Gaussian)]
        numbers = _number_tree(torch.cat(continuous), normals, own, graph.num_nodes)
    return JointForest(shapes, num_states, states, numbers)


def _told(
    graph, family: Tensor, beliefs: Sequence[Tensor | Natural], scopes: Sequence[Scopes]
) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Gaussian]]] | None:
    """Scopes that tell of dependence, with their tables and with their Gaussians; None where no
    forest can be made of them."""
    of_states, of_numbers, entries = [], [], 0
    for part in scopes:
        if part.nodes is None:
            continue
        kinds = [beliefs[int(f)] for f in family[part.nodes[0]]]
        if isinstance(kinds[0], Tensor):
            of_states.append(part)
            entries += len(part.nodes) * math.prod(belief.shape[1] for belief in kinds)
        else:
            of_numbers.append(part)
            entries += len(part.nodes) * sum(belief.d for belief in kinds) ** 2
    widest = max((belief.d for belief in beliefs if isinstance(belief, Gaussian)), default=0)
    if not entries or max(entries, graph.num_nodes * widest**2) > MOST_ENTRIES:
        return None
    for parts in (of_states, of_numbers):
        if not is_forest([part.nodes for part in parts], graph.num_nodes):
            return None
    normals = [(part.nodes, part.beliefs().detach()) for part in of_numbers]
    if not all(bool(belief.is_proper.all()) for _, belief in normals):
        return None
    return [(part.nodes, part.beliefs().detach()) for part in of_states], normals


def _state_tree(
    nodes: Tensor,
    tables: list[tuple[Tensor, Tensor]],
    alone: list[tuple[Tensor, Tensor]],
    num_nodes: int,
) -> StateTree:
    """Of discrete nodes, by beliefs over scopes and over nodes.

    Args:
        nodes: in the order of the tree.
    """
    place = _places(nodes, num_nodes)
    branches = []
    for (scope, table), slot in zip(tables, _slots(tables, num_nodes), strict=True):
        branches += state_branches(scope, table, slot)
    is_child = _children(branches, num_nodes)
    for own, log_p in alone:
        is_root = ~is_child[own]
        if bool(is_root.any()):
            roots = own[is_root].unsqueeze(1)
            branches.append(StateBranches(None, roots, log_p[is_root].unsqueeze(1)))
    return StateTree([renumbered(branch, place) for branch in branches], len(nodes))


def _number_tree(
    nodes: Tensor,
    normals: list[tuple[Tensor, Gaussian]],
    alone: list[tuple[Tensor, Gaussian]],
    num_nodes: int,
) -> NumberTree:
    """The same of continuous nodes."""
    place = _places(nodes, num_nodes)
    widths = torch.zeros(num_nodes, dtype=torch.int64, device="cpu")
    for own, belief in alone:
        widths[own.cpu()] = belief.d
    branches = []
    for (scope, belief), slot in zip(normals, _slots(normals, num_nodes), strict=True):
        branches += number_branches(scope, belief, slot, widths[scope[0].cpu()].tolist())
    is_child = _children(branches, num_nodes)
    mean = alone[0][1].shift.new_zeros(len(nodes), int(widths.max()))
    for own, belief in alone:
        mean[place[own], : belief.d] = belief.mean
        is_root = ~is_child[own]
        if bool(is_root.any()):
            root = torch.linalg.cholesky(belief[is_root].covariance)
            roots = own[is_root].unsqueeze(1)
            branches.append(NumberBranches(None, roots, (belief.d,), root[:, :, :0], root))
    return NumberTree(mean, [renumbered(branch, place) for branch in branches])


def _places(nodes: Tensor, num_nodes: int) -> Tensor:
    """``[num_nodes]``: where nodes stand among those given."""
    place = nodes.new_zeros(num_nodes)
    place[nodes] = torch.arange(len(nodes), device=nodes.device)
    return place


def _slots(beliefs: Sequence[tuple[Tensor, Tensor | Gaussian]], num_nodes: int) -> list[Tensor]:
    return parent_slots([scope for scope, _ in beliefs], num_nodes) if beliefs else []


def _children(branches: Sequence[StateBranches | NumberBranches], num_nodes: int) -> Tensor:
    """``[num_nodes]``: whether a node hangs from another."""
    device = branches[0].children.device if branches else None
    is_child = torch.zeros(num_nodes, dtype=torch.bool, device=device)
    for branch in branches:
        is_child[branch.children] = True
    return is_child
