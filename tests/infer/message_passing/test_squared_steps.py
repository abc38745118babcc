"""Mean field of labels and components climbs in long steps where sweeps are slow."""

from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.special import digamma, log_softmax

import pyrograph as pg
from pyrograph.beliefs import Gaussian
from pyrograph.infer.message_passing.settling.squared_steps import LIMIT, SquaredSteps

COUNT, WIDE, NOISE = 3, 3.0, 1.0
#: Clusters that overlap: labels say little, and sweeps are slow.
DATA = np.random.default_rng(3).normal(np.repeat([-0.7, 0.0, 0.8], 40), NOISE)
APART = torch.tensor([-0.1, 0.0, 0.1], dtype=torch.float64)


def mixture(y):
    with pyro.plate("components", COUNT):
        mu = pyro.sample("mu", dist.Normal(APART, WIDE))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(torch.ones(COUNT, dtype=torch.float64)))
        pyro.sample("y", dist.Normal(mu[z], NOISE), obs=y)


def engine(num_steps=1000):
    return pg.VMP(mixture, num_steps=num_steps, progress=False).setup(torch.tensor(DATA))


def labels(mean, variance):
    """Log probabilities ``[n, K]`` by coordinate ascent, and their normaliser ``[n]``."""
    square = (DATA[:, None] - mean) ** 2 + variance
    log_f = -0.5 * square / NOISE**2 - np.log(NOISE * np.sqrt(2 * np.pi)) - np.log(COUNT)
    return log_softmax(log_f, 1), np.logaddexp.reduce(log_f, 1)


def components(log_q):
    q = np.exp(log_q)
    variance = 1 / (WIDE**-2 + q.sum(0) / NOISE**2)
    return variance * (APART.numpy() / WIDE**2 + DATA @ q / NOISE**2), variance


def bound(mean, variance):
    """Where labels are as coordinate ascent sets them."""
    square = (mean - APART.numpy()) ** 2 + variance
    of_prior = 0.5 * (np.log(variance / WIDE**2) + 1 - square / WIDE**2)
    return labels(mean, variance)[1].sum() + of_prior.sum()


def ascent(sweeps):
    """By hand, from where the engine starts: every component as its prior is."""
    mean, variance = APART.numpy(), np.full(COUNT, WIDE**2)
    for _ in range(sweeps):
        mean, variance = components(labels(mean, variance)[0])
    return mean, variance


def run(run_of, bounds=None):
    while not run_of.converged and run_of.num_done < run_of.num_steps:
        run_of.step()
        if bounds is not None:
            bounds.append(float(run_of.log_evidence))
    return run_of.posterior().marginal("mu")


def test_they_end_at_the_optimum_of_coordinate_ascent_and_sooner(monkeypatch):
    climber, bounds = engine(), []
    found = run(climber, bounds)
    assert climber.converged
    mean, variance = ascent(5000)
    np.testing.assert_allclose(found.mean.numpy(), mean, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.variance.numpy(), variance, rtol=1e-6)
    np.testing.assert_allclose(bounds[-1], bound(mean, variance), rtol=1e-12)
    assert (np.diff(bounds) >= -1e-12 * abs(bounds[-1])).all()
    monkeypatch.setattr(SquaredSteps, "observe", lambda self, height: None)
    plain = engine(3 * climber.num_done)
    run(plain)
    assert not plain.converged


def test_steps_that_lower_the_bound_or_leave_no_density_are_not_taken(monkeypatch):
    right = SquaredSteps.extrapolated

    def too_far(self, blocks, before, after, beliefs):
        step = right(self, blocks, before, after, beliefs)
        if step is None:
            return None
        factor = -1e6 if len(bounds) % 2 else 30.0  # precisions below 0, or means beyond the data
        return [
            [a + factor * (b - a) for a, b in zip(x, y, strict=True)]
            for x, y in zip(after, step, strict=True)
        ]

    refused = []
    took = SquaredSteps.took

    def noted(self, has_risen, is_lost):
        refused.append(None if has_risen else is_lost)
        took(self, has_risen, is_lost)

    monkeypatch.setattr(SquaredSteps, "extrapolated", too_far)
    monkeypatch.setattr(SquaredSteps, "took", noted)
    bounds = []
    climber = engine(5000)
    found = run(climber, bounds)
    assert climber.converged and {True, False} <= set(refused)
    assert (np.diff(bounds) >= -1e-12 * abs(bounds[-1])).all()
    np.testing.assert_allclose(found.mean.numpy(), ascent(5000)[0], rtol=0, atol=1e-6)


