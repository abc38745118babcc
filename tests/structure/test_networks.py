"""Bayesian networks read from files, as generic Pyro programs over their tables."""

import pytest
import torch

from pyrograph import trace_graph
from pyrograph.datasets import bayesian_network

from .case import Case, at, draw_points, node, pyro_log_prob
from .mixtures import network_model

NETWORKS = ["cancer", "earthquake", "survey", "asia", "sachs", "alarm"]


def tables_of(network):
    return {n: (network.parents[n], network.tables[n]) for n in network.names}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_from_a_file_has_its_families_as_factors(name, data_root):
    network = bayesian_network(name)
    tables = tables_of(network)
    graph = trace_graph(network_model, (tables,))
    assert graph.num_nodes == graph.num_factors == len(network.names)
    for child in network.names:
        family = frozenset(node(v) for v in (child, *network.parents[child]))
        assert [frozenset(s) for s in graph.scopes(child)] == [family]
    for child in network.names:  # parents, children and the children's other parents
        children = [n for n in network.names if child in network.parents[n]]
        blanket = {*network.parents[child], *children}
        blanket |= {p for n in children for p in network.parents[n]}
        assert graph.blanket(child) == {node(v) for v in blanket - {child}}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_from_a_file_has_pyros_log_density(name, data_root):
    case = Case(network_model, (tables_of(bayesian_network(name)),))
    graph = trace_graph(case.model, case.args)
    points = draw_points(case, False, 5)
    expected = torch.stack([pyro_log_prob(case, at(points, k)) for k in range(5)])
    torch.testing.assert_close(graph.log_prob(points), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_tables_of_a_network_are_those_of_the_file(name, data_root):
    network = bayesian_network(name)
    graph = trace_graph(network_model, (tables_of(network),))
    position = {n: k for k, n in enumerate(network.names)}
    tables = {}
    for group in graph.factors:
        for row, table in zip(group.scope.tolist(), group.table(), strict=True):
            tables[max(row)] = (row, table)  # a child comes after its parents
    for child in network.names:
        axes = [position[v] for v in (*network.parents[child], child)]
        row, table = tables[position[child]]
        assert row == sorted(axes)
        expected = network.tables[child].permute(*(axes.index(v) for v in row))
        # torch keeps probabilities away from zero by one unit of rounding
        torch.testing.assert_close(table.exp(), expected.double(), rtol=1e-9, atol=1e-12)


def test_asia_sums_to_one_over_all_assignments(data_root):
    network = bayesian_network("asia")
    graph = trace_graph(network_model, (tables_of(network),))
    states = torch.cartesian_prod(*[torch.arange(2)] * 8)
    values = {n: states[:, k] for k, n in enumerate(network.names)}
    torch.testing.assert_close(graph.log_prob(values).exp().sum(), torch.tensor(1.0))
