"""Numbers of one site in units that are far apart: the same posterior in those units."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg

UNIT = torch.tensor([1e-4, 1.0, 1e6], dtype=torch.float64)
X = torch.tensor(
    [[1.0, 0.3, -0.8], [1.0, -1.2, 0.4], [1.0, 0.7, 1.6], [1.0, 2.0, -0.2], [1.0, -0.4, -1.1]],
    dtype=torch.float64,
)
Y = torch.tensor([1.3, 0.2, 2.4, 2.1, -0.3], dtype=torch.float64)


def regression(unit, is_vector):
    prior = dist.Normal(torch.zeros(3, dtype=torch.float64), 2 / unit)
    if is_vector:
        slopes = pyro.sample("slopes", prior.to_event(1))
    else:
        with pyro.plate("columns", 3):
            slopes = pyro.sample("slopes", prior)
    with pyro.plate("rows", len(Y)):
        pyro.sample("y", dist.Normal((X * unit) @ slopes, 0.5), obs=Y)


def truth():
    """Log evidence, means and deviations of slopes in unit 1."""
    x, y = X.numpy(), Y.numpy()
    covariance = 4 * x @ x.T + 0.25 * np.eye(len(y))
    log_z = -0.5 * (
        y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(2 * math.pi * covariance)[1]
    )
    own = np.linalg.inv(x.T @ x / 0.25 + np.eye(3) / 4)
    return log_z, torch.as_tensor(own @ x.T @ y / 0.25), torch.as_tensor(np.diag(own) ** 0.5)


@pytest.mark.parametrize(
    "options", [{"covariance": "full", "num_components": 1}, {"num_components": 1}]
)
@pytest.mark.parametrize("is_vector", [True, False])
def test_columns_of_other_units(is_vector, options):
    log_z, mean, deviation = truth()
    pyro.set_rng_seed(0)
    options = {"infer": pg.QBethe, "num_steps": 400, "progress": False, **options}
    posterior = pg.fit(regression, (UNIT, is_vector), **options)
    marginal = posterior.marginal("slopes")
    assert_close(marginal.mean * UNIT, mean, rtol=0, atol=0.02)
    assert log_z - 1.0 < float(posterior.log_evidence) < log_z + 1e-6
    if is_vector and "covariance" in options:  # one node, the posterior a Gaussian
        assert float(posterior.log_evidence) == pytest.approx(log_z, abs=1e-4)
        assert_close(marginal.variance.sqrt() * UNIT, deviation, rtol=1e-3, atol=0)
