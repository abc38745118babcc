"""Factors that are quadratic in some numbers, given the others. Truth: dense sums over all of them,
and nodes integrated in closed form."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.beliefs import Gaussian
from pyrograph.errors import UnsupportedFactor
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.quadrature import conditional
from pyrograph.infer.message_passing.quadrature.conditional import (
    ConditionalMoments,
    quadratic_coordinates,
)
from pyrograph.infer.message_passing.quadrature.grids import Grid
from pyrograph.infer.message_passing.quadrature.tilted import TiltedMoments


def scale(_=None):
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    log_sd = pyro.sample("log_sd", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(mean, log_sd.exp()), obs=torch.tensor(1.5))


def difference():
    a, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    log_sd = pyro.sample("log_sd", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(2 * a - b, log_sd.exp()), obs=torch.tensor(1.5))


def slope():
    a, z = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "az")
    log_slope = pyro.sample("log_slope", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(a + log_slope.exp() * z, 0.5), obs=torch.tensor(1.5))


def product():
    w, x = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "wx")
    pyro.sample("y", dist.Normal(w * x, 0.5), obs=torch.tensor(1.5))


def variance():
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    r = pyro.sample("r", dist.Normal(1.0, 0.2))
    pyro.sample("y", dist.Normal(mean, (r**2 + 0.1).sqrt()), obs=torch.tensor(1.5))


def lognormal_mean():
    x, y = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "xy")
    pyro.sample("o", dist.Poisson((x + y).exp()), obs=torch.tensor(2.0))


def curve():
    x, y = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "xy")
    pyro.sample("o", dist.Normal(x.exp() + y.exp(), 0.5), obs=torch.tensor(2.0))


def local_density(model, dtype=torch.float64) -> LocalDensity:
    """Of the observation."""
    graph = pg.trace_graph(model, unconstrained=True).to(dtype=dtype)
    group = max(graph.factors, key=lambda group: group.arity)
    local = LocalDensity(group, torch.arange(1), torch.zeros(0, dtype=dtype), graph)
    local.reduce_jointly()
    return local


def names(model) -> set[str]:
    """Numbers of u, by the sites that they depend on, that are integrated in closed form."""
    local = local_density(model)
    graph = pg.trace_graph(model, unconstrained=True)
    sites = [graph.nodes[int(n)][0] for n in max(graph.factors, key=lambda g: g.arity).scope[0]]
    found = set()
    for k in quadratic_coordinates(local):
        if local.joint is None:
            found.add(sites[k])
        else:
            used = (local.joint[0, 0, k].abs() > 1e-9).nonzero().flatten().tolist()
            found.add("".join(sites[n] for n in used))
    return found


@pytest.mark.parametrize(
    ("model", "inner"),
    [
        (scale, {"mean"}),
        (difference, {"ab"}),
        (slope, {"a", "z"}),
        (product, {"w"}),
        (variance, {"mean"}),
        (lognormal_mean, set()),
        (curve, set()),
    ],
)
def test_which_numbers_are_integrated_in_closed_form(model, inner):
    assert names(model) == inner or (model is product and names(model) == {"x"})


def dense(local: LocalDensity, alpha: float, g: Gaussian, origin, reach: float, count: int):
    """Log mass, mean and covariance of f^alpha g by a sum over a grid."""
    line = torch.linspace(-reach, reach, count, dtype=torch.float64)
    u = torch.cartesian_prod(*[line] * local.dim).view(-1, 1, 1, local.dim)
    log_w = alpha * local(u)[:, 0, 0] + g.log_value(u - origin)[:, 0, 0]
    log_mass = log_w.logsumexp(0)
    share, u = (log_w - log_mass).exp(), u[:, 0, 0]
    mean = share @ u
    off = u - mean
    return log_mass + local.dim * (line[1] - line[0]).log(), mean, off.T @ (share[:, None] * off)


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
@pytest.mark.parametrize(
    ("model", "count"),
    [(scale, 1201), (difference, 1201), (slope, 121), (product, 1201), (variance, 1201)],
)
def test_moments_are_those_of_a_dense_sum(model, count, alpha):
    local = local_density(model)
    d = local.dim
    generator = torch.Generator().manual_seed(d)
    root = 0.3 * torch.randn(d, d, generator=generator, dtype=torch.float64) + torch.eye(d)
    covariance = 0.5 * (root @ root.T).expand(1, 1, d, d).double()
    mean = (0.3 * torch.randn(1, 1, d, generator=generator)).double()
    origin = (0.2 * torch.randn(1, 1, d, generator=generator)).double()
    g = Gaussian.from_moments(mean - origin, covariance)
    moments = ConditionalMoments(
        local, torch.tensor([alpha]).double(), quadratic_coordinates(local), num_points=80
    )
    found = moments(g, origin, None, Grid(mean, torch.linalg.cholesky(covariance)))
    truth = dense(local, alpha, g, origin, 8.0, count)
    assert_close(found.log_mass[0, 0], truth[0], atol=1e-5, rtol=0)
    assert_close(found.mean[0, 0], truth[1], atol=1e-5, rtol=0)
    assert_close(found.covariance[0, 0], truth[2], atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scale_far_below_the_width_of_the_cavity_is_no_trouble(dtype):
    # y = d / sd with d ~ N(0, 1): given sd = e^-8 the factor is a needle in d
    def needle():
        d = pyro.sample("d", dist.Normal(0.0, 1.0))
        log_sd = pyro.sample("log_sd", dist.Normal(-8.0, 0.3))
        pyro.sample("y", dist.Normal(d, log_sd.exp()), obs=torch.tensor(0.5))

    with torch.no_grad():
        pyro.set_rng_seed(0)
        q = pg.fit(needle, infer=pg.EP, dtype=dtype, progress=False)
    t = np.linspace(-10, -6, 4001)
    value = stats.norm.logpdf(t, -8, 0.3) + stats.norm.logpdf(0.5, 0, np.sqrt(1 + np.exp(2 * t)))
    truth = logsumexp(value) + math.log(t[1] - t[0])
    assert q.converged
    assert abs(float(q.log_evidence) - truth) < 5e-3
    assert abs(float(q.marginal("d").mean) - 0.5) < 1e-3


def test_without_a_distribution_of_the_inner_numbers_a_grid_over_all_serves(monkeypatch):
    local = local_density(slope)
    eye = torch.eye(3, dtype=torch.float64).expand(1, 1, 3, 3)
    zero, inner = torch.zeros(1, 1, 3, dtype=torch.float64), quadratic_coordinates(local)
    # no cavity of a and z at all, of which f knows one combination
    flat = eye.clone()
    flat[..., inner, inner] = 0.0
    alpha, first = torch.ones(1, dtype=torch.float64), Grid(zero, eye)
    monkeypatch.setattr(conditional, "RIDGE", 0.0)
    moments = ConditionalMoments(local, alpha, inner)
    found = moments(Gaussian(flat, zero), zero, None, first)
    plain = TiltedMoments(local, alpha)(Gaussian(flat, zero), zero, None, first)
    assert_close(found.log_mass, plain.log_mass)
    assert found.grid.mean.shape == (1, 1, 1)


def replicates(y):
    """A scale of slopes and one of noise, both latent."""
    slope = pyro.sample("log_slope", dist.Normal(-0.5, 0.5)).exp()
    noise = pyro.sample("log_noise", dist.Normal(-1.0, 0.7)).exp()
    with pyro.plate("n", len(y)):
        b = pyro.sample("b", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        x = pyro.sample("x", dist.Normal(b[:, 0] + slope * b[:, 1], noise))
        pyro.sample("y", dist.Normal(x, 0.3), obs=y)


def test_latent_scales_of_four_coordinates_come_near_the_truth():
    y = torch.linspace(-2, 2.5, 8)
    line = np.linspace(-5, 3, 801)
    s, t = np.meshgrid(line, line, indexing="ij")
    var = 1 + np.exp(2 * s) + np.exp(2 * t) + 0.09
    value = stats.norm.logpdf(s, -0.5, 0.5) + stats.norm.logpdf(t, -1, 0.7)
    value = value + sum(stats.norm.logpdf(float(one), 0, np.sqrt(var)) for one in y)
    evidence = logsumexp(value) + 2 * math.log(line[1] - line[0])
    share = np.exp(value - logsumexp(value))
    q = pg.fit(replicates, (y,), infer=pg.EP, damping=0.5, progress=False)
    assert q.converged
    # a grid of 8^4 points was .19 off, and log_noise .24 of its deviations
    assert abs(float(q.log_evidence) - evidence) < 0.03
    for name, value in (("log_slope", s), ("log_noise", t)):
        mean = (share * value).sum()
        sd = np.sqrt((share * (value - mean) ** 2).sum())
        found = q.marginal(name)
        assert abs(float(found.mean) - mean) < 0.03 * sd
        assert abs(float(found.stddev) / sd - 1) < 0.05


def test_a_wide_normal_of_a_latent_scale_needs_a_grid_over_the_scale_alone():
    def wide():
        x = pyro.sample("x", dist.Normal(torch.zeros(7), 1.0).to_event(1))
        log_sd = pyro.sample("log_sd", dist.Normal(0.0, 0.5))
        pyro.factor("y", dist.Normal(x, log_sd.exp()).log_prob(torch.full((7,), 0.5)).sum())

    q = pg.fit(wide, infer=pg.EP, progress=False)
    t = np.linspace(-5, 5, 4001)
    value = stats.norm.logpdf(t, 0, 0.5)
    value = value + 7 * stats.norm.logpdf(0.5, 0, np.sqrt(1 + np.exp(2 * t)))
    assert q.converged
    assert abs(float(q.log_evidence) - logsumexp(value) - math.log(t[1] - t[0])) < 1e-3


def test_gradients_of_the_evidence_are_those_of_differences():
    def fitted(y):
        return pg.fit(scale_of, (y,), infer=pg.EP, dtype=torch.float64, progress=False).log_evidence

    def scale_of(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        log_sd = pyro.sample("log_sd", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mean, log_sd.exp()), obs=y)

    y = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(fitted(y), y)
    with torch.no_grad():
        step = 1e-4
        expected = (fitted(y + step) - fitted(y - step)) / (2 * step)
    assert_close(slope, expected, atol=1e-5, rtol=0)


def regression(x, y, sd):
    w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1]), sd).to_event(1))
    log_noise = pyro.sample("log_noise", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(x @ w, log_noise.exp()), obs=y)


@pytest.mark.parametrize(
    ("count", "width", "sd", "noise", "dtype"),
    [
        (1000, 2, 1, 0.05, torch.float32),
        (1000, 2, 1, 0.05, torch.float64),
        (1000, 5, 10, 0.1, torch.float64),
    ],
)
def test_a_regression_of_unknown_noise_on_many_rows_settles(count, width, sd, noise, dtype):
    """The first sweeps throw the belief of the noise far from the grids of the last ones."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*s, generator=generator) for s in ((count, width), (width,)))
    y = x @ (sd * w) + noise * torch.randn(count, generator=generator)
    data = x, y, torch.tensor(float(sd))
    q = pg.fit(regression, data, infer=pg.EP, progress=False, dtype=dtype)
    t = torch.linspace(math.log(noise) - 0.3, math.log(noise) + 0.3, 2001)
    # p(y | t), the weights integrated in closed form
    gram, moment = x.T @ x, x.T @ y
    precision = gram / (2 * t).exp()[:, None, None] + torch.eye(width) / sd**2
    mean = torch.linalg.solve(precision, moment / (2 * t).exp()[:, None])
    value = dist.Normal(0.0, 1.0).log_prob(t) - count * (t + 0.5 * math.log(2 * math.pi))
    value = value - 0.5 * y.square().sum() / (2 * t).exp() - width * math.log(sd)
    value = value + 0.5 * (mean @ moment) / (2 * t).exp() - 0.5 * precision.logdet()
    share = value.softmax(0)
    centre = share @ t
    spread = (share @ (t - centre).square()).sqrt()
    assert q.converged
    assert abs(float(q.marginal("log_noise").mean) - float(centre)) < 0.05 * float(spread)
    assert abs(float(q.marginal("log_noise").stddev) / float(spread) - 1) < 0.02
    assert abs(float(q.log_evidence - value.logsumexp(0) - (t[1] - t[0]).log())) < 0.05


