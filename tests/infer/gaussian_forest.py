"""A Gaussian forest whose posterior is one dense normal."""

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch

#: Of a covariance's entries over the product of scales, with 20,000 draws: standard errors are
#: .007 to .01.
FROM_DRAWS = 0.04
MIX = [[0.8, 0.3], [-0.2, 0.6]]
NOISE = [[0.5, 0.2], [0.2, 0.4]]
SITES = {"a": 1, "b": 3, "v": 2, "w": 2, "u": 1}


def gaussian_forest():
    """Numbers and vectors: two trees, one with a factor of three nodes and narrow links."""
    a = pyro.sample("a", dist.Normal(0.5, 1.5))
    with pyro.plate("leaves", 3):
        b = pyro.sample("b", dist.Normal(0.9 * a, torch.tensor([0.02, 0.4, 1.0])))
    v = pyro.sample("v", dist.MultivariateNormal(torch.zeros(2), torch.eye(2) + 0.4))
    w = pyro.sample("w", dist.MultivariateNormal(torch.tensor(MIX) @ v, torch.tensor(NOISE)))
    u = pyro.sample("u", dist.Normal(0.0, 1.0))
    pyro.factor("three", -(b[2] + 2 * v[0] - v[1] + u - 0.3).square())
    pyro.sample("y", dist.Normal(b[1], 0.5), obs=torch.tensor(2.0))
    pyro.sample("z", dist.MultivariateNormal(w, torch.tensor(NOISE)), obs=torch.tensor([1.0, -0.5]))


def exact_normal():
    """Mean and covariance of the nine numbers, from the program's log density."""

    def log_density(x):
        parts = zip(SITES, x.split(list(SITES.values())), strict=True)
        values = {name: part[0] if name in "au" else part for name, part in parts}
        program = poutine.condition(gaussian_forest, values)
        return poutine.trace(program).get_trace().log_prob_sum()

    zero = torch.zeros(9)
    precision = -torch.autograd.functional.hessian(log_density, zero)
    slope = torch.autograd.functional.jacobian(log_density, zero)
    covariance = torch.linalg.inv(precision)
    return (covariance @ slope).numpy(), covariance.numpy()


def packed(values):
    return torch.cat([values[name].reshape(-1, n) for name, n in SITES.items()], 1).numpy()


def assert_covariance(draws, expected):
    """Of 20,000 draws."""
    scale = np.sqrt(np.diag(expected))
    off = (np.cov(draws.T) - expected) / np.outer(scale, scale)
    assert np.abs(off).max() < FROM_DRAWS
