"""Mean field of factors with exponentials of latents. Truth: expectations by hand, and bounds
maximised over means and variances by scipy."""

import resource

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import optimize, special, stats

import pyrograph as pg
from pyrograph.infer.message_passing.continuous import exponential_form
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from tests.infer.message_passing_continuous.runs import fit

Y = np.array([0.3, -1.2, 2.2, 0.9, 1.6])
COUNTS = np.array([3.0, 0.0, 5.0, 2.0, 7.0])
X = np.array([-1.0, -2.0, 0.5, 0.0, 1.0])
FINE = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 20_000, "maxfev": 20_000}


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def best(bound, start):
    """Largest value, means and standard deviations."""
    size = len(start)
    first = np.concatenate([start, np.full(size, -1.0)])
    found = optimize.minimize(lambda p: -bound(p[:size], np.exp(p[size:])), first, tol=1e-14)
    again = optimize.minimize(
        lambda p: -bound(p[:size], np.exp(p[size:])),
        found.x,
        method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20_000, "maxfev": 20_000},
    )
    return -again.fun, again.x[:size], np.exp(again.x[size:])


def entropy(sd):
    return (np.log(sd) + 0.5 * np.log(2 * np.pi * np.e)).sum()


def normal_prior(mean, sd, centre, width):
    """E log N(u; centre, width^2)."""
    return stats.norm(centre, width).logpdf(mean) - 0.5 * (sd / width) ** 2


@pytest.mark.parametrize("width", [1.0, 10.0, 30.0])
def test_a_log_rate_under_a_wide_prior(width):
    """Of exp(u) under N(0, 30^2) no points see much: its expectation there is exp(450)."""

    def model():
        a = pyro.sample("a", dist.Normal(0.0, width))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(X)):
            rate = torch.exp(a + b * torch.tensor(X))
            pyro.sample("y", dist.Poisson(rate), obs=torch.tensor(COUNTS))

    def bound(mean, sd):
        eta = mean[0] + mean[1] * X
        rate = np.exp(eta + 0.5 * (sd[0] ** 2 + (sd[1] * X) ** 2))
        total = (COUNTS * eta - rate - special.gammaln(COUNTS + 1)).sum() + entropy(sd)
        total += normal_prior(mean[0], sd[0], 0, width)
        return total + normal_prior(mean[1], sd[1], 0, 1)

    value, mean, sd = best(bound, np.array([0.5, 0.5]))
    q = fit(model, (), pg.VMP)
    assert q.converged and q.evidence_kind == "lower bound"
    assert float(q.log_evidence) == pytest.approx(value, abs=1e-8)
    for name, m, s in zip("ab", mean, sd, strict=True):
        assert float(q.marginal(name).mean) == pytest.approx(m, abs=1e-5)
        assert float(q.marginal(name).variance.sqrt()) == pytest.approx(s, abs=1e-5)


@pytest.mark.filterwarnings("ignore:Encountered NaN")  # of the program at its own draws
@pytest.mark.parametrize(
    ("counts", "x", "width"),
    [([2.0], [0.7], 10.0), ([0.0] * 5, list(X), 30.0), (list(COUNTS), list(100 * X + 300), 10.0)],
)
def test_log_rates_that_are_hardly_known(counts, x, width):
    """Held from below by the prior alone: under beliefs as wide as at the mode expectations
    overflow. And covariates whose rates overflow within a width of the prior."""
    counts, x = np.array(counts), np.array(x)

    def model():
        a = pyro.sample("a", dist.Normal(0.0, width))
        b = pyro.sample("b", dist.Normal(0.0, width))
        with pyro.plate("rows", len(x)):
            rate = torch.exp(a + b * torch.tensor(x))
            pyro.sample("y", dist.Poisson(rate), obs=torch.tensor(counts))

    def bound(p):
        mean, sd = p[:2], np.exp(p[2:])
        eta = mean[0] + mean[1] * x
        rate = np.exp(eta + 0.5 * (sd[0] ** 2 + (sd[1] * x) ** 2))
        total = (counts * eta - rate - special.gammaln(counts + 1)).sum() + entropy(sd)
        return total + normal_prior(mean, sd, 0, width).sum()

    q = fit(model, (), pg.VMP)
    assert q.converged and q.evidence_kind == "lower bound"
    found = [torch.stack([q.marginal(name).mean for name in "ab"])]
    found.append(torch.stack([q.marginal(name).stddev for name in "ab"]).log())
    p = torch.cat(found).numpy()
    again = optimize.minimize(lambda p: -bound(p), p, method="Nelder-Mead", options=FINE)
    assert float(q.log_evidence) == pytest.approx(bound(p), abs=1e-8)
    assert -again.fun < bound(p) + 1e-6


