"""Potentials of single numbers, whose expectations are closed forms of means and variances, against
the formula written down in double precision, and their derivatives against differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import pyrograph as pg
from pyrograph.infer.qbethe import QBethe
from pyrograph.infer.qbethe.components import Components
from pyrograph.infer.qbethe.potentials import IntegratedPotential, QuadraticPotential

SIGMA = torch.tensor([0.25, 2.0, 0.75])
ENDS = torch.tensor([[0, 1], [1, 2], [3, 0]])


def chosen(offset: float = 0.0) -> Callable:
    """Differences of numbers in any order, and squares of what three numbers add up to."""

    def model():
        with pyro.plate("nodes", 4):
            x = pyro.sample("x", dist.Normal(offset, 1.0).mask(False))
        with pyro.plate("links", 3):
            pyro.sample(
                "d",
                dist.Normal(2 * x[ENDS[:, 0]] - x[ENDS[:, 1]], SIGMA.to(x)),
                obs=torch.tensor(offset + 0.5),
            )
        pyro.factor("sum", -0.2 * (x[0] + x[2] - x[3] - offset).square())

    return model


def mixed_kinds():
    """Numbers of nodes of one and of three."""
    with pyro.plate("nodes", 3):
        x = pyro.sample("x", dist.Normal(0.0, 1.0).mask(False))
    with pyro.plate("wide", 3):
        y = pyro.sample("y", dist.Normal(0.0, 1.0).expand([3]).to_event(1).mask(False))
    with pyro.plate("links", 3):
        pyro.sample(
            "d", dist.Normal(2 * x[ENDS[:, 0] % 3] - y[:, 1], SIGMA.to(x)), obs=torch.tensor(0.5)
        )
        pyro.factor("hinge", -(x - 0.5 * y[:, 2] - 1).abs())
        pyro.factor("hold", -(y**4).sum(-1))


def set_up(model: Callable, components: int = 2, **options) -> QBethe:
    engine = pg.QBethe(model, num_components=components, num_restarts=2, progress=False, **options)
    engine.setup()
    generator = torch.Generator().manual_seed(0)
    for name, value in engine.parameters.items():
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
        with torch.no_grad():
            value.add_(0.3 * noise)
        assert value.requires_grad or name == "weights"
    return engine


def moments(engine: QBethe) -> list[tuple[np.ndarray, np.ndarray]]:
    """Means and standard deviations ``[B, L, V, d]`` of every kind, in double precision."""
    mixture = Components(engine.network.kinds, engine.parameters)
    pairs = zip(mixture.means, mixture.scales, strict=True)
    return [tuple(v.detach().double().numpy() for v in pair) for pair in pairs]


def log_normal(mean: np.ndarray, variance: np.ndarray, sigma: float) -> np.ndarray:
    """E log N(. | 0, sigma^2) of a number with these moments."""
    return -0.5 * (mean**2 + variance) / sigma**2 - math.log(sigma) - 0.5 * math.log(2 * math.pi)


def quadratics(engine: QBethe) -> Tensor:
    found = [p for p in engine.network.potentials if isinstance(p, QuadraticPotential)]
    mixture = Components(engine.network.kinds, engine.parameters)
    total = sum(p.expected(mixture, engine._rules[0]) for p in found).detach()
    assert all((p.expanded is not None) == (p.local.group.arity == 1) for p in found)
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 3e4])
def test_quadratic_potentials_have_their_expectation_also_far_from_zero(
    dtype: torch.dtype, offset: float
):
    torch.set_default_dtype(dtype)  # put back by the fixture of all tests
    engine = set_up(chosen(offset))
    m, s = (v[..., 0] for v in moments(engine)[0])
    observed = float(torch.tensor(offset + 0.5))
    expected = 0.0
    for (i, j), sigma in zip(ENDS.tolist(), SIGMA.double().tolist(), strict=True):
        centre = 2 * m[..., i] - m[..., j] - observed
        expected += log_normal(centre, 4 * s[..., i] ** 2 + s[..., j] ** 2, sigma)
    centre = m[..., 0] + m[..., 2] - m[..., 3] - offset
    expected -= 0.2 * (centre**2 + s[..., 0] ** 2 + s[..., 2] ** 2 + s[..., 3] ** 2)
    rounding = (1e-5 if dtype == torch.float32 else 1e-12) * (20 if offset else 1)
    np.testing.assert_allclose(quadratics(engine), expected, rtol=rounding)


def test_numbers_of_nodes_of_different_sizes():
    torch.set_default_dtype(torch.float64)
    engine = set_up(mixed_kinds)
    (m, s), (wide, scale) = moments(engine)
    i = (ENDS[:, 0] % 3).numpy()
    mean, variance = (
        2 * m[..., i, 0] - wide[..., 1] - 0.5,
        4 * s[..., i, 0] ** 2 + scale[..., 1] ** 2,
    )
    expected = sum(
        log_normal(mean[..., e], variance[..., e], sigma) for e, sigma in enumerate(SIGMA.tolist())
    )
    np.testing.assert_allclose(quadratics(engine), expected, rtol=1e-12)
    # E |u| = sd sqrt(2 / pi) exp(-m^2 / 2 sd^2) + m erf(m / sd sqrt 2)
    mean, sd = m[..., 0] - 0.5 * wide[..., 2] - 1, np.hypot(s[..., 0], 0.5 * scale[..., 2])
    z = torch.from_numpy(mean / sd)
    size = (
        sd * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z**2).numpy()
        + mean * torch.erf(z / 2**0.5).numpy()
    )
    hinge = next(p for p in engine.network.potentials if isinstance(p, IntegratedPotential))
    mixture = Components(engine.network.kinds, engine.parameters)
    value = hinge.expected(mixture, engine._rules[0]).detach()
    np.testing.assert_allclose(value, -size.sum(-1), rtol=1e-12)


@pytest.mark.parametrize("model", [chosen(), mixed_kinds])
def test_derivatives_are_those_of_differences(model: Callable):
    torch.set_default_dtype(torch.float64)
    engine = set_up(model)
    names = [name for name in engine.parameters if name != "weights"]
    kept = {"weights": engine.parameters["weights"].detach()}

    def energy(*values: Tensor) -> Tensor:
        mixture = Components(engine.network.kinds, kept | dict(zip(names, values, strict=True)))
        return sum(p.expected(mixture, engine._rules[0]) for p in engine.network.potentials)

    assert gradcheck(energy, [engine.parameters[name] for name in names])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sigma", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("offset", [0.0, -7e4])
def test_data_far_from_zero_and_of_any_precision(dtype: torch.dtype, sigma: float, offset: float):
    torch.set_default_dtype(dtype)
    data = (offset + sigma * torch.linspace(-2, 3, 5, dtype=torch.float64)).to(dtype)

    def model():
        with pyro.plate("nodes", 5):
            x = pyro.sample("x", dist.Normal(data, sigma).mask(False))
            pyro.sample("y", dist.Normal(x, sigma), obs=data)

    engine = set_up(model)
    m, s = (v[..., 0] for v in moments(engine)[0])
    expected = log_normal(m - data.double().numpy(), s**2, float(torch.tensor(sigma))).sum(-1)
    rounding = 2e-5 if dtype == torch.float32 else 1e-11
    np.testing.assert_allclose(quadratics(engine), expected, rtol=rounding)


def test_lines_are_quadratic_functions_without_a_peak():
    torch.set_default_dtype(torch.float32)
    slopes = torch.tensor([3.0, -2e4, 0.5])

    def model():
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Normal(0.0, 1.0).mask(False))
            pyro.factor("squares", (x + slopes).square() - x.square())  # rounding bends it

    engine = set_up(model)
    m, _ = (v[..., 0] for v in moments(engine)[0])
    a = slopes.double().numpy()
    np.testing.assert_allclose(quadratics(engine), (2 * a * m + a**2).sum(-1), rtol=1e-5)


@pytest.mark.parametrize(
    "loc, sigma", [(2e7, 1e3), (1e8, 1e4), (1.6e9, 1e5), (-1e9, 1e7), (0.0, 1e8), (3e4, 1e-1)]
)
def test_time_stamps_in_single_precision(loc: float, sigma: float):
    torch.set_default_dtype(torch.float32)

    def model():
        x = pyro.sample("x", dist.Normal(loc, sigma))
        pyro.sample("y", dist.Normal(x, sigma), obs=torch.tensor(loc + sigma))

    pyro.set_rng_seed(0)
    options = {"num_components": 1, "num_steps": 300, "progress": False}
    posterior = pg.fit(model, infer=pg.QBethe, **options)
    x = posterior.marginal("x")
    seen = float(torch.tensor(loc + sigma)) - float(torch.tensor(loc))
    expected = log_normal(np.array(seen), np.array(0.0), 2**0.5 * sigma)
    assert (float(x.mean) - loc) / sigma == pytest.approx(seen / sigma / 2, abs=0.02)
    assert float(x.variance) / sigma**2 == pytest.approx(0.5, abs=0.02)
    assert float(posterior.log_evidence) == pytest.approx(float(expected), abs=0.02)
