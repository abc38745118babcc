"""Graphs and posteriors are pickled and copied whole: without the program, they say the same."""

import copy
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.distributions import (
    BetaBernoulli,
    ChineseRestaurant,
    CollapsedMixture,
    CollapsedRelation,
    NormalInverseGamma,
)
from pyrograph.errors import OptionError


def by_pickle(thing):
    return pickle.loads(pickle.dumps(thing))


BOTH = pytest.mark.parametrize("copied", [copy.deepcopy, by_pickle])


def squares(y):
    with pyro.plate("i", len(y)):
        x = pyro.sample("x", dist.Normal(0.5, 1.0))
        pyro.sample("y", dist.Normal(torch.erfinv(x.tanh()) + x**2, 1.0), obs=y)


def counts(y):
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("i", len(y)):
        z = pyro.sample("z", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Poisson(torch.where(z == 1, 5.0, rate)), obs=y)


def colours(y):
    x = [pyro.sample("x0", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))]
    for k in range(1, len(y)):
        x.append(pyro.sample(f"x{k}", dist.Categorical(torch.ones(3) / 3)))
        pyro.factor(f"f{k}", torch.where(x[-1] == x[-2], 0.7, y[k]))


def recurrence(y):
    a, b = pyro.sample("a", dist.Normal(0.0, 0.5)), pyro.sample("b", dist.Normal(0.0, 0.5))
    level = torch.zeros(())
    for k in range(len(y)):
        level = torch.tanh(a * level + b * (y[k - 1] if k else 0.0))
        pyro.sample(f"y{k}", dist.Normal(level, 1.0), obs=y[k])


REALS, COUNTS = torch.tensor([0.4, 1.9, -0.3, 2.2]), torch.tensor([1.0, 6.0, 2.0, 4.0])
RUNS = [
    pytest.param(squares, REALS, pg.EP, {}, id="EP"),
    pytest.param(squares, REALS, pg.VMP, {}, id="VMP"),
    pytest.param(squares, REALS, pg.QBethe, {"num_components": 2}, id="QBethe"),
    pytest.param(squares, REALS, pg.GraphicalSVGD, {"num_particles": 9}, id="SVGD"),
    pytest.param(squares, REALS, pg.Langevin, {"num_particles": 9}, id="Langevin"),
    pytest.param(counts, COUNTS, pg.EP, {"family": {"rate": "gamma"}}, id="gamma"),
    pytest.param(counts, COUNTS, pg.QBethe, {}, id="hybrid QBethe"),
    pytest.param(colours, REALS, pg.BP, {}, id="BP"),
    pytest.param(colours, REALS, pg.TRW, {}, id="TRW"),
    pytest.param(colours, REALS, pg.DPVI, {"num_particles": 4}, id="DPVI"),
    pytest.param(colours, REALS, pg.SequentialDPVI, {"num_particles": 4}, id="SequentialDPVI"),
    pytest.param(recurrence, REALS.repeat(12), pg.EP, {}, id="recurrence"),
]


@BOTH
@pytest.mark.parametrize(("program", "y", "infer", "options"), RUNS)
@pytest.mark.filterwarnings("ignore::pyrograph.errors.PyrographWarning")
def test_a_copy_of_a_posterior_says_the_same(program, y, infer, options, copied):
    steps = {"num_steps": 20} if infer in (pg.QBethe, pg.GraphicalSVGD, pg.Langevin) else {}
    posterior = pg.fit(program, (y,), infer=infer, progress=False, **options, **steps)
    same = copied(posterior)
    assert type(same) is type(posterior) and same.status == posterior.status
    for name in posterior.graph.sites:
        assert_close(same.marginal(name).mean, posterior.marginal(name).mean, rtol=0, atol=0)
    assert (same.log_evidence is None) == (posterior.log_evidence is None)
    if same.log_evidence is not None:
        assert same.log_evidence == posterior.log_evidence
        assert same.evidence_kind == posterior.evidence_kind
    draws = []
    for each in (posterior, same):
        pyro.set_rng_seed(3)
        draws.append(each.sample(5))
    assert_close(draws[1], draws[0], rtol=0, atol=0)
    values = posterior.graph.unconstrain(draws[0])
    assert_close(same.graph.log_prob(values), posterior.graph.log_prob(values), rtol=0, atol=0)
    shallow = copy.copy(posterior)
    assert shallow.graph is posterior.graph and same.graph is not posterior.graph
    trace = pyro.poutine.trace(same.guide()).get_trace(y)
    assert set(posterior.graph.sites) <= set(trace.nodes)


