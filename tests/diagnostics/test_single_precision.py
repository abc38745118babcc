"""Discrepancies in single precision, of data of any scale: they do not depend on it."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.diagnostics import graphical_ksd, mmd

SINGLE = torch.float32
SCALES = [1e-18, 1e-12, 1e-10, 1.0, 1e10, 1e16]


def pair(scale):
    """Two exchangeable nodes about a third, of this scale."""
    one = torch.tensor(scale, dtype=SINGLE)
    a = pyro.sample("a", dist.Normal(0 * one, one))
    with pyro.plate("n", 2):
        pyro.sample("b", dist.Normal(a, one))


def unit_normals():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(300, 3, generator=generator, dtype=SINGLE) for _ in range(2))
    return x, y + 0.5


@pytest.mark.parametrize("scale", SCALES)
def test_discrepancies_of_samples_do_not_depend_on_the_scale(scale):
    x, y = unit_normals()
    truth = float(mmd(x.double(), y.double()))
    assert float(mmd(x * scale, y * scale)) == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize("scale", SCALES)
def test_stein_discrepancies_go_as_one_over_the_squared_scale(scale):
    x, _ = unit_normals()
    truth = float(graphical_ksd(pg.trace_graph(pair, (1.0,)), x))
    found = float(graphical_ksd(pg.trace_graph(pair, (scale,)), x * scale))
    assert found * scale**2 == pytest.approx(truth, rel=1e-4)


def test_the_v_statistic_of_samples_is_never_below_zero():
    y = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0), dtype=SINGLE)
    assert float(mmd(y.flip(0), y)) >= 0
    for seed in range(5):
        noise = torch.randn(200, 3, generator=torch.Generator().manual_seed(seed), dtype=SINGLE)
        assert float(mmd(y[:200] + 1e-4 * noise, y[:200])) >= 0


@pytest.mark.parametrize("scale", [1e-8, 1e-10, 1e-15])
def test_svgd_is_at_home_in_narrow_densities(scale):
    y = 3 * scale + scale * torch.randn(20, generator=torch.Generator().manual_seed(0))
    y = y.to(SINGLE)

    def model(y):
        b = pyro.sample("b", dist.Normal(torch.zeros((), dtype=SINGLE), 10 * scale))
        with pyro.plate("d", len(y)):
            pyro.sample("y", dist.Normal(b, scale), obs=y)

    options = {"num_particles": 50, "num_steps": 500, "progress": False}
    posterior = pg.fit(model, (y,), infer=pg.GraphicalSVGD, **options).marginal("b")
    precision = 20 + 0.01  # in units of the scale
    mean = float(y.double().sum()) / scale / precision
    assert float(posterior.mean) / scale == pytest.approx(mean, abs=0.02 * precision**-0.5)
    sd = float(posterior.variance.double().sqrt()) / scale
    assert sd == pytest.approx(precision**-0.5, rel=0.05)


def test_programs_in_bfloat16_run():
    def model():
        one = torch.ones(3, dtype=torch.bfloat16)
        with pyro.plate("n", 3):
            pyro.sample("x", dist.Normal(0 * one, one))

    posterior = pg.fit(model, infer=pg.GraphicalSVGD, num_steps=50, progress=False)
    assert posterior.marginal("x").mean.dtype == torch.bfloat16
    assert float(posterior.marginal("x").mean.abs().max()) < 0.2
