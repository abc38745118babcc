"""Ordered outcomes: what each level reads, and posteriors beside dense grids."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

import pyrograph as pg
from pyrograph.infer.message_passing.densities.reduction import LocalDensity

LEVELS = torch.arange(5)


def cutpoints_apart(scores: Tensor, y: Tensor) -> None:
    weight = pyro.sample("w", dist.Normal(torch.zeros(()).double(), 1.0))
    with pyro.plate("k", int(LEVELS.max())):
        cut = pyro.sample("c", dist.Normal(torch.linspace(-1.5, 1.5, 4).double(), 0.3))
    with pyro.plate("n", len(y)):
        pyro.sample("y", dist.OrderedLogistic(weight * scores, cut), obs=y)


def ordered_node(scores: Tensor, y: Tensor) -> None:
    weight = pyro.sample("w", dist.Normal(torch.zeros(()).double(), 1.0))
    base = dist.Normal(torch.zeros(4).double(), 1.0).to_event(1)
    ordered = dist.transforms.OrderedTransform()
    cut = pyro.sample("c", dist.TransformedDistribution(base, ordered))
    with pyro.plate("n", len(y)):
        pyro.sample("y", dist.OrderedLogistic(weight * scores, cut), obs=y)


def probits(scores: Tensor, y: Tensor) -> None:
    weight = pyro.sample("w", dist.Normal(torch.zeros(()).double(), 1.0))
    with pyro.plate("k", int(LEVELS.max())):
        cut = pyro.sample("c", dist.Normal(torch.linspace(-1.5, 1.5, 4).double(), 0.3))
    below = dist.Normal(torch.zeros(()).double(), 1.0).cdf(cut - (weight * scores)[:, None])
    one = torch.ones_like(below[:, :1])
    below = torch.cat([0 * one, below, one], 1)
    with pyro.plate("n", len(y)):
        pyro.sample("y", dist.Categorical(below[:, 1:] - below[:, :-1]), obs=y)


def local_of(model) -> LocalDensity:
    """The levels' factors, one of each level."""
    scores = torch.linspace(0.5, 1.5, 5, dtype=torch.float64)
    graph = pg.trace_graph(model, (scores, LEVELS), unconstrained=True)
    group = next(g for g in graph.factors if g.name == "y")
    every = torch.arange(group.num_factors)
    return LocalDensity(group, every, torch.zeros(0, dtype=torch.float64), graph)


@pytest.mark.parametrize(
    "model, expected",
    [
        (cutpoints_apart, [1, 2, 2, 2, 1]),
        (probits, [1, 2, 2, 2, 1]),
        (ordered_node, [1, 2, 3, 4, 4]),  # c_k = t_0 + exp(t_1) + ... + exp(t_k)
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_level_reads_the_cutpoints_beside_it(model, expected):
    assert local_of(model).num_read.tolist() == expected


@pytest.mark.parametrize("model", [cutpoints_apart, probits, ordered_node])
def test_what_a_level_does_not_read_does_not_change_it(model):
    local = local_of(model)
    local.reduce_jointly()
    v = local.stacked_points(1)
    inside = (local.joint.mT @ local.joint @ v[..., None]).squeeze(-1)
    torch.testing.assert_close(local.at_parts(inside), local.at_parts(v), rtol=1e-9, atol=1e-9)


def test_some_of_the_factors_read_what_they_did_among_all():
    x = torch.randn(5, 4, dtype=torch.float64)

    def model(scores, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(4).double(), 1.0).to_event(1))
        with pyro.plate("k", 4):
            cut = pyro.sample("c", dist.Normal(torch.linspace(-1.5, 1.5, 4).double(), 0.3))
        with pyro.plate("n", len(y)):
            pyro.sample("y", dist.OrderedLogistic(x @ w, cut), obs=y)

    local = local_of(model)
    assert local.widths[0] == 1 and local.num_read.tolist() == [1, 2, 2, 2, 1]
    assert local.part(torch.tensor([0, 2])).num_read.tolist() == [1, 2]


def test_infinite_numbers_do_not_cancel():
    """log|x_1| - log|x_1| is no number where x_1 is 0."""

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2).double(), 1.0).to_event(1).mask(False))
        far = x.abs().log()[1]
        pyro.factor("f", -(((x[0] + far) - far).exp()))

    graph = pg.trace_graph(model)
    group = next(g for g in graph.factors if g.name == "f")
    local = LocalDensity(group, torch.arange(1), torch.zeros(0, dtype=torch.float64), graph)
    assert local.num_read.tolist() == [2]


