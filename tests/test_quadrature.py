"""Gauss-Hermite rules: the degree they are exact for, and the error beyond it."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch.testing import assert_close

from pyrograph.errors import OptionError
from pyrograph.quadrature import fully_symmetric, gauss_hermite


def normal_moment(n):
    """E z^n: (n - 1)!! for even n."""
    return 0.0 if n % 2 else float(math.prod(range(1, n, 2)))


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_rules_are_exact_up_to_degree_2k_minus_1_and_not_beyond(k):
    z, w = gauss_hermite(k)
    for n in range(2 * k):
        got = float((w * z[:, 0] ** n).sum())
        assert abs(got - normal_moment(n)) < 1e-10 * max(1, normal_moment(n + n % 2))
    # the remainder K! f^(2K) / (2K)! of z^2K is K! exactly
    error = normal_moment(2 * k) - float((w * z[:, 0] ** (2 * k)).sum())
    assert abs(error - math.factorial(k)) < 1e-9 * math.factorial(2 * k)


def test_the_remainder_bounds_the_error_of_an_exponential():
    # f(z) = exp(a z): f^(2K) = a^2K f, and E f = exp(a^2 / 2)
    a, k = 0.5, 3
    z, w = gauss_hermite(k)
    error = math.exp(a * a / 2) - float((w * (a * z[:, 0]).exp()).sum())
    xi = 2 * (k + 1) ** 0.5  # beyond the outermost point
    bound = math.factorial(k) / math.factorial(2 * k) * a ** (2 * k)
    assert bound * math.exp(-a * xi) < error < bound * math.exp(a * xi)


def test_grids_of_several_variables_are_products():
    z, w = gauss_hermite(4, 3)
    assert z.shape == (64, 3)
    assert_close(w.sum(), torch.tensor(1.0))
    value = (z[:, 0] ** 2 * z[:, 1] ** 4 * z[:, 2] ** 6 * w).sum()
    assert_close(value, torch.tensor(1.0 * 3.0 * 15.0))
    assert_close((z.mT * w) @ z, torch.eye(3), rtol=0, atol=1e-12)


def test_smooth_integrals_agree_with_scipy():
    z, w = gauss_hermite(32)
    value = float((w / (1 + (-1.5 * z[:, 0] - 0.3).exp())).sum())
    truth = quad(lambda x: norm.pdf(x) / (1 + np.exp(-1.5 * x - 0.3)), -12, 12, epsabs=1e-13)[0]
    assert abs(value - truth) < 1e-8


def test_dtype_is_followed():
    z, w = gauss_hermite(5, 2, torch.float32)
    assert z.dtype == w.dtype == torch.float32


@pytest.mark.parametrize("k, dim", [(1, 1), (4, 1), (3, 2)])
def test_what_a_caller_does_to_a_rule_is_not_in_the_next_one(k, dim):
    expected = [t.clone() for t in gauss_hermite(k, dim)]
    for t in gauss_hermite(k, dim):
        t.fill_(7.0)
    assert_close(list(gauss_hermite(k, dim)), expected, rtol=0, atol=0)


def test_a_rule_made_without_gradients_serves_them():
    with torch.inference_mode():
        z, w = gauss_hermite(6)
    scale = torch.tensor(1.5, requires_grad=True)
    (w * (scale * z[:, 0]).square()).sum().backward()  # E (s z)^2 = s^2
    assert_close(scale.grad, torch.tensor(3.0))


@pytest.mark.parametrize("k", [150, 151, 400, 2000])
def test_rules_of_many_points_hold(k):
    z, w = gauss_hermite(k)
    assert_close(w.sum(), torch.tensor(1.0, dtype=w.dtype))
    for n in (2, 4, 6, 20):
        assert abs(float((w * z[:, 0] ** n).sum()) / normal_moment(n) - 1) < 1e-9


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((0,), "num_points=0 must be a whole number, at least 1"),
        ((-2,), "num_points=-2"),
        ((1.5,), r"num_points=1\.5"),
        (("3",), "num_points='3'"),
        ((3, 0), "dim=0 must be a whole number, at least 1"),
        ((3, 1.5), r"dim=1\.5"),
        (([3],), r"num_points=\[3\]"),
    ],
)
def test_sizes_that_are_none_are_refused(arguments, text):
    with pytest.raises(OptionError, match=text):
        gauss_hermite(*arguments)


@pytest.mark.parametrize("dim", [1, 2, 3, 6, 10])
def test_few_points_are_exact_for_polynomials_of_many_variables(dim):
    """Of degree 7, and 5 in each variable; x^6 and the product of four squares are too much."""
    z, w = fully_symmetric(dim)
    assert z.shape == (1 + 2 * dim + 2 * dim * (dim - 1) + 4 * math.comb(dim, 3) * 2, dim)
    drawn = np.random.default_rng(dim)
    powers = [np.zeros(dim, int)]
    for _ in range(300):
        power = np.zeros(dim, int)
        for _ in range(drawn.integers(8)):
            power[drawn.integers(dim)] += 1
        if power.max() <= 5:
            powers.append(power)
    for power in powers:
        truth = math.prod(normal_moment(int(n)) for n in power)
        got = float((w * (z ** torch.from_numpy(power)).prod(1)).sum())
        assert abs(got - truth) < 1e-10 * max(1, truth)
    assert abs(float((w * z[:, 0] ** 6).sum()) - 15) > 1
    if dim > 3:
        assert abs(float((w * z[:, :4].prod(1) ** 2).sum()) - 1) > 0.5


def test_few_points_follow_the_dtype_and_are_the_caller_s():
    z, w = fully_symmetric(4, torch.float32)
    assert z.dtype == w.dtype == torch.float32
    z.zero_()
    assert float(fully_symmetric(4, torch.float32)[0].abs().sum()) > 0
    with pytest.raises(OptionError):
        fully_symmetric(0)
