import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from pyrograph.circuits import Circuit
from pyrograph.errors import InvalidCircuit, OptionError, ShapeMismatch, ZeroMass
from tests.circuits.reference import all_states, joint, random_nodes, value

SEEDS = st.integers(0, 10_000)
CARDS = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def indicator(var, state, card=2):
    return {"type": "input", "var": var, "probs": [float(s == state) for s in range(card)]}


def bernoulli(var, p):
    return {"type": "input", "var": var, "probs": [1 - p, p]}


def product(*children):
    return {"type": "product", "children": list(children)}


def add(children, weights):
    return {"type": "sum", "children": children, "weights": weights}


def made(seed, cards, **options):
    nodes = random_nodes(np.random.default_rng(seed), cards, **options)
    return nodes, Circuit.from_nodes(nodes)


@settings(max_examples=50)
@given(SEEDS, CARDS)
def test_values_at_all_states_are_those_of_the_plain_recursion(seed, cards):
    nodes, circuit = made(seed, cards, zeros=0.3)
    expected = torch.tensor(joint(nodes, cards)).flatten()
    assert_close(circuit.log_prob(torch.tensor(all_states(cards))).exp(), expected)


@settings(max_examples=50)
@given(SEEDS, CARDS, st.booleans())
def test_missing_values_are_summed_out(seed, cards, is_nan):
    nodes, circuit = made(seed, cards, zeros=0.2)
    rng = np.random.default_rng(seed)
    truth = joint(nodes, cards)
    rows, expected = [], []
    for x in all_states(cards)[:12]:
        missing = rng.uniform(size=len(cards)) < 0.5
        rows.append([(math.nan if is_nan else -1.0) if m else s for s, m in zip(x, missing)])
        index = tuple(slice(None) if m else s for s, m in zip(x, missing))
        expected.append(truth[index].sum())
    assert_close(circuit.log_prob(torch.tensor(rows)).exp(), torch.tensor(expected))


@settings(max_examples=50)
@given(SEEDS, CARDS)
def test_marginals_are_those_of_the_enumeration(seed, cards):
    nodes, circuit = made(seed, cards, zeros=0.2)
    truth = joint(nodes, cards)
    if truth.sum() == 0:
        with pytest.raises(ZeroMass):
            circuit.marginals()
        return
    assert_close(float(circuit.log_mass()), math.log(truth.sum()))
    for v, found in enumerate(circuit.marginals()):
        axes = tuple(u for u in range(len(cards)) if u != v)
        assert_close(found, torch.tensor(truth.sum(axes) / truth.sum()))


@settings(max_examples=50)
@given(SEEDS, CARDS.filter(lambda c: len(c) > 1))
def test_a_conditioned_circuit_is_the_ratio_of_joint_and_evidence(seed, cards):
    nodes, circuit = made(seed, cards, zeros=0.2)
    truth = joint(nodes, cards)
    rng = np.random.default_rng(seed)
    held = {v: int(rng.integers(cards[v])) for v in range(len(cards)) if rng.uniform() < 0.5}
    mask = np.ones_like(truth)
    for v, state in held.items():
        other = [slice(None)] * len(cards)
        other[v] = np.arange(cards[v]) != state
        mask[tuple(other)] = 0
    if (truth * mask).sum() == 0:
        with pytest.raises(ZeroMass):
            circuit.condition(held)
        return
    expected = torch.tensor(truth * mask / (truth * mask).sum()).flatten()
    conditioned = circuit.condition(held)
    assert conditioned.cards == circuit.cards
    assert_close(conditioned.log_prob(torch.tensor(all_states(cards))).exp(), expected)


@settings(max_examples=50)
@given(SEEDS, CARDS)
def test_a_normalised_circuit_has_units_of_mass_one_and_the_same_ratios(seed, cards):
    circuit = made(seed, cards)[1]
    normal = circuit.normalized()
    states = torch.tensor(all_states(cards))
    assert_close(normal.log_prob(states), circuit.log_prob(states) - circuit.log_mass())
    sums = [node for node in normal.to_nodes() if node["type"] == "sum"]
    assert all(abs(sum(node["weights"]) - 1) < 1e-12 for node in sums)


