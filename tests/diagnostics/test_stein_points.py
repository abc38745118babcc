"""Thinning and weighting by the Stein kernel, against brute force and a general solver."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.testing import assert_close

from pyrograph.diagnostics import stein_thinning, stein_weights
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch


def gram(n, rank, seed):
    root = torch.randn(n, rank, generator=torch.Generator().manual_seed(seed)) + 0.3
    return root @ root.t()


def test_thinning_is_greedy():
    u = gram(7, 9, seed=0)
    chosen = stein_thinning(u, 5).tolist()
    for t in range(5):
        values = []
        for candidate in range(7):
            points = [*chosen[:t], candidate]
            values.append(float(u[points][:, points].sum()))  # (t + 1)^2 D^2
        assert values[chosen[t]] == min(values)


@pytest.mark.parametrize("choose", [stein_weights, lambda u: stein_thinning(u, 1)])
def test_a_list_is_no_matrix(choose):
    with pytest.raises(ShapeMismatch, match="got list"):
        choose([[1.0]])


@pytest.mark.parametrize("seed", range(4))
def test_weights_are_no_worse_than_any_on_a_fine_simplex_grid(seed):
    u = gram(3, 3, seed)
    w = stein_weights(u)
    assert float(w.min()) >= 0
    assert float(w.sum()) == pytest.approx(1)
    grid = torch.tensor([g for g in itertools.product(range(41), repeat=3) if sum(g) == 40]) / 40
    best = float((grid @ u * grid).sum(1).min())
    assert float(w @ u @ w) <= best + 1e-12


@pytest.mark.parametrize("rank", [5, 40])
def test_weights_agree_with_a_general_solver(rank):
    u = gram(20, rank, seed=1)
    w = stein_weights(u)
    found = minimize(
        lambda v: v @ u.numpy() @ v,
        np.full(20, 1 / 20),
        jac=lambda v: 2 * u.numpy() @ v,
        bounds=[(0, 1)] * 20,
        constraints={"type": "eq", "fun": lambda v: v.sum() - 1, "jac": lambda v: np.ones(20)},
        options={"maxiter": 1000, "ftol": 1e-14},
    )
    assert float(w @ u @ w) <= found.fun + 1e-8


def test_weights_keep_dtype_and_scale_does_not_matter():
    u = gram(6, 6, seed=2).float()
    assert stein_weights(u).dtype == torch.float32
    assert_close(stein_weights(1e6 * u), stein_weights(u), rtol=0, atol=1e-4)


def test_wrong_input_is_refused():
    with pytest.raises(ShapeMismatch, match="n, n"):
        stein_weights(torch.ones(2, 3))
    with pytest.raises(ShapeMismatch, match="n, n"):
        stein_thinning(torch.ones(3), 1)
    for number in (0, 2.5, True, "2", None):
        with pytest.raises(OptionError, match="num_points"):
            stein_thinning(torch.eye(3), number)
    assert len(stein_thinning(torch.eye(3), np.int64(2))) == 2
    for find in (stein_weights, lambda u: stein_thinning(u, 2)):
        with pytest.raises(ShapeMismatch, match="n, n"):
            find(torch.zeros(0, 0))
        for value in (torch.nan, torch.inf):
            with pytest.raises(NonFiniteDensity, match="NaN or infinite"):
                find(torch.full((3, 3), value))


def test_where_all_discrepancies_are_zero_weights_are_equal():
    assert_close(stein_weights(torch.zeros(3, 3)), torch.full((3,), 1 / 3))


def test_a_matrix_with_negative_eigenvalues_is_no_stein_kernel():
    with pytest.raises(OptionError, match=r"eigenvalue -1 .*stein_gram"):
        stein_weights(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


@pytest.mark.parametrize(
    "matrix",
    [-torch.eye(3), [[1.0, 0.0], [0.0, -1.0]], [[1.0, 0.5], [0.0, 1.0]]],
    ids=["negative", "one negative", "asymmetric"],
)
def test_asymmetric_and_negative_matrices_are_no_stein_kernels(matrix):
    for find in (stein_weights, lambda u: stein_thinning(u, 2)):
        with pytest.raises(OptionError, match=r"not symmetric, or has negative .*stein_gram"):
            find(torch.as_tensor(matrix))


def test_whole_numbers_are_no_stein_kernel():
    for find in (stein_weights, lambda u: stein_thinning(u, 2)):
        with pytest.raises(OptionError, match=r"int64.*gram\.double"):
            find(torch.eye(3, dtype=torch.int64))


def test_eigenvalues_that_are_rounding_are_none_below_zero():
    """Rank one in single precision, whose other eigenvalues are of either sign."""
    v = torch.linspace(1, 2, 200, dtype=torch.float32)
    weights = stein_weights(v[:, None] * v)
    assert_close(weights, torch.eye(200, dtype=torch.float32)[0], rtol=0, atol=1e-3)
