"""Likelihoods that recur in their parameters, against dense grids over these."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.graph import trace_graph
from pyrograph.graph.products import product
from pyrograph.infer.message_passing import shared_work


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


#: A noisy rise.
Y = torch.arange(40.0).div(20).add(torch.sin(torch.arange(40.0) ** 2).mul(0.4))


def smoothing(y, scale=0.4):
    """Exponential smoothing: a level that each observation moves by a share of its error."""
    share = pyro.sample("share", dist.Normal(0.0, 1.5))
    start = pyro.sample("start", dist.Normal(0.0, 1.0))
    level = start
    for t in range(len(y)):
        pyro.sample(f"y{t}", dist.Normal(level, scale), obs=y[t])
        level = level + torch.sigmoid(share) * (y[t] - level)


def smoothing_truth(y, scale=0.4):
    """Log evidence, means and variances of share and start, and of the level after four."""
    grid = np.linspace(-9, 9, 601)
    share, level = grid[:, None], np.broadcast_to(grid[None], (601, 601))
    log_p = stats.norm.logpdf(share, 0, 1.5) + stats.norm.logpdf(level)
    for value in y.numpy():
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
    whole = product(graph, group, rows)
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
        bounds.append(float(engine.run(Y).log_evidence))
        assert bool(products(engine)) == (deep < 10**9)
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-6)
    assert bounds[0] < smoothing_truth(Y)[0]


@pytest.mark.parametrize(
    ("infer", "options"), [(pg.PowerEP, {"alpha": 0.5}), (pg.EP, {"family": {"s": "gamma"}})]
)
def test_other_alphas_and_other_families_stay_apart(infer, options):
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        s = pyro.sample("s", dist.Gamma(5.0, 5.0))
        x = a
        for t in range(30):
            x = torch.tanh(x * a)
            pyro.sample(f"y{t}", dist.Normal(x, s), obs=Y[t])

    engine = infer(model, progress=False, **options).setup()
    assert not products(engine)


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
    unbroken = pg.EP(smoothing, progress=False).run(Y)
    half = pg.EP(smoothing, progress=False)
    half.step(Y)
    rest = pg.EP(smoothing, progress=False)
    rest.load_state_dict(half.state_dict())
    found = rest.run(Y)
    for site in ("share", "start"):
        assert torch.equal(found.marginal(site).mean, unbroken.marginal(site).mean)