def test_frequencies_of_draws_are_the_probabilities():
    cards = (2, 3, 2)
    nodes, circuit = made(3, cards, zeros=0.2)
    truth = torch.tensor(joint(nodes, cards)).flatten()
    truth /= truth.sum()
    count = 40_000
    drawn = circuit.sample(count)
    assert drawn.dtype == torch.int64
    code = (drawn[:, 0] * 3 + drawn[:, 1]) * 2 + drawn[:, 2]
    found = torch.bincount(code, minlength=12) / count
    assert bool((found[truth == 0] == 0).all())
    error = (truth * (1 - truth) / count).sqrt()
    assert bool(((found - truth).abs() <= 4.5 * error + 1e-12).all())


@settings(max_examples=10)
@given(SEEDS)
def test_gradients_of_discrete_circuits_agree_with_finite_differences(seed):
    cards = (2, 3, 2)
    circuit = made(seed, cards)[1].requires_grad_()
    x = torch.tensor([[0, 2, 1], [1, -1, -1], [-1, -1, -1]])

    def values(log_weights, log_table):
        numbers = {"log_weights": log_weights, "log_table": log_table}
        return torch.func.functional_call(circuit, numbers, (x,))

    circuit.forward = circuit.log_prob
    # states that a variable does not have are no parameters
    table = circuit.log_table.detach().clamp_min(-50.0)
    inputs = (circuit.log_weights.detach().clone(), table)
    assert torch.autograd.gradcheck(values, tuple(v.requires_grad_() for v in inputs))


def test_gradients_of_gaussian_circuits_agree_with_finite_differences():
    circuit = made(5, (None, 2, None))[1]
    circuit.forward = circuit.log_prob
    x = torch.tensor([[0.3, 1.0, -0.2], [math.nan, 0.0, 0.7]])

    def values(loc, scale):
        return torch.func.functional_call(circuit, {"loc": loc, "scale": scale}, (x,))

    real = circuit.loc.isfinite()
    loc = torch.where(real, circuit.loc, 0.0).detach()
    scale = torch.where(real, circuit.scale, 1.0).detach()
    grads = []
    for index in range(2):
        fixed = [circuit.loc.detach(), circuit.scale.detach()]

        def one(free, index=index, fixed=fixed):
            numbers = list(fixed)
            numbers[index] = torch.where(real, free, torch.nan)
            return values(*numbers)

        grads.append(torch.autograd.gradcheck(one, ((loc, scale)[index].clone().requires_grad_(),)))
    assert all(grads)


def test_zeros_have_no_nan_in_their_gradients():
    nodes = [indicator(0, 0), indicator(0, 1), add([0, 1], [0.0, 1.0])]
    circuit = Circuit.from_nodes(nodes).requires_grad_()
    values = circuit.log_prob(torch.tensor([[0], [1]]))
    assert values.tolist() == [-math.inf, 0.0]
    values[1].backward()
    assert not bool(circuit.log_table.grad.isnan().any())
    assert not bool(circuit.log_weights.grad.isnan().any())


# ---------------------------------------------------------------------- most probable
@given(SEEDS, st.lists(st.integers(2, 3), min_size=2, max_size=4).map(tuple))
def test_the_most_probable_state_of_a_deterministic_circuit_is_the_enumerated_one(seed, cards):
    rng = np.random.default_rng(seed)
    nodes, previous = [], None
    for v in reversed(range(len(cards))):  # a chain: sums over the states of v
        states = []
        for s in range(cards[v]):
            nodes.append(indicator(v, s, cards[v]))
            here = len(nodes) - 1
            if previous is not None:
                nodes.append(product(here, previous[s % len(previous)]))
                here = len(nodes) - 1
            states.append(here)
        previous = []
        for _ in range(2 if v else 1):
            nodes.append(add(states, rng.uniform(0.1, 1.0, cards[v]).tolist()))
            previous.append(len(nodes) - 1)
    circuit = Circuit.from_nodes(nodes)
    truth = joint(nodes, cards)
    state, log_value = circuit.most_probable()
    assert state.dtype == torch.int64
    assert_close(float(log_value), math.log(truth.max()))
    assert tuple(state.tolist()) == np.unravel_index(truth.argmax(), cards)
    held = {len(cards) - 1: 1}
    state, log_value = circuit.most_probable(held)
    assert state[-1] == 1
    assert_close(float(log_value), math.log(truth[..., 1].max()))


