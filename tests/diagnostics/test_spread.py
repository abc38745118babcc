"""The variance ratio against what it estimates."""

import pytest
import torch
from torch.testing import assert_close

from pyrograph.diagnostics import variance_ratio
from pyrograph.errors import OptionError, ShapeMismatch


def test_it_is_the_ratio_for_a_shrunken_gaussian():
    g = torch.Generator().manual_seed(0)
    root = torch.randn(3, 3, generator=g) + 2 * torch.eye(3)
    precision = torch.linalg.inv(root @ root.t())
    z = torch.randn(50, 3, generator=g)
    z = z - z.mean(0)
    z = z @ torch.linalg.inv(torch.linalg.cholesky(z.t() @ z / 50)).t()  # covariance exactly I
    x = 4 + 0.6**0.5 * z @ root.t()
    assert_close(variance_ratio(x, -(x - 4) @ precision), torch.full((3,), 0.6))


def test_it_is_one_on_average_for_draws_of_a_non_gaussian_density():
    x = torch.distributions.Gumbel(0.0, 1.0).sample((4000, 50))
    ratio = variance_ratio(x, (-x).exp() - 1)
    assert abs(float(ratio.mean()) - 1) < 0.01  # standard error 0.003


def test_unlike_shapes_are_refused():
    with pytest.raises(ShapeMismatch, match=r"\(3, 2\) and scores \(3, 3\)"):
        variance_ratio(torch.zeros(3, 2), torch.zeros(3, 3))
    with pytest.raises(ShapeMismatch, match=r"\[n, dim\]"):
        variance_ratio(torch.zeros(3), torch.zeros(3))


@pytest.mark.parametrize("made", [torch.Tensor.numpy, torch.Tensor.long, torch.Tensor.tolist])
def test_what_holds_no_floating_numbers_is_refused(made):
    x = torch.randn(3, 2)
    for name, given in (("x", (made(x), x)), ("score", (x, made(x)))):
        with pytest.raises(OptionError, match=f"^{name} is .*floating numbers"):
            variance_ratio(*given)
