"""MMD against a double loop and a closed form."""

import importlib

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyrograph.diagnostics import mmd
from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.kernels import IMQ, RBF, Linear
from tests.kernels.reference import kernel_function, median_h


@pytest.mark.parametrize("kernel", [RBF(), IMQ(), RBF(0.7)], ids=repr)
@pytest.mark.parametrize("statistic", ["V", "U"])
def test_it_equals_a_double_loop(kernel, statistic):
    x, y = torch.randn(5, 3), torch.randn(7, 3) + 0.5
    h = median_h(y) if kernel.bandwidth == "median" else kernel.bandwidth
    k = kernel_function(kernel, h)

    def mean(a, b, skip):
        pairs = [(i, j) for i in range(len(a)) for j in range(len(b)) if not (skip and i == j)]
        return np.mean([float(k(a[i], b[j])) for i, j in pairs])

    skip = statistic == "U"
    truth = mean(x, x, skip) + mean(y, y, skip) - 2 * mean(x, y, False)
    assert float(mmd(x, y, kernel, statistic)) == pytest.approx(truth, abs=1e-12)


def test_the_fast_rule_looks_at_few_pairs_of_the_reference_alone():
    # on a line, in order: of the 4 n pairs (l, l + s mod n), s = 3, 8, 12, 17 of n = 40, the median
    n, shifts = 40, (3, 8, 12, 17)
    place = np.arange(n) ** 2 / 100
    pairs = [abs(place[k] - place[(k + s) % n]) for s in shifts for k in range(n)]
    x, y = torch.randn(9, 1), torch.tensor(place)[:, None]
    assert_close(mmd(x, y, RBF("fast")), mmd(x, y, RBF(np.median(pairs) ** 2)))


def test_two_gaussians_give_the_closed_form():
    # E exp(-|x - y|^2 / h) for x - y ~ N(m, s^2): (1 + 2 s^2 / h)^(-1/2) exp(-m^2 / (h + 2 s^2))
    h, m = 2.0, 1.0
    x, y = torch.randn(2500, 1), torch.randn(2500, 1) + m

    def k(shift):
        return (1 + 4 / h) ** -0.5 * np.exp(-(shift**2) / (h + 4))

    truth = 2 * k(0.0) - 2 * k(m)
    assert float(mmd(x, y, RBF(h), "U")) == pytest.approx(truth, abs=0.015)


def test_chunks_do_not_change_it(monkeypatch):
    x, y = torch.randn(20, 2), torch.randn(30, 2)
    whole = mmd(x, y)
    # the package's attribute of this name is the function
    module = importlib.import_module("pyrograph.diagnostics.mmd")
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    assert_close(mmd(x, y), whole)


def test_equal_samples_have_none_and_events_are_flattened():
    x = torch.randn(6, 2, 3)
    assert float(mmd(x, x)) == pytest.approx(0.0, abs=1e-12)
    assert_close(mmd(x, x + 1), mmd(x.flatten(1), x.flatten(1) + 1))
    assert_close(mmd(x[:, 0, 0], x[:, 1, 1]), mmd(x[:, 0, :1], x[:, 1, 1:2]))


def test_float32_far_from_the_origin_is_kept():
    x, y = torch.randn(50, 2) + 0.3, torch.randn(60, 2)
    single = mmd((x + 1e3).float(), (y + 1e3).float())
    assert float(single) == pytest.approx(float(mmd(x, y)), abs=1e-4)


@pytest.mark.parametrize("kernel", [RBF() + IMQ(), Linear(), RBF, "rbf"], ids=repr)
def test_kernels_that_are_not_radial_are_refused(kernel):
    with pytest.raises(OptionError, match="not a radial kernel"):
        mmd(torch.randn(3, 2), torch.randn(4, 2), kernel)


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        (torch.ones(3, 2, dtype=torch.int64), "torch.int64; give floating numbers"),
        (torch.tensor([[0.0, torch.nan]]), "NaN or infinite"),
        (torch.tensor([[0.0, torch.inf]]), "NaN or infinite"),
    ],
)
def test_samples_that_are_no_finite_floating_numbers_are_refused_by_name(sample, text):
    good = torch.randn(4, 2)
    with pytest.raises(OptionError, match=f"x holds {text}"):
        mmd(sample, good)
    with pytest.raises(OptionError, match=f"y holds {text}"):
        mmd(good, sample)


def test_misuse_is_refused():
    with pytest.raises(ShapeMismatch, match="same event"):
        mmd(torch.zeros(3, 2), torch.zeros(3, 1))
    with pytest.raises(ShapeMismatch):
        mmd(torch.zeros(0, 2), torch.zeros(3, 2))
    with pytest.raises(OptionError, match="statistic"):
        mmd(torch.zeros(3, 2), torch.zeros(3, 2), statistic="X")
    with pytest.raises(OptionError, match="two particles"):
        mmd(torch.zeros(1, 2), torch.zeros(3, 2), statistic="U")


@pytest.mark.parametrize("sample", [np.zeros((3, 2)), {"x": torch.zeros(3)}, None], ids=repr)
def test_what_is_no_tensor_is_refused_as_a_sample(sample):
    with pytest.raises(OptionError, match=r"^x is a .*give one tensor"):
        mmd(sample, torch.zeros(3, 2))
    with pytest.raises(OptionError, match=r"^y is a .*give one tensor"):
        mmd(torch.zeros(3, 2), sample)


@pytest.mark.parametrize("rule", ["median", "fast"])
@pytest.mark.parametrize("scale", [1e-300, 1e-100, 1e-78, 1e155, 1e300])
def test_relative_bandwidths_know_no_scale(scale, rule):
    x, y = torch.randn(30, 2) + 1, torch.randn(40, 2)
    expected = mmd(x, y, RBF(rule))
    assert expected > 0.1
    assert_close(mmd(scale * x, scale * y, RBF(rule)), expected, rtol=1e-9, atol=0)


def test_equal_points_of_the_reference_are_no_scale():
    same = torch.full((5, 2), 3.0)
    assert mmd(same, same) == 0
