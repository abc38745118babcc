"""Exponential potentials far from where they are small. Truth: the mode and curvature by Newton."""

import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import ConvergenceWarning
from pyrograph.infer.qbethe import adam, engine, start
from pyrograph.infer.qbethe.narrow_start import NarrowStart

N, P, WIDTH = 300, 4, 10.0


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def from_a_draw(monkeypatch):
    """Starts where rates are huge, not at the mode."""
    monkeypatch.setattr(engine, "start_at_modes", lambda *given: False)
    monkeypatch.setattr(NarrowStart, "places", lambda *given: [])
    monkeypatch.setattr(start, "HUGE", math.inf)


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.ones(N, 1), torch.randn(N, P, generator=generator)], 1)
    rate = (x @ torch.tensor([1.0, 0.5, -0.3, 0.2, 0.0])).exp()
    return x, torch.poisson(rate, generator=generator)


def poisson_regression(x, y):
    b = pyro.sample("b", dist.Normal(0.0, WIDTH).expand([P + 1]).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Poisson((x @ b).exp()), obs=y)


def laplace(x, y):
    """Mode, covariance and log evidence, off by terms of 1 / n."""
    b = torch.zeros(P + 1)
    b[0] = y.mean().log()
    for _ in range(50):
        rate = (x @ b).exp()
        precision = x.mT @ (rate[:, None] * x) + torch.eye(P + 1) / WIDTH**2
        b = b + torch.linalg.solve(precision, x.mT @ (y - rate) - b / WIDTH**2)
    log_p = (
        dist.Poisson((x @ b).exp()).log_prob(y).sum() + dist.Normal(0.0, WIDTH).log_prob(b).sum()
    )
    log_z = log_p + 0.5 * (P + 1) * math.log(2 * math.pi) - 0.5 * torch.logdet(precision)
    return b, torch.linalg.inv(precision), float(log_z)


@pytest.mark.parametrize("seed", range(2))
def test_the_posterior_is_found_from_a_start_of_huge_rates(seed, from_a_draw):
    q = agrees_with_laplace(seed, num_steps=550)
    assert float(q.history["objective"][0]) < -1e6


@pytest.mark.parametrize("seed", range(4))
def test_a_start_at_the_mode_above_huge_rates_is_near_the_end(seed):
    q = agrees_with_laplace(seed, num_steps=40)
    assert float(q.history["objective"][0]) > -600


def agrees_with_laplace(seed, num_steps):
    x, y = data()
    pyro.set_rng_seed(seed)
    options = {"num_components": 1, "covariance": "full", "tol": 0.01, "num_steps": num_steps}
    q = pg.fit(poisson_regression, (x, y), infer=pg.QBethe, progress=False, **options)
    assert q.converged
    mode, covariance, log_z = laplace(x, y)
    assert_close(q.marginal("b").mean, mode, rtol=0, atol=0.01)
    assert_close(q.marginal("b").variance, covariance.diagonal(), rtol=0.1, atol=0)
    assert float(q.log_evidence) == pytest.approx(log_z, abs=0.05)
    return q


@pytest.mark.parametrize("seed", [0, 1])
def test_steps_that_became_tiny_are_no_convergence(seed, monkeypatch, from_a_draw):
    monkeypatch.setattr(adam, "LARGEST", math.inf)
    pyro.set_rng_seed(seed)
    options = {"num_components": 1, "covariance": "full", "tol": 0.01, "num_steps": 200}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        q = pg.fit(poisson_regression, data(), infer=pg.QBethe, progress=False, **options)
    assert not q.converged and float(q.log_evidence) < -1e4
    assert 'optimizer="lbfgs"' in q.status or "still moves" in q.status
