import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrograph.circuits import Circuit
from tests.circuits.reference import all_states, random_nodes, value


def bernoulli(var, p):
    return {"type": "input", "var": var, "probs": [1 - p, p]}


def indicator(var, state):
    return bernoulli(var, float(state))


def product(*children):
    return {"type": "product", "children": list(children)}


def add(*children):
    return {
        "type": "sum",
        "children": list(children),
        "weights": [1 / len(children)] * len(children),
    }


def properties(nodes):
    return Circuit.from_nodes(nodes).properties()


THREE = [bernoulli(v, p) for p in (0.3, 0.6) for v in range(3)]


def test_a_product_of_inputs_has_all_properties():
    assert all(properties([*THREE[:3], product(0, 1, 2)]).values())


def test_a_sum_of_unlike_scopes_is_not_smooth():
    found = properties([*THREE[:2], product(0, 1), add(2, 0)])
    assert found == {
        "smooth": False,
        "decomposable": True,
        "structured": False,
        "deterministic": False,
    }


def test_a_product_of_overlapping_scopes_is_not_decomposable():
    found = properties([bernoulli(0, 0.2), bernoulli(0, 0.4), product(0, 1)])
    assert found["smooth"] and not found["decomposable"] and not found["structured"]


def test_two_ways_to_break_variables_apart_are_not_structured():
    nodes = [*THREE, product(0, 1), product(6, 2), product(4, 5), product(8, 3), add(7, 9)]
    found = properties(nodes)
    assert found["smooth"] and found["decomposable"] and not found["structured"]


def test_unlike_groupings_of_one_vtree_are_structured():
    nodes = [*THREE, product(0, 1), product(6, 2), product(3, 4, 5), add(7, 8)]
    found = properties(nodes)
    assert found["structured"] and not found["deterministic"]


def test_a_mixture_is_not_deterministic_and_a_decision_is():
    assert not properties([bernoulli(0, 0.1), bernoulli(0, 0.9), add(0, 1)])["deterministic"]
    nodes = [indicator(0, 0), indicator(0, 1), *THREE[1:3], bernoulli(1, 0.9), bernoulli(2, 0.8)]
    nodes += [product(0, 2, 3), product(1, 4, 5), add(6, 7)]
    assert all(properties(nodes).values())


def test_determinism_may_lie_in_a_sum_far_below():
    """Children that exclude each other only jointly: x0 = x1 against x0 != x1."""
    nodes = [indicator(v, s) for v in (0, 1) for s in (0, 1)]
    nodes += [product(0, 2), product(1, 3), product(0, 3), product(1, 2)]
    nodes += [add(4, 5), add(6, 7), add(8, 9)]
    assert properties(nodes)["deterministic"]


def test_an_unstructured_decision_is_deterministic():
    """x0 decides, and the two branches order the other variables in their own way."""
    nodes = [indicator(0, 0), indicator(0, 1), *THREE[1:3], bernoulli(3, 0.2)]
    nodes += [product(2, 3), product(3, 4)]
    nodes += [product(0, 5, 4), product(1, 6, 2), add(7, 8)]
    found = properties(nodes)
    assert not found["structured"] and found["deterministic"]


@pytest.mark.parametrize("probability", [0.0, 0.1])
def test_pairs_of_children_may_be_told_apart_by_variables_of_their_own(probability):
    """x0 tells the third child from the others and x1 these from each other; the children group
    the other variables each in its own way."""
    nodes = [indicator(0, 0), indicator(0, 1), indicator(1, 0), bernoulli(1, 1 - probability)]
    nodes += [bernoulli(v, 0.3) for v in (1, 2, 3)]
    nodes += [product(2, 5), product(7, 6), product(0, 8)]  # ((x1 x2) x3) x0
    nodes += [product(3, 6), product(10, 5), product(0, 11)]  # ((x1 x3) x2) x0
    nodes += [product(5, 6), product(4, 13), product(1, 14)]  # ((x2 x3) x1) x0
    nodes += [add(9, 12, 15)]
    found = properties(nodes)
    assert not found["structured"] and found["decomposable"]
    assert found["deterministic"] == (probability == 0)


def test_real_inputs_are_positive_together():
    real = [{"type": "input", "var": 0, "loc": m, "scale": 1.0} for m in (0.0, 100.0)]
    assert not properties([*real, add(0, 1)])["deterministic"]
    nodes = [*real, indicator(1, 0), indicator(1, 1), product(0, 2), product(1, 3), add(4, 5)]
    assert all(properties(nodes).values())


@given(st.integers(0, 10_000), st.booleans())
def test_determinism_of_random_structured_circuits_is_that_of_their_supports(seed, many_zeros):
    cards = (2, 3, 2)
    rng = np.random.default_rng(seed)
    nodes = random_nodes(rng, cards, is_structured=True, zeros=0.7 if many_zeros else 0.3)
    found = properties(nodes)
    assert found["smooth"] and found["decomposable"] and found["structured"]
    expected = True
    for node in nodes:
        if node["type"] == "sum":
            live = [c for w, c in zip(node["weights"], node["children"]) if w > 0]
            for x in all_states(cards):
                expected &= sum(value(nodes[: c + 1], x) > 0 for c in live) <= 1
    assert found["deterministic"] == expected


@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_random_circuits_are_smooth_and_decomposable(zeros):
    for seed in range(10):
        found = properties(random_nodes(np.random.default_rng(seed), (2, 2, 3, 2), zeros=zeros))
        assert found["smooth"] and found["decomposable"]
