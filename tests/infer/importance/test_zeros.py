"""Zeros of the density: where torch's distributions hide them, and what is none."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import utils
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import StructureError, UnsupportedFactor
from pyrograph.infer.base import Engine
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.importance.zeros import doubled_eps, zero_entries


def switched(make):
    """z, and a statement whose probability is 0 or 1 by it."""

    def model():
        z = pyro.sample("z", dist.Bernoulli(torch.tensor(0.1)))
        pyro.sample("y", make(z))

    return model


def several():
    """The zero of one of them is hidden in the sum over the event."""
    z = pyro.sample("z", dist.Bernoulli(0.1))
    probs = torch.stack([z.float(), 0.3 + 0.4 * z.float()])
    pyro.sample("y", dist.Bernoulli(probs).to_event(1), obs=torch.tensor([1.0, 0.0]))


def scaled():
    z = pyro.sample("z", dist.Bernoulli(0.1))
    with pyro.poutine.scale(scale=0.05):
        pyro.sample("y", dist.Bernoulli(z.float()))


MADE_OUTSIDE = dist.Bernoulli(torch.tensor(0.0, dtype=torch.float32))


def made_outside():
    """A distribution that keeps its logits from one reading to the next."""
    pyro.sample("z", dist.Bernoulli(0.1))
    pyro.sample("y", MADE_OUTSIDE)


PROGRAMS = {
    "Bernoulli": switched(lambda z: dist.Bernoulli(z.float())),
    "Binomial": switched(lambda z: dist.Binomial(2, z.float())),
    "Categorical": switched(lambda z: dist.Categorical(torch.eye(2).float()[z.long()])),
    "OneHotCategorical": switched(lambda z: dist.OneHotCategorical(torch.eye(2).float()[z.long()])),
    "several": several,
    "scaled": scaled,
    "made outside": made_outside,
}


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_probabilities_of_zero_are_refused_in_any_precision(name, dtype):
    with pytest.raises(UnsupportedFactor, match=r'"y".*zero in.*Soften.*CollapsedBBIS'):
        pg.BBIS(PROGRAMS[name], num_particles=20, dtype=dtype, progress=False).run()


def test_probabilities_of_zero_in_double_precision_are_refused():
    model = switched(lambda z: dist.Binomial(2, z.double()))
    with pytest.raises(UnsupportedFactor, match=r'"y".*zero in 4 of its 6 states'):
        pg.BBIS(model, num_particles=20, progress=False).run()


def entries(model):
    graph = pg.trace_graph(model)
    with doubled_eps():
        doubled = pg.trace_graph(model)
    zeros = zero_entries(Network.of_graph(graph), doubled)
    return {g.name: z[0].tolist() for g, z in zip(graph.factors, zeros, strict=True)}


def test_the_entries_are_those_of_probability_zero():
    assert entries(PROGRAMS["Binomial"])["y"] == [False, True, True, True, True, False]
    assert entries(PROGRAMS["Bernoulli"])["y"] == [False, True, True, False]
    assert entries(several)["y"] == [True, False]
    assert entries(PROGRAMS["Bernoulli"])["z"] == [False, False]


@pytest.mark.parametrize("eps", [torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_factor_that_is_eps_by_intent_is_no_zero(eps, dtype):
    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(2)))
        pyro.factor("f", torch.tensor([0.0, math.log(eps)])[z])
        w = pyro.sample("w", dist.Bernoulli(logits=torch.tensor(math.log(eps))))
        pyro.factor("g", 2 * math.log(eps) * w)

    # "w" is a prior at log eps, which may be one made outside of the model: it alone is refused
    with pytest.raises(UnsupportedFactor, match='"w"'):
        pg.BBIS(model, num_particles=20, dtype=dtype, progress=False).run()
    found = entries(model)
    assert not any(found["f"]) and not any(found["g"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "truth"), [("Bernoulli", [0.9, 0.1]), ("Binomial", [0.9, 0.0, 0.1])]
)
def test_a_hidden_zero_is_exact_once_it_is_summed_out(name, truth, dtype):
    samples = {"z": torch.tensor([0.0, 1.0, 1.0]), "y": torch.zeros(3)}
    engine = pg.CollapsedBBIS(
        PROGRAMS[name], samples=samples, collapse=[("y", ())], dtype=dtype, progress=False
    )
    found = engine.run().marginal("y").probs
    assert_close(found, torch.tensor(truth, dtype=dtype), rtol=0, atol=1e-6)


OUTSIDE = {
    "Binomial": (lambda p: dist.Binomial(2, p), [False, True, True]),
    "Categorical": (lambda p: dist.Categorical(torch.stack([1 - p, p, p])), [False, True, True]),
    "Masked": (lambda p: dist.Bernoulli(p).mask(torch.tensor(True)), [False, True]),
    "OneHotCategorical": (lambda p: dist.OneHotCategorical(torch.stack([p, 1 - p])), [True, False]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OUTSIDE)
def test_priors_made_outside_hide_no_zero_and_keep_their_logits(name, dtype):
    make, truth = OUTSIDE[name]
    prior = make(torch.zeros((), dtype=dtype))
    value = prior.enumerate_support()
    before = prior.log_prob(value)
    assert entries(lambda: pyro.sample("z", prior))["z"] == truth
    assert torch.equal(prior.log_prob(value), before)


def near_a_multiple_of_log_eps():
    """A binomial prior with a state whose log probability is one to 1e-5, and that state."""
    for total in range(20, 400):
        prior = dist.Binomial(total, torch.tensor(0.3))
        log_probs = prior.log_prob(torch.arange(total + 1.0))
        multiple = log_probs / math.log(torch.finfo(torch.float32).eps)
        near = (multiple - multiple.round()).abs() <= 1e-5 * multiple
        near &= (multiple > 0.5) & (log_probs > -60)
        if bool(near.any()):
            return total, int(near.nonzero()[0])
    raise AssertionError("no such state")


def test_a_small_prior_probability_is_no_zero():
    """Truth: Bayes' rule over the states, by hand."""
    total, state = near_a_multiple_of_log_eps()

    def model():
        n = pyro.sample("n", dist.Binomial(total, torch.tensor(0.3)))
        pyro.sample("y", dist.Normal(n, 0.3), obs=torch.tensor(float(state)))
        pyro.sample("b", dist.Bernoulli(0.4))

    samples = {"n": torch.zeros(2), "b": torch.tensor([0.0, 1.0])}
    engine = pg.CollapsedBBIS(model, samples=samples, collapse=[("n", ())], progress=False)
    k = torch.arange(total + 1, dtype=torch.float64)
    choose = math.lgamma(total + 1) - (k + 1).lgamma() - (total - k + 1).lgamma()
    prior = choose + k * math.log(0.3) + (total - k) * math.log(0.7)
    truth = (prior - 0.5 * ((k - state) / 0.3) ** 2).softmax(0)
    assert_close(engine.run().marginal("n").probs.double(), truth, rtol=0, atol=1e-5)
    near = {"n": state + torch.arange(-1.0, 1.0), "b": torch.tensor([0.0, 1.0])}
    pg.BBIS(model, samples=near, progress=False).run()  # does not refuse it


