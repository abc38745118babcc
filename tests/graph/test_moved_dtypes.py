"""A graph moved to another dtype: bounds of a wider one that its program names, constants."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg

STEPS = 4


def hidden_chain():
    m = pyro.sample("m", dist.Normal(torch.zeros(2).double(), 1.0).to_event(1))
    a = pyro.sample("a", dist.Normal(torch.zeros(2, 2).double(), 1.0).to_event(2))
    start = torch.zeros(2).double()
    hmm = dist.DiscreteHMM(start, a.log_softmax(-1), dist.Normal(m, 1.0), duration=STEPS)
    pyro.sample("y", hmm, obs=torch.linspace(-1, 1, STEPS).double())


def sum_over_paths(m, a):
    """Log density of the observations and the latents, path by path."""
    normal, transition = dist.Normal(m, torch.ones_like(m)), a.log_softmax(-1)
    y = torch.linspace(-1, 1, STEPS).double()
    paths = []
    for path in itertools.product(range(2), repeat=STEPS + 1):
        moves = sum(transition[i, j] for i, j in itertools.pairwise(path)) - torch.log(
            torch.tensor(2.0).double()
        )
        paths.append(moves + sum(normal.log_prob(v)[k] for v, k in zip(y, path[1:], strict=True)))
    prior = dist.Normal(torch.zeros((), dtype=torch.float64), 1.0).log_prob
    return torch.stack(paths).logsumexp(0) + prior(m).sum() + prior(a).sum()


def test_a_hidden_markov_model_runs_in_float32():
    graph = pg.trace_graph(hidden_chain)
    values = {
        "m": torch.tensor([0.3, -0.6]).double(),
        "a": torch.tensor([[0.2, 1.0], [-1, 0.5]]).double(),
    }
    expected = sum_over_paths(**values)
    torch.testing.assert_close(graph.log_prob(values), expected)
    moved = graph.to(dtype=torch.float32).log_prob(values)
    assert moved.dtype is torch.float32
    torch.testing.assert_close(moved, expected.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_lowest_double_is_the_lowest_number_of_the_other_dtype(dtype):
    """Truth: the Gaussian and the clamped sine by hand."""
    lowest, highest = torch.finfo(torch.float64).min, torch.finfo(torch.float64).max

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3).double(), 1.0))
        pyro.factor("f", torch.sin(x).clamp(lowest, highest).clamp(-1e300, 1e300).sum())

    graph = pg.trace_graph(model).to(dtype=dtype)
    x = torch.tensor([0.5, -1.0, 2.0]).double()
    expected = (
        dist.Normal(torch.zeros((), dtype=torch.float64), 1.0).log_prob(x).sum() + x.sin().sum()
    )
    torch.testing.assert_close(graph.log_prob({"x": x}), expected.to(dtype), rtol=5e-3, atol=5e-3)


def test_a_cast_of_the_program_does_not_cut_the_digits_of_a_wider_graph():
    """Truth: the factor by hand, in double precision."""

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(()).double(), 1.0))
        pyro.factor("f", (1e3 * (x.float() - 0.25)).square().double())

    x = 0.3 + 1e-9
    graph = pg.trace_graph(model, verify=False).to(dtype=torch.float64)
    expected = -0.5 * x**2 - 0.5 * math.log(2 * math.pi) + 1e6 * (x - 0.25) ** 2
    assert abs(float(graph.log_prob({"x": torch.tensor(x).double()})) - expected) < 1e-8


def test_states_keep_their_dtype_where_numbers_move():
    def model():
        pyro.sample("x", dist.Normal(torch.zeros(()).double(), 1.0))
        pyro.sample("z", dist.Categorical(torch.ones(3).double()))
        pyro.sample("b", dist.Bernoulli(torch.tensor(0.3).double()))

    moved = pg.trace_graph(model).to(dtype=torch.float32)
    dtypes = {name: moved.dtype_of(name) for name in "xzb"}
    assert dtypes == {"x": torch.float32, "z": torch.int64, "b": torch.float64}


def test_a_graph_in_double_precision_may_be_moved_to_another():
    def model():
        pyro.sample("x", dist.Normal(torch.zeros(()), 1.0))

    torch.set_default_dtype(torch.float32)
    wide = pg.trace_graph(model).in_double()
    half = wide.to(dtype=torch.bfloat16)
    x = {"x": torch.tensor(1.0)}
    dtypes = [graph.log_prob(x).dtype for graph in (wide, wide.to("cpu"), half)]
    assert dtypes == [torch.float64, torch.float64, torch.bfloat16]
    assert (wide.dtype, half.dtype) == (torch.float64, torch.bfloat16)


def test_constants_of_terms_are_added_up_in_double_precision():
    """Of two nodes in one statement terms are split, and constants set free."""
    y = 1e6 + 137 * torch.arange(40.0, dtype=torch.float32)

    def model():
        a, b = (pyro.sample(name, dist.Normal(y.new_tensor(14.0), 1.0)) for name in "ab")
        rate = torch.cat([a.exp().expand(20), b.exp().expand(20)])
        pyro.sample("y", dist.Poisson(rate).to_event(1), obs=y)

    exact = -torch.lgamma(y + 1).double().sum()
    graph = pg.trace_graph(model, unconstrained=True)
    for fine in (graph.in_double(), graph.to(dtype=torch.float64)):
        assert float(fine.constant) == pytest.approx(float(exact), rel=1e-12)
