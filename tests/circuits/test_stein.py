"""Discrete Stein discrepancies against the Stein kernel written out over all pairs of states."""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from pyrograph import trace_graph
from pyrograph.circuits import (
    RBF,
    Circuit,
    Hamming,
    compile_graph,
    kdsd,
    stein_gram,
    tree_network,
)
from pyrograph.errors import (
    IncompatibleCircuits,
    InvalidCircuit,
    NonFiniteDensity,
    ShapeMismatch,
    ZeroMass,
)
from tests.circuits.random_circuits import deterministic_circuit, random_circuit, states

seeds = st.integers(0, 10_000)


def test_rounding_leaves_no_discrepancy_below_zero():
    """At q = p it is a sum of squares that are all rounding."""
    for k in range(-40, 40):
        tilt = torch.tensor([0.0, 0.1 * k])[:, None] * torch.arange(3.0)
        first = torch.tensor([0.7, 0.3])
        table = (tilt.exp() * torch.tensor([0.2, 0.3, 0.5])).double()
        p = tree_network([None, 0], [first * table.sum(1), table / table.sum(1, keepdim=True)])
        assert 0 <= float(kdsd(p, p)) < 1e-20


def neighbour(x, i, step, cards):
    y = x.clone()
    y[:, i] = (y[:, i] + step) % cards[i]
    return y


def stein_kernel(p, kernel, cards):
    """Yang et al.'s form, with the inverse shift inside the kernel:

    k_p(x, y) = sum_i s_i(x) k s_i(y) - s_i(x) D*_y k - D*_x k s_i(y) + D*_x D*_y k,

    s_i(x) = 1 - p(not_i x) / p(x), D*_i f(x) = f(x) - f(inv_i x)."""
    x = states(cards)
    total = 0
    for i in range(len(cards)):
        before = neighbour(x, i, -1, cards)
        score = 1 - (p.log_prob(neighbour(x, i, 1, cards)) - p.log_prob(x)).exp()
        k = kernel.gram(x, x, cards)
        dy = k - kernel.gram(x, before, cards)
        dx = k - kernel.gram(before, x, cards)
        dxy = dx - kernel.gram(x, before, cards) + kernel.gram(before, before, cards)
        a, b = score.unsqueeze(1), score.unsqueeze(0)
        total = total + a * k * b - a * dy - dx * b + dxy
    return total


def random_target(seed):
    generator = torch.Generator().manual_seed(seed)
    count = 2 + int(torch.randint(3, (), generator=generator))
    cards = (2 + torch.randint(3, (count,), generator=generator)).tolist()
    return cards, deterministic_circuit(cards, generator), generator


def right_linear(count):
    tree = count - 1
    for v in reversed(range(count - 1)):
        tree = (v, tree)
    return tree


@settings(max_examples=40)
@given(seed=seeds)
def test_the_mean_of_the_stein_kernel_under_the_target_is_zero(seed):
    """The defining property, of the reference itself; with not_i in the kernel it fails."""
    cards, p, _ = random_target(seed)
    mean = stein_kernel(p, Hamming(), cards) @ p.log_prob(states(cards)).softmax(0)
    assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-9)


@settings(max_examples=10)
@given(seed=seeds)
def test_kdsd_is_the_sum_over_all_pairs_of_states(seed):
    cards, p, generator = random_target(seed)
    q = random_circuit(cards, right_linear(len(cards)), generator, sparse=0.3)
    weights = q.log_prob(states(cards)).softmax(0)
    for kernel in (Hamming(), RBF(2.0), Hamming(0.7) + RBF(1.0)):
        truth = weights @ stein_kernel(p, kernel, cards) @ weights
        assert_close(kdsd(q, p, kernel), truth, rtol=1e-10, atol=1e-11)


@settings(max_examples=40)
@given(seed=seeds)
def test_kdsd_of_the_target_itself_is_zero_whatever_its_mass(seed):
    _, p, _ = random_target(seed)
    heavier = Circuit(p.units, p.domain, p.log_weights + 1.0, p.log_table, p.loc, p.scale)
    assert_close(kdsd(heavier, p), torch.zeros(()), rtol=0, atol=1e-12)


