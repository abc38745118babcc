"""Labels, blankets, torch-geometric, networkx and pictures: views of one structure."""

import matplotlib.pyplot as plt
import networkx as nx
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch_geometric.utils import contains_self_loops, is_undirected

from pyrograph import FactorGraph, FactorGroup, trace_graph
from pyrograph.errors import OptionError, ShapeMismatch

from .models import chain, constrained, mixed, square


def test_nodes_are_in_site_order_then_row_major():
    graph = trace_graph(square)
    x = [("x", (0, 0)), ("x", (0, 1)), ("x", (1, 0)), ("x", (1, 1))]
    assert graph.nodes == (*x, ("alone", ()))
    assert graph.num_nodes == 5
    assert [graph.node_id(site, *index) for site, index in graph.nodes] == list(range(5))


def test_nodes_of_a_site_stand_where_their_labels_do():
    graph = trace_graph(square, fixed={"alone": torch.tensor(0.0)})
    for site in graph.sites:
        at = [v for v, (name, _) in enumerate(graph.nodes) if name == site]
        assert list(range(graph.num_nodes))[graph.nodes_of(site)] == at != []


def test_a_full_batch_shape_keeps_its_size_one_axes():
    graph = trace_graph(mixed)
    assert graph.nodes[:2] == (("s", ()), ("p", (0,)))
    assert graph.sites["p"].batch_shape == (3,)
    assert graph.sites["p"].event_shape == (2,)
    assert graph.sites["z"].cardinality == 3
    assert list(graph.sites) == ["s", "p", "z", "b"]


def test_columns_follow_the_nodes_with_events_flattened():
    graph = trace_graph(mixed)
    assert graph.columns.tolist() == [0, 1, 3, 5, 7, 8, 9, 10, 11]
    assert graph.dim == 11
    free = trace_graph(constrained, unconstrained=True)
    assert free.columns.tolist() == [0, 3, 6, 9, 10]


@pytest.mark.parametrize("index", [(2, 0), (0, 2), (0,), (0, 0, 0), ()])
def test_a_node_id_out_of_range_names_the_site_and_its_shape(index):
    with pytest.raises(ShapeMismatch, match=r'"x".*\(2, 2\)'):
        trace_graph(square).node_id("x", *index)


@pytest.mark.parametrize("call", ["node_id", "nodes_of", "blanket"])
def test_an_unknown_site_is_a_key_error_that_lists_the_sites(call):
    with pytest.raises(KeyError, match="alone"):
        getattr(trace_graph(square), call)("nowhere")


def test_scopes_of_an_unknown_statement_are_a_key_error_that_lists_the_statements():
    with pytest.raises(KeyError, match="across"):
        trace_graph(square).scopes("nowhere")


def test_scopes_are_tuples_of_labels_in_row_major_order():
    graph = trace_graph(square)
    assert graph.scopes("down") == [
        (("x", (0, 0)), ("x", (1, 0))),
        (("x", (0, 1)), ("x", (1, 1))),
    ]
    assert graph.num_factors == 4 + 1 + 2 + 2


def test_blankets_leave_out_the_node_itself():
    graph = trace_graph(square)
    assert graph.blanket("x", 0, 0) == {("x", (0, 1)), ("x", (1, 0))}
    assert graph.blanket("alone") == frozenset()
    for site, index in graph.nodes:
        assert (site, index) not in graph.blanket(site, *index)


def test_neighbours_are_the_blankets_as_sorted_rows():
    graph = trace_graph(chain)
    ptr, index = graph.neighbors
    assert ptr.tolist() == [0, 1, 3, 5, 7, 8]
    assert index.tolist() == [1, 0, 2, 1, 3, 2, 4, 3]


def test_groups_say_their_statement_scope_and_slots():
    graph = trace_graph(mixed)
    for group in graph.factors:
        assert isinstance(group, FactorGroup)
        assert group.scope.shape == (group.num_factors, group.arity)
        assert group.scope.dtype == torch.int64
        assert group.name in group.statements
        for row in group.scope.tolist():
            for slot, v in zip(group.slots, row, strict=True):
                site = graph.sites[graph.nodes[v][0]]
                assert site.event_shape == slot.event_shape
                assert site.is_discrete == slot.is_discrete
    assert sum(g.num_factors for g in graph.factors) == graph.num_factors


def test_every_factor_is_in_exactly_one_group():
    graph = trace_graph(mixed)
    places = torch.cat([g.index for g in graph.factors])
    assert sorted(places.tolist()) == list(range(graph.num_factors))


def test_the_hetero_data_is_valid_and_holds_every_scope():
    graph = trace_graph(square)
    data = graph.data
    assert data.validate(raise_on_error=True)
    assert data["variable"].num_nodes == graph.num_nodes
    assert data["factor"].num_nodes == graph.num_factors
    edges = data["factor", "scope", "variable"]
    assert edges.edge_index.shape == (2, edges.slot.numel())
    scopes = [[] for _ in range(graph.num_factors)]
    for factor, variable, slot in zip(*edges.edge_index.tolist(), edges.slot.tolist(), strict=True):
        assert slot == len(scopes[factor])
        scopes[factor].append(graph.nodes[variable])
    statements = ("x", "alone", "across", "down")
    assert [tuple(s) for s in scopes] == [s for name in statements for s in graph.scopes(name)]


