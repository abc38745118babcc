"""Colours of the Markov graph: nodes of one colour share no factor.

What is done to such nodes at once does not interfere. Source: Jones & Plassmann (1993).
"""

import torch
from torch import Tensor


def colour(pointer: Tensor, index: Tensor) -> Tensor:
    """A greedy colouring in an order of falling degree, all local maxima of it at once.

    Args:
        pointer, index: CSR of the open neighbourhoods, ``[num_nodes + 1]`` and ``[nnz]``.

    Shapes:
        output: ``[num_nodes]`` int64, colours 0, 1, ...; at most the largest degree plus one.
    """
    degree = pointer.diff()
    num_nodes = len(degree)
    owner = torch.arange(num_nodes).repeat_interleave(degree)
    shuffled = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0))
    rank = (degree * num_nodes + shuffled).argsort().argsort()
    colours = torch.full((num_nodes,), -1)
    waiting = torch.ones(num_nodes, dtype=torch.bool)
    while waiting.any():
        rival = torch.where(waiting[index], rank[index], -1)
        highest = torch.full((num_nodes,), -1).scatter_reduce(0, owner, rival, "amax")
        chosen = waiting & (rank > highest)
        colours[chosen] = _lowest_free(chosen, owner, index, colours)
        waiting &= ~chosen
    return colours


def _lowest_free(chosen: Tensor, owner: Tensor, index: Tensor, colours: Tensor) -> Tensor:
    """The lowest colour that no neighbour has, for every chosen node."""
    free = torch.full((len(chosen),), -1)
    candidate, open_ = 0, chosen.clone()
    while open_.any():
        taken = torch.zeros_like(chosen)
        taken[owner[colours[index] == candidate]] = True
        settled = open_ & ~taken
        free[settled] = candidate
        open_ &= ~settled
        candidate += 1
    return free[chosen]
