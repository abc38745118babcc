"""Factors that read few numbers and compute many of them. Truth: dense quadrature, one value of
the number that is read after the other."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import pyrograph as pg
from pyrograph.infer.message_passing.densities import checked

from .runs import fit


def covariance(x, length):
    return torch.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 0.1 * torch.eye(len(x))


def process(x, y):
    """A Gaussian process whose length-scale is not known."""
    length = pyro.sample("length", dist.LogNormal(0.0, 1.0))
    mean = torch.zeros(len(x))
    pyro.sample("y", dist.MultivariateNormal(mean, covariance(x, length)), obs=y)


def data(n):
    x = torch.linspace(0, 10, n)
    return x, torch.sin(x) + 0.1 * torch.randn(n)


class Largest(TorchDispatchMode):
    """The numbers of the largest tensor made."""

    found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, torch.Tensor):
                self.found = max(self.found, value.numel())
        return out


@pytest.mark.parametrize("n", [30, 70])
def test_the_length_scale_of_a_gaussian_process(n):
    x, y = data(n)
    posterior = fit(process, (x, y))
    log_length = torch.linspace(-2.0, 3.0, 201)
    normal = dist.MultivariateNormal
    log_weight = dist.Normal(0.0, 1.0).log_prob(log_length) + torch.stack(
        [normal(torch.zeros(n), covariance(x, k.exp())).log_prob(y) for k in log_length]
    )
    peak = log_weight.max()
    weight = (log_weight - peak).exp()
    mass = torch.trapezoid(weight, log_length)
    assert_close(posterior.log_evidence, peak + mass.log(), rtol=0, atol=1e-5)
    found = posterior.marginal("length").base_dist
    mean = torch.trapezoid(weight * log_length, log_length) / mass
    variance = torch.trapezoid(weight * (log_length - mean) ** 2, log_length) / mass
    assert_close(found.mean, mean, rtol=0, atol=1e-5)
    assert_close(found.variance, variance, rtol=1e-4, atol=0)


def test_steps_are_computed_for_few_points_at_once():
    engine = pg.EP(process, progress=False).setup(*data(180))
    (block,) = engine.network.blocks
    with Largest() as seen:
        block.tilted.density(torch.linspace(-1.0, 1.0, 50)[:, None, None, None])
    assert 180**2 <= seen.found <= max(checked.CHUNK, 180**2)


def test_many_short_steps_are_computed_for_as_many_points_as_are_worth_their_calls():
    """The widest step adds 200 numbers up."""

    def recurrence():
        x, a, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "xab")
        for t in range(200):
            x = torch.tanh(b * x + a)
            pyro.sample(f"y{t}", dist.Normal(x, 1.0), obs=torch.tensor(0.3))

    engine = pg.EP(recurrence, progress=False).setup()
    (block,) = engine.network.blocks
    numbers = 3 * block.local.program.num_widest  # of a point
    with Largest() as seen:
        block.tilted.density(torch.randn(10_000, 1, 1, 3))
    points = seen.found / block.local.program.num_widest
    assert checked.CHUNK / numbers < points <= checked.LARGEST / numbers


def test_many_factors_with_wide_steps_keep_their_points():
    """Two narrow peaks each: squares of 25 numbers, seen 400 times."""
    y = torch.randn(25, 1) ** 2 + torch.randn(25, 400)

    def squares():
        with pyro.plate("numbers", 25):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            pyro.factor("f", -0.5 * ((x[..., None] ** 2 - y) ** 2).sum(-1))

    found = fit(squares).marginal("x").variance[:2]
    x = torch.linspace(-5, 5, 10_001)
    log_weight = -0.5 * (x**2)[:, None] - 0.5 * ((x**2)[:, None, None] - y[:2]).square().sum(-1)
    weight = log_weight.softmax(0)
    assert_close(found, (weight * x[:, None] ** 2).sum(0), rtol=1e-6, atol=0)