def test_most_probable_is_refused_where_its_pass_is_not_exact():
    mixture = [bernoulli(0, 0.2), bernoulli(0, 0.6), add([0, 1], [0.5, 0.5])]
    with pytest.raises(InvalidCircuit, match=r"deterministic circuit.*sum unit 2"):
        Circuit.from_nodes(mixture).most_probable()
    real = [{"type": "input", "var": 0, "loc": 0.0, "scale": 1.0}]
    with pytest.raises(InvalidCircuit, match="variable 0 is real"):
        Circuit.from_nodes(real).most_probable()


def test_impossible_evidence_has_no_most_probable_state():
    with pytest.raises(ZeroMass):
        Circuit.from_nodes([indicator(0, 0)]).most_probable({0: 1})


# ---------------------------------------------------------------------- Gaussian inputs
def gaussian_mixture():
    nodes = [
        {"type": "input", "var": v, "loc": loc, "scale": scale}
        for loc, scale in ((-1.0, 0.5), (2.0, 1.5))
        for v in (0, 1)
    ]
    return [*nodes, product(0, 1), product(2, 3), add([4, 5], [0.3, 0.7])]


def test_a_mixture_of_gaussians_has_its_closed_form_density():
    circuit = Circuit.from_nodes(gaussian_mixture())
    x = torch.tensor([[0.1, -0.4], [2.0, 9.0]])
    parts = [Normal(-1.0, 0.5).log_prob(x), Normal(2.0, 1.5).log_prob(x)]
    weights = torch.tensor([0.3, 0.7]).log()
    expected = torch.logsumexp(torch.stack([p.sum(1) for p in parts], 1) + weights, 1)
    assert_close(circuit.log_prob(x), expected)
    missing = torch.stack([x[:, 0], torch.full((2,), math.nan)], 1)
    expected = torch.logsumexp(torch.stack([p[:, 0] for p in parts], 1) + weights, 1)
    assert_close(circuit.log_prob(missing), expected)
    assert_close(circuit.log_prob(torch.tensor([-1.0, 0.0])).dim(), 0)  # -1 is a real value here
    marginal = circuit.marginals()[0]
    assert_close(marginal.log_prob(x[:, 0]), expected)


def test_hybrid_circuits_agree_with_the_plain_recursion():
    nodes, circuit = made(11, (None, 3, None, 2))
    points = [[0.2, 1, -1.5, 0], [1.2, 2, 0.5, 1]]
    expected = torch.tensor([math.log(value(nodes, x)) for x in points])
    assert_close(circuit.log_prob(torch.tensor(points)), expected)
    assert_close(float(circuit.normalized().log_mass()), 0.0, rtol=0, atol=1e-12)


def test_draws_of_a_gaussian_mixture_have_its_moments():
    drawn = Circuit.from_nodes(gaussian_mixture()).sample(40_000)
    assert_close(drawn.mean(0), torch.full((2,), 1.1), rtol=0, atol=0.05)
    covariance = 0.3 * 0.7 * 9.0
    variance = 0.3 * 0.25 + 0.7 * 2.25 + covariance
    expected = torch.tensor([[variance, covariance], [covariance, variance]])
    assert_close(drawn.t().cov(), expected, rtol=0, atol=0.12)


def test_a_real_variable_cannot_be_conditioned_on():
    with pytest.raises(OptionError, match="variable 0 is real"):
        Circuit.from_nodes(gaussian_mixture()).condition({0: 1.0})