def dense(scores: Tensor, y: Tensor) -> tuple[float, Tensor, Tensor]:
    """Log evidence, means and variances of a weight and two cutpoints, N(0, 1), N(-+0.7, 0.3), on
    a grid over all three."""
    centre = torch.tensor([0.0, -0.7, 0.7], dtype=torch.float64)
    width = torch.tensor([1.0, 0.3, 0.3], dtype=torch.float64)
    z = torch.linspace(-5, 5, 31, dtype=torch.float64)
    x = centre + width * torch.cartesian_prod(z, z, z)
    log_p = dist.Normal(centre, width).log_prob(x).sum(1)
    below = (x[:, None, 1:] - (x[:, :1] * scores)[..., None]).sigmoid()  # [N, n, 2]
    ends = torch.zeros_like(below[..., :1])
    below = torch.cat([ends, below, ends + 1], -1)
    chosen = (below[..., 1:] - below[..., :-1])[:, torch.arange(len(y)), y]
    log_p = log_p + chosen.clamp_min(1e-300).log().sum(1)
    step = float(z[1] - z[0])
    log_z = float(log_p.logsumexp(0)) + float(width.log().sum()) + 3 * torch.tensor(step).log()
    share = log_p.softmax(0)[:, None]
    mean = (share * x).sum(0)
    return float(log_z), mean, (share * (x - mean) ** 2).sum(0)


def test_ordinal_regression_is_that_of_a_dense_grid():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(30, generator=generator, dtype=torch.float64)
    noise = torch.rand(30, generator=generator, dtype=torch.float64).logit()
    cuts = torch.tensor([-0.7, 0.7], dtype=torch.float64)
    y = ((scores + noise)[:, None] > cuts).sum(1)
    log_z, mean, variance = dense(scores, y)

    def model():  # one node, whose belief holds all correlations
        centre, width = torch.cat([0 * cuts[:1], cuts]), torch.tensor([1.0, 0.3, 0.3]).double()
        x = pyro.sample("x", dist.Normal(centre, width).to_event(1))
        with pyro.plate("n", len(y)):
            pyro.sample("y", dist.OrderedLogistic(x[0] * scores, x[1:]), obs=y)

    engine = pg.EP(model, progress=False)
    found = engine.run()
    assert found.converged
    assert sorted(block.local.dim for block in engine.network.blocks) == [1, 2]
    marginal = found.marginal("x")
    assert float(found.log_evidence) == pytest.approx(log_z, abs=0.02)
    assert float(((marginal.mean - mean) / variance.sqrt()).abs().max()) < 0.02
    torch.testing.assert_close(marginal.variance, variance, rtol=0.03, atol=0)


def test_messages_of_many_factors_to_a_wide_node_stay_symmetric():
    """Rounding in the triangle that moments do not see would grow as often as there are factors
    with every sweep."""
    y = LEVELS.repeat(8)
    scores = torch.linspace(-1, 1, len(y), dtype=torch.float64).roll(7)
    engine = pg.EP(ordered_node, progress=False, num_points=4, num_steps=9, tol=None)
    engine.run(scores, y)
    for sent in engine.messages:
        for message in sent:
            off = message.precision - message.precision.mT
            assert float(off.abs().max()) <= 1e-12 * float(message.precision.abs().max())
