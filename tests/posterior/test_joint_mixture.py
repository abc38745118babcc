"""Marginals, draws and conditionals of a joint mixture: scipy, closed forms and quadrature."""

import io
from contextlib import ExitStack

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam
from scipy import special, stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.beliefs import JointMixture, Normals
from pyrograph.errors import OptionError, UnsupportedSite
from pyrograph.posterior.joint_mixture import MixturePosterior
from pyrograph.posterior.mixture_guide import MixtureGuide

WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.float64)


def fit(model, *args, seed=0, **options):
    pyro.set_rng_seed(seed)
    default = {"optimizer": "lbfgs", "num_steps": 60, "num_quadrature": 10}
    return pg.fit(model, args, infer=pg.QBethe, progress=False, **{**default, **options})


def posterior_of(model, sites):
    graph = pg.trace_graph(model, unconstrained=True)
    run = {"converged": True, "status": "converged", "history": {}}
    return MixturePosterior(graph, JointMixture(WEIGHTS.log(), sites), [], is_joint=True, **run)


# ---------------------------------------------------------------------- events of many dimensions
def matrix():
    """Four standard normals whose sum is seen: covariance I - 11' / (4 + .09)."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
    pyro.sample("y", dist.Normal(a.sum(), 0.3), obs=torch.tensor(0.3))


COVARIANCE = np.eye(4) - 1 / 4.09
MEAN = np.full(4, 0.3 / 4.09)


def positive_matrix():
    a = pyro.sample("a", dist.LogNormal(0.0, 1.0).expand([2, 2]).to_event(2))
    pyro.sample("y", dist.Normal(a.log().sum(), 0.3), obs=torch.tensor(0.3))


def test_the_numbers_of_a_matrix_keep_their_correlation():
    q = fit(matrix, covariance="full", num_components=1)
    marginal = q.marginal("a")
    assert marginal.batch_shape == () and marginal.event_shape == (2, 2)
    assert_close(marginal.mean, torch.from_numpy(MEAN).reshape(2, 2), rtol=0, atol=1e-4)
    variance = torch.from_numpy(COVARIANCE.diagonal().copy()).reshape(2, 2)
    assert_close(marginal.variance, variance, rtol=0, atol=1e-3)
    truth = stats.multivariate_normal(MEAN, COVARIANCE)
    x = torch.randn(6, 2, 2)
    np.testing.assert_allclose(marginal.log_prob(x), truth.logpdf(x.reshape(6, 4)), rtol=1e-3)
    only = marginal.component_distribution
    np.testing.assert_allclose(only.entropy(), [truth.entropy()], rtol=1e-3)
    # of the sum of all numbers: 1 / (1/4 + 1/.09)
    drawn = marginal.sample((20_000,)).sum((1, 2)).var()
    assert float(drawn) == pytest.approx(1 / (1 / 4 + 1 / 0.09), rel=0.05)


def test_a_matrix_of_positive_numbers_keeps_its_correlation():
    q = fit(positive_matrix, covariance="full", num_components=1)
    marginal = q.marginal("a")
    s = COVARIANCE.diagonal().reshape(2, 2)
    mean = np.exp(MEAN.reshape(2, 2) + s / 2)
    assert marginal.event_shape == (2, 2)
    np.testing.assert_allclose(marginal.mean, mean, rtol=1e-3)
    np.testing.assert_allclose(marginal.variance, mean**2 * np.expm1(s), rtol=5e-3)
    x = torch.rand(6, 2, 2) + 0.3
    log_x = np.log(x.reshape(6, 4).numpy())
    truth = stats.multivariate_normal(MEAN, COVARIANCE).logpdf(log_x) - log_x.sum(1)
    np.testing.assert_allclose(marginal.log_prob(x), truth, rtol=1e-3)
    drawn = marginal.sample((20_000,))
    assert bool((drawn > 0).all())
    assert float(drawn.log().sum((1, 2)).var()) == pytest.approx(4 * 0.09 / 4.09, rel=0.05)


@pytest.mark.parametrize("event", [(6,), (2, 3), (3, 1, 2)])
@pytest.mark.parametrize("is_positive", [False, True])
def test_marginals_in_a_plate_are_mixtures_of_joint_normals(event, is_positive):
    """Two components, three nodes of correlated numbers."""
    fn = dist.LogNormal if is_positive else dist.Normal

    def model():
        with pyro.plate("three", 3):
            pyro.sample("a", fn(0.0, 1.0).expand([3, *event]).to_event(len(event)))

    g = torch.Generator().manual_seed(1)
    mean = 0.3 * torch.randn(2, 3, 6, generator=g)
    root = 0.2 * torch.randn(2, 3, 6, 6, generator=g).tril(-1) + 0.4 * torch.eye(6)
    marginal = posterior_of(model, {"a": Normals(mean, root)}).marginal("a")
    assert marginal.batch_shape == (3,) and marginal.event_shape == event
    x = torch.rand(5, 3, *event, generator=g) + 0.2
    free = x.reshape(5, 3, 6).numpy()
    free = np.log(free) if is_positive else free
    parts = np.zeros((2, 5, 3))
    for k in range(2):
        for i in range(3):
            truth = stats.multivariate_normal(mean[k, i].numpy(), (root @ root.mT)[k, i].numpy())
            parts[k, :, i] = truth.logpdf(free[:, i]) + np.log(float(WEIGHTS[k]))
    expected = special.logsumexp(parts, axis=0) - (free.sum(-1) if is_positive else 0)
    for found in (marginal, marginal.expand((5, 3))):
        np.testing.assert_allclose(found.log_prob(x), expected, rtol=1e-10)
    # moments of the mixture from those of its components
    w, s = WEIGHTS.numpy()[:, None, None], root.square().sum(-1).numpy()
    m = mean.numpy()
    if is_positive:
        m, s = np.exp(m + s / 2), np.exp(2 * m + s) * np.expm1(s)
    centre = (w * m).sum(0)
    spread = (w * (s + m**2)).sum(0) - centre**2
    np.testing.assert_allclose(marginal.mean, centre.reshape(3, *event), rtol=1e-6)
    np.testing.assert_allclose(marginal.variance, spread.reshape(3, *event), rtol=1e-6)


# ---------------------------------------------------------------------- supports given latents
def bounded():
    """p(x, y | o) ~ N(1; x + y, .5) / (1 + x) on 0 < x < 1, 0 < y < 1 + x."""
    x = pyro.sample("x", dist.Uniform(0.0, 1.0))
    y = pyro.sample("y", dist.Uniform(0.0, x + 1))
    pyro.sample("o", dist.Normal(x + y, 0.5), obs=torch.tensor(1.0))


def bounded_moments(n=1000):
    """Means and covariance of x and y, on midpoints."""
    u = (np.arange(n) + 0.5) / n
    x, y = u[:, None], 2 * u[None]
    p = np.where(y < 1 + x, stats.norm.pdf(1, x + y, 0.5) / (1 + x), 0)
    p /= p.sum()
    mean = np.array([(p * x).sum(), (p * y).sum()])
    off = np.stack(np.broadcast_arrays(x - mean[0], y - mean[1]))
    return mean, np.einsum("ixy,jxy,xy->ij", off, off, p)


def test_draws_of_a_support_that_depends_on_latents_have_the_moments_of_quadrature():
    q = fit(bounded, num_steps=25)
    drawn = q.sample(40_000)
    assert drawn["x"].shape == drawn["y"].shape == (40_000,)
    assert bool((drawn["y"] > 0).all()) and bool((drawn["y"] < 1 + drawn["x"]).all())
    mean, covariance = bounded_moments()
    both = torch.stack([drawn["x"], drawn["y"]]).numpy()
    np.testing.assert_allclose(both.mean(1), mean, atol=0.01)
    np.testing.assert_allclose(np.cov(both), covariance, atol=0.006)  # five components are not all
    marginal = q.marginal("x")
    assert float(marginal.mean) == pytest.approx(mean[0], abs=0.005)
    assert float(marginal.variance) == pytest.approx(covariance[0, 0], abs=0.002)
    with pytest.raises(UnsupportedSite, match=r"posterior\.sample\(\)"):
        q.marginal("y")
    with pytest.raises(UnsupportedSite, match='"y"'):
        q.guide()
    assert set(q.guide(["x"])()) == {"x"}


def test_draws_are_the_image_of_the_mixtures_numbers_beside_sites_of_every_kind():
    def model():
        pyro.sample("root", dist.LKJCholesky(3, 1.0))
        x = pyro.sample("x", dist.LogNormal(0.0, 1.0))
        k = pyro.sample("k", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
        with pyro.plate("two", 2):
            pyro.sample("y", dist.Uniform(-x.unsqueeze(-1), 1.0 + k.unsqueeze(-1)))

    pyro.set_rng_seed(0)
    q = pg.QBethe(model, num_components=2, num_steps=2, progress=False).run()
    pyro.set_rng_seed(1)
    drawn = q.sample(50)
    pyro.set_rng_seed(1)
    component = q.mixture.draw_components(50)
    free = {name: nodes.sample(component).detach() for name, nodes in q.mixture.sites.items()}
    x, k = np.exp(free["x"][:, 0, 0].numpy()), free["k"][:, 0].numpy()
    assert_close(drawn["x"], torch.from_numpy(x))
    assert drawn["k"].dtype == torch.int64 and (drawn["k"].numpy() == k).all()
    share = special.expit(free["y"][..., 0].numpy())
    y = -x[:, None] + (1 + k + x)[:, None] * share
    np.testing.assert_allclose(drawn["y"], y)
    correlation = drawn["root"] @ drawn["root"].mT
    assert_close(correlation.diagonal(dim1=1, dim2=2), torch.ones(50, 3))
    assert {n: v.shape for n, v in q.sample(0).items()} == {
        n: (0, *q.graph.sites[n].shape) for n in drawn
    }


def test_a_given_bound_holds_for_the_draws():
    q = fit(bounded, num_steps=5)
    c = q.condition({"x": torch.tensor(0.25)})
    drawn = c.sample(500)
    assert_close(drawn["x"], torch.full((500,), 0.25))
    assert 1.0 < float(drawn["y"].max()) < 1.25
    with pytest.raises(UnsupportedSite, match=r'"y".*poutine\.condition'):
        q.condition({"y": torch.tensor(0.3)})


# ---------------------------------------------------------------------- bounds in plates
# lower bounds and widths; the shape of the plates; the dimensions of an event
SEVERAL = {
    "a plate": ([0.0, 10.0], [1.0, 10.0], (2,), 0),
    "two plates": ([[0.0, 10.0], [20.0, 30.0], [40.0, 50.0]], [[5.0]], (3, 2), 0),
    "the inner of two plates": ([0.0, 10.0, 20.0], [5.0, 1.0, 5.0], (3, 3), 0),
    "the outer of two plates": ([[0.0], [0.0], [0.0]], [[5.0], [15.0], [25.0]], (3, 1), 0),
    "an event": ([0.0, 10.0], [1.0, 10.0], (2,), 1),
    "an event in a plate": ([[0.0, 10.0], [20.0, 30.0]], [[1.0, 10.0]], (2, 2), 1),
}


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("components", [1, 2, 3])
def test_bounds_may_vary_over_plates_and_events(name, components):
    low, width, shape, event_dim = SEVERAL[name]
    low, width = torch.tensor(low).double(), torch.tensor(width).double()

    def model():
        fn = dist.Uniform(low, low + width).expand(shape)
        with ExitStack() as stack:
            for k, size in enumerate(shape[: len(shape) - event_dim]):
                dim = k - len(shape) + event_dim
                stack.enter_context(pyro.plate(f"plate_{k}", size, dim=dim))
            x = pyro.sample("x", fn.to_event(event_dim))
            pyro.sample("y", dist.Normal(x.sum(-1) if event_dim else x, 1.0))

    g = torch.Generator().manual_seed(components)
    weights = torch.arange(1.0, components + 1).double() / sum(range(components + 1))
    nodes = int(np.prod(shape[: len(shape) - event_dim]))

    def some(size):
        size = (components, nodes, size)
        mean = torch.randn(size, generator=g, dtype=torch.float64)
        return Normals(mean, 0.3 + torch.rand(size, generator=g, dtype=torch.float64))

    sites = {"x": some(int(np.prod(shape)) // nodes), "y": some(1)}
    graph = pg.trace_graph(model, unconstrained=True)
    run = {"converged": True, "status": "converged", "history": {}}
    q = MixturePosterior(graph, JointMixture(weights.log(), sites), [], is_joint=True, **run)

    # moments by trapezoids, the density by hand
    z = np.linspace(-8, 8, 2001)
    at_z = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    w = weights.numpy().reshape(-1, *(1,) * len(shape))
    m, s = (t.reshape(components, *shape).numpy() for t in (sites["x"].mean, sites["x"].factor))
    a, b = (np.broadcast_to(t.numpy(), shape) for t in (low, width))
    image = a[..., None] + b[..., None] * special.expit(m[..., None] + s[..., None] * z)
    mean = (w * (image @ at_z)).sum(0)
    variance = (w * (image**2 @ at_z)).sum(0) - mean**2
    marginal = q.marginal("x")
    np.testing.assert_allclose(marginal.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(marginal.variance, variance, rtol=1e-5)
    x = a + b * np.random.default_rng(0).uniform(0.1, 0.9, (4, *shape))
    u = special.logit((x - a) / b)
    parts = (
        stats.norm.logpdf(u[:, None], m, s) - np.log(b * (x - a) / b * (1 - (x - a) / b))[:, None]
    )
    if event_dim:
        parts = parts.sum(-1)
    log_w = np.log(weights.numpy()).reshape(-1, *(1,) * (parts.ndim - 2))
    expected = special.logsumexp(parts + log_w, axis=1)
    np.testing.assert_allclose(marginal.log_prob(torch.from_numpy(x)), expected, rtol=1e-9)

    # given all of x, by Bayes' rule
    c = q.condition({"x": torch.from_numpy(x[0])})
    own = np.log(weights.numpy()) + stats.norm.logpdf(u[0], m, s).reshape(components, -1).sum(1)
    own = special.softmax(own)
    np.testing.assert_allclose(c.mixture.log_weights.exp(), own, rtol=1e-9)
    y = np.einsum("l,ln->n", own, sites["y"].mean[..., 0].numpy())
    np.testing.assert_allclose(c.marginal("y").mean.flatten(), y, rtol=1e-9)
    np.testing.assert_allclose(c.sample(2)["x"][0], x[0], rtol=1e-9)
    outside = x[0].copy()
    outside[(-1,) * len(shape)] = (a + 1.01 * b)[(-1,) * len(shape)]
    with pytest.raises(OptionError, match='value of site "x" is outside'):
        q.condition({"x": torch.from_numpy(outside)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "prior, value",
    [
        (lambda: dist.Beta(2.0, 1.5), 0.0),
        (lambda: dist.Beta(2.0, 1.5), 1.0),
        (lambda: dist.Uniform(torch.tensor(-0.1), torch.tensor(0.7)), -0.1),
        (lambda: dist.Uniform(-0.1, 0.7), 0.7),
        (lambda: dist.Gamma(2.0, 1.0), 0.0),
        (lambda: dist.Dirichlet(torch.ones(3)), [0.0, 0.5, 0.5]),
        (lambda: dist.Dirichlet(torch.ones(3)), [0.5, 0.5, 0.0]),
        (lambda: dist.Beta(torch.full((2,), 2.0), 1.5).to_event(1), [0.5, 1.0]),
    ],
)
def test_the_edge_of_a_support_is_at_infinity_and_refused(prior, value, dtype):
    def model():
        x = pyro.sample("x", prior())
        pyro.sample("o", dist.Normal(x.sum(), 1.0), obs=torch.tensor(1.0))

    pyro.set_rng_seed(0)
    q = pg.fit(model, infer=pg.QBethe, num_components=2, num_steps=2, dtype=dtype, progress=False)
    with pytest.raises(OptionError, match=r'value of site "x" is (infinite or on its|outside)'):
        q.condition({"x": torch.tensor(value, dtype=dtype)})


# ---------------------------------------------------------------------- guides
def wide():
    """200 numbers whose sum is seen."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([200]).to_event(1))
    pyro.sample("y", dist.Normal(w.sum(), 1.0), obs=torch.tensor(1.0))


