"""Sums and weights of kernels, and what is refused."""

import pytest
import torch
from torch.testing import assert_close

from pyrograph.errors import OptionError
from pyrograph.kernels import IMQ, RBF, Layout, Linear, Mixed, RandomNeighbors, SteinOperator, Sum


def test_the_sum_of_a_list_is_the_sum_of_its_terms():
    assert repr(sum([RBF(), IMQ(), Linear()])) == repr(RBF() + IMQ() + Linear())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RBF() * IMQ(), "weighted by numbers"),
        (lambda: "half" * RBF(), "weighted by numbers"),
        (lambda: True * RBF(), "weighted by numbers"),
        (lambda: 1 + RBF(), "kernel=1"),
        (lambda: Mixed("blanket", "global", "a"), "weight='a'"),
        (lambda: RandomNeighbors(True), "RandomNeighbors"),
        (lambda: RandomNeighbors(1.0), "RandomNeighbors"),
    ],
)
def test_what_is_no_weight_and_no_number_is_refused(make, text):
    with pytest.raises(OptionError, match=text):
        make()


def test_a_spread_whose_inverse_square_overflows_counts_as_none():
    """Variance 1e-40 in single precision: the slope 1 / variance is infinite."""
    layout = Layout(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0]), torch.zeros(0).long())
    x = 1e-20 * torch.randn(6, 2, dtype=torch.float32)
    score = torch.randn(6, 2, dtype=torch.float32)
    field = SteinOperator(layout, Linear())(x, score)
    # k = 1: all particles feel the mean score
    assert_close(field.direction, score.mean(0).expand(6, 2))
    assert_close(field.discrepancy().float(), score.mean(0).square().sum())


@pytest.mark.parametrize("terms", [(), (RBF(),), (("a", RBF()),), ((True, RBF()),), ((1.0,),)])
def test_a_sum_takes_pairs_of_a_number_and_a_kernel(terms):
    with pytest.raises(OptionError, match=r"Sum\(\(0\.5, RBF\(\)\)\)"):
        Sum(*terms)
