"""Sets of nodes, or of pairs of nodes, that may change at once: no factor touches two of a set.

Nodes by colours of the Markov graph; pairs of neighbours by colours of the graph in which two pairs
are neighbours if a factor touches both.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pyrograph.graph.colouring import colour

#: Pairs of pairs in the way of each other, at most.
MOST_CONFLICTS = 2**25


def node_blocks(pointer: Tensor, index: Tensor) -> list[Tensor]:
    """Blocks ``[n, 1]`` of a Markov graph, CSR of its open neighbourhoods."""
    colours = colour(pointer.cpu(), index.cpu())
    every = torch.arange(len(colours))
    return [every[colours == k].unsqueeze(1) for k in range(int(colours.max()) + 1)]


def pair_blocks(pointer: Tensor, index: Tensor) -> list[Tensor] | None:
    """Blocks ``[n, 2]`` of neighbours in a Markov graph; None where there are too many conflicts
    between them."""
    num_nodes = len(pointer) - 1
    near = sparse.csr_matrix(
        (np.ones(len(index), dtype=np.int32), index.cpu().numpy(), pointer.cpu().numpy()),
        shape=(num_nodes, num_nodes),
    )
    upper = sparse.triu(near, 1).tocoo()
    pairs = np.stack([upper.row, upper.col], 1)
    if not len(pairs):
        return []
    # a pair is in the way of all pairs of the nodes near its own
    degree = np.diff(near.indptr).astype(np.int64)
    around = degree + near @ degree
    if int(around[pairs].sum()) > MOST_CONFLICTS:
        return None
    rows = np.repeat(np.arange(len(pairs)), 2)
    member = sparse.csr_matrix(
        (np.ones(len(rows), dtype=np.int32), (rows, pairs.flatten())), shape=(len(pairs), num_nodes)
    )
    closed = near + sparse.identity(num_nodes, dtype=np.int32, format="csr")
    conflict = (member @ closed @ member.T).tocsr()
    conflict.setdiag(0)
    conflict.eliminate_zeros()
    colours = colour(
        torch.from_numpy(conflict.indptr.astype(np.int64)),
        torch.from_numpy(conflict.indices.astype(np.int64)),
    )
    found = torch.from_numpy(pairs.astype(np.int64))
    return [found[colours == k] for k in range(int(colours.max()) + 1)]