def test_children_thousands_of_nats_apart_do_not_underflow():
    """A weight of zero hides the likely child from one of two sums of the same children."""
    nodes = [
        {"type": "input", "var": 0, "loc": 0.0, "scale": 1.0},
        {"type": "input", "var": 0, "loc": 60.0, "scale": 1.0},
        add([0, 1], [1.0, 0.0]),
        add([0, 1], [0.0, 1.0]),
        indicator(1, 0),
        indicator(1, 1),
        product(2, 4),
        product(3, 5),
        add([6, 7], [0.5, 0.5]),
    ]
    circuit = Circuit.from_nodes(nodes).requires_grad_()
    x = torch.tensor([[0.0, 1.0], [60.0, 0.0], [0.0, 0.0]])
    values = circuit.log_prob(x)
    loc = torch.tensor([60.0, 0.0, 0.0])
    assert_close(values, Normal(loc, 1.0).log_prob(x[:, 0]) + math.log(0.5))
    (gradient,) = torch.autograd.grad(values.sum(), circuit.loc)
    assert_close(gradient[:2], torch.tensor([60.0, -60.0]))


# ---------------------------------------------------------------------- form
def two_coins():
    """p(a) p(b | a), with p(a = 1) = 0.4 and p(b = 1 | a) = 0.3, 0.9."""
    nodes = [indicator(0, 0), indicator(0, 1), bernoulli(1, 0.3), bernoulli(1, 0.9)]
    nodes += [product(0, 2), product(1, 3), add([4, 5], [0.6, 0.4])]
    return Circuit.from_nodes(nodes)


A_GIVEN_B = torch.tensor([0.6 * 0.3, 0.4 * 0.9], dtype=torch.float64) / (0.6 * 0.3 + 0.4 * 0.9)


def cut_off_in_place(circuit):
    return circuit.requires_grad_(False)


@pytest.mark.parametrize("cut_off", [copy.deepcopy, cut_off_in_place])
@pytest.mark.parametrize("asked", [lambda c: c.condition({1: 1}), Circuit.normalized])
def test_computed_numbers_are_cut_off_with_their_values(cut_off, asked):
    circuit = two_coins().requires_grad_()
    derived = asked(circuit)
    given = derived.log_prob(torch.tensor([[0, 1], [1, 1]])).detach()
    own = cut_off(derived)
    values = own.log_prob(torch.tensor([[0, 1], [1, 1]]))
    assert not values.requires_grad
    assert torch.equal(values, given)
    assert_close((values - values.logsumexp(0)).exp(), A_GIVEN_B)
    assert {name for name, _ in own.named_parameters()} == set(own.numbers)
    apart = [own.get_parameter(name).data_ptr() for name in own.numbers]
    assert not {value.data_ptr() for value in circuit.numbers.values()} & set(apart)
    own.requires_grad_().log_mass().backward()  # a circuit like any other, with its own gradients
    assert own.log_weights.grad is not None and circuit.log_weights.grad is None


def test_a_copy_of_a_conditioned_circuit_leaves_it_attached_and_unchanged():
    circuit = two_coins().requires_grad_()
    derived = circuit.condition({1: 1})
    copied = copy.deepcopy(derived)
    copied.log_weights.data.zero_()
    values = derived.log_prob(torch.tensor([[0, 1], [1, 1]]))
    assert_close(values.exp(), A_GIVEN_B)
    values.sum().backward()
    assert bool(circuit.log_weights.grad.any())


def test_impossible_units_are_left_out_of_conditioned_circuits():
    nodes = [indicator(0, 0), indicator(0, 1), bernoulli(1, 0.3), bernoulli(1, 0.9)]
    nodes += [product(0, 2), product(1, 3), add([4, 5], [0.5, 0.5])]
    circuit = Circuit.from_nodes(nodes)
    conditioned = circuit.condition({0: 1})
    assert conditioned.num_edges < circuit.num_edges
    assert_close(conditioned.marginals()[1], torch.tensor([0.1, 0.9]))
    assert circuit.num_edges == 6


