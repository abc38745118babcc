"""Groups of nodes that have the same closed Markov blanket.

Every scope of a blanket kernel has all of a group or none of it: coefficients of a regression and
its scale are one group; an inner node of a chain is a group by itself. O(V + E).
"""

import torch
from torch import Tensor


def twins(pointer: Tensor, index: Tensor) -> Tensor:
    """The group of every node.

    Args:
        pointer, index: CSR of the open neighbourhoods, ``[num_nodes + 1]`` and ``[nnz]``.

    Shapes:
        output: ``[num_nodes]`` int64 on the CPU, groups 0, 1, ... by their first node.
    """
    pointer, index = pointer.cpu(), index.cpu()
    num_nodes = len(pointer) - 1
    owner = torch.arange(num_nodes, device="cpu").repeat_interleave(pointer.diff())
    # sums of random numbers of the members: 128 bits say which sets are the same
    generator = torch.Generator().manual_seed(0)
    low = torch.iinfo(torch.int64).min
    number = torch.randint(low, -1 - low, (num_nodes, 2), generator=generator, device="cpu")
    key = number.index_add(0, owner, number[index])
    _, group = key.unique(dim=0, return_inverse=True)
    first = torch.full((num_nodes,), num_nodes, device="cpu")
    first = first.scatter_reduce(0, group, torch.arange(num_nodes, device="cpu"), "amin")
    return first[group].unique(return_inverse=True)[1]