def test_a_scale_in_other_units_than_its_prior():
    """Of data about 1e6 under LogNormal(0, 10): the mode is climbed to in units of both."""
    y = 1e6 * Y

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 1e7))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 10.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(mu, scale), obs=torch.tensor(y))

    def bound(p):
        (mu, m), (s_mu, s) = p[:2] * [1e6, 1], np.exp(p[2:]) * [1e6, 1]
        squares = ((y - mu) ** 2 + s_mu**2).sum()
        total = precision_term(squares, m, s, len(y)) + entropy(np.array([s_mu, s]))
        return total + normal_prior(mu, s_mu, 0, 1e7) + normal_prior(m, s, 0, 10)

    start = np.array([0.8, 14.0, -1.0, -1.0])
    best = optimize.minimize(lambda p: -bound(p), start, method="Nelder-Mead", options=FINE)
    q = fit(model, (), pg.VMP)
    assert q.converged and q.evidence_kind == "lower bound"
    assert float(q.log_evidence) == pytest.approx(-best.fun, abs=1e-7)


def precision_term(mean_of_squares, m, s, count=1.0):
    """E log N of squared distances under a scale exp(u), u ~ N(m, s^2)."""
    return -0.5 * mean_of_squares * np.exp(-2 * m + 2 * s**2) - count * (m + 0.918938533204672742)


@pytest.mark.parametrize("prior", ["log normal", "half normal", "inverse gamma"])
def test_a_latent_scale(prior):
    """The scale is exp(u) under all three; under the second E scale^2 = exp(2 m + 2 s^2), of the
    third one over the scale counts."""

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        if prior == "log normal":
            scale = pyro.sample("scale", dist.LogNormal(0.3, 0.8))
        elif prior == "half normal":
            scale = pyro.sample("scale", dist.HalfNormal(1.5))
        else:
            scale = pyro.sample("scale", dist.InverseGamma(3.0, 2.0))
        with pyro.plate("rows", len(Y)):
            pyro.sample("y", dist.Normal(mu, scale), obs=torch.tensor(Y))

    def bound(mean, sd):
        (mu, m), (s_mu, s) = mean, sd
        squares = ((Y - mu) ** 2 + s_mu**2).sum()
        total = precision_term(squares, m, s, len(Y)) + normal_prior(mu, s_mu, 0, 2) + entropy(sd)
        if prior == "log normal":
            return total + normal_prior(m, s, 0.3, 0.8)
        if prior == "half normal":  # with the derivative of exp
            density = np.log(2) + stats.norm(0, 1.5).logpdf(0)
            return total + density - 0.5 * np.exp(2 * m + 2 * s**2) / 1.5**2 + m
        return total + 3 * np.log(2) - special.gammaln(3) - 3 * m - 2 * np.exp(-m + 0.5 * s**2)

    value, mean, sd = best(bound, np.array([0.5, 0.1]))
    q = fit(model, (), pg.VMP)
    assert q.converged and q.evidence_kind == "lower bound"
    assert float(q.log_evidence) == pytest.approx(value, abs=1e-8)
    assert float(q.marginal("mu").mean) == pytest.approx(mean[0], abs=1e-5)
    assert float(q.marginal("scale").mean) == pytest.approx(
        np.exp(mean[1] + 0.5 * sd[1] ** 2), rel=1e-5
    )


def test_labels_choose_among_scales():
    """A mixture: of every state the mean and the scale of its component."""
    y = np.concatenate([Y, 6 + 0.2 * Y])

    def model():
        with pyro.plate("components", 2):
            mu = pyro.sample("mu", dist.Normal(torch.tensor([0.0, 5.0]), 3.0))
            scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Categorical(torch.tensor([0.5, 0.5])))
            pyro.sample("y", dist.Normal(mu[z], scale[z]), obs=torch.tensor(y))

    def bound(mean, sd):
        mu, m, s_mu, s = mean[:2], mean[2:], sd[:2], sd[2:]
        squares = (y[:, None] - mu) ** 2 + s_mu**2
        terms = precision_term(squares, m, s) + np.log(0.5)
        total = special.logsumexp(terms, axis=1).sum() + entropy(sd)
        priors = normal_prior(mu, s_mu, np.array([0, 5]), 3) + normal_prior(m, s, 0, 1)
        return total + priors.sum()

    value, mean, _ = best(bound, np.array([0.5, 6.0, 0.0, -1.0]))
    q = fit(model, (), pg.VMP)
    assert q.converged and q.evidence_kind == "lower bound"
    assert float(q.log_evidence) == pytest.approx(value, abs=1e-7)
    assert q.marginal("mu").mean.numpy() == pytest.approx(mean[:2], abs=1e-4)


