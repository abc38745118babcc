"""Measures that hardly overlap, or have no mass at all, against closed forms."""

import math

import pytest
import torch
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

#: Near both limits, on both sides of them, and on both sides of |alpha (1 - alpha)| = 1e-3.
NEAR_LIMITS = [1e-7, 1e-4, 1e-3, 1.01e-3, 0.3]


def point_and_pair(logit):
    """p has all its mass on the first of two states, q only sigmoid(``logit``) of it."""
    a = torch.tensor([0.0, -math.inf])
    return Discrete(a), Discrete(torch.stack([logit, torch.zeros_like(logit)]))


@pytest.mark.parametrize("overlap", [0.999, 0.5, 1e-3, 1e-12, 1e-15, 1e-18, 1e-300])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("alpha", NEAR_LIMITS)
def test_the_scale_free_divergence_of_a_point_is_its_log_overlap_over_alpha(alpha, swap, overlap):
    """int p^alpha q^(1 - alpha) = e^(1 - alpha) with q(first) = e, so R = -log(e) / alpha."""
    logit = torch.tensor(math.log(overlap) - math.log1p(-overlap), requires_grad=True)
    p, q = point_and_pair(logit)
    value = scale_free_divergence(*((q, p, 1 - alpha) if swap else (p, q, alpha)))
    # 1 - alpha is a rounded number
    rtol = 1e-12 + swap * 1e-16 / alpha
    assert_close(value, torch.tensor(-math.log(overlap) / alpha), rtol=rtol, atol=0)
    (gradient,) = torch.autograd.grad(value, logit)
    assert_close(gradient, torch.tensor((overlap - 1) / alpha), rtol=1e3 * rtol, atol=0)


@pytest.mark.parametrize("alpha", [5e-4, -5e-4, 0.9995, 1.0005, 1.1e-3, 0.5])
@pytest.mark.parametrize("gap", [0.5, 20.0, 200.0])
def test_far_gaussians_on_a_grid_have_half_their_squared_distance(gap, alpha):
    """In standard deviations, of 1/2 each."""
    x = torch.linspace(-200, 200, 4001)
    far = torch.tensor(gap, requires_grad=True)
    p, q = (Gridded(-2 * (x - mean) ** 2, x) for mean in (-far / 2, far / 2))
    value = scale_free_divergence(p, q, alpha)
    assert_close(value, 2 * far**2, rtol=1e-9, atol=0)
    assert_close(torch.autograd.grad(value, far)[0], 4 * far, rtol=1e-9, atol=0)


@pytest.mark.parametrize("alpha", [20.0, -20.0, 3.0])
def test_the_gradient_is_finite_where_the_divergence_overflows(alpha):
    """p = (1, 0), q = (0, 1) up to e^-700, and R = 700 / |alpha (1 - alpha)| times the excess."""
    a = torch.tensor([0.0, -700.0], requires_grad=True)
    b = torch.tensor([-700.0, 0.0], requires_grad=True)
    value = scale_free_divergence(Discrete(a), Discrete(b), alpha)
    excess = max(alpha, 1 - alpha) - 1
    truth = 700 * excess / abs(alpha * (1 - alpha))
    assert_close(value, torch.tensor(truth), rtol=1e-12, atol=0)
    # the state that p (alpha > 1) or q (alpha < 0) owns decides: R = -log of the other's mass
    rate = 1 / max(abs(alpha), abs(1 - alpha))
    zero, slope = torch.zeros(2), torch.tensor([-rate, rate])
    found = torch.autograd.grad(value, (a, b))
    expected = (zero, slope) if alpha > 0 else (-slope, zero)
    assert_close(found, expected, rtol=1e-9, atol=1e-15)


ALPHAS = [-2.0, -1.0, 0.0, 0.5, 1.0, 1.5, 2.0]
#: q is narrower than p, as wide, and wider: the integral diverges for some of the alphas
VARIANCES = [0.25, 1.0, 4.0]


