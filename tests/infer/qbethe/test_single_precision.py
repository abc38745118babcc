"""One Gaussian along a forest, and line searches, in single precision: computed in double."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg

SINGLE = torch.float32
PLACE, SPREAD, LENGTH = 1e6, 1e6, 50


@pytest.fixture(autouse=True)
def single_precision(clean_state):
    torch.set_default_dtype(SINGLE)  # put back by the fixture of all tests


def track():
    """A walk in metres north of the equator, seen once a step."""
    return PLACE + torch.randn(LENGTH).cumsum(0) + torch.randn(LENGTH)


def walk(y):
    with pyro.plate("t", LENGTH):
        x = pyro.sample("x", dist.Normal(0.0, SPREAD))
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)
    with pyro.plate("e", LENGTH - 1):
        pyro.factor("tie", -0.5 * (x[1:] - x[:-1]).square())


def truth(y):
    """Means about PLACE, standard deviations and log evidence, by dense algebra."""
    precision = np.diag(np.full(LENGTH, 1 + SPREAD**-2))
    for k in range(LENGTH - 1):
        precision[k : k + 2, k : k + 2] += [[1, -1], [-1, 1]]
    r = y.double().numpy() - PLACE
    h = r - PLACE * SPREAD**-2
    mean = np.linalg.solve(precision, h)
    log_z = -0.5 * LENGTH * np.log(2 * np.pi) - LENGTH * np.log(SPREAD)
    log_z += -0.5 * np.linalg.slogdet(precision)[1] + 0.5 * h @ mean
    log_z -= 0.5 * (r @ r + LENGTH * (PLACE / SPREAD) ** 2)
    return mean, np.sqrt(np.diag(np.linalg.inv(precision))), log_z


def test_an_exact_start_far_from_zero_is_stayed_at():
    y = track()
    options = {"num_components": 1, "covariance": "full", "num_steps": 300, "tol": 1e-3}
    posterior = pg.fit(walk, (y,), infer=pg.QBethe, progress=False, **options)
    mean, sd, log_z = truth(y)
    assert posterior.converged
    assert float(posterior.log_evidence) == pytest.approx(log_z, abs=1e-3)
    marginal = posterior.marginal("x")
    # results are numbers .06 apart
    np.testing.assert_allclose(marginal.mean.double().numpy() - PLACE, mean, rtol=0, atol=0.07)
    np.testing.assert_allclose(marginal.variance.sqrt().numpy(), sd, rtol=1e-5)
    found = [posterior.log_evidence, marginal.mean, posterior.sample(3)["x"]]
    assert {t.dtype for t in found} == {SINGLE}
    # a node that is given, with the values of single precision, and the guide
    seen = torch.where(torch.arange(LENGTH) == 0, y, y.new_zeros(()))
    given = posterior.condition({"x": seen}, {"x": torch.arange(LENGTH) == 0})
    assert given.marginal("x").mean.dtype == SINGLE
    guide = posterior.guide()
    assert {p.dtype for p in guide.parameters()} == {SINGLE}
    assert guide()["x"].dtype == SINGLE


def test_line_searches_come_to_rest():
    scale = 0.02
    y = 287 + scale * torch.distributions.StudentT(4.0).sample((200,))

    def model():
        m = pyro.sample("m", dist.Normal(287.0, 10.0))
        with pyro.plate("n", 200):
            pyro.sample("y", dist.StudentT(4.0, m, scale), obs=y)

    options = {"num_components": 3, "optimizer": "lbfgs", "tol": 1e-3, "num_steps": 100}
    posterior = pg.fit(model, infer=pg.QBethe, progress=False, **options)
    assert posterior.converged and posterior.log_evidence.dtype == SINGLE
    grid = torch.linspace(-0.02, 0.02, 4001, dtype=torch.float64)
    r = (y.double() - 287)[:, None] - grid
    log_p = dist.StudentT(torch.tensor(4.0).double(), 0.0, scale).log_prob(r).sum(0)
    weight = log_p.softmax(0)
    mean = float((weight * grid).sum())
    sd = float((weight * (grid - mean) ** 2).sum().sqrt())
    found = posterior.marginal("m")
    # 287 has digits of 3e-5 in single precision
    assert float(found.mean.double()) - 287 == pytest.approx(mean, abs=0.1 * sd + 3e-5)
    assert float(found.variance.sqrt()) == pytest.approx(sd, rel=0.05)


def test_the_precision_of_results_is_the_one_asked_for():
    y = track()
    options = {"num_components": 1, "covariance": "full", "num_steps": 30, "progress": False}
    for dtype in (torch.float64, SINGLE, None):
        posterior = pg.fit(walk, (y,), infer=pg.QBethe, dtype=dtype, **options)
        expected = dtype or SINGLE
        assert posterior.log_evidence.dtype == posterior.marginal("x").mean.dtype == expected
        assert posterior.sample(2)["x"].dtype == expected
