"""Circuits that are made and asked under ``torch.inference_mode``."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from pyrograph import circuits as C

PRIOR = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
TABLE = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)
STATES = torch.tensor(list(itertools.product(range(3), range(2))))
JOINT = PRIOR[STATES[:, 0]] * TABLE[STATES[:, 0], STATES[:, 1]]


def network():
    return C.tree_network([None, 0], [PRIOR, TABLE])


def holed(n=40):
    x = STATES[torch.multinomial(JOINT, n, replacement=True)].double()
    x[::3, 1] = torch.nan
    return x


def derivatives(circuit):
    """Of the sum of log p(x) over all states, in the tables and the weights."""
    circuit.requires_grad_()
    circuit.log_prob(STATES).sum().backward()
    return circuit.log_table.grad, circuit.log_weights.grad


@torch.inference_mode()
def test_marginals_and_conditionals_are_those_of_the_table():
    first, second = network().marginals()
    assert_close(first, PRIOR)
    assert_close(second, PRIOR @ TABLE)
    given, _ = network().condition({1: 1}).marginals()
    assert_close(given, PRIOR * TABLE[:, 1] / (PRIOR @ TABLE[:, 1]))


@pytest.mark.parametrize(
    "learn",
    [
        lambda x: C.fit_parameters(network(), x),
        C.learn_chow_liu,
        lambda x: C.learn_strudel(x, progress=False),
    ],
    ids=["fit_parameters", "learn_chow_liu", "learn_strudel"],
)
def test_learning_from_rows_with_holes_gives_a_distribution_to_go_on_with(learn):
    x = holed()
    with torch.inference_mode():
        circuit = learn(x)
    assert_close(
        circuit.log_prob(STATES).logsumexp(0),
        torch.zeros((), dtype=torch.float64),
        rtol=0,
        atol=1e-10,
    )
    of_table, of_weights = derivatives(circuit)
    assert of_weights.sum() + of_table.sum() > 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda p: p.log_prob(STATES),
        lambda p: p.marginals(),
        lambda p: p.condition({0: 1}).log_mass(),
        lambda p: C.squared_mmd(p, p, C.Hamming()),
    ],
    ids=["log_prob", "marginals", "condition", "squared_mmd"],
)
def test_a_question_under_inference_mode_leaves_derivatives_for_later(ask):
    circuit = network()
    with torch.inference_mode():
        ask(circuit)
    _, of_weights = derivatives(circuit)
    # the sum over x_0 has an edge per state, which two of the six states take
    assert_close(of_weights.detach(), torch.full_like(PRIOR, 2.0))
    circuit.zero_grad()
    C.expected_kernel(circuit, circuit, C.Delta()).backward()
    # sum_x p(x)^2 in log w_s: 2 sum_{x_1} p(s, x_1)^2
    assert_close(circuit.log_weights.grad, 2 * JOINT.reshape(3, 2).square().sum(1))


def test_a_circuit_made_under_inference_mode_has_derivatives_later():
    with torch.inference_mode():
        circuit = network()
        given = circuit.condition({1: 0})
    _, of_weights = derivatives(circuit)
    assert_close(of_weights.detach(), torch.full_like(PRIOR, 2.0))
    given.requires_grad_()
    given.log_mass().backward()
    assert_close(given.log_weights.grad, PRIOR * TABLE[:, 0] / (PRIOR @ TABLE[:, 0]))
