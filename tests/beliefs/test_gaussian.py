"""Algebra of Gaussians in natural parameters against dense formulas and scipy."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import apply, inverse

seeds, widths = st.integers(0, 10**6), st.integers(1, 4)


def moments(seed, d, batch=()):
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(*batch, d, d, generator=g, dtype=torch.float64)
    covariance = root @ root.mT + 0.3 * torch.eye(d, dtype=torch.float64)
    return torch.randn(*batch, d, generator=g, dtype=torch.float64), covariance


@settings(max_examples=20)
@given(seeds, widths)
def test_moments_survive_the_round_trip(seed, d):
    mean, covariance = moments(seed, d, (2, 3))
    q = Gaussian.from_moments(mean, covariance)
    assert q.d == d and q.is_proper.all()
    assert_close(q.mean, mean)
    assert_close(q.covariance, covariance)
    assert_close(q[0].mean, mean[0])


@settings(max_examples=20)
@given(seeds, widths)
def test_the_log_mass_normalises_the_density_of_scipy(seed, d):
    mean, covariance = moments(seed, d)
    q = Gaussian.from_moments(mean, covariance)
    x = torch.randn(d, dtype=torch.float64)
    truth = stats.multivariate_normal(mean.numpy(), covariance.numpy()).logpdf(x.numpy())
    assert_close(q.log_value(x) - q.log_mass, torch.tensor(float(truth)))


@settings(max_examples=20)
@given(seeds, st.integers(1, 6))
def test_densities_at_many_points_are_those_of_scipy(seed, d):
    mean, covariance = moments(seed, d, (3,))
    q = Gaussian.from_moments(mean, covariance)
    x = torch.randn(7, 3, d, dtype=torch.float64)
    one_for_all = torch.randn(7, 1, d, dtype=torch.float64)
    for points in (x, one_for_all, x[0]):
        found = (q.log_value(points) - q.log_mass).exp()
        for k in range(3):
            own = points.expand(*points.shape[:-2], 3, d)[..., k, :]
            truth = stats.multivariate_normal(mean[k].numpy(), covariance[k].numpy()).pdf(own)
            assert_close(found[..., k], torch.as_tensor(truth))


@settings(max_examples=20)
@given(seeds, widths, st.floats(0.1, 3.0))
def test_products_quotients_and_powers_act_on_the_functions(seed, d, power):
    p = Gaussian.from_moments(*moments(seed, d))
    q = Gaussian.from_moments(*moments(seed + 1, d))
    x = torch.randn(d, dtype=torch.float64)
    assert_close((p + q).log_value(x), p.log_value(x) + q.log_value(x))
    assert_close((p - q).log_value(x), p.log_value(x) - q.log_value(x))
    assert_close((power * p).log_value(x), power * p.log_value(x))
    assert_close((torch.tensor(power) * p).log_value(x), power * p.log_value(x))
    assert_close(((p + q) - q).precision, p.precision)


@settings(max_examples=20)
@given(seeds, widths)
def test_the_mass_of_a_product_is_the_density_of_the_difference(seed, d):
    # int N(x; a, A) N(x; b, B) dx = N(a; b, A + B)
    (a, cov_a), (b, cov_b) = moments(seed, d), moments(seed + 1, d)
    p, q = Gaussian.from_moments(a, cov_a), Gaussian.from_moments(b, cov_b)
    truth = stats.multivariate_normal(b.numpy(), (cov_a + cov_b).numpy()).logpdf(a.numpy())
    got = (p + q).log_mass - p.log_mass - q.log_mass
    assert_close(got, torch.tensor(float(truth)))


@settings(max_examples=20)
@given(seeds, st.integers(2, 4))
def test_impropriety_is_seen(seed, d):
    mean, covariance = moments(seed, d)
    q = Gaussian.from_moments(mean, covariance)
    top = torch.linalg.eigvalsh(q.precision)[0]
    eye = torch.eye(d, dtype=torch.float64)
    assert Gaussian(q.precision - 0.9 * top * eye, q.shift).is_proper
    assert not Gaussian(q.precision - 1.1 * top * eye, q.shift).is_proper
    assert not Gaussian.flat((), d, mean).is_proper
    assert not Gaussian(q.precision * torch.nan, q.shift).is_proper


def test_numbers_follow_the_rules_of_matrices():
    for p in (-1.0, 0.0, torch.nan, torch.inf):
        assert not Gaussian(torch.full((1, 1), p), torch.zeros(1)).is_proper
    assert inverse(torch.tensor([[-2.0]])).isnan().all()
    assert inverse(torch.diag(torch.tensor([1.0, -1.0]))).isnan().all()


@settings(max_examples=20)
@given(seeds, widths, widths)
def test_apply_and_inverse_are_the_dense_operations(seed, m, d):
    rng = np.random.default_rng(seed)
    a, x = rng.normal(size=(5, m, d)), rng.normal(size=(5, d))
    want = torch.tensor(np.einsum("bmd,bd->bm", a, x))
    assert_close(apply(torch.tensor(a), torch.tensor(x)), want)
    for many in (rng.normal(size=(7, 5, d)), rng.normal(size=(7, 1, d))):
        want = torch.tensor((a @ np.broadcast_to(many, (7, 5, d))[..., None])[..., 0])
        assert_close(apply(torch.tensor(a), torch.tensor(many)), want)
    spd = a @ a.transpose(0, 2, 1) + np.eye(m)
    assert_close(inverse(torch.tensor(spd)), torch.tensor(np.linalg.inv(spd)))
