"""Priors in units far from 0's: the same posterior, in those units."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

import pyrograph as pg
from tests.infer.message_passing_continuous.runs import fit

Y = torch.tensor([1.77, 0.85, -0.09, 1.28, 0.46, 0.3], dtype=torch.float64)


def unknown_scale(unit):
    level = pyro.sample("level", dist.Normal(Y.new_zeros(()), 2 * unit))
    scale = pyro.sample("scale", dist.HalfNormal(Y.new_tensor(unit)))
    with pyro.plate("rows", len(Y)):
        pyro.sample("y", dist.Normal(level, scale), obs=unit * Y)


def unknown_precision(unit):
    level = pyro.sample("level", dist.Normal(Y.new_zeros(()), 2 * unit))
    precision = pyro.sample("precision", dist.Gamma(Y.new_tensor(2.0), unit**2))
    with pyro.plate("rows", len(Y)):
        pyro.sample("y", dist.Normal(level, precision**-0.5), obs=unit * Y)


def unknown_rate(unit):
    rate = pyro.sample("rate", dist.Gamma(Y.new_tensor(2.0), unit))
    with pyro.plate("rows", len(Y)):
        pyro.sample("y", dist.Exponential(rate), obs=unit * (Y.abs() + 0.1))


def truth(log_prior_of_scale):
    """Log evidence of levels and scales in unit 1, and mean and deviation of the level, on a dense
    grid of the level and the scale's logarithm."""
    level, log_scale = np.linspace(-6, 6, 1201)[:, None, None], np.linspace(-5, 4, 901)[:, None]
    scale = np.exp(log_scale)
    log_p = stats.norm.logpdf(Y.numpy(), level, scale).sum(-1)
    log_p = log_p + stats.norm.logpdf(level, 0, 2)[..., 0] + log_prior_of_scale(scale)[:, 0]
    log_p = log_p + log_scale[:, 0] + math.log(0.01 * 0.01)
    log_z = logsumexp(log_p)
    weight, at = np.exp(log_p - log_z).sum(1), level[:, 0, 0]
    mean = weight @ at
    return log_z, mean, math.sqrt(weight @ (at - mean) ** 2)


def of_precision(scale):
    """Log density of a scale whose power of -2 is Gamma(2, 1)."""
    return stats.gamma.logpdf(scale**-2, 2) + np.log(2) - 3 * np.log(scale)


@pytest.mark.parametrize("infer", [pg.EP, pg.PowerEP, pg.VMP])
@pytest.mark.parametrize("unit", [1e6, 1e-6])
@pytest.mark.parametrize(
    ("model", "log_prior"),
    [(unknown_scale, stats.halfnorm.logpdf), (unknown_precision, of_precision)],
)
def test_units_change_nothing_but_units(model, log_prior, unit, infer):
    log_z, mean, deviation = truth(log_prior)
    posterior = fit(model, (unit,), infer)
    found = float(posterior.log_evidence) + len(Y) * math.log(unit)
    assert log_z - 0.5 < found < log_z + (0.001 if infer is pg.VMP else 0.15)
    level = posterior.marginal("level")
    assert float(level.mean) / unit == pytest.approx(mean, abs=0.1 * deviation)
    plain = fit(model, (1.0,), infer)
    assert found == pytest.approx(float(plain.log_evidence), abs=1e-6)
    assert float(level.variance) / unit**2 == pytest.approx(
        float(plain.marginal("level").variance), rel=1e-5
    )


@pytest.mark.parametrize("unit", [1e6, 1e-6])
@pytest.mark.parametrize("infer", [pg.EP, pg.VMP])
def test_a_rate_alone(unit, infer):
    y = Y.abs() + 0.1
    shape, rate = 2 + len(y), 1 + float(y.sum())
    log_z = math.lgamma(shape) - math.lgamma(2) - shape * math.log(rate) - len(y) * math.log(unit)
    posterior = fit(unknown_rate, (unit,), infer)
    assert float(posterior.log_evidence) == pytest.approx(log_z, abs=0.02)
    mean = float(posterior.marginal("rate").mean)
    assert mean * unit == pytest.approx(shape / rate, rel=0.01)


