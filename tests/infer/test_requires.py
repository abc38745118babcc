"""Sites and plates without anything to infer: refused by name, and the advice followed works."""

import math
import re

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import InvalidProgram, UnsupportedSite

CONTINUOUS = [pg.GraphicalSVGD, pg.Langevin, pg.EP, pg.VMP, pg.BP, pg.QBethe, pg.BBIS]
CONSTANT = {
    "Dirichlet": lambda: dist.Dirichlet(torch.ones(1)),
    "batch": lambda: dist.Dirichlet(torch.ones(3, 1)),
    "Normal": lambda: dist.Normal(torch.zeros(0), 1.0).to_event(1),
    "mixture": lambda: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)), dist.Dirichlet(torch.ones(2, 1))
    ),
}


def line(w):
    """x ~ N(0, 1) and y ~ N(w x, 1) at y = 1."""
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(x * w, 1.0), obs=torch.tensor(1.0))


@pytest.mark.parametrize("infer", CONTINUOUS)
@pytest.mark.parametrize("name", CONSTANT)
def test_a_site_of_one_value_is_refused_by_name(infer, name):
    def model():
        line(pyro.sample("w", CONSTANT[name]()).sum())

    text = rf'site "w" .*event shape.*one value only, so {infer.__name__} .*obs=value'
    with pytest.raises(UnsupportedSite, match=text):
        pg.fit(model, infer=infer, progress=False)


def test_a_site_of_one_value_may_be_observed():
    def model():
        line(pyro.sample("w", dist.Dirichlet(torch.ones(1)), obs=torch.ones(1)).sum())

    found = pg.fit(model, infer=pg.EP, progress=False).log_evidence
    truth = -0.5 * math.log(2 * math.pi * 2) - 1 / 4  # y ~ N(0, 2)
    assert float(found) == pytest.approx(truth, abs=1e-6)


@pytest.mark.parametrize("infer", [*CONTINUOUS, pg.CollapsedBBIS, pg.DPVI, pg.SequentialDPVI])
@pytest.mark.parametrize("place", ["with", "for", "observed"])
def test_a_plate_without_elements_is_refused_by_name(infer, place):
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.3), obs=torch.tensor(1.0))
        plate = pyro.plate("rows", 0)
        if place == "for":
            for i in plate:
                pyro.sample(f"y{i}", dist.Normal(z, 1.0))
            return
        with plate:
            data = torch.zeros(0) if place == "observed" else None
            pyro.sample("y", dist.Normal(z, 1.0), obs=data)

    with pytest.raises(InvalidProgram, match=r'plate "rows" has size 0.*if size > 0'):
        pg.fit(model, infer=infer, progress=False)


def test_the_structure_of_an_empty_plate_is_refused_by_name_too():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 0):
            pyro.sample("y", dist.Normal(x, 1.0), obs=torch.zeros(0))

    with pytest.raises(InvalidProgram, match=r'plate "rows" has size 0'):
        pg.trace_graph(model)


class _Unmapped(torch.distributions.constraints.Constraint):
    """A support that no map from the reals is known of."""

    is_discrete, event_dim = False, 1

    def check(self, value):
        return torch.ones(value.shape[:-1], dtype=torch.bool)


class _OnUnmapped(dist.TorchDistribution):
    arg_constraints, support = {}, _Unmapped()

    def __init__(self):
        super().__init__((), (2,), validate_args=False)

    def sample(self, sample_shape=()):
        return torch.randn(*sample_shape, 2)

    def log_prob(self, value):
        return -value.square().sum(-1) / 2


@pytest.mark.parametrize("infer", [pg.EP, pg.VMP, pg.QBethe, pg.GraphicalSVGD, pg.Langevin])
def test_a_support_without_a_map_is_refused_by_name_later(infer):
    """The check for constant sites cannot count its numbers, and leaves it to the tracer."""

    def model():
        pyro.sample("x", _OnUnmapped())

    with pytest.raises(UnsupportedSite, match=r'site "x".*no map from the reals'):
        pg.fit(model, infer=infer, progress=False)


@pytest.mark.parametrize("infer", CONTINUOUS)
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_a_site_without_elements_is_refused_by_name(infer, shape):
    def model():
        line(pyro.sample("w", dist.Normal(torch.zeros(shape), 1.0)).sum())

    text = rf'site "w" .*batch shape {re.escape(str(shape))}.* no elements.*Leave it out'
    with pytest.raises(UnsupportedSite, match=text):
        pg.fit(model, infer=infer, progress=False)


def test_particles_have_states_of_no_nodes_too():
    def model():
        pyro.sample("none", dist.Bernoulli(torch.full((0,), 0.5)))
        pyro.sample("z", dist.Bernoulli(0.3))

    found = pg.fit(model, infer=pg.DPVI, num_particles=2, progress=False)
    assert float(found.log_evidence) == pytest.approx(0.0, abs=1e-6)
    assert found.sample(4)["none"].shape == (4, 0)


def test_a_distribution_without_a_support_is_refused_by_name():
    class Bare(dist.Normal):
        support = property(lambda self: dist.TorchDistribution.support.fget(self))

    def model():
        pyro.sample("x", Bare(0.0, 1.0, validate_args=False))

    for infer in (pg.GraphicalSVGD, pg.EP, pg.DPVI, pg.QBethe):
        with pytest.raises(UnsupportedSite, match=r'site "x" .*says no support'):
            pg.fit(model, infer=infer, progress=False)


@pytest.mark.parametrize("engine", [pg.EP, pg.VMP, pg.BP, pg.QBethe])
def test_an_event_whose_covariance_does_not_fit_is_refused(engine):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(20_000), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=torch.zeros(20_000))

    with pytest.raises(
        UnsupportedSite, match=r'site "x" \(Normal\) .* 20,000 numbers.* pyro.plate'
    ):
        engine(model, progress=False).setup()


@pytest.mark.parametrize("engine", [pg.BP, pg.DPVI, pg.GraphicalSVGD])
def test_a_distribution_without_shapes_or_support_is_asked_for_one(engine):
    class Coin(pyro.distributions.Distribution):
        has_enumerate_support = True

        def sample(self, *args):
            return torch.tensor(1.0)

        def log_prob(self, x):
            return torch.log(0.3 + 0.4 * x)

    def model():
        pyro.sample("x", Coin())

    with pytest.raises(UnsupportedSite, match=r'"x" \(Coin\) says no support'):
        pg.fit(model, infer=engine, progress=False)


def test_an_interval_that_is_not_listed_is_no_unequal_one():
    class Die(pyro.distributions.TorchDistribution):
        arg_constraints = {}  # noqa: RUF012
        support = torch.distributions.constraints.integer_interval(0, 2)

        def sample(self, shape=()):
            return torch.randint(0, 3, torch.Size(shape)).float()

        def log_prob(self, value):
            return torch.full(value.shape, -math.log(3))

    def model():
        pyro.sample("k", Die(validate_args=False))

    with pytest.raises(UnsupportedSite, match="has no finite list of states"):
        pg.fit(model, infer=pg.BP, progress=False)


def test_an_error_within_a_support_of_the_users_own_is_shown():
    class Broken(pyro.distributions.Normal):
        @property
        def support(self):
            return self.no_such_bound

    def model():
        pyro.sample("x", Broken(0.0, 1.0))

    with pytest.raises(AttributeError, match="no_such_bound"):
        pg.fit(model, infer=pg.EP, progress=False)