@settings(max_examples=40)
@given(seed=seeds)
def test_gram_of_collapsed_samples_is_the_kernel_between_their_conditionals(seed):
    """Every sample holds other variables; the rest is summed out."""
    cards, p, generator = random_target(seed)
    x = states(cards)
    points = p.sample(7)
    points[torch.rand(points.shape, generator=generator) < 0.5] = -1
    agrees = ((points.unsqueeze(1) == x) | (points == -1).unsqueeze(1)).all(2)
    conditionals = torch.where(agrees, p.log_prob(x), -torch.inf).softmax(1)
    kernel = Hamming(torch.linspace(0.2, 1.0, len(cards)))
    truth = conditionals @ stein_kernel(p, kernel, cards) @ conditionals.t()
    gram = stein_gram(p, points, kernel)
    scale = max(1.0, float(truth.abs().max()))
    assert_close(gram, truth, rtol=1e-9, atol=1e-11 * scale)
    assert torch.linalg.eigvalsh(gram).min() > -1e-10 * scale
    assert_close(
        stein_gram(p, points, kernel, points[:3]), gram[:, :3], rtol=1e-9, atol=1e-11 * scale
    )


@given(seed=seeds)
def test_a_sample_without_held_variables_has_no_discrepancy(seed):
    cards, p, _ = random_target(seed)
    nothing = torch.full((1, len(cards)), -1)
    assert_close(stein_gram(p, nothing), torch.zeros(1, 1), rtol=0, atol=0)


def test_gram_in_small_chunks_is_the_same(monkeypatch):
    _, p, generator = random_target(11)
    points = p.sample(40)
    points[torch.rand(points.shape, generator=generator) < 0.3] = -1
    whole = stein_gram(p, points)
    monkeypatch.setattr("pyrograph.circuits.expectations.stein.CHUNK", 1)
    assert_close(stein_gram(p, points), whole, rtol=1e-10, atol=1e-12)


def test_gram_is_differentiable_in_the_target():
    _, p, _ = random_target(4)
    points = p.sample(3)
    points[0, 0] = -1
    p.requires_grad_()
    stein_gram(p, points).sum().backward()
    step = 1e-6
    with torch.no_grad():
        p.log_weights[1] += step
        up = stein_gram(p, points).sum()
        p.log_weights[1] -= 2 * step
        down = stein_gram(p, points).sum()
    assert_close(p.log_weights.grad[1], (up - down) / (2 * step), rtol=1e-5, atol=1e-7)


def test_a_target_with_zeros_is_refused_with_the_state():
    nodes = [
        {"type": "input", "var": 0, "probs": [1.0, 0.0]},
        {"type": "input", "var": 0, "probs": [0.0, 1.0]},
        {"type": "input", "var": 1, "probs": [0.5, 0.5]},
        {"type": "input", "var": 1, "probs": [1.0, 0.0]},
        {"type": "product", "children": [0, 2]},
        {"type": "product", "children": [1, 3]},
        {"type": "sum", "children": [4, 5], "weights": [0.5, 0.5]},
    ]
    p = Circuit.from_nodes(nodes)
    with pytest.raises(InvalidCircuit, match=r"zero at the state \[1, 1\]"):
        kdsd(p, p)


def either_of_two():
    """Two fair bits and a third that is 1 if one of them is."""
    nodes = [
        {"type": "input", "var": v, "probs": [1.0 - s, float(s)]} for v in range(3) for s in (0, 1)
    ]
    for a, b in itertools.product((0, 1), repeat=2):
        nodes.append({"type": "product", "children": [a, 2 + b, 4 + max(a, b)]})
    nodes.append({"type": "sum", "children": [6, 7, 8, 9], "weights": [0.25] * 4})
    return Circuit.from_nodes(nodes)


def test_a_stein_kernel_is_refused_where_zeros_are_held():
    p = either_of_two()
    x = states([2, 2, 2])
    possible = x[p.log_prob(x) > -torch.inf]
    with pytest.raises(InvalidCircuit, match=r"zero at the state \[0, 0, 1\]"):
        stein_gram(p, possible)
    with pytest.raises(InvalidCircuit, match=r"state \[1, -1, 0\], which is sample 0 with .* 0 "):
        stein_gram(p, torch.tensor([[0, -1, 0], [1, -1, 1]]))
    with pytest.raises(InvalidCircuit, match=r"zero at the state \[0, 0, 1\]"):
        stein_gram(p, torch.tensor([[0, 1, -1]]), others=possible[:1])


def test_zeros_that_are_summed_out_are_no_zeros_of_a_stein_kernel():
    p = either_of_two()
    held = states([2, 2])
    points = torch.cat([held, torch.full((4, 1), -1)], 1)
    gram = stein_gram(p, points)
    assert_close(gram.mean(1), torch.zeros(4), rtol=0, atol=1e-14)  # all four are as likely
    assert float(gram.diagonal().min()) > 0.1