def test_a_location_far_from_0():
    def model():
        x = pyro.sample("x", dist.StudentT(Y.new_tensor(3.0), 1e5, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=Y.new_tensor(1e5 + 1))

    grid = np.linspace(-30, 30, 60001)
    log_p = stats.t.logpdf(grid, 3) + stats.norm.logpdf(1, grid, 1) + math.log(1e-3)
    mean = np.exp(log_p - logsumexp(log_p)) @ grid
    posterior = fit(model)
    assert float(posterior.log_evidence) == pytest.approx(logsumexp(log_p), abs=1e-4)
    assert float(posterior.marginal("x").mean) - 1e5 == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("infer", [pg.EP, pg.VMP])
@pytest.mark.parametrize(("shape", "rate"), [(0.01, 1e-8), (0.01, 1000.0), (1e-3, 1e-9)])
def test_vague_precisions_in_other_units_than_those_of_data(shape, rate, infer):
    """The mode of their logarithm is far off, and as good as flat on one side."""
    y = 5 * Y + 1

    def model():
        level = pyro.sample("level", dist.Normal(Y.new_zeros(()), 10.0))
        precision = pyro.sample("precision", dist.Gamma(Y.new_tensor(shape), rate))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.StudentT(Y.new_tensor(4.0), level, precision**-0.5), obs=y)

    level, t = np.linspace(-60, 60, 1201)[:, None, None], np.linspace(-20, 6, 1041)[:, None]
    log_p = stats.t.logpdf(y.numpy(), 4, level, np.exp(-t / 2)).sum(-1)
    log_p = log_p + stats.norm.logpdf(level, 0, 10)[..., 0]
    # scipy's own is minus infinity where powers of numbers next to 0 are
    log_p = log_p + (shape * (t + math.log(rate)) - rate * np.exp(t) - math.lgamma(shape))[:, 0]
    log_z = logsumexp(log_p) + math.log(0.1 * 0.025)
    posterior = fit(model, (), infer)
    low, high = (-0.5, 0.0) if infer is pg.VMP else (-0.2, 0.2)
    assert low < float(posterior.log_evidence) - log_z < high
    weight, at = np.exp(log_p - logsumexp(log_p)).sum(1), level[:, 0, 0]
    mean = weight @ at
    deviation = math.sqrt(weight @ (at - mean) ** 2)
    assert float(posterior.marginal("level").mean) == pytest.approx(mean, abs=0.1 * deviation)


GROUP = torch.tensor([0, 0, 0, 1, 1, 1])


def groups(level, unit):
    centre = pyro.sample("centre", dist.Normal(Y.new_tensor(level), 100 * unit))
    spread = pyro.sample("spread", dist.HalfNormal(Y.new_tensor(unit)))
    scale = pyro.sample("scale", dist.HalfNormal(Y.new_tensor(unit)))
    with pyro.plate("groups", 2):
        own = pyro.sample("own", dist.Normal(centre, spread))
    with pyro.plate("rows", len(Y)):
        pyro.sample("y", dist.Normal(own[GROUP], scale), obs=level + unit * Y)


def evidence_of_groups():
    """Log evidence at level 0 and unit 1, numbers and their levels summed out in closed form, on a
    dense grid of both scales' logarithms."""
    log_scale = np.linspace(-7, 3, 201)
    same, one = np.equal.outer(GROUP.numpy(), GROUP.numpy()), np.eye(len(Y))
    spread, scale = np.exp(log_scale)[:, None, None, None], np.exp(log_scale)[:, None, None]
    covariance = 100**2 + spread**2 * same + scale**2 * one
    quadratic = (Y.numpy() * np.linalg.solve(covariance, Y.numpy()[:, None])[..., 0]).sum(-1)
    log_p = -0.5 * (quadratic + np.linalg.slogdet(2 * math.pi * covariance)[1])
    own = stats.halfnorm.logpdf(np.exp(log_scale)) + log_scale
    return logsumexp(log_p + own[:, None] + own) + 2 * math.log(log_scale[1] - log_scale[0])


