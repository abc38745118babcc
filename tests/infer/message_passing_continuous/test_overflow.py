"""Far out numbers of a statement may overflow, where it has long been nothing: that is no error."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import NonFiniteDensity, ZeroMass

COUNT = 3.0
WIDE = {
    dist.Gamma: (2.0, 1.0),
    dist.HalfCauchy: (1.0,),
    dist.LogNormal: (0.0, 1.0),
    dist.Weibull: (2.0, 1.5),
}


def of_rate(prior, slope=0.5):
    """Poisson gives inf - inf where its rate is no number any more: NaN."""
    x = pyro.sample("x", prior)
    pyro.sample("y", dist.Poisson(torch.exp(slope * x)), obs=torch.tensor(COUNT))


def of_log_rate(prior, slope=0.5):
    """The same density, in logarithms."""
    x = pyro.sample("x", prior)
    pyro.factor("y", COUNT * slope * x - torch.exp(slope * x) - math.lgamma(COUNT + 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", WIDE, ids=lambda f: f.__name__)
def test_a_rate_that_overflows_is_a_count_without_probability(family, dtype):
    torch.set_default_dtype(dtype)
    prior = family(*WIDE[family])
    found, expected = (
        pg.fit(program, (prior,), infer=pg.EP, progress=False) for program in (of_rate, of_log_rate)
    )
    assert found.converged
    rtol = 1e-9 if dtype == torch.float64 else 1e-4
    for a, b in (
        (found.log_evidence, expected.log_evidence),
        (found.marginal("x").mean, expected.marginal("x").mean),
    ):
        assert_close(a, b, rtol=rtol, atol=0.0)


def test_it_is_so_of_two_numbers_and_for_every_element():
    counts = torch.tensor([0.0, 2.0, 5.0])

    def program(in_logs):
        level = pyro.sample("level", dist.Normal(0.0, 10.0))
        tau = pyro.sample("tau", dist.HalfCauchy(1.0))
        with pyro.plate("n", 3):
            x = level + tau * torch.tensor([-1.0, 0.5, 1.0])
            if in_logs:
                pyro.factor("y", counts * x - x.exp() - torch.lgamma(counts + 1))
            else:
                pyro.sample("y", dist.Poisson(x.exp()), obs=counts)

    found, expected = (
        pg.fit(program, (in_logs,), infer=pg.EP, progress=False) for in_logs in (False, True)
    )
    assert found.converged
    assert_close(found.log_evidence, expected.log_evidence, rtol=1e-6, atol=0.0)
    assert_close(found.marginal("tau").mean, expected.marginal("tau").mean, rtol=1e-6, atol=0.0)


def test_there_it_has_no_derivative():
    def value(rate, slope):
        prior = dist.Gamma(2.0, rate)
        posterior = pg.fit(of_rate, (prior, slope), infer=pg.EP, tol=1e-10, progress=False)
        return torch.stack([posterior.log_evidence, posterior.marginal("x").mean])

    point = [torch.tensor(1.0, requires_grad=True), torch.tensor(0.5, requires_grad=True)]
    assert gradcheck(value, point, eps=1e-5, atol=1e-5)


NEGATIVE_SCALES = {
    "normal": lambda x: dist.Normal(0.0, x).log_prob(torch.tensor(1.3)),
    "normal of two": lambda x: (
        dist.Normal(torch.tensor([0.0, 1.0]), x).log_prob(torch.ones(2)).sum()
    ),
    "log-normal": lambda x: dist.LogNormal(0.0, x).log_prob(torch.tensor(2.0)),
    "Laplace": lambda x: dist.Laplace(0.0, x).log_prob(torch.tensor(0.7)),
    "tenth power": lambda x: x.log() - 0.01 / x**10,
}


@pytest.mark.parametrize("infer", [pg.EP, pg.PowerEP, pg.VMP])
@pytest.mark.parametrize("mean", [1.0, 2.0])
@pytest.mark.parametrize("log_density", NEGATIVE_SCALES.values(), ids=NEGATIVE_SCALES)
def test_a_scale_that_can_be_negative_is_an_error(log_density, mean, infer):
    """Towards 0 the density falls to nothing, as fast as that of an overflow, but at 0."""

    def program():
        x = pyro.sample("x", dist.Normal(mean, 1.0))
        with pyro.validation_enabled(False):
            pyro.factor("f", log_density(x))

    with pytest.raises(NonFiniteDensity, match='factor "f"'):
        pg.fit(program, infer=infer, progress=False)


def test_infinities_of_either_sign_are_an_error():
    def program():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        ends = torch.where(x > 2, torch.inf, torch.where(x < -2, -torch.inf, -x.square()))
        with pyro.validation_enabled(False):
            pyro.factor("f", ends)

    with pytest.raises(NonFiniteDensity, match='factor "f"'):
        pg.fit(program, infer=pg.EP, progress=False)


@pytest.mark.parametrize(
    "log_density",
    [torch.log, lambda x: torch.log(x) - 1 / x.abs(), lambda x: x.sqrt()],
    ids=["log", "log beside a pole", "square root"],
)
def test_where_it_ends_amid_the_mass_it_is_an_error(log_density):
    def program():
        x = pyro.sample("x", dist.Normal(1.0, 1.0))
        pyro.factor("f", log_density(x))

    with pytest.raises(NonFiniteDensity, match='factor "f"'):
        pg.fit(program, infer=pg.EP, progress=False)


@pytest.mark.filterwarnings("ignore:Encountered .inf")  # of Pyro
@pytest.mark.parametrize(("share", "error"), [(0.0, NonFiniteDensity), (1.0, ZeroMass)])
def test_shares_at_an_end_of_a_beta_are_named_as_a_cause(share, error):
    """Its density is 0 or infinite there, wherever the concentration is."""

    def program():
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 2):
            pyro.sample("share", dist.Beta(level.exp(), 2.0), obs=torch.tensor([0.5, share]))

    with pytest.raises(error, match=r'factor "share".*edge of their support'):
        pg.fit(program, infer=pg.EP, progress=False)
