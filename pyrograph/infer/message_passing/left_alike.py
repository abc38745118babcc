"""Alternatives of a label that mean field has left alike.

Components of a mixture start alike. Where their scale is a latent too it may take in all that is
between them before they part, and the point at which they are one broad component is then a
maximum of the bound, though others are higher by far: nothing grows (:mod:`.stability`), and only
the beliefs tell.
"""

from __future__ import annotations

import itertools

import torch

from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.conjugate_factors import ConjugateFactors
from pyrograph.infer.message_passing.messages import movement
from pyrograph.infer.message_passing.network import Network
from pyrograph.infer.message_passing.quadrature_factors import QuadratureFactors

#: In widths of beliefs: two that differ by less are alike, and one that is further from its prior
#: holds data.
ALIKE, MOVED = 1e-3, 0.1
#: Slots of a factor that are looked at, the first ones.
MOST = 8


@torch.no_grad()
def note_on_alternatives(graph: FactorGraph, network: Network, beliefs: list) -> str | None:
    """What is to be said of nodes that states of one label choose between and whose beliefs are the
    same; None if there are none."""
    if not network.is_mean_field:
        return None
    for block in network.blocks:
        if not (isinstance(block, ConjugateFactors | QuadratureFactors) and block.local.discrete):
            continue
        reached = block.local.nodes_reached  # [D, E, slots]
        slots = list(enumerate(block.local.continuous))[:MOST]
        for (n, k), (m, j) in itertools.combinations(slots, 2):
            number = block.families[k]
            if number != block.families[j]:
                continue
            chosen = (reached[..., n] & ~reached[..., m]).any(0)
            chosen &= (reached[..., m] & ~reached[..., n]).any(0)
            first, second = (beliefs[number][block.rows[own]] for own in (k, j))
            base = network.families[number].base[block.rows[k]]
            holds = ~base.is_proper | (movement(base, first) > MOVED)
            alike = chosen & holds & (movement(first, second) < ALIKE)
            if bool(alike.any()):
                e, nodes = int(alike.nonzero()[0]), network.families[number].nodes
                names = [graph.nodes[int(nodes[block.rows[own][e]])] for own in (k, j)]
                one, other = (f'"{site}"{list(index)}' for site, index in names)
                return (
                    f"{one} and {other} have the same belief, though labels choose between them: "
                    "another maximum of the bound may be higher by far. Tell them apart in the "
                    "program (prior means apart, a label that is known), or give scales beside "
                    "them a prior that does not take in the distance between clusters."
                )
    return None
