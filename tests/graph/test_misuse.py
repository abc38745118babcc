"""Arguments of a wrong kind are refused by name, with what to give instead."""

import contextlib

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyrograph import trace_graph
from pyrograph.errors import InvalidProgram, OptionError, ShapeMismatch

from .models import mixed

MEANS = [0.0, 1.0, 2.0]


def program():
    z = pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
    mu = pyro.sample("mu", dist.Normal(torch.tensor(MEANS)[z], 1.0))
    s = pyro.sample("s", dist.Gamma(2.0, 2.0))
    pyro.sample("y", dist.Normal(mu, s), obs=torch.tensor(0.3))


def observed(data):
    z = pyro.sample("z", dist.Normal(torch.zeros(3), 1.0))
    pyro.sample("y", dist.Normal(z, 1.0), obs=data)


# ---------------------------------------------------------------------- trace_graph
@pytest.mark.parametrize("model", [3, None, "model"], ids=repr)
def test_a_model_that_cannot_be_called_is_refused(model):
    with pytest.raises(OptionError, match=type(model).__name__):
        trace_graph(model)


@pytest.mark.parametrize(
    "args", [torch.ones(1, 3), np.ones((1, 3)), "data", 3, None, {"data": 1}], ids=type
)
def test_arguments_that_are_no_tuple_are_refused(args):
    """A ``[1, 3]`` tensor would be taken apart into its only row."""
    with pytest.raises(OptionError, match=r"model_args=\(argument,\)"):
        trace_graph(observed, args)


def test_a_list_of_arguments_is_taken():
    assert trace_graph(observed, [torch.ones(3)]).num_nodes == 3


def test_keyword_arguments_without_names_are_refused():
    with pytest.raises(OptionError, match="model_kwargs is a Tensor"):
        trace_graph(observed, (), torch.ones(3))


@pytest.mark.parametrize("fixed", [["mu"], "mu", ("mu", 1.0)], ids=repr)
def test_sites_to_hold_without_values_are_refused(fixed):
    with pytest.raises(OptionError, match=r"\{site: value\}"):
        trace_graph(program, fixed=fixed)


@pytest.mark.parametrize("value", ["a", None, object()], ids=type)
def test_holding_a_site_at_no_number_is_refused(value):
    with pytest.raises(OptionError, match=r'fixed\["mu"\]'):
        trace_graph(program, fixed={"mu": value})


def test_holding_a_state_at_a_float_is_refused():
    with pytest.raises(OptionError, match=r'fixed\["z"\].*Categorical.*\.long\(\)'):
        trace_graph(program, fixed={"z": torch.tensor(1.0)})


@pytest.mark.parametrize("unconstrained", [False, True])
@pytest.mark.parametrize(
    "fixed", [{"z": 7}, {"z": -1}, {"s": -1.0}, {"s": float("nan")}, {"mu": float("nan")}], ids=repr
)
def test_holding_a_site_outside_its_support_is_refused(fixed, unconstrained):
    (name,) = fixed
    with pytest.raises(InvalidProgram, match=rf'fixed\["{name}"\] is no value of site "{name}"'):
        trace_graph(program, fixed=fixed, unconstrained=unconstrained)


def test_a_support_that_holds_the_value_at_some_draws_is_no_refusal():
    def model():
        top = pyro.sample("top", dist.Uniform(0.0, 2.0))
        pyro.sample("x", dist.Uniform(0.0, top))

    graph = trace_graph(model, fixed={"x": torch.tensor(0.9)})
    found = graph.log_prob({"top": torch.tensor(1.6)})
    torch.testing.assert_close(found, -torch.tensor(2 * 1.6).log())


@pytest.mark.parametrize("one", [1, np.int64(1), np.array(1), torch.tensor(1)], ids=type)
def test_a_site_is_held_at_numbers_and_arrays(one):
    graph = trace_graph(program, fixed={"z": one})
    found = graph.log_prob({"mu": torch.tensor(0.2), "s": torch.tensor(1.5), "z": one})
    torch.testing.assert_close(found, by_hand(1, 0.2, 1.5))


# ---------------------------------------------------------------------- values
def by_hand(z, mu, s):
    mu, s = torch.tensor(mu), torch.tensor(s)
    normals = dist.Normal(MEANS[z], 1.0).log_prob(mu) + dist.Normal(mu, s).log_prob(
        torch.tensor(0.3)
    )
    return torch.tensor([0.2, 0.3, 0.5]).log()[z] + normals + dist.Gamma(2.0, 2.0).log_prob(s)


def test_numbers_and_arrays_are_values():
    graph = trace_graph(program)
    expected = by_hand(1, 0.2, 1.5)
    torch.testing.assert_close(graph.log_prob({"z": 1, "mu": 0.2, "s": 1.5}), expected)
    arrays = {"z": np.array([1, 1]), "mu": np.array([0.2, 0.2]), "s": [1.5, 1.5]}
    torch.testing.assert_close(graph.log_prob(arrays), expected.expand(2))
    assert graph.flatten(arrays).tolist() == [[1.0, 0.2, 1.5]] * 2


