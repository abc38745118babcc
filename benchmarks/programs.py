"""Programs that several benchmarks time: grids, a sensor network, an HMM, regressions."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from pyro.ops.indexing import Vindex
from torch import Tensor

Program = tuple[Callable, tuple]


def grid_edges(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Right and down neighbours of a pixel grid, as two index tensors."""
    i = torch.arange(height * width).view(height, width)
    start = torch.cat([i[:, :-1].flatten(), i[:-1].flatten()])
    end = torch.cat([i[:, 1:].flatten(), i[1:].flatten()])
    return start, end


def grid(height: int = 50, width: int = 50) -> Program:
    """Image denoising: Gaussian pixels, truncated absolute differences between neighbours."""

    def model(noisy, src, dst):
        with pyro.plate("pixels", len(noisy)):
            x = pyro.sample("x", dist.Normal(noisy, 0.1))
        with pyro.plate("edges", len(src)):
            pyro.factor("smooth", -5.0 * (x[src] - x[dst]).abs().clamp(max=0.2))

    return model, (torch.randn(height * width), *grid_edges(height, width))


def flow(height: int = 388, width: int = 584) -> Program:
    """Optical flow (Horn and Schunck with robust smoothness): two fields on a pixel grid."""

    def model(dx, dy, dt, src, dst):
        with pyro.plate("pixels", len(dx)):
            u = pyro.sample("u", dist.Normal(0.0, 10.0))
            v = pyro.sample("v", dist.Normal(0.0, 10.0))
            pyro.sample("dt", dist.Laplace(dx * u + dy * v, 1.0), obs=-dt)
        with pyro.plate("edges", len(src)):
            pyro.factor("smooth_u", -((u[src] - u[dst]) ** 2 + 1e-3).sqrt())
            pyro.factor("smooth_v", -((v[src] - v[dst]) ** 2 + 1e-3).sqrt())

    n = height * width
    return model, (torch.randn(n), torch.randn(n), torch.randn(n), *grid_edges(height, width))


def sensors(n: int = 1000, radius: float = 0.15) -> Program:
    """Range-only localisation of n sensors in the square."""
    where = torch.rand(n, 2) * 2 - 1
    distance = torch.cdist(where, where)
    src, dst = (distance < radius).triu(1).nonzero().unbind(1)

    def model(src, dst, ranges):
        with pyro.plate("sensors", n):
            x = pyro.sample("x", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        with pyro.plate("links", len(src)):
            pyro.sample("r", dist.Normal((x[src] - x[dst]).norm(dim=-1), 0.1), obs=ranges)

    return model, (src, dst, distance[src, dst])


def hmm(steps: int = 1000, states: int = 5) -> Program:
    """A hidden Markov model written with ``pyro.markov``, one site per step."""

    def model(series):
        trans = torch.softmax(torch.arange(states**2).view(states, states).sin(), -1)
        locs = torch.arange(float(states))
        z = torch.tensor(0)
        for t in pyro.markov(range(len(series))):
            z = pyro.sample(f"z{t}", dist.Categorical(Vindex(trans)[z]))
            pyro.sample(f"y{t}", dist.Normal(Vindex(locs)[z], 1.0), obs=series[t])

    return model, (torch.randn(steps),)


def logistic(rows: int = 1000, columns: int = 50) -> Program:
    """Logistic regression with a plate of weights."""
    x = torch.randn(rows, columns)

    def model(x, y):
        with pyro.plate("weights", x.shape[1]):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return model, (x, (x[:, 0] > 0).float())


def hierarchy(rows: int = 5000, groups: int = 100) -> Program:
    """Varying intercepts and slopes."""

    def model(x, y, group):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        log_sigma = pyro.sample("log_sigma", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", groups):
            a = pyro.sample("a", dist.Normal(mu, 1.0))
            b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(a[group] + b[group] * x, log_sigma.exp()), obs=y)

    return model, (torch.randn(rows), torch.randn(rows), torch.randint(groups, (rows,)))
