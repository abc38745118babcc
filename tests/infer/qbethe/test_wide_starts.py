"""Posteriors much narrower than the prior, from which QBethe starts, against closed forms."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import ConvergenceWarning, NonFiniteDensity, OptionError

Y = torch.tensor([0.1, 0.5, -0.3, 1.2, 0.7], dtype=torch.float64)


def levels(scale):
    mu = pyro.sample("mu", dist.Normal(torch.zeros((), dtype=torch.float64), scale))
    with pyro.plate("groups", len(Y)):
        x = pyro.sample("x", dist.Normal(mu, 1.0))
        pyro.sample("y", dist.Normal(x, 0.1), obs=Y)


def log_z(scale: float) -> float:
    covariance = scale**2 * np.ones((5, 5)) + 1.01 * np.eye(5)
    return float(stats.multivariate_normal(np.zeros(5), covariance).logpdf(Y.numpy()))


def fit(model, *args, **options):
    pyro.set_rng_seed(0)
    return pg.fit(model, args, infer=pg.QBethe, progress=False, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"covariance": "full", "num_components": 1, "num_steps": 200},
        {"num_components": 2, "num_steps": 400, "lr": 0.1},
    ],
)
@pytest.mark.parametrize(("scale", "gap"), [(10.0, 1e-3), (100.0, 1e-2)])
def test_components_shrink_to_posteriors_far_narrower_than_priors(scale, gap, options):
    q = fit(levels, scale, **options)
    assert log_z(scale) - gap < float(q.log_evidence) < log_z(scale) + 1e-6
    # given mu, x_i is known to .0995; of mu the groups say 1 / sqrt(5)
    assert_close(q.marginal("x").stddev, torch.full_like(Y, 0.0995), rtol=0.03, atol=0)


def test_a_regression_with_many_rows_has_its_closed_form():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(500, 3))
    y = rows @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=500)
    covariance = np.linalg.inv(np.eye(3) + 100 * rows.T @ rows)

    def model(rows, y):
        w = pyro.sample("w", dist.Normal(rows.new_zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(rows @ w, 0.1), obs=y)

    q = fit(
        model,
        torch.tensor(rows),
        torch.tensor(y),
        num_components=1,
        covariance="full",
        num_steps=150,
    )
    evidence = stats.multivariate_normal(np.zeros(500), 0.01 * np.eye(500) + rows @ rows.T)
    assert_close(float(q.log_evidence), float(evidence.logpdf(y)), rtol=0, atol=1e-3)
    found = q.marginal("w")
    assert_close(found.mean.numpy(), covariance @ rows.T @ y * 100, rtol=0, atol=1e-4)  # .02 sd
    assert_close(found.stddev.numpy(), np.sqrt(np.diag(covariance)), rtol=2e-2, atol=0)


def test_steps_that_are_short_do_not_pass_for_convergence():
    """The last steps are .02 of the first, and change the objective as much less."""
    options = {"num_components": 1, "covariance": "full"}
    options["temperature"] = lambda step: 1.0  # as a number it would start at the optimum
    with pytest.warns(ConvergenceWarning):
        q = fit(levels, 1000.0, num_steps=120, tol=1.0, **options)
    assert not q.converged and float(q.log_evidence) < log_z(1000.0) - 100
    assert float(q.history["change"][-1]) > 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        q = fit(levels, 1.0, num_steps=400, lr=0.1, tol=1e-4, **options)
    assert q.converged and abs(float(q.log_evidence) - log_z(1.0)) < 1e-2


@pytest.mark.parametrize("value", [None, "0.5", -1.0, math.nan, math.inf, True, np.True_, 10**400])
def test_temperatures_are_numbers_from_zero_on(value):
    with pytest.raises(OptionError, match="temperature="):
        fit(levels, 1.0, temperature=value, num_steps=2)
    with pytest.raises(OptionError, match="of step 1"):
        fit(levels, 1.0, temperature=lambda step: value if step else 1.0, num_steps=2)


def lifetimes(scale):  # Weibull, all of 1, without torch.where
    z, rate = torch.linspace(-5.0, 5.0, 9, dtype=torch.float32), 4.0
    b = pyro.sample("b", dist.Normal(z.new_zeros(()), scale))
    with pyro.plate("rows", len(z)):
        pyro.factor("lifetime", math.log(rate) - rate * z * b - (-rate * z * b).exp())


def test_a_start_that_overflows_is_at_the_mode():
    wide = fit(lifetimes, 6.0, num_components=1, num_steps=200)
    assert wide.evidence_kind == "lower bound" and math.isfinite(float(wide.log_evidence))
    q = fit(lifetimes, 0.2, num_components=1, init_scale=0.05, num_steps=200)

    def joint(b):
        away = -4.0 * np.linspace(-5.0, 5.0, 9) * b
        return stats.norm.pdf(b, 0.0, 0.2) * np.exp(np.sum(math.log(4.0) + away - np.exp(away)))

    assert_close(float(q.log_evidence), math.log(quad(joint, -0.5, 0.5)[0]), rtol=0, atol=0.01)


def precision_of_normals(y, shape):
    mu = pyro.sample("mu", dist.Normal(0.0, 100.0))
    tau = pyro.sample("tau", dist.Gamma(shape, shape))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(mu, tau**-0.5), obs=y)


def evidence_of_precision(y, shape):
    """Over tau in closed form, over mu by quadrature."""
    n = len(y)

    def log_joint(mu):
        rate = shape + 0.5 * ((y - mu) ** 2).sum()
        mass = shape * np.log(shape) - math.lgamma(shape) + math.lgamma(shape + n / 2)
        fit = mass - (shape + n / 2) * np.log(rate) - n / 2 * np.log(2 * np.pi)
        return fit + stats.norm.logpdf(mu, 0, 100)

    top = log_joint(y.mean())
    total = quad(lambda mu: np.exp(log_joint(mu) - top), y.mean() - 6, y.mean() + 6)[0]
    return top + np.log(total)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [0.1, 0.01, 0.001])
def test_vague_priors_of_scales_do_not_start_components_where_numbers_end(shape, dtype):
    """Half of the draws of Gamma(.001, .001) are below e^-690."""
    y = np.random.default_rng(3).normal(3, 2, 20)
    truth = evidence_of_precision(y, shape)
    q = fit(
        precision_of_normals, torch.tensor(y, dtype=dtype), shape, num_components=2, num_steps=400
    )
    assert truth - 0.2 < float(q.log_evidence) < truth + 0.01
    assert abs(float(q.marginal("mu").mean) - y.mean()) < 0.05


def test_beside_discrete_nodes_a_vague_prior_starts_as_a_less_vague_one():
    y = torch.tensor([2.9, 3.1, 3.3, -3.2, -2.8, -3.0])

    def two_levels():
        tau = pyro.sample("tau", dist.Gamma(0.01, 0.01))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Bernoulli(torch.full((len(y),), 0.5)))
            pyro.sample("y", dist.Normal(6 * z - 3, tau**-0.5), obs=y)

    def density(log_tau):  # of the number and of the labels, summed out
        tau = math.exp(log_tau)
        both = stats.norm.pdf(y.numpy()[:, None], [-3.0, 3.0], tau**-0.5).mean(1)
        return stats.gamma.pdf(tau, 0.01, scale=100) * tau * both.prod()

    truth = math.log(quad(density, -10, 10, points=[2.0, 4.0], limit=200)[0])
    q = fit(two_levels, num_components=2, num_steps=400)
    assert truth - 0.2 < float(q.log_evidence) < truth + 0.01


def no_counts():
    rate = pyro.sample("rate", dist.Gamma(0.05, 0.05))
    pyro.sample("y", dist.Poisson(rate), obs=torch.tensor(0.0))


def test_where_single_precision_ends_before_the_tail_of_a_prior_the_error_says_what_helps():
    with pytest.raises(NonFiniteDensity, match=r"rate.*Gamma of small shape.*dtype=torch.float64"):
        fit(no_counts, num_quadrature=20, dtype=torch.float32, closed_forms=False)
    q = fit(no_counts, num_quadrature=20, dtype=torch.float64, num_steps=400)
    truth = -0.05 * math.log(21)  # (.05 / 1.05)^.05
    assert truth - 0.1 < float(q.log_evidence) < truth


@pytest.mark.parametrize(("centre", "sd"), [(80.0, 12.0), (80.0, 20.0), (-150.0, 20.0)])
def test_beside_discrete_nodes_a_wide_prior_far_from_one_starts_where_it_is(centre, sd):
    def scaled():
        t = pyro.sample("t", dist.LogNormal(torch.tensor(centre).double(), sd))
        z = pyro.sample("z", dist.Bernoulli(torch.tensor(0.5).double()))
        pyro.sample("y", dist.Normal(t.log() + z, 1.0), obs=torch.tensor(centre + 1).double())

    each = stats.norm.pdf(centre + 1, [centre, centre + 1], math.hypot(sd, 1.0))
    q = fit(scaled, num_components=2, num_steps=300)
    assert abs(float(q.log_evidence) - math.log(each.mean())) < 0.02