def test_a_number_has_the_precision_of_its_site():
    graph = trace_graph(program)
    expected = graph.log_prob({"z": 1, "mu": 0.2, "s": 1.5})
    torch.set_default_dtype(torch.float32)
    assert graph.log_prob({"z": 1, "mu": 0.2, "s": 1.5}) == expected


def test_arrays_are_mapped_between_spaces():
    graph = trace_graph(program, unconstrained=True)
    values = {"z": np.array([0, 2]), "mu": np.array([0.1, 0.2]), "s": np.array([0.5, 2.0])}
    free = graph.unconstrain(values)
    torch.testing.assert_close(free["s"], torch.tensor([0.5, 2.0]).log())
    back = graph.constrain({name: value.numpy() for name, value in free.items()})
    for name, value in values.items():
        torch.testing.assert_close(back[name], torch.as_tensor(value))


MAPS = ["log_prob", "flatten", "sum_of_factors", "constrain", "unconstrain"]


@pytest.mark.parametrize("method", MAPS)
@pytest.mark.parametrize("value", ["a", None, object()], ids=type)
def test_a_value_that_is_no_number_is_refused_by_name(method, value):
    graph = trace_graph(program, unconstrained=True)
    with pytest.raises(OptionError, match='site "mu"'):
        getattr(graph, method)({"z": torch.tensor(1), "mu": value, "s": torch.tensor(0.0)})


@pytest.mark.parametrize("method", MAPS)
@pytest.mark.parametrize("values", [[1, 0.2, 1.0], torch.zeros(3), "abc"], ids=type)
def test_values_without_names_are_refused(method, values):
    with pytest.raises(OptionError, match=r"\{site: tensor\}"):
        getattr(trace_graph(program, unconstrained=True), method)(values)


@pytest.mark.parametrize("method", MAPS)
def test_a_missing_value_is_refused_by_name(method):
    with pytest.raises(ShapeMismatch, match="miss z, s;"):
        getattr(trace_graph(program, unconstrained=True), method)({"mu": torch.zeros(2)})


# ---------------------------------------------------------------------- pictures and moves
@pytest.mark.parametrize(
    "spoil", [lambda p: p.pop(("b", ())), lambda p: p.update({("b", ()): (1, 2, 3)})]
)
def test_a_picture_with_a_node_of_no_position_is_refused(spoil):
    graph = trace_graph(mixed)
    positions = {label: (float(k), 0.0) for k, label in enumerate(graph.nodes)}
    spoil(positions)
    with pytest.raises(OptionError, match=r"\('b', \(\)\)"):
        graph.draw(positions=positions)


@pytest.mark.parametrize("dtype", ["float32", torch.int64, np.float32])
def test_a_dtype_that_cannot_be_computed_in_is_refused(dtype):
    with pytest.raises(OptionError, match=r"torch\.float32"):
        trace_graph(mixed).to(dtype=dtype)


@pytest.mark.parametrize("device", ["nowhere", torch.float32], ids=repr)
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises(OptionError, match="no device"):
        trace_graph(mixed).to(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(OptionError, match="no CUDA device"):
        trace_graph(mixed).to("cuda")


# ---------------------------------------------------------------------- values and particles
@pytest.mark.parametrize(
    "name, value", [("s", -5.0), ("z", 3), ("z", -1), ("mu", float("nan"))], ids=repr
)
def test_values_outside_a_support_have_no_density(name, value):
    graph = trace_graph(program)
    values = {"z": torch.tensor(1), "mu": torch.tensor(0.5), "s": torch.tensor(2.0)}
    expected = sum(
        d.log_prob(torch.tensor(x))
        for d, x in (
            (dist.Categorical(torch.tensor([0.2, 0.3, 0.5])), 1),
            (dist.Normal(1.0, 1.0), 0.5),
            (dist.Gamma(2.0, 2.0), 2.0),
            (dist.Normal(0.5, 2.0), 0.3),
        )
    )
    torch.testing.assert_close(graph.log_prob(values), expected)
    several = {n: v.repeat(3) for n, v in values.items()}
    several[name][1] = value
    with pytest.raises(OptionError, match=rf'site "{name}" .* outside its support'):
        graph.log_prob(several)


def test_no_sample_at_all_has_no_densities():
    """A softmax with a reference class reads a constant and latents together."""

    def model():
        with pyro.plate("p", 3):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("q", 2):
            logits = torch.cat([torch.zeros(1), x])
            pyro.sample("y", dist.Categorical(logits=logits), obs=torch.tensor([0, 3]))

    graph = trace_graph(model)
    assert graph.log_prob({"x": torch.zeros(0, 3)}).shape == (0,)
    assert graph.density(torch.zeros(0, 3)).shape == (0,)
    for group in graph.factors:
        assert group.log_prob([torch.zeros(0, *group.scope[:, 0].shape)] * group.arity).numel() == 0


def test_a_program_without_latents_is_its_constant():
    graph = trace_graph(lambda: pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(0.5)))
    expected = dist.Normal(0.0, 1.0).log_prob(torch.tensor(0.5))
    torch.testing.assert_close(graph.sum_of_factors({}), expected)
    torch.testing.assert_close(graph.density(torch.zeros(4, 0)), expected.expand(4))


