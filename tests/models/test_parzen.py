import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad
from torch.testing import assert_close

from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.models import Parzen, parzen, silverman_bandwidth

WIDTH = torch.tensor([0.4, 0.7, 1.1], dtype=torch.float64)


def by_definition(data, columns, x):
    """Mean over all rows of the product of normal densities, one point."""
    kernels = [stats.norm.pdf(x[k], data[:, c], WIDTH[c]) for k, c in enumerate(columns)]
    return float(np.log(np.prod(kernels, 0).mean()))


def data(rows=60):
    return torch.randn(rows, 3) * torch.tensor([1.0, 2.0, 0.5]) + torch.tensor([0.0, 5.0, -1.0])


def test_one_variable_is_the_kernel_density_of_scipy():
    x = data()
    ours = Parzen.fit(x, [[0], [1], [2]], WIDTH)
    at = torch.linspace(-3, 8, 23)
    for c in range(3):
        scipys = stats.gaussian_kde(x[:, c].numpy(), bw_method=float(WIDTH[c] / x[:, c].std()))
        assert_close(
            ours.log_prob(at.unsqueeze(-1).expand(-1, 3))[:, c],
            torch.from_numpy(scipys.logpdf(at.numpy())),
        )


@given(
    rows=st.lists(st.tuples(*[st.integers(-2, 2)] * 3), min_size=2, max_size=30),
    point=st.tuples(*[st.floats(-4, 4)] * 3),
)
def test_merging_equal_rows_leaves_the_density_as_it_is(rows, point):
    x = torch.tensor(rows, dtype=torch.float64)
    groups = [[0, 1], [2, 0], [1, 2]]
    pairs = Parzen.fit(x, groups, WIDTH)
    assert pairs.centres.shape[1] == max(len({(r[a], r[b]) for r in rows}) for a, b in groups)
    at = torch.tensor([[point[c] for c in group] for group in groups], dtype=torch.float64)
    expected = [by_definition(x.numpy(), g, p) for g, p in zip(groups, at.tolist())]
    assert_close(pairs.log_prob(*at.unbind(1)), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("states", "columns"), [(2, 65), (16, 17), (256, 9)])
def test_rows_of_many_columns_stay_distinct(states, columns):
    x = torch.randint(states, (600, columns)).double()
    x[:states] = torch.arange(states).double().unsqueeze(1)  # every column has every state
    twins = x.clone()
    twins[:, 0] = (twins[:, 0] + 1) % states  # other rows by their first column alone
    x = torch.cat([x, twins])
    density = Parzen.fit(x, [list(range(columns))], 1.0)
    assert density.centres.shape[1] == len(set(map(tuple, x.tolist())))
    at = x[:4]
    kernels = -0.5 * (at.unsqueeze(1) - x).square().sum(-1) - columns / 2 * np.log(2 * np.pi)
    expected = kernels.logsumexp(1) - np.log(len(x))
    assert_close(density.log_prob(*at.t().unsqueeze(-1)).squeeze(-1), expected)


def test_integrating_a_variable_out_of_a_pair_leaves_the_other_one():
    x = data()
    pair, single = Parzen.fit(x, [[0, 1]], WIDTH), Parzen.fit(x, [[1]], WIDTH)
    for y in (-1.0, 4.0, 9.0):
        other = torch.tensor([y])
        mass = quad(lambda v, y=other: pair.log_prob(torch.tensor([v]), y).exp().item(), -8, 8)[0]
        assert_close(mass, single.log_prob(other).exp().item())


def test_values_at_many_points_do_not_depend_on_the_chunk(monkeypatch):
    x = data()
    pairs = Parzen.fit(x, [[0, 1], [1, 2]], WIDTH)
    at = [torch.randn(37, 2), torch.randn(37, 2)]
    whole = pairs.log_prob(*at)
    monkeypatch.setattr(parzen, "CHUNK", 500)
    assert_close(pairs.log_prob_of_many(*at), whole)


def test_far_from_the_data_the_logarithm_is_that_of_the_nearest_kernel():
    single = Parzen.fit(torch.tensor([[0.0], [1.0]]), [[0]], torch.tensor([0.1]))
    expected = stats.norm.logpdf(1000.0, 1.0, 0.1) - np.log(2)
    assert_close(single.log_prob(torch.tensor([1000.0])).item(), expected)


