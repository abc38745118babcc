"""Posteriors far narrower than priors, with one mode and with several, against quadrature."""

import functools
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.special import logsumexp

import pyrograph as pg
from pyrograph.infer.qbethe.narrow_start import NarrowStart

Y = np.array([2.1, 4.9, 3.3, 1.2, 5.8, 2.7, 3.9, 0.4, 4.1, 2.2])


def fit(model, *args, **options):
    pyro.set_rng_seed(0)
    default = {"num_components": 2, "num_steps": 400}
    return pg.fit(model, args, infer=pg.QBethe, progress=False, **{**default, **options})


def location_and_scale(y, prior):
    wide = max(1.0, float(y.abs().max()))
    mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 10 * wide))
    scales = {
        "LogNormal": dist.LogNormal(y.new_zeros(()), 10.0),
        "HalfNormal": dist.HalfNormal(y.new_tensor(10 * wide)),
        "InverseGamma": dist.InverseGamma(y.new_tensor(0.1), float(y.mean()) / 10),
    }
    s = pyro.sample("s", scales[prior])
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(mu, s), obs=y)


def evidence(y, prior):
    """Over mu in closed form, over log s on a grid."""
    wide, n = max(1.0, y.max()), len(y)
    z = np.linspace(math.log(y.std()) - 6, math.log(y.std()) + 6, 4001)
    s = np.exp(z)
    of_scale = {
        "LogNormal": stats.norm.logpdf(z, 0, 10),
        "HalfNormal": stats.halfnorm.logpdf(s, scale=10 * wide) + z,
        "InverseGamma": stats.invgamma.logpdf(s, 0.1, scale=y.mean() / 10) + z,
    }[prior]
    of_mean = stats.norm.logpdf(y.mean(), 0, np.sqrt(s**2 / n + (10 * wide) ** 2))
    about = -(n - 1) / 2 * np.log(2 * np.pi * s**2) - n * y.var() / (2 * s**2) - 0.5 * np.log(n)
    return logsumexp(of_scale + of_mean + about) + math.log(z[1] - z[0])


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("prior", ["LogNormal", "HalfNormal", "InverseGamma"])
def test_units_of_the_data_do_not_matter(prior, unit):
    truth = evidence(unit * Y, prior)
    q = fit(location_and_scale, torch.tensor(unit * Y), prior)
    assert q.evidence_kind == "lower bound"
    assert truth - 0.15 < float(q.log_evidence) < truth + 1e-3
    assert abs(float(q.marginal("mu").mean) / unit - Y.mean()) < 0.1


def test_nor_in_single_precision():
    truth = evidence(1e-6 * Y, "HalfNormal")
    q = fit(location_and_scale, torch.tensor(1e-6 * Y, dtype=torch.float32), "HalfNormal")
    assert truth - 0.1 < float(q.log_evidence) < truth + 1e-2


def wells(width, lower):
    """Two, at 3 and -3, the second one lower."""
    x = pyro.sample("x", dist.Normal(torch.tensor(0.0).double(), 10.0))
    both = [-0.5 * ((x - c) / width) ** 2 - by for c, by in ((3.0, 0.0), (-3.0, lower))]
    pyro.factor("wells", torch.stack(both).logsumexp(0))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("width", "lower"), [(0.01, 0.0), (1e-4, 0.5)])
def test_two_components_find_two_narrow_modes(width, lower, seed):
    near = stats.norm.pdf(3.0, 0, math.hypot(10, width)) * math.sqrt(2 * math.pi) * width
    truth = math.log(near * (1 + math.exp(-lower)))
    pyro.set_rng_seed(seed)
    q = pg.fit(
        wells, (width, lower), infer=pg.QBethe, num_components=2, num_steps=300, progress=False
    )
    assert abs(float(q.log_evidence) - truth) < 0.02
    share = 1 / (1 + math.exp(-lower))
    assert abs(float(q.marginal("x").mean) - (6 * share - 3)) < 0.1


def two_roots():
    x = pyro.sample("x", dist.Normal(torch.tensor(0.0).double(), 30.0))
    pyro.sample("y", dist.Normal(x * x, 1e-4), obs=torch.tensor(4.0).double())


