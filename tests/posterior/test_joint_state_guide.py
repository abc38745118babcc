"""Quantiles of guides over joint states. Truth: cumulative sums of the weights, node by node."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import OptionError
from pyrograph.posterior.discrete_particles import DiscreteParticles

LEVELS = [0.05, 0.1, 0.37, 0.5, 0.9, 1.0]


def pairs():
    """Counts that pull each other, a site of two states, and one whose states are vectors."""
    with pyro.plate("n", 3):
        z = pyro.sample("z", dist.Binomial(4, torch.tensor([0.2, 0.5, 0.8])))
        pyro.factor("pull", 0.4 * z)
    x = pyro.sample("x", dist.Bernoulli(0.3))
    pyro.factor("link", 0.5 * x * z.sum() - 0.2 * z[0] * z[1])
    pyro.sample("v", dist.OneHotCategorical(torch.tensor([0.1, 0.2, 0.7])))


def least_reached(values, weights, q: float) -> float:
    """The least value whose share and that of all below is at least q, of those with any."""
    total = 0.0
    for value in sorted(set(values)):
        total += sum(w for v, w in zip(values, weights, strict=True) if v == value)
        if total >= q - 1e-9:
            return value
    return max(values)


@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI, pg.BBIS])
def test_quantiles_are_those_of_the_weighted_joint_states(infer):
    pyro.set_rng_seed(0)
    q = infer(pairs, num_particles=10, progress=False).run()
    guide = q.guide()
    found, particles, weights = guide.quantiles(LEVELS), q.particles, q.weights.tolist()
    assert set(found) == {"z", "x"}
    assert found["z"].shape == (len(LEVELS), 3) and found["x"].shape == (len(LEVELS),)
    for row, level in enumerate(LEVELS):
        for i in range(3):
            truth = least_reached(particles["z"][:, i].tolist(), weights, level)
            assert float(found["z"][row, i]) == truth
        assert float(found["x"][row]) == least_reached(particles["x"].tolist(), weights, level)
    for name in found:  # states that no particle is in are not reached, however sums are rounded
        assert torch.equal(found[name][-1], particles[name].amax(0))


def test_quantiles_of_nodes_summed_out_are_those_of_all_states():
    engine = pg.DPVI(pairs, num_particles=1000, sum_out="x", progress=False)
    given, every = engine.run().guide(), pg.DPVI(pairs, num_particles=1000, progress=False).run()
    for name, value in given.quantiles(LEVELS).items():
        assert torch.equal(value, every.guide().quantiles(LEVELS)[name])
    share = every.marginal("x").probs  # of every joint state
    assert given.quantiles([float(share[0]) - 1e-3])["x"].tolist() == [0.0]
    assert given.quantiles([float(share[0]) + 1e-3])["x"].tolist() == [1.0]


def test_the_greatest_state_that_is_drawn_is_reached_although_weights_are_rounded():
    """Ten equal weights of a tenth add up to less than 1."""

    def model():
        z = pyro.sample("z", dist.Categorical(torch.full((11,), 1 / 11, dtype=torch.float64)))
        pyro.factor("not the last", torch.where(z == 10, -torch.inf, 0.0))

    guide = pg.DPVI(model, num_particles=20, progress=False).run().guide()
    assert guide.quantiles([0.0, 1.0])["z"].tolist() == [0, 9]


def test_the_smallest_weights_keep_their_digits_where_particles_are_merged():
    def model():
        pyro.sample("a", dist.Bernoulli(0.5))
        pyro.sample("b", dist.Categorical(torch.ones(4) / 4))

    x = torch.tensor([[0, 1, 1, 1], [3, 0, 1, 2]])
    logs = torch.tensor([0.0, -900.0, -901.0, -math.inf])  # exp of these is 0
    run = {"converged": True, "status": "", "history": {}}
    q = DiscreteParticles(pg.trace_graph(model), x, logs, **run)
    together = -900.0 + math.log1p(math.exp(-1.0))
    assert q.guide(["a"]).logits.tolist() == pytest.approx([0.0, together])
    assert q.marginal("a").logits.tolist() == pytest.approx([0.0, together])
    assert q.marginal("b").logits.tolist() == pytest.approx([-900.0, -901.0, -math.inf, 0.0])
    rows = q.guide().codes.tolist()
    weight = dict(zip(map(tuple, rows), q.guide().logits.tolist(), strict=True))
    assert weight == pytest.approx({(0, 3): 0.0, (1, 0): -900.0, (1, 1): -901.0, (1, 2): -math.inf})


@pytest.mark.parametrize("quantiles", [[1.5], [], 0.5, ["a"]])
def test_levels_that_are_none_are_refused(quantiles):
    guide = pg.DPVI(pairs, num_particles=3, progress=False).run().guide()
    with pytest.raises(OptionError, match="quantiles"):
        guide.quantiles(quantiles)
