"""What factors depend on: integrals in as few dimensions as there are, and never fewer."""

import functools
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import log_expit
from torch.nn.functional import huber_loss, logsigmoid
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import UnsupportedFactor
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.densities.reduction import LocalDensity

from .reference import dense, plain_ep


def engine_of(model, args=(), infer=pg.EP, **options):
    return infer(model, progress=False, **options).setup(*args)


def dims(model, args=()):
    """Dimensions of the integrals, one per block of quadrature factors."""
    blocks = engine_of(model, args).network.blocks
    return [b.local.dim for b in blocks if isinstance(b, QuadratureFactors)]


def fit(model, args=(), infer=pg.EP, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pg.errors.ConvergenceWarning)
        return pg.fit(model, args, infer=infer, progress=False, **options)


def regression(x, y, likelihood, width=1.0):
    w = pyro.sample("w", dist.Normal(0.0, width).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", likelihood(x @ w), obs=y)


LIKELIHOODS = {
    "logistic": (lambda z: dist.Bernoulli(logits=z), lambda y, z: log_expit((2 * y - 1) * z)),
    "robust": (lambda z: dist.StudentT(4.0, z, 0.5), lambda y, z: stats.t.logpdf(y, 4, z, 0.5)),
    "poisson": (lambda z: dist.Poisson(z.exp()), lambda y, z: stats.poisson.logpmf(y, np.exp(z))),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_regressions_of_many_weights_take_integrals_in_one_dimension(name):
    ours, theirs = LIKELIHOODS[name]
    width = 0.3
    x = torch.randn(20, 12)
    score = x @ torch.randn(12) * width
    y = ours(score).sample()
    assert dims(regression, (x, y, ours, width)) == [1]
    mean, cov, evidence, _ = plain_ep(
        np.zeros(12), width**2 * np.eye(12), x.numpy(), lambda a, z: theirs(float(y[a]), z)
    )
    q = fit(regression, (x, y, ours, width))
    assert q.converged
    assert_close(q.marginal("w").mean, torch.tensor(mean), rtol=0, atol=1e-6)
    assert_close(q.marginal("w").covariance_matrix, torch.tensor(cov), rtol=0, atol=1e-6)
    assert abs(float(q.log_evidence) - evidence) < 1e-5


def test_fifty_weights_take_one_dimension():
    x = torch.randn(10, 50)
    assert dims(regression, (x, torch.ones(10), LIKELIHOODS["logistic"][0])) == [1]


def smoothing(y):
    n = len(y)
    with pyro.plate("node", n):
        x = pyro.sample("x", dist.Normal(y, 1.0))
    with pyro.plate("edge", n - 1):
        gap = x[1:] - 2 * x[:-1]
        pyro.factor("smooth", dist.StudentT(5.0, 0.0, 0.5).log_prob(gap))


def test_differences_are_integrated_in_one_dimension_and_two_nodes_are_right():
    y = torch.tensor([0.3, -1.0])
    assert dims(smoothing, (torch.randn(6),)) == [1]

    def log_density(x):
        gap = stats.t.logpdf(x[..., 1] - 2 * x[..., 0], 5, 0, 0.5)
        return gap + stats.norm.logpdf(x, y.numpy(), 1).sum(-1)

    evidence, mean, cov = dense(log_density, [-8, -8], [8, 8], 501)
    engine = pg.EP(smoothing, progress=False)
    q = engine.run(y)  # one factor: its tilted distribution is the posterior
    assert_close(q.marginal("x").mean, torch.tensor(mean), rtol=0, atol=1e-5)
    assert_close(q.marginal("x").variance, torch.tensor(cov.diagonal().copy()), rtol=1e-4, atol=0)
    assert abs(float(q.log_evidence) - evidence) < 1e-5
    joint_mean, joint = q.factor_marginal("smooth")
    assert_close(joint_mean[0].sum(), torch.tensor(mean.sum()), rtol=0, atol=1e-5)
    assert_close(joint[0, 0, 1], torch.tensor(cov[0, 1]), rtol=0, atol=1e-5)


def wide(log_f, loc, scale):
    def model():
        w = pyro.sample("w", dist.Normal(torch.tensor(loc), torch.tensor(scale)).to_event(1))
        pyro.factor("f", log_f(w))

    return model


def wide_truth(log_f, loc, scale, points=601):
    prior = stats.norm(np.array(loc), np.array(scale))

    def log_density(w):
        return log_f(torch.tensor(w)).numpy() + prior.logpdf(w).sum(-1)

    low, high = np.array(loc) - 8 * np.array(scale), np.array(loc) + 8 * np.array(scale)
    return dense(log_density, low.tolist(), high.tolist(), points)


TRUE_DIMENSIONS = {
    1: lambda w: -(w[..., 0] + w[..., 1] - w[..., 2] + 0.5).pow(4),
    2: lambda w: -(w[..., 0] * w[..., 1] - 1).square() + 0 * w[..., 2],
    3: lambda w: -(w[..., 0] * w[..., 1] - w[..., 2]).square(),
}


@pytest.mark.parametrize("d", TRUE_DIMENSIONS)
def test_a_factor_is_integrated_in_as_many_dimensions_as_it_needs(d):
    log_f, loc, scale = TRUE_DIMENSIONS[d], [0.3, -0.2, 0.1], [0.5, 0.6, 0.7]
    model = wide(log_f, loc, scale)
    assert dims(model) == [d]
    evidence, mean, cov = wide_truth(log_f, loc, scale, 81)
    q = fit(model)
    assert_close(q.marginal("w").mean, torch.tensor(mean), rtol=0, atol=2e-4)
    assert_close(q.marginal("w").covariance_matrix, torch.tensor(cov), rtol=0, atol=2e-4)
    assert abs(float(q.log_evidence) - evidence) < 1e-4


def test_scalar_sites_are_reduced_jointly():
    def model():
        with pyro.plate("i", 7):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("both", logsigmoid(x.sum()) - (x[0] - x[1]).pow(4))

    assert dims(model) == [2]


def test_too_many_dimensions_name_the_factor():
    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(6), 1.0).to_event(1))
        pyro.factor("knot", -w.square().sum(-1).square())

    with pytest.raises(UnsupportedFactor, match=r'"knot".*6 continuous'):
        engine_of(model)


