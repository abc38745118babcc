"""Less damping is tried again where damping is all that makes steps short."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.settling.damping import LEVELS, AutomaticDamping


def levels_of_a_linear_iteration(rates, steps, eases=True):
    """Of x <- d x + (1 - d) rates * x, from the highest level; and how far it got."""
    damping = AutomaticDamping(eases=eases)
    while damping.raise_level():
        pass
    x, rates, levels = torch.ones(len(rates)), torch.tensor(rates), []
    for _ in range(steps):
        levels.append(damping.level)
        change = (1 - damping.value) * (rates - 1) * x
        x = x + change
        damping.observe(float(change.abs().max()))
    return levels, float(x.abs().max())


def test_an_iteration_that_is_at_rest_at_once_is_let_go():
    levels, left = levels_of_a_linear_iteration([0.0, 0.1], 70)
    assert levels[0] == len(LEVELS) - 1 and levels[-1] == 0 and left < 1e-10
    assert levels_of_a_linear_iteration([0.0, 0.1], 70, eases=False)[1] > 1e-4


def test_where_less_damping_oscillates_it_goes_back_and_stays():
    levels, left = levels_of_a_linear_iteration([0.0, -3.2], 200)
    assert min(levels) < 2 and set(levels[100:]) == {2} and left < 1e-10


@pytest.mark.parametrize("rate", [-0.9, 0.8, 0.99])
def test_a_slow_iteration_and_one_that_oscillates_keep_their_damping(rate):
    levels, _ = levels_of_a_linear_iteration([rate], 60)
    assert set(levels) == {len(LEVELS) - 1}


def test_an_iteration_at_rest_goes_on():
    damping = AutomaticDamping(eases=True)
    while damping.raise_level():
        pass
    assert not any(damping.observe(0.0) for _ in range(60))


def components(y):
    w = pyro.sample("w", dist.Beta(1.0, 1.0))
    with pyro.plate("components", 2):
        mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 5.0))
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Bernoulli(w))
        pyro.sample("y", dist.Normal(mean[z.long()], 1.0), obs=y)


def evidence_of_components(y):
    """By a grid over the means and Legendre points over the share."""
    grid = torch.linspace(-6, 6, 121)
    points, weights = np.polynomial.legendre.leggauss(30)
    like = dist.Normal(grid[:, None], 1.0).log_prob(y).exp()
    prior = dist.Normal(0.0, 5.0).log_prob(grid) + (grid[1] - grid[0]).log()
    by_share = []
    for x, weight in zip(points, weights, strict=True):
        share = (x + 1) / 2
        each = ((1 - share) * like[:, None] + share * like).log().sum(-1)
        whole = (each + prior[:, None] + prior).logsumexp((0, 1))
        by_share.append(whole + np.log(weight / 2))
    return torch.stack(by_share).logsumexp(0)


def test_a_mixture_whose_first_sweeps_run_away_settles_soon_after():
    """They call for heavy damping, by which it took 396 sweeps where 173 do."""
    y = torch.cat([torch.linspace(-3.5, -0.5, 8), torch.linspace(0.5, 3.5, 14)])
    q = pg.fit(components, (y,), infer=pg.EP, progress=False)
    assert q.converged and len(q.history["residual"]) < 250
    one_order = evidence_of_components(y) - math.log(2)  # of the two that the names may have
    assert_close(q.log_evidence, one_order, rtol=0, atol=0.05)