def test_independent_numbers_have_scales_and_no_roots():
    q = fit(wide, num_components=2, num_steps=3, optimizer="adam")
    guide = q.guide()
    shapes = {name: tuple(value.shape) for name, value in guide.named_parameters()}
    assert shapes["scale_0_unconstrained"] == (2, 1, 200)
    assert not any("tril" in name for name in shapes)
    assert sum(q.mixture.sites["w"].factor.shape[-2:]) == 201


def test_a_diagonal_guide_has_scipys_density_trains_and_comes_back():
    def model():
        w = pyro.sample("w", dist.LogNormal(0.0, 1.0).expand([3]).to_event(1))
        pyro.sample("y", dist.Normal(w.sum(), 1.0), obs=torch.tensor(2.0))

    mean, scale = torch.randn(2, 1, 3), torch.rand(2, 1, 3) + 0.2
    guide = posterior_of(model, {"w": Normals(mean, scale)}).guide()
    SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO()).step()
    file = io.BytesIO()
    torch.save(guide.state_dict(), file)
    file.seek(0)
    again = MixtureGuide.from_state_dict(torch.load(file, weights_only=True))
    assert not torch.equal(again.scale_0, scale)
    for made in (guide, again):
        trace = poutine.trace(made).get_trace()
        log_w = trace.nodes["w"]["value"].detach().log().numpy()
        loc, width, logits = (
            t.detach().numpy() for t in (guide.loc_0[:, 0], guide.scale_0[:, 0], guide.logits)
        )
        parts = stats.norm.logpdf(log_w, loc, width).sum(1) + special.log_softmax(logits)
        truth = special.logsumexp(parts) - log_w.sum()
        assert trace.log_prob_sum().item() == pytest.approx(truth, abs=1e-9)
    median = guide.median()["w"].log().numpy()
    below = special.softmax(guide.logits.detach().numpy()) @ stats.norm.cdf(median, loc, width)
    np.testing.assert_allclose(below, 0.5, atol=1e-8)


