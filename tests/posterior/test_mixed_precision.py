"""Programs whose sites have different precisions: none is computed in less than its own."""

import io

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from torch.testing import assert_close

import pyrograph as pg

SINGLE, DOUBLE = torch.float32, torch.float64
ENGINES = {
    "svgd": (pg.GraphicalSVGD, {"num_steps": 3}),
    "ep": (pg.EP, {}),
    "qbethe": (pg.QBethe, {"num_steps": 50}),
}


def single():
    x = pyro.sample("x", dist.Normal(torch.zeros(2, dtype=SINGLE), 1.0).to_event(1))
    layer = torch.full((1, 2), 0.5, dtype=SINGLE)
    return torch.nn.functional.linear(x, layer).squeeze(-1)  # takes single precision only


def double():
    # N(1e6, 1e-2^2): single precision has no two numbers there that are nearer than 1 / 16
    return pyro.sample("z", dist.Normal(torch.tensor(1e6, dtype=DOUBLE), 1e-2))


def program(order):
    h, z = (single(), double()) if order == "single first" else (double(), single())[::-1]
    s = pyro.sample("s", dist.Gamma(torch.tensor(2.0, dtype=SINGLE), 2.0))
    pyro.sample("y", dist.Normal(h + s + (z - 1e6), 1.0), obs=torch.tensor(0.3, dtype=DOUBLE))


orders = pytest.mark.parametrize("order", ["single first", "double first"])


@orders
def test_columns_hold_the_finest_of_the_sites(order):
    graph = pg.trace_graph(program, (order,), unconstrained=True)
    assert graph.dtype == DOUBLE
    assert {n: graph.dtype_of(n) for n in graph.sites} == {"x": SINGLE, "z": DOUBLE, "s": SINGLE}
    moved = graph.to(dtype=SINGLE)
    assert moved.dtype == SINGLE and {moved.dtype_of(n) for n in graph.sites} == {SINGLE}


@orders
def test_a_narrow_site_in_double_precision_keeps_its_width(order):
    posterior = pg.fit(program, (order,), infer=pg.EP, progress=False)
    z = posterior.marginal("z")
    assert float(z.mean) == pytest.approx(1e6, abs=1e-4)
    assert float(z.variance.sqrt()) == pytest.approx(1e-2, rel=1e-3)
    start = 1e6 + 1e-2 * torch.linspace(-1.5, 1.5, 20, dtype=DOUBLE)
    init = {"z": start, "x": torch.zeros(20, 2), "s": torch.ones(20)}
    particles = pg.fit(program, (order,), init=init, num_steps=0, progress=False).particles
    assert_close(particles["z"], start, rtol=0, atol=1e-9)


@orders
@pytest.mark.parametrize("name", ENGINES)
def test_values_go_back_to_the_program_as_it_draws_them(order, name):
    infer, options = ENGINES[name]
    posterior = pg.fit(program, (order,), infer=infer, progress=False, **options)
    guide = posterior.guide()
    buffer = io.BytesIO()
    torch.save(guide.state_dict(), buffer)
    buffer.seek(0)
    again = type(guide).from_state_dict(torch.load(buffer, weights_only=True))
    for values in (posterior.sample(3), guide(), again(), guide.median()):
        assert {n: v.dtype for n, v in values.items()} == {"x": SINGLE, "z": DOUBLE, "s": SINGLE}
    Predictive(program, posterior_samples=posterior.sample(3))(order)
    Predictive(program, guide=again, num_samples=3)(order)
    SVI(program, guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO()).step(order)


def test_a_precision_that_is_asked_for_is_that_of_all_sites():
    def model():
        pyro.sample("x", dist.Normal(torch.tensor(0.0, dtype=SINGLE), 1.0))
        pyro.sample("z", dist.Gamma(torch.tensor(2.0, dtype=DOUBLE), 1.0))

    for dtype in (SINGLE, DOUBLE):
        posterior = pg.fit(model, dtype=dtype, num_steps=2, progress=False)
        values = [*posterior.sample(2).values(), *posterior.guide()().values()]
        assert {value.dtype for value in values} == {dtype}
