"""Clusters far apart compared with their width, against chained predictive densities.

The predictive densities are those of Student's t, one observation after the other: nothing in them
cancels, wherever the data are.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import special
from torch.testing import assert_close

from pyrograph.distributions import CollapsedMixture, NormalInverseGamma, NormalInverseWishart
from pyrograph.errors import OptionError

KAPPA, A, B, NU = 1e-3, 1.0, 1e-4, 3.5
PSI = np.array([[1e-4, 3e-5], [3e-5, 2e-4]])
KINDS = ("numbers", "vectors", "full")


def component(kind: str, dtype=torch.float64):
    kappa = torch.tensor(KAPPA, dtype=dtype)
    if kind == "full":
        return NormalInverseWishart(kappa, NU, torch.tensor(PSI, dtype=dtype))
    return NormalInverseGamma(kappa, A, B, dim=0 if kind == "numbers" else 2)


def heaps(kind: str, apart: float, width: float = 0.01, dtype=torch.float64):
    """20 observations, of two clusters in turn, so many widths apart."""
    rng = np.random.default_rng(0)
    x = width * (rng.standard_normal((20, 2)) + apart * (np.arange(20) % 2)[:, None])
    x = torch.tensor(x, dtype=dtype)
    return x[:, 0] if kind == "numbers" else x


def log_student(gap: np.ndarray, scale: np.ndarray, freedom: float) -> float:
    """Density of Student's t, ``gap [d]`` from its location."""
    dim, square = len(gap), float(gap @ np.linalg.solve(scale, gap))
    total = math.lgamma((freedom + dim) / 2) - math.lgamma(freedom / 2)
    total -= (dim * math.log(freedom * math.pi) + np.linalg.slogdet(scale)[1]) / 2
    return total - (freedom + dim) / 2 * math.log1p(square / freedom)


def log_marginal(kind: str, x: torch.Tensor) -> float:
    """Of one cluster's observations."""
    rows, total = x.double().numpy(), 0.0
    if kind == "full":
        mean, psi, kappa, nu = np.zeros(2), PSI, KAPPA, NU
        for y in rows:
            total += log_student(y - mean, psi * (kappa + 1) / (kappa * (nu - 1)), nu - 1)
            psi = psi + kappa / (kappa + 1) * np.outer(y - mean, y - mean)
            mean, kappa, nu = (kappa * mean + y) / (kappa + 1), kappa + 1, nu + 1
        return total
    for column in np.atleast_2d(rows.T):
        mean, kappa, a, b = 0.0, KAPPA, A, B
        for y in column:
            scale = np.array([[b * (kappa + 1) / (a * kappa)]])
            total += log_student(np.array([y - mean]), scale, 2 * a)
            b += kappa * (y - mean) ** 2 / (2 * (kappa + 1))
            mean, kappa, a = (kappa * mean + y) / (kappa + 1), kappa + 1, a + 0.5
    return total


