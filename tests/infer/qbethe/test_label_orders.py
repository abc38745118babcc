"""What changes places with the states of labels, and starts there: enumeration, by hand."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import gammaln, logsumexp
from scipy.stats import expon, norm

import pyrograph as pg
from pyrograph.infer.qbethe.label_orders import exchanges, orders
from pyrograph.trace.plain_run import log_probs_at

from .test_joint import fit
from .test_regions import log_evidence

ROWS = torch.tensor([[-2.0, 0.5], [-1.5, 1.0], [2.0, -0.5], [2.5, 0.3]])


def plates(size=2):
    """As many numbers an event as components."""
    share = pyro.sample("share", dist.Dirichlet(torch.ones(size)))
    with pyro.plate("clusters", size):
        mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 3.0).to_event(1))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", len(ROWS)):
        z = pyro.sample("z", dist.Categorical(share))
        pyro.sample("y", dist.Normal(mean[z], scale[z, None]).to_event(1), obs=ROWS)


def features():
    """Components along the events, features along a plate."""
    with pyro.plate("features", 2):
        level = pyro.sample("level", dist.Normal(torch.zeros(2), 3.0).to_event(1))
    with pyro.plate("rows", len(ROWS)):
        z = pyro.sample("z", dist.Bernoulli(0.5)).long()
        pyro.sample("y", dist.Normal(level.T[z], 1.0).to_event(1), obs=ROWS)


def switching():
    """Rows and columns of a matrix."""
    with pyro.plate("states", 3):
        move = pyro.sample("move", dist.Dirichlet(torch.ones(3)))
        level = pyro.sample("level", dist.Normal(0.0, 3.0))
    z = torch.tensor(0)
    for t in range(3):
        p = move[z] if t else torch.full((3,), 1 / 3)
        z = pyro.sample(f"z{t}", dist.Categorical(p))
        pyro.sample(f"y{t}", dist.Normal(level[z], 1.0), obs=ROWS[t, 0])


def one_hot():
    """Sites without plates."""
    mean = pyro.sample("mean", dist.Normal(torch.zeros(3), 3.0).to_event(1))
    with pyro.plate("rows", len(ROWS)):
        z = pyro.sample("z", dist.OneHotCategorical(torch.full((3,), 1 / 3)))
        pyro.sample("y", dist.Normal(z @ mean, 1.0), obs=ROWS[:, 0])


def ordered():
    """Priors tell the components apart."""
    with pyro.plate("clusters", 2):
        mean = pyro.sample("mean", dist.Normal(torch.tensor([-1.0, 1.0]), 3.0))
    with pyro.plate("rows", len(ROWS)):
        z = pyro.sample("z", dist.Bernoulli(0.5)).long()
        pyro.sample("y", dist.Normal(mean[z], 1.0), obs=ROWS[:, 0])


def correlated():
    """A site whose rows cannot change places, beside those that can."""
    root = pyro.sample("root", dist.LKJCholesky(3))
    with pyro.plate("clusters", 3):
        mean = pyro.sample("mean", dist.Normal(torch.zeros(3), 3.0).to_event(1))
    with pyro.plate("rows", 4):
        z = pyro.sample("z", dist.Categorical(torch.full((3,), 1 / 3)))
        y = torch.cat([ROWS, ROWS[:, :1]], 1)
        pyro.sample("y", dist.MultivariateNormal(mean[z], scale_tril=root), obs=y)


EXPECTED = {
    correlated: {"mean": (-2,)},
    plates: {"share": (-1,), "mean": (-2,), "scale": (-1,)},
    features: {"level": (-1,)},
    switching: {"move": (-2, -1), "level": (-1,)},
    one_hot: {"mean": (-1,)},
    ordered: None,
}


def found_in(model):
    pyro.set_rng_seed(1)
    graph = pg.trace_graph(model, unconstrained=True)
    trace = pyro.poutine.trace(model).get_trace()
    point = {name: trace.nodes[name]["value"][None] for name in graph.sites}
    return exchanges(graph, (model, (), {}), [point]), point


@pytest.mark.parametrize("model", EXPECTED, ids=lambda model: model.__name__)
def test_what_changes_places_with_labels(model):
    found, point = found_in(model)
    if EXPECTED[model] is None:
        assert found == []
        return
    (own,) = found
    assert {name: tuple(sorted(dims)) for name, dims in own.dims.items()} == EXPECTED[model]
    order = torch.tensor([1, 2, 0][: own.size] if own.size == 3 else [1, 0])
    image = own.of(point, order)
    here, there = (
        sum(log_probs_at(model, (), {}, {name: v[0] for name, v in values.items()}).values())
        for values in (point, image)
    )
    assert abs(float(here - there)) < 1e-4
    assert any(not torch.equal(point[name], image[name]) for name in own.dims)
    back = own.of(image, order.argsort())
    assert all(torch.equal(point[name], back[name]) for name in point)


def test_probabilities_of_states_change_places_as_labels_do():
    (own,), _ = found_in(lambda: plates(3))
    order, log_probs = torch.tensor([2, 0, 1]), torch.randn(4, 3)
    draws = {"z": torch.tensor([[0, 1, 2, 2]])}
    moved = own.of(
        {
            **draws,
            "share": torch.zeros(1, 3),
            "mean": torch.zeros(1, 3, 2),
            "scale": torch.zeros(1, 3),
        },
        order,
    )["z"][0]
    before = log_probs[torch.arange(4), draws["z"][0]]
    after = own.of_states(own.labels[0], log_probs, order)[torch.arange(4), moved]
    assert torch.equal(before, after)


@pytest.mark.parametrize("wanted, count", [(1, 1), (4, 4), (100, 12)])
def test_orders_are_different_and_the_first_is_as_it_stands(wanted, count):
    both = found_in(lambda: plates(3))[0] + found_in(plates)[0]
    found = orders(both, wanted, torch.Generator().manual_seed(0))
    assert len(found) == len({tuple(torch.cat(o).tolist()) for o in found}) == count
    assert [o.tolist() for o in found[0]] == [[0, 1, 2], [0, 1]]


POINTS = np.array([-4.2, -3.9, -3.1, 0.2, 0.9, 4.4, 5.1, 5.3])


def three():
    share = pyro.sample("share", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("clusters", 3):
        mean = pyro.sample("mean", dist.Normal(0.0, 5.0))
    with pyro.plate("rows", len(POINTS)):
        z = pyro.sample("z", dist.Categorical(share))
        y = torch.tensor(POINTS, dtype=torch.get_default_dtype())
        pyro.sample("y", dist.Normal(mean[z], 1.0), obs=y)


@pytest.mark.parametrize("components", [1, 3])
def test_components_start_in_different_orders_of_labels(components):
    """Every order has a sixth of the evidence, but for a share lost to independence."""
    log_z = log_evidence(POINTS, 3, 1.0, 5.0)
    options = {"covariance": "diagonal", "num_steps": 60}
    q = fit(three, seed=0, num_components=components, **options)
    assert q.evidence_kind == "lower bound"
    lost = log_z - float(q.log_evidence)
    assert math.log(6 / components) < lost < math.log(6 / components) + 0.6


def test_one_hot_labels_start_where_mean_field_ends():
    """Their beliefs are over vectors: setting up ended in torch's error about sizes."""
    points = np.array([-4.2, -3.9, 4.4])

    def model():
        with pyro.plate("clusters", 2):
            mean = pyro.sample("mean", dist.Normal(0.0, 5.0))
        with pyro.plate("rows", len(points)):
            z = pyro.sample("z", dist.OneHotCategorical(torch.ones(2) / 2))
            pyro.sample("y", dist.Normal(z @ mean, 1.0), obs=torch.tensor(points).float())

    q = fit(model, num_components=1, covariance="diagonal", num_steps=40)
    log_z = log_evidence(points, 2, 1e6, 5.0)  # such shares are a half
    assert math.log(2) < log_z - float(q.log_evidence) < math.log(2) + 0.1
    first, second, third = q.marginal("z").probs.argmax(-1).tolist()
    assert first == second != third