VANISHING = {
    "clipped": (lambda w: -(w[..., 0].clamp(-1, 1) - w[..., 1] / 3).pow(2), [0.0, 0.0], 0.05),
    "hinge": (lambda w: -2 * (1 - w[..., 0] * 2 + w[..., 1]).relu(), [0.0, 0.5], 0.02),
    "abs": (lambda w: -(w[..., 0] - w[..., 1]).abs() - 0.1 * w[..., 1] ** 4, [0.0, 0.0], 0.02),
    "floor": (lambda w: -(w[..., 0].floor() - w[..., 1]).square(), [0.2, 0.0], 0.05),
    "maximum": (lambda w: -(w.amax(-1) - 1).square(), [0.0, 0.0], 0.02),
}


@pytest.mark.parametrize("name", VANISHING)
def test_gradients_that_vanish_or_jump_do_not_hide_a_dependence(name):
    log_f, loc, margin = VANISHING[name]
    scale = [1.0, 1.0]
    evidence, mean, _ = wide_truth(log_f, loc, scale)
    q = fit(wide(log_f, loc, scale), num_steps=60)
    assert abs(float(q.log_evidence) - evidence) < margin
    assert_close(q.marginal("w").mean, torch.tensor(mean), rtol=0, atol=2 * margin)


def test_wide_hinge_regression_is_reduced_and_never_loses_a_row():
    x = torch.randn(15, 10)

    def model(x):
        w = pyro.sample("w", dist.Normal(torch.zeros(10), 1.0).to_event(1))
        with pyro.plate("data", 15):
            pyro.factor("f", -(1 - x @ w).relu())

    engine = engine_of(model, (x,))
    (block,) = engine.network.blocks
    (basis,) = block.bases
    unit = x / x.norm(dim=1, keepdim=True)
    assert_close((basis.matrix[:, 0] * unit).sum(1).abs(), torch.ones(15))


# ---------------------------------------------------------------------- where it goes wrong
def scalar(log_f, loc, scale):
    def model():
        x = pyro.sample("x", dist.Normal(loc, scale))
        pyro.factor("f", log_f(x))

    return model


