"""Sums over tables: by the definition, whatever their zeros and ranges; and their layout."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import ConvergenceWarning
from pyrograph.infer.message_passing.discrete import tables
from pyrograph.infer.message_passing.discrete.differences import DifferenceFactors
from pyrograph.infer.message_passing.discrete.tables import TableFactors
from pyrograph.infer.message_passing.nodes import log_values


def block_of(table, alpha):
    count, arity = len(table), table.dim() - 1
    rows = [torch.arange(count) for _ in range(arity)]
    return TableFactors(table, torch.full((count,), alpha, dtype=table.dtype), rows, [0] * arity)


def definition(table, alpha, cavities, slot):
    """log sum over all slots but one of f^alpha prod n, one factor and state after the other."""
    out = torch.empty(len(table), table.shape[slot + 1], dtype=table.dtype)
    for e in range(len(table)):
        value = alpha * table[e]
        for j, n in enumerate(cavities):
            if j != slot:
                shape = [-1 if k == j else 1 for k in range(len(cavities))]
                value = value + n[e].view(shape)
        for state in range(out.shape[1]):
            out[e, state] = value.select(slot, state).flatten().logsumexp(0)
    return out


def of_peak_one(log_value):
    peak = log_value.amax(1, keepdim=True)
    return log_value - torch.where(peak.isinf(), 0.0, peak)


@given(
    seed=st.integers(0, 10**6),
    cards=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    count=st.sampled_from([1, 2, 7]),
    like=st.booleans(),
    zeros=st.sampled_from([0.0, 0.3, 0.8]),
    sharpness=st.sampled_from([1.0, 30.0, 300.0]),
    alpha=st.sampled_from([1.0, 0.5, 2.0]),
    kind=st.sampled_from([torch.float64, torch.float32]),
    one_term=st.sampled_from([0, 2**11]),
    looked_at=st.sampled_from([0, 0, 2**14]),
)
def test_sums_are_those_of_the_definition(
    seed, cards, count, like, zeros, sharpness, alpha, kind, one_term, looked_at
):
    torch.manual_seed(seed)
    table = sharpness * torch.randn(1 if like else count, *cards, dtype=kind)
    table[torch.rand(table.shape) < zeros] = -torch.inf
    table.flatten(1)[:, -1] = 0.0  # a factor that is zero everywhere is refused before
    table = table.expand(count, *cards)
    n = [sharpness * torch.randn(count, c, dtype=kind) for c in cards]
    for cavity in n:
        cavity[:, 1:][torch.rand(cavity[:, 1:].shape) < zeros / 2] = -torch.inf
    usual = log_values.ONE_TERM, tables.LOOKED_AT
    log_values.ONE_TERM, tables.LOOKED_AT = one_term, looked_at
    try:
        block = block_of(table, alpha)
        sums, exact = block.sums(n), block.exact_sums(n)
    finally:
        log_values.ONE_TERM, tables.LOOKED_AT = usual
    # logs of up to some 2000 are added up
    atol = 2000 * torch.finfo(kind).eps
    for slot in range(len(cards)):
        truth = definition(table, alpha, n, slot)
        assert_close(exact[slot], truth, rtol=4 * torch.finfo(kind).eps, atol=atol)
        assert_close(of_peak_one(sums[slot]), of_peak_one(truth), rtol=0, atol=2 * atol)


def grid(side=6, states=5):
    at = torch.arange(side * side).view(side, side)
    i = torch.cat([at[:, :-1].flatten(), at[:-1].flatten()])
    j = torch.cat([at[:, 1:].flatten(), at[1:].flatten()])
    torch.manual_seed(0)
    unary, pair = torch.randn(side * side, states), torch.randn(len(i), states, states)

    def model():
        with pyro.plate("nodes", side * side):
            x = pyro.sample("x", dist.Categorical(logits=unary))
        with pyro.plate("edges", len(i)):
            pyro.factor("pair", pair[torch.arange(len(i)), x[i], x[j]])

    return model


@pytest.mark.parametrize("options", [{}, {"damping": 0.5}, {"schedule": "residual"}])
def test_messages_and_beliefs_stay_laid_out_for_vectors(options):
    """Rows of five states would be worked on several times as slowly."""
    run = pg.BP(grid(), num_steps=3, progress=False, **options)
    with pytest.warns(ConvergenceWarning):
        run.run()
    again = pg.BP(grid(), num_steps=5, progress=False, **options)
    again.setup()
    again.load_state_dict(run.state_dict())
    with pytest.warns(ConvergenceWarning):
        again.run()
    for engine in (run, again):
        for value in [engine.messages[0][0], engine.messages[0][1], engine.beliefs[0]]:
            assert value.shape[1] == 5 and value.t().is_contiguous()


def potts_table(same, apart, states, count, kind):
    """``[count, c, c]``; ``same`` and ``apart`` one number or one of each factor."""
    same, apart = (
        torch.as_tensor(v, dtype=kind).expand(count).view(-1, 1, 1) for v in (same, apart)
    )
    return torch.where(torch.eye(states, dtype=torch.bool), same, apart)


def blocks_of_pairs(table):
    """As tables, and as functions of a difference."""
    c = table.shape[1]
    values = torch.cat([table[:, 0, :].flip(1), table[:, 1:, 0]], 1)  # g(-(c - 1)) .. g(c - 1)
    rows = [torch.arange(len(table))] * 2
    one = torch.ones(len(table), dtype=table.dtype)
    assert values.shape == (len(table), 2 * c - 1)
    return block_of(table, 1.0), DifferenceFactors(values, one, rows, [0, 0])


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
@pytest.mark.parametrize("states", [2, 3, 8, 30])
@pytest.mark.parametrize(
    "same, apart",
    [
        (0.0, [-1.0, -0.1, -3.0]),
        (0.0, -2.0),
        (0.0, -1e-9),
        (0.0, 0.0),
        (0.0, -60.0),
        (0.0, [-700.0, -1.0, -1e5]),
        (0.0, -torch.inf),
        (0.0, [-torch.inf, -1.0, 0.0]),
    ],
)
def test_sums_of_attractive_potts_factors_are_those_of_their_tables(
    same, apart, states, kind, monkeypatch
):
    monkeypatch.setattr(tables, "LOOKED_AT", 0)
    table = potts_table(same, apart, states, 3, kind)
    torch.manual_seed(0)
    n = [10 * torch.randn(3, states, dtype=kind) for _ in range(2)]
    n[1][2, 0] = -torch.inf
    for block in blocks_of_pairs(table):
        assert block.potts is not None
        for slot, found in enumerate(block.sums(n)):
            truth = definition(table, 1.0, n, slot)
            atol = 16 * max(1, float(truth[truth.isfinite()].abs().max())) * torch.finfo(kind).eps
            assert_close(of_peak_one(found), of_peak_one(truth), rtol=0, atol=atol)


def test_factors_that_are_no_attractive_potts_ones_are_not_taken_for_any():
    uneven, odd = potts_table(0.0, -1.0, 4, 3, torch.float64), torch.zeros(3, 4, 4).double()
    uneven[1, 2, 2] = -0.5
    odd[2, 3, 1] = -1.0
    repulsive = potts_table([-1.0, 0.0, 0.0], [0.0, -1.0, -1.0], 4, 3, torch.float64)
    one_state = torch.zeros(3, 1, 1).double()
    for table in (uneven, odd, repulsive, one_state, torch.zeros(3, 4, 5).double()):
        assert block_of(table, 1.0).potts is None
    assert blocks_of_pairs(repulsive)[1].potts is None


def test_a_repulsion_of_few_digits_keeps_them():
    """log of a sum without its by far largest term: as a difference it would be rounding."""
    table = potts_table(-40.0, 0.0, 3, 2, torch.float64)
    n = [torch.tensor([[0.0, -38.0, -39.0]] * 2).double()] * 2
    for block in blocks_of_pairs(table):
        for slot, found in enumerate(block.sums(n)):
            truth = definition(table, 1.0, n, slot)
            assert_close(of_peak_one(found), of_peak_one(truth), rtol=1e-14, atol=1e-14)


def test_weights_of_potts_factors_have_their_derivatives():
    weight = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    table = weight.view(-1, 1, 1) * torch.eye(4).double()
    n = [torch.randn(3, 4, dtype=torch.float64) for _ in range(2)]
    block = block_of(table, 1.0)
    assert block.potts is not None
    image = torch.randn(3, 4, dtype=torch.float64)
    for slot, found in enumerate(block.sums(n)):
        truth = definition(table, 1.0, n, slot)
        ours, theirs = (
            torch.autograd.grad((image * of_peak_one(v)).sum(), weight, retain_graph=True)
            for v in (found, truth)
        )
        assert_close(ours, theirs)
