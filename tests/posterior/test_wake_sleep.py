"""Guides of posteriors under ``ReweightedWakeSleep``, whose draws are detached: given points.

Truth: gradients of densities written by hand; sums over all states.
"""

import functools

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import SVI, ReweightedWakeSleep
from pyro.optim import Adam
from torch.distributions import LogNormal, Normal
from torch.testing import assert_close

import pyrograph as pg

PRIOR = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
MEAN = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
RATE = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
NUM_PARTICLES = 30


def states(y):
    """k, a bit given k, and an observation of both."""
    k = pyro.sample("k", dist.Categorical(PRIOR))
    b = pyro.sample("b", dist.Bernoulli(RATE[k]))
    pyro.sample("y", dist.Normal(MEAN[k] + b, 1.0), obs=y)


def mixed(y):
    k = pyro.sample("k", dist.Categorical(PRIOR))
    u = pyro.sample("u", dist.LogNormal(MEAN[k], 0.5))
    pyro.sample("y", dist.Normal(u, 1.0), obs=y)


def positive(y):
    u = pyro.sample("u", dist.LogNormal(0.0, 0.5))
    pyro.sample("y", dist.Normal(u, 1.0), obs=y)


def wake_loss(model, guide, y):
    """Pyro's loss of the guide, and its draws of each site ``[n]``."""
    elbo = ReweightedWakeSleep(num_particles=NUM_PARTICLES, vectorize_particles=False)
    pyro.set_rng_seed(3)
    _, loss = elbo._loss(model, guide, (y,), {})
    pyro.set_rng_seed(3)
    traces = []
    for _ in range(NUM_PARTICLES):
        drawn = poutine.trace(guide).get_trace(y)
        poutine.replay(model, drawn)(y)
        traces.append(drawn)
    names = [name for name in ("k", "u") if name in traces[0]]
    return loss, {n: torch.stack([t.nodes[n]["value"].detach() for t in traces]) for n in names}


def assert_gradients(loss, log_p, log_q, guide):
    """Those of -sum_i w_i log q(x_i) with w ~ p / q, at given x_i."""
    wanted = -((log_p - log_q).detach().softmax(0) * log_q).sum()
    parameters = list(guide.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    for own, truth in zip(found, torch.autograd.grad(wanted, parameters), strict=True):
        assert truth.abs().sum() > 1e-3
        assert_close(own, truth)


def test_a_mixture_has_the_gradient_of_its_density():
    fit = functools.partial(pg.QBethe, num_components=2, num_steps=50)
    guide = pg.fit(mixed, (torch.tensor(2.0),), infer=fit, progress=False).guide()
    y = torch.tensor(0.7)
    loss, x = wake_loss(mixed, guide, y)
    k, u = x["k"], x["u"]
    log_p = PRIOR.log()[k] + LogNormal(MEAN[k], 0.5).log_prob(u) + Normal(u, 1.0).log_prob(y)
    of_k = guide.logits_0.log_softmax(-1)[:, 0, k]
    loc, scale = guide.loc_1.reshape(2, 1), guide.scale_1.reshape(2, 1)
    weights = guide.logits.log_softmax(0)[:, None]
    log_q = (weights + of_k + LogNormal(loc, scale).log_prob(u)).logsumexp(0)
    assert_gradients(loss, log_p, log_q, guide)


def test_particles_have_the_gradient_of_their_density():
    """The Jacobian of a given point is a constant."""
    fit = functools.partial(pg.GraphicalSVGD, num_particles=5, num_steps=50)
    guide = pg.fit(positive, (torch.tensor(2.0),), infer=fit, progress=False).guide()
    y = torch.tensor(0.7)
    loss, x = wake_loss(positive, guide, y)
    u = x["u"]
    log_p = LogNormal(0.0, 0.5).log_prob(u) + Normal(u, 1.0).log_prob(y)
    components = LogNormal(guide.locs, guide.scales).log_prob(u)  # [K, n]
    log_q = (guide.logits.log_softmax(0)[:, None] + components).logsumexp(0)
    assert_gradients(loss, log_p, log_q, guide)


def test_states_drawn_together_are_trained():
    """From the posterior of one observation to that of another."""
    y = torch.tensor(1.5)
    guide = pg.fit(states, (torch.tensor(0.0),), infer=pg.BP, progress=False).guide()
    bits = torch.tensor([0.0, 1.0])
    log_p = PRIOR.log()[:, None] + dist.Bernoulli(RATE[:, None]).log_prob(bits)
    log_p = log_p + Normal(MEAN[:, None] + bits, 1.0).log_prob(y)
    svi = SVI(
        states,
        guide,
        Adam({"lr": 0.05}),
        ReweightedWakeSleep(num_particles=50, vectorize_particles=True, max_plate_nesting=0),
    )
    for _ in range(300):
        svi.step(y)
    found = torch.zeros(3, 2)
    with torch.no_grad():
        for _ in range(2000):
            drawn = guide()
            found[drawn["k"], drawn["b"].long()] += 1 / 2000
    assert_close(found, log_p.flatten().softmax(0).reshape(3, 2), atol=0.05, rtol=0.0)