@pytest.mark.parametrize(
    ("far", "unit"), [(0.0, 1.0), (1e6, 1.0), (-1e9, 1.0), (30.0, 1e-6), (9.0, 1e-6)]
)
def test_data_far_from_zero_keep_their_digits(far, unit):
    """Coefficients about 0 would be squares of 1e9, or those of 30 under a weight of 1e12."""
    data = torch.tensor(Y) * unit + far

    def model():
        mu = pyro.sample("mu", dist.Normal(far, 2.0 * unit))
        scale = pyro.sample("scale", dist.LogNormal(0.3 + np.log(unit), 0.8))
        with pyro.plate("rows", len(Y)):
            pyro.sample("y", dist.Normal(mu, scale), obs=data)

    def bound(mean, sd):
        (mu, m), (s_mu, s) = mean, sd
        squares = ((data - far).numpy() / unit - mu) ** 2 + s_mu**2
        priors = normal_prior(mu, s_mu, 0, 2) + normal_prior(m, s, 0.3, 0.8)
        return precision_term(squares.sum(), m, s, len(Y)) + priors + entropy(sd)

    value, mean, _ = best(bound, np.array([0.5, 0.1]))
    q = fit(model, (), pg.VMP)
    assert q.converged and q.evidence_kind == "lower bound"
    assert float(q.log_evidence) + len(Y) * np.log(unit) == pytest.approx(value, abs=1e-7)
    assert (float(q.marginal("mu").mean) - far) / unit == pytest.approx(mean[0], abs=1e-5)


def test_large_sets_are_looked_at_in_parts(monkeypatch):
    """With the same terms in the same places; of a label's states the rates differ."""
    y = torch.linspace(-3, 3, 7)

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        widths = torch.stack([scale, 2 * scale.square()])
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Categorical(torch.tensor([0.5, 0.5])))
            pyro.sample("y", dist.Normal(mu, widths[z]), obs=y)

    whole = fit(model, (), pg.VMP)
    monkeypatch.setattr(exponential_form, "CHUNK", 1000)
    parts = fit(model, (), pg.VMP)
    assert parts.evidence_kind == whole.evidence_kind == "lower bound"
    assert float(parts.log_evidence) == pytest.approx(float(whole.log_evidence), abs=1e-11)
    torch.testing.assert_close(parts.marginal("z").probs, whole.marginal("z").probs)


def test_functions_of_many_numbers_take_no_memory():
    """A softmax of 200 classes would be read as 200 terms of 401 numbers at 30,000 entries."""
    observed = torch.arange(50) % 200

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(3, 200), 1.0).to_event(2))
        logits = torch.linspace(-1, 1, 150).view(50, 3) @ w
        with pyro.plate("rows", 50):
            pyro.sample("y", dist.Categorical(logits=logits), obs=observed)

    graph = pg.trace_graph(model)
    group = next(group for group in graph.factors if group.name == "y")
    local = LocalDensity(group, torch.arange(50), graph.constant.detach(), graph)
    local.reduce_jointly()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert exponential_form.exponentials_of(local) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_one_of_many_states_tells_that_a_function_is_another(monkeypatch):
    def model():
        u = pyro.sample("u", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.Categorical(torch.ones(5000)))
        pyro.sample("y", dist.Bernoulli(logits=u + 0.001 * z), obs=torch.tensor(1.0))

    graph = pg.trace_graph(model)
    group = next(group for group in graph.factors if group.name == "y")
    local = LocalDensity(group, torch.arange(1), graph.constant.detach(), graph)
    local.reduce_jointly()
    looked_at, in_state = [], exponential_form._in_state

    def noted(local, state):
        looked_at.append(state)
        return in_state(local, state)

    monkeypatch.setattr(exponential_form, "_in_state", noted)
    assert exponential_form.exponentials_of(local) is None and looked_at == [0]