def clusters(y):
    z = pyro.sample("z", ChineseRestaurant(1.0, len(y)))
    pyro.sample("y", CollapsedMixture(z, NormalInverseGamma(0.1, 1.0, 1.0)), obs=y)


@BOTH
@pytest.mark.parametrize(
    ("program", "args", "infer"),
    [
        (clusters, (REALS,), pg.DPVI),
        (clusters, (REALS,), pg.SequentialDPVI),
        (colours, (REALS,), pg.BBIS),
        (colours, (REALS,), pg.CollapsedBBIS),
    ],
)
def test_draws_of_a_copy_are_the_same(program, args, infer, copied):
    posterior = pg.fit(program, args, infer=infer, num_particles=6, progress=False)
    draws = []
    for each in (posterior, copied(posterior)):
        pyro.set_rng_seed(5)
        draws.append(each.sample(7))
    assert_close(draws[1], draws[0], rtol=0, atol=0)


def blocks(y):
    alpha, a = (
        pyro.param(name, torch.tensor(1.5), constraint=dist.constraints.positive)
        for name in ("alpha", "a")
    )
    z = pyro.sample("z", ChineseRestaurant(alpha, len(y)))
    component = NormalInverseGamma(0.1, a, 1.0, pyro.param("loc", torch.tensor(0.5)))
    pyro.sample("y", CollapsedMixture(z, component), obs=y)
    relation = CollapsedRelation(z, z, BetaBernoulli(a, 1.0))
    pyro.sample("links", relation, obs=(y > y.unsqueeze(-1)).to(y))


@BOTH
@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
def test_labels_whose_hyperparameters_are_of_pyros_store_are_copied(infer, copied):
    posterior = pg.fit(blocks, (REALS,), infer=infer, num_particles=6, progress=False)
    same = copied(posterior)
    assert_close(same.together("z"), posterior.together("z"), rtol=0, atol=0)
    labels = posterior.particles
    assert_close(same.graph.log_prob(labels), posterior.graph.log_prob(labels), rtol=0, atol=0)


@BOTH
@pytest.mark.parametrize("unconstrained", [True, False])
def test_a_graph_is_copied_before_it_computed_anything(unconstrained, copied):
    graph = pg.trace_graph(squares, (REALS,), unconstrained=unconstrained, verify=False)
    same = copied(graph)
    values = {"x": torch.linspace(-1, 1, 12).reshape(3, 4)}
    expected = graph.log_prob(values)
    assert_close(same.log_prob(values), expected, rtol=0, atol=0)
    assert_close(copied(graph).sum_of_factors(values), expected)
    (group,) = (g for g in same.factors if g.name == "y")
    (own,) = (g for g in graph.factors if g.name == "y")
    at = [values["x"]]
    assert_close(group.log_prob(at), own.log_prob(at), rtol=0, atol=0)


@BOTH
def test_derivatives_are_not_lost_silently(copied):
    scale = torch.tensor(0.7, requires_grad=True)

    def program(y):
        with pyro.plate("i", len(y)):
            x = pyro.sample("x", dist.Normal(0.0, scale.exp()))
            pyro.sample("y", dist.Normal(x, 1.0), obs=y)

    posterior = pg.fit(program, (REALS,), infer=pg.EP, progress=False)
    assert posterior.log_evidence.requires_grad
    with pytest.raises(OptionError, match="derivatives would be lost"):
        copied(posterior)
    with torch.no_grad():
        posterior = pg.fit(program, (REALS,), infer=pg.EP, progress=False)
    assert copied(posterior).log_evidence == posterior.log_evidence
