"""Which factors share a group: those alike, of one statement or of one loop."""

import pyro
import pyro.distributions as dist
import torch

from pyrograph import trace_graph
from tests.structure.models import build

from .models import mixed


def test_a_plate_is_one_group_per_statement():
    case = build("grid")
    graph = trace_graph(case.model, case.args)
    assert [(g.name, g.num_factors, g.arity) for g in graph.factors] == [
        ("x", 100, 1),
        ("smooth", 180, 2),
    ]


def test_the_statements_of_a_long_loop_share_groups():
    def model(n):
        z = 0
        table = torch.rand(3, 3).softmax(-1)
        for t in pyro.markov(range(n)):
            z = pyro.sample(f"z{t}", dist.Categorical(table[z]))
            pyro.sample(f"y{t}", dist.Normal(1.0 * z, 1.0), obs=torch.tensor(0.1 * t))

    torch.manual_seed(0)
    graph = trace_graph(model, (50,), verify=False)
    transitions = next(g for g in graph.factors if g.arity == 2)
    assert transitions.num_factors == 49
    assert transitions.statements == tuple(f"z{t}" for t in range(1, 50))
    assert len(graph.factors) <= 4


def test_statements_that_are_no_loop_keep_groups_of_their_own():
    graph = trace_graph(mixed)
    assert [g.statements for g in graph.factors] == [(g.name,) for g in graph.factors]


def test_factors_of_one_statement_with_different_arities_are_apart():
    def model(a):
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        pyro.factor("f", torch.tanh(a @ x))

    a = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    groups = [g for g in trace_graph(model, (a,)).factors if g.name == "f"]
    assert [(g.arity, g.num_factors) for g in groups] == [(1, 1), (2, 2)]


def test_discrete_and_continuous_slots_are_never_mixed():
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.5 * torch.ones(2)))
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0))
        both = torch.cat([z, x])
        pyro.factor("f", torch.tanh(both[:-1] * both[1:]))

    for group in trace_graph(model).factors:
        if group.name == "f":
            kinds = {tuple(v < 2 for v in row) for row in group.scope.tolist()}
            assert len(kinds) == 1
            assert kinds == {tuple(s.is_discrete for s in group.slots)}


def test_slots_of_a_loops_factors_hold_nodes_of_like_names():
    def model():
        h = pyro.sample("h0", dist.Normal(0.0, 1.0))
        scale = pyro.sample("v", dist.Normal(0.0, 1.0)).exp()  # between the nodes of h1's factor
        for t in range(1, 20):
            h = pyro.sample(f"h{t}", dist.Normal(h, scale))

    graph = trace_graph(model)
    first, *others = [
        ["".join(graph.nodes[node][0][0] for node in scope) for scope in group.scope.tolist()]
        for group in graph.factors
        if group.arity == 3
    ]
    assert first == ["hvh"]
    assert others == [["vhh"] * 18]


def test_nodes_of_like_names_in_many_orders_share_a_group():
    names = [f"{'abc'[k % 3]}{k}" for k in range(30)]

    def model(triples):
        x = torch.stack([pyro.sample(name, dist.Normal(0.0, 1.0)) for name in names])
        pyro.factor("f", torch.tanh(x[triples].sum(1)).sum())

    triples = torch.combinations(torch.arange(8), 3)
    groups = [g for g in trace_graph(model, (triples,)).factors if g.arity == 3]
    assert [g.num_factors for g in groups] == [56]
