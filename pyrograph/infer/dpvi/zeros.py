"""Zeros in the tables of factors: which states of a few nodes a program rules out.

A filter that kept every state with mass has none of those that a zero rules out. It holds every
state with mass of another program too if that one has these zeros among its own. Zeros are told
apart by hashes, sums of random numbers of their nodes' states, in which the order of a factor's
slots does not count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.distributions.seating import mixed
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.dpvi.particles import Hash, first_of_equal


def zeros_of(network: Network, hashes: Hash, number: Tensor | None = None) -> Tensor:
    """``[2, Z]`` hashes of the entries of its tables that are zeros.

    Args:
        network: factors.
        hashes: of all states of all nodes.
        number: ``[V]`` of the network's nodes there, if another.
    """
    found = [hashes.bits.T[:, :0]]
    for group in network.tables:
        factor, *states = (group.values <= network.excluded / 2).nonzero(as_tuple=True)
        nodes = group.scope[factor] if number is None else number[group.scope[factor]]
        place = hashes.start[nodes] + torch.stack(states, 1)  # [Z, k]
        found.append(mixed(hashes.bits.T[:, place].sum(2)))
    return torch.cat(found, 1)


def are_among(zeros: Tensor, others: Tensor) -> bool:
    """Whether all of ``zeros [2, Z]`` are among ``others [2, Z']``."""
    is_first = first_of_equal(torch.cat([others, zeros], 1))
    return not bool(is_first[others.shape[1] :].any())