@pytest.mark.parametrize(
    ("sd", "dtype"), [(2.0, torch.float32), (3.0, torch.float64), (6.0, torch.float64)]
)
def test_scales_over_many_orders_of_magnitude_lose_no_digits(sd, dtype):
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        s = pyro.sample("s", dist.Normal(0.0, sd))
        pyro.sample("y", dist.Normal(x, s.exp()), obs=torch.tensor(1.5))

    t = np.linspace(-12 * sd, 12 * sd, 20001)
    value = stats.norm.logpdf(t, 0, sd) + stats.norm.logpdf(1.5, 0, np.sqrt(1 + np.exp(2 * t)))
    evidence = logsumexp(value) + math.log(t[1] - t[0])
    share = np.exp(value - logsumexp(value))
    mean = share @ t
    deviation = np.sqrt(share @ (t - mean) ** 2)
    q = pg.fit(model, infer=pg.EP, dtype=dtype, progress=False)
    assert q.converged
    assert abs(float(q.log_evidence) - evidence) < 5e-4
    assert abs(float(q.marginal("s").mean) - mean) < 2e-3 * deviation
    assert abs(float(q.marginal("s").stddev) / deviation - 1) < 2e-3


def test_a_mixture_of_normals_of_a_latent_scale_is_no_quadratic_form():
    def model():
        x = pyro.sample("x", dist.Normal(0.5, 1.0))
        s = pyro.sample("s", dist.Normal(-1.0, 0.5))
        at = torch.tensor([-2.0, 2.0])
        pyro.factor("f", dist.Normal(x, s.exp()).log_prob(at).exp().mean().log())

    local = local_density(model)
    assert quadratic_coordinates(local) == []
    assert not conditional._bends_alike(local, [0])


