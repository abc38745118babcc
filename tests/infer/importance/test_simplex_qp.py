"""The program on the simplex against closed forms, cvxpy and its optimality conditions."""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from cvxpylayers.torch import CvxpyLayer
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.infer.importance import minimise_on_simplex, simplex_weights
from pyrograph.infer.importance.interior_point import interior_point
from pyrograph.infer.importance.ridge import cholesky_with_ridge
from pyrograph.infer.importance.simplex_qp import Searches


def random_gram(n: int, rank: int, seed: int = 0, shift: float = 0.0) -> torch.Tensor:
    root = torch.randn(n, rank, generator=torch.Generator().manual_seed(seed)) + shift
    return root @ root.t()


def stein_of_normals(n: int) -> torch.Tensor:
    """Langevin-Stein matrix of 1.5 N(0, I_2) against N(0, I_2): 142 eigenvalues above 1e-9 of the
    500, and a least value of 8e-11."""
    x = 1.5 * torch.as_tensor(np.random.default_rng(0).normal(size=(n, 2)))
    square = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    h = float(np.median(square[np.triu_indices(n, 1)]))
    k, apart = torch.exp(-square / h), x.unsqueeze(1) - x
    cross = (-x.unsqueeze(1) * apart).sum(-1) + (x * apart).sum(-1)
    gram = k * (x @ x.t() + 2 / h * cross + 4 / h - 4 / h**2 * square)
    return (gram + gram.t()) / 2 + 1e-10 * torch.eye(n)


def gap_of(gram: torch.Tensor, w: torch.Tensor) -> float:
    g = gram @ w
    return float(w @ g - g.min())


def by_cvxpy(gram: torch.Tensor) -> torch.Tensor:
    values, vectors = np.linalg.eigh(gram.numpy())
    root = np.sqrt(values.clip(0))[:, None] * vectors.T
    w = cp.Variable(len(gram), nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(root @ w)), [cp.sum(w) == 1])
    problem.solve(cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
    return torch.as_tensor(w.value)


@pytest.mark.parametrize(("n", "rank", "shift"), [(40, 60, 0.0), (80, 100, 0.3), (60, 60, 1.0)])
def test_weights_are_those_of_cvxpy(n, rank, shift):
    gram = random_gram(n, rank, shift=shift) / rank
    found = minimise_on_simplex(gram)
    assert_close(found.weights, by_cvxpy(gram), rtol=0, atol=1e-8)
    assert found.ridge == 0


def test_of_a_diagonal_matrix_weights_are_its_inverse():
    d = torch.tensor([1.0, 2.0, 4.0, 1e6])
    found = minimise_on_simplex(torch.diag(d))
    assert_close(found.weights, (1 / d) / (1 / d).sum(), rtol=1e-13, atol=0)
    assert math.isclose(found.objective, 1 / float((1 / d).sum()), rel_tol=1e-13)


def test_of_two_points_the_closed_form():
    a, b, c = 2.0, 1.0, 0.5
    w = (b - c) / (a + b - 2 * c)
    found = minimise_on_simplex(torch.tensor([[a, c], [c, b]]))
    assert_close(found.weights, torch.tensor([w, 1 - w]), rtol=0, atol=1e-14)
    # beyond the better point the other has no weight
    found = minimise_on_simplex(torch.tensor([[a, 1.2], [1.2, b]]))
    assert_close(found.weights, torch.tensor([0.0, 1.0]), rtol=0, atol=0)


def test_the_nearest_point_of_a_polytope_is_found():
    """Corners of a cube around (2, 0, 0): the nearest point to the origin is (1, 0, 0)."""
    corners = torch.cartesian_prod(*(torch.tensor([-1.0, 1.0]),) * 3)
    corners[:, 0] += 2
    found = minimise_on_simplex(corners @ corners.t(), polish=True)
    nearest = found.weights @ corners
    assert_close(nearest, torch.tensor([1.0, 0.0, 0.0]), rtol=0, atol=1e-14)
    assert found.gap <= 1e-14


@pytest.mark.parametrize("polish", [False, True])
@pytest.mark.parametrize(("n", "rank"), [(60, 5), (60, 30), (200, 40)])
def test_an_origin_inside_the_hull_gives_zero(n, rank, polish):
    points = torch.randn(n, rank, generator=torch.Generator().manual_seed(0))
    points = points - points.mean(0)
    found = minimise_on_simplex(points @ points.t(), polish=polish)
    assert abs(found.objective) <= 1e-11
    assert found.gap <= 1e-11


def test_equal_points_share_what_one_of_them_would_get():
    gram = random_gram(30, 40, shift=0.3)
    index = torch.cat([torch.arange(30), torch.arange(10)])
    twice = minimise_on_simplex(gram[index][:, index], polish=True)
    merged = torch.zeros(30).index_add_(0, index, twice.weights)
    assert_close(merged, minimise_on_simplex(gram).weights, rtol=0, atol=1e-10)


def test_a_point_without_discrepancy_takes_all_weight():
    gram = torch.zeros(4, 4)
    gram[1:, 1:] = random_gram(3, 5)
    found = minimise_on_simplex(gram)
    assert_close(found.weights, torch.tensor([1.0, 0, 0, 0]))
    assert found.objective == 0


@pytest.mark.parametrize("rounding", [-1e-17, 1e-17, 0.0])
def test_a_diagonal_that_is_zero_but_for_rounding_takes_all_weight(rounding):
    root = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    root[2] = 0.0
    gram = root @ root.T
    gram[2, 2] = rounding
    found = minimise_on_simplex(gram)
    assert_close(found.weights, torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64))
    assert found.objective <= 1e-17
    gram[2, 2] = -1e-6 * gram.diagonal().max()
    with pytest.raises(OptionError, match="on its diagonal at 2"):
        minimise_on_simplex(gram)


