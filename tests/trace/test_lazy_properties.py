"""What a distribution works out for its draw (its logits, its gate) depends on latents still."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import tensor

import pyrograph as pg

DISTRIBUTIONS = {
    "NegativeBinomial": lambda a: dist.NegativeBinomial(tensor(2.0).double(), probs=a.sigmoid()),
    "ZeroInflatedPoisson": lambda a: dist.ZeroInflatedPoisson(tensor(2.0).double(), gate_logits=a),
    "ZeroInflatedNegativeBinomial": lambda a: dist.ZeroInflatedNegativeBinomial(
        tensor(2.0).double(), probs=tensor(0.4).double(), gate_logits=a
    ),
    "ContinuousBernoulli": lambda a: dist.ContinuousBernoulli(logits=a),
    "RelaxedOneHotCategorical": lambda a: dist.RelaxedOneHotCategorical(
        tensor(0.7).double(), probs=torch.stack([a.exp(), torch.ones_like(a)], -1)
    ),
    "RelaxedBernoulli": lambda a: dist.RelaxedBernoulli(tensor(0.7).double(), probs=a.sigmoid()),
    "inside an event": lambda a: (
        dist.NegativeBinomial(tensor(2.0).double(), probs=a.sigmoid()).expand([3]).to_event(1)
    ),
}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_latent_site_depends_on_the_parameters_of_its_draw(name, verify):
    """Truth: the distributions' own log densities at other values of the parameter."""
    make = DISTRIBUTIONS[name]

    def model():
        a = pyro.sample("a", dist.Normal(tensor(0.0).double(), 1.0))
        pyro.sample("y", make(a))

    graph = pg.trace_graph(model, verify=verify)
    assert graph.blanket("a") == {("y", ())}
    y = make(tensor(0.3).double()).sample()
    for a in torch.tensor([-1.0, 0.5, 2.0]).double():
        expected = dist.Normal(tensor(0.0).double(), 1.0).log_prob(a) + make(a).log_prob(y)
        torch.testing.assert_close(graph.log_prob({"a": a, "y": y}), expected)


def test_what_the_program_works_out_itself_stays():
    given = []

    def model():
        a = pyro.sample("a", dist.Normal(tensor(0.0).double(), 1.0))
        fn = dist.NegativeBinomial(tensor(2.0).double(), probs=a.sigmoid())
        logits = fn.logits
        pyro.sample("y", fn)
        given.append(fn.logits is logits)

    pg.trace_graph(model)
    assert all(given)
