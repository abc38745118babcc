import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal
from torch.testing import assert_close

from pyrograph.circuits.models import (
    fully_factorised,
    hidden_markov_model,
    mixture,
    naive_bayes,
    tree_network,
)
from pyrograph.errors import IncompatibleCircuits, OptionError, ShapeMismatch
from tests.circuits.reference import all_states

ALL = {"smooth": True, "decomposable": True, "structured": True, "deterministic": True}


def simplex(*shape):
    return torch.rand(shape).add(0.1).softmax(-1)


def log_probs(circuit):
    return circuit.log_prob(torch.tensor(all_states(circuit.cards)))


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_a_tree_network_is_the_product_of_its_tables(seed):
    torch.manual_seed(seed)
    count = int(torch.randint(1, 6, ()))
    cards = torch.randint(1, 4, (count,)).tolist()
    labels = torch.randperm(count).tolist()
    parents, tables = [None] * count, [None] * count
    for k, v in enumerate(labels):
        root = k == 0 or torch.rand(()) < 0.2
        parents[v] = None if root else labels[int(torch.randint(k, ()))]
        tables[v] = simplex(cards[v]) if root else simplex(cards[parents[v]], cards[v])
    circuit = tree_network(parents, tables)
    assert circuit.cards == tuple(cards)
    assert circuit.properties() == ALL
    expected = [
        math.prod(
            float(tables[v][x[v]] if parents[v] is None else tables[v][x[parents[v]], x[v]])
            for v in range(count)
        )
        for x in all_states(cards)
    ]
    assert_close(log_probs(circuit).exp(), torch.tensor(expected))


def test_a_long_tree_network_is_built():
    tables = [simplex(2), *(simplex(2, 2) for _ in range(1999))]
    circuit = tree_network([-1, *range(1999)], tables)
    marginal = tables[0]
    for table in tables[1:]:
        marginal = marginal @ table
    assert_close(circuit.marginals()[-1], marginal)


@pytest.mark.parametrize(
    ("parents", "tables", "error", "message"),
    [
        ([1, 0], [(2, 2), (2, 2)], OptionError, "parents of variable 0 never comes to a root"),
        ([None, 5], [(2,), (2, 2)], OptionError, "variable 1 has the parent 5"),
        ([None, 0], [(2,), (3, 2)], ShapeMismatch, r"tables\[1\] has shape \(3, 2\).*2 states"),
        ([None, 0], [(2,), (2,)], ShapeMismatch, r"tables\[1\].*expected 2 dimensions"),
        ([None], [(2,), (2,)], ShapeMismatch, "1 parents and 2 tables"),
    ],
)
def test_tables_that_make_no_tree_are_refused(parents, tables, error, message):
    with pytest.raises(error, match=message):
        tree_network(parents, [simplex(*shape) for shape in tables])


def test_negative_tables_are_refused():
    with pytest.raises(OptionError, match=r"tables\[0\] has a probability that is negative"):
        tree_network([None], [torch.tensor([-0.1, 1.1])])


@pytest.mark.parametrize("length", [1, 2, 4])
@pytest.mark.parametrize("is_homogeneous", [True, False])
def test_a_hidden_markov_model_sums_over_all_paths(length, is_homogeneous):
    initial = simplex(3)
    steps = simplex(3, 3) if is_homogeneous else simplex(length - 1, 3, 3)
    emission = simplex(3, 2) if is_homogeneous else simplex(length, 3, 2)
    circuit = hidden_markov_model(initial, steps, emission, length)
    found = circuit.properties()
    assert found["structured"] and not found["deterministic"]
    every, seen = steps.expand(length - 1, 3, 3), emission.expand(length, 3, 2)
    expected = []
    for x in all_states((2,) * length):
        total = 0.0
        for z in itertools.product(range(3), repeat=length):
            p = initial[z[0]] * seen[0, z[0], x[0]]
            for t in range(1, length):
                p = p * every[t - 1, z[t - 1], z[t]] * seen[t, z[t], x[t]]
            total += float(p)
        expected.append(total)
    assert_close(log_probs(circuit).exp(), torch.tensor(expected))