def test_edges_of_weight_zero_count_for_nothing():
    nodes = [bernoulli(0, 0.2), bernoulli(0, 0.6), add([0, 1], [0.0, 2.0])]
    circuit = Circuit.from_nodes(nodes)
    assert_close(circuit.log_prob(torch.tensor([1])).exp(), torch.tensor(1.2))
    assert circuit.properties()["deterministic"]
    assert_close(circuit.marginals()[0], torch.tensor([0.4, 0.6]))
    assert circuit.normalized().num_edges == 1


@pytest.mark.parametrize("cards", [(2, 3, 2), (None, 2, None)])
def test_float32_circuits_answer_in_float32(cards):
    nodes, circuit = made(7, cards)
    x = torch.tensor([[0, 1, 1], [1, 0, 0]])
    found = circuit.float().log_prob(x)
    assert found.dtype == torch.float32
    expected = torch.tensor([math.log(value(nodes, row)) for row in x.tolist()])
    assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert circuit.sample(3).shape == (3, 3)


def test_a_product_of_one_child_is_that_child():
    circuit = Circuit.from_nodes([bernoulli(0, 0.3), product(0), product(1)])
    assert_close(circuit.log_prob(torch.tensor([1])).exp(), torch.tensor(0.3))
    assert all(circuit.properties().values())


@given(SEEDS, st.lists(st.sampled_from([2, 3, None]), min_size=1, max_size=4).map(tuple))
def test_nodes_of_a_circuit_make_the_same_circuit(seed, cards):
    circuit = made(seed, cards, zeros=0.2)[1]
    again = Circuit.from_nodes(circuit.to_nodes())
    for name in ("kind", "var", "start", "child"):
        assert (getattr(again.units, name) == getattr(circuit.units, name)).all()
    for name, parameter in circuit.named_parameters():
        assert_close(getattr(again, name), parameter, equal_nan=True)
    assert again.cards == cards


def test_no_points_have_no_values():
    assert made(0, (2, 2))[1].log_prob(torch.zeros(0, 2)).shape == (0,)


INPUT = bernoulli(0, 0.5)
WRONG = {
    "node 1 has the type 'leaf'": [INPUT, {"type": "leaf"}],
    "node 0 has the variable -1": [{**INPUT, "var": -1}],
    'node 0 .*no "var"': [{"type": "input", "probs": [1.0]}],
    'node 1 .*no "weights"': [INPUT, {"type": "sum", "children": [0]}],
    "node 1 has 1 children and 2 weights": [INPUT, add([0], [1.0, 2.0])],
    "node 1 has a weight that is negative": [INPUT, add([0], [-1.0])],
    "node 1 has a weight that is .*not finite": [INPUT, add([0], [math.nan])],
    "sum unit 1 has the child 1": [INPUT, add([1], [1.0])],
    "product unit 1 has no children": [INPUT, {"type": "product", "children": []}],
    "node 0: .* are no probabilities": [{**INPUT, "probs": [0.5, -0.1]}],
    r"node 0: \[0.0\] are no probabilities": [{**INPUT, "probs": [0.0]}],
    'node 0 .* neither "probs" nor': [{"type": "input", "var": 0}],
    "node 0: a Gaussian": [{"type": "input", "var": 0, "loc": 0.0, "scale": 0.0}],
    "node 1: variable 0 is 2 states elsewhere, 3 states here": [
        INPUT,
        indicator(0, 0, 3),
        add([0, 1], [0.5, 0.5]),
    ],
    "variable 0 has no input": [bernoulli(1, 0.5)],
    "variable 1 has no input, and node 1 has the variable 1000000000000": [
        bernoulli(0, 0.5),
        bernoulli(10**12, 0.5),
        product(0, 1),
    ],
    "variable 0 has no input, and node 0 has the variable 10{19}:": [bernoulli(10**19, 0.5)],
    "at least one unit": [],
}


@pytest.mark.parametrize("message", WRONG)
def test_nodes_that_are_no_circuit_are_refused_by_name(message):
    with pytest.raises(InvalidCircuit, match=message):
        Circuit.from_nodes(WRONG[message])