def gaussians(log_p, log_q, variance):
    p = Gaussian(torch.tensor(log_p), torch.tensor([1.0]), torch.eye(1))
    return p, Gaussian(torch.tensor(log_q), torch.tensor([0.0]), variance * torch.eye(1))


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_gaussian_without_mass_is_zero_everywhere(alpha, variance):
    """int (1 - alpha) q / (alpha (1 - alpha)) = int q / alpha where p is zero."""
    mass = math.exp(0.3)
    no_p, no_q, neither = (
        float(alpha_divergence(*gaussians(log_p, log_q, variance), alpha))
        for log_p, log_q in ((-math.inf, 0.3), (0.3, -math.inf), (-math.inf, -math.inf))
    )
    assert no_p == (pytest.approx(mass / alpha, rel=1e-14) if alpha > 0 else math.inf)
    assert no_q == (pytest.approx(mass / (1 - alpha), rel=1e-14) if alpha < 1 else math.inf)
    assert neither == 0


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_affinity_of_a_gaussian_without_mass_is_a_power_of_zero(alpha, variance):
    """0^alpha q^(1 - alpha): nothing, q at alpha = 0, infinite below."""
    truth = 0.3 if alpha == 0 else math.copysign(math.inf, -alpha)
    assert float(log_affinity(*gaussians(-math.inf, 0.3, variance), alpha)) == truth
    truth = 0.3 if alpha == 1 else math.copysign(math.inf, alpha - 1)
    assert float(log_affinity(*gaussians(0.3, -math.inf, variance), alpha)) == truth
    assert float(log_affinity(*gaussians(-math.inf, -math.inf, variance), alpha)) == -math.inf
    assert float(optimal_scale(*gaussians(-math.inf, 0.3, variance), alpha)) == -math.inf


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0, -1.0])
@pytest.mark.parametrize(("dtype", "reach"), [(torch.float32, 30), (torch.float64, 85)])
def test_tails_of_a_grid_do_not_overflow(alpha, dtype, reach):
    """Two centred Gaussians far out, against int p^alpha q^(1 - alpha) by hand, of precision
    alpha / v_p + (1 - alpha) / v_q."""
    v_p, v_q = (1.0, 0.8) if alpha > 1 else (0.8, 1.0)
    x = torch.linspace(-reach, reach, 2001, dtype=dtype)
    p, q = (
        Gridded(-0.5 * (x**2 / v + math.log(2 * math.pi * v)), x).scaled(scale)
        for v, scale in ((v_p, 0.3), (v_q, 0.0))
    )
    shared = -0.5 * (alpha * math.log(v_p) + (1 - alpha) * math.log(v_q))
    log_affinity = shared - 0.5 * math.log(alpha / v_p + (1 - alpha) / v_q)
    c = alpha * (1 - alpha)
    mass = math.exp(0.3)
    truth = (alpha * mass + (1 - alpha) - mass**alpha * math.exp(log_affinity)) / c
    rtol = 1e-4 if dtype == torch.float32 else 1e-9
    assert float(alpha_divergence(p, q, alpha)) == pytest.approx(truth, rel=rtol)
    assert float(scale_free_divergence(p, q, alpha)) == pytest.approx(-log_affinity / c, rel=rtol)


def test_the_power_of_two_small_masses_can_be_the_largest():
    """p = q at the first state; at the second p^2 / q is all, and e^-9."""
    p, q = (
        Discrete(torch.tensor([0.0, b], dtype=torch.float32, requires_grad=True))
        for b in (-100.0, -191.0)
    )
    value = alpha_divergence(p, q, 2.0)
    assert float(value.detach()) == pytest.approx(math.exp(-9) / 2, rel=1e-5)
    gradient = torch.autograd.grad(value, (p.log_mass, q.log_mass))
    by_hand = torch.tensor([2.0, -1.0], dtype=torch.float32) * math.exp(-9) / 2
    assert_close(torch.stack([g[1] for g in gradient]), by_hand, rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1e-2, 1e-3, 1e-5, 1e-7, -1e-3, -1e-5])
@pytest.mark.parametrize("masses", [0.0, -450.0, 450.0])
def test_the_optimal_scale_keeps_its_digits_where_q_alone_is_zero(masses, alpha, dtype):
    """p^alpha q^(1 - alpha) is zero there: log s = log(E_q (p / q)^alpha) / alpha over the rest."""
    log_p = torch.tensor([0.0, -1.0, -2.0], dtype=dtype) + masses
    log_q = torch.tensor([-0.5, -0.25, -math.inf], dtype=dtype) + masses
    p, q = (log.double()[:2] - masses for log in (log_p, log_q))
    ratio = p - q
    mean = (q.softmax(0) * ratio).sum()
    truth = mean + ((q.softmax(0) * (alpha * (ratio - mean)).expm1()).sum()).log1p() / alpha
    found = optimal_scale(Discrete(log_p), Discrete(log_q), alpha)
    rounding = 10 * torch.finfo(dtype).eps * (1 + abs(masses))  # of the masses themselves
    assert_close(found.double(), truth, rtol=0, atol=rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("logs", "alpha"), [((300.0, -300.0), 2.0), ((720.0, 718.0), 0.5)])
def test_gaussians_whose_divergence_no_number_holds_have_an_infinite_one(logs, alpha, dtype):
    logs = [log / (8 if dtype is torch.float32 else 1) for log in logs]
    eye = torch.eye(1, dtype=dtype)
    p, q = (
        Gaussian(torch.tensor(log, dtype=dtype), torch.tensor([mean], dtype=dtype), eye)
        for log, mean in zip(logs, (3.0, 0.0), strict=True)
    )
    assert alpha_divergence(p, q, alpha) == torch.inf


@pytest.mark.parametrize("distance", [26.0, 27.0, 30.0])
def test_gaussians_of_small_masses_far_apart_have_the_divergence_that_a_double_holds(distance):
    """At alpha = 2, of unit variances and masses m: m (e^(d^2) - 1) / 2."""
    eye, log_mass = torch.eye(1), torch.tensor(-300.0)
    p, q = (Gaussian(log_mass, torch.tensor([mean]), eye) for mean in (distance, 0.0))
    truth = torch.tensor(distance**2 - 300.0).exp() / 2
    assert_close(alpha_divergence(p, q, 2.0), truth, rtol=1e-12, atol=0)
