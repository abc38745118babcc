"""Distributions that were made before the program runs, and validate whatever it is told."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample

import pyrograph as pg
from pyrograph.errors import InvalidProgram

PRIORS = {
    "normal": lambda: dist.Normal(0.0, 1.0).expand([3]),
    "gamma": lambda: dist.Gamma(2.0, 1.0).expand([3]),
    "categorical": lambda: dist.Categorical(torch.tensor([0.2, 0.3, 0.5])).expand([3]),
    "an event": lambda: dist.Normal(0.0, 1.0).expand([3]).to_event(1),
    "told to": lambda: dist.Normal(torch.zeros(3), 1.0, validate_args=True),
    "transformed": lambda: dist.TransformedDistribution(
        dist.Normal(0.0, 1.0).expand([3]), [dist.transforms.ExpTransform()]
    ),
    "mixture": lambda: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(3, 2)),
        dist.Normal(torch.tensor([0.0, 3.0]), 1.0).expand([3, 2]),
    ),
}
POSITIVE = {"gamma", "transformed"}


@pytest.mark.parametrize("unconstrained", [False, True])
@pytest.mark.parametrize("name", PRIORS)
def test_a_prior_made_outside_the_program_is_read(name, unconstrained):
    """Truth: the prior's own log density, and a Gaussian's by hand."""
    prior = PRIORS[name]()

    def model():
        x = pyro.sample("x", prior)
        pyro.sample("y", dist.Normal(x.sum() * 1.0, 1.0), obs=torch.tensor(0.3))

    graph = pg.trace_graph(model, unconstrained=unconstrained)
    x = prior.sample()
    found = graph.log_prob(graph.unconstrain({"x": x}))
    likelihood = -((0.3 - x.sum()) ** 2) / 2 - torch.tensor(2 * torch.pi).log() / 2
    expected = prior.log_prob(x).sum() + likelihood
    if unconstrained and name in POSITIVE:  # of x = exp(u)
        expected = expected + x.log().sum()
    torch.testing.assert_close(found, expected)


def test_a_loop_over_one_prior_made_outside_is_read():
    prior = dist.Normal(0.0, 1.0).expand([2])

    def model():
        for k in range(12):
            pyro.sample(f"x{k}", prior)

    assert pg.trace_graph(model).num_factors == 24


def test_a_module_with_expanded_priors_is_read():
    layer = PyroModule[torch.nn.Linear](2, 1)
    layer.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 2]).to_event(2))
    layer.bias = PyroSample(dist.Normal(0.0, 10.0).expand([1]))

    def model(x, y):
        mean = layer(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(mean, 1.0), obs=y)

    graph = pg.trace_graph(model, (torch.randn(4, 2), torch.randn(4)))
    assert {frozenset(s for s, _ in scope) for scope in graph.scopes("obs")} == {
        frozenset({"weight", "bias"})
    }


@pytest.mark.parametrize("inside", [True, False])
def test_data_outside_the_support_are_still_refused_by_name(inside):
    outside = dist.Poisson(1.0).expand([3])

    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))
        likelihood = dist.Poisson(torch.ones(3)) if inside else outside
        pyro.sample("counts", likelihood, obs=torch.tensor([1.0, -2.0, 0.5]))

    with pytest.raises(InvalidProgram, match="'counts'"):
        pg.trace_graph(model)


def test_validation_is_on_again_after_a_trace_and_after_a_refusal():
    def refused():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        if x > 0:
            pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(0.0))

    pg.trace_graph(lambda: pyro.sample("x", dist.Normal(0.0, 1.0)))
    with pytest.raises(pg.errors.ControlFlowError):
        pg.trace_graph(refused)
    with pytest.raises(ValueError, match="support"):
        dist.Poisson(1.0).log_prob(torch.tensor(-1.0))
    with pytest.raises(ValueError, match="scale"):
        dist.Normal(0.0, -1.0)
