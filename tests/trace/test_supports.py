"""Distributions that say no support: refused by name where latent, read where observed."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import UnsupportedSite


class Triangle(dist.TorchDistribution):
    """``log p(x) = -|x - a|``, not normalised."""

    def __init__(self, a):
        self.a = a
        super().__init__(a.shape, (), validate_args=False)

    def sample(self, sample_shape=()):
        return self.a + torch.rand(torch.Size(sample_shape) + self.a.shape).double() - 0.5

    def log_prob(self, value):
        return -(value - self.a).abs()


class RealTriangle(Triangle):
    support = dist.constraints.real


@pytest.mark.parametrize("unconstrained", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Triangle(torch.tensor(0.0).double()),
        lambda: dist.GaussianScaleMixture(torch.ones(2), torch.zeros(2), torch.ones(2)),
    ],
    ids=["a user's", "Pyro's"],
)
def test_a_latent_site_without_a_support_is_refused_by_name(make, unconstrained):
    with pytest.raises(UnsupportedSite, match=r'site "x" \(\w+\) says no support.*support = '):
        pg.trace_graph(lambda: pyro.sample("x", make()), unconstrained=unconstrained)


@pytest.mark.parametrize("unconstrained", [False, True])
@pytest.mark.parametrize("family", [Triangle, RealTriangle])
def test_an_observed_one_is_read_and_so_is_a_latent_one_with_a_support(family, unconstrained):
    """Truth: the absolute differences and the Gaussian by hand."""

    def model():
        a = pyro.sample("a", dist.Normal(torch.tensor(0.0).double(), 1.0))
        if family is RealTriangle:
            a = pyro.sample("x", family(a))
        pyro.sample("y", family(a), obs=torch.tensor(2.0).double())

    graph = pg.trace_graph(model, unconstrained=unconstrained)
    a, x = torch.tensor(0.5).double(), torch.tensor(-1.0).double()
    prior = dist.Normal(torch.tensor(0.0).double(), 1.0).log_prob(a)
    if family is Triangle:
        found, expected = graph.log_prob({"a": a}), prior - 1.5
    else:
        found, expected = graph.log_prob({"a": a, "x": x}), prior - 1.5 - 3.0
    torch.testing.assert_close(found, expected)