# What happens only where the probes, drawn around 0 with deviations up to 3, do not come.
FAR = {
    "laplace": (lambda x: dist.Laplace(x, 1.0).log_prob(torch.tensor(100.0)), 0.0, 100.0),
    "huber": (lambda x: -huber_loss(x, torch.full_like(x, 40.0), reduction="none"), 0.0, 30.0),
    "logistic": (lambda x: logsigmoid(50 - x), 50.0, 2.0),
    "flat logistic": (lambda x: 5 * logsigmoid(0.01 * x), 0.0, 300.0),
    "student": (lambda x: dist.StudentT(3.0, x, 10.0).log_prob(torch.tensor(1e4)), 1e4, 100.0),
    "hinge": (lambda x: -3 * (x - 18).relu(), 18.0, 2.0),
}


@pytest.mark.parametrize("name", FAR)
def test_factors_that_are_linear_near_zero_are_not_taken_for_gaussian(name):
    log_f, loc, scale = FAR[name]
    truth = stats.norm(loc, scale)

    def log_density(x):
        return log_f(torch.tensor(x[..., 0])).numpy() + truth.logpdf(x[..., 0])

    evidence, mean, cov = dense(log_density, [loc - 8 * scale], [loc + 8 * scale], 20001)
    q = fit(scalar(log_f, loc, scale), num_steps=60)
    assert q.evidence_kind == "estimate"
    assert abs(float(q.log_evidence) - evidence) < 0.1
    assert abs(float(q.marginal("x").mean) - mean[0]) < 0.1 * cov[0, 0] ** 0.5


def test_a_gate_that_opens_away_from_zero_is_seen():
    def log_f(w):
        return -(w[..., 0] - 15).relu() * w[..., 1].square()

    loc, scale = [16.0, 0.0], [2.0, 1.0]
    evidence, _, cov = wide_truth(log_f, loc, scale)
    q = fit(wide(log_f, loc, scale), num_steps=60)
    assert abs(float(q.log_evidence) - evidence) < 0.05
    assert_close(q.marginal("w").variance[1], torch.tensor(cov[1, 1]), rtol=0.1, atol=0)


def test_a_gentle_logistic_is_not_taken_for_gaussian_in_single_precision():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 50.0))
        pyro.factor("f", 10 * logsigmoid(0.1 * x) + logsigmoid(-0.1 * x))

    assert engine_of(model, dtype=torch.float64).network.blocks
    assert engine_of(model, dtype=torch.float32).network.blocks


def test_poisson_regression_on_features_of_a_hundred_is_reduced():
    x = torch.rand(10, 6) * 100
    args = x, torch.ones(10), LIKELIHOODS["poisson"][0], 0.01
    assert dims(regression, args) == [1]


def test_a_bend_narrower_than_the_grid_is_integrated():
    def log_f(w):
        return -0.5 * (1 - w[..., 0].clamp(-1, 1) * w[..., 1]).square()

    loc, scale = [0.0, 0.0], [3.0, 3.0]
    evidence, _, cov = wide_truth(log_f, loc, scale)
    q = fit(wide(log_f, loc, scale), num_steps=60)
    assert abs(float(q.log_evidence) - evidence) < 0.1
    assert_close(q.marginal("w").variance[1], torch.tensor(cov[1, 1]), rtol=0.2, atol=0)


@pytest.mark.parametrize("width", [1, 2])
def test_steps_alone_are_integrated_or_refused(width):
    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(width), 1.0).to_event(1))
        pyro.factor("f", -w.sum(-1).floor().abs().detach())

    try:
        q = fit(model, num_steps=20)
    except UnsupportedFactor:
        return
    assert q.log_evidence < -0.1


# ---------------------------------------------------------------------- far from where one looks
def on_a_grid(log_f, loc, scale, count=1501, reach=9.0):
    """log evidence and means of two independent normal numbers and a factor."""
    axes = [np.linspace(m - reach * s, m + reach * s, count) for m, s in zip(loc, scale)]
    a, b = np.meshgrid(*axes, indexing="ij")
    log_p = stats.norm.logpdf(a, loc[0], scale[0]) + stats.norm.logpdf(b, loc[1], scale[1])
    log_p = log_p + log_f(a, b)
    top = log_p.max()
    p = np.exp(log_p - top)
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    return top + np.log(p.sum() * cell), (p * a).sum() / p.sum(), (p * b).sum() / p.sum()


