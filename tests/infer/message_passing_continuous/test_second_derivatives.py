"""Hessians of factors where PyTorch's own second derivatives are NaN, in closed form."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors

POINTS = torch.tensor([-900.0, -30.0, -1.0, 0.0, 2.0, 50.0, 1000.0], dtype=torch.float64)


@pytest.mark.parametrize("slope", [1.0, 40.0])
def test_of_logarithms_of_sums_of_exponentials(slope):
    def model():
        with pyro.plate("nodes", len(POINTS)):
            x = pyro.sample("x", dist.Normal(torch.zeros_like(POINTS), 1.0))
            pyro.factor("f", torch.logaddexp(slope * x.sin() + slope * x, 1 - slope * x))

    engine = pg.EP(model, progress=False).setup()
    (block,) = (b for b in engine.network.blocks if isinstance(b, QuadratureFactors))
    precision, gradient = block.local.expanded(POINTS.unsqueeze(1))

    up, first, second = slope * (POINTS.sin() + POINTS), POINTS.cos() + 1, -POINTS.sin()
    share = torch.sigmoid(up - 1 + slope * POINTS)
    steps = slope * first, -slope
    assert_close(gradient[:, 0], share * steps[0] + (1 - share) * steps[1])
    spread = share * (1 - share) * (steps[0] - steps[1]) ** 2
    assert_close(-precision[:, 0, 0], share * slope * second + spread)
