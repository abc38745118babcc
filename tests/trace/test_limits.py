"""Limits of a dtype that a program names, where its local functions run in a narrower one."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg

DOUBLE, SINGLE = torch.finfo(torch.float64), torch.finfo(torch.float32)

EDGES = {
    "beta": lambda: dist.Beta(2.0, 0.3),
    "uniform": lambda: dist.Uniform(0.0, 2.0),
    "kumaraswamy": lambda: dist.Kumaraswamy(1.0, 0.3),
    "dirichlet": lambda: dist.Dirichlet(torch.full((3,), 0.3)),
    "correlations": lambda: dist.LKJCholesky(3, 0.6),
}


def traced(program, dtype):
    torch.set_default_dtype(dtype)
    return pg.trace_graph(program, unconstrained=True)


def number_of(function):
    """A program of one number and one factor, a function of it in the dtype of the program."""

    def program():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.factor("f", function(x).sum())

    return program


def small(x):
    return (-x.abs()).exp()


def factor(graph, x):
    """The factor "f" at ``[3]`` numbers."""
    group = next(g for g in graph.factors if "f" in g.statements)
    return group.log_prob([x.expand(1, 1, 3)]).sum()


@pytest.mark.parametrize("family", EDGES)
def test_densities_at_the_edge_of_a_support_are_those_of_the_program_in_single_precision(family):
    def program():
        return pyro.sample("x", EDGES[family]())

    wide, native = (traced(program, dtype) for dtype in (torch.float64, torch.float32))
    narrow = wide.to(dtype=torch.float32)
    reach = torch.tensor([-300.0, -90.0, -20.0, -6.0, 0.3, 6.0, 20.0, 90.0, 300.0]).double()
    u = torch.cartesian_prod(*[reach] * wide.dim).reshape(-1, wide.dim)
    found = narrow.log_prob(narrow.unflatten(u.float()))
    assert bool((found < torch.inf).all())  # Kumaraswamy's is 0 below, in any precision
    torch.testing.assert_close(found, native.log_prob(native.unflatten(u.float())))
    inside = (u.abs() < 10).all(1)
    expected = wide.log_prob(wide.unflatten(u[inside]))
    torch.testing.assert_close(found[inside].double(), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, info: x.sigmoid().clamp(info.tiny, 1 - info.eps).logit(),
        lambda x, info: x.tanh().clamp(-1 + info.eps, 1 - info.eps).atanh(),
        lambda x, info: x.abs().sigmoid().clamp(max=1 - info.eps / 2).logit(),
        lambda x, info: small(x).clamp_min(info.tiny).log(),
        lambda x, info: x.abs().sigmoid().clamp_max(1 - info.eps).logit(),
        lambda x, info: torch.nn.functional.hardtanh(x, -1 + info.eps, 1 - info.eps).atanh(),
        lambda x, info: torch.maximum(small(x), torch.full((3,), info.tiny)).log(),
        lambda x, info: torch.fmin(x.abs().sigmoid(), torch.tensor(1 - info.eps)).logit(),
        lambda x, info: x.abs().sigmoid().clamp(max=torch.full((3,), 1 - info.eps)).logit(),
        lambda x, info: (small(x) + info.tiny).log(),
        lambda x, info: torch.where(small(x) < info.tiny, info.tiny, small(x)).log(),
        lambda x, info: torch.where(x > 0, x, torch.full((3,), info.min)).logsumexp(0),
    ],
    ids=[
        "clamp", "clamp of both signs", "clamp next to one",
        "clamp_min", "clamp_max", "hardtanh", "maximum", "fmin", "clamp at tensors", "sum",
        "where", "lowest",
    ],
)  # fmt: skip
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_limit_becomes_the_limit_of_the_dtype_that_the_factor_runs_in(function, sign):
    """Truth: the function in that dtype by hand."""

    def own(x):
        return function(x, torch.finfo(x.dtype))

    x = sign * torch.tensor([400.0, 120.0, 300.0]).double()
    narrow = traced(number_of(own), torch.float64).to(dtype=torch.float32)
    torch.set_default_dtype(torch.float32)
    expected = own(x.float()).sum()
    assert bool(expected.isfinite())
    torch.testing.assert_close(factor(narrow, x.float()), expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.exp() + DOUBLE.eps).log(),
        lambda x: x.exp().clamp(min=DOUBLE.eps).log(),
        lambda x: x.exp().clamp(min=SINGLE.eps).log(),
        lambda x: x.exp().clamp(min=1e-30).log(),
        lambda x: (x * torch.full((3,), 1 - DOUBLE.eps) - x) * 1e9,
        lambda x: x.clamp(max=torch.inf),
    ],
    ids=[
        "a sum with eps", "eps", "another dtype's eps", "a small bound", "a rounded one",
        "infinity",
    ],
)  # fmt: skip
def test_numbers_that_the_dtype_can_hold_stay_as_they_are(function):
    """Truth: the function by hand, with its own numbers rounded."""
    x = torch.tensor([-60.0, -40.0, 1.0]).double()
    narrow = traced(number_of(function), torch.float64).to(dtype=torch.float32)
    found = factor(narrow, x.float())
    torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, function(x.float()).sum(), rtol=1e-5, atol=1e-2)


def test_zeros_and_infinities_are_no_limits():
    """Truth: maximum and minimum by hand; half precision would know single's tiny as 0."""
    low, high = torch.tensor([-torch.inf, 0.0, 0.0]), torch.tensor([torch.inf, torch.inf, 0.0])

    def function(x):
        return torch.minimum(torch.maximum(x, low.to(x)), high.to(x))

    narrow = traced(number_of(function), torch.float32).to(dtype=torch.float16)
    x = torch.tensor([-3.0, -2.0, 5.0], dtype=torch.float16)
    assert float(factor(narrow, x)) == -3.0


def test_a_function_back_in_double_precision_has_the_limits_of_its_program():
    """Truth: the density in double precision, far beyond single precision's edge."""
    wide = traced(lambda: pyro.sample("x", dist.Beta(2.0, 0.5)), torch.float64)
    narrow = wide.to(dtype=torch.float32)
    u = torch.tensor([[-30.0, 24.0, 30.0]]).double()
    for group, moved in zip(wide.factors, narrow.factors, strict=True):
        again = moved.program.in_dtype(torch.float64)
        torch.testing.assert_close(again([u]), group.program([u]), rtol=1e-6, atol=0)


def test_a_single_precision_program_keeps_its_limits_in_double_precision():
    """Truth: the clamped logit by hand."""

    def function(x):
        return x.sigmoid().clamp(SINGLE.tiny, 1 - SINGLE.eps).logit()

    graph = traced(number_of(function), torch.float32).to(dtype=torch.float64)
    x = torch.tensor([-30.0, 5.0, 40.0]).double()
    torch.testing.assert_close(factor(graph, x), function(x).sum())


@pytest.mark.parametrize("engine", [pg.QBethe, pg.VMP])
@pytest.mark.parametrize("family", ["beta", "dirichlet", "kumaraswamy"])
def test_engines_run_in_single_precision_near_the_edge_of_a_support(engine, family):
    def program():
        pyro.sample("x", EDGES[family]())

    options = {"num_components": 1, "num_steps": 30} if engine is pg.QBethe else {}
    found = {}
    for dtype in (torch.float64, torch.float32):
        pyro.set_rng_seed(0)
        found[dtype] = pg.fit(program, infer=engine, dtype=dtype, progress=False, **options)
    single, double = found[torch.float32].log_evidence, found[torch.float64].log_evidence
    assert abs(float(single) - float(double)) < 1e-2
