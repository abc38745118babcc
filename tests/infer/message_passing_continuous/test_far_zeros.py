"""Mean field where a factor is zero so far out that beliefs have hardly any mass there."""

import re

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit, gammaln, log_expit
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import OptionError

SIDE = torch.tensor([-2.0, -0.5, 0.3, 1.1, 4.0], dtype=torch.float64)
SHARE = torch.tensor([0.2, 0.45, 0.5, 0.7, 0.9], dtype=torch.float64)


def proportions(rest):
    """Beta regression of proportions whose prior reaches where 1 - sigmoid rounds to zero."""

    def model():
        slope = pyro.sample("slope", dist.Normal(torch.tensor(0.0, dtype=torch.float64), 2.0))
        precision = pyro.sample("precision", dist.Gamma(torch.tensor(2.0).double(), 0.1))
        mean = torch.sigmoid(SIDE * slope)
        with pyro.plate("n", len(SIDE)):
            other = 1 - mean if rest == "rounded" else torch.sigmoid(-SIDE * slope)
            pyro.sample("y", dist.Beta(mean * precision, other * precision), obs=SHARE)

    return model


def log_evidence():
    """Of the proportions, by a dense grid over the slope and the precision's logarithm."""
    slope, log_precision = np.linspace(-4, 5, 901), np.linspace(-6, 7, 1301)
    precision = np.exp(log_precision)
    log_p = stats.norm.logpdf(slope, 0, 2)[:, None] + stats.gamma.logpdf(precision, 2, scale=10)
    log_p = log_p + log_precision
    for x, y in zip(SIDE.numpy(), SHARE.numpy()):
        a, b = (expit(sign * x * slope)[:, None] * precision for sign in (1, -1))
        log_p = log_p + stats.beta.logpdf(y, a, b)
    cell = (slope[1] - slope[0]) * (log_precision[1] - log_precision[0])
    return np.log(np.exp(log_p - log_p.max()).sum() * cell) + log_p.max()


def test_a_zero_of_rounding_under_the_prior_is_none():
    found, expected = (
        pg.fit(proportions(rest), infer=pg.VMP, progress=False) for rest in ("rounded", "exact")
    )
    assert found.converged and expected.converged
    assert found.status == "converged"  # beliefs no longer reach there
    assert_close(found.log_evidence, expected.log_evidence, rtol=0, atol=1e-8)
    assert_close(found.marginal("slope").mean, expected.marginal("slope").mean, rtol=0, atol=1e-6)
    assert 0 < log_evidence() - float(found.log_evidence) < 0.1


def edge_at(place):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        total = x.sum() / 2**0.5
        pyro.factor("edge", torch.where(total < place, -(total**2) * 0.5, -torch.inf))

    return model


def test_a_zero_further_out_than_beliefs_have_mass_is_told_of():
    """A normal of variance 1/2 along the sum, cut at 6: what is cut off is 1e-17 of the mass."""
    posterior = pg.fit(edge_at(6.0), infer=pg.VMP, progress=False)
    text = 'factor "edge".* is zero further out than 4 standard deviations of the beliefs'
    assert posterior.converged
    assert re.search(text, posterior.status)
    assert posterior.evidence_kind == "estimate"
    covariance = posterior.marginal("x").covariance_matrix
    along, across = covariance.sum() / 2, (covariance[0, 0] - covariance[0, 1])
    assert_close(along, torch.tensor(0.5).double(), rtol=1e-6, atol=0)
    assert_close(across, torch.tensor(1.0).double(), rtol=1e-6, atol=0)
    assert abs(float(posterior.log_evidence) - 0.5 * np.log(0.5)) < 1e-6


def test_a_zero_where_beliefs_have_mass_is_refused():
    with pytest.raises(OptionError, match=r'factor "edge".* has zeros'):
        pg.fit(edge_at(2.0), infer=pg.VMP, progress=False)


def inflated_count():
    """Under the prior, not the posterior, 1 - sigmoid rounds to zero."""
    x = pyro.sample("x", dist.Normal(torch.tensor(2.0, dtype=torch.float64), 3.0))
    rate = x.exp()
    count = torch.tensor(2.0, dtype=torch.float64)
    pyro.sample("y", dist.ZeroInflatedPoisson(rate, gate=rate.sigmoid()), obs=count)


def highest_bound():
    """Of normal beliefs about the inflated count: the bound, a mean and an sd."""
    z, weight = np.polynomial.hermite_e.hermegauss(60)
    weight = weight / weight.sum()

    def loss(parameters):
        mean, log_sd = parameters
        x = mean + np.exp(log_sd) * z
        log_p = log_expit(-np.exp(x)) + 2 * x - np.exp(x) - gammaln(3)
        log_p = log_p + stats.norm.logpdf(x, 2, 3)
        return -(weight @ log_p) - log_sd - 0.5 * np.log(2 * np.pi * np.e)

    found = minimize(loss, np.zeros(2), tol=1e-12)
    return -found.fun, found.x[0], np.exp(found.x[1])


def test_zeros_of_rounding_near_the_prior_alone_are_left_for_the_mode():
    posterior = pg.fit(inflated_count, infer=pg.VMP, progress=False)
    bound, mean, sd = highest_bound()
    x = posterior.marginal("x")
    assert posterior.converged
    assert abs(float(posterior.log_evidence) - bound) < 1e-5
    assert abs(float(x.mean) - mean) < 1e-5
    assert abs(float(x.stddev) - sd) < 1e-5
