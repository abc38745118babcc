"""Mean field where log densities are sums of products of statistics: normal densities of a mean and
a precision that labels choose. Truth: expectations by hand, and coordinate ascent as in textbooks
(Bishop 2006, section 10.2)."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import special
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.beliefs import LogGamma
from pyrograph.errors import UnsupportedFactor
from pyrograph.infer.message_passing.continuous import closed_form
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from tests.infer.message_passing_continuous.runs import fit

DOUBLE = torch.float64
LOG_2_PI = np.log(2 * np.pi)
Y = torch.tensor([-3.1, -2.7, -2.2, 0.4, 1.9, 2.3, 2.9, 3.3], dtype=DOUBLE)
LOC = torch.tensor([-2.0, 1.0, 2.0], dtype=DOUBLE)
FAMILIES = {"tau": "gamma", "w": "dirichlet"}


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def mixture(y=Y, loc=LOC, prior_sd=2.0):
    w = pyro.sample("w", dist.Dirichlet(torch.ones(len(loc))))
    with pyro.plate("components", len(loc)):
        mu = pyro.sample("mu", dist.Normal(loc, prior_sd))
        tau = pyro.sample("tau", dist.Gamma(2.0, 1.5))
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Categorical(w))
        pyro.sample("y", dist.Normal(mu[z], tau[z].rsqrt()), obs=y)


def block_of(model, args=(), **options):
    engine = pg.VMP(model, family=FAMILIES, progress=False, **options).setup(*args)
    (block,) = [b for b, (g, _) in zip(engine.network.blocks, engine.network.members, strict=True)
                if g.name == "y"]  # fmt: skip
    return block


def of_normal(y, m, v, a, b):
    """E log N(y; mu, 1 / tau), its derivatives by mu, and what it says of tau."""
    square = (y - m) ** 2 + v
    average = 0.5 * (special.digamma(a) - np.log(b) - LOG_2_PI - a / b * square)
    natural = np.stack([np.full_like(square, 0.5), 0.5 * square], -1)
    return average, a / b * (y - m), -a / b + 0 * m, natural


@pytest.mark.parametrize("far", [0.0, 1e5])
def test_expectations_are_those_by_hand(far):
    closed = block_of(mixture, (Y + far, LOC + far)).expected.closed
    size = (3, len(Y))  # states, rows
    draw = np.random.default_rng(0)
    m, v = far + draw.normal(size=size), np.exp(draw.normal(size=size))
    a, b = np.exp(draw.normal(size=size)), np.exp(draw.normal(size=size))
    r = closed.local.dim
    mean, covariance = torch.zeros(*size, r), torch.zeros(*size, r, r)
    (own,) = closed.gaussian
    mean[..., own], covariance[..., own, own] = torch.tensor(m), torch.tensor(v)
    q = LogGamma(torch.tensor(np.stack([a, b], -1)))
    found = closed((mean, covariance), [q])
    average, slope, bend, natural = of_normal(Y.numpy() + far, m, v, a, b)
    tolerance = 1e-9 if far == 0 else 1e-4  # 1e5 and 1 in one number
    np.testing.assert_allclose(found.average.numpy(), average, rtol=tolerance)
    np.testing.assert_allclose(found.slope[..., own].numpy(), slope, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.bend[..., own, own].numpy(), bend, rtol=tolerance)
    np.testing.assert_allclose(found.natural[0].numpy(), natural, rtol=tolerance, atol=tolerance)


def ascended(y, loc, prior_sd=2.0, sweeps=4000):
    """Bound, means of mu, rates of tau and labels."""
    count, n = len(loc), len(y)
    a0, b0, t0 = 2.0, 1.5, prior_sd**-2
    m, v = loc.copy(), np.full(count, prior_sd**2)
    a, b = np.full(count, a0), np.full(count, b0)
    labels = np.full((n, count), 1 / count)
    for _ in range(sweeps):
        alpha = 1 + labels.sum(0)
        log_w = special.digamma(alpha) - special.digamma(alpha.sum())
        average = of_normal(y[:, None], m, v, a, b)[0]
        labels = special.softmax(log_w + average, 1)
        total = labels.sum(0)
        v = 1 / (t0 + a / b * total)
        m = v * (t0 * loc + a / b * (labels * y[:, None]).sum(0))
        a = a0 + total / 2
        b = b0 + 0.5 * (labels * ((y[:, None] - m) ** 2 + v)).sum(0)
    alpha = 1 + labels.sum(0)
    log_w = special.digamma(alpha) - special.digamma(alpha.sum())
    log_tau = special.digamma(a) - np.log(b)
    bound = (labels * (log_w + of_normal(y[:, None], m, v, a, b)[0])).sum()
    bound -= special.xlogy(labels, labels).sum()
    bound += (0.5 * (np.log(t0 * v) + 1 - t0 * ((m - loc) ** 2 + v))).sum()
    bound += (a0 * np.log(b0) - special.gammaln(a0) + (a0 - a) * log_tau + (b - b0) * a / b
              + special.gammaln(a) - a * np.log(b)).sum()  # fmt: skip
    of_w = special.gammaln(alpha).sum() - special.gammaln(alpha.sum())
    bound += special.gammaln(count) + of_w - ((alpha - 1) * log_w).sum()
    return bound, m, a / b, labels


def test_a_mixture_of_means_and_precisions_is_that_of_textbooks():
    q = fit(mixture, (), pg.VMP, family=FAMILIES)
    bound, m, tau, labels = ascended(Y.numpy(), LOC.numpy())
    assert q.converged and q.evidence_kind == "lower bound"
    assert_close(float(q.log_evidence), bound, rtol=0, atol=1e-6)
    np.testing.assert_allclose(q.marginal("mu").mean.numpy(), m, atol=1e-5)
    np.testing.assert_allclose(q.marginal("tau").mean.numpy(), tau, rtol=1e-5)
    np.testing.assert_allclose(q.marginal("z").probs.numpy(), labels, atol=1e-5)


def test_it_needs_no_values_of_the_program_once_it_is_read(monkeypatch):
    engine = pg.VMP(mixture, family=FAMILIES, progress=False, num_steps=20).setup()
    counted = []
    at_read = LocalDensity._at_read
    monkeypatch.setattr(
        LocalDensity, "_at_read", lambda self, x: counted.append(1) or at_read(self, x)
    )
    before = float(engine.log_evidence)  # of one node's own factors
    own = len(counted)
    engine.iteration.step(False, 1e-8)
    assert len(counted) == own and float(engine.log_evidence) > before


def test_data_far_from_zero_say_the_same():
    near, far = (fit(mixture, (Y + d, LOC + d), pg.VMP, family=FAMILIES) for d in (0.0, 1e5))
    assert_close(float(far.log_evidence), float(near.log_evidence), rtol=0, atol=1e-4)
    assert_close(far.marginal("tau").mean, near.marginal("tau").mean, rtol=1e-5, atol=0)


def regression(x, y):
    slope = pyro.sample("slope", dist.Normal(torch.zeros(2), 3.0).to_event(1))
    tau = pyro.sample("tau", dist.Gamma(2.0, 1.5))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(x @ slope, tau.rsqrt()), obs=y)


def test_a_regression_of_unknown_precision_is_that_of_coordinate_ascent():
    draw = np.random.default_rng(1)
    x, noise = draw.normal(size=(30, 2)), 0.7 * draw.normal(size=30)
    y = x @ np.array([1.5, -2.0]) + noise
    q = fit(regression, (torch.tensor(x), torch.tensor(y)), pg.VMP, family={"tau": "gamma"})
    a, b = 2.0 + 15, 1.5
    for _ in range(500):
        v = np.linalg.inv(np.eye(2) / 9 + a / b * x.T @ x)
        m = v @ (a / b * x.T @ y)
        b = 1.5 + 0.5 * (((y - x @ m) ** 2).sum() + np.trace(x @ v @ x.T))
    np.testing.assert_allclose(q.marginal("slope").mean.numpy(), m, rtol=1e-7)
    np.testing.assert_allclose(q.marginal("slope").covariance_matrix.numpy(), v, rtol=1e-7)
    np.testing.assert_allclose(float(q.marginal("tau").mean), a / b, rtol=1e-7)


def heavy_tails(y=Y):
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = pyro.sample("tau", dist.Gamma(2.0, 1.5))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.StudentT(4.0, mu, tau.rsqrt()), obs=y)


def limited(y=Y):
    """Another function of the precision behind a threshold."""
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = pyro.sample("tau", dist.Gamma(2.0, 1.5))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(mu, tau.clamp_max(100.0).rsqrt()), obs=y)


@pytest.mark.parametrize("model", [heavy_tails, limited])
def test_other_functions_are_integrated(model):
    assert block_of_other(model, {"tau": "gamma"}).expected.closed is None


def block_of_other(model, family):
    engine = pg.VMP(model, family=family, progress=False).setup()
    (block,) = [b for b, (g, _) in zip(engine.network.blocks, engine.network.members, strict=True)
                if g.name == "y"]  # fmt: skip
    return block


def test_the_bound_differentiates_by_what_the_data_are():
    y = Y.clone().requires_grad_()
    value = fit(mixture, (y,), pg.VMP, family=FAMILIES).log_evidence
    (slope,) = torch.autograd.grad(value, y)
    way = torch.linspace(-1, 2, len(Y))
    ends = [
        float(fit(mixture, (Y + step * way,), pg.VMP, family=FAMILIES).log_evidence)
        for step in (-1e-5, 1e-5)
    ]
    assert_close(float(slope @ way), (ends[1] - ends[0]) / 2e-5, rtol=1e-4, atol=1e-6)


def test_wide_means_need_no_grid():
    """Twelve numbers a row: a grid of three points each would be half a million."""
    loc = torch.cat([torch.zeros(1, 12), torch.ones(1, 12)])
    y = loc[torch.tensor([0, 0, 1])] + 0.1

    def model():
        with pyro.plate("components", 2):
            mu = pyro.sample("mu", dist.Normal(loc, 1.0).to_event(1))
        with pyro.plate("rows", 3):
            z = pyro.sample("z", dist.Categorical(torch.ones(2) / 2))
            pyro.sample("y", dist.Normal(mu[z], 0.1).to_event(1), obs=y)

    block = block_of_other(model, {})
    assert block.expected.closed is not None and block.expected.rule is None
    q = fit(model, (), pg.VMP)
    weight = torch.tensor([2.0, 1.0]).unsqueeze(1) * 100
    truth = (loc + weight * (loc + 0.1)) / (1 + weight)
    assert_close(q.marginal("mu").mean, truth, rtol=1e-6, atol=1e-6)


def test_of_very_many_numbers_nothing_is_read(monkeypatch):
    """Two hundred numbers have 20,301 products: the matrix of these would be 3 GB."""
    sizes = []
    made = closed_form.stencil
    monkeypatch.setattr(closed_form, "stencil", lambda size: sizes.append(size) or made(size))

    def model():
        mu = pyro.sample("mu", dist.Normal(torch.zeros(200), 1.0).to_event(1))
        tau = pyro.sample("tau", dist.Gamma(2.0, 1.5))
        pyro.sample("y", dist.Normal(mu, tau.rsqrt()).to_event(1), obs=torch.ones(200))

    with pytest.raises(UnsupportedFactor, match='"y"'):
        fit(model, (), pg.VMP, family={"tau": "gamma"})
    assert not sizes


@pytest.mark.parametrize("unit", [1e7, 1e8, 1e-8])
def test_vectors_in_other_units(unit):
    """Steps of 1 change log f by less than its rounding where data are 1e7: the bound of 12
    rows was 12 nats above the evidence, and at 1e8 runs ended in an error."""
    y = torch.tensor([[-3.2, -2.5], [-2.9, -3.6], [3.3, 2.4], [2.6, 3.1]])

    def model(unit):
        with pyro.plate("components", 2):
            at = torch.tensor([[-3.0], [3.0]]).expand(2, 2)
            mu = pyro.sample("mu", dist.Normal(at * unit, unit).to_event(1))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Categorical(torch.ones(2) / 2))
            pyro.sample("y", dist.Normal(mu[z], unit).to_event(1), obs=y * unit)

    own, other = fit(model, (1.0,), pg.VMP), fit(model, (unit,), pg.VMP)
    expected = float(own.log_evidence) - y.numel() * np.log(unit)
    assert float(other.log_evidence) == pytest.approx(expected, abs=1e-7)
    assert_close(other.marginal("mu").mean / unit, own.marginal("mu").mean, rtol=0, atol=1e-7)