def test_particles_of_another_kind_are_refused():
    graph = trace_graph(observed, (torch.ones(3),))
    with pytest.raises(OptionError, match="particles are a list"):
        graph.density([[0.0, 0.0, 0.0]])
    for function in (graph.density, graph.unflatten):
        with pytest.raises(ShapeMismatch, match=r"\(2, 5\); expected \[n, 3\]"):
            function(torch.zeros(2, 5))
    with pytest.raises(ShapeMismatch, match=r'"z" has shape \(5,\)'):
        trace_graph(observed, (torch.ones(3),), unconstrained=True).constrain({"z": torch.zeros(5)})
    with pytest.raises(OptionError, match="list of tensors, one per slot"):
        graph.factors[0].log_prob(torch.zeros(2, 3))


@pytest.mark.parametrize("index", ["a", 1.0, None, 3], ids=repr)
def test_an_index_of_no_element_is_refused(index):
    graph = trace_graph(observed, (torch.ones(3),))
    assert graph.node_id("z", np.int64(-1)) == 2
    with pytest.raises(ShapeMismatch, match="does not fit site"):
        graph.node_id("z", index)


# ---------------------------------------------------------------------- shapes of statements
NUMBERS = torch.tensor([1.0, 2.0, 0.5])


@pytest.mark.parametrize("plate", [True, False])
@pytest.mark.parametrize("what", ["data", "mask", "factor"])
def test_terms_spread_over_each_other_are_refused(what, plate):
    """``[3, 1]`` beside three sites: nine terms where three were meant."""

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        scope = pyro.plate("p", 3) if plate else contextlib.nullcontext()
        with scope:
            a = pyro.sample("a", dist.Normal(mu, torch.ones(3)))
            mask = NUMBERS[:, None] > 0 if what == "mask" else None
            if what == "factor":
                pyro.factor("y", -((NUMBERS[:, None] - a) ** 2))
                return
            data = NUMBERS[:, None] if what == "data" else NUMBERS
            pyro.sample("y", dist.Normal(a, 1.0).mask(True if mask is None else mask), obs=data)

    if what != "data" and not plate:  # of all pairs: what it says
        assert len(trace_graph(model).scopes("y")) == 9
        return
    with pytest.raises(ShapeMismatch, match=r'"y" has log densities of shape \[3, 3\]'):
        trace_graph(model)


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_of_data_need_a_plate_of_their_own_within_a_plate(rows):
    def model(outer):
        with pyro.plate("p", 3):
            a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with outer, pyro.plate("q", 3):
            pyro.sample("y", dist.Normal(a, 1.0), obs=NUMBERS.expand(rows, 3))

    assert trace_graph(model, (pyro.plate("rows", rows, dim=-2),)).num_nodes == 3
    if rows == 1:
        assert trace_graph(model, (contextlib.nullcontext(),)).num_nodes == 3
        return
    with pytest.raises(ShapeMismatch, match=r"\[2, 3\] within q.*a plate or \.to_event"):
        trace_graph(model, (contextlib.nullcontext(),))


def test_what_no_plate_has_is_taken_where_distribution_and_data_both_have_it():
    def model():
        with pyro.plate("p", 3):
            a = pyro.sample("a", dist.Normal(torch.zeros(5, 3), 1.0))
            pyro.sample("y", dist.Normal(a, 1.0), obs=NUMBERS.expand(5, 3))
            pyro.deterministic("pairs", a[0][:, None] - a[0])
            pyro.deterministic("rows", a[:, :, None] * torch.ones(2), event_dim=1)

    assert len(trace_graph(model).scopes("y")) == 15


def test_a_distribution_of_pairs_beside_data_of_single_ones_is_refused():
    def model():
        with pyro.plate("p", 3):
            a = pyro.sample("a", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(a[:, None], 1.0), obs=NUMBERS)

    with pytest.raises(ShapeMismatch, match=r'"y" has log densities of shape \[3, 3\]'):
        trace_graph(model)


def test_more_data_than_a_plate_has_elements_are_refused():
    """``len`` of ``[1, 3]`` is 1."""

    def model(data):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("n", len(data)):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=data)

    assert len(trace_graph(model, (NUMBERS,)).scopes("y")) == 3
    with pytest.raises(ShapeMismatch, match=r"\[1, 3\] within n, which these do not have"):
        trace_graph(model, (NUMBERS[None],))


def test_without_plates_statements_may_have_any_number_of_terms():
    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros(3), 1.0))
        pyro.sample("y", dist.Normal(a, 1.0), obs=NUMBERS.expand(5, 3))
        pyro.sample("z", dist.Normal(a.sum(), 1.0), obs=NUMBERS)

    assert len(trace_graph(model).scopes("y")) == 15
