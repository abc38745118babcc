"""Projections against moments, closed forms and scipy's minimisers."""

import math
import warnings
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import optimize
from torch.testing import assert_close

from pyrograph.divergences import (
    Discrete,
    Factorised,
    FullyFactorised,
    Gaussian,
    Gaussian1D,
    Gridded,
    alpha_divergence,
    alpha_project,
    local_minima,
    project,
)
from pyrograph.errors import ConvergenceWarning, InferenceError, OptionError, ShapeMismatch

#: alpha: (q_x(0), s, D) of the two-state equality example
EQUALITY = {
    -2.0: (0.0, 0.75, 0.25 / 3),
    -1.0: (0.0, 0.75, 0.25 / 2),
    0.0: (0.0, 0.75, 0.25),
    0.25: (0.0, 0.75, 1 / 3),
    0.5: (0.0, 0.75, 0.5),
    0.55: (0.00237, 0.75032, 0.554836),
    0.6: (0.03571, 0.75915, 0.602132),
    0.75: (0.16139, 0.84338, 0.626495),
    1.0: (0.25, 1.0, 0.562335),
    1.5: (0.30492, 1.21811, 0.436210),
    2.0: (0.32467, 1.35140, 0.351400),
    5.0: (0.35198, 1.63759, 0.159396),
    20.0: (0.36276, 1.80582, 0.042412),
}


def equality():
    return Discrete(torch.tensor([[0.25, 0.0], [0.0, 0.75]]).log(), 2)


def mixture(means=(-1.0, 1.0), sds=(1.0, 0.5), weights=(0.7, 0.3), points=401):
    x = torch.linspace(-12, 12, points)
    parts = [
        math.log(w) + torch.distributions.Normal(m, s).log_prob(x)
        for w, m, s in zip(weights, means, sds)
    ]
    return Gridded(torch.stack(parts).logsumexp(0), x)


@cache
def nearest_normal(alpha):
    """To the mixture on 301 points, by the fixed point: several tests compare it with others."""
    return alpha_project(mixture(points=301), Gaussian1D(), alpha)


def as_numbers(q):
    return torch.stack([q.log_mass, q.mean[..., 0], q.covariance[..., 0, 0].sqrt()], -1)


def test_projection_on_gaussians_keeps_mass_mean_and_variance():
    q = project(mixture().scaled(0.7), Gaussian1D())
    truth = torch.tensor([0.7, -0.4, math.sqrt(0.7 + 0.3 * 0.25 + 0.21 * 4)])
    assert_close(as_numbers(q), truth, rtol=0, atol=1e-10)


def test_projection_on_products_keeps_mass_and_marginals():
    p = Discrete(torch.randn(4, 2, 3, 5), 3)
    q = project(p, FullyFactorised())
    table = p.log_mass.exp()
    assert_close(q.log_mass.exp(), table.sum((1, 2, 3)), rtol=1e-12, atol=0)
    for i, others in enumerate([(2, 3), (1, 3), (1, 2)]):
        truth = table.sum(others) / table.sum((1, 2, 3))[:, None]
        assert_close(q.log_marginals[i].exp(), truth, rtol=1e-12, atol=0)
    assert_close(q.joint().log_mass_total, q.log_mass, rtol=0, atol=1e-12)


def test_no_gaussian_is_nearer_in_kl_than_the_projection():
    p = mixture()
    q = project(p, Gaussian1D())
    best = alpha_divergence(p, q.on_grid(p), 1.0)
    for shift, stretch in ((0.01, 1.0), (-0.01, 1.0), (0.0, 1.02), (0.0, 0.98)):
        other = Gaussian(q.log_mass, q.mean + shift, q.covariance * stretch)
        assert alpha_divergence(p, other.on_grid(p), 1.0) > best


@pytest.mark.parametrize("alpha", [-5.0, -1.0, 0.0, 0.5, 1.0, 2.0, 5.0])
def test_the_fixed_point_is_the_minimum_that_scipy_finds(alpha):
    p = mixture(points=301)

    def divergence(x):
        q = Gaussian(torch.tensor(x[0]), torch.tensor([x[1]]), torch.tensor([[math.exp(x[2])]]))
        return float(alpha_divergence(p, q.on_grid(p), alpha))

    start = np.array([-0.1, -0.6, 0.2])
    truth = optimize.minimize(
        divergence, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14}
    ).x
    truth = torch.tensor([truth[0], truth[1], math.exp(truth[2] / 2)])
    assert_close(as_numbers(nearest_normal(alpha)), truth, rtol=0, atol=1e-5)


