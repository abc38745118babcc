"""The divergence, the affinity and the optimal scale against closed forms and quadrature."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch.testing import assert_close

from pyrograph.divergences import (
    Discrete,
    Gaussian,
    Gridded,
    alpha_divergence,
    log_affinity,
    optimal_scale,
    scale_free_divergence,
)
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch

ALPHAS = [-3.0, -1.0, 0.0, 0.3, 0.5, 1.0, 2.0, 4.0]
#: (weights, means, standard deviations) of p; q = 1.3 N(-.3, 1.2^2)
MIXTURE = ((0.7, 0.3), (-1.0, 1.0), (1.0, 0.5))

masses = st.lists(st.floats(1e-6, 10.0), min_size=4, max_size=4)
orders = st.one_of(st.sampled_from([0.0, 1.0, 0.5, 2.0]), st.floats(-6.0, 6.0))


def mixture_density(x):
    return sum(w * stats.norm.pdf(x, m, s) for w, m, s in zip(*MIXTURE))


def discrete(values):
    return Discrete(torch.tensor(values, dtype=torch.float64).log())


def integrand(p, q, alpha):
    if alpha == 0:
        return q * math.log(q / p) + p - q
    if alpha == 1:
        return p * math.log(p / q) + q - p
    return (alpha * p + (1 - alpha) * q - p**alpha * q ** (1 - alpha)) / (alpha * (1 - alpha))


def random_gaussian(dim, generator, width=1.0):
    root = torch.randn(dim, dim, generator=generator) * 0.3
    covariance = width * (torch.eye(dim) + root @ root.T)
    return Gaussian(
        0.3 * torch.randn((), generator=generator),
        torch.randn(dim, generator=generator),
        covariance,
    )


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.3, 0.5, 1.0, 2.0, 4.0])
def test_a_gridded_mixture_and_a_gaussian_agree_with_quadrature(alpha):
    x = torch.linspace(-14, 14, 2801)
    p = Gridded(torch.as_tensor(np.log(mixture_density(x.numpy()))), x)
    q = Gaussian(torch.tensor(1.3).log(), torch.tensor([-0.3]), torch.tensor([[1.44]]))

    def difference(u):
        return integrand(mixture_density(u), 1.3 * stats.norm.pdf(u, -0.3, 1.2), alpha)

    truth, _ = integrate.quad(difference, -14, 14, limit=400, epsabs=1e-12)
    found = alpha_divergence(p, q.on_grid(p), alpha)
    assert_close(found, torch.tensor(truth), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gaussians_in_one_dimension_agree_with_quadrature(alpha):
    p = Gaussian(torch.tensor(0.4), torch.tensor([0.3]), torch.tensor([[1.1]]))
    q = Gaussian(torch.tensor(-0.2), torch.tensor([-0.2]), torch.tensor([[1.0]]))

    def density(g, u):
        log_pdf = stats.norm.logpdf(u, g.mean.item(), g.covariance.item() ** 0.5)
        return math.exp(g.log_mass.item() + log_pdf)

    truth, _ = integrate.quad(
        lambda u: integrand(density(p, u), density(q, u), alpha), -15, 15, epsabs=1e-12, limit=400
    )
    assert_close(alpha_divergence(p, q, alpha), torch.tensor(truth), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_gaussians_in_many_dimensions_have_the_textbook_kl(alpha):
    generator = torch.Generator().manual_seed(1)
    p, q = random_gaussian(4, generator), random_gaussian(4, generator)
    first, second = (p, q) if alpha == 1 else (q, p)
    normals = [
        torch.distributions.MultivariateNormal(g.mean, g.covariance) for g in (first, second)
    ]
    kl = torch.distributions.kl_divergence(*normals)
    m1, m2 = first.log_mass.exp(), second.log_mass.exp()
    truth = m1 * (kl + first.log_mass - second.log_mass) + m2 - m1
    assert_close(alpha_divergence(p, q, alpha), truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("alpha", [-0.4, 0.2, 0.5, 0.9, 1.6])
def test_the_gaussian_affinity_is_the_integral_of_its_quadratic_form(alpha):
    generator = torch.Generator().manual_seed(2)
    p, q = random_gaussian(3, generator), random_gaussian(3, generator)
    total, precision, shift, constant = 0.0, 0.0, 0.0, 0.0
    for g, power in ((p, alpha), (q, 1 - alpha)):
        inverse = torch.linalg.inv(g.covariance)
        log_normaliser = 0.5 * torch.logdet(2 * math.pi * g.covariance)
        total = total + power * (g.log_mass - log_normaliser)
        precision = precision + power * inverse
        shift = shift + power * inverse @ g.mean
        constant = constant + power * g.mean @ inverse @ g.mean
    assert bool((torch.linalg.eigvalsh(precision) > 0).all())
    square = shift @ torch.linalg.solve(precision, shift) - constant
    truth = total + 0.5 * square + 0.5 * torch.logdet(2 * math.pi * torch.linalg.inv(precision))
    assert_close(log_affinity(p, q, alpha), truth, rtol=1e-11, atol=1e-11)


def test_gaussians_diverge_exactly_where_the_mixed_precision_is_not_positive():
    p = Gaussian(torch.zeros(()), torch.zeros(1), torch.ones(1, 1))
    q = Gaussian(torch.zeros(()), torch.zeros(1), 2 * torch.ones(1, 1))
    # alpha + (1 - alpha) / 2 > 0 for alpha > -1
    assert alpha_divergence(p, q, -0.99).isfinite()
    assert alpha_divergence(p, q, -1.01) == math.inf
    # swapped: alpha / 2 + 1 - alpha > 0 for alpha < 2
    assert alpha_divergence(q, p, 1.99).isfinite()
    assert alpha_divergence(q, p, 2.01) == math.inf
    assert optimal_scale(q, p, 2.01) == math.inf
    assert optimal_scale(p, q, -1.01) == -math.inf


@given(masses, masses, orders)
def test_the_divergence_is_not_negative_and_swaps_with_alpha(p, q, alpha):
    p, q = discrete(p), discrete(q)
    value = alpha_divergence(p, q, alpha)
    assert value >= 0
    assert_close(value, alpha_divergence(q, p, 1 - alpha), rtol=1e-9, atol=1e-12)


@given(masses, orders, st.integers(0, 3), st.floats(1e-4, 0.5))
def test_the_divergence_vanishes_only_for_equal_measures(p, alpha, place, change):
    p = discrete(p)
    assert alpha_divergence(p, p, alpha) == 0
    shift = torch.zeros(4).index_fill(0, torch.tensor(place), change)
    assert alpha_divergence(p, Discrete(p.log_mass + shift), alpha) > 0


@given(masses, masses, orders)
def test_small_differences_have_the_divergence_of_fishers_metric(p, direction, alpha):
    p = discrete(p)
    step = 1e-6 * torch.tensor(direction)
    value = alpha_divergence(p, Discrete(p.log_mass + step), alpha)
    assert_close(value, (p.log_mass.exp() * step**2).sum() / 2, rtol=1e-3, atol=0)


@given(masses, masses, st.sampled_from([0.0, 1.0]), st.sampled_from([-1, 1]))
def test_values_near_the_limits_are_continuous(p, q, limit, sign):
    p, q = discrete(p), discrete(q)
    at = alpha_divergence(p, q, limit)
    for gap in (1e-12, 1e-9, 1e-7, 1e-6):
        near = alpha_divergence(p, q, limit + sign * gap)
        assert abs(near - at) <= 3e3 * gap * (1 + at) + 1e-13


@given(masses, masses, orders, st.floats(-0.5, 0.5))
def test_no_other_scale_is_better_than_the_optimal_one(p, q, alpha, move):
    p, q = discrete(p), discrete(q)
    log_s = optimal_scale(p, q, alpha)
    best = alpha_divergence(p, q.scaled(log_s), alpha)
    other = alpha_divergence(p, q.scaled(log_s + move), alpha)
    assert other >= best * (1 - 1e-9) - 1e-12


@given(masses, masses, st.lists(st.floats(-8.0, 8.0), min_size=2, max_size=8))
def test_the_optimal_scale_does_not_decrease_with_alpha(p, q, alphas):
    p, q = discrete(p), discrete(q)
    alphas = torch.tensor(sorted([*alphas, 0.0, 1.0]))
    scales = optimal_scale(p, q, alphas)
    assert bool((scales.diff() >= -1e-9).all())
    at_one = p.log_mass_total - q.log_mass_total
    assert_close(optimal_scale(p, q, 1.0), at_one, rtol=1e-12, atol=1e-12)


@given(masses, masses, orders)
def test_the_scale_free_divergence_is_that_of_the_best_scaled_one(p, q, alpha):
    p, q = discrete(p), discrete(q)
    p = p.scaled(-p.log_mass_total)
    scaled = q.scaled(optimal_scale(p, q, alpha))
    free = scale_free_divergence(p, q, alpha)
    c = 1 - alpha
    # D = (Z_p - Z_q) / (1 - alpha) with log Z_q = -(1 - alpha) R
    truth = free if abs(c) < 1e-8 else -torch.expm1(-c * free) / c
    assert_close(alpha_divergence(p, scaled, alpha), truth, rtol=1e-6, atol=1e-9)


ZEROS = [
    # p, q, alpha, truth
    (0.0, 0.3, 0.5, 0.3 / 0.5),
    (0.0, 0.3, 2.0, 0.15),
    (0.0, 0.3, 1.0, 0.3),
    (0.0, 0.3, 0.0, math.inf),
    (0.0, 0.3, -1.0, math.inf),
    (0.3, 0.0, 0.5, 0.3 / 0.5),
    (0.3, 0.0, -1.0, 0.15),
    (0.3, 0.0, 0.0, 0.3),
    (0.3, 0.0, 1.0, math.inf),
    (0.3, 0.0, 2.0, math.inf),
    (0.0, 0.0, 2.0, 0.0),
    (0.0, 0.0, -1.0, 0.0),
    (0.0, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize("p, q, alpha, truth", ZEROS)
def test_zeros_follow_the_limit_of_small_masses(p, q, alpha, truth):
    value = alpha_divergence(discrete([p, 1.0]), discrete([q, 1.0]), alpha)
    assert_close(value, torch.tensor(truth), rtol=1e-12, atol=0)


def test_alpha_can_differ_within_a_batch():
    p = Discrete(torch.randn(3, 1, 5))
    q = Discrete(torch.randn(2, 5))
    alphas = torch.tensor([[-1.0, 0.0], [1.0, 2.0], [0.5, 0.5]])
    together = alpha_divergence(p, q, alphas)
    for i in range(3):
        for j in range(2):
            alone = alpha_divergence(
                Discrete(p.log_mass[i, 0]), Discrete(q.log_mass[j]), float(alphas[i, j])
            )
            assert_close(together[i, j], alone, rtol=1e-13, atol=0)
    gaussian = Gaussian(torch.zeros(3, 1), torch.randn(3, 1, 2), torch.eye(2).expand(3, 1, 2, 2))
    assert alpha_divergence(gaussian, gaussian.scaled(0.1), alphas).shape == (3, 2)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 1e-9, 0.5, 1.0, 1.5])
def test_the_gradient_is_right_in_both_arguments(alpha):
    a, b = torch.randn(2, 6, requires_grad=True).unbind()
    assert torch.autograd.gradcheck(
        lambda a, b: alpha_divergence(Discrete(a), Discrete(b), alpha),
        (a.detach().requires_grad_(), b.detach().requires_grad_()),
    )
    mean = torch.randn(2, 2, requires_grad=True)
    root = (0.1 * torch.randn(2, 2, 2) + torch.eye(2)).requires_grad_()

    def gaussians(mean, root):
        covariance = root @ root.mT
        p, q = (Gaussian(torch.zeros(()), mean[i], covariance[i]) for i in range(2))
        return alpha_divergence(p, q, alpha)

    assert torch.autograd.gradcheck(gaussians, (mean, root))


@pytest.mark.parametrize("alpha", [-2.0, 0.0, 0.5, 1.0, 3.0])
def test_the_gradient_is_finite_where_both_measures_have_zeros(alpha):
    a = torch.tensor([0.2, -math.inf, 0.5], requires_grad=True)
    b = torch.tensor([0.1, -math.inf, 0.3], requires_grad=True)
    for quantity in (alpha_divergence, optimal_scale, scale_free_divergence):
        grads = torch.autograd.grad(quantity(Discrete(a), Discrete(b), alpha), (a, b))
        assert all(bool(g.isfinite().all()) for g in grads)


def test_masses_far_from_one_neither_overflow_nor_lose_their_scale():
    p, q = torch.randn(5) - 1500, torch.randn(5) - 1500
    shifted = optimal_scale(Discrete(p), Discrete(q + 3000), 2.0)
    near = optimal_scale(Discrete(p + 1500), Discrete(q + 1500), 2.0)
    assert_close(shifted, near - 3000, rtol=1e-12, atol=0)


@pytest.mark.parametrize("of", [alpha_divergence, optimal_scale])
@pytest.mark.parametrize("name", ["p", "q"])
def test_masses_that_are_no_numbers_are_refused(of, name):
    measures = {k: torch.zeros(2) for k in "pq"} | {name: torch.tensor([math.nan, 0.0])}
    with pytest.raises(NonFiniteDensity, match=f"^{name} has"):
        of(Discrete(measures["p"]), Discrete(measures["q"]), 0.5)


def test_measures_on_different_spaces_are_refused():
    line = Gridded(torch.zeros(3), torch.arange(3.0))
    with pytest.raises(ShapeMismatch, match="one kind"):
        alpha_divergence(Discrete(torch.zeros(3)), line, 1.0)
    with pytest.raises(ShapeMismatch, match="states"):
        alpha_divergence(Discrete(torch.zeros(3)), Discrete(torch.zeros(4)), 1.0)
    with pytest.raises(ShapeMismatch, match=r"batches \[3\] and \[2\]"):
        alpha_divergence(Discrete(torch.zeros(3, 4)), Discrete(torch.zeros(2, 4)), 1.0)
    with pytest.raises(ShapeMismatch, match="different points"):
        alpha_divergence(line, Gridded(torch.zeros(3), 2 * torch.arange(3.0)), 1.0)
    with pytest.raises(ShapeMismatch, match="dimensions"):
        one, two = (Gaussian(torch.zeros(()), torch.zeros(d), torch.eye(d)) for d in (1, 2))
        alpha_divergence(one, two, 1.0)
    with pytest.raises(OptionError, match="positive definite"):
        bad = Gaussian(torch.zeros(()), torch.zeros(1), -torch.ones(1, 1))
        alpha_divergence(one, bad, 0.5)
    with pytest.raises(OptionError, match="finite"):
        alpha_divergence(one, one, math.inf)
    with pytest.raises(OptionError, match="increase"):
        Gridded(torch.zeros(3), torch.tensor([0.0, 2.0, 1.0]))


@pytest.mark.parametrize("alpha", [-0.5, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("single", [False, True], ids=["both", "one"])
def test_measures_of_whole_numbers_are_those_of_the_same_floats(alpha, single):
    a, b = np.array([0, 2, -1, 3]), np.array([1, -2, 0, 2])
    p, q = np.exp(a), np.exp(b)
    truth = (alpha * p + (1 - alpha) * q - p**alpha * q ** (1 - alpha)) / (alpha * (1 - alpha))
    first, second = torch.tensor(a), torch.tensor(b)
    second = second.double() if single else second
    found = alpha_divergence(Discrete(first), Discrete(second), alpha)
    assert_close(found, torch.tensor(truth.sum()))
    points = torch.arange(4)
    grids = [Gridded(log, points, torch.zeros(4, dtype=torch.long)) for log in (first, second)]
    assert_close(alpha_divergence(*grids, alpha), torch.tensor(truth.sum()))
    # N(0, 1) and N(1, 2): log int p^alpha q^(1 - alpha) has the closed form
    variance = 2 * alpha + 1 - alpha
    log_affinity_truth = -alpha * (1 - alpha) / (2 * variance)
    log_affinity_truth += 0.5 * (alpha * math.log(2) - math.log(variance))
    one, two = (
        Gaussian(torch.tensor(0), torch.tensor([mean]), torch.tensor([[float(variance)]]))
        for mean, variance in ((0, 1), (1, 2))
    )
    assert_close(log_affinity(one, two, alpha), torch.tensor(log_affinity_truth))


def test_measures_of_two_dtypes_have_the_digits_of_the_higher_one():
    alpha, a, b = 0.3, torch.tensor([0.0, 1.0]), torch.tensor([0.5, -1.0])
    exact = alpha_divergence(Discrete(a), Discrete(b), alpha)
    assert_close(
        alpha_divergence(Discrete(a.float()), Discrete(b), alpha), exact, rtol=1e-14, atol=0
    )
    mixed = Gaussian(torch.tensor(0.0).float(), torch.zeros(1), torch.eye(1).float())
    other = Gaussian(torch.tensor(0.0), torch.ones(1), 2 * torch.eye(1))
    single = Gaussian(*(t.float() for t in (other.log_mass, other.mean, other.covariance)))
    same = Gaussian(torch.tensor(0.0), torch.zeros(1), torch.eye(1))
    exact = alpha_divergence(same, other, alpha)
    for p, q in ((mixed, other), (mixed, single), (other, mixed), (single, mixed)):
        order = alpha if q in (other, single) else 1 - alpha
        assert_close(alpha_divergence(p, q, order), exact, rtol=1e-14, atol=0)
