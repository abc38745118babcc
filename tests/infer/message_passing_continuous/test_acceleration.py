"""Sweeps that settle slowly are accelerated, towards where they go anyway."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.infer.message_passing.settling.acceleration import Acceleration

SIDE, RING = 8, 12
DATA = np.random.default_rng(0).normal(size=(SIDE, SIDE))
HOLD = 0.03  # precision of what holds every node: the level is known by all of them together


def field(side=SIDE):
    """A Gaussian field on a grid, held by little: message passing settles, slowly."""
    x = {}
    for i in range(side):
        for j in range(side):
            prior = dist.Normal(torch.tensor(DATA[i, j]), HOLD**-0.5)
            x[i, j] = pyro.sample(f"x_{i}_{j}", prior)
    for i in range(side):
        for j in range(side):
            if i + 1 < side:
                pyro.factor(f"down_{i}_{j}", -0.5 * (x[i, j] - x[i + 1, j]) ** 2)
            if j + 1 < side:
                pyro.factor(f"right_{i}_{j}", -0.5 * (x[i, j] - x[i, j + 1]) ** 2)


def counts_ring():
    """A stiff ring with counts at some of its nodes, which are no Gaussian factors."""
    counts = torch.tensor(np.random.default_rng(1).poisson(2.0, RING), dtype=torch.float64)
    x = [pyro.sample(f"x_{i}", dist.Normal(counts.new_zeros(()), 30.0)) for i in range(RING)]
    for i in range(RING):
        pyro.factor(f"ring_{i}", -20 * (x[i] - x[(i + 1) % RING]) ** 2)
        if i % 4 == 0:
            pyro.sample(f"y_{i}", dist.Poisson(x[i].exp()), obs=counts[i])


def exact_means(side=SIDE):
    """By a dense solution."""
    precision = np.eye(side * side) * HOLD
    for i in range(side):
        for j in range(side):
            for di, dj in ((1, 0), (0, 1)):
                if i + di < side and j + dj < side:
                    a, b = i * side + j, (i + di) * side + j + dj
                    precision[[a, b], [a, b]] += 1
                    precision[[a, b], [b, a]] -= 1
    return np.linalg.solve(precision, HOLD * DATA[:side, :side].ravel())


def means(posterior, side=SIDE):
    names = [f"x_{i}_{j}" for i in range(side) for j in range(side)]
    return np.array([float(posterior.marginal(name).mean) for name in names])


def plain_sweeps_take_more(monkeypatch, engine, num_steps):
    """Whether those of an engine that is not run yet have not settled after so many."""
    monkeypatch.setattr(Acceleration, "observe", lambda self, height: None)
    engine.setup()
    while engine.num_done < num_steps and not engine.converged:
        engine.step()
    return not engine.converged


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_a_slow_field_settles_at_the_exact_means(schedule, monkeypatch):
    engine = pg.EP(field, schedule=schedule)
    posterior = engine.run()
    assert posterior.converged
    np.testing.assert_allclose(means(posterior), exact_means(), rtol=0, atol=1e-6)
    plain = pg.EP(field, schedule=schedule)
    assert plain_sweeps_take_more(monkeypatch, plain, 2 * engine.num_done)


def test_factors_that_are_not_gaussian_settle_where_plain_sweeps_do(monkeypatch):
    engine = pg.EP(counts_ring)
    posterior = engine.run()
    monkeypatch.setattr(Acceleration, "observe", lambda self, height: None)
    plain = pg.EP(counts_ring, num_steps=5000)
    expected = plain.run()
    assert posterior.converged and expected.converged
    assert engine.num_done < 0.6 * plain.num_done
    for name in posterior.graph.sites:
        torch.testing.assert_close(
            posterior.marginal(name).mean, expected.marginal(name).mean, rtol=0, atol=1e-5
        )
    assert float(posterior.log_evidence) == pytest.approx(float(expected.log_evidence), abs=1e-6)


def test_a_run_resumed_amid_leaps_ends_where_the_whole_run_does():
    whole = pg.EP(field)
    expected = whole.run()
    first = pg.EP(field).setup()
    while not first.state_dict()["automatic"]["acceleration"]["on"]:
        first.step()
    for _ in range(3):
        first.step()
    again = pg.EP(field).setup()
    again.load_state_dict(first.state_dict())
    found = again.run()
    assert again.num_done == whole.num_done
    assert np.array_equal(means(found), means(expected))


def climbed(engine, *args):
    """The bound after every sweep."""
    bounds = [float(engine.setup(*args).log_evidence)]
    while not engine.converged and engine.num_done < engine.num_steps:
        engine.step()
        bounds.append(float(engine.log_evidence))
    return np.array(bounds)


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_mean_field_leaps_and_its_bound_never_falls(schedule, monkeypatch):
    engine = pg.VMP(field, schedule=schedule)
    bounds = climbed(engine)
    assert engine.converged
    if schedule == "sequential":  # all nodes at once may go down
        assert (np.diff(bounds) >= -1e-12 * abs(bounds[-1])).all()
    np.testing.assert_allclose(means(engine.posterior()), exact_means(), rtol=0, atol=1e-6)
    plain = pg.VMP(field, schedule=schedule, num_steps=5000, damping=0.0)
    assert plain_sweeps_take_more(monkeypatch, plain, 5 * engine.num_done)


def test_leaps_of_mean_field_under_which_the_bound_falls_are_not_made(monkeypatch):
    side, right = 4, Acceleration.extrapolated

    def too_far(self, blocks, before, after, beliefs):
        leap = right(self, blocks, before, after, beliefs)
        if leap is None:
            return None
        return [
            [a + 3.0 * (b - a) for a, b in zip(x, y, strict=True)]
            for x, y in zip(after, leap, strict=True)
        ]

    monkeypatch.setattr(Acceleration, "extrapolated", too_far)
    engine = pg.VMP(field, num_steps=5000)
    bounds = climbed(engine, side)
    assert engine.converged and (np.diff(bounds) >= -1e-12 * abs(bounds[-1])).all()
    found = means(engine.posterior(), side)
    np.testing.assert_allclose(found, exact_means(side), rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", [4, 6])
def test_a_leap_under_which_the_bound_falls_leaves_later_ones_to_come(side):
    engine = pg.VMP(field, schedule="parallel")
    posterior = engine.run(side)  # all of even nodes move against all of odd ones: -1 and 1 are
    assert posterior.converged  # nearly eigenvalues, and no leap from one pair of sweeps climbs
    assert engine.num_done < 60  # plain sweeps take more than a thousand
    np.testing.assert_allclose(means(posterior, side), exact_means(side), rtol=0, atol=1e-6)


def test_mixed_alphas_and_discrete_nodes_take_plain_sweeps():
    def pair():
        x = pyro.sample("x", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Bernoulli(0.2 + 0.6 * x))

    mixed = pg.PowerEP(counts_ring, alpha={"ring_0": 0.0})
    assert not mixed.setup().state_dict()["automatic"]["acceleration"]
    assert not pg.BP(pair).setup().state_dict()["automatic"]["acceleration"]
    assert pg.EP(counts_ring).setup().state_dict()["automatic"]["acceleration"]
    assert pg.VMP(field, dtype=torch.float32).setup().state_dict()["automatic"]["acceleration"]
