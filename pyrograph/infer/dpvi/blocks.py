"""Sets of nodes, or of pairs of nodes, that may change at once: no factor touches two of a set.

Nodes by colours of the Markov graph; pairs of neighbours by colours of the graph in which two pairs
are neighbours if a factor touches both.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pyrograph.errors import OptionError
from pyrograph.graph.colouring import colour
from pyrograph.infer.dpvi.clusters import Clusters
from pyrograph.infer.dpvi.network import Network

#: Pairs of pairs in the way of each other, at most.
MOST_CONFLICTS = 2**25
#: Pairs are moved by default if they fall into few blocks and have not too many scores of their
#: joint states in a sweep; so many of these are computed at once, or those of one pair.
MOST_PAIR_BLOCKS, MOST_PAIR_SCORES, AT_ONCE = 64, 2**26, 2**24


def node_blocks(pointer: Tensor, index: Tensor) -> list[Tensor]:
    """Blocks ``[n, 1]`` of a Markov graph, CSR of its open neighbourhoods."""
    colours = colour(pointer, index)
    every = torch.arange(len(colours), device="cpu")
    return [every[colours == k].unsqueeze(1) for k in range(int(colours.max()) + 1)]


def adjacency(pointer: Tensor, index: Tensor) -> sparse.csr_matrix:
    """``[V, V]`` of a Markov graph, CSR of its open neighbourhoods."""
    num_nodes = len(pointer) - 1
    return sparse.csr_matrix(
        (np.ones(len(index), dtype=np.int32), index.cpu().numpy(), pointer.cpu().numpy()),
        shape=(num_nodes, num_nodes),
    )


def conflict_colours(sets: np.ndarray, near: sparse.csr_matrix) -> Tensor:
    """``[R]`` colours of sets of nodes ``[R, m]``, -1 for none; sets with nodes that are near each
    other, ``[V, V]``, have different ones."""
    row, slot = (sets >= 0).nonzero()
    member = sparse.csr_matrix(
        (np.ones(len(row), dtype=np.int32), (row, sets[row, slot])),
        shape=(len(sets), near.shape[0]),
    )
    conflict = (member @ near @ member.T).tocsr()
    conflict -= sparse.diags(conflict.diagonal(), dtype=np.int32, format="csr")  # none with itself
    conflict.eliminate_zeros()
    return colour(
        torch.from_numpy(conflict.indptr.astype(np.int64)),
        torch.from_numpy(conflict.indices.astype(np.int64)),
    )


def pair_blocks(
    pointer: Tensor, index: Tensor, most_conflicts: int = MOST_CONFLICTS
) -> list[Tensor] | None:
    """Blocks ``[n, 2]`` of neighbours in a Markov graph; None where there are too many conflicts
    between them."""
    near = adjacency(pointer, index)
    upper = sparse.triu(near, 1).tocoo()
    pairs = np.stack([upper.row, upper.col], 1)
    if not len(pairs):
        return []
    # a pair is in the way of all pairs of the nodes near its own
    degree = np.diff(near.indptr).astype(np.int64)
    around = degree + near @ degree
    if int(around[pairs].sum()) > most_conflicts:
        return None
    # two pairs of one node are near each other, as that node is near the other end of either
    colours = conflict_colours(pairs, near)
    found = torch.from_numpy(pairs.astype(np.int64))
    return [found[colours == k] for k in range(int(colours.max()) + 1)]


def blocks_of(kind: str, network: Network, pointer: Tensor, index: Tensor) -> list[Tensor]:
    """Sets ``[n, m]`` of nodes, or pairs, that a kind of move takes in turn.

    Raises:
        OptionError: the pairs are in each other's way.
    """
    if kind == "block":
        return node_blocks(pointer, index)
    if kind != "pair":
        return [torch.arange(network.num_nodes, device="cpu").unsqueeze(1)]
    found = pair_blocks(pointer, index)
    if found is None:
        raise OptionError(
            'moves="pair" moves blocks of pairs that are not in each other\'s way, and in this '
            "graph nearly all are. Leave it out."
        )
    return found


def affordable_pairs(
    network: Network, pointer: Tensor, index: Tensor, num_particles: int
) -> list[Tensor]:
    """Blocks of pairs; none where a sweep of them would take too long."""
    # the pairs of one node are all in each other's way
    if int(pointer.diff().max()) > MOST_PAIR_BLOCKS:
        return []
    cards = network.cards.cpu()
    # nor are they worth colouring where most of them are in the way of very many
    most_conflicts = min(MOST_CONFLICTS, 4 * MOST_PAIR_BLOCKS * (len(index) // 2))
    blocks = pair_blocks(pointer, index, most_conflicts) or []
    scores = [cards[block].prod(1) * num_particles for block in blocks]
    if len(blocks) > MOST_PAIR_BLOCKS or sum(int(s.sum()) for s in scores) > MOST_PAIR_SCORES:
        return []
    parts = []
    for block, own in zip(blocks, scores, strict=True):
        part = torch.div(own.cumsum(0), AT_ONCE, rounding_mode="floor")  # else too much memory
        parts += [block[part == k] for k in part.unique()]
    return parts


def clusters_of(network: Network, blocks: list[Tensor]) -> list[Clusters]:
    """Clusters of every block, those of like numbers of states together."""
    parts = (p for b in blocks for p in network.clusters_by_cards(b.to(network.cards.device)))
    # a node with one state has nothing to change, above all one that is summed out
    return [Clusters(network, p) for p in parts if int(network.cards[p[0]].min()) > 1]
