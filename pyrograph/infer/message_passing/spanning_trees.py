"""Edges in random spanning trees: uniform ones, those of given probabilities, the heaviest one.

    P(edge uv in T) = effective resistance between u and v, every edge a unit resistor,
                    = G_uu + G_vv - 2 G_uv,   G = (L + e_r e_r')^-1

with L the graph's Laplacian and r one node of every component. Only entries of G on the edges are
wanted: nodes are ordered so that L is block tridiagonal (reverse Cuthill-McKee), and the blocks of
the inverse beside the diagonal come of two sweeps of Schur complements, O(V b^2) for bandwidth b.
A spanning tree is one of every biconnected part, chosen apart: a node that joins parts stands for
itself once in each, and edges that are parts by themselves are in every tree. So bandwidths are
those of parts, where that of a balanced tree or of a star grows with V.

Probabilities mu belong to some distribution over forests if and only if no set S of nodes holds
more of them than a tree has edges,

    mu(E(S)) <= |S| - 1,    mu(E(S)) = (sum_{v in S} d_v - mu(S, rest)) / 2,    d_v = mu(v, all),

so that the worst set with a given node in it is a minimum cut.

Source: Kirchhoff (1847); Hopcroft & Tarjan (1973) for the parts; Edmonds (1971), Padberg & Wolsey
(1983) and Cunningham (1985) for the cuts; Wainwright, Jaakkola & Willsky (2005).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import (
    breadth_first_order,
    connected_components,
    maximum_flow,
    minimum_spanning_tree,
    reverse_cuthill_mckee,
)
from torch import Tensor

#: Capacities of the cuts are whole numbers: the largest power of two that one is scaled by.
SCALE = 2.0**24
#: Capacities are 32 bits wide.
CAPACITY = 2.0**30


def uniform_appearance(edges: Tensor, num_nodes: int) -> Tensor:
    """Probability of every edge in a uniform spanning tree (forest) of the graph, ``[E]``.

    Args:
        edges: ``[E, 2]`` nodes; parallel edges count apart.
    """
    ends, is_alone = _in_parts(edges.cpu().numpy(), num_nodes)
    appearance = np.ones(len(ends))
    if not is_alone.all():
        appearance[~is_alone] = _within_parts(ends[~is_alone])
    return torch.from_numpy(appearance).to(edges.device)


def _in_parts(edges: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the edges ``[E, 2]``, numbered anew in each biconnected part, and ``[E]`` whether an
    edge is a part by itself."""
    import networkx as nx  # slow to load

    low, high = np.sort(edges, axis=1).T
    pairs, of_edge = np.unique(low * num_nodes + high, return_inverse=True)
    parts = list(nx.biconnected_component_edges(nx.Graph(edges.tolist())))
    sizes = [len(part) for part in parts]
    first, second = np.sort(np.array([pair for part in parts for pair in part]), axis=1).T
    part_of_pair = np.empty(len(pairs), dtype=np.int64)
    part_of_pair[np.searchsorted(pairs, first * num_nodes + second)] = np.repeat(
        np.arange(len(parts)), sizes
    )
    part = part_of_pair[of_edge]
    _, ends = np.unique(part[:, None] * num_nodes + edges, return_inverse=True)
    return ends.reshape(-1, 2), np.bincount(part)[part] == 1


def _within_parts(ends: np.ndarray) -> np.ndarray:
    """Effective resistances of edges ``[E, 2]`` among the nodes that they name."""
    names, ends = np.unique(ends, return_inverse=True)
    ends, num_nodes = ends.reshape(-1, 2), len(names)
    ones = np.ones(len(ends))
    adjacency = csr_array(coo_array((ones, ends.T), shape=(num_nodes, num_nodes)))
    adjacency = adjacency + adjacency.T
    order = reverse_cuthill_mckee(adjacency, symmetric_mode=True)
    position = np.empty(num_nodes, dtype=np.int64)
    position[order] = np.arange(num_nodes)
    a, b = np.sort(position[ends], axis=1).T
    width = max(1, int((b - a).max(initial=0)))
    _, labels = connected_components(adjacency, directed=False)
    roots = position[np.unique(labels, return_index=True)[1]]
    degree = np.bincount(np.concatenate([a, b]), minlength=num_nodes).astype(float)
    degree[roots] += 1
    return _resistances(a, b, degree, width)


