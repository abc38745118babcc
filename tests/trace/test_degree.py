"""Degrees of local functions, whose like steps are merged into one line. Truth: by hand."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.trace.degree import polynomial_degree


def degree(factor, given=()) -> float:
    def model():
        x, y = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "xy")
        pyro.factor("f", factor(x, y))

    groups = pg.trace_graph(model).factors
    (group,) = [group for group in groups if group.arity == 2]
    return polynomial_degree(group.program, given)


@pytest.mark.parametrize(
    ("factor", "degrees"),
    [
        (lambda x, y: dist.Normal(x, y.exp()).log_prob(torch.tensor(1.0)), (math.inf, math.inf, 2)),
        (lambda x, y: -((x - 1) ** 2) / y.exp() ** 2 - y, (math.inf, math.inf, 2)),
        (lambda x, y: x**2 * y**2, (4, 2, 2)),
        (lambda x, y: x * y, (2, 1, 1)),
        (lambda x, y: (x.exp() * y.exp()).log(), (1, 1, 1)),
        # the sum of an exponential and a number has no polynomial for a logarithm
        (
            lambda x, y: torch.stack([(x + y).exp(), torch.tensor(1.0)]).sum().log(),
            (math.inf, math.inf, math.inf),
        ),
    ],
)
def test_degrees_are_those_of_the_rows_that_a_step_is_about(factor, degrees):
    assert degree(factor) == degrees[0]
    for k in range(2):
        assert degree(factor, given=[k]) == degrees[1 + k]
