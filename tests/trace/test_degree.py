"""Degrees of local functions, whose like steps are merged into one line. Truth: by hand."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F

import pyrograph as pg
from pyrograph.trace.forms.degree import piecewise_degree, polynomial_degree


def degree(factor, given=()) -> float:
    def model():
        x, y = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "xy")
        pyro.factor("f", factor(x, y))

    groups = pg.trace_graph(model).factors
    (group,) = [group for group in groups if group.arity == 2]
    return polynomial_degree(group.program, given)


@pytest.mark.parametrize(
    ("factor", "degrees"),
    [
        (lambda x, y: dist.Normal(x, y.exp()).log_prob(torch.tensor(1.0)), (math.inf, math.inf, 2)),
        (lambda x, y: -((x - 1) ** 2) / y.exp() ** 2 - y, (math.inf, math.inf, 2)),
        (lambda x, y: x**2 * y**2, (4, 2, 2)),
        (lambda x, y: x * y, (2, 1, 1)),
        (lambda x, y: (x.exp() * y.exp()).log(), (1, 1, 1)),
        (lambda x, y: (1 / (x**2 * y).exp()).log(), (3, 1, 2)),
        (lambda x, y: (x.exp() / (x * y**2).exp()).log(), (3, 2, 1)),
        (lambda x, y: (0 - (x * y).exp()).square().log(), (2, 1, 1)),
        (lambda x, y: (-(x * y).exp()).square().log(), (2, 1, 1)),
        (
            lambda x, y: torch.cholesky_solve((x * y).exp().view(1, 1), TWO.view(1, 1)).log().sum(),
            (2, 1, 1),
        ),
        (lambda x, y: (x.exp() - y.exp()).log(), (math.inf, math.inf, math.inf)),
        (lambda x, y: (1 - (x * y).exp()).log(), (math.inf, math.inf, math.inf)),
        # the sum of an exponential and a number has no polynomial for a logarithm
        (
            lambda x, y: torch.stack([(x + y).exp(), torch.tensor(1.0)]).sum().log(),
            (math.inf, math.inf, math.inf),
        ),
    ],
)
def test_degrees_are_those_of_the_rows_that_a_step_is_about(factor, degrees):
    assert degree(factor) == degrees[0]
    for k in range(2):
        assert degree(factor, given=[k]) == degrees[1 + k]


WEIGHTS = torch.tensor([0.5, 2.0], dtype=torch.float64)
TRIANGLE = torch.tensor([[1.0, 0.0], [0.5, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x.exp().sum(),
        lambda x: x.exp().mean(),
        lambda x: x.exp() @ WEIGHTS,
        lambda x: (TRIANGLE @ x.exp()).sum(),
        lambda x: x.exp().cumsum(0)[1],
        lambda x: torch.outer(x.exp(), x.exp()).sum(),
        lambda x: torch.linalg.solve_triangular(TRIANGLE, x.exp()[:, None], upper=False)[1, 0],
        lambda x: torch.zeros(1).index_add(0, torch.tensor([0, 0]), x.exp())[0],
    ],
)
def test_the_logarithm_of_a_sum_of_exponentials_is_no_polynomial(mixed):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.factor("f", mixed(x).log())

    groups = pg.trace_graph(model).factors
    assert [polynomial_degree(g.program) for g in groups if g.name == "f"] == [math.inf]


def test_a_parameter_that_is_zero_for_now_is_a_coefficient():
    def model(p):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", p * x**3 - x)

    def degree_of(p):
        groups = pg.trace_graph(model, (p,), differentiable=True).factors
        return max(polynomial_degree(group.program) for group in groups if group.name == "f")

    assert degree_of(torch.zeros((), requires_grad=True)) == 3
    assert degree_of(torch.zeros(())) == 1


@pytest.mark.parametrize(
    ("entries", "given", "expected"),
    [
        (lambda mu: mu, ["z"], 1),
        (lambda mu: mu**2, ["z"], 2),
        (lambda mu: mu, [], math.inf),
        (lambda mu: mu.exp(), ["z"], math.inf),
    ],
)
def test_entries_that_a_given_label_chooses_keep_their_degree(entries, given, expected):
    def model():
        with pyro.plate("components", 3):
            mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.Categorical(torch.ones(3)))
        pyro.factor("f", entries(mu)[z])

    (group,) = [g for g in pg.trace_graph(model).factors if g.name == "f"]
    leaves = [k for k, site in enumerate(group.slots) if site.name in given]
    assert polynomial_degree(group.program, leaves) == expected


@pytest.mark.parametrize(
    "factor",
    [
        # a quotient that is rounded, and numbers that are
        lambda x, y: torch.div(x, 2.0, rounding_mode="floor") * y,
        lambda x, y: x.long() * y,
        # a matrix of latents
        lambda x, y: torch.linalg.solve_triangular(
            TRIANGLE * (1 + x * y), WEIGHTS[:, None], upper=False
        )[1, 0],
        lambda x, y: torch.where(x > 0, x, y),
        lambda x, y: x**-1.0 * y,
        lambda x, y: x.exp() * y.exp(),
        lambda x, y: F.conv1d((x + y).exp().view(1, 1, 1), TWO.view(1, 1, 1), TWO).log(),
    ],
)
def test_what_is_no_polynomial_has_no_degree(factor):
    def model():
        x, y = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "xy")
        pyro.factor("f", factor(x, y).sum())

    (group,) = [g for g in pg.trace_graph(model, verify=False).factors if g.arity == 2]
    assert polynomial_degree(group.program) == math.inf


TWO = torch.tensor([2.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("factor", "degree"),
    [
        (lambda x: (x - 1).abs(), 1),
        (lambda x: (x - 1).clamp(min=0.5) ** 2, 2),
        # where it switches is no root of a polynomial
        (lambda x: x.exp().clamp(min=2.0).log(), math.inf),
        (lambda x: x.abs().exp(), math.inf),
    ],
)
def test_pieces_are_polynomials_of_the_numbers_that_switch(factor, degree):
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", factor(x))

    (group,) = [g for g in pg.trace_graph(model).factors if g.name == "f"]
    found, switches = piecewise_degree(group.program)
    assert found == degree
    assert len(switches) <= 1
