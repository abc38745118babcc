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


@pytest.mark.parametrize(
    ("graph", "most"),
    [(nx.empty_graph(4), 1), (nx.star_graph(9), 2), (nx.complete_graph(5), 5)],
)
def test_known_graphs(graph, most):
    assert max(check(graph)) + 1 == most


def test_a_grid_of_many_nodes_has_a_handful_of_colours():
    grid = nx.convert_node_labels_to_integers(nx.grid_2d_graph(60, 60))
    assert max(check(grid)) + 1 <= 5
