"""Gamma and beta distributions moved to a support. Truth: scipy's, with their loc and scale."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Importance, Predictive, Trace_ELBO
from pyro.optim import Adam
from scipy import stats

import pyrograph as pg
from pyrograph.beliefs import LogGamma, LogitBeta
from pyrograph.posterior.belief_guide import BeliefGuide
from pyrograph.posterior.conjugate import conjugate_distribution

A = torch.tensor([2.0, 3.5, 1.2], dtype=torch.float64)
B = torch.tensor([4.0, 0.8, 2.2], dtype=torch.float64)
LOW = torch.tensor([-1.0, 0.0, 3.0], dtype=torch.float64)
WIDTH = torch.tensor([2.0, 5.0, 0.5], dtype=torch.float64)
SUPPORTS = {
    "an interval": (LogitBeta, dist.Uniform(-1.0, 1.0), stats.beta(A, B, -1.0, 2.0)),
    "intervals": (LogitBeta, dist.Uniform(LOW, LOW + WIDTH), stats.beta(A, B, LOW, WIDTH)),
    "an interval from 0": (LogitBeta, dist.Uniform(0.0, 5.0), stats.beta(A, B, 0.0, 5.0)),
    "a half-line": (LogGamma, dist.Pareto(1.5, 4.0), stats.gamma(A, 1.5, 1 / B)),
    "half-lines": (LogGamma, dist.Pareto(LOW + 2, 4.0), stats.gamma(A, LOW + 2, 1 / B)),
}
each_support = pytest.mark.parametrize("name", SUPPORTS)


@each_support
def test_expansion_repeats_the_moved_distribution(name):
    family, prior, truth = SUPPORTS[name]
    fn = conjugate_distribution(family, torch.stack([A, B], -1), prior.support)
    wide = fn.expand(torch.Size([4, 3]))
    assert wide.batch_shape == (4, 3) and wide.sample((2,)).shape == (2, 4, 3)
    x = truth.ppf(np.random.default_rng(0).uniform(0.1, 0.9, (4, 3)))
    np.testing.assert_allclose(wide.log_prob(torch.from_numpy(x)), truth.logpdf(x), rtol=1e-9)
    np.testing.assert_allclose(wide.mean, np.broadcast_to(truth.mean(), (4, 3)))
    np.testing.assert_allclose(wide.variance, np.broadcast_to(truth.var(), (4, 3)))


@each_support
def test_guides_of_moved_distributions_work_in_plates(name):
    family, prior, truth = SUPPORTS[name]

    def model():
        with pyro.plate("three", 3):
            u = pyro.sample("u", prior)
            pyro.sample("y", dist.Normal(u, 1.0), obs=torch.zeros(3, dtype=torch.float64))

    site = pg.trace_graph(model, unconstrained=True).sites["u"]
    guide = BeliefGuide.from_beliefs([site], [family(torch.stack([A, B], -1))])
    trace = poutine.trace(guide).get_trace()
    u = trace.nodes["u"]["value"].detach().numpy()
    np.testing.assert_allclose(trace.log_prob_sum().item(), truth.logpdf(u).sum(), rtol=1e-9)
    assert Predictive(model, guide=guide, num_samples=4)()["u"].shape == (4, 3)
    assert len(Importance(model, guide, num_samples=2).run().log_weights) == 2
    many = Trace_ELBO(num_particles=4, vectorize_particles=True)
    for loss in (Trace_ELBO(), many):
        assert np.isfinite(SVI(model, guide, Adam({"lr": 0.01}), loss).step())
