"""Sums of products of log values, by the definition; long chains of many states by recursion."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.discrete.tables import TableFactors
from pyrograph.infer.message_passing.nodes import log_values
from pyrograph.infer.message_passing.nodes.log_values import log_product, summed_out


@pytest.mark.parametrize("one_term", [0, 2**11])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_state_is_summed_out_with_its_derivatives(axis, count, one_term, monkeypatch):
    monkeypatch.setattr(log_values, "ONE_TERM", one_term)
    value = torch.randn(count, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, value.shape[axis + 1], dtype=torch.float64, requires_grad=True)
    if count == 1:
        weight = weight.detach().requires_grad_()
    letters = "xyz"
    found = summed_out(value, weight, axis)
    left = "e" + letters.replace(letters[axis], "")
    whole = value.expand(4, -1, -1, -1)
    truth = torch.einsum(f"exyz,e{letters[axis]}->{left}", whole, weight)
    assert_close(found, truth)
    image = torch.randn_like(truth)
    ours, theirs = (torch.autograd.grad((v * image).sum(), (value, weight)) for v in (found, truth))
    assert_close(ours, theirs)


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(0, 5),
    states=st.sampled_from([1, 4, 12, 30]),
    zeros=st.sampled_from([0.0, 0.3, 0.95]),
    sharpness=st.sampled_from([1.0, 30.0, 1000.0]),
    kind=st.sampled_from([torch.float64, torch.float32]),
    chunk=st.sampled_from([1, 2**22]),
)
def test_a_product_of_tables_in_logs_is_the_sum_over_their_common_states(
    seed, count, states, zeros, sharpness, kind, chunk
):
    torch.manual_seed(seed)
    left = sharpness * torch.randn(count, states, 3, dtype=kind)
    right = sharpness * torch.randn(count, states, 2, dtype=kind)
    for side in (left, right):
        side[torch.rand(side.shape) < zeros] = -torch.inf
    usual, log_values.CHUNK = log_values.CHUNK, chunk
    try:
        found = log_product(left, right)
    finally:
        log_values.CHUNK = usual
    truth = torch.stack(
        [(left.double()[:, :, [a]] + right.double()).logsumexp(1) for a in range(3)], 1
    )
    precision = torch.finfo(kind).eps
    assert_close(found.double(), truth, rtol=8 * precision, atol=64 * sharpness * precision)


@pytest.mark.parametrize("is_hard", [False, True])
@pytest.mark.parametrize("sharpness", [1.0, 100.0])
def test_a_chain_of_many_states_is_what_forward_and_backward_say(sharpness, is_hard):
    """From left to right where hard, with no way back: sums of nothing but zeros."""
    length, states = 120, 14
    torch.manual_seed(1)
    unary = sharpness * torch.randn(length, states, dtype=torch.float64)
    step = sharpness * torch.randn(states, states, dtype=torch.float64)
    if is_hard:
        step = step.masked_fill(torch.ones(states, states).tril(-1).bool(), -torch.inf)

    def model():
        with pyro.plate("n", length):
            x = pyro.sample("x", dist.Categorical(logits=unary))
        with pyro.plate("e", length - 1):
            pyro.factor("step", step[x[:-1], x[1:]])

    posterior = pg.fit(model, infer=pg.BP, progress=False)
    assert posterior.converged and posterior.evidence_kind == "exact"
    logits = unary.log_softmax(1).numpy()
    table = step.numpy()
    forward, backward = logits.copy(), np.zeros_like(logits)
    for t in range(1, length):
        forward[t] += np.logaddexp.reduce(forward[t - 1][:, None] + table, 0)
    for t in reversed(range(length - 1)):
        backward[t] = np.logaddexp.reduce(table + (logits + backward)[t + 1], 1)
    evidence = np.logaddexp.reduce(forward[-1])
    assert float(posterior.log_evidence) == pytest.approx(evidence, rel=1e-12)
    truth = torch.from_numpy(np.exp(forward + backward - evidence))
    assert_close(posterior.marginal("x").probs, truth, rtol=1e-8, atol=1e-10)


def test_sums_of_nothing_but_zeros_have_no_derivative_of_nan():
    log_table = torch.randn(5, 3, 4, 2, dtype=torch.float64)
    log_table[:, 1, 2] = -torch.inf
    log_table[2, :, 1] = -torch.inf
    log_table.requires_grad_()
    rows = [torch.arange(5)] * 3
    block = TableFactors(log_table, torch.ones(5, dtype=torch.float64), rows, [0, 0, 0])
    n = [torch.randn(5, c, dtype=torch.float64) for c in (3, 4, 2)]
    n[2][3] = torch.tensor([0.0, -torch.inf])
    for slot, found in enumerate(block.exact_sums(n)):
        found = torch.where(found.isinf(), 0.0, found)
        (grad,) = torch.autograd.grad(found.sum(), log_table, retain_graph=True)
        # of every sum the shares of its terms, which add up to 1
        shares = grad.sum([1 + k for k in range(3) if k != slot])
        assert_close(shares, (found != 0).double())
