"""Nodes whose turn may not be the same: whose messages depend on each other's beliefs.

Those are the nodes of a factor. But at alpha = 0 a factor of discrete and continuous nodes sends

    log m_k(x_k) = sum_d q_d E_q log f(d, x)

where state d reads some of the continuous nodes alone: two that no state reads together, or that
log f is a sum over, say nothing about each other's messages. So all components of a mixture have
one turn, and coordinate ascent goes up the same way as one after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.graph import FactorGraph
from pyrograph.graph.markov import neighbors
from pyrograph.graph.terms import TermGroup
from pyrograph.infer.message_passing.continuous.conjugate_factors import ConjugateFactors
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.trace.distinct import row_numbers


def that_depend(graph: FactorGraph, network: Network) -> tuple[Tensor, Tensor]:
    """For every node those whose messages depend on it, as CSR: see :func:`.markov.neighbors`."""
    if not network.is_mean_field:
        return graph.neighbors
    whole = {id(g): torch.ones_like(g.scope[:, 0], dtype=torch.bool) for g in graph.factors}
    scopes = []
    for (group, index), block in zip(network.members, network.blocks, strict=True):
        is_mixed = isinstance(block, QuadratureFactors) and block.local.discrete
        if is_mixed or isinstance(block, ConjugateFactors):
            scopes += _scopes_of(block, group.scope[index])
            if isinstance(group, TermGroup):
                group, index = group.whole, group.numbers.row.to(index.device)
            whole[id(group)][index] = False
    scopes += [g.scope[whole[id(g)]] for g in graph.factors]
    return neighbors(scopes, graph.num_nodes, graph.device)


def _scopes_of(block: ConjugateFactors | QuadratureFactors, scope: Tensor) -> list[Tensor]:
    """Parts ``[e, n]`` of scopes ``[E, arity]`` that some state reads."""
    discrete, continuous = scope[:, block.local.discrete], scope[:, block.local.continuous]
    if isinstance(block, ConjugateFactors):  # sums over the nodes
        return [torch.cat([discrete, own.unsqueeze(1)], 1) for own in continuous.unbind(1)]
    found = []
    for reached in block.local.nodes_reached:  # [E, slots], of a state
        alike = row_numbers(reached.long())
        for number in alike.unique():
            rows = (alike == number).nonzero().squeeze(1)
            own = reached[rows[0]].nonzero().squeeze(1)
            found.append(torch.cat([discrete[rows], continuous[rows][:, own]], 1))
    return found