@pytest.mark.parametrize("form", [lambda x, p: -0.1 * (x - 1) ** 2 + p * x**3])
def test_evidence_differentiates_by_a_coefficient_that_is_zero_for_now(form):
    def model(p):
        x = pyro.sample("x", dist.Normal(0.5, 1.0))
        pyro.factor("f", form(x, p))

    p = torch.zeros((), requires_grad=True)
    evidence = pg.fit(model, (p,), infer=pg.EP, progress=False).log_evidence
    (slope,) = torch.autograd.grad(evidence, p)
    x = np.linspace(-10, 11, 20001)
    value = stats.norm.logpdf(x, 0.5, 1) - 0.1 * (x - 1) ** 2
    share = np.exp(value - logsumexp(value))
    assert abs(float(slope) - share @ x**3) < 1e-4  # the derivative is E x^3


def test_many_weights_read_through_one_number_are_asked_about_once(monkeypatch):
    def model():
        weights = [pyro.sample(f"w{k}", dist.Normal(0.0, 1.0)) for k in range(16)]
        logits = torch.linspace(-1, 1, 16) @ torch.stack(weights)
        pyro.sample("y", dist.Bernoulli(logits=logits), obs=torch.tensor(1.0))

    asked = []
    monkeypatch.setattr(conditional, "polynomial_degree", lambda *a: asked.append(a) or math.inf)
    assert pg.fit(model, infer=pg.EP, progress=False).converged
    assert not asked


