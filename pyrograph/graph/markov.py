"""Views of a factor graph: Markov blankets, moral graph, torch-geometric and networkx objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

# torch-geometric and networkx take seconds to import; only these views need them.
if TYPE_CHECKING:
    import networkx as nx
    from torch_geometric.data import Data, HeteroData

    from pyrograph.graph.factor_graph import FactorGraph

#: Pairs of scope members handled at once.
PAIR_CHUNK = 20_000_000


def neighbors(scopes: list[Tensor], num_nodes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes that share a factor, as CSR ``(ptr [num_nodes + 1], nodes)``, ascending.

    Args:
        scopes: ``[E, arity]`` node ids per group.
    """
    found = [torch.zeros(0, dtype=torch.int64, device=device)]
    for scope in scopes:
        arity = scope.shape[1]
        if arity < 2:
            continue
        for part in scope.to(device).split(max(1, PAIR_CHUNK // arity**2)):
            keys = (part.unsqueeze(2) * num_nodes + part.unsqueeze(1)).reshape(-1)
            found.append(keys.unique())
    keys = torch.cat(found).unique()
    row = torch.div(keys, num_nodes, rounding_mode="floor") if num_nodes else keys
    column = keys - row * num_nodes
    apart = row != column
    row, column = row[apart], column[apart]
    ptr = torch.zeros(num_nodes + 1, dtype=torch.int64, device=device)
    ptr[1:] = torch.bincount(row, minlength=num_nodes).cumsum(0)
    return ptr, column


def hetero_data(graph: FactorGraph) -> HeteroData:
    """Stores ``variable`` (site number, columns) and ``factor`` (group number, statement number),
    and edges ``("factor", "scope", "variable")`` with ``edge_index [2, nnz]`` and ``slot``."""
    from torch_geometric.data import HeteroData

    data = HeteroData()
    data["variable"].num_nodes = graph.num_nodes
    data["variable"].site = graph._site_of_node.to(graph.device)
    data["variable"].first_column = graph.columns[:-1]
    data["factor"].num_nodes = graph.num_factors
    data["factor"].statement = graph._statement_of_factor.to(graph.device)
    group = torch.zeros(graph.num_factors, dtype=torch.int64, device=graph.device)
    for k, g in enumerate(graph.factors):
        group[g.index] = k
    data["factor"].group = group
    ptr, nodes = graph._terms.ptr.to(graph.device), graph._terms.nodes.to(graph.device)
    factor = torch.arange(graph.num_factors, device=graph.device).repeat_interleave(ptr.diff())
    edges = data["factor", "scope", "variable"]
    edges.edge_index = torch.stack([factor, nodes])
    edges.slot = torch.arange(len(nodes), device=graph.device) - ptr[:-1][factor]
    return data


def markov_graph(graph: FactorGraph) -> Data:
    """Undirected, without self loops; ``edge_index`` holds both directions."""
    from torch_geometric.data import Data

    ptr, column = graph.neighbors
    row = torch.arange(graph.num_nodes, device=column.device).repeat_interleave(ptr.diff())
    return Data(edge_index=torch.stack([row, column]), num_nodes=graph.num_nodes)


def to_networkx(graph: FactorGraph) -> nx.Graph:
    """Bipartite graph of node labels and ``(statement, number)`` factors, attribute ``kind``."""
    import networkx as nx

    out = nx.Graph()
    out.add_nodes_from(graph.nodes, kind="variable")
    for statement in dict.fromkeys(n for g in graph.factors for n in g.statements):
        for k, scope in enumerate(graph.scopes(statement)):
            out.add_node((statement, k), kind="factor")
            out.add_edges_from(((statement, k), label) for label in scope)
    return out
