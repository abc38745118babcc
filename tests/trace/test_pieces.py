"""Kinks of local functions, against those known by hand and against the functions themselves."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import pyrograph as pg
from pyrograph.trace.forms.pieces import MAX_KINKS, Pieces, find_pieces

SLOPE = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def pieces_of(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float64
) -> tuple[Pieces | None, Callable[[Tensor], Tensor]]:
    """Of ``function(x)`` at three nodes, and the compiled function itself."""

    def model():
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Normal(torch.zeros((), dtype=dtype), 1.0).mask(False))
            pyro.factor("f", function(x))

    group = next(g for g in pg.trace_graph(model).factors if g.name == "f")
    found = find_pieces(group.program, lambda u: [u.t()], torch.zeros((), dtype=dtype), 3)
    return found, lambda u: group.program([u.t()]).t()


def points(dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([0.1, 1.0, 10.0, 1000.0], dtype=torch.float64).repeat(100).view(-1, 1)
    return (scale * torch.randn(400, 3, generator=generator, dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize(
    "function, kinks",
    [
        (lambda x: -x.abs().clamp(max=2.0) / 3, [-2.0, 0.0, 2.0]),
        (lambda x: -torch.clamp((x - 1) ** 2, max=4.0), [-1.0, 3.0]),
        (lambda x: torch.relu(1 - x), [1.0]),
        (lambda x: torch.maximum(x, 2 * x + 1), [-1.0]),
        (lambda x: torch.minimum(x.square(), x + 2), [-1.0, 2.0]),
        (lambda x: x.abs() * 3 - x.square() + x.clamp(0.0, 5.0), [0.0, 5.0]),
        (lambda x: (x.abs() - 1).abs(), [-1.0, 0.0, 1.0]),
        (lambda x: (x - 1e6).abs(), [1e6]),
        (lambda x: (1e-6 * x - 3e-12).abs(), [3e-6]),
    ],
)
def test_kinks_are_where_arguments_cross(function: Callable, kinks: list[float]):
    found, itself = pieces_of(function)
    expected = torch.tensor(kinks, dtype=torch.float64).unsqueeze(1).expand(-1, 3)
    torch.testing.assert_close(found.kinks, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found(points()), itself(points()), rtol=1e-9, atol=1e-9)


def test_factors_of_one_statement_have_kinks_of_their_own():
    bound = torch.tensor([1.0, -1.0, 3.0], dtype=torch.float64)
    found, itself = pieces_of(lambda x: torch.minimum(SLOPE * x.square(), bound))
    # x^2 = 1; -2 x^2 = -1; x^2 / 2 = 3
    reach = torch.tensor([1.0, 0.5**0.5, 6**0.5], dtype=torch.float64)
    torch.testing.assert_close(found.kinks, torch.stack([-reach, reach]))
    torch.testing.assert_close(found(points()), itself(points()))


def test_a_factor_may_have_fewer_kinks_than_its_likes():
    bound = torch.tensor([1.0, -1.0, 3.0], dtype=torch.float64)
    found, itself = pieces_of(lambda x: torch.minimum(x.square(), bound))  # never above -1
    assert found.kinks.isfinite().all()
    torch.testing.assert_close(found(points()), itself(points()))


def test_single_precision_keeps_kinks_far_from_the_origin():
    found, _ = pieces_of(lambda x: -(x - 500.3).abs().clamp(max=0.2) / 0.03, torch.float32)
    kinks = torch.tensor([500.1, 500.3, 500.5], dtype=torch.float32)
    torch.testing.assert_close(found.kinks, kinks[:, None].expand(-1, 3), rtol=3e-7, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: -(x**2),  # a polynomial everywhere
        lambda x: -(x.abs() ** 3),  # of a higher degree
        lambda x: x.exp().clamp(max=2.0),
        lambda x: torch.where(x > 0, x, -x),  # need not be continuous
        lambda x: (x.abs() + 1).log(),
        lambda x: sum((x - k).abs() for k in range(MAX_KINKS + 1)),
    ],
)
def test_other_functions_are_left_to_quadrature(function: Callable):
    assert pieces_of(function)[0] is None


def summed(x: Tensor) -> Tensor:
    y = (0.4 * SLOPE * x + x) / 3 + x
    return (x - 0.6 * y + 2.05).abs().abs()


def larger(x: Tensor) -> Tensor:
    y = torch.maximum(x - 0.6 * SLOPE * x, 0.7 * x - 1.93)
    return torch.relu(x - 3 * y + 1.39).abs()


@pytest.mark.parametrize("function", [summed, larger])
def test_what_is_left_of_terms_that_cancel_puts_no_kink_far_off(function: Callable):
    found, itself = pieces_of(function)
    assert float(found.kinks.abs().max()) < 100
    u = points() / 100
    torch.testing.assert_close(found(u), itself(u), rtol=1e-11, atol=1e-11)


def test_slopes_that_are_small_and_cancel_nothing_keep_their_kinks():
    found, _ = pieces_of(lambda x: (1e-9 * x - 1).abs() + x.abs())
    expected = torch.tensor([0.0, 1e9], dtype=torch.float64).unsqueeze(1).expand(-1, 3)
    torch.testing.assert_close(found.kinks, expected)


leaf = st.floats(-3, 3).map(lambda c: round(c, 2))


@st.composite
def compositions(draw: st.DrawFn) -> Callable[[Tensor], Tensor]:
    """Piecewise linear functions out of a few operations, squared in the end or not."""
    steps = []
    for _ in range(draw(st.integers(1, 4))):
        c = draw(leaf)
        scale = draw(leaf)
        steps.append(
            draw(
                st.sampled_from(
                    [
                        lambda y, x, c=c: (y - c).abs(),
                        lambda y, x, c=c: y.clamp(max=c),
                        lambda y, x, c=c: torch.relu(y + c),
                        lambda y, x, c=c, s=scale: torch.maximum(y, s * x + c),
                        lambda y, x, c=c, s=scale: torch.minimum(y, s * x - c),
                        lambda y, x, c=c: y.clamp(c, c + 1),
                        lambda y, x, s=scale: s * y + x,
                    ]
                )
            )
        )
    square = draw(st.booleans())

    def function(x: Tensor) -> Tensor:
        y = SLOPE * x
        for step in steps:
            y = step(y, x)
        y = y.abs()
        return torch.clamp(y.square(), max=2.0) if square else y

    return function


@given(compositions())
@settings(max_examples=30, deadline=None)
def test_compositions_are_their_pieces(function: Callable):
    found, itself = pieces_of(function)
    assert found is not None
    u = torch.cat([points(), found.kinks, found.kinks + 1e-3, found.kinks - 1e-3])
    theirs = itself(u)
    tolerance = 1e-7 * (1 + u.square())
    assert ((found(u) - theirs).abs() <= tolerance).all()