def test_centres_without_weight_leave_derivatives_finite_and_right():
    x = torch.randn(12, 3)
    x[:6, :2] = x[0, :2]
    pairs = Parzen.fit(x, [[0, 1], [1, 2]], WIDTH)
    assert bool((pairs.log_weights == -torch.inf).any())
    at = [torch.randn(3, 2, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(pairs.log_prob, at)
    assert torch.autograd.gradgradcheck(pairs.log_prob, at)


def test_the_entropy_is_the_mean_over_the_rows_of_the_data():
    x = data().round()
    pairs = Parzen.fit(x, [[0, 1], [1, 2]], WIDTH)
    for group, entropy in zip([[0, 1], [1, 2]], pairs.entropy()):
        rows = [by_definition(x.numpy(), group, row[group].tolist()) for row in x]
        assert_close(entropy.item(), -float(np.mean(rows)))


def test_the_distribution_has_the_moments_of_data_and_kernel():
    x = data()
    q = Parzen.fit(x, [[0], [1], [2]], WIDTH).distribution()
    assert_close(q.mean, x.mean(0))
    assert_close(q.variance, x.var(0, correction=0) + WIDTH**2)


def test_draws_given_a_coordinate_are_from_the_conditional_density():
    x = data(20)
    pair = Parzen.fit(x, [[0, 1]], WIDTH)
    given_x = 0.3
    drawn = pair.draw(torch.full((4000, 1, 1), given_x)).squeeze(1)
    weight = stats.norm.pdf(given_x, x[:, 0], WIDTH[0])

    def cdf(v):
        below = stats.norm.cdf(np.asarray(v)[..., None], x[:, 1].numpy(), WIDTH[1].item())
        return below @ (weight / weight.sum())

    assert stats.kstest(drawn.numpy(), cdf).pvalue > 0.01


def test_silvermans_width_takes_the_smaller_spread():
    heavy = torch.cat([torch.randn(99), torch.tensor([1e3])])
    x = torch.stack([heavy, torch.rand(100)], 1)
    low, high = np.percentile(x.numpy(), [25, 75], axis=0)
    spread = [(high - low)[0] / 1.34, x[:, 1].std().item()]
    assert spread[0] < x[:, 0].std() and spread[1] < (high - low)[1] / 1.34
    assert_close(silverman_bandwidth(x), 0.9 * torch.tensor(spread) * 100**-0.2)


def test_a_column_of_mostly_one_value_has_a_width():
    x = torch.zeros(100, 1)
    x[:3] = 1.0
    assert_close(silverman_bandwidth(x), 0.9 * x.std(0) * 100**-0.2)


def test_a_constant_column_is_named():
    with pytest.raises(OptionError, match=r"constant columns, here \[1\]"):
        silverman_bandwidth(torch.stack([torch.randn(9), torch.ones(9)], 1))


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (torch.zeros(0, 3), ShapeMismatch, "two rows"),
        (torch.randn(1, 3), ShapeMismatch, "two rows"),
        (torch.arange(5.0), ShapeMismatch, r"\[N, D\]"),
        (torch.arange(6).reshape(3, 2), OptionError, "int64"),
        (torch.tensor([[1.0, 2.0], [math.nan, 3.0]]), OptionError, "row 1"),
        ([[1.0], [2.0]], OptionError, "list"),
    ],
)
def test_data_that_have_no_width_are_refused(data, error, words):
    with pytest.raises(error, match=words):
        silverman_bandwidth(data)


def same_density(found, expected):
    at = torch.linspace(-3, 8, 9).unsqueeze(-1).expand(-1, len(expected.bandwidth))
    assert_close(found.log_prob(at), expected.log_prob(at))


@pytest.mark.parametrize(
    "width",
    [WIDTH.tolist(), tuple(WIDTH.tolist()), WIDTH.numpy(), WIDTH.numpy()[::-1].copy()[::-1]],
    ids=["list", "tuple", "array", "reversed array"],
)
def test_widths_come_as_any_sequence(width):
    x = data()
    same_density(Parzen.fit(x, [[0], [2]], width), Parzen.fit(x, [[0], [2]], WIDTH))
    one = Parzen.fit(x, [[0], [2]], 0.7)
    same_density(one, Parzen.fit(x, [[0], [2]], torch.full((3,), 0.7)))


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a[::-1].copy()[::-1],
        lambda a: np.asfortranarray(a)[:, ::-1].copy()[:, ::-1],
        lambda a: a.astype(">f8"),
        np.ma.masked_array,
    ],
    ids=["reversed rows", "reversed columns", "other bytes", "nothing masked"],
)
def test_arrays_of_any_layout_are_read(change):
    x = data()
    expected = Parzen.fit(x, [[0], [2]], WIDTH)
    same_density(Parzen.fit(change(x.numpy()), [[0], [2]], WIDTH), expected)
    assert_close(silverman_bandwidth(change(x.numpy())), silverman_bandwidth(x))


