"""Programs for engine tests, with what is known about their posteriors."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor


def gaussian_chain(num_nodes: int = 5):
    """A first-order chain of unit-scale increments, each node observed: (program, y)."""

    def model(y: Tensor):
        scale = torch.ones((), dtype=y.dtype, device=y.device)
        x = torch.zeros_like(scale)
        for t in pyro.markov(range(num_nodes)):
            x = pyro.sample(f"x{t}", dist.Normal(x, scale))
            pyro.sample(f"y{t}", dist.Normal(x, scale), obs=y[t])

    return model, torch.linspace(-2.0, 3.0, num_nodes)


def chain_truth(y: Tensor) -> tuple[Tensor, Tensor]:
    """Posterior mean and covariance: precision D'D + I with D the first difference."""
    difference = torch.eye(len(y)) - torch.diag(torch.ones(len(y) - 1), -1)
    covariance = torch.linalg.inv(difference.T @ difference + torch.eye(len(y)))
    return covariance @ y, covariance


def sensors(num_sensors: int = 4, dtype: torch.dtype = torch.float64):
    """2-D nodes on a path, distances between neighbours measured: (program, args)."""
    src, dst = torch.arange(num_sensors - 1), torch.arange(1, num_sensors)
    ranges = torch.linspace(0.5, 1.5, num_sensors - 1, dtype=dtype)

    def model(ranges: Tensor):
        zero = torch.zeros(2, dtype=dtype)
        with pyro.plate("sensors", num_sensors):
            x = pyro.sample("x", dist.Normal(zero, 1.0).to_event(1))
        with pyro.plate("links", len(src)):
            distance = (x[src] - x[dst]).norm(dim=-1)
            pyro.sample("r", dist.Normal(distance, 0.2), obs=ranges)

    return model, (ranges,)


def positive_and_simplex():
    pyro.sample("s", dist.Gamma(3.0, 2.0))
    pyro.sample("w", dist.Dirichlet(torch.tensor([2.0, 3.0, 4.0])))
    with pyro.plate("p", 2):
        pyro.sample("u", dist.Uniform(-1.0, 1.0))


def overflowing():
    """Finite near the origin; the factor's log density is -inf beyond x = 7.1."""
    with pyro.plate("p", 3):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("wall", -torch.exp(100 * (x + torch.tensor([-100.0, 0.0, -100.0]))))
