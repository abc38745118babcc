"""Expected kernels and MMD against sums over all states, and closed forms of Gaussians."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from pyrograph.circuits import (
    RBF,
    Circuit,
    Delta,
    Hamming,
    KernelCircuit,
    compatible,
    expected_kernel,
    fully_factorised,
    kdsd,
    squared_mmd,
    tree_network,
)
from pyrograph.circuits.expectations.expected import common_regions
from pyrograph.errors import (
    IncompatibleCircuits,
    InvalidCircuit,
    OptionError,
    ShapeMismatch,
    UnsupportedFactor,
)
from tests.circuits.random_circuits import random_circuit, random_pair, random_vtree, states

seeds = st.integers(0, 10_000)


def kernels(cards):
    weights = torch.linspace(0.1, 1.5, len(cards))
    return [
        Hamming(),
        Hamming(weights),
        RBF(1.7),
        Delta(),
        Hamming() + 2.0 * RBF(3.0) * Hamming(0.3),
    ]


def summed(p, q, kernel, cards):
    x = states(cards)
    return p.log_prob(x).exp() @ kernel.gram(x, x, cards) @ q.log_prob(x).exp()


@settings(max_examples=20)
@given(seed=seeds)
def test_expected_kernel_is_the_sum_over_all_pairs_of_states(seed):
    cards, p, q = random_pair(seed)
    for kernel in kernels(cards):
        assert_close(
            expected_kernel(p, q, kernel), summed(p, q, kernel, cards), rtol=1e-10, atol=1e-13
        )


@settings(max_examples=40)
@given(seed=seeds)
def test_expected_kernel_is_symmetric_in_its_circuits(seed):
    _, p, q = random_pair(seed)
    assert_close(
        expected_kernel(p, q, Hamming()), expected_kernel(q, p, Hamming()), rtol=1e-12, atol=0
    )


@settings(max_examples=40)
@given(seed=seeds)
def test_circuits_split_more_finely_are_regrouped(seed):
    """One product of all variables fits every vtree."""
    cards, p, _ = random_pair(seed)
    flat = random_circuit(cards, tuple(range(len(cards))), torch.Generator().manual_seed(seed))
    assert compatible(p, flat)
    for a, b in ((p, flat), (flat, p), (flat, flat)):
        assert_close(
            expected_kernel(a, b, Hamming()), summed(a, b, Hamming(), cards), rtol=1e-10, atol=0
        )


@settings(max_examples=40)
@given(seed=seeds)
def test_squared_mmd_is_that_of_the_normalised_tables_and_zero_of_equals(seed):
    cards, p, q = random_pair(seed)
    x = states(cards)
    difference = p.log_prob(x).softmax(0) - q.log_prob(x).softmax(0)
    truth = difference @ Hamming().gram(x, x, cards) @ difference
    assert_close(squared_mmd(p, q, Hamming()), truth, rtol=0, atol=1e-12)
    assert squared_mmd(p, q, Hamming()) >= -1e-14
    assert_close(squared_mmd(p, p, Hamming()), torch.zeros(()), rtol=0, atol=1e-14)


def test_kernel_circuits_of_nested_sums_are_evaluated_as_they_stand():
    cards = [2, 3, 2, 4]
    generator = torch.Generator().manual_seed(1)
    p, q = (random_circuit(cards, ((0, 1), (2, 3)), generator) for _ in range(2))

    def table(card):
        root = torch.rand(card, card, generator=generator)
        return root @ root.t()

    inputs = [{"type": "input", "var": v, "kernel": table(cards[v])} for v in (0, 0, 1, 1, 2, 3)]
    kernel = KernelCircuit(
        [
            *inputs,
            {"type": "product", "children": [0, 2]},
            {"type": "product", "children": [1, 3]},
            {"type": "sum", "children": [6, 7], "weights": [0.3, 0.9]},
            {"type": "product", "children": [8, 4, 5]},
        ]
    )
    assert_close(expected_kernel(p, q, kernel), summed(p, q, kernel, cards), rtol=1e-12, atol=0)


def two_tables(first):
    return KernelCircuit(
        [
            {"type": "input", "var": 0, "kernel": first},
            {"type": "input", "var": 1, "kernel": torch.eye(2)},
            {"type": "product", "children": [0, 1]},
        ]
    )


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([[1.0, 0.9], [0.1, 1.0]], "not symmetric"),
        ([[1.0, float("nan")], [float("nan"), 1.0]], "NaN"),
        ([[float("inf"), 0.0], [0.0, 1.0]], "infinite"),
        ([[0, 1], [1, 0]], "eigenvalue -1"),
        ([1.0, 1.0], "matrix"),
    ],
)
def test_a_table_that_is_no_kernel_is_refused_with_its_node(table, words):
    p = random_circuit([2, 2], (0, 1), torch.Generator().manual_seed(0))
    with pytest.raises(InvalidCircuit, match=f"node 0: .*{words}"):
        squared_mmd(p, p, two_tables(table))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_table_of_low_rank_is_a_kernel_whatever_rounding_does(dtype):
    generator = torch.Generator().manual_seed(0)
    cards = [60, 2]
    p, q = (random_circuit(cards, (0, 1), generator) for _ in range(2))
    root = torch.rand(60, 2, generator=generator, dtype=dtype)
    kernel = two_tables(root @ root.t() * 1e3)  # 58 eigenvalues are 0 up to rounding
    assert_close(expected_kernel(p, q, kernel), summed(p, q, kernel, cards), rtol=1e-6, atol=0)


def test_a_kernel_circuit_along_another_vtree_is_refused():
    cards = [2, 2, 2]
    generator = torch.Generator().manual_seed(0)
    p = random_circuit(cards, ((0, 1), 2), generator)
    inputs = [{"type": "input", "var": v, "kernel": torch.eye(2)} for v in (0, 1, 2)]
    kernel = KernelCircuit(
        [
            *inputs,
            {"type": "product", "children": [0, 2]},
            {"type": "product", "children": [3, 1]},
        ]
    )
    with pytest.raises(IncompatibleCircuits, match="the kernel"):
        expected_kernel(p, p, kernel)


def test_incompatible_circuits_are_refused_with_both_units():
    cards = [2, 2, 2]
    generator = torch.Generator().manual_seed(0)
    p = random_circuit(cards, ((0, 1), 2), generator)
    q = random_circuit(cards, ((0, 2), 1), generator)
    assert not compatible(p, q)
    with pytest.raises(IncompatibleCircuits, match=r"product unit \d+ of the .* and product unit"):
        expected_kernel(p, q, Hamming())


@given(seed=seeds)
def test_two_random_vtrees_are_compatible_exactly_if_no_scopes_cross(seed):
    generator = torch.Generator().manual_seed(seed)
    cards = [2] * 4
    p, q = (
        random_circuit(cards, random_vtree([0, 1, 2, 3], generator, 2), generator) for _ in range(2)
    )

    def scopes(circuit):
        nodes, found = circuit.to_nodes(), []
        for node in nodes:
            below = {node["var"]} if node["type"] == "input" else set()
            found.append(below.union(*(found[c] for c in node.get("children", ()))))
        return found

    crossing = any(a & b and a - b and b - a for a in scopes(p) for b in scopes(q))
    assert compatible(p, q) == (not crossing)


def test_circuits_of_other_variables_are_refused():
    generator = torch.Generator().manual_seed(0)
    p, q = (random_circuit(cards, (0, 1), generator) for cards in ([2, 2], [2, 3]))
    assert not compatible(p, q)
    with pytest.raises(ShapeMismatch, match="same variables"):
        expected_kernel(p, q, Hamming())


def test_circuits_that_are_not_smooth_are_refused():
    p = Circuit.from_nodes(
        [
            {"type": "input", "var": 0, "probs": [0.4, 0.6]},
            {"type": "input", "var": 1, "probs": [0.4, 0.6]},
            {"type": "product", "children": [0, 1]},
            {"type": "sum", "children": [0, 2], "weights": [0.5, 0.5]},
        ]
    )
    with pytest.raises(InvalidCircuit, match="smooth"):
        expected_kernel(p, p, Hamming())


def gaussians(locs, scales, weights):
    nodes, products = [], []
    for row, widths in zip(locs, scales, strict=True):
        children = []
        for v, (loc, scale) in enumerate(zip(row, widths, strict=True)):
            nodes.append({"type": "input", "var": v, "loc": loc, "scale": scale})
            children.append(len(nodes) - 1)
        nodes.append({"type": "product", "children": children})
        products.append(len(nodes) - 1)
    nodes.append({"type": "sum", "children": products, "weights": weights})
    return Circuit.from_nodes(nodes)


def test_rbf_under_gaussian_mixtures_is_the_dense_integral():
    p = gaussians([[0.0, 1.0], [2.0, -1.0]], [[0.5, 1.0], [0.3, 0.8]], [0.4, 0.6])
    q = gaussians([[1.0, 0.0], [-1.0, 0.5]], [[0.7, 0.4], [0.6, 0.9]], [0.5, 0.5])
    axis = torch.linspace(-7, 8, 400)
    step = float(axis[1] - axis[0])
    x = torch.cartesian_prod(axis, axis)
    a, b = (c.log_prob(x).exp().reshape(400, 400) * step**2 for c in (p, q))
    k = torch.exp(-((axis.unsqueeze(1) - axis) ** 2) / 2.5)
    truth = (a * (k @ b @ k)).sum()
    assert_close(expected_kernel(p, q, RBF(2.5)), truth, rtol=1e-10, atol=0)
    assert_close(expected_kernel(p, q, RBF(5.0) * RBF(5.0)), truth, rtol=1e-10, atol=0)


def test_other_kernels_of_real_variables_are_refused():
    p = gaussians([[0.0]], [[1.0]], [1.0])
    with pytest.raises(UnsupportedFactor, match="RBF"):
        expected_kernel(p, p, Hamming())


def test_expected_kernel_is_differentiable_in_weights_inputs_and_bandwidth():
    cards = [2, 3, 2]
    generator = torch.Generator().manual_seed(3)
    p, q = (random_circuit(cards, ((0, 1), 2), generator) for _ in range(2))
    p.requires_grad_()
    bandwidth = torch.tensor(1.3, requires_grad=True)
    value = expected_kernel(p, q, RBF(bandwidth))
    value.backward()
    for tensor, index in ((p.log_weights, 1), (p.log_table, (2, 1))):
        step = 1e-6
        with torch.no_grad():
            tensor[index] += step
            up = expected_kernel(p, q, RBF(1.3))
            tensor[index] -= 2 * step
            down = expected_kernel(p, q, RBF(1.3))
            tensor[index] += step
        assert_close(tensor.grad[index], (up - down) / (2 * step), rtol=1e-6, atol=1e-9)
    up, down = (expected_kernel(p, q, RBF(1.3 + s)).detach() for s in (1e-6, -1e-6))
    assert_close(bandwidth.grad, (up - down) / 2e-6, rtol=1e-6, atol=1e-9)


def test_many_variables_do_not_underflow():
    """500 factors of 1e-3 are far below the smallest double; their ratio is not."""
    d = 500
    nodes = [{"type": "input", "var": v, "probs": [1e-3, 1e-3]} for v in range(d)]
    p = Circuit.from_nodes([*nodes, {"type": "product", "children": list(range(d))}])
    assert_close(p.log_mass(), torch.tensor(d * math.log(2e-3)), rtol=1e-12, atol=0)
    assert_close(squared_mmd(p, p, Hamming()), torch.zeros(()), rtol=0, atol=1e-14)


def test_float32_circuits_stay_float32():
    _, p, q = random_pair(5)
    value = expected_kernel(p.float(), q.float(), Hamming())
    assert value.dtype == torch.float32
    assert_close(
        value.double(), expected_kernel(p.double(), q.double(), Hamming()), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize(
    "query",
    [
        lambda p, q: expected_kernel(p, q, Hamming()),
        lambda p, q: squared_mmd(p, q, Hamming()),
        kdsd,
    ],
    ids=["expected_kernel", "squared_mmd", "kdsd"],
)
def test_circuits_of_other_dtypes_are_refused_with_both(query):
    p = fully_factorised([torch.tensor([0.3, 0.7])] * 3)
    q = fully_factorised([torch.tensor([0.4, 0.6])] * 3)
    single = fully_factorised([torch.tensor([0.4, 0.6])] * 3).float()
    assert query(p, q).dtype == torch.float64
    for pair in ((p, single), (single, p)):
        with pytest.raises(OptionError, match=r"float32.*float64|float64.*float32"):
            query(*pair)
    assert query(single, single).dtype == torch.float32


@pytest.mark.parametrize("make", [lambda: RBF(-1.0), lambda: RBF(math.inf)])
def test_impossible_bandwidths_are_refused(make):
    with pytest.raises(OptionError, match="positive"):
        make()


def test_weights_of_hamming_are_checked_against_the_variables():
    _, p, q = random_pair(2)
    with pytest.raises(ShapeMismatch, match="weights"):
        expected_kernel(p, q, Hamming([0.1] * 17))
    with pytest.raises(OptionError, match="not negative"):
        expected_kernel(p, q, Hamming(-1.0))


@pytest.mark.parametrize("log_mass", [40.0, 300.0, 400.0, 2000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masses_out_of_range_leave_an_expectation_that_is_in_range(log_mass, dtype):
    def one(*logs):
        return Circuit.from_nodes([{"type": "input", "var": 0, "log_probs": logs}]).to(dtype)

    p, q = one(log_mass, -math.inf), one(-math.inf, log_mass)
    assert expected_kernel(p, q, Delta()) == 0  # nothing in common
    # e^2m e^-2m on the one state that they share, the other is beyond e^-800
    p, q = one(log_mass, log_mass), one(-log_mass, -log_mass - 800)
    assert float(expected_kernel(p, q, Delta())) == pytest.approx(1.0, rel=1e-5)


def test_a_mass_out_of_range_is_brought_back_by_the_kernel():
    nodes = [{"type": "input", "var": 0, "loc": 0.0, "scale": 1e-3}]
    nodes.append({"type": "sum", "children": [0], "log_weights": [360.0]})
    p, q = (Circuit.from_nodes([{**nodes[0], "loc": loc}, nodes[1]]) for loc in (0.0, 10.0))
    # of variances v, E k = (h / (h + 4 v))^(1/2) exp(-d^2 / (h + 4 v))
    h = 1 / 7
    width = h + 4e-6
    expected = math.sqrt(h / width) * math.exp(720 - 100 / width)
    assert float(expected_kernel(p, q, RBF(h))) == pytest.approx(expected, rel=1e-9)


def test_nodes_that_a_kernel_is_not_made_of_are_left_out():
    """k = 0.25 k_1 + 0.75 k_2, beside an unused kernel of an unused variable."""
    tables = [[[1.0, 0.1], [0.1, 1.0]], [[1.0, 0.6], [0.6, 2.0]]]
    nodes = [
        {"type": "input", "var": 0, "kernel": tables[0]},
        {"type": "input", "var": 1, "kernel": tables[0]},
        {"type": "input", "var": 0, "kernel": tables[1]},
        {"type": "product", "children": [0, 1]},
        {"type": "sum", "children": [3], "weights": [5.0]},
        {"type": "sum", "children": [0, 2], "weights": [0.25, 0.75]},
    ]
    p = Circuit.from_nodes([{"type": "input", "var": 0, "probs": [0.3, 0.7]}])
    k = 0.25 * torch.tensor(tables[0]) + 0.75 * torch.tensor(tables[1])
    probs = torch.tensor([0.3, 0.7])
    value = expected_kernel(p, p, KernelCircuit(nodes))
    assert float(value) == pytest.approx(float(probs @ k @ probs))
    points = torch.tensor([[0.0], [1.0]])
    assert torch.allclose(KernelCircuit(nodes).gram(points, points, [2]), k.double())


def test_few_regions_of_a_chain_wait_for_others():
    count = 60
    tables = [[0.4, 0.6], *[[[0.3, 0.7], [0.6, 0.4]]] * (count - 1)]
    p = tree_network([None, *range(count - 1)], tables)
    regions = common_regions(p, p)
    waiting, most = set(), 0
    for r in regions.depth_first():
        assert waiting >= set(regions.parts[r])
        waiting = waiting - set(regions.parts[r]) | {r}
        most = max(most, len(waiting))
    assert waiting == {len(regions) - 1}
    assert most <= 3  # a suffix of the chain, and what it is joined with
