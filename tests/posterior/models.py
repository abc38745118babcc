"""Programs whose posteriors are known in closed form, and posteriors of exact draws."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyrograph as pg
from pyrograph.posterior import ParticlePosterior


def conjugate(y: Tensor):
    """mu ~ N(0, 2^2), y_k ~ N(mu, 1)."""
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def conjugate_truth(y: Tensor) -> tuple[Tensor, Tensor, float]:
    """Posterior mean and variance; log p(y) as a Gaussian with covariance I + 4 11'."""
    precision = 1 / 4 + len(y)
    covariance = torch.eye(len(y)) + 4
    log_evidence = dist.MultivariateNormal(torch.zeros(len(y)), covariance).log_prob(y)
    return y.sum() / precision, torch.tensor(1 / precision), float(log_evidence)


def two_sites(y: Tensor):
    """a ~ LogNormal(0, 1) and y ~ N(log a, 0.5); b_k ~ N(0, 1) and z_k = b_k + noise, in a plate.

    With u = log a all is Gaussian: u | y ~ N(0.8 y, 0.2), y ~ N(0, 1.25).
    """
    a = pyro.sample("a", dist.LogNormal(0.0, 1.0))
    pyro.sample("y", dist.Normal(a.log(), 0.5), obs=y[0])
    with pyro.plate("outer", 2, dim=-1), pyro.plate("inner", 3, dim=-2):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.sample("z", dist.Normal(b, 1.0), obs=y[1:].reshape(3, 2))


def two_sites_evidence(y: Tensor) -> float:
    log_y = dist.Normal(0.0, math.sqrt(1.25)).log_prob(y[0])
    return float(log_y + dist.Normal(0.0, math.sqrt(2.0)).log_prob(y[1:]).sum())


def two_sites_draws(y: Tensor, n: int) -> Tensor:
    """Exact draws of the posterior in unconstrained space, columns a and then b."""
    u = 0.8 * y[0] + math.sqrt(0.2) * torch.randn(n, 1)
    b = y[1:] / 2 + math.sqrt(0.5) * torch.randn(n, 6)
    return torch.cat([u, b], 1)


def posterior_of(model, args: tuple, x: Tensor, weights: Tensor | None = None) -> ParticlePosterior:
    graph = pg.trace_graph(model, args, unconstrained=True)
    return ParticlePosterior(graph, x, weights, converged=True, status="converged", history={})
