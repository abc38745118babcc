"""Discrete nodes of which a state leaves a continuous one without a factor: an improper density."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import InferenceError

Y = torch.tensor([0.3, 1.2])
ENGINES = [pg.EP, pg.VMP, pg.QBethe]


def exists(masks_prior=True, in_plate=False):
    """Objects that may exist, where they do with a place that is seen."""

    def one(y):
        e = pyro.sample("e", dist.Bernoulli(torch.tensor(0.5)))
        with poutine.mask(mask=e.bool() if masks_prior else True):
            x = pyro.sample("x", dist.LogNormal(0.0, 1.0))
        with poutine.mask(mask=e.bool()):
            pyro.sample("y", dist.Normal(x, 0.5), obs=y)

    def model():
        if not in_plate:
            return one(Y[0])
        with pyro.plate("n", 2):
            one(Y)

    return model


@pytest.mark.parametrize("in_plate", [False, True])
@pytest.mark.parametrize("infer", ENGINES)
def test_a_state_that_leaves_a_node_without_factors_is_refused(infer, in_plate):
    at = r"\[0\]" if in_plate else r"\[\]"
    with pytest.raises(InferenceError, match=rf'"x"{at} where "e"{at} is 0\.0: .*improper'):
        pg.fit(exists(in_plate=in_plate), infer=infer, progress=False)


@pytest.mark.parametrize("infer", ENGINES)
def test_a_prior_in_every_state_is_enough(infer):
    options = {"num_steps": 50} if infer is pg.QBethe else {}
    found = pg.fit(exists(masks_prior=False), infer=infer, progress=False, **options)
    assert bool(found.log_evidence.isfinite())


def test_another_discrete_node_may_hold_it():
    """A switch between two sensors: one of them reads x in either state."""

    def model():
        e = pyro.sample("e", dist.Bernoulli(torch.tensor(0.5)))
        x = pyro.sample("x", dist.Normal(0.0, 1.0).mask(e.bool()))
        with poutine.mask(mask=~e.bool()):
            pyro.sample("y", dist.Normal(x, 0.5), obs=Y[0])

    for infer in (pg.EP, pg.QBethe):
        infer(model, progress=False).setup()


def test_impossible_states_do_not_count():
    def model():
        e = pyro.sample("e", dist.Categorical(logits=torch.tensor([-torch.inf, 0.0])))
        with poutine.mask(mask=e.bool()):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(x, 0.5), obs=Y[0])

    found = pg.fit(model, infer=pg.EP, progress=False)
    expected = dist.Normal(0.0, 1.25**0.5).log_prob(Y[0])
    assert_close(found.log_evidence, expected, rtol=0, atol=1e-5)
