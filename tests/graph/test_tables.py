"""Tables of discrete factors against tables known by hand and against enumeration."""

import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyrograph import trace_graph
from pyrograph.errors import UnsupportedSite

from .models import TABLE_B, TABLE_C, chain, discrete


def test_tables_are_the_programs_own_tables():
    graph = trace_graph(discrete)
    tables = {g.name: g.table() for g in graph.factors}
    torch.testing.assert_close(tables["a"], torch.tensor([[0.4, 0.6]]).log())
    torch.testing.assert_close(tables["b"], TABLE_B.log()[None])
    torch.testing.assert_close(tables["c"], TABLE_C.log()[None])


def test_a_product_of_conditional_tables_sums_to_one():
    graph = trace_graph(discrete)
    joint = torch.zeros(2, 3, 2)
    for group in graph.factors:
        for row, table in zip(group.scope.tolist(), group.table(), strict=True):
            shape = [n if v in row else 1 for v, n in enumerate(joint.shape)]
            joint = joint + table.reshape(shape)
    torch.testing.assert_close(joint.exp().sum(), torch.tensor(1.0))


def test_a_table_is_the_local_function_at_every_pair_of_states():
    weights = torch.randn(4, 3, 3)
    edges = torch.tensor([[0, 1], [1, 2], [2, 3], [0, 3]])

    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(4, 3)))
        e = torch.arange(4)
        pyro.factor("f", weights[e, z[edges[:, 0]], z[edges[:, 1]]])

    graph = trace_graph(model)
    group = next(g for g in graph.factors if g.name == "f")
    table = group.table()
    assert table.shape == (4, 3, 3)
    torch.testing.assert_close(table, weights)
    for i, j in itertools.product(range(3), range(3)):
        states = [torch.full((1, 4), i), torch.full((1, 4), j)]
        torch.testing.assert_close(group.log_prob(states)[0], table[:, i, j])


def test_slots_are_in_node_order_whatever_the_order_of_use():
    """b reads a, but is declared after it; c is read in the order (z, y)."""

    def model():
        y = pyro.sample("y", dist.Categorical(torch.ones(2)))
        z = pyro.sample("z", dist.Categorical(torch.ones(3)))
        pyro.factor("f", torch.arange(6.0).view(3, 2)[z, y])

    group = next(g for g in trace_graph(model).factors if g.name == "f")
    assert group.scope.tolist() == [[0, 1]]
    torch.testing.assert_close(group.table()[0], torch.arange(6.0).view(3, 2).T)


def test_tables_of_bernoulli_and_one_hot_sites():
    def model():
        b = pyro.sample("b", dist.Bernoulli(0.25))
        o = pyro.sample("o", dist.OneHotCategorical(torch.tensor([0.2, 0.3, 0.5])))
        pyro.factor("f", b * (o @ torch.tensor([1.0, 2.0, 3.0])))

    tables = {g.name: g.table() for g in trace_graph(model).factors}
    torch.testing.assert_close(tables["b"], torch.tensor([[0.75, 0.25]]).log())
    torch.testing.assert_close(tables["o"], torch.tensor([[0.2, 0.3, 0.5]]).log())
    torch.testing.assert_close(tables["f"], torch.tensor([[[0.0, 0, 0], [1, 2, 3]]]))


def test_a_table_of_many_states_is_made_in_chunks(monkeypatch):
    monkeypatch.setattr("pyrograph.graph.factor_group.TABLE_CHUNK", 7)
    whole = torch.randn(2, 5, 5)

    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(3, 5)))
        pyro.factor("f", whole[torch.arange(2), z[:-1], z[1:]])

    group = next(g for g in trace_graph(model).factors if g.name == "f")
    torch.testing.assert_close(group.table(), whole)