def test_gaussian_emissions_are_those_of_the_forward_pass():
    initial, step = torch.tensor([1.0, 0.0]), torch.tensor([[0.9, 0.1], [0.0, 1.0]])
    emission = Normal(torch.tensor([0.0, 80.0]), torch.tensor([1.0, 2.0]))
    circuit = hidden_markov_model(initial, step, emission, 30)
    x = torch.cat([torch.randn(15), 80 + torch.randn(15)])
    ahead = initial.log() + emission.log_prob(x[0])
    for value in x[1:]:
        ahead = (ahead.unsqueeze(1) + step.log()).logsumexp(0) + emission.log_prob(value)
    assert_close(circuit.log_prob(x), ahead.logsumexp(0))


@pytest.mark.parametrize("shape", [(2,), (3, 3, 2)])
def test_emissions_that_do_not_fit_are_refused(shape):
    emission = Normal(torch.zeros(shape), 1.0) if len(shape) > 1 else simplex(*shape, 2)
    with pytest.raises(ShapeMismatch, match="emission has shape"):
        hidden_markov_model(simplex(3), simplex(3, 3), emission, 4)


def test_naive_bayes_has_its_class_as_variable_zero():
    prior, tables = simplex(3), [simplex(3, 2), simplex(3, 4)]
    circuit = naive_bayes(prior, tables)
    assert circuit.cards == (3, 2, 4) and circuit.properties() == ALL
    expected = torch.einsum("k,ka,kb->kab", prior, *tables)
    assert_close(log_probs(circuit).exp(), expected.flatten())


def test_independent_variables_are_a_product():
    probs = [simplex(2), simplex(3)]
    circuit = fully_factorised(probs)
    assert circuit.properties() == ALL
    assert_close(log_probs(circuit).exp(), torch.outer(*probs).flatten())
    assert_close(fully_factorised(probs[:1]).marginals()[0], probs[0])


def test_a_mixture_is_the_weighted_sum_of_its_parts():
    parts = [fully_factorised([simplex(2), simplex(3)]) for _ in range(2)]
    parts.append(naive_bayes(simplex(2), [simplex(2, 3)]))
    weights = torch.tensor([0.2, 0.3, 0.5])
    circuit = mixture(parts, weights)
    expected = sum(w * log_probs(p).exp() for w, p in zip(weights, parts, strict=True))
    assert_close(log_probs(circuit).exp(), expected)
    found = circuit.properties()
    assert found["structured"] and not found["deterministic"]
    assert circuit.num_edges == 3 + sum(p.num_edges for p in parts)


def test_parts_of_a_mixture_share_their_variables():
    with pytest.raises(IncompatibleCircuits, match=r"circuit 1 .*\(3,\).*\(2,\)"):
        mixture([fully_factorised([simplex(2)]), fully_factorised([simplex(3)])], [0.5, 0.5])
    with pytest.raises(ShapeMismatch, match="1 circuits and 2 weights"):
        mixture([fully_factorised([simplex(2)])], [0.5, 0.5])


def test_lists_are_tables_of_a_hidden_markov_model():
    tables = ([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[0.5, 0.5], [0.2, 0.8]])
    found = hidden_markov_model(*tables, 3)
    expected = hidden_markov_model(*map(torch.tensor, tables), 3)
    assert_close(log_probs(found), log_probs(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 3), (2, 2, 2), (2,)])
def test_transitions_that_do_not_fit_are_refused(shape):
    with pytest.raises(ShapeMismatch, match=r"transition.*expected \[2, 2\] or \[4, 2, 2\]"):
        hidden_markov_model(simplex(2), torch.ones(shape), simplex(2, 3), 5)
