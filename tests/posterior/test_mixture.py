"""Normal mixtures and smoothing against torch.distributions and moments."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.testing import assert_close

from pyrograph.posterior.mixture import NormalMixture, smooth


def mixture(k=4, d=3):
    return torch.randn(k, d), torch.rand(k, d) + 0.3, torch.randn(k)


def reference(locs, scales, logits):
    return MixtureSameFamily(Categorical(logits=logits), Independent(Normal(locs, scales), 1))


@pytest.mark.parametrize("d", [1, 3])
def test_density_and_moments_equal_torchs_mixture(d):
    parts = mixture(d=d)
    ours, theirs = NormalMixture(*parts), reference(*parts)
    value = torch.randn(5, 2, d)
    assert_close(ours.log_prob(value), theirs.log_prob(value))
    assert_close(ours.mean, theirs.mean)
    assert_close(ours.variance, theirs.variance)


def test_draws_have_the_moments():
    parts = mixture()
    x = NormalMixture(*parts).sample((40000,))
    truth = reference(*parts)
    sd = truth.variance.sqrt()
    assert ((x.mean(0) - truth.mean).abs() < 5 * sd / 200).all()
    assert_close(x.var(0), truth.variance, rtol=0.05, atol=0)


def test_expanded_shapes():
    q = NormalMixture(*mixture()).expand((5, 1))
    assert q.sample((2,)).shape == (2, 5, 1, 3)
    assert q.log_prob(q.sample()).shape == (5, 1)
    assert q.mean.shape == (5, 1, 3)


def test_quantiles_invert_the_distribution_function():
    locs, scales, logits = mixture()
    q = NormalMixture(locs, scales, logits)
    for level in (0.05, 0.5, 0.9):
        below = Normal(locs, scales).cdf(q.quantile(level))
        assert_close(logits.softmax(0) @ below, torch.full((3,), level))


def test_reparameterised_gradients_are_unbiased():
    # E ||z||^2 = sum_k w_k (||mu_k||^2 + sum sd_k^2): gradients 2 w_k mu_k and 2 w_k sd_k
    locs, scales, logits = (t.requires_grad_() for t in mixture())
    z = NormalMixture(locs, scales, logits.detach()).rsample((200000,))
    grad = torch.autograd.grad(z.square().sum(-1).mean(), (locs, scales))
    w = logits.detach().softmax(0)[:, None]
    assert_close(grad[0], 2 * w * locs.detach(), rtol=0, atol=0.03)
    assert_close(grad[1], 2 * w * scales.detach(), rtol=0, atol=0.03)


@given(n=st.integers(2, 12), d=st.integers(1, 30), seed=st.integers(0, 1000), even=st.booleans())
def test_smoothing_keeps_weighted_means_and_variances(n, d, seed, even):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    w = torch.ones(n, dtype=x.dtype) if even else torch.rand(n, generator=g, dtype=x.dtype)
    w = w / w.sum()
    q = NormalMixture(*smooth(x, w))
    mean = w @ x
    assert_close(q.mean, mean)
    assert_close(q.variance, w @ (x - mean).square())


def test_smoothing_of_many_particles_keeps_two_modes_apart():
    x = torch.cat([torch.randn(200, 1) * 0.2 - 3, torch.randn(200, 1) * 0.2 + 3])
    q = NormalMixture(*smooth(x, torch.full((400,), 1 / 400)))
    assert float(q.log_prob(torch.zeros(1))) < float(q.log_prob(torch.full((1,), 3.0))) - 1


@pytest.mark.parametrize("x", [torch.ones(1, 2), torch.ones(5, 2)], ids=["one", "coincident"])
def test_a_point_still_gives_a_proper_density(x):
    x = x.double()
    q = NormalMixture(*smooth(x, torch.full((len(x),), 1 / len(x))))
    assert torch.isfinite(q.log_prob(x)).all()
    assert (q.scales > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_column_of_one_value_has_the_width_that_is_promised(dtype):
    # 0.1 is no sum of powers of two: weighted means of it are off by rounding
    x = torch.tensor([[0.1, 5.7, -30.3]], dtype=dtype).repeat(7, 1)
    weights = torch.tensor([0.3, 0.1, 0.1, 0.0, 0.2, 0.2, 0.1], dtype=dtype)
    x[3] += 1.0  # of weight 0
    _, scales, _ = smooth(x, weights)
    wide = torch.tensor([1e-3, 5.7e-3, 30.3e-3], dtype=dtype)
    assert_close(scales[-1], 1.5 * wide)
    # the kernels' width, by Silverman's rule in three dimensions
    effective = 1 / weights.square().sum()
    b2 = ((4 / (5 * effective)) ** (2 / 7)).clamp_max((1 - 0.05 * 1.5**2) / 0.95)
    assert_close(scales[0], b2.sqrt() * wide)


def test_a_narrow_column_far_away_keeps_its_width():
    x = 1e6 + torch.tensor([-1e-3, 0.0, 1e-3])[:, None]
    _, scales, _ = smooth(x, torch.full((3,), 1 / 3))
    assert_close(scales[-1], torch.full((1,), 1.5e-3 * (2 / 3) ** 0.5), rtol=1e-6, atol=0)
