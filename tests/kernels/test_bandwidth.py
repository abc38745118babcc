"""The bandwidth rules against numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.testing import assert_close

from pyrograph.errors import OptionError
from pyrograph.kernels import IMQ, RBF
from pyrograph.kernels.bandwidth import bandwidth, median_of_pairs

from .reference import median_h


def columns(x):
    """Particles ``[..., n, d]`` as a kernel sees them: ``[B, d, n]``, centred."""
    x = x if x.dim() == 3 else x[None]
    return (x - x.mean(1, keepdim=True)).transpose(1, 2)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 20, 21])  # odd and even numbers of pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_median_is_numpys_of_distances_then_squared(n, dtype):
    x = torch.randn(7, n, 3, dtype=dtype)
    expected = torch.tensor([median_h(z) for z in x], dtype=dtype)
    assert_close(bandwidth("median", columns(x)), expected)
    assert_close(torch.stack([median_of_pairs(z) for z in x]), expected)


def test_the_even_case_averages_distances_and_not_their_squares():
    x = torch.tensor([[0.0], [1.0], [3.0], [10.0]])  # distances 1 2 3 7 9 10
    assert_close(bandwidth("median", columns(x)), torch.tensor([25.0]))  # 5^2, not 29


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(2, 9), st.integers(1, 3)),
        elements=st.integers(-3, 3).map(float),
    )
)
def test_ties_are_handled_as_by_numpy(points):
    x = torch.from_numpy(points)
    h, truth = float(bandwidth("median", columns(x))), median_h(x)
    assert h > 0
    if truth > 0:
        assert h == pytest.approx(truth, rel=1e-6)  # coincident points: sqrt(rounding)


def test_coincident_particles_and_single_ones_have_a_positive_bandwidth():
    assert float(bandwidth("median", torch.zeros(1, 2, 4))) > 0
    assert float(bandwidth("median", torch.zeros(1, 1, 1))) == 1
    assert float(median_of_pairs(torch.zeros(1, 2))) == 1


def test_a_median_that_is_rounding_beside_one_particle_far_away_is_none():
    """Squared distances are known to the precision times that of the one; of a median further
    above it is the bandwidth."""
    x = torch.arange(10.0, dtype=torch.float64)[:, None]
    for spacing in (1e-9, 1e-5):
        z = spacing * x
        z[9] = 1.0
        h = float(bandwidth("median", columns(z)))
        assert h > 1e3 * torch.finfo(torch.float64).eps
        if spacing == 1e-5:
            assert h == pytest.approx(median_h(z), rel=1e-5)


@pytest.mark.parametrize("n", [2, 5, 9])
def test_fast_is_exact_for_few_particles(n):
    x = torch.randn(3, n, 2)
    assert_close(bandwidth("fast", columns(x)), bandwidth("median", columns(x)))


@pytest.mark.parametrize(("n", "sd"), [(20, 0.06), (50, 0.045), (200, 0.024)])
def test_fast_is_as_accurate_as_documented(n, sd):
    x = torch.randn(500, n, 5)
    ratio = bandwidth("fast", columns(x)) / bandwidth("median", columns(x))
    assert abs(float(ratio.mean()) - 1) < 0.02
    assert float(ratio.std()) < 1.3 * sd


def test_a_number_is_h_itself():
    assert_close(bandwidth(2.5, torch.rand(3, 2, 4)), torch.full((3,), 2.5))


def test_the_rule_is_constant_under_differentiation():
    x = torch.randn(5, 2, requires_grad=True)
    assert not bandwidth("median", columns(x)).requires_grad
    assert not median_of_pairs(x).requires_grad


@pytest.mark.parametrize("rule", ["mean", 0, -1.0, float("inf"), float("nan"), None])
@pytest.mark.parametrize("kernel", [RBF, IMQ])
def test_other_rules_are_refused(kernel, rule):
    with pytest.raises(OptionError, match="bandwidth="):
        kernel(bandwidth=rule)


@pytest.mark.parametrize("exponent", [0.0, -1.0, 0.5, -2.0, float("nan"), "a", None])
def test_imq_exponents_outside_the_open_interval_are_refused(exponent):
    with pytest.raises(OptionError, match="exponent="):
        IMQ(exponent=exponent)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_medians():
    for n in (6, 7, 50):
        x = torch.randn(4, n, 3)
        for rule in ("median", "fast"):
            ours = bandwidth(rule, columns(x).cuda()).cpu()
            assert_close(ours, bandwidth(rule, columns(x)))