def test_nodes_that_the_root_is_not_made_of_are_left_out():
    """p(x) = (0.3 p_1 + 0.7 p_2)(x_0) p_3(x_1), among nodes of other kinds and variables."""
    nodes = [
        bernoulli(7, 0.5),
        bernoulli(0, 0.2),
        {"type": "input", "var": 1, "loc": 0.0, "scale": 1.0},
        bernoulli(0, 0.9),
        add([1, 3], [0.5, 0.5]),  # unused, as 0 and 2
        add([3, 1], [0.7, 0.3]),
        bernoulli(1, 0.4),
        product(0, 2, 4),
        product(5, 6),
    ]
    circuit = Circuit.from_nodes(nodes)
    assert circuit.cards == (2, 2) and len(circuit.units) == 5
    x = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    first, second = 0.3 * 0.2 + 0.7 * 0.9, 0.4
    truth = [(1 - first) * (1 - second), (1 - first) * second, first * (1 - second), first * second]
    assert_close(circuit.log_prob(x).exp(), torch.tensor(truth, dtype=torch.float64))
    assert Circuit.from_nodes(circuit.to_nodes()).log_prob(x).equal(circuit.log_prob(x))
    alone = Circuit.from_nodes([bernoulli(0, 0.5), bernoulli(0, 0.2)])
    assert_close(alone.log_prob([1]).exp(), torch.tensor(0.2, dtype=torch.float64))

    with pytest.raises(InvalidCircuit, match="variable 0 has no input"):
        Circuit.from_nodes([bernoulli(0, 0.5), bernoulli(1, 0.5)])
    with pytest.raises(InvalidCircuit, match=r"node 2: \[-1.0, 2.0\] are no probabilities"):
        Circuit.from_nodes([bernoulli(0, 0.5), bernoulli(0, 0.5), bernoulli(0, 2.0)])


def test_points_outside_of_the_domain_are_refused():
    circuit = Circuit.from_nodes([bernoulli(0, 0.5), bernoulli(1, 0.5), product(0, 1)])
    with pytest.raises(ShapeMismatch, match=r"expected \[B, 2\]"):
        circuit.log_prob(torch.zeros(3, 3))
    with pytest.raises(OptionError, match="row 1 has the value 2 of variable 0"):
        circuit.log_prob(torch.tensor([[0, 1], [2, 1]]))
    with pytest.raises(OptionError, match=r"0\.5"):
        circuit.log_prob(torch.tensor([[0.5, 1]]))
    with pytest.raises(OptionError, match="no variable 2"):
        circuit.condition({2: 0})


def test_circuits_that_are_not_smooth_have_no_log_prob():
    nodes = [bernoulli(0, 0.5), bernoulli(1, 0.5), product(0, 1), add([2, 0], [0.5, 0.5])]
    with pytest.raises(InvalidCircuit, match="log_prob needs a smooth circuit: sum unit 3"):
        Circuit.from_nodes(nodes).log_prob(torch.zeros(1, 2))
    nodes = [bernoulli(0, 0.5), bernoulli(0, 0.2), product(0, 1)]
    with pytest.raises(InvalidCircuit, match=r"needs a decomposable circuit: .*product unit 2"):
        Circuit.from_nodes(nodes).log_prob(torch.zeros(1, 1))


@pytest.mark.parametrize("query", [Circuit.condition, Circuit.most_probable])
@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        ({0: -1}, "variable 0 the value -1"),
        ({0: math.nan}, "variable 0 the value nan"),
        ({0: None}, "variable 0 the value None"),
        ({0: "a"}, "variable 0 the value 'a'"),
        ({0: torch.tensor([0, 1])}, "variable 0 the value tensor"),
        ({0: 2}, r"variable 0 the value 2; it has states 0 \.\. 1"),
        ({0: 0.5}, r"variable 0 the value 0\.5"),
        ({True: 1}, "no variable True"),
        ({1.0: 1}, r"no variable 1\.0"),
        ({-1: 0}, "no variable -1"),
    ],
)
def test_evidence_that_names_no_state_of_a_variable_is_refused(query, evidence, text):
    circuit = Circuit.from_nodes([bernoulli(0, 0.8), bernoulli(1, 0.3), product(0, 1)])
    with pytest.raises(OptionError, match=text):
        query(circuit, evidence)


