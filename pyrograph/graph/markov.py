"""Views of a factor graph: Markov blankets, moral graph, torch-geometric and networkx objects."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

# torch-geometric and networkx take seconds to import; only these views need them.
if TYPE_CHECKING:
    import networkx as nx
    from torch_geometric.data import Data, HeteroData

    from pyrograph.graph.structure import Structure

#: From this many nodes on, factors of equal scope are looked for before they are paired.
WIDE = 4


def neighbors(scopes: list[Tensor], num_nodes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes that share a factor, as CSR ``(ptr [num_nodes + 1], nodes)``, ascending.

    The pattern of ``B^T B`` for the incidence matrix B of factors and nodes; factors of one scope
    count once, so a thousand observations of the same weights cost as one.

    Args:
        scopes: ``[E, arity]`` node ids per group.
    """
    rows, columns, first = [], [], 0
    for scope in scopes:
        arity = scope.shape[1]
        if arity < 2:
            continue
        scope = scope.cpu().numpy()
        if arity >= WIDE:
            scope = _distinct(scope, num_nodes)
        rows.append(np.arange(first, first + len(scope)).repeat(arity))
        columns.append(scope.reshape(-1))
        first += len(scope)
    if not rows:
        empty = torch.zeros(num_nodes + 1, dtype=torch.int64, device=device)
        return empty, empty[:0]
    row, column = np.concatenate(rows), np.concatenate(columns)
    incidence = sparse.csr_array(
        (np.ones(len(row), dtype=bool), (row, column)), shape=(first, num_nodes)
    )
    pairs = (incidence.T @ incidence).tocsr()
    pairs.sort_indices()
    ptr = torch.from_numpy(pairs.indptr.astype(np.int64))
    column = torch.from_numpy(pairs.indices.astype(np.int64))
    owner = torch.arange(num_nodes, device="cpu").repeat_interleave(ptr.diff())
    apart = owner != column
    degree = torch.bincount(owner[apart], minlength=num_nodes)
    ptr = torch.zeros(num_nodes + 1, dtype=torch.int64, device="cpu")
    ptr[1:] = degree.cumsum(0)
    return ptr.to(device), column[apart].to(device)


def quotient(pointer: Tensor, index: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Open neighbourhoods of groups of nodes, as CSR, from those of nodes.

    Args:
        pointer, index: as of :func:`neighbors`.
        group: ``[num_nodes]`` on the CPU, 0, 1, ...
    """
    owner, other = group.repeat_interleave(pointer.cpu().diff()), group[index.cpu()]
    pairs = torch.stack([owner, other], 1)[owner != other]
    return neighbors([pairs], int(group.max()) + 1, torch.device("cpu"))


def _distinct(scope: np.ndarray, num_nodes: int) -> np.ndarray:
    """Distinct rows, told apart by sums of random labels (two are taken for one with 2^-62)."""
    label = np.random.default_rng(0).integers(0, 1 << 62, num_nodes)
    return scope[np.unique(label[scope].sum(1), return_index=True)[1]]


def hetero_data(graph: Structure) -> HeteroData:
    """Stores ``variable`` (site number, columns) and ``factor`` (group number, statement number),
    and edges ``("factor", "scope", "variable")`` with ``edge_index [2, nnz]`` and ``slot``."""
    from torch_geometric.data import HeteroData

    data = HeteroData()
    data["variable"].num_nodes = graph.num_nodes
    data["variable"].site = graph._site_of_node.to(graph.device)
    data["variable"].first_column = graph.columns[:-1]
    data["factor"].num_nodes = graph.num_factors
    data["factor"].statement = graph._factors.statement.to(graph.device)
    group = torch.zeros(graph.num_factors, dtype=torch.int64, device=graph.device)
    for k, g in enumerate(graph.factors):
        group[g.index] = k
    data["factor"].group = group
    terms = graph._factors.terms
    ptr, nodes = terms.ptr.to(graph.device), terms.nodes.to(graph.device)
    factor = torch.arange(graph.num_factors, device=graph.device).repeat_interleave(ptr.diff())
    edges = data["factor", "scope", "variable"]
    edges.edge_index = torch.stack([factor, nodes])
    edges.slot = torch.arange(len(nodes), device=graph.device) - ptr[:-1][factor]
    return data


def markov_graph(graph: Structure) -> Data:
    """Undirected, without self loops; ``edge_index`` holds both directions."""
    from torch_geometric.data import Data

    ptr, column = graph.neighbors
    row = torch.arange(graph.num_nodes, device=column.device).repeat_interleave(ptr.diff())
    return Data(edge_index=torch.stack([row, column]), num_nodes=graph.num_nodes)


def to_networkx(graph: Structure) -> nx.Graph:
    """Bipartite graph of node labels and ``(statement, number)`` factors, attribute ``kind``."""
    import networkx as nx

    out = nx.Graph()
    labels = graph.nodes
    out.add_nodes_from(labels, kind="variable")
    factors = graph._factors
    ptr, nodes = factors.terms.ptr.tolist(), factors.terms.nodes.tolist()
    count: Counter[str] = Counter()
    for f, k in enumerate(factors.statement.tolist()):
        statement = factors.names[k]
        factor = (statement, count[statement])
        count[statement] += 1
        out.add_node(factor, kind="factor")
        out.add_edges_from((factor, labels[v]) for v in nodes[ptr[f] : ptr[f + 1]])
    return out
