"""How often an edge is in a spanning tree drawn uniformly, and the best tree for given weights.

    P(edge uv in T) = effective resistance between u and v, every edge a unit resistor,
                    = G_uu + G_vv - 2 G_uv,   G = (L + e_r e_r')^-1

with L the graph's Laplacian and r one node of every component. Only entries of G on the edges are
wanted: nodes are ordered so that L is block tridiagonal (reverse Cuthill-McKee), and the blocks of
the inverse beside the diagonal come of two sweeps of Schur complements, O(V b^2) for bandwidth b.

Source: Kirchhoff (1847); Wainwright, Jaakkola & Willsky (2005).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import (
    connected_components,
    minimum_spanning_tree,
    reverse_cuthill_mckee,
)
from torch import Tensor


def uniform_appearance(edges: Tensor, num_nodes: int) -> Tensor:
    """Probability of every edge in a uniform spanning tree (forest) of the graph, ``[E]``.

    Args:
        edges: ``[E, 2]`` nodes; parallel edges count apart.
    """
    u, v = edges.cpu().numpy().T
    ones = np.ones(len(u))
    adjacency = csr_array(coo_array((ones, (u, v)), shape=(num_nodes, num_nodes)))
    adjacency = adjacency + adjacency.T
    order = reverse_cuthill_mckee(adjacency, symmetric_mode=True)
    position = np.empty(num_nodes, dtype=np.int64)
    position[order] = np.arange(num_nodes)
    a, b = np.sort(position[edges.cpu().numpy()], axis=1).T
    width = max(1, int((b - a).max(initial=0)))
    _, labels = connected_components(adjacency, directed=False)
    roots = position[np.unique(labels, return_index=True)[1]]
    degree = np.bincount(np.concatenate([a, b]), minlength=num_nodes).astype(float)
    degree[roots] += 1
    return torch.from_numpy(_resistances(a, b, degree, width)).to(edges.device)


def _resistances(a: np.ndarray, b: np.ndarray, diagonal: np.ndarray, width: int) -> np.ndarray:
    """Effective resistances of edges a < b, b - a <= width, by blocks of ``width`` nodes."""
    num_nodes = len(diagonal)
    starts = range(0, num_nodes, width)
    blocks = [np.diag(diagonal[s : s + width]) for s in starts]
    beside = [np.zeros((len(blocks[k]), len(blocks[k + 1]))) for k in range(len(blocks) - 1)]
    row, column = a // width, b // width
    for e in np.argsort(row, kind="stable"):
        k, i, j = row[e], a[e] % width, b[e] % width
        if column[e] == k:
            blocks[k][i, j] -= 1
            blocks[k][j, i] -= 1
        else:
            beside[k][i, j] -= 1
    inverse = [np.linalg.inv(blocks[0])]
    for k, link in enumerate(beside):
        inverse.append(np.linalg.inv(blocks[k + 1] - link.T @ inverse[k] @ link))
    potential = np.empty(num_nodes)
    found = np.empty(len(a))
    corner = inverse[-1]
    across: np.ndarray | None = None
    for k in reversed(range(len(blocks))):
        if k + 1 < len(blocks):
            reach = inverse[k] @ beside[k]
            across = -reach @ corner
            corner = inverse[k] + reach @ corner @ reach.T
        potential[k * width : k * width + len(corner)] = np.diag(corner)
        here = row == k
        inside, outside = here & (column == k), here & (column != k)
        found[inside] = corner[a[inside] % width, b[inside] % width]
        if across is not None:
            found[outside] = across[a[outside] % width, b[outside] % width]
    return potential[a] + potential[b] - 2 * found


def heaviest_tree(edges: Tensor, weight: Tensor, num_nodes: int) -> Tensor:
    """``[E]`` whether an edge is in the spanning tree (forest) of largest total weight.

    Args:
        edges: ``[E, 2]``; weight: ``[E]``, at least 0. Of parallel edges the heaviest is taken.
    """
    u, v = edges.cpu().sort(1).values.numpy().T
    key = u * num_nodes + v
    w = weight.detach().cpu().double().numpy()
    best = np.lexsort((-w, key))
    first = np.concatenate([[True], key[best][1:] != key[best][:-1]])
    chosen = best[first]  # one edge per pair of nodes
    cost = w.max(initial=0) + 1 - w[chosen]  # positive: zeros would count as no edge
    matrix = coo_array((cost, (u[chosen], v[chosen])), shape=(num_nodes, num_nodes)).tocsr()
    tree = minimum_spanning_tree(matrix).tocoo()
    kept = np.isin(key[chosen], tree.row.astype(np.int64) * num_nodes + tree.col)
    inside = np.zeros(len(u), dtype=bool)
    inside[chosen[kept]] = True
    return torch.from_numpy(inside).to(edges.device)