def test_a_mode_that_is_no_mirror_image_of_where_draws_are_is_found():
    q = fit(two_roots)
    half = quad(lambda x: stats.norm.pdf(4, x * x, 1e-4), 2 - 3e-4, 2 + 3e-4, points=[2.0])[0]
    truth = math.log(2 * half * stats.norm.pdf(2, 0, 30))
    assert abs(float(q.log_evidence) - truth) < 0.02


def test_components_spread_along_a_correlation():
    """Intercept and slope of numbers far from 0, in conditional widths at first."""
    x = 68 + 4 * torch.linspace(-2, 2, 30).double()
    y = 1.3 * x - 60 + 2 * (7 * x).sin()

    def model():
        a = pyro.sample("a", dist.Normal(x.new_zeros(()), 1e4))
        b = pyro.sample("b", dist.Normal(x.new_zeros(()), 1e4))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(a + b * x, 2.0), obs=y)

    rows = np.stack([np.ones(30), x.numpy()], 1)
    precision = rows.T @ rows / 4 + np.eye(2) / 1e8
    own = np.linalg.inv(precision)
    best = own @ rows.T @ y.numpy() / 4
    truth = stats.norm.logpdf(y.numpy(), rows @ best, 2.0).sum() + math.log(2 * math.pi)
    truth += stats.norm.logpdf(best, 0, 1e4).sum() + 0.5 * np.linalg.slogdet(own)[1]
    # a product of conditionals loses half the logarithm of how much narrower they are
    loss = 0.5 * np.log(np.linalg.det(own) * np.prod(np.diag(precision)))
    q = fit(model, num_components=5)
    found = float(q.log_evidence) - truth
    assert 0.8 - loss < found < 1e-3


def ring():
    x, y = (pyro.sample(name, dist.Normal(torch.tensor(0.0).double(), 3.0)) for name in ("x", "y"))
    pyro.sample("r", dist.Normal((x * x + y * y).sqrt(), 0.01), obs=torch.tensor(2.0).double())


@pytest.mark.parametrize("components", [1, 2, 5])
def test_components_do_not_start_off_a_ridge_that_is_curved(components):
    """What a Gaussian at a point of a ring says of its tangent is far off the ring."""

    def density(r):
        return r / 9 * math.exp(-r * r / 18) * stats.norm.pdf(r, 2, 0.01)

    truth = math.log(quad(density, 1.9, 2.1)[0])
    q = fit(ring, num_components=components)
    assert truth - 6 < float(q.log_evidence) < truth + 1e-3


def no_mode():
    tau = pyro.sample("tau", dist.HalfCauchy(torch.tensor(1000.0).double()))
    with pyro.plate("groups", 4):
        pyro.sample("x", dist.Normal(torch.zeros(4).double(), tau))


def not_narrow():
    location_and_scale(torch.tensor(Y), "HalfNormal")


@pytest.mark.parametrize("model", [no_mode, not_narrow])
def test_elsewhere_components_start_at_draws(model, monkeypatch):
    def parameters():
        pyro.set_rng_seed(0)
        return pg.QBethe(model, num_components=3, progress=False).setup().parameters

    found = parameters()
    monkeypatch.setattr(NarrowStart, "places", lambda *start: [])
    for name, value in parameters().items():
        assert torch.equal(found[name], value)


