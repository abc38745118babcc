"""Expected potentials in pieces, against adaptive quadrature and the formula of the literature."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import OptionError
from pyrograph.infer.qbethe.numbers import ExpectedOfNumbers, OnLine
from pyrograph.infer.qbethe.piecewise import ExpectedLines, ExpectedPieces, PiecewisePotential
from pyrograph.infer.qbethe.potentials import IntegratedPotential
from pyrograph.infer.qbethe.rules import coarse, fine

CUT, SCALE = 0.2, 0.03


def pair(function: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float64) -> Callable:
    """Two normal nodes, and a potential of a combination of them."""

    def model():
        x = pyro.sample("x", dist.Normal(torch.tensor(0.3, dtype=dtype), 1.0))
        y = pyro.sample("y", dist.Normal(torch.tensor(-0.4, dtype=dtype), 1.0))
        pyro.factor("f", function(2 * x - y))

    return model


def potential_of(model: Callable, **options) -> IntegratedPotential:
    engine = pg.QBethe(model, progress=False, **options)
    engine.setup()
    return next(p for p in engine.network.potentials if isinstance(p, IntegratedPotential))


FUNCTIONS = {
    "truncated": (lambda u: -u.abs().clamp(max=CUT) / SCALE, [-CUT, 0, CUT]),
    "quadratic to a bound": (lambda u: -torch.clamp((u - 1) ** 2, max=4.0), [-1, 3]),
    "hinge": (lambda u: -torch.relu(1 - u), [1]),
    "bend": (lambda u: torch.minimum(u.square(), u + 2), [-1, 2]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("mean, sd", [(0.1, 0.3), (0.15, 2.0), (-5.0, 1.0), (0.2, 1e-3), (40, 3)])
def test_expectations_are_those_of_adaptive_quadrature(name: str, mean: float, sd: float):
    function, kinks = FUNCTIONS[name]
    potential = potential_of(pair(function))
    assert isinstance(potential, PiecewisePotential)
    # the combination may be scaled: u is the potential's own number
    lever = potential.lever[:, 0]
    unit = float(lever[0]) / 2
    x = [torch.full((1, 1, 1), v, dtype=torch.float64) for v in (mean * unit, sd * abs(unit))]
    integrals = potential._integral.integral, ExpectedPieces(potential.pieces)
    values = [integral(*x)[0] for integral in integrals]

    def integrand(u: float) -> float:
        point = torch.tensor(u, dtype=torch.float64)
        return float(function(point)) * stats.norm.pdf(u, mean, sd)

    ends = [mean - 12 * sd, mean + 12 * sd]
    cuts = sorted({*ends, mean, *(k for k in kinks if ends[0] < k < ends[1])})
    expected = sum(
        integrate.quad(integrand, a, b, epsabs=1e-13)[0] for a, b in itertools.pairwise(cuts)
    )
    for value in values:  # the second is general, the first may be that of linear pieces
        assert float(value) == pytest.approx(expected, rel=1e-9, abs=1e-11)


def test_truncated_absolute_values_have_the_expectation_of_the_literature():
    potential = potential_of(pair(FUNCTIONS["truncated"][0]))
    unit = float(potential.lever[0, 0]) / 2
    m, s, bound = 0.07, 0.13, CUT
    a, o, c = (-bound - m) / s, -m / s, (bound - m) / s
    P, p = stats.norm.cdf, stats.norm.pdf
    expected = m * (P(c) - 2 * P(o) + P(a)) - s * (p(c) - 2 * p(o) + p(a))
    expected += bound * (1 - P(c) + P(a))
    x = [torch.full((1, 1, 1), v, dtype=torch.float64) for v in (m * unit, s * abs(unit))]
    assert isinstance(potential._integral.integral, ExpectedLines)
    value = potential._integral.integral(*x)[0]
    assert float(value) == pytest.approx(-expected / SCALE, rel=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_their_derivatives_are_right(name: str):
    potential = potential_of(pair(FUNCTIONS[name][0]))
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, 3, 1, generator=generator, dtype=torch.float64).requires_grad_()
    sd = (0.1 + torch.rand(2, 3, 1, generator=generator, dtype=torch.float64)).requires_grad_()
    one, two = (torch.tensor([[a]] * k, dtype=torch.float64) for a, k in ((1.0, 1), (0.7, 2)))
    rows = torch.tensor([0, 0])  # both numbers read are the same one
    for integral in (potential._integral.integral, ExpectedPieces(potential.pieces)):
        whole, twice = (None, 1, OnLine(one, integral)), (rows, 2, OnLine(two, integral))
        for parts in ([whole], [twice], [whole, twice, whole, twice]):
            assert gradcheck(
                lambda m, s, parts=parts: ExpectedOfNumbers.apply(m, s, parts), (mean, sd)
            )
            each = sum(ExpectedOfNumbers.apply(mean, sd, [part]) for part in parts)
            assert_close(ExpectedOfNumbers.apply(mean, sd, parts), each)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_free_energy_is_that_of_fine_rules(covariance: str, dtype: torch.dtype):
    def chain():
        with pyro.plate("nodes", 6):
            x = pyro.sample("x", dist.Normal(torch.arange(6, dtype=dtype) % 3, 0.5))
        with pyro.plate("edges", 5):
            pyro.factor("f", FUNCTIONS["truncated"][0](x[1:] - x[:-1]))

    options = {"num_components": 2, "covariance": covariance, "progress": False, "dtype": dtype}
    values = []
    for closed in (True, False):
        pyro.set_rng_seed(0)
        engine = pg.QBethe(chain, closed_forms=closed, **options)
        engine.setup()
        like = torch.zeros((), dtype=dtype)
        rules = fine(like), coarse(12, like)
        values.append(engine.objective(engine.parameters, rules).detach())
    assert values[0].dtype is dtype
    torch.testing.assert_close(values[0], values[1], rtol=1e-4, atol=2e-3)


def test_closed_forms_leave_nothing_to_certify():
    def laplace():
        x = pyro.sample("x", dist.Laplace(torch.tensor(1.0, dtype=torch.float64), 2.0))
        pyro.sample("y", dist.Laplace(x, 0.5), obs=torch.tensor(0.0))

    pyro.set_rng_seed(0)
    engine = pg.QBethe(
        laplace,
        num_components=1,
        num_quadrature=3,
        closed_forms=True,
        num_steps=300,
        lr=0.1,
        progress=False,
    )
    posterior = engine.run()
    grid = np.linspace(-30, 30, 200_001)
    log_joint = stats.laplace.logpdf(grid, 1, 2) + stats.laplace.logpdf(0, grid, 0.5)
    log_z = np.log(integrate.trapezoid(np.exp(log_joint), grid))
    assert float(posterior.log_evidence) <= log_z
    assert float(posterior.log_evidence) > log_z - 0.1  # one Gaussian for a two-sided exponential
    last = posterior.history["objective"][-1]
    assert float(posterior.log_evidence) == pytest.approx(float(last), abs=1e-3)


def test_what_is_in_closed_form_is_the_users_to_choose():
    one = pair(lambda u: -u.abs())
    assert isinstance(potential_of(one), PiecewisePotential)
    assert not isinstance(potential_of(one, closed_forms=False), PiecewisePotential)

    def single():
        pyro.sample("x", dist.Laplace(torch.tensor(0.0, dtype=torch.float64), 1.0))

    assert not isinstance(potential_of(single), PiecewisePotential)
    assert isinstance(potential_of(single, closed_forms=True), PiecewisePotential)
    with pytest.raises(OptionError, match="closed_forms"):
        pg.QBethe(single, closed_forms="all")