def _resistances(a: np.ndarray, b: np.ndarray, diagonal: np.ndarray, width: int) -> np.ndarray:
    """Effective resistances of edges a < b, b - a <= width, by blocks of ``width`` nodes."""
    num_nodes = len(diagonal)
    starts = range(0, num_nodes, width)
    blocks = [np.diag(diagonal[s : s + width]) for s in starts]
    beside = [np.zeros((len(blocks[k]), len(blocks[k + 1]))) for k in range(len(blocks) - 1)]
    row, column = a // width, b // width
    for k, over, i, j in zip(row, column, a % width, b % width, strict=True):
        if over == k:
            blocks[k][i, j] -= 1
            blocks[k][j, i] -= 1
        else:
            beside[k][i, j] -= 1
    inverse = [np.linalg.inv(blocks[0])]
    for k, link in enumerate(beside):
        inverse.append(np.linalg.inv(blocks[k + 1] - link.T @ inverse[k] @ link))
    by_row = np.argsort(row, kind="stable")
    bounds = np.searchsorted(row[by_row], np.arange(len(blocks) + 1))
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
        here = by_row[bounds[k] : bounds[k + 1]]
        inside, outside = here[column[here] == k], here[column[here] != k]
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
    chosen = best[np.unique(key[best], return_index=True)[1]]  # one edge per pair of nodes
    cost = w.max(initial=0) + 1 - w[chosen]  # positive: zeros would count as no edge
    # scipy before 1.13 searches no graph with longer numbers
    ends = np.stack([u, v])[:, chosen].astype(np.int32)
    matrix = coo_array((cost, ends), shape=(num_nodes, num_nodes)).tocsr()
    tree = minimum_spanning_tree(matrix).tocoo()
    kept = np.isin(key[chosen], tree.row.astype(np.int64) * num_nodes + tree.col)
    inside = np.zeros(len(u), dtype=bool)
    inside[chosen[kept]] = True
    return torch.from_numpy(inside).to(edges.device)


def crowded_nodes(edges: Tensor, mu: Tensor, num_nodes: int, slack: float) -> Tensor | None:
    """Nodes S with mu(E(S)) > |S| - 1 + slack |S|, ``[|S|]``, or None if there are none: mu then
    are the edges' probabilities in a random forest.

    One minimum cut per node r, among the nodes up to r: O(V) cuts.

    Args:
        edges: ``[E, 2]``; parallel edges count apart.
        mu: ``[E]``, at least 0.
    """
    ends, weight = edges.cpu().numpy(), mu.detach().cpu().double().numpy()
    adjacency = coo_array((np.ones(len(ends)), ends.T), shape=(num_nodes, num_nodes))
    _, labels = connected_components(adjacency, directed=False)
    order = np.argsort(labels, kind="stable")  # nodes of a component stand together
    position = np.empty(num_nodes, dtype=np.int64)
    position[order] = np.arange(num_nodes)
    first = np.searchsorted(labels[order], labels[order])  # where a node's component begins
    a, b = np.sort(position[ends], axis=1).T
    by_last = np.argsort(b, kind="stable")
    a, b, weight = a[by_last], b[by_last], weight[by_last]
    until = np.searchsorted(b, np.arange(num_nodes), side="right")
    for root in range(num_nodes):
        start = first[root]
        mine = slice(until[start], until[root])  # a component's first node has no earlier one
        if mine.start == mine.stop:
            continue
        inside = _largest_excess(a[mine] - start, b[mine] - start, weight[mine], root - start)
        held = weight[mine][inside[a[mine] - start] & inside[b[mine] - start]].sum()
        if held > inside.sum() - 1 + slack * inside.sum():
            return torch.from_numpy(np.sort(order[start + inside.nonzero()[0]]))
    return None


def _largest_excess(a: np.ndarray, b: np.ndarray, weight: np.ndarray, root: int) -> np.ndarray:
    """``[root + 1]`` which nodes are in the S of largest mu(E(S)) - |S| with the last node in it.

    S is the source's side of the cut that minimises
    sum_{v not in S} max(w_v, 0) + sum_{v in S} max(-w_v, 0) + mu(S, rest) / 2,  w_v = d_v / 2 - 1.
    """
    count = root + 1
    source, sink = count, count + 1
    gain = 0.5 * np.bincount(np.concatenate([a, b]), np.tile(weight, 2), count) - 1
    gain[root] = 0.5 * weight[(a == root) | (b == root)].sum() + 1  # more than its edges can cut
    up, down = (gain > 0).nonzero()[0], (gain < 0).nonzero()[0]
    tail = np.concatenate([a, b, np.full(len(up), source), down])
    head = np.concatenate([b, a, up, np.full(len(down), sink)])
    capacity = np.concatenate([weight / 2, weight / 2, gain[up], -gain[down]])
    shape, arcs = (count + 2, count + 2), np.stack([tail, head]).astype(np.int32)
    total = csr_array(coo_array((capacity, arcs), shape=shape))
    total.data = np.rint(total.data * min(SCALE, CAPACITY / total.data.max())).astype(np.int32)
    left = total - maximum_flow(total, source, sink).flow
    left.eliminate_zeros()
    reached = breadth_first_order(left, source, return_predecessors=False)
    inside = np.zeros(count + 2, dtype=bool)
    inside[reached] = True
    return inside[:count]