@pytest.mark.parametrize("alpha", [-3.0, 0.25, 2.0])
def test_fixed_point_and_direct_minimisation_agree(alpha):
    direct = alpha_project(mixture(points=301), Gaussian1D(), alpha, "direct", restarts=1)
    assert_close(as_numbers(nearest_normal(alpha)), as_numbers(direct), rtol=0, atol=1e-6)


def test_a_batch_is_projected_like_its_elements():
    shapes = {}, {"means": (-3.0, 2.0)}
    singles = [mixture(points=61, **shape) for shape in shapes]
    batch = Gridded(torch.stack([p.log_density for p in singles]), singles[0].points)
    few = {"tol": 1e-3, "max_steps": 60}  # each settles at a step of its own

    def found(p, alpha):
        return as_numbers(alpha_project(p, Gaussian1D(), alpha, **few))

    for alpha in (-1.0, 0.0, 2.0):
        together = found(batch, alpha)
        alone = torch.stack([found(p, alpha) for p in singles])
        assert_close(together, alone, rtol=0, atol=1e-8)


@pytest.mark.filterwarnings("ignore:alpha")  # float32 does not settle to ten digits
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
def test_float32_measures_are_projected_in_float32_whatever_the_default(alpha):
    p, table = mixture(points=301), Discrete(torch.randn(2, 3, 2), 3)
    small = Gridded(p.log_density.float(), p.points.float())
    found = alpha_project(small, Gaussian1D(), alpha)
    assert found.mean.dtype == torch.float32
    exact = as_numbers(nearest_normal(alpha))
    assert_close(as_numbers(found).double(), exact, rtol=0, atol=1e-3)
    found = alpha_project(Discrete(table.log_mass.float(), 3), FullyFactorised(), alpha)
    exact = alpha_project(table, FullyFactorised(), alpha)
    for single, double in zip(found.log_marginals, exact.log_marginals):
        assert single.dtype == torch.float32
        assert_close(single.exp().double(), double.exp(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("method", ["fixed point", "direct"])
def test_each_element_of_a_batch_follows_its_own_start(method):
    """A corner of the equality example keeps its support: its q is that corner of p."""
    corners = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]])
    starts = corners[torch.tensor([[0, 1, 0], [1, 1, 0]])]
    init = Factorised(torch.zeros(2, 3), (starts, starts))
    p = equality().expand((2, 3))
    q = alpha_project(p, FullyFactorised(), -1.0, method, init=init)
    truth = torch.tensor([[0.25, 0.75, 0.25], [0.75, 0.75, 0.25]])
    assert_close(q.log_mass.exp(), truth, rtol=0, atol=1e-10)


