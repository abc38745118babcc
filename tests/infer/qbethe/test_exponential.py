"""QBethe on factors with exponentials of latents. Truth: expectations by hand, and their bounds
maximised by scipy."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import optimize, special, stats

import pyrograph as pg
from pyrograph.errors import NonFiniteDensity
from pyrograph.infer.qbethe.exponential import ExponentialPotential
from pyrograph.infer.qbethe.refusals import refuse_non_finite

COUNTS = np.array([3.0, 0.0, 5.0, 2.0, 7.0])
Y = np.array([0.3, -1.2, 2.2, 0.9, 1.6])


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def entropy(sd):
    return (np.log(sd) + 0.5 * np.log(2 * np.pi * np.e)).sum()


def maximum(bound, size):
    found = optimize.minimize(
        lambda p: -bound(p[:size], np.exp(p[size:])), np.full(2 * size, -0.3), tol=1e-12
    )
    return -found.fun


def test_no_points_are_exploited_under_a_wide_prior():
    """By four points of a component as wide as the prior exp(u) is small."""

    def model():
        u = pyro.sample("u", dist.Normal(0.0, 10.0))
        with pyro.plate("rows", len(COUNTS)):
            pyro.sample("y", dist.Poisson(u.exp()), obs=torch.tensor(COUNTS))

    def bound(mean, sd):
        rate = np.exp(mean[0] + 0.5 * sd[0] ** 2)
        counts = COUNTS * mean[0] - rate - special.gammaln(COUNTS + 1)
        prior = stats.norm(0, 10).logpdf(mean[0]) - 0.5 * (sd[0] / 10) ** 2
        return counts.sum() + prior + entropy(sd)

    q = pg.fit(model, infer=pg.QBethe, num_components=1, progress=False)
    assert q.evidence_kind == "lower bound" and "errors of the quadrature" not in q.status
    assert float(q.log_evidence) == pytest.approx(maximum(bound, 1), abs=1e-4)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_latent_scale(covariance):
    """With three points a quadrature is off by more; a correlation can only help."""

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        scale = pyro.sample("scale", dist.LogNormal(0.3, 0.8))
        with pyro.plate("rows", len(Y)):
            pyro.sample("y", dist.Normal(mu, scale), obs=torch.tensor(Y))

    def bound(mean, sd, rho=0.0):
        (mu, m), (s_mu, s) = mean, sd
        # under the tilt by exp(-2 u) mu moves by its covariance with u
        squares = (Y - mu + 2 * rho * s_mu * s) ** 2 + s_mu**2
        total = -0.5 * squares.sum() * np.exp(-2 * m + 2 * s**2)
        total -= len(Y) * (m + 0.5 * np.log(2 * np.pi))
        total += stats.norm(0, 2).logpdf(mu) - s_mu**2 / 8
        total += stats.norm(0.3, 0.8).logpdf(m) - 0.5 * (s / 0.8) ** 2
        return total + entropy(sd) + 0.5 * np.log1p(-(rho**2))

    if covariance == "diagonal":
        best = maximum(bound, 2)
    else:
        best = -optimize.minimize_scalar(
            lambda rho: -maximum(lambda m, s: bound(m, s, rho), 2), bounds=(-0.6, 0.6)
        ).fun
    q = pg.fit(
        model,
        infer=pg.QBethe,
        num_components=1,
        covariance=covariance,
        num_quadrature=3,
        progress=False,
    )
    assert q.evidence_kind == "lower bound" and "errors of the quadrature" not in q.status
    assert float(q.log_evidence) == pytest.approx(best, abs=2e-4)


def test_labels_choose_among_scales():
    """One component, a label of two states, with both scales latent."""
    y = 1.7

    def model():
        scales = pyro.sample("scales", dist.LogNormal(torch.tensor([0.0, 1.0]), 0.5).to_event(1))
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.7])))
        pyro.sample("y", dist.Normal(0.0, scales[z]), obs=torch.tensor(y))

    def bound(mean, sd):
        terms = -0.5 * y**2 * np.exp(-2 * mean + 2 * sd**2) - mean - 0.5 * np.log(2 * np.pi)
        priors = stats.norm([0, 1], 0.5).logpdf(mean) - 0.5 * (sd / 0.5) ** 2
        return special.logsumexp(terms + np.log([0.3, 0.7])) + priors.sum() + entropy(sd)

    q = pg.fit(model, infer=pg.QBethe, num_components=1, progress=False)
    assert q.evidence_kind == "lower bound"
    assert float(q.log_evidence) == pytest.approx(maximum(bound, 2), abs=1e-4)


def test_single_precision():
    def model():
        mu = pyro.sample("mu", dist.Normal(torch.tensor(0.0, dtype=torch.float32), 2.0))
        scale = pyro.sample("scale", dist.LogNormal(torch.tensor(0.3, dtype=torch.float32), 0.8))
        with pyro.plate("rows", len(Y)):
            pyro.sample("y", dist.Normal(mu, scale), obs=torch.tensor(Y, dtype=torch.float32))

    torch.set_default_dtype(torch.float32)
    options = {"num_components": 1, "num_steps": 500, "progress": False}
    single = pg.fit(model, infer=pg.QBethe, **options)
    torch.set_default_dtype(torch.float64)
    double = pg.fit(model, infer=pg.QBethe, dtype=torch.float64, **options)
    assert single.log_evidence.dtype is torch.float32
    assert float(single.log_evidence) == pytest.approx(float(double.log_evidence), abs=1e-3)


@pytest.mark.parametrize("num_components", [1, 2])
def test_single_precision_resolves_scales_far_below_the_data(num_components):
    """Squares of 30 under a weight of 1e5 cancel but for numbers of 1. The bound of two components
    is that of one at least."""
    unit, far = 0.002, 30.0
    data = torch.tensor(far + unit * Y, dtype=torch.float32)
    off = (data.double().numpy() - far) / unit

    def model():
        zero = torch.zeros((), dtype=torch.float32)
        mu = pyro.sample("mu", dist.Normal(zero + far, 0.01))
        scale = pyro.sample("scale", dist.LogNormal(zero - 6.0, 0.5))
        with pyro.plate("rows", len(Y)):
            pyro.sample("y", dist.Normal(mu, scale), obs=data)

    def bound(mean, sd):
        """Of (mu - 30) / unit and log(scale / unit)."""
        (mu, m), (s_mu, s) = mean, sd
        total = -0.5 * ((off - mu) ** 2 + s_mu**2).sum() * np.exp(-2 * m + 2 * s**2)
        total -= len(Y) * (m + np.log(unit) + 0.5 * np.log(2 * np.pi))
        total += stats.norm(0, 0.01 / unit).logpdf(mu) - 0.5 * (s_mu * unit / 0.01) ** 2
        total += stats.norm(-6 - np.log(unit), 0.5).logpdf(m) - 0.5 * (s / 0.5) ** 2
        return total + entropy(sd)

    torch.set_default_dtype(torch.float32)
    q = pg.fit(model, infer=pg.QBethe, num_components=num_components, progress=False)
    gain = float(q.log_evidence) - maximum(bound, 2)
    assert -0.01 < gain < (0.01 if num_components == 1 else np.log(2))


def test_without_closed_forms_all_is_by_points():
    def model():
        u = pyro.sample("u", dist.Normal(0.0, 10.0))
        pyro.sample("y", dist.Poisson(u.exp()), obs=torch.tensor(3.0))

    for closed_forms in (None, True, False):
        engine = pg.QBethe(model, closed_forms=closed_forms, progress=False)
        engine.setup()
        kinds = [type(potential) for potential in engine.network.potentials]
        assert (ExponentialPotential in kinds) == (closed_forms is not False)


def test_a_start_too_wide_for_expectations_is_made_narrower():
    """exp(u) under N(0, 1500^2) is exp(1125000)."""

    def model():
        u = pyro.sample("u", dist.Normal(0.0, 50.0))
        pyro.sample("y", dist.Poisson(u.exp()), obs=torch.tensor(3.0))

    options = {"num_components": 2, "progress": False, "num_steps": 5}
    assert pg.fit(model, infer=pg.QBethe, init_scale=30.0, **options).log_evidence.isfinite()
    with pytest.raises(NonFiniteDensity, match=r"init_scale=3 .*narrow the priors"):
        refuse_non_finite([-np.inf], 0, 30.0, torch.float64)


@pytest.mark.filterwarnings("ignore:Encountered NaN")  # of the program at its own draws
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize(
    ("counts", "x", "width"),
    [
        (COUNTS, np.linspace(-1, 1, 5), 1000.0),
        (COUNTS, 300 + 100 * np.linspace(-1, 1, 5), 10.0),
        (COUNTS[:1], np.array([0.7]), 10.0),
        (0 * COUNTS, np.linspace(-1, 1, 5), 30.0),
    ],
)
def test_rates_that_overflow_at_draws_of_the_prior(counts, x, width, covariance):
    """Components start about the mode, as narrow as it takes."""

    def model():
        a = pyro.sample("a", dist.Normal(0.0, width))
        b = pyro.sample("b", dist.Normal(0.0, width))
        with pyro.plate("rows", len(x)):
            rate = torch.exp(a + b * torch.tensor(x))
            pyro.sample("y", dist.Poisson(rate), obs=torch.tensor(counts))

    def bound(mean, sd):
        eta = mean[0] + mean[1] * x
        rate = np.exp(eta + 0.5 * (sd[0] ** 2 + (sd[1] * x) ** 2))
        total = (counts * eta - rate - special.gammaln(counts + 1)).sum() + entropy(sd)
        return total + (stats.norm(0, width).logpdf(mean) - 0.5 * (sd / width) ** 2).sum()

    options = {"num_components": 1, "num_steps": 500, "covariance": covariance}
    q = pg.fit(model, infer=pg.QBethe, progress=False, **options)
    assert q.evidence_kind == "lower bound"
    mean, sd = (
        np.array([float(getattr(q.marginal(name), what)) for name in "ab"])
        for what in ("mean", "stddev")
    )
    found = optimize.minimize(
        lambda p: -bound(p[:2], np.exp(p[2:])),
        np.concatenate([mean, np.log(sd)]),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 10_000, "maxfev": 10_000},
    )
    assert -found.fun < float(q.log_evidence) + 1e-3  # a correlation can only help
    if covariance == "diagonal":
        assert float(q.log_evidence) == pytest.approx(bound(mean, sd), abs=1e-6)