def test_many_weights_start_where_mean_field_ends():
    """Of four and more it would integrate on grids of as many dimensions: from draws it ended
    60 nats lower."""
    points = np.array([-9.2, -8.8, -3.1, 3.0, 9.1])

    def four():
        share = pyro.sample("share", dist.Dirichlet(torch.ones(4)))
        with pyro.plate("clusters", 4):
            mean = pyro.sample("mean", dist.Normal(0.0, 9.0))
        with pyro.plate("rows", len(points)):
            z = pyro.sample("z", dist.Categorical(share))
            pyro.sample("y", dist.Normal(mean[z], 1.0), obs=torch.tensor(points).float())

    q = fit(four, num_components=1, covariance="diagonal", num_steps=60)
    lost = log_evidence(points, 4, 1.0, 9.0) - float(q.log_evidence)
    assert math.log(24) < lost < math.log(24) + 0.8


def test_weights_of_nearly_nothing_start_at_draws():
    """Normals as wide as the beliefs of sparse weights ended in NaN."""

    def model():
        share = pyro.sample("share", dist.Dirichlet(torch.full((5,), 0.02)))
        with pyro.plate("clusters", 5):
            mean = pyro.sample("mean", dist.Normal(0.0, 3.0))
        with pyro.plate("rows", 5):
            z = pyro.sample("z", dist.Categorical(share))
            y = torch.tensor([-2.0, -1.5, 2.0, 2.5, 0.3])
            pyro.sample("y", dist.Normal(mean[z], 1.0), obs=y)

    torch.set_default_dtype(torch.float32)
    pyro.set_rng_seed(0)
    q = pg.fit(model, infer=pg.QBethe, num_components=2, num_steps=5, progress=False)
    assert bool(q.log_evidence.isfinite())


