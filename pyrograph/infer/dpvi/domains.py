"""Whole domains at once: connected nodes in one state take on the state they border on.

A lattice of spins in stripes, or an image with a patch of the wrong label, costs its walls, but
every change of a few nodes lengthens them or moves them along. A change of a whole domain takes
them away. Of a state, domains are the clusters of Swendsen & Wang at zero temperature.

Source: Swendsen & Wang (1987), "Nonuniversal critical dynamics in Monte Carlo simulations".
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

#: Domains that change, the largest ones; fewer where their states would be more numbers than this.
MOST, MOST_NUMBERS = 64, 2**22


def domain_changes(x: Tensor, cards: Tensor, pointer: Tensor, index: Tensor) -> Tensor:
    """States ``[V, M]``, each with one of the largest domains of ``x`` changed.

    Args:
        x: numbers of states ``[V]``.
        cards: how many each node has, ``[V]``.
        pointer, index: neighbours of the nodes, as CSR.
    """
    states, ends = x.cpu().numpy(), index.cpu().numpy()
    pointer = pointer.cpu().numpy()
    starts = np.repeat(np.arange(len(states)), np.diff(pointer))
    inside = states[starts] == states[ends]
    bonds = csr_matrix(
        (np.ones(inside.sum(), dtype=bool), (starts[inside], ends[inside])), (len(states),) * 2
    )
    num_domains, domain = connected_components(bonds, directed=False)
    # how often each domain borders on each state
    num_states = int(states.max(initial=0)) + 1
    borders = csr_matrix(
        (np.ones((~inside).sum()), (domain[starts[~inside]], states[ends[~inside]])),
        (num_domains, num_states),
    )
    most = max(1, min(MOST, MOST_NUMBERS // len(states)))
    largest = np.argsort(-np.bincount(domain), kind="stable")[:most]
    largest = largest[borders.getnnz(1)[largest] > 0]
    target = np.asarray(borders[largest].argmax(1)).reshape(-1)
    target = torch.as_tensor(target, device=x.device)
    is_in = torch.as_tensor(domain[:, None] == largest, device=x.device)
    # the state may be none of a node that is another site's
    return torch.where(is_in, target.minimum(cards.unsqueeze(1) - 1), x.unsqueeze(1))
