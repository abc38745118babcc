"""Programs with few nodes, and their truth on dense grids: numpy alone."""

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.special import logsumexp

GRID = np.linspace(-9, 9, 361)
CELL = np.log(GRID[1] - GRID[0])
CYCLE = torch.tensor([[0, 1], [1, 2], [0, 2]])


def walk():
    """A Gaussian tree."""
    x = [pyro.sample("x0", dist.Normal(0.0, 1.0))]
    for k in range(1, 5):
        x.append(pyro.sample(f"x{k}", dist.Normal(0.8 * x[-1], 0.7)))
    for k in range(5):
        pyro.sample(f"y{k}", dist.Normal(x[k], 0.5), obs=torch.tensor(float(k) - 1))


def well(x):
    """log of a density with modes at -2 and 2."""
    return -((x**2 - 4) ** 2) / 8


def chain():
    """Five double wells, neighbours pulled together: two joint modes."""
    with pyro.plate("nodes", 5):
        x = pyro.sample("x", dist.Normal(0.0, 3.0).mask(False))
        pyro.factor("well", well(x) + 0.1 * x)
    with pyro.plate("edges", 4):
        pyro.factor("pull", -0.3 * (x[1:] - x[:-1]) ** 2)


def chain_truth() -> tuple[float, np.ndarray]:
    """log Z and the nodes' densities ``[5, len(GRID)]``."""
    unary = well(GRID) + 0.1 * GRID
    pull = -0.3 * (GRID[:, None] - GRID) ** 2
    left, right = [np.zeros_like(GRID)], [np.zeros_like(GRID)]
    for _ in range(4):
        left.append(logsumexp(pull + (left[-1] + unary)[:, None], axis=0) + CELL)
        right.append(logsumexp(pull + (right[-1] + unary)[:, None], axis=0) + CELL)
    log_p = np.array([left[k] + unary + right[4 - k] for k in range(5)])
    log_z = logsumexp(log_p[0]) + CELL
    return log_z, np.exp(log_p - log_z)


def three_cycle():
    with pyro.plate("nodes", 3):
        x = pyro.sample("x", dist.Normal(0.0, 10.0).mask(False))
        pyro.factor("phi", -0.1 * x.abs())
    a, b = x[CYCLE[:, 0]], x[CYCLE[:, 1]]
    with pyro.plate("edges", 3):
        one = -0.1 * ((a - 10) ** 2 + (b + 10) ** 2)
        other = -0.1 * ((a + 10) ** 2 + (b - 10) ** 2)
        pyro.factor("psi", torch.logaddexp(one, other))


def spins():
    """A loop of four binary nodes with fields."""
    with pyro.plate("nodes", 4):
        x = pyro.sample("x", dist.Bernoulli(torch.tensor([0.3, 0.6, 0.5, 0.2]).double()))
    s = 2 * x - 1
    with pyro.plate("edges", 4):
        weight = torch.tensor([0.7, -0.4, 0.9, 0.5]).double()
        pyro.factor("pair", weight * s * s[[1, 2, 3, 0]])


def switch():
    """A tree of one discrete and two continuous nodes."""
    z = pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.5, 0.3]).double()))
    place = torch.tensor([-2.0, 0.5, 3.0]).double()
    a = pyro.sample("a", dist.Normal(place[z], 0.8))
    b = pyro.sample("b", dist.Normal(torch.tanh(a), 0.6))
    pyro.sample("y", dist.Normal(b, 0.7), obs=torch.tensor(0.9).double())