def test_evidence_may_be_of_any_kind_of_number():
    circuit = Circuit.from_nodes([bernoulli(0, 0.8), bernoulli(1, 0.3), product(0, 1)])
    for evidence in ({0: 0}, {0: 0.0}, {0: False}, {np.int64(0): torch.tensor([0])}):
        assert_close(circuit.condition(evidence).marginals()[0].tolist(), [1.0, 0.0])
        assert circuit.most_probable(evidence)[0].tolist() == [0, 0]


class LargestTensor(TorchDispatchMode):
    """The number of operations meanwhile, and of numbers in the largest result."""

    def __init__(self):
        super().__init__()
        self.count = self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.count += 1
        if isinstance(out, torch.Tensor):
            self.largest = max(self.largest, out.numel())
        return out


def test_draws_do_not_hold_the_states_of_every_point():
    wide = {"type": "input", "var": 0, "probs": [1 / 500] * 500}
    nodes = [wide, *(bernoulli(v, 0.5) for v in range(1, 21)), product(*range(21))]
    circuit = Circuit.from_nodes(nodes)
    with LargestTensor() as seen:
        assert circuit.sample(2000).shape == (2000, 21)
    assert seen.largest <= 2 * 2000 * 21  # 500 times as many if every draw has its probabilities


def test_many_draws_are_made_in_pieces(monkeypatch):
    nodes = [bernoulli(0, 0.8), bernoulli(1, 0.3), product(0, 1)]
    circuit = Circuit.from_nodes(nodes)
    monkeypatch.setattr("pyrograph.circuits.circuit.DRAWN", 200)
    torch.manual_seed(0)
    with LargestTensor() as seen:
        first = circuit.sample(4050)
    assert seen.largest == first.numel()
    torch.manual_seed(0)
    assert torch.equal(first, circuit.sample(4050))
    assert_close(first.double().mean(0).tolist(), [0.8, 0.3], rtol=0, atol=0.03)
    assert circuit.sample(0).shape == (0, 2)


@pytest.mark.parametrize("card", [1, 2, 3, 7, 8, 9])
def test_drawn_states_have_their_frequencies_and_none_is_impossible(card):
    probs = np.random.default_rng(card).random(card) * (np.arange(card) % 3 != 1)
    probs /= probs.sum()
    log_probs = {"type": "input", "var": 0, "probs": probs.tolist()}
    nodes = [log_probs, {"type": "input", "var": 1, "probs": [0.1] * 10}, product(0, 1)]
    drawn = Circuit.from_nodes(nodes).sample(20_000)
    for v, expected in enumerate((probs, np.full(10, 0.1))):
        share = torch.bincount(drawn[:, v], minlength=len(expected)).double() / 20_000
        assert_close(share, torch.tensor(expected), rtol=0, atol=0.015)
        assert bool((share[torch.tensor(expected) == 0] == 0).all())


@pytest.mark.parametrize("weight", [1e-30, 1e-300, 0.0])
def test_a_marginal_keeps_components_of_the_smallest_weights(weight):
    gaussians = [{"type": "input", "var": 0, "loc": m, "scale": 1.0} for m in (0.0, 50.0)]
    circuit = Circuit.from_nodes([*gaussians, add([0, 1], [1.0, weight])]).requires_grad_()
    x = torch.tensor([0.0, 48.0, 51.0])
    marginal = circuit.marginals()[0]
    parts = torch.stack([Normal(m, 1.0).log_prob(x) for m in (0.0, 50.0)])
    expected = (parts + torch.tensor([[1.0], [weight]]).log()).logsumexp(0)
    assert_close(marginal.log_prob(x), expected)
    (gradient,) = torch.autograd.grad(marginal.log_prob(x).sum(), circuit.log_weights)
    assert gradient.isfinite().all()
