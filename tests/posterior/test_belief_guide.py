"""Quantiles of guides of independent nodes. Truth: scipy's quantiles of every belief."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import special, stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.beliefs import Gaussian, LogGamma, LogitBeta
from pyrograph.errors import OptionError
from pyrograph.posterior.belief_guide import BeliefGuide

LEVELS = [0.05, 0.3, 0.5, 0.9]
PROBS = torch.tensor([[0.5, 0.1, 0.4], [0.2, 0.2, 0.6]], dtype=torch.float64)


def numbers(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


MEAN, ROOT = numbers(0, 2), 0.5 + numbers(1, 2).abs()
JOINT_MEAN, JOINT_ROOT = numbers(2, 1, 6), numbers(3, 1, 6, 6).tril() + 3 * torch.eye(6)
SHAPES, RATES = 1 + numbers(4, 2).abs(), 0.5 + numbers(5, 2).abs()


def program():
    pyro.sample("matrix", dist.LogNormal(0.0, 1.0).expand([2, 3]).to_event(2))
    with pyro.plate("two", 2):
        pyro.sample("real", dist.Normal(0.0, 1.0))
        pyro.sample("positive", dist.LogNormal(0.0, 1.0))
        pyro.sample("gamma", dist.Pareto(1.5, 4.0))
        pyro.sample("beta", dist.Uniform(-1.0, 3.0))
        pyro.sample("state", dist.Categorical(torch.ones(3)))
        pyro.sample("vector", dist.OneHotCategorical(torch.ones(3)))


def normal(mean, root):
    return Gaussian.from_moments(mean, root @ root.mT)


@pytest.fixture
def guide():
    sites = pg.trace_graph(program, unconstrained=True).sites
    beliefs = {
        "matrix": normal(JOINT_MEAN, JOINT_ROOT),
        "real": normal(MEAN[:, None], ROOT[:, None, None]),
        "positive": normal(MEAN[:, None], ROOT[:, None, None]),
        "gamma": LogGamma(torch.stack([SHAPES, RATES], -1)),
        "beta": LogitBeta(torch.stack([SHAPES, RATES], -1)),
        "state": PROBS.log(),
        "vector": PROBS.log(),
    }
    return BeliefGuide.from_beliefs([sites[n] for n in beliefs], list(beliefs.values()))


def test_quantiles_are_those_of_the_beliefs(guide):
    found = guide.quantiles(LEVELS)
    q = np.array(LEVELS)[:, None]
    width = (JOINT_ROOT @ JOINT_ROOT.mT).diagonal(dim1=1, dim2=2).sqrt()
    truth = {
        "matrix": np.exp(stats.norm.ppf(q, JOINT_MEAN, width)).reshape(4, 2, 3),
        "real": stats.norm.ppf(q, MEAN, ROOT),
        "positive": np.exp(stats.norm.ppf(q, MEAN, ROOT)),
        "gamma": stats.gamma.ppf(q, SHAPES, 1.5, 1 / RATES),
        "beta": stats.beta.ppf(q, SHAPES, RATES, -1.0, 4.0),
    }
    assert set(found) == {*truth, "state"}  # the states of "vector" have no order
    for name, value in truth.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    assert found["state"].tolist() == [[0, 0], [0, 1], [0, 2], [2, 2]]
    for name, value in guide.median().items():
        if name in truth:
            assert_close(value, found[name][2])


def test_least_values_are_found_whatever_the_order_of_states():
    """States -1, 0, 1 of a program that lists them as 1, -1, 0."""
    described = {
        "name": "z",
        "batch_shape": [],
        "event_shape": [],
        "plates": [],
        "values": torch.tensor([1.0, -1.0, 0.0]),
    }
    logits = torch.tensor([0.5, 0.2, 0.3]).log()
    found = BeliefGuide([described], [{"logits": logits}]).quantiles([0.1, 0.4, 0.6, 1.0])
    assert found["z"].tolist() == [-1.0, 0.0, 1.0, 1.0]


def test_the_outermost_quantiles_hold_all_other_ones(guide):
    for value in guide.quantiles([0.0, 0.001, 0.999, 1.0]).values():
        assert bool((value.diff(dim=0) >= 0).all())
    assert bool(guide.quantiles([0.0])["real"].isfinite().all())


def test_quantiles_go_through_the_map_to_the_support():
    """Of a logistic-normal share: expit of the normal's quantile."""

    def model():
        pyro.sample(
            "share", dist.Uniform(torch.zeros(2).double(), torch.tensor([1.0, 5.0])).to_event(1)
        )

    site = pg.trace_graph(model, unconstrained=True).sites["share"]
    guide = BeliefGuide.from_beliefs([site], [normal(MEAN[None], torch.diag_embed(ROOT)[None])])
    expected = special.expit(stats.norm.ppf(0.2, MEAN, ROOT)) * np.array([1.0, 5.0])
    np.testing.assert_allclose(guide.quantiles([0.2])["share"][0], expected)


@pytest.mark.parametrize("quantiles", [[1.5], [-0.3], [float("nan")], 0.5, [], ["a"], None])
def test_quantiles_are_of_probabilities(guide, quantiles):
    with pytest.raises(OptionError, match="quantiles="):
        guide.quantiles(quantiles)