def test_a_program_that_mean_field_refuses_starts_at_draws():
    """Of wide beliefs it reaches zeros."""

    def model(spread):
        with pyro.plate("clusters", 2):
            mean = pyro.sample("mean", dist.Normal(0.0, spread))
        z = pyro.sample("z", dist.Bernoulli(0.5)).long()
        pyro.sample("y", dist.Uniform(mean[z] - 9, mean[z] + 9), obs=torch.tensor(0.1))

    with pytest.raises(pg.errors.PyrographError, match="has zeros"):
        pg.fit(model, (3.0,), infer=pg.VMP, progress=False)
    for spread, off in ((3.0, math.inf), (0.1, 0.02)):
        q = fit(model, spread, num_components=2, covariance="diagonal", num_steps=50)
        assert q.log_evidence is None or abs(float(q.log_evidence) + math.log(18)) < off


def scaled(y):
    share = pyro.sample("share", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("clusters", 3):
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        scale = pyro.sample("scale", dist.Exponential(0.2))
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Categorical(share))
        pyro.sample("y", dist.Normal(mean[z], scale[z]), obs=y)


def log_joint(y, states):
    """Of the data and one labelling: shares and means in closed form, scales on a grid."""
    counts = np.bincount(states, minlength=3)
    total = gammaln(3) - gammaln(3 + len(y)) + gammaln(1 + counts).sum()
    u = np.linspace(-4, 4, 801)
    s = np.exp(u)
    for own in (y[states == k] for k in range(3)):
        n, off = len(own), ((own - own.mean()) ** 2).sum()
        value = norm.logpdf(own.mean(), 0, np.sqrt(100 + s**2 / n)) + u + expon.logpdf(s, scale=5)
        value -= off / (2 * s**2) + (n - 1) / 2 * np.log(2 * np.pi * s**2) + np.log(n) / 2
        total += logsumexp(value) + np.log(u[1] - u[0])
    return total


def test_components_that_mean_field_leaves_empty_on_its_way_are_waited_for():
    """It comes from optimum to optimum; one component is to have at least the right labelling."""
    draw = torch.Generator().manual_seed(2)
    states = torch.randint(3, (60,), generator=draw)
    y = torch.tensor([-4.0, 3.0, 8.0])[states] + torch.randn(60, generator=draw)
    q = fit(scaled, y, num_components=1, covariance="diagonal", num_steps=60)
    assert float(q.log_evidence) > log_joint(y.double().numpy(), states.numpy()) - 1


def test_one_hot_labels_of_as_many_rows_as_states_are_moved_along_the_rows():
    """Rows that are alike may change places too."""

    def alike():
        with pyro.plate("rows", 3):
            z = pyro.sample("z", dist.OneHotCategorical(torch.full((3,), 1 / 3)))
            level = pyro.sample("level", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(level + 0.0 * z.sum(-1), 1.0), obs=torch.zeros(3))

    (own,), _ = found_in(alike)
    assert own.dims == {"z": (-2,), "level": (-1,)}
    order, log_probs = torch.tensor([2, 0, 1]), torch.randn(3, 3)
    moved = own.of_states(own.labels[0], log_probs, order)
    assert torch.equal(moved, log_probs[order][:, order])
    q = fit(alike, num_components=2, covariance="diagonal", num_steps=5)
    assert math.isfinite(q.log_evidence)