def test_a_state_with_a_grid_over_other_numbers_goes_on():
    engine = pg.EP(scale, progress=False, num_steps=20)
    expected = engine.run().log_evidence
    state = engine.state_dict()
    for name in [n for n in state["messages"] if n.endswith(("grid.mean", "grid.root"))]:
        value = state["messages"][name]
        wide = torch.zeros(*value.shape[:2], *(2 for _ in value.shape[2:]))
        state["messages"][name] = wide + (torch.eye(2) if value.dim() == 4 else 0.0)
    other = pg.EP(scale, progress=False, num_steps=40)
    other.load_state_dict(state)
    assert_close(other.run().log_evidence, expected, atol=1e-6, rtol=0)


def test_a_scale_that_stands_between_the_states_of_a_chain_is_given_too():
    def chain(y, is_first):
        log_sd = pyro.sample("log_sd", dist.Normal(-1.0, 0.5)) if is_first else None
        state = pyro.sample("x0", dist.Normal(0.0, 1.0))
        log_sd = log_sd if is_first else pyro.sample("log_sd", dist.Normal(-1.0, 0.5))
        for t in range(1, len(y)):
            state = pyro.sample(f"x{t}", dist.Normal(state, log_sd.exp()))
            pyro.sample(f"y{t}", dist.Normal(state, 0.3), obs=y[t])

    y = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(0)
    evidence = []
    for is_first in (True, False):
        engine = pg.EP(chain, tol=1e-10, progress=False, dtype=torch.float64)
        evidence.append(engine.run(y, is_first).log_evidence)
        moments = [block.tilted for block in engine.network.blocks if hasattr(block, "tilted")]
        assert moments
        assert all(isinstance(tilted, ConditionalMoments) for tilted in moments)
    assert_close(*evidence, rtol=0, atol=1e-7)


# ---------------------------------------------------------------------- many nodes
def of_columns(x, y, is_sparse):
    log_sd = pyro.sample("log_sd", dist.Normal(0.0, 1.0))
    with pyro.plate("columns", x.shape[1]):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        if is_sparse:
            b = b * pyro.sample("width", dist.HalfCauchy(1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(x @ b, log_sd.exp()), obs=y)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_forms_of_many_nodes_are_looked_at_few_times(is_sparse, monkeypatch):
    looked = []
    degree = conditional.polynomial_degree
    monkeypatch.setattr(
        conditional, "polynomial_degree", lambda *a: looked.append(None) or degree(*a)
    )
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    engine = pg.EP(of_columns, progress=False)
    if is_sparse:
        with pytest.raises(pg.errors.UnsupportedFactor):
            engine.setup(x, x[:, 0], is_sparse)
        assert len(looked) < 40
    else:
        engine.setup(x, x[:, 0], is_sparse)
        assert len(looked) < 100


def test_a_prior_of_latent_scale_is_refused_at_alpha_0_with_the_preset_that_takes_it():
    def model():
        s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
        h = pyro.sample("h", dist.Normal(0.0, 3.0).expand([8]).to_event(1))
        pyro.factor("size", -h.square().sum() / (s + 1))  # no sum, and of no single exponential
        pyro.sample("y", dist.Normal(h, 0.5).to_event(1), obs=torch.arange(8.0))

    with pytest.raises(
        UnsupportedFactor, match=r'"size"\[0\].*quadratic in 8 of them.*take pg\.EP'
    ):
        pg.fit(model, infer=pg.VMP, progress=False)
    assert pg.fit(model, infer=pg.EP, progress=False).converged