def bent(unit, slope):
    """A sum whose second term counts from half a unit on, seen with an error of .05 units."""
    a = pyro.sample("a", dist.Normal(unit, unit / 4))
    b = pyro.sample("b", dist.Normal(unit, unit / 4))
    mean = a + slope * torch.relu(b - unit / 2)
    pyro.sample("y", dist.Normal(mean, unit / 20), obs=torch.as_tensor(1.5 * unit))


@functools.cache
def truth_of_bent():
    """In the program's own units."""
    return on_a_grid(
        lambda a, b: stats.norm.logpdf(1.5, a + 0.3 * np.maximum(b - 0.5, 0), 0.05),
        (1, 1),
        (0.25, 0.25),
    )


@pytest.mark.parametrize(
    ("infer", "unit"), [(pg.EP, 2.0), (pg.EP, 200.0), (pg.EP, 20000.0), (pg.QBethe, 20000.0)]
)
def test_a_threshold_is_seen_in_any_units(infer, unit):
    slope = torch.tensor(0.3)
    truth, a, b = truth_of_bent()
    options = {"covariance": "full", "num_components": 1, "num_steps": 300}
    options = {} if infer is pg.EP else options
    q = fit(bent, (unit, slope), infer, **options)
    assert abs(float(q.log_evidence) + np.log(unit) - truth) < 1e-2
    assert abs(float(q.marginal("a").mean) / unit - a) < 2e-2
    assert abs(float(q.marginal("b").mean) / unit - b) < 2e-2
    if infer is pg.EP:  # autograd changes no number
        again = fit(bent, (unit, slope.requires_grad_()), infer)
        assert_close(again.log_evidence.detach(), q.log_evidence, rtol=0, atol=1e-9)


def test_a_narrow_peak_is_part_of_the_factor():
    def tuned():
        x = pyro.sample("x", dist.Normal(5.0, 0.1))
        y = pyro.sample("y", dist.Normal(0.0, 1.0))
        peak = 3 * torch.exp(-((x - 5) ** 2) / (2 * 0.05**2))
        pyro.sample("o", dist.Normal(y + peak, 0.5), obs=torch.tensor(2.5))

    truth, x, y = on_a_grid(
        lambda x, y: stats.norm.logpdf(2.5, y + 3 * np.exp(-((x - 5) ** 2) / 0.005), 0.5),
        (5, 0),
        (0.1, 1),
    )
    q = fit(tuned, num_points=64)
    assert dims(tuned) == [2]
    assert abs(float(q.log_evidence) - truth) < 1e-3
    assert abs(float(q.marginal("y").mean) - y) < 1e-3
    assert abs(float(q.marginal("x").mean) - x) < 1e-3


def test_what_tensors_do_not_change_is_reduced_beside_gradients_too():
    def model(t):
        x = pyro.sample("x", dist.Normal(t[0], 1.0))
        y = pyro.sample("y", dist.Normal(0.0, 0.7))
        pyro.sample("near", dist.Laplace(x - y, t[1]), obs=torch.tensor(0.3))

    def truth(t):
        # x - y ~ N(t0, 1.49)
        u = np.linspace(-12, 12, 200001)
        log_p = stats.norm.logpdf(u, t[0], np.sqrt(1.49)) + stats.laplace.logpdf(0.3, u, t[1])
        return np.log(np.exp(log_p).sum() * (u[1] - u[0]))

    at = np.array([0.4, 0.7])
    t = torch.tensor(at, requires_grad=True)
    assert dims(model, (t,)) == [1]
    q = fit(model, (t,))
    assert abs(float(q.log_evidence.detach()) - truth(at)) < 1e-4
    step = 1e-5 * np.eye(2)
    expected = [(truth(at + s) - truth(at - s)) / 2e-5 for s in step]
    (found,) = torch.autograd.grad(q.log_evidence, t)
    assert_close(found, torch.tensor(expected), rtol=0, atol=2e-4)