# ---------------------------------------------------------------------- conditions that are none
@pytest.mark.parametrize(
    ("values", "mask", "words"),
    [
        (None, None, r"values by site.*None"),
        (torch.tensor(0.5), None, "values by site"),
        ({"x": torch.tensor(0.5)}, 3, "mask by site.*3"),
        ({"x": "a"}, None, r"""value of site "x".*tensor of shape \[\].*'a'"""),
        ({"x": None}, None, 'value of site "x".*None'),
        ({"x": [[1.0], [1.0, 2.0]]}, None, 'value of site "x"'),
        ({"x": torch.tensor(0.5)}, {"x": "all"}, """mask of site "x".*'all'"""),
        ({"x": torch.tensor(0.5 + 2j)}, None, 'value of site "x" is complex'),
    ],
)
def test_what_is_no_tensor_by_site_is_refused_in_words(values, mask, words):
    q = fit(bounded, num_steps=2, num_components=2)
    with pytest.raises(OptionError, match=words):
        q.condition(values, mask)


def test_a_value_that_no_component_reaches_is_refused_by_the_name_of_its_site():
    """Its squared distance overflows, and weights given it would be NaN."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        y = pyro.sample("y", dist.Normal(0.0, 1.0))
        pyro.factor("tie", -(x - y).abs())

    q = fit(model, num_steps=2, num_components=2)
    far = torch.tensor(1e200, dtype=torch.float64)
    with pytest.raises(OptionError, match='value of site "y" is so far out'):
        q.condition({"x": torch.tensor(0.1), "y": far})
    assert bool(q.condition({"x": torch.tensor(1e3)}).marginal("y").mean.isfinite())