def test_a_run_about_narrow_modes_resumes_to_the_same():
    options = {"num_components": 2, "num_steps": 20, "progress": False}
    args = torch.tensor(1e-6 * Y), "LogNormal"
    pyro.set_rng_seed(0)
    whole = pg.QBethe(location_and_scale, **options)
    whole.run(*args)
    pyro.set_rng_seed(0)
    half = pg.QBethe(location_and_scale, **options).setup(*args)
    for _ in range(10):
        half.step()
    pyro.set_rng_seed(1)
    again = pg.QBethe(location_and_scale, **options).setup(*args)
    again.load_state_dict(half.state_dict())
    again.run()
    for name, value in whole.parameters.items():
        torch.testing.assert_close(again.parameters[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("num_components", [1, 3])
def test_modes_at_kinks_whose_logarithms_are_added_up(num_components, seed):
    one = torch.ones((), dtype=torch.float64)

    def model():
        with pyro.plate("nodes", 5):
            x = pyro.sample("x", dist.Normal(0 * one, 10 * one))
            up, down = (dist.Normal(at * one, 0.01 * one).log_prob(x) for at in (3, -3))
            pyro.factor("either", torch.logaddexp(up, down))
        with pyro.plate("pairs", 4):
            pyro.factor("near", -0.2 * (x[1:] - x[:-1]).abs())

    single = 5 * stats.norm.logpdf(3, 0, 10)  # a mode of five equal signs
    truth = single + math.log(2) + 4 * math.log1p(math.exp(-0.2 * 6))
    pyro.set_rng_seed(seed)
    options = {"num_components": num_components, "num_steps": 400}
    q = pg.fit(model, infer=pg.QBethe, progress=False, **options)
    assert q.evidence_kind == "lower bound"
    assert single - 2 * 0.2 * 6 - 0.1 < float(q.log_evidence) < truth + 1e-3


@pytest.mark.parametrize("by_exp", [True, False])
def test_a_hierarchy_widens_from_a_narrow_mode_at_no_scale(by_exp):
    rng = np.random.default_rng(0)
    counts = torch.tensor(rng.poisson(np.exp(1 + 0.5 * rng.standard_normal(30)), (5, 30)) * 1.0)

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        s = pyro.sample("s", dist.InverseGamma(torch.tensor(0.1), torch.tensor(0.1)))
        with pyro.plate("groups", 30, dim=-1):
            if by_exp:
                rate = pyro.sample("r", dist.Normal(mu, s)).exp()
            else:
                rate = pyro.sample("r", dist.LogNormal(mu, s))
            with pyro.plate("rows", 5, dim=-2):
                pyro.sample("y", dist.Poisson(rate), obs=counts.to(rate))

    q = fit(model, num_components=1, num_steps=1000)
    bound = pg.fit(model, infer=pg.VMP, progress=False).log_evidence  # it climbs the same function
    assert abs(float(q.log_evidence - bound)) < 0.1
    assert abs(float(q.marginal("s").mean) - 0.45) < 0.1


TRIALS = torch.tensor([47.0, 148, 119, 810, 211, 196, 148, 215, 207, 97, 256, 360])
DEATHS = torch.tensor([0.0, 18, 8, 46, 8, 13, 9, 31, 14, 8, 29, 24])


def surgical(vague):
    """Spiegelhalter, Thomas, Best & Gilks (1996), "BUGS examples": mortality in 12 hospitals."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1000.0))
    if vague:
        s = pyro.sample("s", dist.InverseGamma(torch.tensor(1e-3), torch.tensor(1e-3))).sqrt()
    else:
        s = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("hospitals", 12):
        b = pyro.sample("b", dist.Normal(mu, s))
        pyro.sample("deaths", dist.Binomial(TRIALS, logits=b), obs=DEATHS)


@functools.cache
def evidence_of_surgical(vague):
    """Over mu and log s, and of every hospital over (b - mu) / s, on grids."""
    mu, log_s, z = np.linspace(-4.5, -1, 41), np.linspace(-5, 1.5, 61), np.linspace(-8, 8, 301)
    s = np.exp(log_s)
    if vague:
        total = stats.invgamma.logpdf(s**2, 1e-3, scale=1e-3) + np.log(2 * s**2)
    else:
        total = stats.halfnorm.logpdf(s) + log_s
    total = total + stats.norm.logpdf(mu, 0, 1000)[:, None]
    weight = stats.norm.logpdf(z) + math.log(z[1] - z[0])
    logits = mu[:, None, None] + s[:, None] * z
    for n, r in zip(TRIALS.tolist(), DEATHS.tolist(), strict=True):
        own = r * logits - n * np.logaddexp(0, logits) + math.log(math.comb(int(n), int(r)))
        total = total + logsumexp(own + weight, axis=2)
    return logsumexp(total) + math.log((mu[1] - mu[0]) * (log_s[1] - log_s[0]))


@pytest.mark.parametrize("vague", [True, False])
@pytest.mark.parametrize(
    "options", [{"num_components": 2}, {"num_components": 1, "covariance": "full"}]
)
def test_a_hierarchy_under_vague_priors_starts_where_mean_field_ends(vague, options):
    truth = evidence_of_surgical(vague)
    pyro.set_rng_seed(0)
    q = pg.fit(surgical, (vague,), infer=pg.QBethe, progress=False, **options)
    assert truth - 0.6 < float(q.log_evidence) < truth + 0.1
    assert abs(float(q.marginal("mu").mean) + 2.55) < 0.05