def log_density(kind: str, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Of labellings ``[P, n]``; elements labelled -1 are out."""
    rows = [[log_marginal(kind, x[row == c]) for c in row.unique() if c >= 0] for row in z]
    return torch.tensor([math.fsum(row) for row in rows], dtype=torch.float64)


PARTED = torch.arange(20).remainder(2)
LABELS = torch.stack([PARTED, torch.arange(20).remainder(4), torch.arange(20) // 10])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("apart", [1e1, 1e4])
def test_densities_in_double_precision_keep_nine_digits(kind, apart):
    x, truth = heaps(kind, apart), log_density(kind, heaps(kind, apart), LABELS)
    mixed = CollapsedMixture(LABELS, component(kind))
    # a full matrix that holds both clusters is as long as it is narrow, here and in the truth
    rtol = torch.tensor([1e-9, 1e-9, 1e-8 if kind == "full" else 1e-9])
    for found in (mixed.log_prob(x), mixed.incremental(LABELS, x).log_prob()):
        assert bool(((found - truth).abs() <= rtol * truth.abs()).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("apart", [1e1, 1e3, 1e5])
def test_densities_in_single_precision_are_those_of_their_data(kind, apart):
    x = heaps(kind, apart, dtype=torch.float32)
    truth, mixed = log_density(kind, x, LABELS), CollapsedMixture(LABELS, component(kind, x.dtype))
    for found in (mixed.log_prob(x), mixed.incremental(LABELS, x).log_prob()):
        assert found.dtype == torch.float32
        assert_close(found.double(), truth, rtol=3e-6, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_after_many_moves_are_predictive_densities(kind, dtype):
    """Elements are mixed and parted again before."""
    x, rtol = heaps(kind, 1e4, dtype=dtype), 1e-5 if dtype == torch.float32 else 1e-7
    state = CollapsedMixture(LABELS, component(kind, dtype)).incremental(LABELS, x)
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        i = int(torch.randint(20, (), generator=generator))
        state.take_out(i)
        state.put_in(i, torch.randint(3, (3,), generator=generator))
    for i in range(20):
        state.take_out(i)
        state.put_in(i, LABELS[:, i])
    for i in (0, 7, 19):
        state.take_out(i)
        scores, base = state.scores(i).double(), log_density(kind, x, state.labels)
        for c in range(2):
            z = state.labels
            z[:, i] = c
            gained = log_density(kind, x, z) - base
            assert_close(scores[:, c], gained, rtol=rtol, atol=rtol)
        state.put_in(i, LABELS[:, i])


@pytest.mark.parametrize("kind", KINDS)
def test_an_outlier_that_leaves_takes_no_digits_along(kind):
    x = heaps(kind, 0.0)
    x[3] = 1e6
    labels = torch.zeros(2, 20, dtype=torch.long)
    labels[1, 10:] = 1
    state = CollapsedMixture(labels, component(kind)).incremental(labels, x)
    state.take_out(3)
    assert_close(state.log_prob(), log_density(kind, x, state.labels), rtol=1e-9, atol=0)
    state.take_out(5)
    rest = log_density(kind, x, state.labels)
    z = state.labels
    z[:, 5] = 0
    gained = log_density(kind, x, z) - rest
    assert_close(state.scores(5)[:, 0], gained, rtol=1e-8, atol=0)


def test_a_cluster_whose_root_fails_is_counted_again(monkeypatch):
    """As rounding may make it fail, at the first call for the first of its rows."""
    x, calls = heaps("full", 10.0), []
    state = CollapsedMixture(LABELS, component("full")).incremental(LABELS, x)
    cholesky = torch.linalg.cholesky_ex

    def unlucky(matrices):
        factor, failed = cholesky(matrices)
        if not calls:
            factor[0], failed[0] = torch.nan, 1
        calls.append(len(matrices))
        return factor, failed

    monkeypatch.setattr(torch.linalg, "cholesky_ex", unlucky)
    state.take_out(7)
    assert len(calls) == 2  # the second is of the elements that are left
    rest = log_density("full", x, state.labels)
    assert_close(state.log_prob(), rest, rtol=1e-8, atol=0)
    for c in range(2):
        z = state.labels
        z[:, 7] = c
        gained = log_density("full", x, z) - rest
        assert_close(state.scores(7)[:, c], gained, rtol=1e-6, atol=1e-8)


def with_outliers(kind: str) -> torch.Tensor:
    """One cluster and elements 0, 1, 2 that stand further off each, along one axis."""
    x = heaps(kind, 0.0)
    x.view(20, -1)[:3, 0] = torch.tensor([1e1, 3e3, 1e6])
    return x


@pytest.mark.parametrize("kind", KINDS)
def test_outliers_that_leave_in_turn_take_no_digits_along(kind):
    x, labels = with_outliers(kind), torch.zeros(1, 20, dtype=torch.long)
    state = CollapsedMixture(labels, component(kind)).incremental(labels, x)
    for i in (2, 1, 0):
        gains, z = state.gains(torch.tensor([i])), state.labels
        z[:, i] = 1
        if bool(gains[0, 1, 0].isfinite()):
            gained = log_density(kind, x, z) - log_density(kind, x, state.labels)
            assert_close(gains[:, 1, 0], gained, rtol=1e-6, atol=1e-6)
        state.take_out(i)
        assert_close(state.log_prob(), log_density(kind, x, state.labels), rtol=1e-6, atol=0)


@pytest.mark.parametrize("joins", [False, True])
def test_digits_that_went_with_an_outlier_are_missed_when_the_next_one_leaves(joins):
    """Each is as far off as a difference allows: of the second no gain is known, or to many digits.
    What joins in between, in one of two particles, brings none back."""
    x, labels = heaps("full", 0.0), torch.zeros(2, 20, dtype=torch.long)
    x[:2, 0] = torch.tensor([28.0, 2.5e4])
    labels[:, 5] = -1
    state = CollapsedMixture(labels, component("full")).incremental(labels, x)
    state.take_out(1)
    if joins:
        state.scores(5)
        state.put_in(5, torch.tensor([0, 1]))
    gains, z = state.gains(torch.tensor([0]))[:, 1, 0], state.labels
    z[:, 0] = 1
    gained = log_density("full", x, z) - log_density("full", x, state.labels)
    known = gains.isfinite()
    assert_close(gains[known], gained[known], rtol=1e-6, atol=1e-6)
    state.take_out(0)
    assert_close(state.log_prob(), log_density("full", x, state.labels), rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_outliers_that_join_in_turn_leave_scores_what_they_were(kind):
    x, labels = with_outliers(kind), torch.zeros(1, 20, dtype=torch.long)
    labels[:, [0, 1, 2, 5, 9]] = -1
    state = CollapsedMixture(labels, component(kind)).incremental(labels, x)
    for i in (5, 2, 1, 0):
        before = log_density(kind, x, state.labels)
        score = state.scores(i)[:, 0]
        state.put_in(i, torch.zeros(1, dtype=torch.long))
        assert_close(score, log_density(kind, x, state.labels) - before, rtol=1e-6, atol=1e-6)
        z = state.labels
        z[:, 9] = 0
        gained = log_density(kind, x, z) - log_density(kind, x, state.labels)
        assert_close(state.scores(9)[:, 0], gained, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gains_are_known_to_many_digits_or_not_at_all(kind):
    x = heaps(kind, 1e4)
    state = CollapsedMixture(LABELS, component(kind)).incremental(LABELS, x)
    before, gains = log_density(kind, x, LABELS), state.gains(torch.arange(20))
    num_known = 0
    for i in range(20):
        for c in range(2):
            z = LABELS.clone()
            z[:, i] = c
            known = gains[:, c, i].isfinite()
            num_known += int(known.sum())
            gained = log_density(kind, x, z) - before
            assert_close(gains[known, c, i], gained[known], rtol=1e-7, atol=1e-7)
    assert num_known > 20


def test_derivatives_of_data_far_apart_are_those_of_finite_differences():
    x = heaps("vectors", 1e3).requires_grad_()
    for kind in ("vectors", "full"):
        CollapsedMixture(PARTED, component(kind)).log_prob(x).backward()
        step = torch.zeros_like(x)
        step[4, 1] = 1e-6
        with torch.no_grad():
            ends = [log_density(kind, x + s * step, PARTED[None]) for s in (1, -1)]
        slope = float(ends[0] - ends[1]) / 2e-6
        assert float(x.grad[4, 1]) == pytest.approx(slope, rel=1e-4)
        x.grad = None


@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_are_data_like_others(kind):
    x = torch.tensor([[1, 4], [2, 0], [3, 3], [-1, 7], [5, 5]])
    x = x[:, 0] if kind == "numbers" else x
    z = torch.tensor([[0, 0, 1, 1, 0]])
    mixed = CollapsedMixture(z, component(kind))
    truth = log_density(kind, x, z)
    assert_close(mixed.log_prob(x), truth, rtol=1e-10, atol=0)
    assert_close(mixed.incremental(z, x).log_prob(), truth, rtol=1e-10, atol=0)


def test_a_scale_matrix_that_is_not_symmetric_is_refused():
    with pytest.raises(OptionError, match="symmetric"):
        NormalInverseWishart(0.3, 3.0, torch.tensor([[1.0, 0.9], [0.0, 1.0]]))
    rounded = torch.tensor([[1.0, 0.9], [0.9 + 1e-6, 1.0]])
    NormalInverseWishart(0.3, 3.0, rounded)


def by_fractions(x: np.ndarray, loc: float) -> float:
    """log marginal likelihood of one cluster ``[n, 2]``, matrices in exact rational numbers."""
    rows = [[Fraction(float(v)) for v in row] for row in x]
    n, kappa = len(rows), Fraction(KAPPA)
    mean = [sum(column) / n for column in zip(*rows, strict=True)]
    pull = [m - Fraction(loc) for m in mean]

    def entry(i: int, j: int) -> Fraction:
        scatter = sum((row[i] - mean[i]) * (row[j] - mean[j]) for row in rows)
        return Fraction(PSI[i, j]) + scatter + kappa * n / (kappa + n) * pull[i] * pull[j]

    det = entry(0, 0) * entry(1, 1) - entry(0, 1) ** 2
    total = special.multigammaln((NU + n) / 2, 2) - special.multigammaln(NU / 2, 2)
    total += NU / 2 * np.linalg.slogdet(PSI)[1] - (NU + n) / 2 * math.log(det)
    return total + math.log(KAPPA / (KAPPA + n)) - n * math.log(math.pi)


@pytest.mark.parametrize("loc", [1e4, 1e7, 1e9])
def test_covariances_keep_their_digits_where_the_prior_mean_is_far_from_all_data(loc):
    x = heaps("full", apart=5.0)
    prior = NormalInverseWishart(KAPPA, NU, torch.tensor(PSI), torch.full((2,), loc))
    z = torch.stack([torch.arange(20) % 2, torch.zeros(20, dtype=torch.int64)])
    truth = torch.tensor(
        [sum(by_fractions(x[row == c].numpy(), loc) for c in row.unique()) for row in z]
    )
    mixture = CollapsedMixture(z, prior)
    assert_close(mixture.log_prob(x), truth, rtol=1e-12, atol=0)
    state = mixture.incremental(z, x)
    assert_close(state.log_prob(), truth, rtol=1e-12, atol=0)


@pytest.mark.parametrize("loc", [1e4, 1e9])
def test_covariances_are_found_element_by_element_far_from_the_prior_mean(loc):
    x = heaps("full", apart=5.0)
    prior = NormalInverseWishart(KAPPA, NU, torch.tensor(PSI), torch.full((2,), loc))
    z = torch.arange(20).unsqueeze(0) % 2
    state = CollapsedMixture(z[0], prior).incremental(z[:, :0], x)
    for i in range(20):
        state.scores(i)
        state.put_in(i, z[:, i])
    for i in (3, 8, 3):
        state.take_out(i)
        state.put_in(i, z[:, i])
    state.refresh()
    truth = sum(by_fractions(x[z[0] == c].numpy(), loc) for c in (0, 1))
    assert float(state.log_prob()) == pytest.approx(truth, rel=1e-12)
