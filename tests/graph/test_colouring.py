"""Colours of the Markov graph."""

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrograph.graph.colouring import colour


def csr(graph):
    lists = [sorted(graph[i]) for i in range(len(graph))]
    pointer = torch.tensor([0, *[len(n) for n in lists]]).cumsum(0)
    return pointer, torch.tensor([j for n in lists for j in n], dtype=torch.int64)


def check(graph):
    colours = colour(*csr(graph)).tolist()
    assert min(colours) >= 0
    assert all(colours[i] != colours[j] for i, j in graph.edges)
    assert max(colours) <= max((d for _, d in graph.degree), default=0)
    return colours


@given(st.integers(1, 25), st.floats(0, 1), st.integers(0, 10))
def test_neighbours_differ_and_colours_are_few(n, density, seed):
    check(nx.gnp_random_graph(n, density, seed=seed))


@given(st.integers(1, 25), st.integers(1, 25), st.floats(0.01, 0.5), st.integers(0, 10))
def test_what_has_no_odd_cycle_has_two_colours_beside_what_has_one(n, m, density, seed):
    """Networkx tells by itself which components are bipartite; numbers of nodes are mixed."""
    parts = [
        nx.bipartite.random_graph(n, m, density, seed=seed),
        nx.gnp_random_graph(m, 0.2, seed=seed),
    ]
    graph = nx.disjoint_union_all(parts)
    mixed = torch.randperm(n + 2 * m, generator=torch.Generator().manual_seed(seed)).tolist()
    graph = nx.relabel_nodes(graph, dict(enumerate(mixed)))
    colours = check(graph)
    for nodes in nx.connected_components(graph):
        if nx.is_bipartite(graph.subgraph(nodes)):
            assert {colours[i] for i in nodes} == ({0, 1} if len(nodes) > 1 else {0})


@pytest.mark.parametrize(
    ("graph", "most"),
    [
        (nx.empty_graph(4), 1),
        (nx.star_graph(9), 2),
        (nx.complete_graph(5), 5),
        (nx.path_graph(5000), 2),
        (nx.random_labeled_tree(3000, seed=0), 2),
        (nx.cycle_graph(1001), 3),
    ],
)
def test_known_graphs(graph, most):
    assert max(check(graph)) + 1 == most


def test_a_grid_of_many_nodes_is_a_chessboard():
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(60, 60))
    assert max(check(grid)) + 1 == 2


def test_a_grid_of_many_nodes_with_diagonals_has_a_handful_of_colours():
    grid = nx.grid_2d_graph(60, 60)
    grid.add_edges_from(((i, j), (i + 1, j + 1)) for i in range(59) for j in range(59))
    assert max(check(nx.convert_node_labels_to_integers(grid))) + 1 <= 7
