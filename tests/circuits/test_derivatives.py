"""Derivatives of queries in a circuit's numbers, against finite differences of plain recursions."""

import copy
import math

import pytest
import torch
from torch.distributions import Normal
from torch.testing import assert_close

from pyrograph.circuits import Circuit

NODES = [
    {"type": "input", "var": 0, "probs": [0.2, 0.8]},
    {"type": "input", "var": 0, "probs": [0.6, 0.0]},
    {"type": "input", "var": 1, "loc": 0.3, "scale": 1.0},
    {"type": "input", "var": 1, "loc": -1.0, "scale": 2.0},
    {"type": "product", "children": [0, 2]},
    {"type": "product", "children": [1, 3]},
    {"type": "sum", "children": [4, 5], "weights": [0.3, 0.9]},
]
STEP = 1e-6


def density(circuit, state, x=None):
    """Unnormalised p(state, x), or p(state) without x, by the definition of the circuit above."""
    weights, tables = circuit.log_weights.exp(), circuit.log_table.exp()
    total = 0.0
    for k in range(2):
        own = weights[k] * tables[k, state]
        if x is not None:
            law = Normal(circuit.loc[2 + k], circuit.scale[2 + k])
            own = own * law.log_prob(torch.tensor(x)).exp()
        total = total + own
    return total


def differences(circuit, query):
    """Central differences of a query in all finite numbers, in the order of parameters."""
    found = []
    for name in ("log_weights", "log_table", "loc", "scale"):
        value = getattr(circuit, name).detach()
        slopes = torch.zeros_like(value)
        for i in range(value.numel()):
            if not math.isfinite(value.flatten()[i]):
                continue
            ends = []
            for sign in (1, -1):
                moved = copy.deepcopy(circuit)
                getattr(moved, name).data.view(-1)[i] += sign * STEP
                ends.append(float(query(moved)))
            slopes.view(-1)[i] = (ends[0] - ends[1]) / (2 * STEP)
        found.append(slopes)
    return found


def conditional(circuit):
    return (density(circuit, 0, 0.5) / density(circuit, 0)).log()


def normalised(circuit):
    return (density(circuit, 1, 0.5) / (density(circuit, 0) + density(circuit, 1))).log()


def first_state(circuit):
    return density(circuit, 0) / (density(circuit, 0) + density(circuit, 1))


def real_mean(circuit):
    weights = circuit.log_weights.exp() * circuit.log_table[:2].exp().sum(1)
    return (weights * circuit.loc[2:]).sum() / weights.sum()


@pytest.mark.parametrize(
    ("query", "truth"),
    [
        (lambda c: c.condition({0: 0}).log_prob(torch.tensor([0, 0.5])), conditional),
        (lambda c: c.normalized().log_prob(torch.tensor([1, 0.5])), normalised),
        (lambda c: c.marginals()[0][0], first_state),
        (lambda c: c.normalized().marginals()[0][0], first_state),
        (lambda c: c.marginals()[1].mean, real_mean),
    ],
    ids=["condition", "normalized", "marginals", "marginals of normalized", "real marginals"],
)
def test_queries_are_differentiable_in_all_numbers(query, truth):
    circuit = Circuit.from_nodes(NODES)
    expected = differences(circuit, truth)
    value = query(circuit.requires_grad_())
    assert_close(value.detach(), truth(circuit).detach(), rtol=1e-12, atol=1e-12)
    value.backward()
    for parameter, slopes in zip(circuit.parameters(), expected, strict=True):
        assert_close(parameter.grad.nan_to_num(0.0), slopes, rtol=0, atol=1e-8)


def test_marginals_under_evidence_are_differentiable():
    """p(x_0 = 0 | x_1 = 1) of a mixture of two products, by hand."""
    nodes = [
        {"type": "input", "var": 0, "probs": [0.2, 0.8]},
        {"type": "input", "var": 1, "probs": [0.5, 0.5]},
        {"type": "input", "var": 0, "probs": [0.7, 0.3]},
        {"type": "input", "var": 1, "probs": [0.9, 0.1]},
        {"type": "product", "children": [0, 1]},
        {"type": "product", "children": [2, 3]},
        {"type": "sum", "children": [4, 5], "weights": [0.4, 0.6]},
    ]
    circuit = Circuit.from_nodes(nodes).requires_grad_()
    rows = circuit.marginals(torch.tensor([[-1, 1]]))
    rows[0][0, 0].backward()
    # share s of the first part: d/d log w_1 = s (1 - s) (p_1 - p_2)
    share = 0.4 * 0.5 / (0.4 * 0.5 + 0.6 * 0.1)
    slope = share * (1 - share) * (0.2 - 0.7)
    expected = torch.tensor([slope, -slope], dtype=torch.float64)
    assert_close(circuit.log_weights.grad, expected, rtol=0, atol=1e-12)


def test_without_derivatives_conditioned_circuits_have_parameters_of_their_own():
    circuit = Circuit.from_nodes(NODES)
    assert len(list(circuit.condition({0: 1}).parameters())) == 4
    circuit.requires_grad_()
    with torch.no_grad():
        given = circuit.condition({0: 1})
    assert len(list(given.parameters())) == 4
    assert not any(p.requires_grad for p in given.parameters())
    attached = circuit.condition({0: 1})
    assert attached.to_nodes() == given.to_nodes()
    again = Circuit.from_nodes(attached.to_nodes())
    point = torch.tensor([1, 0.2])
    assert_close(again.log_prob(point), attached.log_prob(point).detach(), rtol=0, atol=1e-12)
    assert circuit.sample(3).shape == (3, 2)