def test_scales_that_are_products_of_positive_sites_take_one_dimension_together():
    """A horseshoe: the prior of a weight reads it and log tau + log own."""

    def model():
        tau = pyro.sample("tau", dist.HalfCauchy(1.0))
        with pyro.plate("weights", 3):
            own = pyro.sample("own", dist.HalfCauchy(1.0))
            w = pyro.sample("w", dist.Normal(0.0, tau * own))
            pyro.sample("y", dist.Normal(w, 0.5), obs=torch.tensor([0.1, -0.3, 2.0]))

    assert sorted(dims(model)) == [1, 1, 2]  # priors of scales, and of the weights


def test_categories_take_one_dimension_less_than_they_are():
    x = torch.randn(6, 4)

    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3, 4]).to_event(2))
        with pyro.plate("rows", 6):
            pyro.sample("y", dist.Categorical(logits=x @ w.T), obs=torch.tensor([0, 1, 2, 0, 1, 1]))

    assert dims(model) == [2]


def test_factors_of_one_group_may_read_more_than_others():
    mix = torch.zeros(10, 3)
    mix[0] = 1
    mix[1:, 0] = 1
    y, noise = torch.tensor([6.0] + [0.8] * 9), torch.tensor([0.5] + [5.0] * 9)

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", 10):
            pyro.sample("y", dist.Normal(mix @ torch.nn.functional.softplus(w), noise), obs=y)

    axis = np.linspace(-7, 9, 81)
    w = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1)
    mean = np.logaddexp(w, 0) @ mix.numpy().T
    log_p = stats.norm.logpdf(w).sum(-1)
    for k in range(10):
        log_p += stats.norm.logpdf(float(y[k]), mean[..., k], float(noise[k]))
    p = np.exp(log_p - log_p.max())
    truth = (p[..., None] * w).sum((0, 1, 2)) / p.sum()
    assert_close(fit(model).marginal("w").mean, torch.tensor(truth), rtol=0, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_units_of_nodes_may_differ_by_orders_of_magnitude(dtype):
    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros((), dtype=dtype), 1.0))
        b = pyro.sample("b", dist.Normal(torch.zeros((), dtype=dtype), 1e-4))
        both = torch.stack([a, a + 1e4 * b])
        pyro.factor("bent", (-3 * torch.nn.functional.softplus(1 - 2 * both)).sum())

    def log_f(a, b):
        return -3 * (np.logaddexp(0, 1 - 2 * a) + np.logaddexp(0, 1 - 2 * (a + b)))

    _, a, b = on_a_grid(log_f, (0, 0), (1, 1))
    q = fit(model)
    assert abs(float(q.marginal("a").mean) - a) < 2e-2
    assert abs(1e4 * float(q.marginal("b").mean) - b) < 2e-2


def test_vectors_of_single_precision_are_reduced_together_too():
    x = torch.randn(7, 5, dtype=torch.float32)

    def model():
        w = pyro.sample("w", dist.Normal(x.new_zeros(5), 1.0).to_event(1))
        b = pyro.sample("b", dist.Normal(x.new_zeros(()), 1.0))
        with pyro.plate("rows", 7):
            pyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=x.new_ones(7))

    assert dims(model) == [1]


def test_a_rounded_quotient_is_no_linear_function():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 3.0))
        y = pyro.sample("y", dist.Normal(0.0, 1.0))
        pyro.factor("near", -((torch.div(x, 2.0, rounding_mode="floor") - y) ** 2))

    assert dims(model) == [2]
    _, x, y = on_a_grid(lambda x, y: -((np.floor(x / 2) - y) ** 2), (0, 0), (3, 1))
    q = fit(model, num_points=64)
    assert abs(float(q.marginal("x").mean) - x) < 0.1
    assert abs(float(q.marginal("y").mean) - y) < 0.1


@pytest.mark.parametrize(("states", "expected"), [(3, 1), (8, 1)])
def test_components_of_a_mixture_are_integrated_one_by_one(states, expected):
    def model():
        with pyro.plate("components", states):
            mu = pyro.sample("mu", dist.Normal(torch.linspace(-3.0, 3.0, states), 1.0))
        with pyro.plate("data", 5):
            k = pyro.sample("k", dist.Categorical(torch.ones(5, states)))
            data = torch.tensor([-3.0, -2, 0, 2, 3])
            pyro.sample("y", dist.Normal(mu[k], 0.5), obs=data)

    assert dims(model) == [expected]