def test_steps_are_shorter_after_one_that_was_not_taken_and_longer_after_the_longest():
    steps, bend, flat = SquaredSteps(1e-8), 1e-4, torch.zeros(1, 1)
    belief = Gaussian(torch.ones(1, 1, 1), flat)
    block = SimpleNamespace(families=[0], rows=[torch.tensor([0])], bases=[None])

    def length():
        """a of a step from places 0, 1, 2 - bend: to 2 a - bend a^2."""
        for place in (0.0, 1.0, 2 - bend):
            after = [[Gaussian(torch.full((1, 1, 1), place), flat)]]
            found = steps.extrapolated([block], after, after, [belief])
        value = float(found[0][0].precision)
        return round((1 - (1 - bend * value) ** 0.5) / bend, 6)

    lengths = []
    for is_taken in (True, True, True, False, False, True):
        lengths.append(length())
        steps.took(is_taken, False)
        if not is_taken:
            steps.took(False, False)  # nor is Anderson's, which comes then
    assert lengths == [LIMIT, 4 * LIMIT, 16 * LIMIT, 64 * LIMIT, 16 * LIMIT, 4 * LIMIT]


def test_a_run_resumed_amid_steps_ends_where_the_whole_run_does():
    whole = engine()
    expected = run(whole)
    first = engine()
    while True:  # until a step has come true at its longest
        state = first.state_dict()["automatic"]["acceleration"]
        if state["on"] and state["limit"] > LIMIT:
            break
        first.step()
    for more in range(3):  # a sweep that is looked at, two of them, and a step
        again = engine()
        again.load_state_dict(first.state_dict())
        found = run(again)
        assert again.num_done == whole.num_done, more
        assert torch.equal(found.mean, expected.mean)
        first.step()


def test_a_point_that_is_left_slowly_is_left():
    """Two components of a cluster hardly wider than their noise: apart they are a little better,
    and differences grow by a fiftieth with every sweep."""
    y = torch.linspace(-2, 2, 12, dtype=torch.float64)

    def alike():
        with pyro.plate("components", 2):
            mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Categorical(torch.ones(2)))
            pyro.sample("y", dist.Normal(mu[z], 1.22), obs=y)

    mean, variance = np.array([-0.5, 0.5]), np.ones(2)
    for _ in range(5000):
        log_f = -0.5 * ((y.numpy()[:, None] - mean) ** 2 + variance) / 1.22**2
        q = np.exp(log_softmax(log_f, 1))
        variance = 1 / (1 / 9 + q.sum(0) / 1.22**2)
        mean = variance * (y.numpy() @ q) / 1.22**2
    assert mean[1] - mean[0] > 0.5
    found = pg.fit(alike, infer=pg.VMP, progress=False)
    assert found.status == "converged" and len(found.history["objective"]) < 60
    own = found.marginal("mu").mean.sort().values.numpy()
    np.testing.assert_allclose(own, mean, rtol=0, atol=1e-5)


def test_components_that_share_a_cluster_settle_by_steps_of_many_directions():
    """Two of three rates in one cluster: sweeps close a 1700th of the way, and squared steps that
    go along upset the rates' other directions, and were refused: 800 sweeps had not done."""
    counts = np.random.default_rng(9).poisson(np.repeat([3.0, 6.0], 40)).astype(float)
    shape = 2 + 0.1 * np.arange(COUNT)

    def rates(y):
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(COUNT, dtype=y.dtype)))
        with pyro.plate("components", COUNT):
            rate = pyro.sample("rate", dist.Gamma(torch.tensor(shape), 0.5))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Categorical(weights))
            pyro.sample("y", dist.Poisson(rate[z]), obs=y)

    family = {"weights": "dirichlet", "rate": "gamma"}
    climber = pg.VMP(rates, family=family, num_steps=200, progress=False)
    bounds = []
    climber.setup(torch.tensor(counts))
    while not climber.converged and climber.num_done < climber.num_steps:
        climber.step()
        bounds.append(float(climber.log_evidence))
    assert climber.converged
    assert (np.diff(bounds) >= -1e-12 * abs(bounds[-1])).all()
    value, times = np.unique(counts, return_counts=True)
    a, b, of_weights = shape, np.full(COUNT, 0.5), np.ones(COUNT)
    for _ in range(40000):
        log_f = np.outer(value, digamma(a) - np.log(b)) - a / b + digamma(of_weights)
        q = times[:, None] * np.exp(log_softmax(log_f, 1))
        a, b, of_weights = shape + value @ q, 0.5 + q.sum(0), 1 + q.sum(0)
    found = climber.posterior()
    np.testing.assert_allclose(found.marginal("rate").mean.numpy(), a / b, rtol=1e-5)
    own = found.marginal("weights").mean.numpy()
    np.testing.assert_allclose(own, of_weights / of_weights.sum(), rtol=1e-4)
