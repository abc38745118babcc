"""Likelihoods that recur in their parameters, against dense grids over these."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import NonFiniteDensity, OptionError
from pyrograph.graph import trace_graph
from pyrograph.graph.products import product
from pyrograph.infer.message_passing.network import shared_work


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


#: A noisy rise.
Y = torch.arange(40.0).div(20).add(torch.sin(torch.arange(40.0) ** 2).mul(0.4))


#: Enough of it for a product.
SHORT = Y[:24]


def smoothing(y, scale=0.4):
    """Exponential smoothing: a level that each observation moves by a share of its error."""
    share = pyro.sample("share", dist.Normal(0.0, 1.5))
    start = pyro.sample("start", dist.Normal(0.0, 1.0))
    level = start
    for t in range(len(y)):
        pyro.sample(f"y{t}", dist.Normal(level, scale), obs=y[t])
        level = level + torch.sigmoid(share) * (y[t] - level)


def smoothing_truth(y, scale=0.4, missing=()):
    """Log evidence, means and variances of share and start."""
    grid = np.linspace(-9, 9, 301)
    share, level = grid[:, None], np.broadcast_to(grid[None], (301, 301))
    log_p = stats.norm.logpdf(share, 0, 1.5) + stats.norm.logpdf(level)
    for t, value in enumerate(y.numpy()):
        if t not in missing:
            log_p = log_p + stats.norm.logpdf(value, level, scale)
        level = level + (value - level) / (1 + np.exp(-share))
    peak = log_p.max()
    p = np.exp(log_p - peak)
    cell = grid[1] - grid[0]
    log_z = peak + np.log(p.sum() * cell**2)
    p /= p.sum()
    moments = []
    for marginal in (p.sum(1), p.sum(0)):
        mean = marginal @ grid
        moments += [mean, marginal @ (grid - mean) ** 2]
    return log_z, moments


def products(engine):
    return [len(part.index) for part in engine.network.merged]


# ---------------------------------------------------------------------- the function
@pytest.mark.parametrize("num_series", [1, 3])
def test_a_product_is_the_sum_of_its_log_factors(num_series):
    def model():
        with pyro.plate("series", num_series):
            a = pyro.sample("a", dist.Normal(0.0, 1.0))
            b = pyro.sample("b", dist.Normal(0.0, 1.0))
            x = a
            for t in range(20):
                x = torch.tanh(b * x) + a
                pyro.sample(f"y{t}", dist.Normal(x, 1.0), obs=torch.arange(float(num_series)))

    graph = trace_graph(model)
    group = max(graph.factors, key=lambda g: g.num_factors)
    assert group.num_factors >= 4 * num_series
    rows = torch.stack([(group.scope[:, 0] == n).nonzero()[:, 0] for n in range(num_series)])
    whole = product(graph, group, rows[:, 0], group.index[rows[:, 1:]])
    values = [torch.randn(5, num_series, requires_grad=True) for _ in range(2)]
    series = group.scope[:, 0]
    each = group.log_prob([v[:, series] for v in values])
    expected = torch.zeros(5, num_series).index_add(1, series, each)
    found = whole.log_prob(values)
    assert_close(found, expected)
    for ours, theirs in zip(
        torch.autograd.grad(found.sum(), values),
        torch.autograd.grad(expected.sum(), values),
        strict=True,
    ):
        assert_close(ours, theirs)
    assert whole.program.num_numbers < group.program.num_numbers
    if num_series > 1:
        last = whole.part(torch.tensor([1, 2]))
        assert_close(last.log_prob([v[:, 1:] for v in values]), expected[:, 1:])


# ---------------------------------------------------------------------- engines
def test_ep_of_a_recurrence_is_that_of_a_dense_grid():
    engine = pg.EP(smoothing, progress=False)
    posterior = engine.run(Y)
    assert products(engine) == [len(Y) - 2]  # y0 reads the start alone
    log_z, moments = smoothing_truth(Y)
    assert posterior.converged and posterior.status == "converged"
    assert float(posterior.log_evidence) == pytest.approx(log_z, abs=1e-3)
    found = []
    for site in ("share", "start"):
        marginal = posterior.marginal(site)
        found += [float(marginal.mean), float(marginal.variance)]
    assert found == pytest.approx(moments, rel=5e-3, abs=2e-3)


def test_every_factor_of_a_product_has_its_belief():
    posterior = pg.fit(smoothing, (Y,), infer=pg.EP, progress=False)
    first, last = (posterior.factor_marginal(f"y{t}") for t in (1, 39))
    for ours, theirs in zip(first, last, strict=True):
        assert_close(ours, theirs)
    with pytest.raises((KeyError, pg.errors.PyrographError)):
        posterior.factor_marginal("y40")


def test_mean_field_has_the_same_bound_with_a_product_and_without(monkeypatch):
    bounds = []
    for deep in (shared_work.DEEP, 10**9):
        monkeypatch.setattr(shared_work, "DEEP", deep)
        engine = pg.VMP(smoothing, progress=False)
        bounds.append(float(engine.run(SHORT).log_evidence))
        assert bool(products(engine)) == (deep < 10**9)
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-6)
    assert bounds[0] < smoothing_truth(SHORT)[0]


def test_series_that_miss_observations_have_products_of_their_own():
    holes = {0: [], 1: [30], 2: [5, 30]}

    def model():
        with pyro.plate("series", 3):
            share = pyro.sample("share", dist.Normal(0.0, 1.5))
            level = pyro.sample("start", dist.Normal(0.0, 1.0))
        for t in range(len(Y)):
            for n, missing in holes.items():
                if t not in missing:
                    pyro.sample(f"y{n}.{t}", dist.Normal(level[n], 0.4), obs=Y[t])
            level = level + torch.sigmoid(share) * (Y[t] - level)

    engine = pg.EP(model, progress=False)
    posterior = engine.run()
    assert products(engine) == [36 + 37 + 38]
    truths = [smoothing_truth(Y, missing=missing) for missing in holes.values()]
    expected = sum(log_z for log_z, _ in truths)
    assert float(posterior.log_evidence) == pytest.approx(expected, abs=2e-3)
    marginals = [posterior.marginal(site) for site in ("share", "start")]
    for n, (_, moments) in enumerate(truths):
        found = [float(x[n]) for m in marginals for x in (m.mean, m.variance)]
        assert found == pytest.approx(moments, rel=5e-3, abs=2e-3)


def seasons(share, starts, y):
    """Levels before each of the observations: of every season one, which follows the next a bit."""
    levels = list(starts)
    for t, value in enumerate(y):
        k = t % len(levels)
        yield levels[k]
        following = levels[(k + 1) % len(levels)]
        levels[k] = levels[k] + torch.sigmoid(share) * (value - levels[k]) + 0.1 * following


def test_what_is_linear_given_a_share_takes_no_points():
    """Six starts would be too many for a grid."""
    num_seasons, scale = 6, 0.5

    def model():
        share = pyro.sample("share", dist.Normal(0.0, 1.5))
        starts = pyro.sample("starts", dist.Normal(torch.zeros(num_seasons), 1.0).to_event(1))
        for t, level in enumerate(seasons(share, starts, Y)):
            pyro.sample(f"y{t}", dist.Normal(level, scale), obs=Y[t])

    engine = pg.EP(model, progress=False)
    posterior = engine.run()
    assert products(engine) == [len(Y) - num_seasons - 1]
    # levels are affine in the starts, so their joint density given a share is Gaussian
    grid = torch.linspace(-10, 10, 2001)
    eye = torch.eye(num_seasons)
    at_zero, *columns = (
        torch.stack(list(seasons(grid, starts.expand(len(grid), -1).t(), Y)), 1)
        for starts in (torch.zeros(num_seasons), *eye)
    )
    slope = torch.stack([column - at_zero for column in columns], 2)  # [grid, T, seasons]
    covariance = slope @ slope.mT + scale**2 * torch.eye(len(Y))
    log_p = dist.MultivariateNormal(at_zero, covariance).log_prob(Y)
    log_p = log_p + dist.Normal(0.0, 1.5).log_prob(grid)
    log_z = log_p.logsumexp(0) + (grid[1] - grid[0]).log()
    assert float(posterior.log_evidence) == pytest.approx(float(log_z), abs=1e-4)
    p = log_p.softmax(0)
    precision = eye + slope.mT @ slope / scale**2
    means = torch.linalg.solve(precision, (slope.mT @ (Y - at_zero)[..., None]) / scale**2)[..., 0]
    found = posterior.marginal("starts").mean
    assert_close(found, (p[:, None] * means).sum(0), atol=1e-3, rtol=0)
    variance = float((p * (grid - (p * grid).sum()).square()).sum())
    assert float(posterior.marginal("share").variance) == pytest.approx(variance, rel=1e-3)


def test_factors_of_other_alphas_stay_apart():
    def merged(infer, **options):
        return products(infer(smoothing, progress=False, **options).setup(SHORT))

    every = len(SHORT) - 2  # y0 reads the start alone
    assert merged(pg.EP) == merged(pg.PowerEP, alpha=1.0) == [every]
    assert merged(pg.PowerEP, alpha=0.5) == []
    assert merged(pg.PowerEP, alpha={"y5": 0.5}) == [every - 1]


def test_factors_of_other_families_stay_apart():
    def model():
        share = pyro.sample("share", dist.Normal(0.0, 1.5))
        level = pyro.sample("level", dist.Gamma(5.0, 5.0))
        for t in range(len(Y)):
            pyro.sample(f"y{t}", dist.Normal(level, 0.4), obs=Y[t])
            level = level + torch.sigmoid(share) * (Y[t] - level)

    assert products(pg.VMP(model, progress=False).setup()) == [len(Y) - 2]
    assert not products(pg.VMP(model, family={"level": "gamma"}, progress=False).setup())


@pytest.mark.parametrize("is_shared", [False, True])
def test_long_factors_that_share_nothing_stay_apart(is_shared):
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        x = a
        for t in range(20):
            x = x if is_shared else a
            for k in range(2):
                x = torch.tanh(b * x + k + t)
            pyro.sample(f"y{t}", dist.Normal(x, 1.0), obs=Y[t])

    engine = pg.VMP(model, progress=False).setup()
    assert all(
        len(block.local.program.lines) >= shared_work.DEEP for block in engine.network.blocks
    )
    assert bool(products(engine)) == is_shared


def with_one_other(usual, other):
    """A recurrence of x, of which y20 has another likelihood."""

    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        x = a
        for t in range(len(SHORT)):
            x = torch.tanh(b * x) + a
            pyro.sample(f"y{t}", (other if t == 20 else usual)(x), obs=Y[t])

    return model


@pytest.mark.parametrize("infer", [pg.EP, pg.VMP])
def test_a_factor_without_a_density_is_named(infer):
    model = with_one_other(
        lambda x: dist.Normal(x, 1.0),
        lambda x: dist.Normal(x, torch.sqrt(x - 0.2), validate_args=False),
    )
    with pytest.raises(NonFiniteDensity, match=r'"y20".* NaN'):
        infer(model, progress=False).run()


def test_a_factor_with_zeros_is_named():
    model = with_one_other(
        lambda x: dist.Uniform(x - 1e3, x + 1e3, validate_args=False),
        lambda x: dist.Uniform(x - 1.0, x + 1.0, validate_args=False),
    )
    with pytest.raises(OptionError, match=r'"y20".* zeros'):
        pg.VMP(model, progress=False).run()


def test_a_regression_stays_as_it_is():
    x = torch.randn(30, 3)

    def model():
        b = pyro.sample("b", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        s = pyro.sample("s", dist.HalfNormal(1.0))
        with pyro.plate("rows", 30):
            pyro.sample("y", dist.StudentT(4.0, x @ b, s), obs=x[:, 0])

    assert not products(pg.EP(model, progress=False).setup())


def test_the_evidence_is_differentiable():
    def log_z(scale):
        return pg.fit(smoothing, (Y, scale), infer=pg.EP, tol=1e-10, progress=False).log_evidence

    scale = torch.tensor(0.4, requires_grad=True)
    (slope,) = torch.autograd.grad(log_z(scale), scale)
    step = 1e-3
    up, down = (smoothing_truth(Y, 0.4 + d)[0] for d in (step, -step))
    assert float(slope) == pytest.approx((up - down) / (2 * step), rel=5e-3)


def test_a_resumed_run_is_the_uninterrupted_one():
    unbroken = pg.EP(smoothing, progress=False).run(SHORT)
    half = pg.EP(smoothing, progress=False)
    half.step(SHORT)
    rest = pg.EP(smoothing, progress=False)
    rest.load_state_dict(half.state_dict())
    found = rest.run(SHORT)
    for site in ("share", "start"):
        assert torch.equal(found.marginal(site).mean, unbroken.marginal(site).mean)


def chance_of_each(y, rates, prior):
    """Log evidence, mean and sd of a number, chances of a label, whose log rates add up."""
    grid = np.linspace(-6, 6, 12001)
    log_rate = grid[:, None] + rates
    log_p = stats.norm.logpdf(grid)[:, None] + np.log(prior)
    log_p = log_p + stats.poisson.logpmf(y[:, None, None], np.exp(log_rate)).sum(0)
    p = np.exp(log_p - log_p.max())
    log_z = log_p.max() + np.log(p.sum() * (grid[1] - grid[0]))
    p /= p.sum()
    mean = p.sum(1) @ grid
    return log_z, mean, np.sqrt(p.sum(1) @ (grid - mean) ** 2), p.sum(0)


@pytest.mark.parametrize("groups", [1, 3])
def test_counts_of_a_label_and_a_number_are_one_factor(groups):
    """Apart, the label was certain after 300 counts (1e-9 where it is .47), and 'converged'."""
    rates, prior = torch.tensor([0.0, 0.3, 0.6]), torch.tensor([0.5, 0.3, 0.2])
    pyro.set_rng_seed(0)
    y = torch.poisson(torch.full((100, groups), 1.7))

    def model():
        with pyro.plate("groups", groups):
            theta = pyro.sample("theta", dist.Normal(0.0, 1.0))
            z = pyro.sample("z", dist.Categorical(prior))
            with pyro.plate("counts", 100):
                pyro.sample("y", dist.Poisson((theta + rates[z]).exp()), obs=y)

    found = pg.fit(model, infer=pg.EP, num_steps=100, progress=False)
    assert found.converged
    theta, z = found.marginal("theta"), found.marginal("z").probs
    truths = [chance_of_each(own.numpy(), rates.numpy(), prior.numpy()) for own in y.T]
    assert float(found.log_evidence) == pytest.approx(sum(t[0] for t in truths), abs=1e-4)
    for g, (_, mean, sd, chances) in enumerate(truths):
        assert float(theta.mean[g]) == pytest.approx(mean, abs=1e-4)
        assert float(theta.variance[g].sqrt()) == pytest.approx(sd, rel=1e-3)
        assert_close(z[g], torch.from_numpy(chances), atol=1e-4, rtol=0)


def test_trials_and_their_chance():
    """An unknown number of trials: n p is known, n is not. Apart, hundreds of sweeps went by."""
    k, most = torch.tensor([4.0, 6.0, 5.0, 9.0]), 40

    def model():
        chance = pyro.sample("chance", dist.Beta(2.0, 2.0))
        n = pyro.sample("n", dist.Categorical(torch.ones(most))) + 1
        with pyro.plate("rounds", len(k)):
            total = n.to(k.dtype)
            pyro.sample("k", dist.Binomial(total, chance, validate_args=False), obs=k)

    found = pg.fit(model, infer=pg.EP, num_steps=40, progress=False)
    assert found.converged
    n = np.arange(1, most + 1)
    chance = (np.arange(4000) + 0.5) / 4000
    p = stats.binom.pmf(k.numpy()[:, None, None], n[:, None], chance).prod(0)
    p *= stats.beta.pdf(chance, 2, 2) / len(chance) / most
    log_z = np.log(p.sum())
    p /= p.sum()
    assert float(found.log_evidence) == pytest.approx(log_z, abs=0.02)
    assert_close(found.marginal("n").probs, torch.from_numpy(p.sum(1)), atol=0.003, rtol=0)
    assert float(found.marginal("chance").mean) == pytest.approx(p.sum(0) @ chance, abs=0.002)