def test_a_stein_kernel_of_a_mixture_is_refused_beside_a_zero():
    """Its two parts overlap at [0, 0], and [1, 1] is in none."""
    nodes = [
        {"type": "input", "var": 0, "probs": [1.0, 0.0]},
        {"type": "input", "var": 1, "probs": [0.5, 0.5]},
        {"type": "input", "var": 0, "probs": [0.5, 0.5]},
        {"type": "input", "var": 1, "probs": [1.0, 0.0]},
        {"type": "product", "children": [0, 1]},
        {"type": "product", "children": [2, 3]},
        {"type": "sum", "children": [4, 5], "weights": [0.5, 0.5]},
    ]
    p = Circuit.from_nodes(nodes)
    with pytest.raises(InvalidCircuit, match=r"zero at the state \[1, 1\], which is sample 1 with"):
        stein_gram(p, torch.tensor([[0, 0], [1, 0]]))


def test_the_zero_that_counts_beside_a_sample_is_the_one_of_the_next_state():
    inputs = [{"type": "input", "var": 0, "probs": p} for p in ([0.5, 0.5, 0.0], [0.1, 0.9, 0.0])]
    mixed = {"type": "sum", "children": [0, 1], "weights": [0.5, 0.5]}
    p = Circuit.from_nodes([*inputs, mixed])
    with pytest.raises(InvalidCircuit, match=r"the state \[2\], which is sample 0 with variable 0"):
        stein_gram(p, torch.tensor([[1.0]]))
    # k is 1 at equal states and e^-1 else, and the score at state 0 is .7 / .3
    ratio = 7 / 3
    expected = 1 - 2 * ratio * math.exp(-1) + ratio**2
    assert float(stein_gram(p, torch.tensor([[0.0]]))) == pytest.approx(expected)


def test_a_stein_kernel_is_refused_where_a_zero_is_torchs_eps():
    def model():
        pyro.sample("rain", dist.Bernoulli(torch.tensor(0.0)))

    p = compile_graph(trace_graph(model))
    with pytest.raises(InvalidCircuit, match=r"zero at the state \[1\], but for the eps"):
        stein_gram(p, torch.tensor([[0], [1]]))


def test_a_target_that_is_not_deterministic_is_refused():
    cards = [2, 2]
    q = random_circuit(cards, (0, 1), torch.Generator().manual_seed(0))
    with pytest.raises(InvalidCircuit, match="deterministic"):
        kdsd(q, q)


def test_a_circuit_along_another_vtree_is_refused():
    generator = torch.Generator().manual_seed(0)
    p = deterministic_circuit([2, 2, 2], generator)
    q = random_circuit([2, 2, 2], ((0, 2), 1), generator)
    with pytest.raises(IncompatibleCircuits):
        kdsd(q, p)


def test_impossible_samples_are_refused():
    p = random_circuit([2, 2], (0, 1), torch.Generator().manual_seed(1))
    given_state = p.condition({0: 1})
    with pytest.raises(ZeroMass, match="probability zero"):
        stein_gram(given_state, torch.tensor([[0, 1], [1, 1]]))
    with pytest.raises(ShapeMismatch):
        stein_gram(p, torch.tensor([[0, 1, 1]]))


def steep_target():
    """Two independent bits, the first 0 and the second 1 but for a share of exp(-800): the inverse
    of that is no number."""
    nodes = [
        {"type": "input", "var": 0, "log_probs": [0.0, -800.0]},
        {"type": "input", "var": 1, "log_probs": [-800.0, 0.0]},
        {"type": "product", "children": [0, 1]},
    ]
    return Circuit.from_nodes(nodes)


def test_a_stein_kernel_that_overflows_is_refused_with_its_points():
    p, points = steep_target(), torch.tensor([[0, 1], [-1, 1], [1, -1]])
    held = stein_gram(p, points[:2])
    # at the likely state r = 0: sum_i k(inv_i x, inv_i x) = 1 a variable that both hold
    assert_close(held, torch.tensor([[2.0, 1.0], [1.0, 1.0]]))
    with pytest.raises(NonFiniteDensity, match="of point 0 and point 2 overflows"):
        stein_gram(p, points)


def test_points_that_hold_no_variable_both_have_no_discrepancy_however_steep_the_target():
    p = steep_target()
    first, second = torch.tensor([[1, -1]]), torch.tensor([[-1, 1], [-1, 0]])
    assert torch.equal(stein_gram(p, first, others=second), torch.zeros(1, 2))


def test_a_discrepancy_that_overflows_is_refused():
    p = steep_target()
    nodes = [{"type": "input", "var": i, "probs": [0.5, 0.5]} for i in range(2)]
    q = Circuit.from_nodes([*nodes, {"type": "product", "children": [0, 1]}])
    with pytest.raises(NonFiniteDensity, match="discrepancy overflows"):
        kdsd(q, p)
    assert_close(kdsd(p, p), torch.zeros(()))
