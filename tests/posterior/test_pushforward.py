"""Images of normal distributions: moments against scipy's integrals."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pyro.distributions import constraints
from scipy.integrate import quad
from scipy.stats import norm
from torch.distributions import Independent, MultivariateNormal, Normal, biject_to
from torch.distributions.transforms import ExpTransform
from torch.testing import assert_close

from pyrograph.errors import UnsupportedSite
from pyrograph.posterior.pushforward import Pushforward, is_real

SUPPORTS = {
    "positive": constraints.positive,
    "unit interval": constraints.unit_interval,
    "interval": constraints.interval(2.0, 5.0),
    "below": constraints.less_than(1.0),
    "above": constraints.greater_than(-2.0),
}


@pytest.mark.parametrize("name", SUPPORTS)
@pytest.mark.parametrize("scale", [0.05, 0.7, 1.8])
def test_moments_equal_the_integrals(name, scale):
    transform = biject_to(SUPPORTS[name])
    loc = torch.tensor([-0.4, 1.1])
    q = Pushforward(Normal(loc, scale), transform)

    def image(z, m):
        return float(transform(torch.tensor(m + scale * z, dtype=torch.float64)))

    for k, m in enumerate(loc.tolist()):
        mean = quad(lambda z, m=m: norm.pdf(z) * image(z, m), -13, 13, limit=200)[0]
        second = quad(
            lambda z, m=m, c=mean: norm.pdf(z) * (image(z, m) - c) ** 2, -13, 13, limit=200
        )[0]
        assert abs(float(q.mean[k]) - mean) < 1e-6 * max(1, abs(mean))
        assert abs(float(q.variance[k]) - second) < 1e-5 * max(1, second)


def test_shapes_follow_batch_and_event():
    base = Independent(Normal(torch.zeros(4, 2, 3), 0.5), 2)
    q = Pushforward(base, biject_to(constraints.positive))
    assert q.batch_shape == (4,) and q.event_shape == (2, 3)
    assert q.mean.shape == q.variance.shape == q.sample().shape == (4, 2, 3)
    assert_close(q.mean, torch.full((4, 2, 3), float(np.exp(0.125))))


def test_correlated_vectors_have_the_moments_of_their_entries():
    covariance = torch.tensor([[0.5, 0.3], [0.3, 0.4]])
    q = Pushforward(
        MultivariateNormal(torch.tensor([0.2, -0.1]), covariance), biject_to(constraints.positive)
    )
    s = covariance.diagonal()
    mean = (torch.tensor([0.2, -0.1]) + s / 2).exp()
    assert_close(q.mean, mean)
    assert_close(q.variance, mean.square() * (s.exp() - 1))


def test_simplex_moments_are_near_those_of_many_draws():
    base = MultivariateNormal(
        torch.tensor([[0.3, -0.5], [0.0, 1.0]]), torch.tensor([[0.6, 0.2], [0.2, 0.9]])
    )
    q = Pushforward(base, biject_to(constraints.simplex))
    draws = q.sample((200000,))
    assert q.mean.shape == (2, 3)
    assert_close(q.mean.sum(-1), torch.ones(2))
    assert_close(q.mean, draws.mean(0), rtol=0, atol=3e-3)
    assert_close(q.variance, draws.var(0), rtol=0.03, atol=0)
    assert torch.equal(q.mean, q.mean)


def test_a_step_like_image_keeps_its_moments():
    q = Pushforward(Normal(torch.tensor(2.0), 12.0), biject_to(constraints.unit_interval))
    truth = quad(lambda z: norm.pdf(z) / (1 + np.exp(-2 - 12 * z)), -9, 9, points=[0], limit=400)
    assert abs(float(q.mean) - truth[0]) < 2e-2


@pytest.mark.parametrize("scale", [3.0, 6.0])
def test_moments_of_wide_log_normals_do_not_overflow_in_single_precision(scale):
    q = Pushforward(Normal(torch.tensor(0.0, dtype=torch.float32), scale), ExpTransform())
    mean, second = math.exp(scale**2 / 2), math.exp(2 * scale**2)
    assert q.mean.dtype == torch.float32
    assert_close(float(q.mean), mean, rtol=1e-6, atol=0)
    assert_close(float(q.variance), second - mean**2, rtol=1e-6, atol=0)


def test_moments_on_a_shifted_half_line_do_not_overflow_in_single_precision():
    base = Normal(torch.tensor(0.0, dtype=torch.float32), 3.0)
    q = Pushforward(base, biject_to(constraints.greater_than(2.0)))
    assert_close(float(q.mean), 2 + math.exp(4.5), rtol=1e-6, atol=0)
    assert_close(float(q.variance), math.exp(18) - math.exp(9), rtol=1e-5, atol=0)


def test_supports_are_told_apart():
    def site(support):
        return SimpleNamespace(name="x", support=support)

    assert is_real(site(constraints.real))
    assert is_real(site(constraints.independent(constraints.real, 2)))
    assert not is_real(site(constraints.positive))
    with pytest.raises(UnsupportedSite, match='"x" depends on other latents'):
        is_real(site(None))


def test_moments_follow_the_base_and_have_derivatives_each():
    loc = torch.tensor([0.3, -0.2], requires_grad=True)
    q = Pushforward(Normal(loc, 0.5), ExpTransform())
    q.mean.sum().backward()
    q.variance.sum().backward()
    mean = (loc.detach() + 0.125).exp()
    assert_close(loc.grad, mean + 2 * mean.square() * (math.exp(0.25) - 1))
    with torch.no_grad():
        loc += 5
    assert_close(q.mean.detach(), mean * math.exp(5))
