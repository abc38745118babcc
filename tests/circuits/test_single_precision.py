"""Circuits whose numbers are in single precision: what is computed of them is as exact as of the
same numbers in double. Truth is numpy in double, from those very numbers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch.testing import assert_close

from pyrograph import circuits
from pyrograph.circuits import Circuit, ExpectedSVR
from pyrograph.errors import NonFiniteDensity

SINGLE = torch.float32


def chain(length: int, level: float):
    """A chain of two states, log weights about ``level``, exact in single precision."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(2 if i else 1, 2)) + level for i in range(length)]
    weights = [w.astype(np.float32).astype(float) for w in weights]
    nodes, below = [], None
    for i in reversed(range(length)):
        nodes += [{"type": "input", "var": i, "probs": p} for p in ([1.0, 0.0], [0.0, 1.0])]
        states = [len(nodes) - 2, len(nodes) - 1]
        if below is not None:
            pairs = zip(states, below, strict=True)
            nodes += [{"type": "product", "children": list(pair)} for pair in pairs]
            states = [len(nodes) - 2, len(nodes) - 1]
        nodes += [{"type": "sum", "children": states, "log_weights": list(w)} for w in weights[i]]
        below = [len(nodes) - 2, len(nodes) - 1]
    return Circuit.from_nodes(nodes).float(), weights


def forward_backward(weights):
    """Marginals ``[length, 2]`` and log Z."""
    into = [weights[0][0]]
    for w in weights[1:]:
        into.append(logsumexp(into[-1][:, None] + w, axis=0))
    out = [np.zeros(2)]
    for w in weights[:0:-1]:
        out.append(logsumexp(w + out[-1], axis=1))
    log_z = logsumexp(into[-1])
    return np.exp(np.array(into) + np.array(out[::-1]) - log_z), log_z


@pytest.mark.parametrize("level", [0.0, -1e2, -1e4])
def test_weights_of_large_logs_keep_marginals_mass_and_draws(level):
    circuit, weights = chain(300, level)
    marginals, log_z = forward_backward(weights)
    found = torch.stack(circuit.marginals())
    assert found.dtype == SINGLE
    assert_close(found.double().numpy(), marginals, rtol=0, atol=1e-6)
    assert float(circuit.log_mass()) == pytest.approx(log_z, rel=2e-7)
    # its logs are about 1, of each of 300 weights half a digit of single precision
    assert abs(float(circuit.normalized().log_mass())) < 1e-5
    draws = circuit.sample(3000).double().numpy().mean(0)
    error = np.sqrt(marginals.prod(1) / 3000)
    assert np.abs((draws - marginals[:, 1]) / error).max() < 5.0


def test_the_most_probable_state_is_that_of_double_precision():
    circuit, _ = chain(700, -1e3)
    found, value = circuit.most_probable()
    truth, best = circuit.double().most_probable()
    assert torch.equal(found, truth) and value.dtype == SINGLE
    assert float(value) == pytest.approx(float(best), rel=1e-7)


def learnt(seed: int) -> Circuit:
    rows = torch.randint(0, 3, (200, 6), generator=torch.Generator().manual_seed(seed)).double()
    return circuits.learn_chow_liu(rows)


def moved(circuit: Circuit, size: float) -> Circuit:
    other = copy.deepcopy(circuit)
    noise = torch.randn(other.log_table.shape, generator=torch.Generator().manual_seed(1))
    other.log_table.data += size * noise
    return other.normalized()


@pytest.mark.parametrize("size", [1e-2, 1e-3, 1e-4])
def test_the_discrepancy_of_circuits_close_together_is_that_of_their_numbers(size):
    p = learnt(0).float()
    q = moved(p, size)
    kernel = circuits.Hamming()
    found = circuits.squared_mmd(p, q, kernel)
    truth = circuits.squared_mmd(copy.deepcopy(p).double(), copy.deepcopy(q).double(), kernel)
    assert found.dtype == SINGLE
    assert float(found) == pytest.approx(float(truth), rel=1e-6)
    assert 0 < float(truth) < size**2
    assert float(circuits.kdsd(p, p)) < 1e-12


@pytest.mark.parametrize("dtype", [SINGLE, torch.float64])
def test_a_squared_discrepancy_is_never_below_zero(dtype):
    kernel = circuits.Hamming()
    for seed in range(8):
        p = learnt(seed)
        q = moved(p, 1e-9)
        assert float(circuits.squared_mmd(p.to(dtype), q.to(dtype), kernel)) >= 0


@pytest.mark.parametrize("place", [0.0, 2e3, 1e6])
def test_predictions_of_real_features_far_from_zero_keep_their_digits(place):
    rng = np.random.default_rng(0)
    nodes = [
        {"type": "input", "var": k, "loc": place + k, "scale": 1.0 + k / 2} for k in range(2)
    ] + [{"type": "product", "children": [0, 1]}]
    circuit = Circuit.from_nodes(nodes).float()
    support = place + rng.normal(size=(200, 2))
    coef = rng.normal(size=200) * 1e3
    svr = ExpectedSVR(support, coef, 0.5, circuits.RBF(2.0), circuit)
    rows = place + rng.normal(size=(20, 2))
    rows[::2, 1] = np.nan
    # of a feature that is missing E exp(-(x - s)^2 / 2) under N(m, v), with the circuit's numbers
    loc, scale = circuit.loc.double().numpy()[:2], circuit.scale.double().numpy()[:2]
    seen = np.exp(-((rows[:, None] - support) ** 2) / 2.0)
    wide = 2.0 + 2 * scale**2
    unseen = np.sqrt(2.0 / wide) * np.exp(-((loc - support) ** 2) / wide)
    terms = np.where(np.isnan(rows)[:, None], unseen, seen).prod(2)
    found = svr.predict(rows)
    assert_close(found, terms @ coef + 0.5, rtol=0, atol=1e-8)
    assert svr.predict(torch.as_tensor(rows)).dtype == SINGLE
    assert svr.predict(torch.as_tensor(rows[:0])).dtype == SINGLE


def test_a_circuit_is_called_like_any_module():
    circuit, _ = chain(5, 0.0)
    x = torch.tensor([[0, 1, -1, 1, 0], [1, 1, 0, 0, -1]])
    assert_close(circuit(x), circuit.log_prob(x), rtol=0, atol=0)
    params = {name: value + 1.0 for name, value in circuit.named_parameters()}
    found = torch.func.functional_call(circuit, params, (x,))
    assert bool((found != circuit(x)).all())


@pytest.mark.parametrize("dtype", [SINGLE, torch.float64])
def test_a_discrepancy_that_the_circuits_numbers_do_not_hold_is_refused(dtype):
    """Odds of e^40 for two states, and of e^-40: ratios of 1e35, whose squares are 1e70."""
    logit = torch.tensor([40.0, -40.0], dtype=torch.float64)

    def of(sign):
        leaf = {"type": "input", "var": 0, "probs": (sign * logit).softmax(0).tolist()}
        return Circuit.from_nodes([leaf, {"type": "sum", "children": [0], "weights": [1.0]}])

    p, q = (of(sign).to(dtype) for sign in (1.0, -1.0))
    if dtype == SINGLE:
        with pytest.raises(NonFiniteDensity, match=r"numbers of torch\.float32"):
            circuits.kdsd(q, p)
    else:
        assert float(circuits.kdsd(q, p)) > 1e60
