"""Marginals of nodes that are given: Pyro's Delta. Of the others: Bayes' rule by scipy."""

from contextlib import ExitStack

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import special, stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.beliefs import JointMixture, Normals
from pyrograph.posterior.joint_mixture import MixturePosterior

WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.float64)
PRIORS = {
    "real": (dist.Normal, 0.0, 1.0, [0.3, -1.0, 2.0]),
    "positive": (dist.LogNormal, 0.0, 1.0, [0.3, 1e-9, 1e9]),
    "interval": (dist.Uniform, 2.0, 5.0, [2.3, 3.0, 4.9]),
    "wide interval": (dist.Uniform, -1e6, 1e6, [0.3, -1.0, 999999.0]),
}


def numbers(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def posterior_of(model, sites, is_correlated=False):
    graph = pg.trace_graph(model, unconstrained=True)
    run = {"converged": True, "status": "converged", "history": {}}
    mixture = JointMixture(WEIGHTS.log(), sites, is_correlated)
    return MixturePosterior(graph, mixture, [], is_joint=True, **run)


def three(prior, event=()):
    def model():
        with pyro.plate("three", 3):
            pyro.sample("x", prior.expand([3, *event]).to_event(len(event)))

    return model


@pytest.mark.parametrize("name", PRIORS)
def test_a_given_node_has_the_density_and_moments_of_a_delta(name):
    prior, *bounds, values = PRIORS[name]
    nodes = Normals(numbers(0, 2, 3, 1), 0.3 + numbers(1, 2, 3, 1).abs())
    value = torch.tensor(values, dtype=torch.float64)
    given = posterior_of(three(prior(*bounds)), {"x": nodes}).condition({"x": value})
    truth = pyro.distributions.Delta(value)
    marginal = given.marginal("x")
    for at in (value, value * 1.001, value.flip(0)):
        assert_close(marginal.log_prob(at), truth.log_prob(at), rtol=0, atol=0)
    assert_close(marginal.mean, value, rtol=0, atol=0)
    assert_close(marginal.variance, torch.zeros(3))
    assert_close(marginal.sample((2,)), value.expand(2, 3), rtol=0, atol=0)
    assert_close(marginal.cdf(value), torch.ones(3).double())
    assert_close(marginal.cdf(value - 0.01 * value.abs()), torch.zeros(3).double())


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_of_a_given_node_are_its_value(name, dtype):
    prior, low, high, values = PRIORS[name]
    prior = prior(torch.tensor(low, dtype=dtype), torch.tensor(high, dtype=dtype))
    nodes = Normals(numbers(0, 2, 3, 1).to(dtype), 0.3 + numbers(1, 2, 3, 1).abs().to(dtype))
    value = torch.tensor(values, dtype=dtype)
    first = posterior_of(three(prior), {"x": nodes})
    mask = torch.tensor([True, False, True])
    given = first.condition({"x": value}, {"x": mask})
    drawn = given.sample(4)["x"]
    assert torch.equal(drawn[:, mask], value[mask].expand(4, 2))
    assert not bool((drawn[:, 1] == value[1]).any())
    assert bool((given.marginal("x").log_prob(drawn)[:, mask] == 0).all())
    whole = given.condition({"x": value}, {"x": ~mask})
    assert torch.equal(whole.sample(4)["x"], value.expand(4, 3))


def test_small_parts_of_a_simplex_are_drawn_as_given():
    """Through the map and back the last part would keep half of its digits."""
    value = torch.tensor([0.5, 0.5 - 1e-9, 1e-9], dtype=torch.float64)
    nodes = Normals(numbers(0, 2, 1, 2), 0.3 + numbers(1, 2, 1, 2).abs())

    def model():
        pyro.sample("x", dist.Dirichlet(torch.ones(3, dtype=torch.float64)))

    given = posterior_of(model, {"x": nodes}).condition({"x": value})
    drawn = given.sample(4)["x"]
    assert torch.equal(drawn, value.expand(4, 3))
    assert bool((given.marginal("x").log_prob(drawn) == 0).all())


def test_a_mask_that_gives_nothing_leaves_a_site_its_density():
    nodes = Normals(numbers(0, 2, 3, 1), 0.3 + numbers(1, 2, 3, 1).abs())
    zero = torch.zeros((), dtype=torch.float64)
    first = posterior_of(three(dist.Normal(zero, 1.0)), {"x": nodes})
    given = first.condition({"x": torch.zeros(3)}, {"x": torch.zeros(3, dtype=torch.bool)})
    point = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64)
    assert_close(
        given.guide().distribution().log_prob(point), first.guide().distribution().log_prob(point)
    )


