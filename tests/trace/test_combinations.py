"""Combinations that local functions read, against those known by hand and the functions' values."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import huber_loss, softplus

import pyrograph as pg
from pyrograph.trace.forms.cancelled import numbers_that_matter
from pyrograph.trace.forms.combinations import combinations_read

WIDTH = 4
SLOPE = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
EYE = torch.eye(WIDTH, dtype=torch.float64)
NORMAL = dist.Normal(torch.zeros((), dtype=torch.float64), 1.0)


def program_of(function: Callable[[Tensor], Tensor]):
    """Of ``function(x)`` at four numbers."""

    def model():
        x = pyro.sample("x", NORMAL.expand([WIDTH]).to_event(1).mask(False))
        pyro.factor("f", function(x))

    return next(g for g in pg.trace_graph(model).factors if g.name == "f").program


def rows_of(program) -> Tensor:
    """J ``[rows, 4]``."""
    x = torch.zeros(WIDTH, 1, dtype=torch.float64, requires_grad=True)
    every = [torch.zeros(0, WIDTH, dtype=torch.float64)]
    for found in combinations_read(program, [x], set()):
        for number in found.flatten():
            every.append(torch.autograd.grad(number, x, retain_graph=True)[0].t())
    return torch.cat(every)


def same_span(a: Tensor, b: Tensor) -> bool:
    ranks = {int(torch.linalg.matrix_rank(m)) for m in (a, b, torch.cat([a, b]))}
    return len(ranks) == 1


#: Functions, and rows that span what they depend on.
KNOWN = {
    "one score": (lambda x: softplus(x @ SLOPE + 3), SLOPE[None]),
    "a score twice": (lambda x: (x @ SLOPE).sin() * (2 * (x @ SLOPE) - 1).exp(), SLOPE[None]),
    "a difference": (lambda x: (x[0] - x[1]).abs(), (EYE[0] - EYE[1])[None]),
    "a sum of squares of a mean": (lambda x: -((x.mean() - 1) ** 2), torch.ones(1, WIDTH).double()),
    "linear": (lambda x: (3 * x[1] - x[2]) / 7, (3 * EYE[1] - EYE[2])[None]),
    "far threshold": (lambda x: x[0] ** 2 + (x[1] - 1e6).relu(), EYE[:2]),
    "far gate": (lambda x: torch.where(x[3] > 1e8, x[0], 0.0), EYE[[0, 3]]),
    "narrow peak": (lambda x: (x[1] + 3 * (-(((x[0] - 5) / 1e-3) ** 2)).exp()) ** 2, EYE[:2]),
    "product of exponentials": (
        lambda x: -(x[0] ** 2) / (2 * (x[1].exp() * x[2].exp()) ** 2) - (x[1] + x[2]),
        torch.stack([EYE[0], EYE[1] + EYE[2]]),
    ),
    "powers of exponentials": (
        lambda x: ((x[0] - x[1]).exp().sqrt() / x[2].exp().reciprocal() * 4).log() ** 2,
        (0.5 * EYE[0] - 0.5 * EYE[1] + EYE[2])[None],
    ),
    "roots below": (
        lambda x: (x[0].exp() * x[1].exp().rsqrt() / x[2].exp()).log1p(),
        (EYE[0] - 0.5 * EYE[1] - EYE[2])[None],
    ),
    "a number beside an exponential": (
        lambda x: ((x[0].exp() + 1) / x[1].exp()).log1p(),
        EYE[:2],
    ),
    "nothing beside an exponential": (
        lambda x: ((x[0].exp() + 0.0) / x[1].exp()).log1p(),
        (EYE[0] - EYE[1])[None],
    ),
    "an exponential compared": (
        lambda x: torch.where(x[0].exp() > x[1], 2.0, -1.0),
        EYE[:2],
    ),
    "a quotient that is rounded": (
        lambda x: (torch.div(x[0].exp(), x[1].exp(), rounding_mode="floor") * x[2].exp()).log1p(),
        EYE[:3],
    ),
    "normal with scales": (
        lambda x: dist.Normal(x[0], (x[1] + 2 * x[2]).exp()).log_prob(torch.tensor(0.3).double()),
        torch.stack([EYE[0], EYE[1] + 2 * EYE[2]]),
    ),
    "soft maximum": (
        lambda x: x[0] - torch.logsumexp(x, 0),
        EYE[1:] - EYE[0],
    ),
    "soft maximum with a fixed score": (
        lambda x: torch.logsumexp(torch.cat([x[:2], x.new_zeros(1)]), 0),
        EYE[:2],
    ),
    "category": (
        lambda x: dist.Categorical(logits=x[:3]).log_prob(torch.tensor(1)),
        torch.stack([EYE[0] - EYE[1], EYE[2] - EYE[1]]),
    ),
    "log softmax": (lambda x: torch.log_softmax(x[:2], 0)[0], (EYE[0] - EYE[1])[None]),
    "softmax": (lambda x: torch.softmax(5 * x[:2], 0)[0] ** 2, (EYE[0] - EYE[1])[None]),
    "larger": (lambda x: torch.where(x[0] > x[1], 2.0, -1.0), (EYE[0] - EYE[1])[None]),
    "maximum": (lambda x: torch.maximum(x[0], x[1]).sin(), EYE[:2]),
    "above the mean": (lambda x: torch.maximum(x[0], x[1]) - x[0], (EYE[0] - EYE[1])[None]),
    "sum of two exponentials": (
        lambda x: (torch.logaddexp(x[0], 2 * x[1]) - x[0] / 2 - x[1]).sin(),
        (EYE[0] - 2 * EYE[1])[None],
    ),
    "huber": (lambda x: huber_loss(x[2], x[3]), (EYE[2] - EYE[3])[None]),
    "product": (lambda x: x[0] * x[1], EYE[:2]),
    "integer part": (
        lambda x: torch.where((x[0] - x[2]).long() > 3, 1.0, 0.0),
        (EYE[0] - EYE[2])[None],
    ),
    "sorted": (lambda x: x[:3].sort().values[0], EYE[:3]),
    "a zero slope": (lambda x: (0 * x[0] + x[1]).exp(), EYE[[1]]),
    "rounded quotient": (
        lambda x: (torch.div(x[0], 2.0, rounding_mode="floor") - x[1]) ** 2,
        EYE[:2],
    ),
    "quotient without remainder": (lambda x: -((x[0] // 0.1) * 1e-3), EYE[[0]]),
    "one of many": (lambda x: (x[torch.tensor(2)] - 1).cos(), EYE[[2]]),
    "solution by a Cholesky factor": (
        lambda x: softplus(torch.cholesky_solve(x[:, None], EYE + 0.1)[:2].sum()),
        torch.cholesky_solve(EYE, EYE + 0.1)[:2].sum(0)[None],
    ),
    "convolution": (
        lambda x: softplus(torch.nn.functional.conv1d(x[None, None], SLOPE[None, None])).sum(),
        SLOPE[None],
    ),
    "sum without missing": (lambda x: torch.nansum(x * SLOPE).sin(), SLOPE[None]),
    "product of many": (
        lambda x: dist.Normal(0.0, x[:3].exp().prod()).log_prob(x[3]),
        torch.stack([EYE[3], EYE[:3].sum(0)]),
    ),
    "running product": (
        lambda x: dist.Poisson(x[:3].exp().cumprod(0)[2]).log_prob(torch.tensor(3.0).double()),
        EYE[:3].sum(0)[None],
    ),
    "stacked with a number": (
        lambda x: torch.stack([x[0].exp(), x.new_tensor(2.0)]).prod().log().sin(),
        EYE[[0]],
    ),
    "mixed with an exponential": (
        lambda x: torch.stack([x[0].exp(), x[1], x.new_tensor(2.0)]).prod(),
        EYE[:2],
    ),
}


@pytest.mark.filterwarnings("ignore::pyrograph.errors.DenseScopeWarning")
@pytest.mark.parametrize("name", KNOWN)
def test_rows_span_what_the_function_depends_on(name):
    function, expected = KNOWN[name]
    assert same_span(rows_of(program_of(function)), expected)


@pytest.mark.filterwarnings("ignore::pyrograph.errors.DenseScopeWarning")
@pytest.mark.parametrize("name", KNOWN)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.1, 1.0, 30.0, 1e4]))
def test_what_is_not_in_the_rows_does_not_matter(name, seed, scale):
    program = program_of(KNOWN[name][0])
    rows = rows_of(program)
    x = scale * torch.randn(WIDTH, 20, generator=torch.Generator().manual_seed(seed)).double()
    inside = torch.linalg.pinv(rows) @ (rows @ x)
    a, b = program([x]), program([inside])
    finite = a.isfinite() & b.isfinite() & (a.abs() < 1e12)
    torch.testing.assert_close(a[finite], b[finite], rtol=1e-6, atol=1e-6 * (1 + scale))


def test_slopes_that_are_attached_are_differentiable():
    """So that who reduces by them knows that they may change."""
    slope = SLOPE.clone().requires_grad_()

    def model(slope):
        x = pyro.sample("x", NORMAL.expand([WIDTH]).to_event(1).mask(False))
        pyro.factor("f", softplus(x @ slope))

    graph = pg.trace_graph(model, (slope,), differentiable=True)
    program = next(g for g in graph.factors if g.name == "f").program
    x = torch.zeros(WIDTH, 1, dtype=torch.float64, requires_grad=True)
    (row,) = combinations_read(program, [x], set())
    (found,) = torch.autograd.grad(row.sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(found.sum(), slope)
    torch.testing.assert_close(again, torch.ones_like(SLOPE))


@pytest.mark.parametrize(("is_trained", "expected"), [(True, EYE[:3]), (False, EYE[:1])])
def test_what_a_parameter_cancels_for_now_is_read(is_trained, expected):
    def model(w):
        x = pyro.sample("x", NORMAL.expand([WIDTH]).to_event(1).mask(False))
        pyro.factor("f", softplus(x[0] + w[0] * x[1].sin() + w[1] * x[2].sin()))

    w = torch.zeros(2, dtype=torch.float64, requires_grad=is_trained)
    graph = pg.trace_graph(model, (2 * w,), differentiable=is_trained)
    program = next(g for g in graph.factors if g.name == "f").program
    x = torch.zeros(WIDTH, 1, dtype=torch.float64, requires_grad=True)
    matters = numbers_that_matter(program, [x], set())
    found = combinations_read(program, [x], set(), matters)
    rows = [
        torch.autograd.grad(number, x, retain_graph=True)[0].t()
        for part in found
        for number in part.flatten()
    ]
    assert same_span(torch.cat(rows), expected)
