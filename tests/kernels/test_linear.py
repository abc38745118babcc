"""The linear kernel's two ways to one sum: over pairs of particles, or products of columns."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from pyrograph.kernels import Linear, Mixed, SteinOperator

from .reference import double_loop, drawn_scopes, grid_edges, layout_of

GRID = layout_of([1, 2, 1, 1, 2, 1], grid_edges(2, 3))


def points(n, dim, dtype=torch.float64):
    return torch.randn(n, dim, dtype=dtype), torch.randn(n, dim, dtype=dtype)


def by_columns(x, score):
    """Direction and double sum of the kernel on all columns, from score' z ``[dim, dim]``."""
    n, dim = x.shape
    sd = x.std(0, correction=0)
    z = (x - x.mean(0)) / sd
    products, slope = score.t() @ z, 1 / (dim * sd**2)
    total = score.sum(0)
    direction = (total + z @ products.t() / dim) / n + (x - x.mean(0)) * slope
    aligned = (score * (x - x.mean(0))).sum(0) * slope
    parts = total.square() + products.square().sum(1) / dim + 2 * n * aligned + n**2 * slope
    return direction, parts.sum()


@pytest.mark.parametrize("n", [3, 7, 9, 13])  # below, at and above the 8 columns
def test_few_and_many_particles_equal_a_double_loop(n):
    x, score = points(n, GRID.dim)
    operator = SteinOperator(GRID, Linear(), Mixed("blanket", "global"))
    field = operator(x, score)
    truth = double_loop(x, score, Linear(), drawn_scopes(operator))
    assert_close(field.direction, truth.direction, rtol=0, atol=1e-10)
    assert abs(float(field.total) - truth.total) < 1e-10 * n**2
    assert abs(float(field.diagonal) - truth.diagonal) < 1e-10 * n**2


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
@pytest.mark.parametrize("n", [20, 299, 301, 400])
def test_both_ways_give_the_same_numbers(n, dtype, rtol):
    layout = layout_of([1] * 300, [])
    x, score = points(n, 300, dtype)
    field = SteinOperator(layout, Linear(), "global")(x, score)
    direction, total = by_columns(x.double(), score.double())
    assert_close(field.direction.double(), direction, rtol=rtol, atol=rtol)
    assert_close(field.total, total, rtol=rtol, atol=0)


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor made has."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


@pytest.mark.parametrize("n", [5, 50])
def test_a_kernel_on_all_columns_forms_no_matrix_of_them(n):
    layout = layout_of([1] * 2000, [])
    operator = SteinOperator(layout, Linear(), "global")
    x, score = points(n, 2000)
    with Largest() as largest:
        operator(x, score)
    assert largest.numbers <= 2 * n * 2000