@pytest.mark.parametrize("infer", [pg.EP, pg.VMP])
@pytest.mark.parametrize(("level", "unit"), [(1e5, 1e-2), (-1e6, 10.0)])
def test_levels_of_groups_far_from_0(level, unit, infer):
    """No factor says alone where a group is: its prior does, about a centre that is known."""
    options = {"infer": infer, "tol": 1e-5}
    posterior, plain = fit(groups, (level, unit), **options), fit(groups, (0.0, 1.0), **options)
    found = float(posterior.log_evidence) + len(Y) * math.log(unit)
    assert found == pytest.approx(float(plain.log_evidence), abs=1e-4)
    low, high = (-2.0, 0.01) if infer is pg.VMP else (-0.2, 0.2)
    assert low < found - evidence_of_groups() < high
    own, near = posterior.marginal("own"), plain.marginal("own")
    torch.testing.assert_close((own.mean - level) / unit, near.mean, rtol=0, atol=1e-4)
    torch.testing.assert_close(own.variance / unit**2, near.variance, rtol=1e-3, atol=0)


def test_a_number_that_says_minus_infinity_is_no_place_to_start_from():
    """A return of 0 has its most likely log variance there; priors of these hang on other nodes."""
    y = torch.tensor([0.0, 1.0, -0.6], dtype=torch.float64)

    def model():
        level = pyro.sample("level", dist.Normal(Y.new_zeros(()), 1.0))
        spread = pyro.sample("spread", dist.HalfNormal(Y.new_tensor(0.5)))
        with pyro.plate("days", len(y)):
            h = pyro.sample("h", dist.Normal(level, spread))
            pyro.sample("y", dist.Normal(0.0, (h / 2).exp()), obs=y)

    engine = pg.VMP(model, progress=False).setup()
    start = engine.posterior().marginal("h")
    assert float(start.mean.abs().max()) < 1e-9

    level, t = np.linspace(-5, 5, 101)[:, None, None], np.linspace(-9, 1.5, 106)[:, None]
    z = np.linspace(-7, 7, 281)  # of h, in units of the spread about the level
    h, log_p = level + np.exp(t) * z, stats.halfnorm.logpdf(np.exp(t), 0, 0.5)[:, 0] + t[:, 0]
    log_p = log_p + stats.norm.logpdf(level)[..., 0] + math.log(0.1 * 0.1)
    for number in y.numpy():
        own = stats.norm.logpdf(number, 0, np.exp(h / 2)) + stats.norm.logpdf(z)
        log_p = log_p + logsumexp(own, axis=-1) + math.log(z[1] - z[0])
    posterior = engine.run()
    assert posterior.converged
    assert -2.5 < float(posterior.log_evidence) - logsumexp(log_p) < 0  # a funnel: -1.85


def test_data_that_contradict_a_prior_are_met_from_0():
    """Groups are 2 apart under a scale of HalfCauchy(0.001): from where that prior is
    VMP has not settled after 200 sweeps. A first sweep from 0 climbs higher."""
    y = torch.tensor([5.98, 4.80, 4.19, 5.86, 2.64, 3.50, -0.57, 5.15], dtype=torch.float64)

    def model():
        centre = pyro.sample("centre", dist.Normal(Y.new_zeros(()), 10.0))
        spread = pyro.sample("spread", dist.HalfCauchy(Y.new_tensor(1e-3)))
        with pyro.plate("groups", len(y)):
            own = pyro.sample("own", dist.Normal(centre, spread))
            pyro.sample("y", dist.Normal(own, 1.0), obs=y)

    log_spread = np.linspace(-18, 6, 2401)
    spread = np.exp(log_spread)[:, None, None]
    covariance = 10.0**2 + (spread**2 + 1) * np.eye(len(y))
    quadratic = (y.numpy() * np.linalg.solve(covariance, y.numpy()[:, None])[..., 0]).sum(-1)
    log_p = -0.5 * (quadratic + np.linalg.slogdet(2 * math.pi * covariance)[1]) + log_spread
    log_p = log_p + stats.halfcauchy.logpdf(np.exp(log_spread), scale=1e-3)
    log_z = logsumexp(log_p) + math.log(log_spread[1] - log_spread[0])
    posterior = fit(model, (), pg.VMP, num_steps=150)
    assert posterior.converged
    assert -2.0 < float(posterior.log_evidence) - log_z < 0.0
