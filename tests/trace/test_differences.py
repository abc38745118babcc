"""Quadratic forms of differences: the same pairs, without cancellation far from the origin."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import VerificationError
from pyrograph.trace import expand


def path(n, rho=0.9):
    """Precision of a proper CAR model on a path of n areas."""
    near = torch.diag(torch.ones(n - 1).double(), 1)
    near = near + near.t()
    return torch.diag(near.sum(1)) - rho * near


def car(n, loc, dtype):
    precision = path(n).to(dtype)

    def model():
        mu = pyro.sample("mu", dist.Normal(torch.tensor(loc, dtype=dtype), 1.0))
        x = pyro.sample("x", dist.Normal(torch.full((n,), loc, dtype=dtype), 1.0))
        d = x - mu
        pyro.factor("q", -0.5 * d @ precision @ d)

    return model


@pytest.mark.parametrize("loc", [0.0, 300.0, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_of_a_form_around_a_latent_mean_add_up_far_from_the_origin(loc, dtype):
    n = 50
    graph = pg.trace_graph(car(n, loc, dtype))
    mu, x = loc + torch.randn((), dtype=dtype), loc + torch.randn(n, dtype=dtype)
    wide, centre = x.double(), mu.double()
    expected = -0.5 * (wide - centre) @ path(n).to(dtype).double() @ (wide - centre)
    expected = expected + dist.Normal(loc, 1.0).log_prob(wide).sum()
    expected = expected + dist.Normal(loc, 1.0).log_prob(centre)
    found = graph.sum_of_factors({"mu": mu, "x": x}).double()
    precision = 1e-6 if dtype is torch.float32 else 1e-13
    torch.testing.assert_close(found, expected, rtol=precision, atol=0)


def test_a_form_around_a_latent_mean_is_of_pairs():
    n = 6
    graph = pg.trace_graph(car(n, 0.0, torch.float64))
    x = [("x", (k,)) for k in range(n)]
    pairs = {frozenset(x[k : k + 2]) for k in range(n - 1)}
    # precision @ (1, ..., 1) is not zero, so that every area feels the mean
    pairs |= {frozenset([("mu", ()), x[k]]) for k in range(n)}
    assert {frozenset(scope) for scope in graph.scopes("q")} == pairs


def test_products_of_contrasts_have_the_values_and_gradients_of_the_program():
    """Sums of several latents whose coefficients add up to zero, some shared, some not."""
    weights = torch.tensor([0.0, 2.0, -1.0, -1.0, 0.0]).double()

    def energy(x, s):
        first = x[0] - x[1]
        second = 0.5 * x[0] + 0.5 * x[1] - x[3]
        third = weights @ x
        return first * second - 0.3 * third * first + s * second + 0.1 * x[4] * (x[0] - x[2])

    def model():
        x = pyro.sample("x", dist.Normal(torch.full((5,), 50.0).double(), 1.0))
        s = pyro.sample("s", dist.Normal(torch.zeros(()).double(), 1.0))
        pyro.factor("f", energy(x, s))

    graph = pg.trace_graph(model)
    assert max(len(scope) for scope in graph.scopes("f")) == 2
    x = (50 + torch.randn(5)).double().requires_grad_()
    s = torch.randn(()).double().requires_grad_()
    values = graph.sum_of_factors({"x": x, "s": s})
    expected = energy(x, s) + dist.Normal(50.0, 1.0).log_prob(x).sum()
    expected = expected + dist.Normal(0.0, 1.0).log_prob(s)
    torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)
    found = torch.autograd.grad(values, (x, s))
    truth = torch.autograd.grad(expected, (x, s))
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("first, second", [((3, -6, 3), (2, -0.5, -1.5)), ((1, -2, 1),) * 2])
def test_a_product_of_contrasts_is_of_pairs_whatever_their_coefficients(first, second):
    first, second = torch.tensor(first).double(), torch.tensor(second).double()

    def model():
        with pyro.plate("n", 3):
            x = pyro.sample("x", dist.Normal(torch.full((3,), 50.0).double(), 1.0))
        pyro.factor("f", (first @ x) * (second @ x))

    graph = pg.trace_graph(model)
    assert {len(scope) for scope in graph.scopes("f")} == {2}
    x = (50 + torch.randn(3)).double()
    expected = (first @ x) * (second @ x) + dist.Normal(50.0, 1.0).log_prob(x).sum()
    torch.testing.assert_close(graph.sum_of_factors({"x": x}), expected, rtol=1e-11, atol=0)


def test_a_form_that_single_precision_cannot_split_says_so():
    """``x - (mu + b w)`` multiplied out is a difference of numbers as large as the location's."""

    def model(location):
        mu = pyro.sample("mu", dist.Normal(location, 1.0))
        b = pyro.sample("b", dist.Normal(torch.zeros_like(location), 1.0))
        with pyro.plate("n", 50):
            x = pyro.sample("x", dist.Normal(location, 1.0))
        d = x - (mu + b * torch.linspace(-1, 1, 50).to(location))
        pyro.factor("q", -0.5 * d @ path(50, 1.0).to(location) @ d)

    torch.set_default_dtype(torch.float32)
    assert pg.trace_graph(model, (torch.tensor(0.0),)).num_factors
    with pytest.raises(
        VerificationError, match=r'statement "q", far.*cancel in torch\.float32.*location'
    ):
        pg.trace_graph(model, (torch.tensor(3e4),))
    assert pg.trace_graph(model, (torch.tensor(3e4, dtype=torch.float64),)).num_factors


@pytest.mark.parametrize("most, nodes_of_a_scope", [(16, 2), (9, 5), (3, 8)])
def test_products_of_too_many_terms_stay_whole(monkeypatch, most, nodes_of_a_scope):
    """Of four terms and four: more than nine pairs are not made differences, and sums of more than
    three not expanded."""
    contrast = torch.tensor([1.0, -1.0, 2.0, -2.0]).double()

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(4).double(), 1.0))
        y = pyro.sample("y", dist.Normal(torch.zeros(4).double(), 1.0))
        pyro.factor("f", (contrast @ x) * (contrast @ y))

    monkeypatch.setattr(expand, "MAX_TERMS", most)
    graph = pg.trace_graph(model)
    assert {len(scope) for scope in graph.scopes("f")} == {nodes_of_a_scope}
    x, y = torch.randn(2, 4).double()
    expected = (contrast @ x) * (contrast @ y) + dist.Normal(0.0, 1.0).log_prob(x).sum()
    expected = expected + dist.Normal(0.0, 1.0).log_prob(y).sum()
    torch.testing.assert_close(graph.sum_of_factors({"x": x, "y": y}), expected)
