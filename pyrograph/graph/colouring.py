"""Colours of the Markov graph: nodes of one colour share no factor.

What is done to such nodes at once does not interfere. A component without an odd cycle has two
colours, the parities of the distances from one of its nodes; others have greedy ones, in an order
of falling degree, all local maxima of it at once. O(V log V + E).

Source: Jones & Plassmann (1993) for the greedy ones.
"""

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from torch import Tensor


def colour(pointer: Tensor, index: Tensor) -> Tensor:
    """As few colours as parities, or else a greedy choice, need.

    Args:
        pointer, index: CSR of the open neighbourhoods, ``[num_nodes + 1]`` and ``[nnz]``.

    Shapes:
        output: ``[num_nodes]`` int64 on the CPU, where they are computed, colours 0, 1, ...; at
            most the largest degree plus one.
    """
    pointer, index = pointer.cpu(), index.cpu()
    degree = pointer.diff()
    num_nodes = len(degree)
    owner = torch.arange(num_nodes, device="cpu").repeat_interleave(degree)
    colours, component = _parities(pointer, index)
    odd = torch.zeros(num_nodes, dtype=torch.bool, device="cpu")  # by component
    odd[component[owner[colours[owner] == colours[index]]]] = True
    waiting = odd[component]
    if not waiting.any():
        return colours
    colours[waiting] = -1
    shuffled = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0), device="cpu")
    rank = (degree * num_nodes + shuffled).argsort().argsort()
    while waiting.any():
        rival = torch.where(waiting[index], rank[index], -1)
        highest = torch.full((num_nodes,), -1, device="cpu").scatter_reduce(0, owner, rival, "amax")
        chosen = waiting & (rank > highest)
        colours[chosen] = _lowest_free(chosen, owner, index, colours)
        waiting &= ~chosen
    return colours


def _parities(pointer: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """``[num_nodes]`` parities of the distances from the first node of a node's component, and the
    component's number."""
    num_nodes = len(pointer) - 1
    ones = np.ones(len(index), dtype=np.int8)
    shape = (num_nodes + 1, num_nodes + 1)  # a root more, beside the first nodes
    ends = np.append(pointer.numpy(), pointer[-1])
    graph = csr_array((ones, index.numpy(), ends), shape=shape)
    _, component = connected_components(graph, directed=False)
    _, first = np.unique(component[:num_nodes], return_index=True)
    beside = (np.ones(len(first)), (np.full(len(first), num_nodes), first))
    tree = graph + csr_array(coo_array(beside, shape=shape))
    _, before = breadth_first_order(tree, num_nodes)
    before[num_nodes] = num_nodes
    # parity of the number of steps to an ancestor twice as far up each time
    odd, up = np.ones(num_nodes + 1, dtype=bool), before
    odd[num_nodes] = False
    while (up != num_nodes).any():
        odd, up = odd ^ odd[up], up[up]
    return torch.from_numpy(1 - odd[:-1].astype(np.int64)), torch.from_numpy(component[:-1]).long()


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