def test_the_gap_of_a_point_without_discrepancy_holds_on_the_given_matrix():
    """Rounding may leave more beside it than on its diagonal; w'Kw is least at the point itself, or
    by hand at w_2 = 1e-4 / 3.0002, where it is -1e-8 / 3.0002."""
    found = minimise_on_simplex(torch.tensor([[0.0, -1e-4], [-1e-4, 3.0]], dtype=torch.float64))
    least = -1e-8 / 3.0002
    assert found.objective - found.gap <= least <= found.objective


@pytest.mark.parametrize("n", [12, 40])
def test_a_hilbert_matrix_is_solved_to_rounding(n):
    i = torch.arange(n, dtype=torch.float64)
    gram = 1 / (i.unsqueeze(1) + i + 1)
    assert minimise_on_simplex(gram, polish=True).gap <= 1e-15


def test_where_exchanges_cycle_and_interior_points_end_the_gap_is_rounding():
    gram = stein_of_normals(300)
    found = minimise_on_simplex(gram)
    assert gap_of(gram, found.weights) <= 1e-12
    polished = minimise_on_simplex(gram, polish=True)
    assert gap_of(gram, polished.weights) <= 1e-14
    assert polished.objective <= found.objective
    assert int((polished.weights > 0).sum()) < 250


def test_descent_alone_reaches_the_optimum():
    """The last resort."""
    for gram in (stein_of_normals(150), random_gram(80, 20), random_gram(60, 60, shift=0.2)):
        problem = Searches(gram)
        equal = problem.point(torch.arange(len(gram)), torch.full((len(gram),), 1 / len(gram)))
        found = problem.descend(0.0, equal)
        assert found.gap <= 1e-14 * float(gram.diagonal().max())


@pytest.mark.parametrize(
    "gram",
    [lambda: random_gram(50, 60, shift=0.2), lambda: random_gram(200, 12, shift=2.0)],
    ids=["full rank", "low rank"],
)
def test_the_interior_point_has_positive_weights_and_goes_to_the_support(gram):
    gram = gram()
    w, inside, _ = interior_point(gram, 1e-10)
    assert float(w.min()) > 0
    assert math.isclose(float(w.sum()), 1, rel_tol=1e-14)
    assert gap_of(gram, w) <= 1e-10
    support = minimise_on_simplex(gram, polish=True).weights > 0
    assert torch.equal(inside, support)


@settings(max_examples=60)
@given(
    n=st.integers(1, 25),
    rank=st.integers(1, 25),
    seed=st.integers(0, 10**6),
    shift=st.floats(0, 2),
    spread=st.floats(0, 4),
    copies=st.booleans(),
)
def test_no_point_has_a_smaller_gradient_than_the_support(n, rank, seed, shift, spread, copies):
    gram = random_gram(n, rank, seed, shift)
    scale = torch.logspace(0, spread, n)
    gram = scale.unsqueeze(1) * gram * scale
    if copies:
        index = torch.randint(n, (n + 3,), generator=torch.Generator().manual_seed(seed))
        gram = gram[index][:, index]
    found = minimise_on_simplex(gram, polish=True)
    assert float(found.weights.min()) >= 0
    assert math.isclose(float(found.weights.sum()), 1, rel_tol=1e-12)
    size = min(float(gram.mean()), float(gram.diagonal().min()))
    assert gap_of(gram, found.weights) <= 1e-12 * size + 1e-15 * float(gram.diagonal().max())


def test_a_warm_start_gives_the_same_weights():
    gram = random_gram(60, 70, shift=0.2)
    cold = minimise_on_simplex(gram)
    for start in (cold.weights, torch.eye(60)[3], torch.ones(60)):
        assert_close(minimise_on_simplex(gram, start=start).weights, cold.weights)


def test_single_precision_is_solved_in_double():
    gram = random_gram(30, 40, shift=0.3).float()
    exact = minimise_on_simplex(gram.double()).weights
    assert_close(minimise_on_simplex(gram).weights, exact, rtol=0, atol=0)
    assert simplex_weights(gram).dtype == torch.float32