def test_means_and_scales_of_a_mixture_take_two_dimensions():
    def model():
        with pyro.plate("components", 3):
            mu = pyro.sample("mu", dist.Normal(torch.linspace(-3.0, 3.0, 3), 1.0))
            scale = pyro.sample("scale", dist.LogNormal(0.0, 0.3))
        with pyro.plate("data", 4):
            k = pyro.sample("k", dist.Categorical(torch.ones(4, 3)))
            pyro.sample("y", dist.Normal(mu[k], scale[k]), obs=torch.tensor([-3.0, -2, 2, 3]))

    assert dims(model) == [2]


@pytest.mark.parametrize("reads", ["one of each", "the next one too"])
def test_numbers_that_states_choose_are_read_where_they_are_in_u(reads):
    """Components of which a state reads one share its place in u; one that is read in two roles has
    a place in each."""
    x = torch.tensor([0.3, -1.0], dtype=torch.float64)
    table = torch.tensor([1, 2, 0])

    def log_scale(a, b, z):
        return b[z] if reads == "one of each" else a[table[z]]

    def model():
        with pyro.plate("components", 3):
            a = pyro.sample("a", dist.Normal(torch.zeros(3, dtype=torch.float64), 1.0))
            b = pyro.sample("b", dist.Normal(torch.zeros(3, dtype=torch.float64), 1.0))
        with pyro.plate("rows", 2):
            z = pyro.sample("z", dist.Categorical(torch.ones(3)))
            pyro.sample("x", dist.Normal(a[z], log_scale(a, b, z).exp()), obs=x)

    graph = pg.trace_graph(model, unconstrained=True)
    group = next(group for group in graph.factors if group.name == "x")
    local = LocalDensity(group, torch.arange(2), torch.zeros(0, dtype=torch.float64), graph)
    local.reduce_jointly()
    assert local.dim == 2
    u = torch.randn(5, 3, 2, 2, dtype=torch.float64)
    nodes = torch.cat(local.nodes(u), -1)  # [N, z, row, slots]
    names = [group.slots[k].name for k in local.continuous]
    assert names == ["a"] * 3 + ["b"] * (3 if reads == "one of each" else 0)
    a, b = nodes[..., :3].movedim(-1, 0), nodes[..., 3:].movedim(-1, 0)
    for z in range(3):
        wanted = dist.Normal(a[z], log_scale(a, b, z).exp()).log_prob(x)[:, z]
        assert_close(local(u)[:, z], wanted)


def test_what_a_state_does_not_read_may_overflow_at_what_it_reads():
    """A mean about 1000 and a logarithm share a place in u: e^1000 * 0 is NaN, as is the derivative
    of a choice of which the other side is infinite."""
    y = torch.tensor([1000.3, 1.2], dtype=torch.float64)
    factor = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)

    def model(is_product):
        m = pyro.sample("m", dist.Normal(torch.tensor(1000.0).double(), 2.0))
        s = pyro.sample("s", dist.Normal(torch.tensor(0.0).double(), 1.0))
        with pyro.plate("rows", 2):
            z = pyro.sample("z", dist.Bernoulli(torch.tensor(0.4).double()))
            level = factor * s.exp()
            loc = (1 - z) * m + z * level if is_product else torch.where(z > 0, level, m)
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    for is_product in (True, False):
        graph = pg.trace_graph(model, (is_product,), differentiable=True)
        group = next(group for group in graph.factors if group.name == "y")
        local = LocalDensity(group, torch.arange(2), torch.zeros(0).double(), graph)
        local.reduce_jointly()
        assert local.dim == 1
        u = torch.stack([y.new_full((1, 2), 999.0), y.new_full((1, 2), 0.5)], 1)[..., None]
        loc = torch.stack([u[0, 0, :, 0], u[0, 1, :, 0].exp()])
        wanted = dist.Normal(loc, 1.0).log_prob(y)
        with torch.no_grad():
            assert_close(local(u)[0], wanted)
        (slope,) = torch.autograd.grad(local(u).sum(), factor)
        assert_close(slope, ((y - loc[1]) * loc[1]).sum())