def test_two_points_are_met_by_every_gaussian_that_is_symmetric_about_them():
    """q equals p there if its mean lies midway: exp(log_mass) N(0; 1/2, v) is the density 1."""
    p = Gridded(torch.zeros(2), torch.tensor([0.0, 1.0]))
    q = alpha_project(p, Gaussian1D(), 0.5)
    assert_close(q.mean, torch.tensor([0.5]), rtol=0, atol=1e-9)
    v = float(q.covariance)
    log_normal = -0.125 / v - math.log(2 * math.pi * v) / 2
    assert_close(float(q.log_mass), -log_normal, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", ["fixed point", "direct"])
@pytest.mark.parametrize("alpha", EQUALITY)
def test_the_equality_example_has_its_closed_form(alpha, method):
    p = equality()
    q = alpha_project(p, FullyFactorised(), alpha, method, restarts=1)
    q0, s, divergence = EQUALITY[alpha]
    assert_close(q.log_mass.exp(), torch.tensor(s), rtol=0, atol=1e-4)
    for marginal in q.log_marginals:
        assert_close(marginal.exp()[0], torch.tensor(q0), rtol=0, atol=1e-4)
    found = alpha_divergence(p, q.joint(), alpha)
    assert_close(found, torch.tensor(divergence), rtol=0, atol=1e-4)


@pytest.mark.parametrize("alpha", [-2.0, -1.0, 0.0, 0.25, 0.4])
def test_mean_field_has_both_corners_as_local_minima(alpha):
    minima = local_minima(equality(), FullyFactorised(), alpha, restarts=2)
    found = sorted(float(q.log_mass.exp()) for q, _ in minima)
    assert_close(found, [0.25, 0.75], rtol=0, atol=1e-6)
    assert minima[0][1] < minima[1][1]


@pytest.mark.parametrize("alpha", [0.6, 0.75, 1.0, 2.0])
def test_a_corner_is_no_minimum_above_one_half(alpha):
    minima = local_minima(equality(), FullyFactorised(), alpha, restarts=2)
    assert all(float(q.log_mass.exp()) > 0.7501 for q, _ in minima)
    assert_close(minima[0][1], EQUALITY[alpha][2], rtol=0, atol=1e-5)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_factorised_fixed_points_are_stationary(alpha):
    p = Discrete(torch.randn(4, 2, 3, 2), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        q = alpha_project(p, FullyFactorised(), alpha)
    parameters = [m.clone().requires_grad_() for m in (q.log_mass, *q.log_marginals)]
    shape = [m.log_softmax(-1) for m in parameters[1:]]
    value = alpha_divergence(p, Factorised(parameters[0], tuple(shape)).joint(), alpha)
    for gradient in torch.autograd.grad(value.sum(), parameters):
        largest = gradient.flatten(1).abs().amax(1) if gradient.dim() > 1 else gradient.abs()
        assert (largest < 1e-7 * (1 + p.log_mass_total.exp())).all()


def test_the_best_mass_does_not_decrease_with_alpha():
    p = Discrete(torch.randn(3, 3, 3), 2)
    alphas = (-2.0, 0.0, 0.5, 1.0, 3.0)
    masses = [alpha_project(p, FullyFactorised(), a).log_mass for a in alphas]
    assert all((low <= high + 1e-9).all() for low, high in pairwise(masses))
    assert_close(masses[alphas.index(1.0)], p.log_mass_total, rtol=0, atol=1e-12)


def test_alpha_two_gives_the_importance_sampler_of_least_variance():
    p = mixture(points=301)
    weights = p.log_weights.exp().numpy()
    density = p.log_density.exp().numpy()
    x = p.points.numpy()

    def variance(parameters):
        mean, sd = parameters[0], math.exp(parameters[1])
        log_q = -0.5 * ((x - mean) / sd) ** 2 - math.log(sd * math.sqrt(2 * math.pi))
        return float((weights * density**2 * np.exp(-log_q)).sum()) - 1

    best = optimize.minimize(
        variance, [-0.3, 0.3], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13}
    )
    found = as_numbers(nearest_normal(2.0))[1:]
    assert_close(found, torch.tensor([best.x[0], math.exp(best.x[1])]), rtol=0, atol=1e-5)
    others = [as_numbers(nearest_normal(a))[1:] for a in (1.0, 1.5, 3.0, 5.0)]
    assert all(variance([float(m), math.log(s)]) > best.fun for m, s in others)


def test_a_run_that_is_cut_short_says_so():
    with pytest.warns(ConvergenceWarning, match="max_steps"):
        alpha_project(mixture(), Gaussian1D(), 0.5, max_steps=2)


def test_what_cannot_be_projected_is_refused():
    p = equality()
    with pytest.raises(ShapeMismatch, match="Gridded"):
        project(p, Gaussian1D())
    with pytest.raises(ShapeMismatch, match="Discrete"):
        project(mixture(), FullyFactorised())
    with pytest.raises(OptionError, match="method"):
        alpha_project(p, FullyFactorised(), 1.0, "newton")
    with pytest.raises(OptionError, match="sign follows alpha"):
        alpha_project(p, FullyFactorised(), -1.0, step=-0.5)
    with pytest.raises(OptionError, match="alpha"):
        alpha_project(p, FullyFactorised(), math.nan)
    uniform = Factorised(torch.zeros(()), (torch.full((2,), 0.5).log(),) * 2)
    with pytest.raises(InferenceError, match="infinite divergence"):
        alpha_project(p, FullyFactorised(), 0.0, init=uniform)
    with pytest.raises(OptionError, match="batch"):
        local_minima(Discrete(torch.zeros(3, 2)), FullyFactorised(), 0.0)


@pytest.mark.parametrize("alpha", [0.5, 2.0, 5.0])
@pytest.mark.parametrize("seed", range(4))
def test_single_precision_settles_to_its_own_digits(alpha, seed):
    """Truth: SciPy's minimum of -log sum p^alpha q^(1 - alpha) / (alpha (1 - alpha)), by hand.
    A run that does not settle would warn."""
    table = 2 * np.random.default_rng(seed).normal(size=(2, 2, 2))
    log_p = table - np.log(np.exp(table).sum())

    def divergence(logits):
        one, two, three = (-np.logaddexp(0, np.array([x, -x])) for x in logits)
        log_q = one[:, None, None] + two[:, None] + three
        affinity = np.log(np.exp(alpha * log_p + (1 - alpha) * log_q).sum())
        return -affinity / (alpha * (1 - alpha))

    starts = np.random.default_rng(0).normal(size=(8, 3))
    ends = [optimize.minimize(divergence, s, options={"gtol": 1e-9}) for s in starts]
    truth = min(ends, key=lambda end: end.fun).x
    p = Discrete(torch.tensor(table, dtype=torch.float32), 3)
    found = [m.exp()[1].item() for m in alpha_project(p, FullyFactorised(), alpha).log_marginals]
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-truth)), rtol=0, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["fixed point", "direct"])
@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.5, 2.0])
def test_projections_are_where_their_measures_are(alpha, method):
    def found(device):
        tables = torch.tensor([[[0.3, 0.1], [0.2, 0.4]], [[0.6, 0.2], [0.1, 0.1]]], device=device)
        bumps = mixture()
        bumps = Gridded(bumps.log_density.to(device), bumps.points.to(device))
        states = alpha_project(Discrete(tables.log(), 2), FullyFactorised(), alpha, method)
        normal = alpha_project(bumps, Gaussian1D(), alpha, method)
        return [states.log_mass, *states.log_marginals, as_numbers(normal)]

    for there, here in zip(found("cuda"), found("cpu"), strict=True):
        assert there.device.type == "cuda"
        assert_close(there.cpu(), here, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["fixed point", "direct"])
