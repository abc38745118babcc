"""Which factors of a plate are one function: those that read data, weights or places of their own
are not."""

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F

import pyrograph as pg
from pyrograph.trace.forms.alike import functions_of

N = 6


def labels(w):
    return pyro.sample("z", dist.Categorical(w))


def with_weights():
    w = pyro.sample("w", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("n", N):
        labels(w)


def with_rows_of_documents():
    with pyro.plate("documents", 2):
        w = pyro.sample("w", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("n", N):
        labels(w[torch.arange(N) % 2])


def with_tempered_weights(power):
    w = pyro.sample("w", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("n", N):
        labels(w ** power[:, None])


def with_places_of_their_own():
    """Factor k reads the k-th number of one node."""
    x = pyro.sample("x", dist.Normal(torch.zeros(N), 1.0).to_event(1))
    with pyro.plate("n", N):
        pyro.sample("z", dist.Bernoulli(logits=x))


def with_data(y):
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    with pyro.plate("n", N):
        pyro.sample("z", dist.StudentT(3.0, x, 1.0), obs=y)


def with_edges(places):
    """A statement that puts together what was computed apart."""
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    both = torch.cat([x.exp(), torch.tensor([0.5, 0.25])])
    with pyro.plate("n", N):
        pyro.sample("z", dist.Poisson(both[places]), obs=torch.ones(N))


def with_a_layer(places):
    """An operation without a rule, that holds a constant: every factor reads a number of it."""
    x = pyro.sample("x", dist.Normal(torch.zeros(6), 1.0).to_event(1))
    weight = torch.arange(9.0 * N).view(N, 3, 3).sin()
    with pyro.plate("n", N):
        pyro.sample("z", dist.Bernoulli(logits=F.bilinear(x[:3], x[3:], weight)[places]))


ZERO = torch.zeros(N)


@pytest.mark.filterwarnings("ignore::pyrograph.errors.DenseScopeWarning")
@pytest.mark.parametrize(
    ("model", "args", "expected"),
    [
        (with_weights, (), True),
        (with_rows_of_documents, (), True),
        (with_tempered_weights, (ZERO + 2,), True),
        (with_tempered_weights, (1 + torch.arange(N) / N,), False),
        (with_places_of_their_own, (), False),
        (with_data, (ZERO + 1,), True),
        (with_data, (torch.linspace(-1, 1, N),), False),
        (with_edges, (torch.zeros(N).long(),), True),
        (with_edges, (torch.arange(N) % 2,), False),
        (with_a_layer, (torch.zeros(N).long(),), True),
        (with_a_layer, (torch.arange(N),), False),
    ],
)
def test_factors_are_alike_where_all_that_they_read_is(model, args, expected):
    graph = pg.trace_graph(model, args, unconstrained=True)
    (group,) = [g for g in graph.factors if g.name == "z" and g.num_factors == N]
    assert (int(functions_of(group.program).max()) == 0) == expected
    if expected:  # seen from outside: one function of each factor's own values
        draw = torch.Generator().manual_seed(0)
        values = []
        for site in group.slots:
            size = (50, 1, *site.event_shape)
            if site.is_discrete:
                value = torch.randint(site.cardinality, (50, 1), generator=draw)
            else:
                value = torch.randn(size, generator=draw)
            values.append(value.expand(50, N, *value.shape[2:]))
        found = group.log_prob(values)
        assert torch.equal(found, found[:, :1].expand_as(found))


def test_constants_with_derivatives_of_their_own_are_told_apart():
    power = (ZERO + 2).requires_grad_()
    graph = pg.trace_graph(with_tempered_weights, (power,), unconstrained=True, differentiable=True)
    (group,) = [g for g in graph.factors if g.name == "z"]
    assert int(functions_of(group.program).max()) > 0


@pytest.mark.parametrize(
    ("model", "args", "functions"),
    [
        (with_tempered_weights, (torch.tensor([1.0, 2, 2, 1, 3, 2]),), [0, 1, 1, 0, 2, 1]),
        (with_data, (torch.tensor([0.5, 0.5, -1, 0.5, -1, 2]),), [0, 0, 1, 0, 1, 2]),
        (with_edges, (torch.tensor([0, 1, 1, 0, 1, 0]),), [0, 1, 1, 0, 1, 0]),
    ],
)
def test_factors_of_like_data_are_one_function(model, args, functions):
    graph = pg.trace_graph(model, args, unconstrained=True)
    (group,) = [g for g in graph.factors if g.name == "z" and g.num_factors == N]
    found = functions_of(group.program)
    own = torch.tensor(functions)
    assert torch.equal(found[:, None] == found, own[:, None] == own)


@pytest.mark.parametrize(
    "means",
    [
        lambda x: torch.ones(N, N) @ x,  # all read the same numbers
        lambda x: x[(torch.arange(N) + 1) % N],  # each the next one's
    ],
)
def test_functions_of_numbers_that_are_not_their_own_are_told_apart(means):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(N), 1.0).mask(False))
        pyro.sample("y", dist.Normal(means(x), 1.0), obs=ZERO)

    program = pg.trace_graph(model)._density_program()
    assert functions_of(program).tolist() == list(range(N))
