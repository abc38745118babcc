"""Graphs in another floating type and on another device give the same numbers."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyrograph import trace_graph

from .models import chain, constrained, discrete, mixed, square
from .test_values import mixed_values


def test_a_float32_graph_is_the_float64_graph_up_to_rounding():
    graph = trace_graph(mixed)
    small = graph.to(dtype=torch.float32)
    values = mixed_values(6)
    cast = {n: v.float() if v.is_floating_point() else v for n, v in values.items()}
    assert small.dtype == torch.float32
    assert small.flatten(cast).dtype == torch.float32
    result = small.log_prob(cast)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), graph.log_prob(values), rtol=1e-5, atol=1e-4)
    x = small.flatten(cast)
    torch.testing.assert_close(small.density(x), result)


def test_a_cast_leaves_the_first_graph_as_it_was():
    graph = trace_graph(mixed)
    values = mixed_values(2)
    before = graph.log_prob(values)
    graph.to(dtype=torch.float32)
    assert graph.dtype == torch.float64
    assert torch.equal(graph.log_prob(values), before)


def test_groups_of_a_cast_graph_compute_in_its_type():
    small = trace_graph(square).to(dtype=torch.float32)
    group = next(g for g in small.factors if g.name == "down")
    out = group.log_prob([torch.zeros(1, 2, dtype=torch.float32)] * 2)
    assert out.dtype == torch.float32


def test_casting_back_and_forth_is_the_identity():
    graph = trace_graph(chain)
    twice = graph.to(dtype=torch.float32).to(dtype=torch.float64)
    x = torch.randn(3, graph.dim)
    torch.testing.assert_close(twice.density(x), graph.density(x))


def test_a_move_to_the_same_place_keeps_the_structure():
    graph = trace_graph(square)
    moved = graph.to("cpu")
    assert moved.scopes("down") == graph.scopes("down")
    assert moved.nodes == graph.nodes
    assert moved.num_factors == graph.num_factors


@pytest.mark.gpu
@pytest.mark.parametrize("program", [chain, square, mixed, constrained, discrete])
@pytest.mark.parametrize("unconstrained", [False, True])
def test_a_graph_on_a_gpu_gives_the_numbers_of_the_cpu(program, unconstrained):
    graph = trace_graph(program, unconstrained=unconstrained)
    moved = graph.to("cuda")
    assert moved.device.type == "cuda"
    x = torch.randn(5, graph.dim)
    for site in graph.sites.values():
        if site.is_discrete:
            for k, (name, _) in enumerate(graph.nodes):
                if name == site.name:
                    x[:, graph.columns[k]] = torch.randint(0, site.cardinality, (5,)).to(x)
    if not unconstrained and program is not constrained:
        x[:, 0] = x[:, 0].abs() if program is mixed else x[:, 0]
    if program is constrained and not unconstrained:
        pytest.skip("flat draws are not in the support")
    expected = graph.density(x)
    found = moved.density(x.cuda())
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), expected)
    values = {n: v.cuda() for n, v in graph.unflatten(x).items()}
    torch.testing.assert_close(moved.log_prob(values).cpu(), expected)
    for here, there in zip(graph.factors, moved.factors, strict=True):
        local = graph.local_values(here, x)
        assert there.scope.device.type == "cuda"
        torch.testing.assert_close(
            there.log_prob([v.cuda() for v in local]).cpu(), here.log_prob(local)
        )


@pytest.mark.gpu
def test_a_program_whose_data_are_on_a_gpu_is_traced_there():
    def model(y):
        x = pyro.sample("x", dist.Normal(torch.zeros(3, device="cuda"), 1.0))
        z = pyro.sample("z", dist.Categorical(torch.ones(3, device="cuda")))
        pyro.sample("y", dist.Normal(x.cumsum(0) + x[z], 1.0), obs=y)

    graph = trace_graph(model, (torch.zeros(3, device="cuda"),))
    assert graph.device.type == "cuda"
    assert graph.scopes("y")[0] == (("x", (0,)), ("x", (1,)), ("x", (2,)), ("z", ()))
    values = {"x": torch.randn(4, 3, device="cuda"), "z": torch.zeros(4).long().cuda()}
    assert graph.log_prob(values).device.type == "cuda"
    assert graph.to("cpu").log_prob({n: v.cpu() for n, v in values.items()}).device.type == "cpu"


@pytest.mark.gpu
def test_views_of_a_moved_graph_are_on_the_gpu():
    moved = trace_graph(square).to("cuda")
    assert moved.data["factor", "scope", "variable"].edge_index.is_cuda
    assert moved.neighbors[1].is_cuda
    assert moved.data.validate(raise_on_error=True)
    assert moved.blanket("x", 0, 0) == trace_graph(square).blanket("x", 0, 0)


@pytest.mark.gpu
def test_tables_of_a_moved_graph_are_those_of_the_cpu():
    graph = trace_graph(discrete)
    for here, there in zip(graph.factors, graph.to("cuda").factors, strict=True):
        torch.testing.assert_close(there.table().cpu(), here.table())
