"""Values in and out: batching, shapes, flat particles, constrained and unconstrained space."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import biject_to, constraints

from pyrograph import trace_graph
from pyrograph.errors import ShapeMismatch, UnsupportedSite

from .models import chain, constrained, mixed, moving_support, square


def mixed_values(n=None):
    lead = () if n is None else (n,)
    return {
        "s": torch.rand(lead) + 0.5,
        "p": torch.randn(*lead, 3, 2),
        "z": torch.randint(0, 3, (*lead, 3)),
        "b": torch.randn(lead),
    }


# ---------------------------------------------------------------------- log_prob
def test_a_batch_gives_one_log_density_per_row():
    graph = trace_graph(mixed)
    values = mixed_values(5)
    batched = graph.log_prob(values)
    assert batched.shape == (5,)
    for k in range(5):
        single = graph.log_prob({n: v[k] for n, v in values.items()})
        assert single.shape == ()
        torch.testing.assert_close(batched[k], single)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_batch_may_have_any_size(n):
    assert trace_graph(mixed).log_prob(mixed_values(n)).shape == (n,)


def test_a_batch_of_one_is_not_a_single_point():
    graph = trace_graph(mixed)
    values = mixed_values()
    one = graph.log_prob({n: v[None] for n, v in values.items()})
    assert one.shape == (1,)
    torch.testing.assert_close(one[0], graph.log_prob(values))


BAD_VALUES = {
    "missing": (lambda v: v.pop("b"), '"?b"?'),
    "unknown": (lambda v: v.update(q=torch.zeros(())), "q"),
    "wrong size": (lambda v: v.update(p=torch.zeros(4, 2)), '"p"'),
    "wrong event": (lambda v: v.update(p=torch.zeros(3, 3)), '"p"'),
    "too many axes": (lambda v: v.update(p=torch.zeros(1, 1, 3, 2)), '"p"'),
    "one batched": (lambda v: v.update(p=torch.zeros(7, 3, 2)), '"[psz]"'),
    "transposed": (lambda v: v.update(p=torch.zeros(2, 3)), '"p"'),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_values_that_do_not_fit_are_refused_by_name(name):
    spoil, text = BAD_VALUES[name]
    values = mixed_values()
    spoil(values)
    with pytest.raises(ShapeMismatch, match=text):
        trace_graph(mixed).log_prob(values)


def test_batches_of_different_sizes_are_refused():
    values = mixed_values(4)
    values["b"] = torch.zeros(3)
    with pytest.raises(ShapeMismatch, match="leading"):
        trace_graph(mixed).log_prob(values)


def test_a_held_site_cannot_take_another_value():
    z = torch.tensor([0, 1, 2])
    graph = trace_graph(mixed, fixed={"z": z})
    values = mixed_values()
    free = {n: v for n, v in values.items() if n != "z"}
    torch.testing.assert_close(graph.log_prob(free | {"z": z}), graph.log_prob(free))
    with pytest.raises(ShapeMismatch, match='"z"'):
        graph.log_prob(free | {"z": torch.tensor([0, 0, 2])})
    assert graph.blanket("z", 0) == frozenset()
    assert graph.num_nodes == 8


def test_values_do_not_change():
    graph = trace_graph(mixed)
    values = mixed_values(2)
    before = {n: v.clone() for n, v in values.items()}
    graph.log_prob(values)
    assert all(torch.equal(values[n], before[n]) for n in values)


def test_the_log_density_does_not_depend_on_the_random_state():
    graph = trace_graph(mixed)
    values = mixed_values(2)
    torch.manual_seed(0)
    first = graph.log_prob(values)
    torch.manual_seed(1)
    assert torch.equal(first, graph.log_prob(values))


# ---------------------------------------------------------------------- groups
def test_a_group_refuses_values_of_wrong_number_or_shape():
    graph = trace_graph(square)
    group = next(g for g in graph.factors if g.name == "down")
    good = [torch.randn(3, 2), torch.randn(3, 2)]
    assert group.log_prob(good).shape == (3, 2)
    with pytest.raises(ShapeMismatch, match=r'"down".*2 nodes.*1'):
        group.log_prob(good[:1])
    with pytest.raises(ShapeMismatch, match='slot 1 of "down"'):
        group.log_prob([good[0], torch.randn(3, 1)])
    with pytest.raises(ShapeMismatch, match='slot 1 of "down"'):
        group.log_prob([good[0], torch.randn(4, 2)])
    with pytest.raises(ShapeMismatch, match='slot 0 of "down"'):
        group.log_prob([torch.randn(()), good[1]])


def test_a_group_takes_values_of_another_dtype():
    group = next(g for g in trace_graph(square).factors if g.name == "down")
    a, b = torch.randn(3, 2), torch.randn(3, 2)
    got = group.log_prob([a.float(), b])
    torch.testing.assert_close(got, group.log_prob([a.float().double(), b]))
    assert got.dtype == torch.float64


def test_a_group_of_no_samples_gives_no_rows():
    group = next(g for g in trace_graph(square).factors if g.name == "down")
    assert group.log_prob([torch.randn(0, 2), torch.randn(0, 2)]).shape == (0, 2)


def test_a_group_differentiates_in_its_private_rows():
    group = next(g for g in trace_graph(square).factors if g.name == "down")
    a, b = torch.randn(3, 2, requires_grad=True), torch.randn(3, 2)
    (gradient,) = torch.autograd.grad(group.log_prob([a, b]).sum(), a)
    torch.testing.assert_close(gradient, -(a - b).sign())


# ---------------------------------------------------------------------- flat particles
def test_flat_particles_have_the_columns_of_their_nodes():
    graph = trace_graph(mixed)
    values = mixed_values(4)
    x = graph.flatten(values)
    assert x.shape == (4, graph.dim)
    for v, (site, index) in enumerate(graph.nodes):
        mine = x[:, graph.columns[v] : graph.columns[v + 1]]
        expected = values[site][(slice(None), *index)].reshape(4, -1).to(x)
        assert torch.equal(mine, expected)


def test_unflatten_inverts_flatten():
    graph = trace_graph(mixed)
    values = mixed_values(4)
    back = graph.unflatten(graph.flatten(values))
    for name, value in values.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name], value)


def test_the_density_of_particles_is_the_log_density_of_their_values():
    graph = trace_graph(mixed)
    values = mixed_values(4)
    torch.testing.assert_close(graph.density(graph.flatten(values)), graph.log_prob(values))


@pytest.mark.parametrize("shape", [(4,), (4, 3), (2, 4, 11), (4, 12)])
def test_particles_of_a_wrong_shape_are_refused(shape):
    with pytest.raises(ShapeMismatch, match=r"\[n, 11\]"):
        trace_graph(mixed).density(torch.zeros(shape))


def test_flatten_wants_a_batch():
    with pytest.raises(ShapeMismatch, match="leading dimension"):
        trace_graph(mixed).flatten(mixed_values())


def test_local_values_of_particles_are_the_rows_of_each_scope():
    graph = trace_graph(mixed)
    values = mixed_values(4)
    x = graph.flatten(values)
    total = graph.constant.expand(4).clone()
    for group in graph.factors:
        local = graph.local_values(group, x)
        assert [v.shape for v in local] == [
            (4, group.num_factors, *s.event_shape) for s in group.slots
        ]
        total += group.log_prob(local).sum(1)
    torch.testing.assert_close(total, graph.log_prob(values))


# ---------------------------------------------------------------------- spaces
def test_unconstrained_values_map_by_torchs_own_bijections():
    graph = trace_graph(constrained, unconstrained=True)
    values = {"p": torch.randn(5, 2, 3), "c": torch.randn(5, 3), "u": torch.randn(5)}
    mapped = graph.constrain(values)
    supports = {
        "p": constraints.simplex,
        "c": constraints.corr_cholesky,
        "u": constraints.interval(-1.0, 1.0),
    }
    for name, support in supports.items():
        torch.testing.assert_close(mapped[name], biject_to(support)(values[name]))
        assert bool(support.check(mapped[name]).all())
    back = graph.unconstrain(mapped)
    for name, value in values.items():
        torch.testing.assert_close(back[name], value)


def test_a_simplex_of_four_is_a_node_of_three_numbers():
    graph = trace_graph(constrained, unconstrained=True)
    assert graph.sites["p"].event_shape == (3,)
    assert graph.sites["p"].constrained_event_shape == (4,)
    assert graph.sites["p"].shape == (2, 4)
    assert graph.sites["c"].event_shape == (3,)
    assert graph.dim == 2 * 3 + 3 + 1
    assert graph.scopes("p:jacobian") == [(("p", (0,)),), (("p", (1,)),)]


def test_a_graph_in_the_programs_space_leaves_values_alone():
    graph = trace_graph(mixed)
    values = mixed_values(2)
    for mapped in (graph.constrain(values), graph.unconstrain(values)):
        assert mapped.keys() == values.keys()
        assert all(mapped[n] is values[n] for n in values)


def test_discrete_sites_are_untouched_by_the_maps():
    graph = trace_graph(mixed, unconstrained=True)
    values = mixed_values(3)
    mapped = graph.constrain(values)
    assert torch.equal(mapped["z"], values["z"])
    torch.testing.assert_close(mapped["s"], values["s"].exp())
    torch.testing.assert_close(graph.unconstrain(mapped)["s"], values["s"])


def test_a_support_that_depends_on_a_latent_is_mapped_with_that_latent():
    graph = trace_graph(moving_support, unconstrained=True)
    values = {"theta": torch.randn(6), "x": torch.randn(6, 3)}
    mapped = graph.constrain(values)
    theta = values["theta"].exp()
    torch.testing.assert_close(mapped["theta"], theta)
    torch.testing.assert_close(mapped["x"], theta[:, None] * values["x"].sigmoid())
    assert graph.sites["x"].support is None


def test_values_of_a_moving_support_cannot_be_unmapped_alone():
    graph = trace_graph(moving_support, unconstrained=True)
    mapped = graph.constrain({"theta": torch.randn(2), "x": torch.randn(2, 3)})
    with pytest.raises(UnsupportedSite, match=r'"x".*depends on other latents'):
        graph.unconstrain(mapped)


# ---------------------------------------------------------------------- independence of graphs
def test_two_graphs_of_one_program_share_nothing():
    first, second = trace_graph(square), trace_graph(square)
    first.columns.zero_()
    first.factors[0].scope.zero_()
    assert second.columns.tolist() == [0, 1, 2, 3, 4, 5]
    assert second.scopes("across")[1] == (("x", (1, 0)), ("x", (1, 1)))


def test_data_that_change_after_tracing_do_not_change_the_graph():
    y = torch.zeros(3)

    def model(y):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("n", 3):
            pyro.sample("y", dist.Normal(x, y.exp()), obs=y)

    graph = trace_graph(model, (y,))
    before = graph.log_prob({"x": torch.tensor(0.4)})
    y += 5
    assert torch.equal(before, graph.log_prob({"x": torch.tensor(0.4)}))


def test_a_changed_parameter_needs_a_new_trace():
    def model():
        pyro.sample("x", dist.Normal(pyro.param("m", torch.tensor(0.0)), 1.0))

    graph = trace_graph(model)
    at_zero = graph.log_prob({"x": torch.tensor(2.0)})
    pyro.get_param_store()["m"] = torch.tensor(2.0)
    assert torch.equal(at_zero, graph.log_prob({"x": torch.tensor(2.0)}))
    assert trace_graph(model).log_prob({"x": torch.tensor(2.0)}) > at_zero


def test_a_trace_leaves_the_random_state_of_other_code_reproducible():
    torch.manual_seed(5)
    trace_graph(chain)
    first = torch.rand(3)
    torch.manual_seed(5)
    trace_graph(chain)
    assert torch.equal(first, torch.rand(3))


def test_a_trace_leaves_no_parameters_behind():
    trace_graph(mixed)
    assert list(pyro.get_param_store().keys()) == []
