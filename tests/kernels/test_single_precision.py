"""Particles far apart beside the bandwidth, in single precision: truth is numpy in double."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyrograph.diagnostics import mmd
from pyrograph.kernels import IMQ, RBF, Own, SteinOperator
from pyrograph.kernels.bandwidth import bandwidth, median_of_pairs

from .reference import layout_of, median_h

PAIR = layout_of([1] * 2, [(0, 1)])
ON_OWN = 0.5 * RBF() + 0.5 * Own(RBF())


def two_modes(apart: float) -> torch.Tensor:
    """40 particles about 0 and 10 about ``apart``, ``[50, 2]``, exact in single precision."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 2)))
    x[40:] += apart
    return x.float().double()


def with_one_far_away(place: float) -> torch.Tensor:
    return torch.cat([torch.linspace(-2, 2, 49), torch.tensor([place])]).double()[:, None]


@pytest.mark.parametrize("rule", ["median", "fast"])
@pytest.mark.parametrize("place", [1e2, 1e3, 1e4, 1e5])
def test_one_particle_far_away_does_not_move_the_median(rule, place):
    x = with_one_far_away(place)
    centred = (x - x.mean(0)).float().t()[None]
    # the bandwidth of the 49 alone, as the median of pairs and of the pairs looked at is theirs
    expected = median_h(x) if rule == "median" else float(bandwidth(rule, centred.double()))
    assert float(bandwidth(rule, centred)) == pytest.approx(expected, rel=2e-2)
    assert float(median_of_pairs(x.float())) == pytest.approx(median_h(x), rel=2e-2)


def test_a_median_of_modes_far_apart_is_that_within_the_larger_one():
    for apart in (1e2, 1e3, 1e4):
        x = two_modes(apart)
        h = bandwidth("median", (x - x.mean(0)).float().t()[None])
        assert float(h) == pytest.approx(median_h(x), rel=1e-3)


def rbf_reference(x, score, h):
    """Mean of the Stein kernel over pairs and coordinates, and the direction, by differences."""
    apart = x[:, None] - x[None]
    k = np.exp(-(apart**2).sum(-1) / h)[..., None]
    cross = score[:, None] * score[None] * k
    drift = 2 / h * apart * (score[:, None] - score[None]) * k
    mixed = (2 / h - 4 / h**2 * apart**2) * k
    direction = (k * score[:, None] - 2 / h * apart * k).mean(0)
    return (cross + drift + mixed).sum(-1).mean(), direction


@pytest.mark.parametrize("rule", ["median", 1.0])
@pytest.mark.parametrize("apart", [0.0, 3e2, 3e3, 1e4])
def test_modes_far_apart_have_the_direction_and_discrepancy_of_double_precision(rule, apart):
    x = two_modes(apart)
    centre = torch.zeros(50, 1, dtype=torch.float64)
    centre[40:] = apart
    score = centre - x
    h = median_h(x) if rule == "median" else rule
    total, direction = rbf_reference(x.numpy(), score.numpy(), h)
    operator = SteinOperator(PAIR, RBF(rule))
    first = operator(x.float(), score.float())
    for kept in (None, first.bandwidths):
        field = operator(x.float(), score.float(), bandwidths=kept)
        assert field.direction.dtype == torch.float32
        assert float(field.discrepancy()) == pytest.approx(total, rel=2e-3)
        assert_close(field.direction.double(), torch.from_numpy(direction), rtol=0, atol=2e-3)
    gram = operator.gram(x.float(), score.float())
    assert gram.dtype == torch.float32
    assert float(gram.double().mean()) == pytest.approx(total, rel=2e-3)


@pytest.mark.parametrize("kernel", [IMQ(), IMQ(1.0), ON_OWN], ids=repr)
def test_other_kernels_see_modes_far_apart_as_in_double_precision(kernel):
    x = two_modes(1e4)
    score = -x + (x > 5e3) * 1e4
    operator = SteinOperator(PAIR, kernel)
    single, double = operator(x.float(), score.float()), operator(x, score)
    assert_close(single.discrepancy(), double.discrepancy(), rtol=1e-2, atol=0)
    assert_close(single.direction.double(), double.direction, rtol=0, atol=1e-2)
    gram = operator.gram(x.float(), score.float()).double()
    assert_close(gram.mean(), double.discrepancy(), rtol=1e-2, atol=0)


def test_negative_rounding_is_no_distance():
    """In double precision too two points may be closer than what is lost to rounding."""
    x = torch.tensor([[0.0, 0.0], [1e-3, 0.0], [1e8, 1.0]], dtype=torch.float64)
    operator = SteinOperator(PAIR, IMQ(1e-4))
    assert bool(operator(x, -x).direction.isfinite().all())
    assert bool(operator.gram(x, -x).isfinite().all())


@pytest.mark.parametrize("statistic", ["V", "U"])
@pytest.mark.parametrize("apart", [1e3, 1e4])
def test_discrepancies_of_samples_with_modes_far_apart(apart, statistic):
    x, y = two_modes(apart), two_modes(apart).flip(0) + 0.25
    k, h = {}, median_h(y)
    for name, a, b in (("xx", x, x), ("yy", y, y), ("xy", x, y)):
        k[name] = np.exp(-((a.numpy()[:, None] - b.numpy()[None]) ** 2).sum(-1) / h)
    for name in ("xx", "yy"):
        k[name] = k[name].mean() if statistic == "V" else (k[name].sum() - 50) / (50 * 49)
    truth = k["xx"] + k["yy"] - 2 * k["xy"].mean()
    found = mmd(x.float(), y.float(), statistic=statistic)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(truth, abs=2e-4)
