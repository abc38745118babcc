"""Sums of polynomials times exponentials read off programs, against their terms by hand and against
densities of scipy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import pyrograph as pg
from pyrograph.beliefs.expected_exponentials import expected_exponentials
from pyrograph.trace.forms.exponentials import Exponentials, find_exponentials

F64 = torch.float64
Y = torch.tensor([0.5, -2.0, 3.0], dtype=F64)


def exponentials_of(function: Callable[..., Tensor], origin: float = 0.0) -> Exponentials | None:
    """Of ``function(x, s)`` at three nodes u = (x, s)."""

    def model():
        with pyro.plate("nodes", 3):
            prior = dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1)
            u = pyro.sample("u", prior.mask(False))
            pyro.factor("f", function(u[..., 0], u[..., 1]))

    group = next(g for g in pg.trace_graph(model).factors if g.name == "f")
    at = torch.full((3, 2), origin, dtype=F64)
    slope = torch.eye(2, dtype=F64).repeat(3, 1)
    return find_exponentials(group.program, [(at.flatten(), slope)], at)


def values(found: Exponentials, u: Tensor) -> Tensor:
    """At ``[N, E, D]``, by the formula, one after the other."""
    out = torch.zeros(u.shape[:2], dtype=F64)
    for n, e in np.ndindex(*u.shape[:2]):
        t = u[n, e] - found.origin[e]
        for g in range(len(found.rate)):
            polynomial = found.constant[g, e] + found.linear[g, e] @ t + t @ found.square[g, e] @ t
            out[n, e] += torch.exp(found.rate[g, e] @ t) * polynomial
    return out


POINTS = torch.randn(20, 3, 2, generator=torch.Generator().manual_seed(0), dtype=F64)


def written(function: Callable) -> Tensor:
    return function(POINTS[..., 0], POINTS[..., 1]).expand(20, 3)


@pytest.mark.parametrize("origin", [0.0, 2.5])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: dist.Normal(x, s.exp()).log_prob(Y),
        lambda x, s: dist.Normal(x, (0.5 * s).exp().sqrt()).log_prob(Y),
        lambda x, s: dist.Normal(2 * x - 1, (-s).exp().rsqrt()).log_prob(Y),
        lambda x, s: dist.Poisson((x + 0.5 * s).exp(), validate_args=False).log_prob(Y.abs()),
        lambda x, s: dist.Exponential(x.exp() * s.exp()).log_prob(Y.abs()),
        lambda x, s: dist.Gamma(torch.tensor(2.0, dtype=F64), s.exp()).log_prob((x - s).exp()),
        lambda x, s: dist.InverseGamma(torch.tensor(3.0, dtype=F64), 1.0).log_prob(s.exp()) - x * x,
        lambda x, s: dist.HalfNormal(torch.tensor(2.0, dtype=F64)).log_prob(s.exp()) + x * s,
        lambda x, s: dist.LogNormal(x, s.exp()).log_prob(Y.abs()),
        lambda x, s: dist.Normal(x * 3, 1.0).log_prob(Y) * (s + x).exp(),
        lambda x, s: (x - s).exp().reciprocal() + 2**s - 1.5 * (x.exp() ** -1.5),
        lambda x, s: torch.stack([x * s, (x + s).exp(), s * s], -1).sum(-1),
        lambda x, s: torch.stack([x * s, (x + s).exp(), s * s], -1).mean(-1) + s.exp().abs().log(),
        lambda x, s: torch.where(Y > 0, x * x, s.exp()) + 3 - s,
    ],
)
def test_they_are_the_function(function: Callable, origin: float):
    found = exponentials_of(function, origin)
    torch.testing.assert_close(values(found, POINTS), written(function), rtol=1e-10, atol=1e-10)
    assert found.agree_with(lambda u: function(u[..., 0], u[..., 1]).expand(u.shape[:2]))


def test_terms_of_a_normal_density_with_a_log_scale():
    """-(y - x)^2 exp(-2 s) / 2 - s - log(2 pi) / 2: two rates, of five terms."""
    found = exponentials_of(lambda x, s: dist.Normal(x, s.exp()).log_prob(Y))
    at = {tuple(rate.tolist()): g for g, rate in enumerate(found.rate[:, 0])}
    steep, flat = at[0.0, -2.0], at[0.0, 0.0]
    zero = torch.zeros(3, dtype=F64)
    torch.testing.assert_close(found.constant[steep], -0.5 * Y.square())
    torch.testing.assert_close(found.linear[steep], torch.stack([Y, zero], 1))
    torch.testing.assert_close(found.square[steep, :, 0, 0], zero - 0.5)
    assert not found.square[steep, :, 1].any() and not found.square[flat].any()
    torch.testing.assert_close(found.linear[flat], torch.stack([zero, zero - 1], 1))
    torch.testing.assert_close(found.constant[flat], zero - 0.5 * np.log(2 * np.pi))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: dist.StudentT(4.0, x, s.exp()).log_prob(Y),
        lambda x, s: dist.Normal(x, s.exp() + 1).log_prob(Y),  # a logarithm of a sum
        lambda x, s: dist.Bernoulli(logits=x + s).log_prob((Y > 0).double()),
        lambda x, s: dist.Cauchy(x, s.exp()).log_prob(Y),
        lambda x, s: (x * x).exp() + s,
        lambda x, s: x * x * x + s,
        lambda x, s: (x * s - Y).square(),
        lambda x, s: s.exp().exp() + x,
        lambda x, s: torch.logsumexp(torch.stack([x, s], -1), -1),
        lambda x, s: x.abs() + s.exp(),
        lambda x, s: torch.where(x > 0, s, s.exp()),
        lambda x, s: torch.div(s.exp(), 2, rounding_mode="floor") + x,
        lambda x, s: (s.exp() > 0.5).to(F64) * x,
        lambda x, s: s.exp().clamp(min=1e-3).log() + x,
    ],
)
def test_other_functions_are_none(function: Callable):
    assert exponentials_of(function) is None


def test_many_terms_are_none():
    shares = torch.linspace(0.01, 1, 40, dtype=F64)
    assert exponentials_of(lambda x, s: (shares * x.unsqueeze(-1)).exp().sum(-1) + s) is None


def test_another_function_does_not_agree():
    found = exponentials_of(lambda x, s: dist.Normal(x, s.exp()).log_prob(Y))
    assert not found.agree_with(lambda u: stats_normal(u, Y + 1e-9))
    assert found.agree_with(lambda u: stats_normal(u, Y))
    assert not found.agree_with(lambda u: torch.full(u.shape[:2], torch.nan, dtype=F64))


@pytest.mark.parametrize("covariate", [30.0, 300.0, 2000.0])
def test_a_rate_of_large_covariates_agrees(covariate: float):
    """Over a few units of x the rate exp(s + 300 x) is infinite."""

    def density(x: Tensor, s: Tensor) -> Tensor:
        return dist.Poisson((s + covariate * x).exp(), validate_args=False).log_prob(Y.abs())

    found = exponentials_of(density)
    assert found.agree_with(lambda u: density(u[..., 0], u[..., 1]))
    assert not found.agree_with(lambda u: density(u[..., 0], u[..., 1]) + 1e-8)


def stats_normal(u: Tensor, y: Tensor) -> Tensor:
    return torch.from_numpy(stats.norm(u[..., 0], u[..., 1].exp()).logpdf(y))


def test_functions_side_by_side_and_apart():
    """Those of fewer rates are filled up with nothing."""
    some = exponentials_of(lambda x, s: (x - s).square())
    others = exponentials_of(lambda x, s: x.exp() + 2 * s.exp() + (x + s).exp() * Y)
    both = Exponentials.joined([some, others])
    u = torch.cat([POINTS, POINTS], 1)
    expected = torch.cat([values(some, POINTS), values(others, POINTS)], 1)
    torch.testing.assert_close(values(both, u), expected)
    which = torch.tensor([1, 5])
    torch.testing.assert_close(values(both.part(which), u[:, which]), expected[:, which])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3]))
def test_expectations_are_those_of_dense_quadrature(seed: int, dim: int):
    draw = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw, dtype=F64)

    square = normal(2, 1, dim, dim)
    functions = Exponentials(
        normal(1, dim), normal(2, 1, dim), normal(2, 1), normal(2, 1, dim), square + square.mT
    )
    root = 0.5 * normal(1, dim, dim).tril()
    mean, covariance = normal(1, dim), root @ root.mT
    z, weight = np.polynomial.hermite_e.hermegauss(40)
    z = torch.tensor(np.stack(np.meshgrid(*[z] * dim, indexing="ij"), -1).reshape(-1, dim))
    weight = torch.tensor(np.prod(np.meshgrid(*[weight / weight.sum()] * dim), 0).reshape(-1))
    u = (mean + z @ root[0].mT).unsqueeze(1).requires_grad_()
    t = (u - functions.origin).unsqueeze(1)
    inner = functions.constant + (
        (functions.linear + (functions.square @ t[..., None])[..., 0]) * t
    ).sum(-1)
    f = ((functions.rate * t).sum(-1).exp() * inner).sum(1)  # [N, 1]
    (slope,) = torch.autograd.grad(f.sum(), u, create_graph=True)
    bend = torch.stack(
        [torch.autograd.grad(own.sum(), u, retain_graph=True)[0] for own in slope.unbind(-1)], -1
    )
    truth = [torch.einsum("n,n...->...", weight, x.detach()) for x in (f, slope, bend)]
    found = expected_exponentials(functions, mean, covariance)
    for own, true in zip(found, truth, strict=True):
        torch.testing.assert_close(own, true, rtol=1e-8, atol=1e-8)
