"""Gamma and beta functions of one unconstrained number, against scipy and quadrature."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch.testing import assert_close

from pyrograph.beliefs import LogDirichlet, LogGamma, LogitBeta

PARAMETERS = st.tuples(st.floats(-3, 6), st.floats(-3, 6)).map(lambda t: tuple(map(math.exp, t)))
FAMILIES = [LogGamma, LogitBeta]
either = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)


def of(family, a, b):
    return family(torch.tensor([[a, b]], dtype=torch.float64))


def density(family, a, b, z):
    """Of z, by scipy: change of variables from x."""
    if family is LogGamma:
        return stats.gamma(a, scale=1 / b).pdf(np.exp(z)) * np.exp(z)
    x = 1 / (1 + np.exp(-z))
    return stats.beta(a, b).pdf(x) * x * (1 - x)


@either
@pytest.mark.parametrize("a, b", [(0.8, 0.9), (2.0, 3.0), (40.0, 5.0)])
def test_the_function_is_the_density_times_its_mass(family, a, b):
    q, z = of(family, a, b), torch.linspace(-3, 3, 7, dtype=torch.float64)
    ours = (q.log_value(z.unsqueeze(1)) - q.log_mass).exp()
    assert_close(ours.numpy(), density(family, a, b, z.numpy()), rtol=1e-10, atol=1e-12)


@either
@pytest.mark.parametrize("a, b", [(0.8, 0.9), (2.0, 3.0), (40.0, 5.0)])
def test_moments_are_those_of_quadrature(family, a, b):
    """By the trapezoid rule, exact to rounding for a smooth function that vanishes at both ends."""
    q, z = of(family, a, b), np.linspace(-34, 34, 4001)
    weights = density(family, a, b, z)

    def average(f):
        return integrate.trapezoid(weights * f, z)

    expected = [average(f.numpy()) for f in family.statistics(torch.tensor(z)[:, None]).unbind(1)]
    assert_close(q.expected[0].numpy(), np.array(expected), rtol=1e-6, atol=1e-8)
    mean = average(z)
    assert_close(float(q.mean), mean, rtol=1e-6, atol=1e-8)
    assert_close(float(q.covariance), average((z - mean) ** 2), rtol=1e-6, atol=1e-8)


@either
def test_expectations_and_fisher_information_are_derivatives_of_the_log_mass(family):
    point = torch.tensor([1.7, 0.6], dtype=torch.float64)

    def log_mass(eta):
        return family(eta).log_mass

    q, gap = family(point), torch.tensor([0.3, -0.2], dtype=torch.float64)
    assert_close(torch.autograd.functional.jacobian(log_mass, point), q.expected)
    fisher = torch.autograd.functional.hessian(log_mass, point)
    assert_close(fisher @ q.per_fisher(gap), gap)


@given(st.sampled_from(FAMILIES), PARAMETERS)
@settings(max_examples=150, deadline=None)
def test_projection_finds_the_member_that_the_expectations_came_from(family, parameters):
    q = of(family, *parameters)
    found = family.project(q.expected)
    assert_close(found.natural, q.natural, rtol=1e-6, atol=0)


@either
def test_projection_differentiates(family):
    expected = of(family, 2.0, 3.0).expected.requires_grad_()
    torch.autograd.gradcheck(
        lambda t: tuple(family.project(t).parameters().values()), (expected,), atol=1e-6
    )


@either
def test_projection_of_what_no_member_has_is_not_proper(family):
    impossible = torch.tensor([[0.5, -1.0]], dtype=torch.float64)  # E log x > log E x, or log x > 0
    assert not bool(family.project(impossible).is_proper)


@either
def test_products_and_powers_act_on_the_exponents(family):
    p, q = of(family, 2.0, 3.0), of(family, 0.5, 1.5)
    z = torch.tensor([[0.3]], dtype=torch.float64)
    both = p + q - 0.5 * q
    assert_close(both.log_value(z), p.log_value(z) + 0.5 * q.log_value(z))
    assert not bool((q - p).is_proper)


# ---------------------------------------------------------------------- several numbers
SIZES = pytest.mark.parametrize("size", [2, 3, 5])


def dirichlet(size, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return LogDirichlet(0.3 + 4 * torch.rand(size, generator=draw, dtype=torch.float64))


@SIZES
def test_sticks_are_those_of_torch(size):
    q, stick = dirichlet(size), torch.distributions.StickBreakingTransform()
    z = torch.linspace(-2, 3, 4 * (size - 1), dtype=torch.float64).view(4, -1)
    x = stick(z)
    assert_close(q.statistics(z), x.log())
    assert_close(q.at(x), z)
    assert_close(q.at(3 * x), z)
    density = torch.distributions.Dirichlet(q.natural).log_prob(x)
    assert_close(q.log_value(z) - q.log_mass, density + stick.log_abs_det_jacobian(z, x))
    assert_close(stick(q.at_mean), q.natural / q.natural.sum())


@SIZES
def test_moments_of_sticks_are_those_of_draws(size):
    torch.manual_seed(size)
    q, stick = dirichlet(size), torch.distributions.StickBreakingTransform()
    z = stick.inv(torch.distributions.Dirichlet(q.natural).sample((200_000,)))
    assert_close(q.mean, z.mean(0), rtol=0, atol=0.02)  # measured: .006
    assert_close(
        q.covariance, z.mT.cov().view(size - 1, size - 1), rtol=0, atol=0.08
    )  # measured: .04
    assert_close(q.normal.covariance, q.covariance)
    assert_close(q.variance, q.covariance.diagonal())


@SIZES
def test_derivatives_and_projections_of_many_numbers(size):
    q, gap = dirichlet(size), torch.linspace(-1, 1, size, dtype=torch.float64)

    def log_mass(eta):
        return LogDirichlet(eta).log_mass

    assert_close(torch.autograd.functional.jacobian(log_mass, q.natural), q.expected)
    fisher = torch.autograd.functional.hessian(log_mass, q.natural)
    assert_close(fisher @ q.per_fisher(gap), gap)
    assert_close(LogDirichlet.project(q.expected).natural, q.natural)