@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_tables_of_whole_numbers_are_projected_with_their_best_mass(alpha, method):
    """(int p^alpha q^(1 - alpha))^(1 / alpha) is the mass of the member."""
    table = np.array([[0, 1], [2, -1]])
    q = alpha_project(Discrete(torch.tensor(table), 2), FullyFactorised(), alpha, method)
    rows, columns = (m.exp().numpy() for m in q.log_marginals)
    shape = np.outer(rows, columns)
    mass = (np.exp(table) ** alpha * shape ** (1 - alpha)).sum() ** (1 / alpha)
    assert q.log_mass.item() == pytest.approx(math.log(mass), abs=1e-8)
    floats = alpha_project(Discrete(torch.tensor(table).double(), 2), FullyFactorised(), alpha)
    assert_close(torch.cat(q.log_marginals), torch.cat(floats.log_marginals), rtol=0, atol=1e-6)


def every_number(member):
    """Of a member of either family."""
    if isinstance(member, Gaussian):
        return as_numbers(member)
    return torch.cat([member.log_mass[None], *(m.exp() for m in member.log_marginals)])


@pytest.mark.parametrize("make", [equality, mixture], ids=["table", "grid"])
def test_the_direct_method_needs_no_derivatives_of_its_measure(make):
    p = make()
    family = FullyFactorised() if isinstance(p, Discrete) else Gaussian1D()
    few = {"restarts": 1}
    expected = every_number(alpha_project(p, family, 0.6, "direct", **few))
    others = [float(d) for _, d in local_minima(p, family, 0.6, **few)]
    learnt = p.with_atoms(p.log_atoms.clone().requires_grad_())
    # as what it starts from has derivatives, too
    start = project(learnt, family)
    found = alpha_project(learnt, family, 0.6, "direct", **few)
    assert_close(every_number(found), expected) and not found.log_mass.requires_grad
    alpha_project(learnt, family, 0.6, "direct", init=start)
    assert_close([d for _, d in local_minima(learnt, family, 0.6, **few)], others)
    with torch.inference_mode():
        p = make()
        assert_close(every_number(alpha_project(p, family, 0.6, "direct", **few)), expected)
        alpha_project(p, family, 0.6, "direct", init=project(p, family))
        assert_close([d for _, d in local_minima(p, family, 0.6, **few)], others)


@pytest.mark.parametrize("method", ["fixed point", "direct"])
def test_a_start_of_another_dtype_is_taken_to_that_of_the_measure(method):
    marginals = tuple(torch.full((2,), 0.5).log() for _ in range(2))
    start = Factorised(torch.zeros(()), marginals)
    single = Factorised(torch.zeros(()).float(), tuple(m.float() for m in marginals))
    q = alpha_project(equality(), FullyFactorised(), 0.75, method, init=start)
    same = alpha_project(equality(), FullyFactorised(), 0.75, method, init=single)
    assert same.log_mass.dtype == torch.float64
    assert_close(every_number(same), every_number(q), rtol=0, atol=1e-6)
