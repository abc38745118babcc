"""Saved weights belong to the program that they were computed for."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import ShapeMismatch
from pyrograph.infer import Gibbs
from pyrograph.infer.importance import BBIS

BRIEF = Gibbs(30, 10)


def coins(y):
    rate = pyro.param("rate", torch.tensor(0.5))
    with pyro.plate("n", len(y)):
        z = pyro.sample("z", dist.Bernoulli(rate))
        pyro.sample("y", dist.Bernoulli(0.1 + 0.8 * z), obs=y)


def places(y):
    centre = pyro.param("rate", torch.tensor(0.5))
    with pyro.plate("n", len(y)):
        x = pyro.sample("x", dist.Normal(centre, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)


def draws(*_):
    generator = torch.Generator().manual_seed(0)
    return {"x": torch.randn(20, 5, generator=generator)}


ENGINES = {
    "states": lambda: BBIS(coins, num_particles=20, proposal=BRIEF, tol=None, progress=False),
    "points": lambda: BBIS(places, num_particles=20, proposal=draws, progress=False),
    "some summed out": lambda: pg.CollapsedBBIS(
        coins, num_particles=20, proposal=BRIEF, progress=False
    ),
    # the evidence of these data is the same
    "all summed out": lambda: pg.CollapsedBBIS(
        coins, num_particles=20, proposal=BRIEF, collapse="treewidth", progress=False
    ),
}
every_engine = pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES)


@every_engine
@pytest.mark.parametrize("changed", ["data", "parameter"])
def test_a_state_of_other_data_or_parameters_is_refused(make, changed):
    engine = make()
    engine.run(torch.ones(5))
    y = torch.zeros(5) if changed == "data" else torch.ones(5)
    if changed == "parameter":
        with torch.no_grad():
            pyro.param("rate").fill_(0.3)
    other = make().setup(y)
    before = other.x.clone()
    with pytest.raises(ShapeMismatch, match=r"other data or parameters.*give its points by samp"):
        other.load_state_dict(engine.state_dict())
    assert torch.equal(other.x, before)
    assert other.num_done == 0


@every_engine
@pytest.mark.parametrize("num_steps", [0, 1])
def test_a_state_of_the_same_data_goes_on_bit_for_bit(make, num_steps):
    pyro.set_rng_seed(1)
    whole = make().setup(torch.ones(5))
    if num_steps:
        whole.step()
    other = make()
    other.load_state_dict(whole.state_dict())
    taken, expected = other.run(torch.ones(5)), whole.run(torch.ones(5))
    assert torch.equal(other.x, whole.x)
    assert torch.equal(other.weights, whole.weights)
    assert torch.equal(taken.history["objective"], expected.history["objective"])


def test_a_state_of_other_numbers_of_states_is_refused():
    def dice(sides):
        pyro.sample("a", dist.Categorical(torch.ones(sides)))

    state = BBIS(dice, num_particles=20, proposal=BRIEF, progress=False).setup(6).state_dict()
    other = BBIS(dice, num_particles=20, proposal=BRIEF, progress=False).setup(2)
    with pytest.raises(ShapeMismatch, match="other numbers of states"):
        other.load_state_dict(state)