def test_the_hetero_data_goes_through_torch_geometrics_own_tools():
    data = trace_graph(square).data
    whole = data.to_homogeneous()
    assert whole.num_nodes == data["variable"].num_nodes + data["factor"].num_nodes
    assert data.is_undirected() is False
    assert data.has_isolated_nodes() is False


def test_the_markov_graph_is_undirected_without_self_loops():
    graph = trace_graph(square)
    data = graph.markov_graph()
    assert data.validate(raise_on_error=True)
    assert data.num_nodes == graph.num_nodes
    assert is_undirected(data.edge_index)
    assert not contains_self_loops(data.edge_index)
    pairs = {tuple(e) for e in data.edge_index.t().tolist()}
    assert pairs == {(0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 0), (1, 3), (3, 1)}


@pytest.mark.parametrize("program", [chain, square, mixed, constrained])
def test_markov_graph_networkx_and_blankets_agree(program):
    graph = trace_graph(program)
    net = graph.to_networkx()
    variables = [v for v, kind in net.nodes(data="kind") if kind == "variable"]
    assert variables == list(graph.nodes)
    assert nx.is_bipartite(net)
    pairs = {tuple(e) for e in graph.markov_graph().edge_index.t().tolist()}
    for u, label in enumerate(graph.nodes):
        two_steps = {v for factor in net[label] for v in net[factor]} - {label}
        assert graph.blanket(*label[:1], *label[1]) == two_steps
        assert {graph.nodes[v] for w, v in pairs if w == u} == two_steps


def test_a_factor_of_the_networkx_view_is_its_statement_and_number():
    net = trace_graph(square).to_networkx()
    assert set(net["down", 1]) == {("x", (0, 1)), ("x", (1, 1))}
    assert net.nodes["down", 1]["kind"] == "factor"


def test_a_site_and_its_statement_are_different_nodes_of_the_networkx_view():
    """Site "x" of batch shape () has the label ("x", ()), its prior the key ("x", 0)."""
    net = trace_graph(chain).to_networkx()
    assert len(net) == 5 + 10
    assert net.nodes["x0", ()]["kind"] == "variable"
    assert net.nodes["x0", 0]["kind"] == "factor"


@pytest.mark.parametrize("program", [chain, square, mixed, lambda: None])
def test_a_picture_is_drawn_on_axes(program):
    graph = trace_graph(program)
    axes = graph.draw()
    assert axes.figure is not None
    _, given = plt.subplots()
    assert graph.draw(ax=given) is given
    plt.close("all")


def test_a_picture_takes_positions():
    graph = trace_graph(square)
    positions = {label: (float(k), float(k % 2)) for k, label in enumerate(graph.nodes)}
    axes = graph.draw(positions=positions)
    assert axes.get_xlim()[0] <= 0 and axes.get_xlim()[1] >= 4
    plt.close("all")


def test_a_large_picture_has_no_labels():
    axes = trace_graph(lambda: chain(60)).draw()
    assert not [t for t in axes.texts if t.get_text().startswith("x")]
    plt.close("all")


@pytest.mark.parametrize(
    ("names", "legend"),
    [
        (["a1", "a2", "b"], ["a1", "a2", "b"]),
        ([f"z{t}" for t in range(30)] + ["scale"], ["z0 ... z29", "scale"]),
        (list("abcdefghijklm"), [*"abcdefghij", "3 more sites"]),
        (list("abcdefghijk"), [*"abcdefghij", "1 more site"]),
    ],
)
def test_a_legend_has_room_and_its_colours_differ(names, legend):
    def model():
        for name in names:
            pyro.sample(name, dist.Normal(0.0, 1.0))

    axes = trace_graph(model).draw()
    shown = {handle.get_label(): handle for handle in axes.collections if handle.get_label()}
    assert [text.get_text() for text in axes.get_legend().get_texts()][-len(legend) :] == legend
    assert len({tuple(shown[text].get_facecolor()[0]) for text in legend}) == len(legend)
    assert sum(len(shown[text].get_offsets()) for text in legend) == len(names)
    plt.close("all")


def test_places_of_very_many_nodes_are_asked_for_not_looked_for():
    graph = trace_graph(lambda: chain(1600))
    plt.close("all")
    with pytest.raises(OptionError, match=r"3,199 variables and factors.*positions"):
        graph.draw()
    assert not plt.get_fignums()
    graph.draw(positions={label: (k, 0) for k, label in enumerate(graph.nodes)})
    plt.close("all")


def test_the_text_of_a_graph_counts_nodes_and_factors():
    text = repr(trace_graph(square))
    assert isinstance(trace_graph(square), FactorGraph)
    assert "5 nodes" in text and "9 factors" in text and "x[2, 2]" in text


def test_a_blamed_factor_is_named_with_its_scope_and_particle():
    def model():
        x = pyro.sample("x", dist.Exponential(torch.ones(4)))
        pyro.factor("root", x[1:].sqrt())

    graph = trace_graph(model)
    x = torch.rand(3, 4) + 0.1
    assert graph.blame(x) is None
    x[2, 3] = -1.0
    text = graph.blame(x)
    assert 'factor "root"[2]' in text
    assert "x[3]" in text
    assert "nan" in text and "particle 2" in text


def test_an_infinite_gradient_is_blamed_too():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0))
        pyro.factor("root", x.abs().sqrt())

    x = torch.ones(2, 2)
    x[1, 0] = 0.0
    text = trace_graph(model).blame(x)
    assert "gradient" in text and 'factor "root"[0]' in text and "particle 1" in text
