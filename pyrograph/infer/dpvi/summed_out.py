"""Collapsed particles: an independent set of nodes is summed out exactly.

    g_i(x_N) = sum_s prod of the factors that touch i at (s, x_N),      N = blanket of i

Nodes i of which no two share a factor become factors g_i of their blankets. The bound over K states
of the rest is the greater for it, by the entropy of what is summed out, and the marginals of these
nodes are mixtures of exact conditionals,

    q(x_i) = sum_k w_k p(x_i | x_N = x_N,k).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.errors import OptionError, ZeroMass
from pyrograph.graph import FactorGraph
from pyrograph.graph.markov import neighbors
from pyrograph.infer.dpvi.blocks import node_blocks
from pyrograph.infer.dpvi.network import Network, Tables
from pyrograph.trace.distinct import row_numbers

#: Largest table of a node and its blanket.
MOST_STATES = 2**12


@dataclass(frozen=True)
class Conditionals:
    """Like nodes that are summed out.

    Attributes:
        nodes: ``[n]``; blanket: ``[n, b]``.
        values: ``[n, c, c_1, ..., c_b]`` log of the product of the factors that touch a node.
    """

    nodes: Tensor
    blanket: Tensor
    values: Tensor

    def log_probs(self, x: Tensor) -> Tensor:
        """log p(x_i | blanket), ``[n, K, c]``, at states ``[V, K]``."""
        flat = self.values.reshape(*self.values.shape[:2], -1)
        place = torch.zeros(len(self.nodes), x.shape[1], dtype=torch.int64, device=x.device)
        stride = flat.shape[2]
        for slot, c in zip(self.blanket.unbind(1), self.values.shape[2:], strict=True):
            stride //= c
            place = place + stride * x[slot]
        found = flat.gather(2, place.unsqueeze(1).expand(-1, flat.shape[1], -1))
        return found.transpose(1, 2).log_softmax(2)


@dataclass(frozen=True)
class Collapsed:
    """A network of the nodes that are left, and how those summed out follow from them.

    Attributes:
        network: the same nodes; those summed out have one state, and are in no table.
        pointer, index: CSR of the open neighbourhoods of the nodes, in the tables that are left.
    """

    network: Network
    pointer: Tensor
    index: Tensor
    conditionals: list[Conditionals]


def fits(network: Network, nodes: Tensor, pointer: Tensor, index: Tensor) -> Tensor:
    """Which of the nodes have few enough states with their blankets, ``[n]`` bool."""
    size = network.cards.double().log()
    owner = torch.arange(network.num_nodes, device=index.device).repeat_interleave(pointer.diff())
    total = size.index_add(0, owner, size[index])
    return total[nodes] <= math.log(MOST_STATES) + 1e-9


def independent_nodes(graph: FactorGraph, network: Network, wanted: str | Sequence[str]) -> Tensor:
    """Nodes to sum out: those of the sites named, or for ``"auto"`` as many of a colour as fit.

    Raises:
        OptionError: two of them share a factor, or there is none that can be.
    """
    pointer, index = graph.neighbors
    every = torch.arange(graph.num_nodes, device=index.device)
    if wanted == "auto":
        blocks = [b.squeeze(1).to(index.device) for b in node_blocks(pointer, index)]
        found = [b[fits(network, b, pointer, index)] for b in blocks]
        chosen = max(found, key=len)
        if not len(chosen):
            raise OptionError(
                'sum_out="auto" finds no node whose states and those of its neighbours are few '
                "enough together. Leave it out."
            )
        return chosen
    unknown = [name for name in wanted if name not in graph.sites]
    if unknown or not wanted:
        raise OptionError(
            f"sum_out={wanted!r} names no site{f': {unknown[0]!r}' if unknown else ''}. The sites "
            f"are: {', '.join(graph.sites)}"
        )
    names = torch.tensor([site in wanted for site, _ in graph.nodes], device="cpu")
    chosen = every[names.to(index.device)]
    is_out = torch.zeros(len(every), dtype=torch.bool, device=index.device)
    is_out[chosen] = True
    owner = every.repeat_interleave(pointer.diff())
    clash = (is_out[owner] & is_out[index]).nonzero()
    if len(clash):
        v, u = int(owner[clash[0]]), int(index[clash[0]])
        raise OptionError(
            f"sum_out: {graph.nodes[v]} and {graph.nodes[u]} share a factor, and only nodes that "
            "do not can be summed out at once"
        )
    small = fits(network, chosen, pointer, index)
    if not bool(small.all()):
        v = int(chosen[(~small).nonzero()[0, 0]])
        raise OptionError(
            f"sum_out={wanted!r}: {graph.nodes[v]} has over {MOST_STATES} joint states with its "
            "neighbours, too many for one table. Leave its site out."
        )
    return chosen


def without(network: Network, nodes: Tensor, pointer: Tensor, index: Tensor) -> Collapsed:
    """The network without an independent set of nodes ``[n]``, each of which :func:`fits`.

    Args:
        pointer, index: CSR of the blankets.

    Raises:
        ZeroMass: a node that shares no factor with others has no state with mass.
    """
    is_out = torch.zeros(network.num_nodes, dtype=torch.bool, device=nodes.device)
    is_out[nodes] = True
    kept, touching = [], []
    for group in network.tables:
        out = is_out[group.scope].any(1)
        if bool((~out).any()):
            kept.append(Tables(group.scope[~out], group.values[~out]))
        if bool(out.any()):
            touching.append(Tables(group.scope[out], group.values[out]))
    conditionals = []
    degree = pointer.diff()
    for b in degree[nodes].unique().tolist():
        mine = nodes[degree[nodes] == b]
        blanket = index[pointer[mine].unsqueeze(1) + torch.arange(b, device=mine.device)]
        cards = torch.cat([network.cards[mine].unsqueeze(1), network.cards[blanket]], 1)
        labels = row_numbers(cards)
        for k in labels.unique().tolist():
            like = labels == k
            conditionals.append(_conditionals(network, mine[like], blanket[like], touching))
    constant = network.constant
    for found in conditionals:
        summed = found.values.logsumexp(1)
        if found.blanket.shape[1] == 0:
            if bool((summed <= network.excluded / 2).any()):
                raise ZeroMass(
                    "every state of a node that is summed out breaks a hard constraint: the "
                    "evidence is zero."
                )
            constant = constant + summed.sum()
        else:
            # a state without mass is worth no more than one zero, whatever else is said of it
            kept.append(Tables(found.blanket, summed.clamp_min(network.excluded)))
    reduced = Network(torch.where(is_out, 1, network.cards), kept, constant, network.excluded)
    ends = neighbors([group.scope for group in kept], network.num_nodes, nodes.device)
    return Collapsed(reduced, *ends, conditionals)


def _conditionals(
    network: Network, nodes: Tensor, blanket: Tensor, touching: list[Tables]
) -> Conditionals:
    """Of nodes whose own cards and whose blankets' are alike."""
    scope = torch.cat([nodes.unsqueeze(1), blanket], 1)  # [n, 1 + b]
    cards = network.cards[scope[0]].tolist()
    values = torch.zeros(len(nodes), *cards, dtype=torch.float64, device=nodes.device)
    row_of = torch.full((network.num_nodes,), -1, device=nodes.device)
    row_of[nodes] = torch.arange(len(nodes), device=nodes.device)
    for group in touching:
        row = row_of[group.scope].amax(1)
        chosen = (row >= 0).nonzero().squeeze(1)
        if not len(chosen):
            continue
        row, own = row[chosen], group.scope[chosen]
        place = (own.unsqueeze(2) == scope[row].unsqueeze(1)).long().argmax(2)  # [R, k]
        pattern = row_numbers(place)
        for k in range(int(pattern.max()) + 1):
            which = (pattern == k).nonzero().squeeze(1)
            slots = place[which[0]].tolist()
            table = group.values[chosen[which]]
            order = sorted(range(len(slots)), key=slots.__getitem__)
            table = table.permute(0, *(1 + j for j in order))
            shape = [cards[j] if j in slots else 1 for j in range(len(cards))]
            table = table.reshape(len(which), *shape).expand(len(which), *cards)
            values.index_add_(0, row[which], table)
    return Conditionals(nodes, blanket, values)
