"""Where weights are right their discrepancy is rounding, which says nothing of the search."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyrograph.infer.importance import BBIS
from pyrograph.infer.importance.bbis import _beyond_rounding
from pyrograph.infer.importance.simplex_qp import SimplexWeights


@pytest.mark.parametrize("n", [4, 5, 10, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_in_the_programs_own_proportions_have_converged(n, dtype):
    """Their discrepancy is 0 but for rounding, which may be below it."""
    for k in range(1, n):

        def coin(probability):
            pyro.sample("y", dist.Bernoulli(probability))

        y = torch.tensor([1.0] * k + [0.0] * (n - k), dtype=dtype)
        posterior = BBIS(coin, samples={"y": y}, progress=False).run(
            torch.tensor(k / n, dtype=dtype)
        )
        assert posterior.converged, posterior.status
        assert 0 <= float(posterior.history["objective"][-1]) < 1e-12
        assert 0 <= float(posterior.history["equal_weights"][-1]) < 1e-12
        # no more than single precision says of k / n
        assert_close(
            posterior.weights.double(), torch.full((n,), 1 / n).double(), rtol=0, atol=1e-6
        )


def test_a_point_far_off_does_not_hide_a_gap():
    """Of two points that are alike beside one whose diagonal is 1e30."""
    gram = torch.tensor([[1, 0, 0.5], [0, 1, 0.5], [0.5, 0.5, 1e30]], dtype=torch.float64)
    best = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    wrong = torch.tensor([0.9, 0.1, 0.0], dtype=torch.float64)
    assert _beyond_rounding(gram, SimplexWeights(best, 0.5, 1e-16, 0.0)) == 0.0
    assert _beyond_rounding(gram, SimplexWeights(wrong, 0.82, 0.72, 0.0)) == 0.72
