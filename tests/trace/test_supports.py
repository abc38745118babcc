"""Distributions that say no support: refused by name where latent, read where observed."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    SigmoidTransform,
)

import pyrograph as pg
from pyrograph.errors import UnsupportedSite
from pyrograph.trace.supports import support_of


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


def flow_of(name):
    transforms = dist.transforms
    return {
        "planar": lambda: transforms.planar(2),
        "radial": lambda: transforms.radial(2),
        "Sylvester": lambda: transforms.sylvester(2),
        "polynomial": lambda: transforms.polynomial(2),
        "conditional planar": lambda: transforms.conditional_planar(2, 1).condition(torch.ones(1)),
        "neural autoregressive": lambda: transforms.neural_autoregressive(2),
        "block autoregressive": lambda: transforms.block_autoregressive(2),
    }[name]()


FLOWS = (
    "planar",
    "radial",
    "Sylvester",
    "polynomial",
    "conditional planar",
    "neural autoregressive",
    "block autoregressive",
)


@pytest.mark.parametrize("unconstrained", [False, True])
@pytest.mark.parametrize("name", FLOWS)
def test_a_flow_without_inverse_is_refused_by_name_and_the_way_out_is_one(name, unconstrained):
    """Truth: the density of the draw that Pyro remembers, less the flow's log Jacobian."""
    flow, base = flow_of(name), dist.Normal(torch.zeros(2), 1.0).to_event(1)

    def program():
        z = pyro.sample("z", dist.TransformedDistribution(base, [flow]))
        pyro.sample("y", dist.Normal(z.sum(), 1.0), obs=torch.tensor(1.0))

    def rewritten():
        z = flow(pyro.sample("z", base))
        pyro.sample("y", dist.Normal(z.sum(), 1.0), obs=torch.tensor(1.0))

    with pytest.raises(UnsupportedSite, match=r'site "z" \(\w+ of Normal\).*base distribution'):
        pg.trace_graph(program, unconstrained=unconstrained)
    graph = pg.trace_graph(rewritten, unconstrained=unconstrained)
    x = base.sample()
    z = flow(x)  # remembers where it came from
    prior = dist.TransformedDistribution(base, [flow]).log_prob(z)
    jacobian = flow.log_abs_det_jacobian(x, z).sum()
    likelihood = dist.Normal(z.sum(), 1.0).log_prob(torch.tensor(1.0))
    expected = prior + jacobian + likelihood
    torch.testing.assert_close(graph.log_prob({"z": x}), expected)


LOGITS = torch.tensor([[0.3, -1.0, 0.5], [1.2, 0.1, -0.4], [0.0, 0.7, 0.9]])
MATCHINGS = {
    "one to one": (dist.OneOneMatching, LOGITS),
    "two to one": (dist.OneTwoMatching, torch.cat([LOGITS[:, :2], LOGITS[:1, 1:]])),
}


@pytest.mark.parametrize("name", MATCHINGS)
def test_a_finite_support_that_does_not_say_so_is_discrete(name):
    """Truth: enumeration of the matchings."""
    family, logits = MATCHINGS[name]

    def model():
        x = pyro.sample("x", family(logits))
        pyro.factor("f", -0.3 * (x.double() ** 2 * torch.arange(x.shape[0])).sum())

    prior = family(logits)
    states = prior.enumerate_support()
    potential = -0.3 * (states.double() ** 2 * torch.arange(states.shape[1])).sum(1)
    joint = prior.log_prob(states) + potential
    site = pg.trace_graph(model, unconstrained=True).sites["x"]
    assert site.is_discrete
    assert site.cardinality == len(states) == 6
    for engine, options in ((pg.BP, {}), (pg.DPVI, {"num_particles": 6})):
        found = pg.fit(model, infer=engine, progress=False, **options)
        torch.testing.assert_close(found.log_evidence, joint.logsumexp(0))
    with pytest.raises(UnsupportedSite, match=r'"x" .*6 states.* is discrete'):
        pg.fit(model, infer=pg.GraphicalSVGD, progress=False)
    # the marginal by enumeration
    posterior = pg.fit(model, infer=pg.BP, progress=False)
    samples = posterior.sample(4000)["x"]
    frequencies = (samples.unsqueeze(1) == states).all(-1).double().mean(0)
    torch.testing.assert_close(frequencies, joint.softmax(0), rtol=0, atol=0.04)


def test_a_list_of_reals_is_left_what_it_says():
    """Empirical's list may name a value twice, of which its density knows."""
    fn = dist.Empirical(torch.tensor([1.0, 1.0, 2.0]), torch.zeros(3))
    site = pg.trace_graph(lambda: pyro.sample("x", fn)).sites["x"]
    assert not site.is_discrete


