"""Constants of like statements, stacked: one is a plain number, the next one a tensor."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg


def normal(x: float, mean: float, scale: float) -> float:
    return -0.5 * ((x - mean) / scale) ** 2 - math.log(scale) - 0.5 * math.log(2 * math.pi)


@pytest.mark.parametrize("scale", [0.1, 0.3, 1e-3, 2.2])
@pytest.mark.parametrize("mean", [0.1, 1234567.1])
def test_numbers_keep_their_digits_whatever_the_default_dtype(mean, scale):
    """Truth: the Gaussians by hand, in Python's floats."""

    def model():
        location, width = torch.tensor([mean, scale], dtype=torch.float64)
        x = pyro.sample("x", dist.Normal(location, width))
        with pyro.plate("p", 4):
            obs = torch.full((4,), mean, dtype=torch.float64)
            pyro.sample("y", dist.Normal(x, torch.ones(4, dtype=torch.float64)), obs=obs)
        with pyro.plate("q", 2):
            other = torch.tensor([1.0, 2.0], dtype=torch.float64)
            pyro.sample("z", dist.Normal(other, width.expand(2)))

    torch.set_default_dtype(torch.float32)
    graph = pg.trace_graph(model)
    x = mean + 2 * scale
    found = graph.log_prob({"x": double(x), "z": double([1.0, 2.0])})
    truth = normal(x, mean, scale) + 4 * normal(mean, x, 1.0) + 2 * normal(1.0, 1.0, scale)
    assert_close(found, double(truth), rtol=1e-9, atol=1e-5 if mean > 1e3 else 1e-9)


def test_equal_operations_of_unlike_results_are_not_stacked():
    """A number without a dimension follows a vector into single precision, a vector does not."""
    single = torch.tensor([0.1, 0.7], dtype=torch.float32)

    def model():
        a = pyro.sample("a", dist.Normal(double(0.0), 1.0))
        b = pyro.sample("b", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        pyro.factor("f", (a * single).sin().sum() + (b * single).sin().sum())

    a, b = double(1 / 3), double([1 / 7, 1 / 3])
    wide = single.double()
    truth = (a.float() * single).sin().sum().double() + (b * wide).sin().sum()
    truth = truth + sum(normal(float(v), 0.0, 1.0) for v in (a, *b))
    found = pg.trace_graph(model).log_prob({"a": a, "b": b})
    assert_close(found.double(), truth, rtol=0, atol=1e-12)


def double(number: float | list[float]) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)
