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
    owner = torch.arange(num_nodes, device="cpu").repeat_interleave(degree)
    shuffled = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0), device="cpu")
    rank = (degree * num_nodes + shuffled).argsort().argsort()
    colours = torch.full((num_nodes,), -1, device="cpu")
    waiting = torch.ones(num_nodes, dtype=torch.bool, device="cpu")
    while waiting.any():
        rival = torch.where(waiting[index], rank[index], -1)
        highest = torch.full((num_nodes,), -1, device="cpu").scatter_reduce(0, owner, rival, "amax")
        chosen = waiting & (rank > highest)
        colours[chosen] = _lowest_free(chosen, owner, index, colours)
        waiting &= ~chosen
    return colours


def _lowest_free(chosen: Tensor, owner: Tensor, index: Tensor, colours: Tensor) -> Tensor:
    """The lowest colour that no neighbour has, for every chosen node."""
    at = chosen[owner] & (colours[index] >= 0)
    number = chosen.cumsum(0) - 1
    count, most = int(chosen.sum()), int(colours.max()) + 2
    taken = (number[owner[at]] * most + colours[index[at]]).unique()
    row, colour = taken // most, taken % most
    # the k-th colour of a node's neighbours is k as long as none is left out
    rank = (
        torch.arange(len(row), device="cpu")
        - torch.searchsorted(row, torch.arange(count, device="cpu"))[row]
    )
    return torch.bincount(row[colour == rank], minlength=count)
