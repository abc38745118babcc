"""Values in the program's space where a support depends on other latents."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import biject_to, constraints
from torch.testing import assert_close

import pyrograph as pg


def program():
    x = pyro.sample("x", dist.Uniform(torch.zeros((), dtype=torch.float64), 1.0))
    pyro.sample("y", dist.Uniform(torch.zeros((), dtype=torch.float64), x + 1))
    pyro.sample("root", dist.LKJCholesky(3, torch.ones((), dtype=torch.float64)))
    pyro.sample("o", dist.Normal(x, 0.5), obs=torch.tensor(0.4, dtype=torch.float64))


def test_constants_of_values_are_kept_beside_them():
    graph = pg.trace_graph(program, unconstrained=True)
    free = {
        name: torch.randn(5, *site.batch_shape, *site.event_shape, dtype=torch.float64)
        for name, site in graph.sites.items()
    }
    found = graph.constrain(free)
    assert list(found) == ["x", "y", "root"]
    x = torch.sigmoid(free["x"])
    assert_close(found["x"], x)
    assert_close(found["y"], (1 + x) * torch.sigmoid(free["y"]))
    assert_close(found["root"], biject_to(constraints.corr_cholesky)(free["root"]))
    assert_close(found["root"][:, 0, 0], torch.ones(5, dtype=torch.float64))


# draws from marginals alone lose the dependence of y's share of its bound on x: .041 of its mean
@pytest.mark.parametrize(
    ("infer", "gap", "num_steps"), [(pg.EP, 0.06, 100), (pg.QBethe, 0.02, 150)]
)
def test_draws_lie_within_bounds_that_are_drawn_with_them(infer, gap, num_steps):
    def model():
        x = pyro.sample("x", dist.Uniform(torch.zeros((), dtype=torch.float64), 1.0))
        y = pyro.sample("y", dist.Uniform(torch.zeros((), dtype=torch.float64), x + 1))
        z = pyro.sample("z", dist.Bernoulli(torch.tensor(0.3, dtype=torch.float64)))
        pyro.sample("o", dist.Normal(x + y, 0.5), obs=torch.tensor(1.0, dtype=torch.float64))
        pyro.factor("known", 2.0 * z)

    pyro.set_rng_seed(0)
    q = pg.fit(model, infer=infer, num_steps=num_steps, progress=False)
    draws = q.sample(20000)
    x, y, z = (draws[name] for name in "xyz")
    assert bool(((y > 0) & (y < 1 + x)).all()) and 1.0 < float(y.max()) < 2.0
    # truth on a dense grid
    s = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    a, share = torch.meshgrid(s, s, indexing="ij")
    b = share * (1 + a)
    p = torch.exp(-2 * (1 - a - b) ** 2)  # uniform in a and in the share of its bound
    assert abs(float(x.mean()) - float((p * a).sum() / p.sum())) < 0.02
    assert abs(float(y.mean()) - float((p * b).sum() / p.sum())) < gap
    odds = 0.3 * torch.tensor(2.0).exp() / 0.7
    assert abs(float(z.double().mean()) - float(odds / (1 + odds))) < 0.02
