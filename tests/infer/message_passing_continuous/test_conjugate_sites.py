"""Sites with gamma and beta beliefs: exact where the program is conjugate, near it elsewhere."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Importance, Predictive
from scipy import special, stats
from scipy.integrate import trapezoid
from scipy.optimize import minimize
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import NonFiniteDensity, OptionError, UnsupportedFactor
from tests.infer.message_passing_continuous.runs import fit

PRESETS = [pg.EP, pg.PowerEP, pg.VMP, pg.BP, pg.FractionalBP]
each_preset = pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.__name__)


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def counts(y, shape=2.0):
    rate = pyro.sample("rate", dist.Gamma(shape, 1.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


def coins(heads, tosses):
    with pyro.plate("coins", len(heads)):
        p = pyro.sample("p", dist.Beta(0.5, 2.0))
        pyro.sample("heads", dist.Binomial(tosses, p), obs=heads)


def normals(y, shape=2.0, rate=1.0):
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    precision = pyro.sample("precision", dist.Gamma(shape, rate))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, precision.rsqrt()), obs=y)


COUNTS = torch.tensor([3.0, 5.0, 2.0, 4.0, 6.0], dtype=torch.float64)
HEADS, TOSSES = torch.tensor([[0.0, 3.0, 7.0], [4.0, 5.0, 7.0]], dtype=torch.float64)
VALUES = torch.tensor([0.4, 1.9, -0.6, 1.2, 0.8, 2.4], dtype=torch.float64)


@each_preset
def test_gamma_poisson_is_exact(preset):
    q = fit(counts, (COUNTS,), preset, family={"rate": "gamma"})
    marginal = q.marginal("rate")
    assert_close(marginal.concentration, torch.tensor(2.0 + 20))
    assert_close(marginal.rate, torch.tensor(1.5 + 5))
    y = COUNTS.numpy()
    truth = special.gammaln(22) - special.gammaln(2) + 2 * np.log(1.5) - 22 * np.log(6.5)
    assert_close(float(q.log_evidence), truth - special.gammaln(y + 1).sum())
    assert q.evidence_kind == "exact"


@each_preset
def test_beta_binomial_is_exact(preset):
    q = fit(coins, (HEADS, TOSSES), preset, family={"p": "beta"})
    marginal = q.marginal("p")
    assert_close(marginal.concentration1, 0.5 + HEADS)
    assert_close(marginal.concentration0, 2.0 + TOSSES - HEADS)
    truth = stats.betabinom(TOSSES.numpy(), 0.5, 2.0).logpmf(HEADS.numpy()).sum()
    assert_close(float(q.log_evidence), truth)


@pytest.mark.parametrize("shape", [0.03, 1e-3, 1e-5])
@pytest.mark.parametrize("preset", [pg.EP, pg.VMP, pg.BP])
def test_vague_priors_of_groups_without_counts_keep_their_evidence(preset, shape):
    """Where the mean of the logarithm, about -1 / shape, is that of no number above 0."""
    y = torch.tensor([[2.0, 5.0, 1.0], [0.0, 0.0, 0.0]])

    def groups():
        with pyro.plate("groups", 2, dim=-2):
            rate = pyro.sample("rate", dist.Gamma(shape, shape))
            with pyro.plate("data", 3, dim=-1):
                pyro.sample("y", dist.Poisson(rate), obs=y)

    q = fit(groups, (), preset, family={"rate": "gamma"})
    a, total = shape, y.sum(1).numpy()
    each = a * np.log(a) - special.gammaln(a) + special.gammaln(a + total)
    truth = (each - (a + total) * np.log(a + 3)).sum() - special.gammaln(y.numpy() + 1).sum()
    assert_close(q.log_evidence, torch.tensor(truth), rtol=1e-9, atol=1e-9)
    assert_close(q.marginal("rate").mean[:, 0], (a + y.sum(1)) / (a + 3))


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.02), (0.02, 1.0), (0.01, 0.01), (1e-4, 1e-4)])
@pytest.mark.parametrize("heads", [0.0, 6.0])
@pytest.mark.parametrize("preset", [pg.EP, pg.VMP])
def test_vague_priors_of_coins_that_fall_one_way_keep_their_evidence(preset, heads, a, b):
    def coin():
        p = pyro.sample("p", dist.Beta(a, b))
        pyro.sample("heads", dist.Binomial(6, p), obs=torch.tensor(heads))

    q = fit(coin, (), preset, family={"p": "beta"})
    truth = special.betaln(a + heads, b + 6 - heads) - special.betaln(a, b)
    assert_close(q.log_evidence, torch.tensor(truth), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [0.1, 1.0])
def test_wide_logarithms_of_gamma_posteriors_are_told_of_and_gamma_beliefs_are_not(shape):
    """Their truth is log gamma, of standard deviation 10 for a shape of .1 and 1.3 for 1."""
    zeros = torch.zeros(3)
    q = fit(counts, (zeros, shape), pg.EP)
    truth = shape / 4.5
    if shape < 1:
        assert float(q.marginal("rate").mean) > 2 * truth  # a far tail of the Gaussian
        assert 'family={"rate": "gamma"}' in q.status and 'logarithm of "rate"' in q.status
    else:
        assert abs(float(q.marginal("rate").mean) / truth - 1) < 0.1
        assert q.status == "converged"
    exact = fit(counts, (zeros, shape), pg.EP, family={"rate": "gamma"})
    assert_close(exact.marginal("rate").mean, torch.tensor(truth))
    assert exact.status == "converged"


def test_wide_log_normals_that_no_quadrature_touches_are_not_told_of():
    def apart():
        pyro.sample("wide", dist.LogNormal(0.0, 3.0))
        counts(COUNTS)

    q = fit(apart, (), pg.EP)
    assert_close(q.marginal("wide").mean, torch.tensor(4.5).exp())
    assert q.status == "converged"


def test_the_family_follows_an_interval_and_a_shifted_half_line():
    def model():
        pyro.sample("x", dist.Uniform(2.0, 5.0))
        with pyro.plate("three", 3):
            pyro.sample("y", dist.Pareto(torch.ones(3), torch.tensor([3.0, 4.0, 5.0])))

    q = fit(model, family={"x": "beta"})
    x = q.marginal("x")
    assert_close(x.mean, torch.tensor(3.5))
    assert_close(x.variance, torch.tensor(9 / 12))
    assert 2 < float(q.sample(100)["x"].min()) < float(q.sample(100)["x"].max()) < 5
    y = fit(model, family={"y": "gamma"}).marginal("y")  # EP keeps E x
    assert_close(y.mean, torch.tensor([3 / 2, 4 / 3, 5 / 4]), rtol=1e-4, atol=0)
    assert_close(y.variance, y.base_dist.variance)


def variational_normals(y, shape, rate):
    """Coordinate ascent of the normal with unknown mean and precision, and its bound."""
    a, b, n = shape + len(y) / 2, 2.0, len(y)
    for _ in range(5000):
        tau = a / b
        variance = 1 / (1 / 4 + n * tau)
        mean = variance * tau * y.sum()
        b = rate + 0.5 * (((y - mean) ** 2).sum() + n * variance)
    log_tau = special.digamma(a) - np.log(b)
    bound = 0.5 * n * (log_tau - np.log(2 * np.pi)) - 0.5 * a / b * (
        ((y - mean) ** 2).sum() + n * variance
    )
    bound += -0.5 * np.log(2 * np.pi * 4) - 0.5 * (mean**2 + variance) / 4
    bound += 0.5 * np.log(2 * np.pi * np.e * variance)
    bound += shape * np.log(rate) - special.gammaln(shape) + (shape - 1) * log_tau - rate * a / b
    bound += stats.gamma(a, scale=1 / b).entropy()
    return mean, variance, a, b, bound


@pytest.mark.parametrize("shape, rate, count", [(2.0, 1.0, 6), (0.01, 0.01, 1), (0.5, 3.0, 2)])
def test_vmp_of_mean_and_precision_is_coordinate_ascent(shape, rate, count):
    y = VALUES[:count]
    q = fit(normals, (y, shape, rate), pg.VMP, family={"precision": "gamma"}, tol=1e-11)
    mean, variance, a, b, bound = variational_normals(y.numpy(), shape, rate)
    assert_close(float(q.marginal("mean").mean), mean)
    assert_close(float(q.marginal("mean").variance), variance)
    assert_close(float(q.marginal("precision").concentration), a)
    assert_close(float(q.marginal("precision").rate), b)
    assert_close(float(q.log_evidence), bound)


def plain_ep_of_normals(y, alpha, sweeps=200):
    """Power EP with a site for every observation, on a dense grid over mean and log precision."""
    m, z = np.linspace(-8, 8, 641)[:, None], np.linspace(-6, 4, 601)[None]
    area = (m[1, 0] - m[0, 0]) * (z[0, 1] - z[0, 0])
    sites = np.zeros((len(y), 4))  # precision, shift of the mean; shape, rate of the precision
    prior = np.array([0.25, 0.0, 2.0, 1.0])

    def log_q(eta):
        return -0.5 * eta[0] * m**2 + eta[1] * m + eta[2] * z - eta[3] * np.exp(z)

    def normalised(log_p):
        peak = log_p.max()
        p = np.exp(log_p - peak)
        return p / p.sum(), peak + np.log(p.sum() * area)

    def projected(p):
        mean = (p * m).sum()
        variance = (p * m**2).sum() - mean**2
        s = np.log((p * np.exp(z)).sum()) - (p * z).sum()
        a = 1.0
        for _ in range(100):
            a -= (np.log(a) - special.digamma(a) - s) / (1 / a - special.polygamma(1, a))
            a = max(a, 1e-3)
        return np.array([1 / variance, mean / variance, a, a / (p * np.exp(z)).sum()])

    for _ in range(sweeps):
        before = sites.copy()
        for i in range(len(y)):
            cavity = prior + sites.sum(0) - alpha * sites[i]
            log_f = 0.5 * z - 0.5 * np.log(2 * np.pi) - 0.5 * np.exp(z) * (y[i] - m) ** 2
            found = projected(normalised(log_q(cavity) + alpha * log_f)[0])
            sites[i] = (found - cavity) / alpha
        if abs(sites - before).max() < 1e-10:
            break
    eta = prior + sites.sum(0)
    evidence = normalised(log_q(eta))[1] - normalised(log_q(prior))[1]
    for i in range(len(y)):
        log_f = 0.5 * z - 0.5 * np.log(2 * np.pi) - 0.5 * np.exp(z) * (y[i] - m) ** 2
        mass = normalised(log_q(eta - alpha * sites[i]) + alpha * log_f)[1]
        evidence += (mass - normalised(log_q(eta))[1]) / alpha
    exact = log_q(prior) + sum(
        0.5 * z - 0.5 * np.log(2 * np.pi) - 0.5 * np.exp(z) * (v - m) ** 2 for v in y
    )
    return eta, evidence, normalised(exact)[1] - normalised(log_q(prior))[1]


def test_power_ep_of_mean_and_precision_matches_a_plain_implementation():
    q = fit(normals, (VALUES,), pg.PowerEP, alpha=0.5, family={"precision": "gamma"})
    eta, evidence, _ = plain_ep_of_normals(VALUES.numpy(), alpha=0.5)
    assert_close(float(q.marginal("mean").mean), eta[1] / eta[0], rtol=1e-4, atol=0)
    assert_close(float(q.marginal("mean").variance), 1 / eta[0], rtol=1e-4, atol=0)
    assert_close(float(q.marginal("precision").concentration), eta[2], rtol=1e-4, atol=0)
    assert_close(float(q.marginal("precision").rate), eta[3], rtol=1e-4, atol=0)
    assert_close(float(q.log_evidence), evidence, rtol=0, atol=1e-4)
    mean, covariance = q.factor_marginal("y")
    assert mean.shape == (6, 2) and covariance.shape == (6, 2, 2)


def test_ep_multiplies_the_rows_of_a_mean_and_a_precision():
    """Of six rows, each a factor, the evidence of plain EP is .091 off."""
    q = fit(normals, (VALUES,), pg.EP, family={"precision": "gamma"})
    _, of_rows, truth = plain_ep_of_normals(VALUES.numpy(), alpha=1.0)
    assert abs(of_rows - truth) > 0.08
    assert abs(float(q.log_evidence) - truth) < 1e-4


def mixture(y):
    with pyro.plate("parts", 2):
        rate = pyro.sample("rate", dist.Gamma(torch.tensor([2.0, 9.0]), 1.0))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.7])))
        pyro.sample("y", dist.Poisson(rate[z]), obs=y)


def test_vmp_of_a_mixture_of_counts_solves_its_coordinate_equations():
    y = torch.tensor([1.0, 0.0, 12.0, 9.0, 2.0, 14.0, 6.0])
    q = fit(mixture, (y,), pg.VMP, family={"rate": "gamma"}, num_steps=500)
    a, b = q.marginal("rate").concentration.numpy(), q.marginal("rate").rate.numpy()
    share = q.marginal("z").probs.numpy()
    logits = np.log([0.3, 0.7]) + y.numpy()[:, None] * (special.digamma(a) - np.log(b)) - a / b
    expected = np.exp(logits - special.logsumexp(logits, axis=1, keepdims=True))
    assert_close(share, expected, rtol=0, atol=1e-5)
    assert_close(a, np.array([2.0, 9.0]) + share.T @ y.numpy(), rtol=1e-5, atol=0)
    assert_close(b, 1.0 + share.sum(0), rtol=1e-5, atol=0)


def test_ep_of_a_mixture_of_counts_is_near_enumeration():
    y = torch.tensor([1.0, 0.0, 12.0, 9.0, 2.0, 14.0, 6.0])
    q = fit(mixture, (y,), pg.EP, family={"rate": "gamma"}, num_steps=500)
    total, first = -np.inf, np.zeros(2)
    for code in range(2**7):
        z = np.array([(code >> k) & 1 for k in range(7)])
        value, means = 0.0, np.zeros(2)
        for k, (shape, weight) in enumerate([(2.0, 0.3), (9.0, 0.7)]):
            mine = y.numpy()[z == k]
            a, b = shape + mine.sum(), 1.0 + len(mine)
            value += len(mine) * np.log(weight) - special.gammaln(mine + 1).sum()
            value += special.gammaln(a) - special.gammaln(shape) - a * np.log(b)
            means[k] = a / b
        new = np.logaddexp(total, value)
        first = first * np.exp(total - new) + means * np.exp(value - new)
        total = new
    assert_close(q.marginal("rate").mean.numpy(), first, rtol=0.02, atol=0)
    assert abs(float(q.log_evidence) - total) < 0.05


def test_evidence_and_marginals_differentiate_by_the_program():
    def results(shape):
        q = fit(counts, (COUNTS[:2], shape), pg.EP, family={"rate": "gamma"})
        return q.log_evidence, q.marginal("rate").mean

    torch.autograd.gradcheck(results, (torch.tensor(2.0, requires_grad=True),), atol=1e-6)

    def noisy(spread):
        def model():
            mean = pyro.sample("mean", dist.Normal(0.0, spread))
            precision = pyro.sample("precision", dist.Gamma(2.0, 1.0))
            with pyro.plate("data", 3):
                pyro.sample("y", dist.Normal(mean, precision.rsqrt()), obs=VALUES[:3])

        q = fit(model, (), pg.EP, family={"precision": "gamma"}, tol=1e-11, num_points=40)
        return q.log_evidence, q.marginal("precision").mean

    at, options = torch.tensor(1.5, requires_grad=True), {"eps": 1e-4, "atol": 5e-6}
    torch.autograd.gradcheck(noisy, (at,), check_undefined_grad=False, **options)


def test_the_guide_is_the_gamma_distribution_and_survives_saving():
    q = fit(coins, (HEADS, TOSSES), family={"p": "beta"})
    guide = q.guide()
    log_weights = Importance(coins, guide, num_samples=20).run(HEADS, TOSSES).log_weights
    assert_close(torch.stack(log_weights), q.log_evidence.expand(20))
    again = type(guide).from_state_dict(guide.state_dict())
    assert_close(again.distribution("p").mean, q.marginal("p").mean)
    assert_close(
        again.median()["p"].numpy(),
        stats.beta(0.5 + HEADS.numpy(), 2 + (TOSSES - HEADS).numpy()).median(),
    )
    draws = Predictive(coins, guide=guide, num_samples=7)(HEADS, TOSSES)
    assert draws["p"].shape == (7, 3)


def test_a_stopped_run_goes_on_to_the_same_result():
    options = {"family": {"precision": "gamma"}, "progress": False, "tol": None}
    whole, first = (pg.EP(normals, num_steps=n, **options) for n in (12, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pg.errors.ConvergenceWarning)
        expected = whole.run(VALUES)
        first.run(VALUES)
        second = pg.EP(normals, num_steps=12, **options)
        second.setup(VALUES)
        second.load_state_dict(first.state_dict())
        found = second.run(VALUES)
    assert_close(found.marginal("precision").rate, expected.marginal("precision").rate)


@pytest.mark.parametrize(
    "family, words",
    [
        ({"rho": "gamma"}, "rho"),
        ({"rate": "beta"}, "interval"),
        ({"rate": "wishart"}, "wishart"),
        ("gamma", "dict"),
    ],
)
def test_a_family_that_does_not_fit_is_refused_by_name(family, words):
    with pytest.raises(OptionError, match=words):
        fit(counts, (COUNTS,), family=family)


def test_discrete_sites_and_events_are_refused():
    with pytest.raises(OptionError, match='"z" is discrete'):
        fit(mixture, (COUNTS,), family={"z": "gamma"})

    def vector():
        pyro.sample("s", dist.HalfNormal(torch.ones(3)).to_event(1))

    with pytest.raises(OptionError, match="plate"):
        fit(vector, family={"s": "gamma"})


def test_bp_says_which_preset_takes_a_factor_that_is_not_conjugate():
    with pytest.raises(UnsupportedFactor, match=r"pg\.EP"):
        fit(normals, (VALUES,), pg.BP, family={"precision": "gamma"})


def scale_of_few(y):
    s = pyro.sample("s", dist.HalfCauchy(1.0))
    with pyro.plate("n", len(y)):
        pyro.sample("y", dist.Normal(0.0, s), obs=y)


def best_gamma_bound(y):
    """Maximum over Gamma(a, b) of E log p(s, y) - E log q(s): all but E log(1 + s^2) is closed."""
    grid = np.linspace(-30, 6, 20001)

    def bound(parameters):
        a, b = 2 + np.exp(parameters[0]), np.exp(parameters[1])
        log_s, inverse_square = special.digamma(a) - np.log(b), b**2 / ((a - 1) * (a - 2))
        log_q = a * np.log(b) - special.gammaln(a) + a * grid - b * np.exp(grid)  # of log s
        tail = trapezoid(np.exp(log_q) * np.log1p(np.exp(2 * grid)), grid)
        prior = np.log(2 / np.pi) - tail
        likelihood = -len(y) * (0.5 * np.log(2 * np.pi) + log_s)
        likelihood -= 0.5 * (y**2).sum() * inverse_square
        entropy = a - np.log(b) + special.gammaln(a) + (1 - a) * special.digamma(a)
        return -(prior + likelihood + entropy)

    found = minimize(bound, [0.0, 2.0], method="Nelder-Mead", options={"xatol": 1e-9})
    a, b = 2 + np.exp(found.x[0]), np.exp(found.x[1])
    return -found.fun, a / b


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_variational_gamma_beliefs_of_a_scale_stay_where_the_likelihood_is_a_number(schedule):
    """Steps that would make 1 / s^2 overflow are cut, and the best gamma is found."""
    y = torch.tensor([0.1, 0.2, -0.3])
    options = {"family": {"s": "gamma"}, "schedule": schedule, "progress": False}
    posterior = pg.fit(scale_of_few, (y,), infer=pg.VMP, **options)
    bound, mean = best_gamma_bound(y.numpy())
    assert posterior.converged
    assert abs(float(posterior.log_evidence) - bound) < 1e-3
    assert abs(float(posterior.marginal("s").mean) - mean) < 1e-3


def test_a_density_too_large_for_numbers_is_not_called_a_zero():
    """The start, Gamma(1, 1), reaches s = exp(-10), where exp(1 / s) is no number."""

    def model():
        s = pyro.sample("s", dist.Exponential(1.0))
        pyro.factor("wall", -(0.001 / s).exp())

    with pytest.raises(NonFiniteDensity, match=r'"wall".*too large.*too wide'):
        pg.fit(model, infer=pg.VMP, family={"s": "gamma"}, progress=False)


def test_a_zero_at_alpha_0_is_still_called_one():
    def model():
        s = pyro.sample("s", dist.Exponential(1.0))
        pyro.factor("edge", torch.where(s > 0.01, 0.0, -torch.inf))

    with pytest.raises(OptionError, match=r'"edge".*has zeros'):
        pg.fit(model, infer=pg.VMP, family={"s": "gamma"}, progress=False)


def dense(log_f, z):
    """log evidence and mean of x = f(z), on a grid of unconstrained numbers."""
    x, log_p = log_f(z)
    top = log_p.max()
    p = np.exp(log_p - top)
    return top + np.log(p.sum() * (z[1] - z[0])), (p * x).sum() / p.sum()


def shifted():
    r = pyro.sample("r", dist.Gamma(900.0, 1.0))
    pyro.sample("y", dist.Poisson(torch.clamp(r - 500.0, min=1e-3)), obs=torch.tensor(400.0))


def stepped():
    r = pyro.sample("r", dist.Gamma(900.0, 1.0))
    pyro.factor("step", torch.where(r < 900, 0.0, -5.0))


def rare():
    r = pyro.sample("r", dist.Beta(1.0, 2000.0))
    pyro.factor("step", torch.where(r < 5e-4, 0.0, -5.0))


def of_gamma(extra):
    def log_f(z):
        x = np.exp(z)
        return x, stats.gamma.logpdf(x, 900) + z + extra(x)

    return log_f, np.linspace(np.log(600.0), np.log(1200.0), 400001)


def of_rare(z):
    x = special.expit(z)
    jacobian = np.log(x) + np.log1p(-x)
    return x, stats.beta.logpdf(x, 1, 2000) + jacobian + np.where(x < 5e-4, 0.0, -5.0)


FAR = {
    "shifted": (
        shifted,
        "gamma",
        of_gamma(lambda x: stats.poisson.logpmf(400, np.maximum(x - 500, 1e-3))),
    ),
    "stepped": (stepped, "gamma", of_gamma(lambda x: np.where(x < 900, 0.0, -5.0))),
    "rare": (rare, "beta", (of_rare, np.linspace(-25.0, 0.0, 400001))),
}


@pytest.mark.parametrize("name", FAR)
def test_what_changes_far_out_is_no_member_of_the_family(name):
    model, family, (log_f, z) = FAR[name]
    truth, mean = dense(log_f, z)
    q = fit(model, (), pg.EP, family={"r": family})
    assert q.evidence_kind == "estimate"
    assert abs(float(q.log_evidence) - truth) < 1e-2  # points on both sides of a step
    assert abs(float(q.marginal("r").mean) / mean - 1) < 1e-2


def test_a_narrow_bump_is_seen_in_one_node_and_in_many():
    for count in (1, 20000):

        def model(count=count):
            with pyro.plate("nodes", count):
                r = pyro.sample("r", dist.Gamma(2.0, 1.0))
                pyro.factor("bump", 8 * torch.exp(-(((r - 2.35) / 0.01) ** 2)))

        engine = pg.EP(model, family={"r": "gamma"}, progress=False).setup()
        assert engine.network.has_quadrature


@pytest.mark.parametrize(("low", "high"), [(2.0, 5.0), (-1.0, 1.0), (0.0, 1.0)])
def test_beta_likelihoods_on_any_interval_are_exact(low, high):
    def model():
        r = pyro.sample("r", dist.Uniform(low, high))
        share = (r - low) / (high - low)
        pyro.sample("y", dist.Binomial(10, share), obs=torch.tensor(3.0))

    q = fit(model, (), pg.EP, family={"r": "beta"})
    assert q.evidence_kind == "exact"
    assert_close(q.log_evidence, torch.tensor(-np.log(11.0)), rtol=0, atol=1e-9)
    assert_close(q.marginal("r").mean, torch.tensor(low + (high - low) / 3))


def test_large_parameters_are_recognised_in_single_precision():
    def model():
        rate = pyro.sample("rate", dist.Gamma(torch.tensor(1e4, dtype=torch.float32), 1.0))
        pyro.sample("y", dist.Poisson(rate), obs=torch.tensor(9900.0, dtype=torch.float32))

    q = fit(model, (), pg.EP, family={"rate": "gamma"})
    assert q.evidence_kind == "exact"
    # log densities of 1e5 are known to .01, and the mean to a few hundredths of the 70 it is wide
    assert_close(float(q.marginal("rate").mean), 9950.0, rtol=0, atol=3.0)


# ---------------------------------------------------------------------- families side by side
def rates(sites, y, pull=None):
    """Rates of their own names that one statement reads together."""
    shape = 2.0 if pull is None else 4.0
    rate = torch.stack([pyro.sample(name, dist.Gamma(shape, 1.5)) for name in sites])
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)
    if pull is not None:
        with pyro.plate("pairs", len(y) - 1):
            pyro.factor("pull", -pull * (rate[1:] - rate[:-1]) ** 2)


@pytest.mark.parametrize("preset", [pg.EP, pg.PowerEP, pg.VMP], ids=lambda p: p.__name__)
def test_nodes_of_one_statement_may_be_of_different_families(preset):
    y = torch.tensor([3.0, 7.0, 2.0])
    q = fit(rates, ("abc", y), preset, family={"b": "gamma"}, tol=1e-9)
    alone = [fit(rates, ("a", y[:1]), preset, tol=1e-9), fit(rates, ("c", y[2:]), preset, tol=1e-9)]
    exact = special.gammaln(9) - special.gammaln(2) + 2 * np.log(1.5) - 9 * np.log(2.5)
    exact -= special.gammaln(8)
    total = float(alone[0].log_evidence + alone[1].log_evidence) + exact
    assert float(q.log_evidence) == pytest.approx(total, abs=1e-8)
    assert_close(float(q.marginal("b").mean), 9 / 2.5)
    assert_close(float(q.marginal("b").variance), 9 / 2.5**2)
    for one, name in zip(alone, "ac", strict=True):
        assert_close(q.marginal(name).mean, one.marginal(name).mean, rtol=1e-8, atol=0)


@pytest.mark.parametrize("sites", ["", "b", "ac", "abc"])
def test_pairs_of_different_families_are_near_their_sums_on_a_grid(sites):
    """Gamma beliefs say it to three digits; normal ones of the logarithms to .035 nats."""
    y = torch.tensor([3.0, 7.0, 2.0])
    x = np.linspace(1e-3, 25, 800)
    unary = [stats.gamma.pdf(x, 4, scale=1 / 1.5) * stats.poisson.pmf(int(v), x) for v in y]
    kernel = np.exp(-((x[:, None] - x) ** 2) / 8) * (x[1] - x[0])
    joint = (kernel @ unary[0]) * unary[1] * (kernel @ unary[2]) * (x[1] - x[0])
    family = {"family": dict.fromkeys(sites, "gamma")} if sites else {}
    q = fit(rates, ("abc", y, 0.125), tol=1e-9, **family)
    assert float(q.marginal("b").mean) == pytest.approx((x * joint).sum() / joint.sum(), abs=2e-3)
    gap = 0.002 if sites == "abc" else 0.04
    assert float(q.log_evidence) == pytest.approx(np.log(joint.sum()), abs=gap)