def test_a_second_reading_leaves_no_trace():
    model, clamp = PROGRAMS["Categorical"], utils.clamp_probs

    def random_stream(read):
        pyro.set_rng_seed(0)
        torch.randint(2**62, ())  # the engine's own seed
        read()
        return torch.rand(3)

    def softened():
        z = pyro.sample("z", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Categorical(torch.tensor([[0.1, 0.9], [0.6, 0.4]])[z.long()]))

    engine = pg.BBIS(softened, samples={"z": torch.ones(1), "y": torch.ones(1)}, progress=False)
    once = random_stream(lambda: (engine.check((), {}), Engine.read(engine, (), {})))
    twice = random_stream(lambda: (engine.check((), {}), engine.read((), {})))
    assert torch.equal(once, twice)
    with pytest.raises(UnsupportedFactor):
        pg.BBIS(model, num_particles=5, progress=False).setup()
    assert utils.clamp_probs is clamp


def test_a_program_that_draws_constants_is_read_with_the_same_ones():
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.5))
        pyro.factor("f", torch.rand(()) * z)

    assert len(pg.BBIS(model, num_particles=5, progress=False).run().x) == 1


def test_another_structure_at_the_second_reading_is_refused():
    graph = pg.trace_graph(PROGRAMS["Binomial"])
    other = pg.trace_graph(PROGRAMS["Bernoulli"])
    with pytest.raises(StructureError, match="read again"):
        zero_entries(Network.of_graph(graph), other)
