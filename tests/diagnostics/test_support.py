"""What counts as inside a support: its own check, and what rounding carries over an edge."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from torch.distributions import biject_to

import pyrograph as pg
from pyrograph.diagnostics.support import free_values, inside, shared_columns
from pyrograph.errors import OptionError

HALF_OPEN = constraints.half_open_interval(0.1, 0.7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "support",
    [
        constraints.interval(0.1, 0.7),
        HALF_OPEN,
        constraints.half_open_interval(1e4, 1e4 + 1),
        constraints.independent(HALF_OPEN, 1),
    ],
    ids=repr,
)
def test_whatever_comes_from_the_reals_is_inside(support, dtype):
    value = biject_to(support)(30 * torch.randn(500, 4, dtype=dtype))
    assert inside(support, value).all()
    assert inside(support, value.double()).all()


def test_a_long_simplex_in_float32_is_inside_though_its_sum_is_off():
    value = biject_to(constraints.simplex)(torch.randn(20, 19999, dtype=torch.float32))
    assert not constraints.simplex.check(value).all()
    assert inside(constraints.simplex, value).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_on_an_edge_that_is_not_at_infinity_are_mapped(dtype):
    def model():
        pyro.sample("p", dist.Beta(2.0, 2.0))
        pyro.sample("s", dist.Gamma(2.0, 2.0))

    graph = pg.trace_graph(model, unconstrained=True).to(dtype=dtype)
    values = {"p": torch.tensor([0.0, 0.5, 1.0], dtype=torch.float32), "s": torch.ones(3).long()}
    free = free_values(graph, values)
    assert free["p"].isfinite().all() and free["p"][1] == 0 and (free["s"] == 0).all()
    assert all(value.dtype == dtype for value in free.values())
    with pytest.raises(OptionError, match=r'"s" is outside its support or on its edge.* 2 '):
        free_values(graph, values | {"s": torch.tensor([1.0, 2.0, 0.0])})


def test_what_lies_further_out_is_not_and_each_value_is_judged_apart():
    value = torch.tensor([[0.2, 0.7001], [0.7, 0.0999], [torch.inf, torch.nan]])
    expected = torch.tensor([[True, False], [True, False], [False, False]])
    assert torch.equal(inside(HALF_OPEN, value), expected)
    narrow = constraints.interval(torch.tensor([0.0, 0.0]), torch.tensor([1e-6, 1.0]))
    value = torch.tensor([[1.1e-6, 1.0], [1e-6, 1.0001]])
    assert torch.equal(inside(narrow, value), torch.tensor([[False, True], [True, False]]))
    rows = torch.tensor([[1.0, 1.0, 1.0], [0.2, 0.3, 0.5001], [0.2, 0.3, 0.5]])
    assert inside(constraints.simplex, rows).tolist() == [False, False, True]


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_flat_particles_serve_graphs_of_the_same_supports_alone(scale):
    """However small the values are."""

    def graph(high):
        return pg.trace_graph(lambda: pyro.sample("x", dist.Uniform(0.0, high)), unconstrained=True)

    engine = pg.GraphicalSVGD(
        lambda: pyro.sample("x", dist.Uniform(0.0, scale)),
        num_particles=5,
        num_steps=2,
        progress=False,
    )
    posterior = engine.run()
    assert shared_columns(engine.graph, posterior) is posterior.x
    assert shared_columns(graph(scale), posterior) is posterior.x
    assert shared_columns(graph(1.5 * scale), posterior) is None