def test_a_table_takes_no_more_memory_than_some_of_its_states_do(monkeypatch):
    """Every state has a covariance of 2,500 numbers, which are sums of 20,000."""
    X, widest = torch.randn(50, 8), []

    def model():
        with pyro.plate("columns", 8):
            z = pyro.sample("z", dist.Bernoulli(0.5))
        covariance = torch.eye(50) + (X * z.unsqueeze(-2)) @ X.T
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(50), covariance), obs=X[:, 0])

    class Widest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            widest.append(found.numel() if isinstance(found, torch.Tensor) else 0)
            return found

    group = next(g for g in trace_graph(model).factors if g.name == "y")
    whole = group.table()
    monkeypatch.setattr("pyrograph.graph.factor_group.TABLE_COMPUTED", 10**6)
    with Widest():
        in_parts = group.table()
    assert max(widest) <= 10**6
    torch.testing.assert_close(in_parts, whole)
    on = torch.tensor([1.0, 0, 1, 0, 0, 0, 0, 1])
    seen = dist.MultivariateNormal(torch.zeros(50), torch.eye(50) + (X * on) @ X.T)
    found = whole[(0, *on.long().tolist())]
    torch.testing.assert_close(found, seen.log_prob(X[:, 0]), rtol=1e-4, atol=1e-4)


def test_impossible_states_have_log_value_minus_infinity():
    def model():
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.5, 0.0, 0.5]), validate_args=False))
        pyro.factor("f", torch.where(z == 0, torch.tensor(-torch.inf), torch.tensor(0.0)))

    tables = {g.name: g.table() for g in trace_graph(model).factors}
    assert tables["f"].tolist() == [[-torch.inf, 0.0, 0.0]]
    assert tables["z"][0, 1] < -30  # torch clamps probabilities away from zero


def test_every_factor_of_a_loop_has_its_own_table():
    tables = torch.rand(12, 3, 3).softmax(-1)

    def model():
        z = pyro.sample("z0", dist.Categorical(torch.ones(3)))
        for t in pyro.markov(range(1, 12)):
            z = pyro.sample(f"z{t}", dist.Categorical(tables[t][z]))

    graph = trace_graph(model)
    found = {}
    for group in graph.factors:
        for row, table in zip(group.scope.tolist(), group.table(), strict=True):
            found[tuple(row)] = table
    for t in range(1, 12):
        torch.testing.assert_close(found[t - 1, t], tables[t].log())


class Spin(dist.TorchDistribution):
    """-1 or +1."""

    arg_constraints = {}  # noqa: RUF012
    support = dist.constraints.integer_interval(-1, 1)
    has_enumerate_support = True

    def __init__(self, shape):
        super().__init__(torch.Size(shape), validate_args=False)

    def sample(self, sample_shape=()):
        return 2.0 * torch.randint(0, 2, self.shape(torch.Size(sample_shape))) - 1

    def log_prob(self, value):
        return 0.1 * value - 0.8

    def expand(self, batch_shape, _instance=None):
        return Spin(batch_shape)

    def enumerate_support(self, expand=True):
        values = torch.tensor([-1.0, 1.0]).view(2, *(1 for _ in self.batch_shape))
        return values.expand(2, *self.batch_shape) if expand else values


def test_each_factor_of_a_group_is_tabulated_at_its_own_states():
    """Bits {0, 1} and spins {-1, +1} have two states each, but not the same ones."""

    def model():
        bits = pyro.sample("bits", dist.Bernoulli(0.5 * torch.ones(2)))
        spins = pyro.sample("spins", Spin((2,)))
        x = torch.cat([bits, spins])
        pyro.factor("f", (2 + x[::2]) * (3 + x[1::2]))

    graph = trace_graph(model)
    found = {}
    for group in graph.factors:
        if group.name == "f":
            for row, table in zip(group.scope.tolist(), group.table(), strict=True):
                found[graph.nodes[row[0]][0]] = table
    torch.testing.assert_close(found["bits"], torch.tensor([[6.0, 8.0], [9.0, 12.0]]))
    torch.testing.assert_close(found["spins"], torch.tensor([[2.0, 4.0], [6.0, 12.0]]))


def test_continuous_factors_have_no_table():
    with pytest.raises(UnsupportedSite, match=r'"x0".*Normal'):
        trace_graph(chain).factors[0].table()


def test_infinitely_many_states_have_no_table():
    def model():
        n = pyro.sample("n", dist.Poisson(3.0))
        pyro.factor("f", -n)

    with pytest.raises(UnsupportedSite, match='"n"'):
        trace_graph(model).factors[0].table()


def test_a_mixed_factor_has_no_table():
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.5))
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", x * z)

    group = next(g for g in trace_graph(model).factors if g.name == "f")
    assert not group.is_discrete
    with pytest.raises(UnsupportedSite, match='"x"'):
        group.table()