@pytest.mark.parametrize("event", [(), (2,), (2, 3)])
@pytest.mark.parametrize("kind", ["scales", "roots", "correlated"])
def test_the_other_nodes_keep_their_density_given_these(event, kind):
    """Nodes 0 and 2 are given, in turn; the density of node 1 by Bayes' rule."""
    d = int(np.prod(event))
    mean, total = numbers(2, 2, 3, d), 3 * d
    eye = torch.eye(total, dtype=torch.float64)
    if kind == "correlated":
        root = 0.3 * numbers(3, 2, total, total).tril(-1) + eye
        factor = root.unflatten(1, (3, d))
    else:
        blocks = 0.3 * numbers(3, 2, 3, d, d).tril(-1) + torch.eye(d)
        blocks = blocks if kind == "roots" else torch.diag_embed(blocks.diagonal(dim1=2, dim2=3))
        root = torch.stack([torch.block_diag(*component) for component in blocks])
        factor = blocks if kind == "roots" else blocks.diagonal(dim1=2, dim2=3)
    prior = dist.Normal(0.0, 1.0)
    q = posterior_of(three(prior, event), {"x": Normals(mean, factor)}, kind == "correlated")
    value = numbers(4, 3, *event)
    for k in (2, 0):
        junk = torch.where(torch.arange(3).reshape(3, *(1 for _ in event)) == k, value, torch.nan)
        q = q.condition({"x": junk}, {"x": torch.arange(3) == k})

    def log_joint(nodes, x):
        """``[2]``, of some of the nodes under either component."""
        rows = np.concatenate([np.arange(d) + n * d for n in nodes])
        cov = (root @ root.mT).numpy()[:, rows][:, :, rows]
        m = mean.flatten(1).numpy()[:, rows]
        return [stats.multivariate_normal(m[k], cov[k]).logpdf(x[rows]) for k in (0, 1)]

    at, w = numbers(5, 3, *event), WEIGHTS.log().numpy()
    both = value.clone()
    both[1] = at[1]
    flat = both.flatten().numpy()
    expected = special.logsumexp(w + log_joint([0, 1, 2], flat))
    expected -= special.logsumexp(w + log_joint([0, 2], flat))
    for marginal in (q.marginal("x"), q.marginal("x").expand((4, 3))):
        found = marginal.log_prob(both)
        np.testing.assert_allclose(found[..., 1], np.broadcast_to(expected, found.shape[:-1]))
        assert bool((found[..., [0, 2]] == 0).all())
        assert bool((marginal.log_prob(at)[..., [0, 2]] == -torch.inf).all())
        assert marginal.mean.shape == (*marginal.batch_shape, *event)
        assert bool((marginal.variance[..., 1] > 0).all() if not event else True)


def test_a_site_outside_of_plates_is_a_point_too():
    def model():
        pyro.sample("x", dist.LogNormal(0.0, torch.tensor(1.0).double()))

    nodes = Normals(numbers(0, 2, 1, 1), 0.3 + numbers(1, 2, 1, 1).abs())
    value = torch.tensor(0.3, dtype=torch.float64)
    marginal = posterior_of(model, {"x": nodes}).condition({"x": value}).marginal("x")
    assert (float(marginal.log_prob(value)), float(marginal.variance)) == (0.0, 0.0)
    assert marginal.log_prob(torch.tensor([0.3, 0.4]).double()).tolist() == [0.0, -torch.inf]
    assert marginal.sample((3,)).tolist() == [0.3] * 3


def test_a_given_vector_has_to_agree_in_every_number():
    nodes = Normals(numbers(0, 2, 1, 2), 0.3 + numbers(1, 2, 1, 2).abs())

    def model():
        pyro.sample("share", dist.Dirichlet(torch.ones(3).double()))

    value = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    marginal = posterior_of(model, {"share": nodes}).condition({"share": value}).marginal("share")
    assert float(marginal.log_prob(value)) == 0
    assert float(marginal.log_prob(value[[0, 2, 1]])) == -torch.inf


def test_gradients_are_finite_where_some_nodes_are_given():
    nodes = Normals(numbers(0, 2, 3, 1), 0.3 + numbers(1, 2, 3, 1).abs())
    q = posterior_of(three(dist.Normal(0.0, 1.0)), {"x": nodes})
    other = torch.tensor([0.5, 0.1, -0.4], dtype=torch.float64)

    def log_prob(value):
        given = torch.stack([value, value.new_zeros(()), value.new_zeros(())])
        c = q.condition({"x": given}, {"x": torch.tensor([True, False, False])})
        return c.marginal("x").log_prob(torch.where(torch.arange(3) == 0, given, other)).sum()

    value = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_prob, (value,))


def test_bounds_over_plates_are_kept_where_nodes_are_given():
    low = torch.tensor([[0.0], [10.0]], dtype=torch.float64)

    def model():
        with ExitStack() as stack:
            for dim, size in ((-2, 2), (-1, 3)):
                stack.enter_context(pyro.plate(f"plate{dim}", size, dim=dim))
            pyro.sample("x", dist.Uniform(low, low + 5))

    mean, scale = numbers(0, 2, 6, 1), 0.3 + numbers(1, 2, 6, 1).abs()
    value = low + torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    mask = torch.tensor([[True, False, False], [False, True, False]])
    marginal = (
        posterior_of(model, {"x": Normals(mean, scale)}).condition({"x": value}, {"x": mask})
    ).marginal("x")
    found = marginal.log_prob(value)
    assert bool((found[mask] == 0).all())
    held = mask.flatten()
    u = special.logit(((value - low) / 5).numpy()).flatten()
    parts = stats.norm.logpdf(u, mean[..., 0], scale[..., 0])
    log_w = special.log_softmax(WEIGHTS.log().numpy() + parts[:, held].sum(1))
    jacobian = np.log(5 * special.expit(u) * special.expit(-u))
    expected = special.logsumexp(log_w[:, None] + parts, axis=0) - jacobian
    np.testing.assert_allclose(found.flatten()[~held], expected[~held.numpy()])
