"""Saved weights belong to the program that they were computed for."""

from __future__ import annotations

import io

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph import circuits as C
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


def square():
    """Four bits in a ring."""
    with pyro.plate("n", 4):
        x = pyro.sample("x", dist.Bernoulli(torch.tensor([0.3, 0.6, 0.2, 0.5])))
    pyro.factor("ring", 0.5 * (x * x.roll(1)).sum())


SAMPLES = {"x": (torch.arange(24).reshape(6, 4) % 5 < 2).float()}
RUNS = {
    "BBIS": lambda **o: BBIS(square, samples=SAMPLES, progress=False, **o),
    "share": lambda **o: pg.CollapsedBBIS(square, samples=SAMPLES, progress=False, **o),
    "list": lambda **o: pg.CollapsedBBIS(
        square, samples=SAMPLES, collapse=[("x", (0,)), ("x", (2,))], progress=False, **o
    ),
}


@pytest.mark.parametrize("other", RUNS)
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("is_old", [False, True])
def test_a_state_of_another_engine_or_another_collapse_is_refused(name, other, is_old):
    engine = RUNS[other]()
    engine.run()
    state = engine.state_dict()
    if is_old:  # its points tell, but where all samples happen to hold the same
        if (name, other) == ("share", "list"):
            return
        del state["options"]
    taken = RUNS[name]().setup()
    if name == other:
        taken.load_state_dict(state)
        assert torch.equal(taken.weights, engine.weights)
        return
    match = (
        r"sum(s)? (other )?nodes out" if is_old else r"(engine|collapse) is .* there and .* here"
    )
    before = taken.x.clone()
    with pytest.raises(ShapeMismatch, match=match):
        taken.load_state_dict(state)
    assert torch.equal(taken.x, before)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(
    ("theirs", "ours", "what"),
    [
        ({"kernel": C.Hamming(0.3)}, {}, "kernel"),
        ({"kernel": C.Hamming(torch.tensor([0.3, 0.3, 0.3, 0.3]))},) * 2 + (None,),
        (
            {"kernel": C.Hamming(torch.tensor([0.3, 0.3, 0.3, 0.3]))},
            {"kernel": C.Hamming(torch.tensor([0.3, 0.3, 0.3, 0.300001]))},
            "kernel",
        ),
        ({"kernel": C.Hamming() + C.Delta()}, {"kernel": C.Hamming() + 2.0 * C.Delta()}, "kernel"),
        ({"smoothing": 0.1}, {}, "smoothing"),
        ({}, {}, None),
    ],
)
def test_a_state_of_another_kernel_or_smoothing_is_refused(name, theirs, ours, what):
    engine = RUNS[name](**theirs)
    engine.run()
    taken = RUNS[name](**ours).setup()
    buffer = io.BytesIO()
    torch.save(engine.state_dict(), buffer)
    state = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    if what is None:
        taken.load_state_dict(state)
        assert torch.equal(taken.weights, engine.weights)
        return
    with pytest.raises(ShapeMismatch, match=f"{what} is .* there and .* here"):
        taken.load_state_dict(state)


def test_a_state_of_another_locality_is_refused():
    def of(**options):
        return BBIS(places, num_particles=20, proposal=draws, progress=False, **options)

    engine = of(locality="global")
    engine.run(torch.ones(5))
    with pytest.raises(ShapeMismatch, match="locality is 'global' there and 'blanket' here"):
        of().setup(torch.ones(5)).load_state_dict(engine.state_dict())