@pytest.mark.parametrize(
    ("gram", "error", "text"),
    [
        (torch.zeros(3, 2), ShapeMismatch, "n, n"),
        (torch.zeros(0, 0), ShapeMismatch, "n, n"),
        ([[1.0]], ShapeMismatch, "got list"),
        (torch.full((2, 2), torch.nan), OptionError, "NaN"),
        (torch.diag(torch.tensor([1.0, -1.0])), OptionError, "semi-definite"),
        # eigenvalues 1 - 5 and 1 - 1.1
        (torch.tensor([[1.0, -5.0], [-5.0, 1.0]]), OptionError, "semi-definite"),
        (torch.tensor([[1.0, 1.1], [1.1, 1.0]]), OptionError, "semi-definite"),
        # a zero on the diagonal of a positive semi-definite matrix is one in all its row
        (torch.tensor([[0.0, -1.0], [-1.0, 3.0]]), OptionError, "0 on its diagonal at 0 and -1"),
        (torch.tensor([[0.0, 1.0], [1.0, 0.0]]), OptionError, "semi-definite"),
    ],
)
def test_what_is_no_gram_matrix_is_refused(gram, error, text):
    with pytest.raises(error, match=text):
        minimise_on_simplex(gram)


@pytest.mark.parametrize(
    "entries",
    [
        (0.9233892200093357, -1.513229806418453, 2.4798474981222745),
        (1.5999052978756039, -1.3056815227605316, 1.065565718884702),
    ],
)
def test_points_that_cancel_have_the_weights_of_their_sum(entries):
    """Of points u < 0 < v on a line w'Kw = (w_1 u + w_2 v)^2 is 0 at w_1 = v / (v - u). The last
    pivot of these is a single rounding."""
    a, b, c = entries
    found = minimise_on_simplex(torch.tensor([[a, b], [b, c]])).weights
    truth = torch.tensor([c**0.5, a**0.5]) / (a**0.5 + c**0.5)
    assert_close(found, truth, rtol=0, atol=1e-7)


def test_a_start_of_another_length_is_refused():
    with pytest.raises(ShapeMismatch, match="start"):
        minimise_on_simplex(torch.eye(3), start=torch.ones(2))


# ---------------------------------------------------------------------- derivatives
def away_from_degenerate(n: int, seed: int) -> torch.Tensor:
    gram = random_gram(n, n + 5, seed, shift=0.2)
    found = minimise_on_simplex(gram, polish=True)
    excess = (gram @ found.weights - found.objective)[found.weights == 0]
    assert not len(excess) or float(excess.min()) > 1e-4
    assert float(found.weights[found.weights > 0].min()) > 1e-4
    return gram


@pytest.mark.parametrize("seed", range(3))
def test_derivatives_are_those_of_finite_differences(seed):
    gram = away_from_degenerate(8, seed).requires_grad_()
    assert torch.autograd.gradcheck(simplex_weights, (gram,), eps=1e-7, atol=1e-5)


def test_the_objective_has_the_derivative_of_its_envelope():
    gram = away_from_degenerate(8, 1).requires_grad_()
    w = simplex_weights(gram)
    (w @ gram @ w).backward()
    assert_close(gram.grad, torch.outer(w, w).detach(), rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_derivatives_are_those_of_a_cvxpylayer():
    n = 12
    root = torch.linalg.cholesky(away_from_degenerate(n, 2)).t().requires_grad_()
    direction = torch.randn(n, generator=torch.Generator().manual_seed(3))
    f, w = cp.Parameter((n, n)), cp.Variable(n, nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(f @ w)), [cp.sum(w) == 1])
    layer = CvxpyLayer(problem, parameters=[f], variables=[w])
    (theirs,) = layer(root)
    (expected,) = torch.autograd.grad(theirs @ direction, root)
    ours = simplex_weights(root.t() @ root)
    (found,) = torch.autograd.grad(ours @ direction, root)
    assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("diagonal", [(0.0, 1.0), (0.0, 0.0), (0.0, 2.0, 0.0)])
def test_on_the_face_of_points_without_discrepancy_derivatives_are_zero(diagonal):
    """There w'Kw = 0 is least whatever the other entries are, so that weights do not move."""
    gram = torch.diag(torch.tensor(diagonal)).requires_grad_()
    weights = simplex_weights(gram)
    nothing = torch.tensor(diagonal) == 0
    assert_close(weights.detach(), nothing / nothing.sum(), rtol=0, atol=0)
    weights[0].backward()
    assert_close(gram.grad, torch.zeros_like(gram), rtol=0, atol=0)
    moved = torch.where(gram.detach() > 0, gram.detach() + 0.1, gram.detach())
    assert_close(simplex_weights(moved), weights.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("k", [torch.zeros(2, 2), torch.tensor([[1e-300, 1.0], [1.0, 1.0]])])
def test_what_no_ridge_makes_positive_definite_is_refused(k):
    with pytest.raises(OptionError, match="diagonal at point"):
        cholesky_with_ridge(k)


def test_the_ridge_is_just_what_rounding_needs():
    root = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    k = root @ root.t()
    factor, ridge = cholesky_with_ridge(k)
    assert 0 < ridge <= 1e-13
    assert_close(factor @ factor.t(), k, rtol=0, atol=1e-12)
