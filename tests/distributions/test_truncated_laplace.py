"""The truncated Laplace density against scipy's integrals, its samples against its integral."""

import math

import numpy as np
import pyro
import pytest
import torch
from scipy import integrate, stats
from torch.testing import assert_close

from pyrograph.distributions import TruncatedLaplace
from pyrograph.errors import OptionError, ShapeMismatch

CASES = {
    "inside": (0.2, 0.3, 0.5, -1.0, 2.0),
    "cut beyond": (0.2, 0.3, 9.0, -1.0, 2.0),
    "peak left of it": (-2.0, 0.7, 2.5, -1.0, 2.0),
    "all on the floor": (7.0, 0.7, 1.0, -1.0, 2.0),
    "no cut": (0.2, 0.3, math.inf, -1.0, 2.0),
}


def density(x, loc, scale, cut):
    return math.exp(-min(abs(x - loc), cut) / scale)


@pytest.mark.parametrize("case", CASES)
def test_the_density_is_normalised_on_its_interval(case):
    loc, scale, cut, low, high = CASES[case]
    kinks = sorted(p for p in {loc, loc - cut, loc + cut} if low < p < high)
    mass, _ = integrate.quad(
        density, low, high, args=(loc, scale, cut), points=kinks or None, epsabs=1e-13
    )
    fn = TruncatedLaplace(*CASES[case])
    x = torch.linspace(low, high, 13)
    truth = torch.tensor([density(float(v), loc, scale, cut) / mass for v in x])
    assert_close(fn.log_prob(x), truth.log(), rtol=0, atol=1e-10)
    assert (fn.log_prob(torch.tensor([low - 0.1, high + 0.1])) == -math.inf).all()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_samples_follow_the_density(case, seed):
    pyro.set_rng_seed(seed)
    low, high = CASES[case][3:]
    fn = TruncatedLaplace(*CASES[case])
    x = fn.sample((20_000,))
    assert fn.support.check(x).all()
    grid = torch.linspace(low, high, 20_001)
    cdf = integrate.cumulative_simpson(fn.log_prob(grid).exp(), x=grid, initial=0)
    assert abs(cdf[-1] - 1) < 1e-4
    assert stats.kstest(x.numpy(), lambda v: np.interp(v, grid, cdf)).pvalue > 1e-3


def test_without_an_interval_it_is_a_potential_with_peak_one():
    fn = TruncatedLaplace(0.0, 0.03, 0.2)
    x = torch.tensor([0.0, 0.03, -0.2, 5.0])
    assert_close(fn.log_prob(x), torch.tensor([0.0, -1.0, -0.2 / 0.03, -0.2 / 0.03]))
    with pytest.raises(OptionError, match="give the interval"):
        fn.sample()


def test_far_tails_do_not_underflow():
    fn = TruncatedLaplace(0.0, 0.01, math.inf, 50.0, 51.0)
    expected = -50.25 / 0.01 - (math.log(0.01) - 50.0 / 0.01)
    assert_close(fn.log_prob(torch.tensor(50.25)), torch.tensor(expected), rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_finite_differences(case):
    inputs = tuple(torch.tensor(v, requires_grad=v != math.inf) for v in CASES[case])
    x = torch.tensor([-0.7, 0.33, 1.9], requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *p: TruncatedLaplace(*p).log_prob(x), (x, *inputs))


def test_batches_equal_their_elements():
    scale = torch.tensor([0.1, 0.5, 2.0])
    fn = TruncatedLaplace(0.0, scale, 0.4, -1.0, 1.0)
    assert fn.batch_shape == (3,)
    x = torch.rand(4, 1) - 0.5
    one_by_one = [TruncatedLaplace(0.0, float(s), 0.4, -1.0, 1.0).log_prob(x[:, 0]) for s in scale]
    assert_close(fn.log_prob(x), torch.stack(one_by_one, dim=1))
    wide = fn.expand((2, 3))
    assert wide.sample((5,)).shape == (5, 2, 3)
    assert_close(wide.log_prob(x[:2]), fn.log_prob(x[:2]))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0.0, 0.0, 1.0), "scale"),
        ((0.0, 1.0, 0.0), "cut"),
        ((0.0, 1.0, 1.0, 0.0), "both low and high"),
        ((0.0, 1.0, 1.0, 2.0, 1.0), "below high"),
        ((math.nan, 1.0, 1.0), "loc must be finite"),
        ((math.inf, 1.0, 1.0, 0.0, 1.0), "loc must be finite"),
        ((0.0, 1.0, math.nan), "cut must be above 0"),
        ((0.0, 1.0, 1.0, -math.inf, math.inf), "low must be finite"),
        ((0.0, 1.0, math.inf, 0.0, math.inf), "high must be finite"),
        ((0.0, 1.0, 1.0, torch.tensor([-1.0, -math.inf]), 1.0), "low must be finite"),
        ((0.0, 1.0, 1.0, math.nan, 1.0), "below high"),
        (("a", 1.0, 1.0), "the parameters are str, float, float"),
        ((0.0, None, 1.0), "the parameters are float, NoneType, float"),
    ],
)
def test_bad_arguments_are_named(arguments, text):
    with pytest.raises(OptionError, match=text):
        TruncatedLaplace(*arguments)


def test_shapes_that_do_not_broadcast_are_said():
    with pytest.raises(ShapeMismatch, match=r"loc \(2,\), scale \(3,\), cut \(\)"):
        TruncatedLaplace(torch.zeros(2), torch.ones(3), 1.0)


@pytest.mark.parametrize("ends", [(), (-1.0, 2.0)], ids=["line", "interval"])
def test_the_density_of_nan_is_nan(ends):
    fn = TruncatedLaplace(0.0, 1.0, 1.0, *ends, validate_args=False)
    found = fn.log_prob(torch.tensor([math.nan, 0.5, 3.0]))
    assert found.isnan().tolist() == [True, False, False]
    assert found[2] == (-math.inf if ends else -1.0)
