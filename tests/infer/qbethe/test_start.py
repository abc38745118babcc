"""Sites of equal width and events of different rank stand side by side: closed forms, scipy."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, stats

import pyrograph as pg


def fit(model, **options):
    pyro.set_rng_seed(0)
    default = {"optimizer": "lbfgs", "num_steps": 60, "num_quadrature": 10}
    return pg.fit(model, infer=pg.QBethe, progress=False, **{**default, **options})


def test_a_share_of_two_stands_beside_a_number():
    """pi_0 is uniform; mu given pi_0 is normal around (.3 - pi_0) / 2."""

    def model():
        pi = pyro.sample("pi", dist.Dirichlet(torch.ones(2)))
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mu + pi[0], 1.0), obs=torch.tensor(0.3))

    def integral(f):
        return integrate.quad(lambda p: f(p) * stats.norm.pdf(0.3, p, np.sqrt(2)), 0, 1)[0]

    evidence = integral(lambda p: 1)
    q = fit(model, num_components=3, num_steps=25)
    assert float(q.log_evidence) == pytest.approx(np.log(evidence), abs=0.02)
    mean = integral(lambda p: (0.3 - p) / 2) / evidence
    assert float(q.marginal("mu").mean) == pytest.approx(mean, abs=0.01)
    share = integral(lambda p: p) / evidence
    assert q.marginal("pi").mean.tolist() == pytest.approx([share, 1 - share], abs=0.01)


EVENTS = {
    "a number and a vector of one": ((), (1,)),
    "a vector of one and a number": ((1,), ()),
    "a matrix and a vector": ((2, 2), (4,)),
}


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("name", EVENTS)
def test_events_of_one_width_and_two_ranks_are_exact_in_a_gaussian_tree(name, batch):
    """Sums of a and b seen together with noise .5; each scaled, so that none stands for another."""
    first, second = EVENTS[name]
    y = torch.tensor([0.7, -1.2, 0.4])[: max(1, sum(batch))]

    def model():
        with pyro.plate("rows", len(y)) if batch else pyro.poutine.block(hide=[]):
            a = pyro.sample("a", normal(2.0, batch + first, len(first)))
            b = pyro.sample("b", normal(0.5, batch + second, len(second)))
            total = a.reshape(*batch, -1).sum(-1) + b.reshape(*batch, -1).sum(-1)
            pyro.sample("y", dist.Normal(total, 0.5), obs=y if batch else y[0])

    def normal(sd, shape, event_dim):
        return dist.Normal(torch.zeros(shape), sd).to_event(event_dim)

    width = int(np.prod(first, initial=1))
    prior = np.diag([4.0] * width + [0.25] * width)
    seen = prior.sum() + 0.25
    gain = prior.sum(1) / seen
    posterior = prior - seen * np.outer(gain, gain)
    q = fit(model, covariance="full", num_components=1, num_steps=15)
    evidence = stats.norm.logpdf(y.numpy(), 0, np.sqrt(seen)).sum()
    assert float(q.log_evidence) == pytest.approx(evidence, abs=1e-3)
    for site, part in (("a", slice(width)), ("b", slice(width, None))):
        marginal = q.marginal(site)
        mean = marginal.mean.reshape(len(y), width)
        np.testing.assert_allclose(mean, np.outer(y.numpy(), gain[part]), atol=2e-3)
        variance = marginal.variance.reshape(len(y), width)
        truth = np.tile(posterior.diagonal()[part], (len(y), 1))
        np.testing.assert_allclose(variance, truth, rtol=5e-3)


def test_components_start_at_draws_of_their_own_site_whatever_its_rank():
    """Priors far apart: every mean begins within the prior of its site."""

    def model():
        with pyro.plate("three", 3):
            pyro.sample("a", dist.Normal(100.0, 1.0))
            pyro.sample("b", dist.Normal(-100.0, 1.0).expand([3, 1]).to_event(1))
        pyro.sample("c", dist.Normal(1000.0, 1.0).expand([1, 1]).to_event(2))

    pyro.set_rng_seed(0)
    q = pg.QBethe(model, num_components=3, progress=False).setup().posterior()
    for name, centre in (("a", 100.0), ("b", -100.0), ("c", 1000.0)):
        assert float((q.mixture.sites[name].mean - centre).abs().max()) < 6
