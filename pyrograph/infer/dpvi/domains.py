"""Whole domains at once: connected nodes in one state take on the state they border on.

A lattice of spins in stripes, or an image with a patch of the wrong label, costs its walls, but
every change of a few nodes lengthens them or moves them along. A change of a whole domain takes
them away; of those that gain, the best ones that do not border on each other change together.
Domains are the clusters of Swendsen & Wang at zero temperature.

Source: Swendsen & Wang (1987), "Nonuniversal critical dynamics in Monte Carlo simulations".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from pyrograph.infer.dpvi.network import Network

#: Domains that change, the largest ones; fewer where their states would be more numbers than this.
MOST, MOST_NUMBERS = 64, 2**22


def domain_changes(network: Network, x: Tensor, pointer: Tensor, index: Tensor) -> Tensor:
    """States ``[V, M]``: each with one of the largest domains of ``x [V]`` changed, and with two,
    three, ... of them, by falling gain.

    Args:
        pointer, index: neighbours of the nodes, as CSR.
    """
    found = domains_of(x, network.cards, pointer, index)
    single = found.changes
    gain = network.score(single) - network.score(x.unsqueeze(1))
    chosen: list[int] = []
    for k in gain.argsort(descending=True)[: int((gain > 0).sum())].tolist():
        if not found.borders[k, chosen].any():
            chosen.append(k)
    if len(chosen) < 2:
        return single
    # domains share no node, so that their changes add up
    together = x.unsqueeze(1) + (single[:, chosen] - x.unsqueeze(1)).cumsum(1)
    return torch.cat([single, together[:, 1:]], 1)


@dataclass(frozen=True)
class Domains:
    """The largest domains of a state, those without a border left out.

    Attributes:
        changes: ``[V, M]``, the state with each one changed.
        borders: ``[M, M]`` bool, which border on each other.
    """

    changes: Tensor
    borders: np.ndarray


def domains_of(x: Tensor, cards: Tensor, pointer: Tensor, index: Tensor) -> Domains:
    """The largest domains of a state ``[V]``.

    Args:
        cards: numbers of states, ``[V]``.
        pointer, index: neighbours of the nodes, as CSR.
    """
    states, ends, pointer = (v.cpu().numpy() for v in (x, index, pointer))
    starts = np.repeat(np.arange(len(states)), np.diff(pointer))
    is_wall = states[starts] != states[ends]
    bonds = starts[~is_wall], ends[~is_wall]
    size = (len(states), len(states))
    num_domains, domain = connected_components(
        csr_matrix((np.ones(len(bonds[0]), dtype=bool), bonds), size), directed=False
    )
    here, there = domain[starts[is_wall]], ends[is_wall]
    # how often each domain borders on each state
    walls = csr_matrix(
        (np.ones(len(here)), (here, states[there])), (num_domains, int(states.max(initial=0)) + 1)
    )
    most = max(1, min(MOST, MOST_NUMBERS // len(states)))
    largest = np.argsort(-np.bincount(domain), kind="stable")[:most]
    largest = largest[walls.getnnz(1)[largest] > 0]
    target = torch.as_tensor(np.asarray(walls[largest].argmax(1)).reshape(-1), device=x.device)
    is_in = torch.as_tensor(domain[:, None] == largest, device=x.device)
    # the state may be none of a node that is another site's
    target = target.minimum(cards.unsqueeze(1) - 1)
    place = np.full(num_domains, len(largest))
    place[largest] = np.arange(len(largest))
    borders = np.zeros((len(largest) + 1,) * 2, dtype=bool)
    borders[place[here], place[domain[there]]] = True
    return Domains(torch.where(is_in, target, x.unsqueeze(1)), borders[:-1, :-1])
