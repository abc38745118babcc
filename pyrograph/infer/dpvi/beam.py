"""Starts of DPVI where factors have zeros: the ends of one wide beam through all nodes.

A state that meets hard constraints may be far, by changes of few nodes, from all others that do:
words of a code differ in three bits and more. Climbing then ends at whichever it meets first; a
beam that takes in node by node, and drops what breaks a constraint as soon as its nodes are in,
compares those that are left by all other factors.
"""

from __future__ import annotations

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
    sequence = torch.arange(len(cards), device=cards.device)
    paths = Paths(network, sequence, cards.new_zeros(len(cards), 1), network.constant.expand(1), 0)
    for _ in cards:
        candidates = paths.candidates()
        score, c = candidates.flatten(), candidates.shape[1]
        chosen = highest(score, width)
        chosen = chosen[network.has_mass(score[chosen])]
        if not len(chosen):
            return none
        parent = torch.div(chosen, c, rounding_mode="floor")
        paths.grow(parent, chosen % c, score[chosen])
    return paths.states()[:, :num_particles]
