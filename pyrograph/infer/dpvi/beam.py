"""Starts of DPVI where factors have zeros: the ends of one wide beam through all nodes.

A state that meets hard constraints may be far, by changes of few nodes, from all others that do:
words of a code differ in three bits and more. Climbing then ends at whichever it meets first; a
beam that takes in node by node, and drops what breaks a constraint as soon as its nodes are in,
compares those that are left by all other factors.

Nodes come in in the order of the program. Where no state is left at the end, they come in once more
by what constraints say of them: those with one state left first, as the clues of a puzzle, and then
the one that shares constraints with the most nodes that are in, of these the one with the fewest
states left. Paths that cannot be finished end there early, while few others are in their way.

Source: maximum cardinality search, Tarjan & Yannakakis (1984), "Simple linear-time algorithms to
test chordality of graphs", here with the clues first.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.dpvi.particles import highest
from pyrograph.infer.dpvi.paths import Paths

#: Paths of a beam, where fewer particles are asked for; nodes of a network that gets one, and
#: scores of all its nodes together: a second, or less.
WIDTH, MOST_NODES, MOST_SCORES = 1024, 2**10, 2**22


def beamed(network: Network, num_particles: int) -> Tensor:
    """The best states ``[V, M]`` at the end of a beam in the order of the nodes, M at most
    ``num_particles``; M = 0 without zeros, in networks that are too large, and where none of the
    beam meets all constraints."""
    cards = network.cards
    none = cards.new_zeros(len(cards), 0)
    if not network.has_zeros or len(cards) > MOST_NODES:
        return none
    width = min(max(WIDTH, num_particles), max(1, MOST_SCORES // int(cards.sum())))
    x = _ends(network, torch.arange(len(cards), device=cards.device), width)
    x = _ends(network, _constrained_first(network), width) if x is None else x
    return none if x is None else x[:, :num_particles]


def _ends(network: Network, sequence: Tensor, width: int) -> Tensor | None:
    """The best states ``[V, M]`` at the end of a beam, falling; None where none is left."""
    cards = network.cards
    paths = Paths(network, sequence, cards.new_zeros(len(cards), 1), network.constant.expand(1), 0)
    for _ in cards:
        candidates = paths.candidates()
        score, c = candidates.flatten(), candidates.shape[1]
        chosen = highest(score, width)
        chosen = chosen[network.has_mass(score[chosen])]
        if not len(chosen):
            return None
        parent = torch.div(chosen, c, rounding_mode="floor")
        paths.grow(parent, chosen % c, score[chosen])
    return paths.states()


def _constrained_first(network: Network) -> Tensor:
    """``[V]`` nodes in an order in which what constraints leave them is soon little."""
    num_nodes, num_left = network.num_nodes, network.num_left.numpy()
    near = np.zeros((num_nodes, num_nodes), dtype=bool)
    for group in network.tables:
        has_zeros = (group.values <= network.excluded / 2).flatten(1).any(1)
        scope = group.scope[has_zeros].cpu().numpy()
        for k in range(scope.shape[1]):
            near[scope, scope[:, k : k + 1]] = True
    # by how many that are in are near; among equals by the states left, and then as they are
    least = int(num_left.max()) + 1
    rank = np.where(num_left <= 1, num_nodes * least, 0) - num_left
    found = []
    for _ in range(num_nodes):
        v = int(rank.argmax())
        found.append(v)
        rank[near[v]] += least
        rank[found] = -least
    return torch.tensor(found, device=network.cards.device)