def test_a_single_row_is_a_kernel():
    one = Parzen.fit(torch.tensor([[0.5, 2.0]]), [[1]], 0.4)
    expected = torch.tensor([stats.norm.logpdf(3.0, 2.0, 0.4)])
    assert_close(one.log_prob(torch.tensor([3.0])), expected)


def test_densities_have_gradients_in_their_data_and_widths():
    x, width = data(8).requires_grad_(), WIDTH.clone().requires_grad_()

    def log_prob(x, width):
        return Parzen.fit(x, [[0, 1], [1, 2]], width).log_prob(torch.zeros(2), torch.ones(2))

    assert torch.autograd.gradcheck(log_prob, (x, width))


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ([[9]], OptionError, r"columns \[9\] are not in the data; theirs are 0 \.\. 2"),
        ([[0, 1], [3, -4]], OptionError, r"columns \[-4, 3\] are not in the data"),
        ([[0], [1, 2]], OptionError, r"must be groups \[B, k\]"),
        ([["a"]], OptionError, r"must be groups \[B, k\]"),
        (None, OptionError, r"must be groups \[B, k\]"),
        ([[0.0]], OptionError, "whole numbers"),
        ([[True, False, True]], OptionError, "whole numbers"),
        ([0, 1], ShapeMismatch, r"\(2,\); expected groups \[B, k\]"),
        ([], ShapeMismatch, r"expected groups \[B, k\]"),
        ([[], []], ShapeMismatch, r"expected groups \[B, k\]"),
    ],
)
def test_columns_that_are_none_of_the_data_are_refused(columns, error, words):
    with pytest.raises(error, match=words):
        Parzen.fit(data(), columns, WIDTH)


@pytest.mark.parametrize(
    ("width", "error", "words"),
    [
        ([1.0, 2.0], ShapeMismatch, r"\(2,\); the data have 3 columns"),
        (torch.ones(4), ShapeMismatch, r"\(4,\); the data have 3 columns"),
        (np.ones((3, 1)), ShapeMismatch, r"\(3, 1\); the data have 3 columns"),
        ([1.0, 0.0, 2.0], OptionError, "finite and above 0"),
        (math.inf, OptionError, "finite and above 0"),
        ("silverman", OptionError, "must be a number, or a tensor or a sequence"),
        ([1.0, None, 2.0], OptionError, "must be a number, or a tensor or a sequence"),
        (np.ma.masked_array([1.0, 2.0, 3.0], [0, 0, 1]), OptionError, "bandwidth is a masked"),
    ],
)
def test_widths_that_are_none_are_refused(width, error, words):
    with pytest.raises(error, match=words):
        Parzen.fit(data(), [[0]], width)


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        (torch.zeros(0, 3), ShapeMismatch, "one row or more"),
        (torch.arange(5.0), ShapeMismatch, r"\[N, D\]"),
        (torch.arange(6).reshape(2, 3), OptionError, "int64"),
        (torch.tensor([[1.0, 2.0, math.nan]]), OptionError, "row 0"),
        (np.ma.masked_invalid([[1.0, 2.0, math.nan]]), OptionError, "1 of whose numbers are mas"),
        ([[1.0, 2.0, 3.0]], OptionError, "list"),
    ],
)
def test_data_that_have_no_density_are_refused(rows, error, words):
    with pytest.raises(error, match=words):
        Parzen.fit(rows, [[0]], WIDTH)


def eighths(rows, columns):
    """Single-precision numbers that stay exact when 2^17 is added to them."""
    return (torch.randn(rows, columns) * 24).round().float() / 8


@pytest.mark.parametrize("shift", [0.0, 2.0**17, -(2.0**17)])
def test_single_precision_keeps_its_digits_far_from_zero(shift):
    x, at, width = eighths(200, 2), eighths(50, 2), torch.tensor([0.3, 0.7])
    exact = Parzen.fit(x.double(), [[0, 1]], width).log_prob(*at.double().unsqueeze(1).unbind(-1))
    far = Parzen.fit(x + shift, [[0, 1]], width)
    found = far.log_prob(*(at + shift).unsqueeze(1).unbind(-1))
    assert found.dtype == torch.float32
    assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    # the first coordinate is a row's own, and a narrow kernel leaves that row alone
    rows = torch.tensor([[0.0, -3.0], [0.125, 3.0]]) + shift
    drawn = Parzen.fit(rows.float(), [[0, 1]], 0.01).draw(rows.float()[:, :1].unsqueeze(1))
    assert_close(drawn[:, 0].double(), rows[:, 1], rtol=0, atol=0.1)