def test_matchings_in_a_plate_and_independent_supports_stay_what_pyro_lists():
    def matchings():
        with pyro.plate("n", 3):
            pyro.sample("x", dist.OneOneMatching(LOGITS).expand([3]))

    class Listed(dist.Normal):
        has_enumerate_support = True
        support = dist.constraints.real_vector
        batch_shape = event_shape = torch.Size([])

    with pytest.raises(UnsupportedSite, match=r'"x" \(OneOneMatching\)'):
        pg.trace_graph(matchings, unconstrained=True)
    assert not support_of(Listed(0.0, 1.0)).is_discrete


STRETCH = AffineTransform(-1.0, 2.0)


def moved(base, *transforms):
    return dist.TransformedDistribution(base, list(transforms))


MOVED = {
    "a stretched Beta": (lambda: moved(dist.Beta(2.0, 3.0), AffineTransform(-1.0, 2.0)), -1, 1),
    "a sigmoid": (
        lambda: moved(dist.Normal(0.0, 1.0), SigmoidTransform(), AffineTransform(2.0, 3.0)),
        2,
        5,
    ),
    "turned round": (lambda: moved(dist.Beta(2.0, 3.0), AffineTransform(1.0, -3.0)), -2, 1),
    "twice": (
        lambda: moved(dist.Gamma(2.0, 1.0), AffineTransform(1.0, -1.0), AffineTransform(0.0, -2.0)),
        -2,
        None,
    ),
    "a half-line below": (lambda: moved(dist.Gamma(2.0, 1.0), AffineTransform(1.0, -2.0)), None, 1),
    "composed": (
        lambda: moved(
            dist.Normal(0.0, 1.0),
            ComposeTransform([ExpTransform(), ComposeTransform([AffineTransform(3.0, 1.0)])]),
        ),
        3,
        None,
    ),
    "made an event": (lambda: moved(dist.Beta(2.0, 3.0).expand([4]), STRETCH).to_event(1), -1, 1),
    "masked": (lambda: moved(dist.Beta(2.0, 3.0), STRETCH).mask(torch.tensor(True)), -1, 1),
    "an inverse": (
        lambda: moved(dist.Beta(2.0, 3.0), AffineTransform(0.5, 0.5).inv),
        -1,
        1,
    ),
    "number by number": (
        lambda: moved(
            dist.Beta(2.0, 3.0).expand([4]).to_event(1), IndependentTransform(STRETCH, 1)
        ),
        -1,
        1,
    ),
    "an event": (
        lambda: moved(dist.Beta(2.0, 3.0).expand([4]).to_event(1), AffineTransform(-1.0, 2.0)),
        -1,
        1,
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_is_bounded_stays_so_when_shifted_and_scaled(name):
    """Truth: where the distribution's own draws lie, and its density at them."""
    make, low, high = MOVED[name]
    fn = make()
    support = support_of(fn)
    assert support.event_dim == len(fn.event_shape)
    draws = fn.sample((2000,))
    assert bool(support.check(draws).all())
    ends = draws.min(), draws.max()
    for bound, end, outside in ((low, ends[0], -1e-3), (high, ends[1], 1e-3)):
        if bound is not None:
            assert abs(float(end) - bound) < 0.5
            beyond = torch.full(fn.shape(), bound + outside)
            assert not bool(support.check(beyond).any())
    graph = pg.trace_graph(lambda: pyro.sample("x", make()), unconstrained=True)
    free = {"x": 3 * torch.randn(5, *fn.shape())}
    assert bool(support.check(graph.constrain(free)["x"]).all())


class Declared(dist.TransformedDistribution):
    support = dist.constraints.interval(-1.0, 1.0)


def test_what_is_not_bounded_by_numbers_or_says_its_own_support_keeps_torchs():
    real = moved(dist.Normal(0.0, 1.0), AffineTransform(2.0, 3.0))
    assert support_of(real) is dist.constraints.real
    # tensors may be latents
    latent = moved(dist.Beta(2.0, 2.0), AffineTransform(0.0, torch.tensor(2.0)))
    assert support_of(latent) is dist.constraints.real
    whole = moved(dist.Poisson(2.0), AffineTransform(0.0, 2.0))
    assert support_of(whole) is dist.constraints.real
    own = Declared(dist.Gamma(2.0, 1.0), [AffineTransform(-1.0, 1.0)])
    assert support_of(own) is Declared.support


def test_engines_stay_within_a_stretched_beta():
    def model():
        x = pyro.sample("x", moved(dist.Beta(2.0, 2.0), AffineTransform(-1.0, 2.0)))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(0.7))

    p = torch.linspace(0, 1, 20001, dtype=torch.float64)[1:-1]
    density = 6 * p * (1 - p) * dist.Normal(2 * p - 1, 1.0).log_prob(torch.tensor(0.7)).exp()
    mean = ((2 * p - 1) * density).sum() / density.sum()
    for infer in (pg.EP, pg.VMP):
        q = pg.fit(model, infer=infer, progress=False)
        assert abs(float(q.marginal("x").mean) - float(mean)) < 5e-3
        draws = q.sample(500)["x"]
        assert float(draws.min()) > -1 and float(draws.max()) < 1
