"""A few programs that the view tests share."""

import pyro
import pyro.distributions as dist
import torch


def chain(n=5):
    x = 0.0
    for t in pyro.markov(range(n)):
        x = pyro.sample(f"x{t}", dist.Normal(x, 1.0))
        pyro.sample(f"y{t}", dist.Normal(x, 1.0), obs=torch.tensor(0.3))


def square():
    """A cycle of four nodes in a 2 x 2 batch, and a scalar of its own."""
    x = pyro.sample("x", dist.Normal(torch.zeros(2, 2), 1.0))
    pyro.sample("alone", dist.Normal(0.0, 1.0))
    pyro.factor("across", -((x[:, 0] - x[:, 1]).abs()))
    pyro.factor("down", -((x[0] - x[1]).abs()))


def mixed():
    """Event, discrete, constrained and scalar sites: widths 2, 1, 1 and 1."""
    s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
    with pyro.plate("n", 3):
        p = pyro.sample("p", dist.Normal(torch.zeros(2), s).to_event(1))
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
        pyro.sample("y", dist.Normal(p.sum(-1) + z, 1.0), obs=torch.zeros(3))
    pyro.sample("b", dist.Normal(0.0, 1.0))


def constrained():
    """A simplex of four (three reals), a correlation Cholesky factor (three), an interval (one)."""
    with pyro.plate("n", 2):
        p = pyro.sample("p", dist.Dirichlet(torch.full((4,), 2.0)))
    c = pyro.sample("c", dist.LKJCholesky(3, 2.0))
    u = pyro.sample("u", dist.Uniform(-1.0, 1.0))
    pyro.factor("f", p[0].log().sum() * u + c.diagonal().sum())


def moving_support():
    theta = pyro.sample("theta", dist.Gamma(3.0, 1.0))
    with pyro.plate("n", 3):
        pyro.sample("x", dist.Uniform(0.0, theta))


def discrete():
    """Three sites of 2, 3 and 2 states in a row; tables known by hand."""
    a = pyro.sample("a", dist.Categorical(torch.tensor([0.4, 0.6])))
    b = pyro.sample("b", dist.Categorical(TABLE_B[a]))
    pyro.sample("c", dist.Categorical(TABLE_C[a, b]))


TABLE_B = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]], dtype=torch.float64)
TABLE_C = torch.tensor(
    [[[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]], [[0.4, 0.6], [0.5, 0.5], [0.6, 0.4]]],
    dtype=torch.float64,
)
