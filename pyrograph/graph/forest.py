"""Whether scopes close a cycle, and which way a forest of them grows.

On a forest, beliefs that agree on nodes make a distribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from torch import Tensor


def is_forest(scopes: Iterable[Tensor], num_nodes: int) -> bool:
    """Whether the bipartite graph of nodes and factors has no cycle.

    Args:
        scopes: node ids ``[E, arity]``, of factors of two and more nodes; two factors of one
            scope close a cycle.
    """
    factor, node = _links(list(scopes), num_nodes)
    if not len(node):
        return True
    size = int(factor[-1]) + 1
    components = connected_components(_matrix(factor, node, size), False, return_labels=False)
    return len(node) == size - components


def parent_slots(scopes: Sequence[Tensor], num_nodes: int) -> list[Tensor]:
    """Of every factor of a forest, the slot ``[E]`` of the node that it hangs from; its other nodes
    hang from the factor. Every tree grows from its first node.

    Args:
        scopes: as for :func:`is_forest`.
    """
    factor, node = _links(scopes, num_nodes)
    size = int(factor[-1]) + 1
    labels = connected_components(_matrix(factor, node, size), False)[1]
    roots = np.unique(labels[:num_nodes], return_index=True)[1]
    ground = np.full(len(roots), size)  # one more vertex, below all roots
    links = _matrix(np.append(factor, ground), np.append(node, roots), size + 1)
    parent = breadth_first_order(links.tocsr(), size, directed=False)[1]
    found, start = [], num_nodes
    for scope in scopes:
        above = torch.from_numpy(parent[start : start + len(scope)].astype(np.int64))
        start += len(scope)
        found.append((scope == above.to(scope.device).unsqueeze(1)).to(torch.uint8).argmax(1))
    return found


def components(scopes: Sequence[Tensor], num_nodes: int) -> Tensor:
    """Number ``[num_nodes]`` of the connected component of every node, from 0."""
    factor, node = _links(scopes, num_nodes)
    size = int(factor[-1]) + 1 if len(factor) else num_nodes
    labels = connected_components(_matrix(factor, node, size), False)[1][:num_nodes]
    return torch.from_numpy(np.unique(labels, return_inverse=True)[1].astype(np.int64))


def _links(scopes: Sequence[Tensor], num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the edges between factors, numbered after the nodes, and nodes."""
    first, edges = num_nodes, [np.zeros((2, 0), np.int64)]
    for scope in scopes:
        nodes = scope.cpu().numpy()
        factor = np.broadcast_to(first + np.arange(len(nodes))[:, None], nodes.shape)
        edges.append(np.stack([factor.ravel(), nodes.ravel()]))
        first += len(nodes)
    factor, node = np.concatenate(edges, 1)
    return factor, node


def _matrix(factor: np.ndarray, node: np.ndarray, size: int) -> coo_array:
    return coo_array((np.ones(len(node), np.int8), (factor, node)), shape=(size, size))
