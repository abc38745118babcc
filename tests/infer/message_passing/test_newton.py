"""Newton's method on messages, and the convergent fallback around it.

Truth: finite differences of an update written down in NumPy, a dense linear system, plain loops
(:mod:`.references`), the NumPy reference of the UAI tests and the Bethe free energy by hand.
"""

import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.datasets import DiscreteModel
from pyrograph.errors import ZeroMass
from pyrograph.infer.message_passing.discrete.states import by_slot
from pyrograph.infer.message_passing.settling import double_loop, newton
from pyrograph.infer.message_passing.settling.double_loop import DoubleLoop
from pyrograph.infer.message_passing.settling.newton import Root, beliefs_of, fixed_point
from pyrograph.infer.message_passing.sweeps.sweep import gap

from .builders import INF, Tables, cycle_with_zeros, grid_edges, mixed_cycle, potts, random_model
from .references import fractional_bp, free_energy
from .test_uai_reference import Reference, distance, log_sum, messages_of, normalised

AGREE = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)


def spin_glass(n, strength, seed, dtype=torch.float64):
    """Couplings of both signs on an n x n grid, ``strength`` times standard normal numbers."""
    g = torch.Generator().manual_seed(seed)
    edges = grid_edges(n)
    field = 0.5 * torch.randn(n * n, generator=g, dtype=torch.float64)
    weight = strength * torch.randn(len(edges), generator=g, dtype=torch.float64)
    own = torch.stack([-field, field], 1)
    scopes = tuple((i,) for i in range(n * n)) + tuple(edges)
    tables = (*own, *(w * AGREE for w in weight))
    return Tables((2,) * (n * n), scopes, tuple(t.to(dtype) for t in tables), plated=True)


def in_states(model, alpha=1.0):
    """An engine that is set up, its factors as slots and its families, and flat messages."""
    engine = pg.FractionalBP(model, alpha=alpha, progress=False).setup()
    loop = DoubleLoop(engine.graph, engine.network)
    return engine, loop, [by_slot(sent) for sent in engine.messages]


def forced(engine):
    """The engine, over to its fallback from the first step on."""
    engine.setup()
    engine.iteration.settling.automatic.is_exhausted = True
    return engine


# ---------------------------------------------------------------------- one step
def differences(seed):
    g = torch.Generator().manual_seed(seed)
    state = torch.arange(16)
    gap = (state.unsqueeze(1) - state).abs().clamp(max=4).double()
    tables = [torch.randn(16, generator=g, dtype=torch.float64) for _ in range(3)]
    tables += [-(0.3 + 0.1 * k) * gap for k in range(3)]
    scopes = ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2))
    return Tables((16,) * 3, scopes, tuple(tables), plated=True)


def banded(seed):
    model = differences(seed)
    out = model.tables[3] < -0.9
    wide = tuple(t.masked_fill(out, -INF) for t in model.tables[3:])
    return Tables(model.cards, model.scopes, (*model.tables[:3], *wide), plated=True)


def checked(seed):
    """A hard parity check on three bits, and pairs."""
    model = random_model((2, 2, 2, 2), [(0, 1), (1, 2), (2, 3), (0, 3)], seed)
    odd = torch.tensor(list(itertools.product([0, 1], repeat=3))).sum(1).remainder(2).bool()
    check = torch.zeros(8, dtype=torch.float64).masked_fill(odd, -INF).view(2, 2, 2)
    return Tables(model.cards, (*model.scopes, (0, 1, 2)), (*model.tables, check))


def binary(seed):
    return spin_glass(3, 1.0, seed)


KINDS = [binary, potts, mixed_cycle, cycle_with_zeros, checked, differences, banded]


def image_of(table, alpha, cavities, possible):
    """The messages of one factor ``[sum of c_i]``, normalised over the possible states."""
    parts = []
    for i, mine in enumerate(possible):
        value = alpha * table
        for j, n in enumerate(cavities):
            if j != i:
                value = value + n.reshape([-1 if k == j else 1 for k in range(table.ndim)])
        out = log_sum(value, tuple(k for k in range(table.ndim) if k != i)) / alpha
        parts.append(np.where(mine, out - log_sum(np.where(mine, out, -np.inf), (0,)), 0.0))
    return np.concatenate(parts)


def root_at(model, alpha, seed=0, sweeps=3):
    """After a few sweeps, so that zeros have spread; messages with noise."""
    engine, loop, _ = in_states(model, alpha)
    for _ in range(sweeps):
        engine.step()
    messages = [by_slot(sent) for sent in engine.messages]
    g = torch.Generator().manual_seed(seed)
    messages = [
        [m + 0.3 * torch.randn(m.shape, generator=g, dtype=m.dtype) for m in sent]
        for sent in messages
    ]
    beliefs = beliefs_of(loop.families, loop.blocks, messages)
    root = Root(loop.families, loop.blocks, [~torch.isneginf(q) for q in beliefs])
    return root, root.normalised(messages)


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_the_slopes_are_finite_differences_of_the_update(kind, alpha):
    root, here = root_at(kind(0), alpha)
    gap, slopes = root.linearised(here)
    slopes, eps, start = slopes.toarray(), 1e-5, 0
    beliefs = [q.numpy() for q in beliefs_of(root.families, root.blocks, here)]
    seen = np.zeros_like(slopes, dtype=bool)
    for block, sent in zip(root.blocks, here):
        sizes = [m.shape[1] for m in sent]
        offsets = start + np.cumsum([0, *(m.numel() for m in sent)])
        for e in range(block.num_factors):
            table, a = block.log_table[e].numpy(), float(block.alpha[e])
            at = [int(rows[e]) for rows in block.rows]
            possible = [root.possible[f][v].numpy() for f, v in zip(block.families, at)]
            old = [m[e].numpy() for m in sent]
            cavities = [
                np.where(np.isneginf(m), -np.inf, beliefs[f][v] - a * np.where(ok, m, 0.0))
                for f, v, m, ok in zip(block.families, at, old, possible)
            ]
            places = np.concatenate([o + e * c + np.arange(c) for o, c in zip(offsets, sizes)])
            new = image_of(table, a, cavities, possible)
            expected = np.where(np.concatenate(possible), new - np.concatenate(old), 0.0)
            assert np.abs(gap[places] - expected).max() < 1e-10
            seen[np.ix_(places, places)] = True
            for j, x in [(slot, state) for slot, c in enumerate(sizes) for state in range(c)]:
                column = int(offsets[j]) + e * sizes[j] + x
                moved = []
                for sign in (1, -1):
                    there = [n.copy() for n in cavities]
                    there[j][x] += sign * eps
                    moved.append(image_of(table, a, there, possible))
                slope = (moved[0] - moved[1]) / (2 * eps)
                slope = np.where(possible[j][x], slope, 0.0)
                assert np.abs(slopes[places, column] - slope).max() < 1e-8
        start = int(offsets[-1])
    assert not slopes[~seen].any()


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("kind", [binary, mixed_cycle, cycle_with_zeros], ids=lambda k: k.__name__)
def test_a_direction_solves_the_dense_system(kind, alpha):
    """(1 - D (B B' - alpha)) dm = T(m) - m, with B B' between messages into one node."""
    root, here = root_at(kind(1), alpha)
    gap, slopes = root.linearised(here)
    together = (root.place[:, None] == root.place).astype(float) - np.diag(root.alpha)
    expected = np.linalg.solve(np.eye(len(gap)) - slopes.toarray() @ together, gap)
    assert np.abs(root.direction(gap, slopes) - expected).max() < 1e-8 * np.abs(expected).max()


# ---------------------------------------------------------------------- the fixed point
@settings(max_examples=8)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 0.5, 2.0]), st.sampled_from(KINDS[:4]))
def test_from_nearby_it_comes_to_the_fixed_point_of_plain_loops(seed, alpha, kind):
    model = kind(seed % 5)
    if kind is binary:
        model = spin_glass(3, 0.4, seed)
    nodes, _ = fractional_bp(model, alpha)
    engine, loop, _ = in_states(model, alpha)
    engine.run()
    g = torch.Generator().manual_seed(seed)
    messages = [
        [m + 0.2 * torch.randn(m.shape, generator=g, dtype=m.dtype) for m in by_slot(sent)]
        for sent in engine.messages
    ]
    found = fixed_point(loop.families, loop.blocks, messages, 1e-10)
    assert found is not None
    for family, q in zip(loop.families, beliefs_of(loop.families, loop.blocks, found)):
        for v, belief in zip(family.nodes.tolist(), q.softmax(1)):
            site, index = engine.graph.nodes[v]
            expected = nodes[int(index[0]) if model.plated else int(site[1:])]
            assert_close(belief, torch.as_tensor(expected), rtol=0, atol=1e-8)


def bethe(reference, messages):
    """Bethe free energy of the beliefs of messages, from its definition."""
    totals = reference.beliefs(messages)
    nodes, total = normalised(totals), 0.0
    degree = np.zeros(len(nodes))
    for group, sent in zip(reference.groups, messages):
        value, arity = group.tables, group.scopes.shape[1]
        for slot, m in enumerate(sent):
            n = totals[group.scopes[:, slot], : m.shape[1]] - m
            value = value + n.reshape([len(n), *(1,) * slot, -1, *(1,) * (arity - 1 - slot)])
            np.add.at(degree, group.scopes[:, slot], 1)
        log_b = normalised(value.reshape(len(value), -1))
        log_f = group.tables.reshape(len(value), -1)
        total += (np.exp(log_b) * (log_f - log_b)).sum()
    entropy = -(np.exp(nodes) * nodes).sum(1)
    return total + ((1 - degree) * entropy).sum()


@pytest.mark.parametrize(
    "n, strength, seed", [(8, 2.0, 0), (8, 3.0, 1), (8, 10.0, 2), (10, 2.0, 3), (10, 10.0, 4)]
)
def test_bp_on_a_spin_glass_ends_at_a_fixed_point_of_the_reference(n, strength, seed):
    tables = spin_glass(n, strength, seed)
    model = DiscreteModel(tables.cards, tables.scopes, tables.tables)
    engine = pg.BP(model, progress=False, num_steps=3000)
    posterior = engine.run()
    assert posterior.converged and engine.iteration.double_loop is not None
    reference = Reference(model)
    here = messages_of(engine, model, reference)
    gaps = [
        np.abs(np.exp(a) - np.exp(b)).max()
        for old, new in zip(here, reference.update(here))
        for a, b in zip(old, new)
    ]
    assert max(gaps) < 1e-9
    assert distance(model, posterior, reference.marginals(here)) < 1e-12
    assert abs(float(posterior.log_evidence) - bethe(reference, here)) < 1e-8 * n * n * strength


def assert_consistent(model, posterior, alpha, tolerance):
    """Beliefs of factors and nodes agree, and the evidence is their free energy."""
    nodes, factors = model.beliefs(posterior), model.factor_beliefs(posterior)
    for k, belief in factors.items():
        for slot, i in enumerate(model.scopes[k]):
            assert_close(belief.sum(1 - slot), nodes[i], rtol=0, atol=tolerance)
    by_hand = free_energy(
        model, [b.numpy() for b in nodes], {k: b.numpy() for k, b in factors.items()}, alpha
    )
    size = max(1.0, abs(by_hand))
    assert abs(float(posterior.log_evidence) - by_hand) < tolerance * size


@pytest.mark.parametrize("strength", [2.0, 10.0])
@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_fractional_bp_on_a_spin_glass_ends_where_its_beliefs_agree(alpha, strength):
    model = spin_glass(6, strength, 1)
    engine = pg.FractionalBP(model, alpha=alpha, progress=False, num_steps=3000)
    posterior = engine.run()
    assert posterior.converged
    assert_consistent(model, posterior, alpha, 1e-7)


@pytest.mark.parametrize("strength", [1.0, 3.0, 10.0])
def test_in_single_precision_it_settles_too(strength):
    torch.set_default_dtype(torch.float32)
    model = spin_glass(8, strength, 1, torch.float32)
    engine = pg.BP(model, progress=False, num_steps=3000)
    posterior = engine.run()
    assert posterior.converged
    assert_consistent(model, posterior, 1.0, 1e-3)


# ---------------------------------------------------------------------- the way there
@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
def test_the_free_energy_of_the_double_loop_never_falls(monkeypatch, alpha):
    """After inner loops long enough for beliefs to agree, F by hand rises."""
    monkeypatch.setattr(double_loop, "INNER_SWEEPS", 60)
    monkeypatch.setattr(newton, "MOST_UNKNOWNS", 0)
    model = spin_glass(3, 1.5, 1)
    _, loop, _ = in_states(model, alpha)
    values = []
    for _ in range(8):
        loop.step(1e-8)
        nodes = loop.beliefs[0].softmax(1)
        (block,) = loop.blocks
        factors = block._tilted(loop.sent[0]).flatten(1).softmax(1).view(-1, 2, 2)
        assert_close(factors.sum(2), nodes[block.rows[0]], rtol=0, atol=1e-6)
        beliefs = dict(zip(range(len(nodes), len(model.scopes)), factors.numpy()))
        values.append(free_energy(model, list(nodes.numpy()), beliefs, alpha))
    assert np.diff(values).min() > -1e-6
    assert values[-1] > values[0] + 1e-4


def test_the_number_of_inner_sweeps_does_not_change_the_end(monkeypatch):
    model, found = spin_glass(4, 0.9, 3), []
    for sweeps in (2, 5, 20):
        monkeypatch.setattr(double_loop, "INNER_SWEEPS", sweeps)
        posterior = forced(pg.BP(model, progress=False, num_steps=3000)).run()
        assert posterior.converged
        found.append(posterior.marginal("x").probs)
    assert_close(found[0], found[1], rtol=0, atol=1e-6)
    assert_close(found[1], found[2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("taken", [3, 19, 20])
def test_a_run_resumed_within_the_fallback_is_the_same_bit_for_bit(taken):
    """Before Newton's method was tried, right before it, after it and later."""
    model = spin_glass(5, 2.0, 0)

    def engine():
        return forced(pg.BP(model, progress=False, num_steps=3000))

    whole, half, resumed = engine(), engine(), engine()
    for _ in range(taken + 5):
        whole.step()
    for _ in range(taken):
        half.step()
    resumed.load_state_dict(half.state_dict())
    for _ in range(5):
        resumed.step()
    assert resumed.iteration.double_loop is not None
    for ours, theirs in zip(resumed.messages, whole.messages):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


def test_a_step_after_newtons_method_has_found_the_end_stays_there():
    engine = forced(pg.BP(spin_glass(8, 2.0, 1), progress=False, num_steps=3000))
    posterior = engine.run()
    assert posterior.converged
    engine.step()
    assert float(gap(engine.network, engine.messages, engine.beliefs)) < 1e-7
    assert_close(
        engine.posterior().marginal("x").probs, posterior.marginal("x").probs, atol=1e-7, rtol=0
    )


def test_too_large_a_network_goes_on_by_the_double_loop_alone(monkeypatch):
    monkeypatch.setattr(newton, "MOST_UNKNOWNS", 10)
    model = spin_glass(4, 1.0, 2)
    posterior = forced(pg.BP(model, progress=False, num_steps=3000)).run()
    assert posterior.converged
    assert_consistent(model, posterior, 1.0, 1e-6)


@pytest.mark.parametrize("alone", [(1,), (1, 3), (2, 1, 4)])
def test_nodes_of_one_state_and_nodes_without_factors_are_no_matter(alone):
    """Those of one state with pairs, others by themselves with their own tables."""
    small = random_model((2, 3, 2, 3), [(0, 1), (1, 2), (2, 3), (0, 3)], 0, 0.5)
    cards = (*small.cards, *alone)
    g = torch.Generator().manual_seed(1)
    extra = [(4 + k,) for k in range(len(alone))]
    tables = [torch.randn(c, generator=g, dtype=torch.float64) for c in alone]
    for k, c in enumerate(alone):
        if c == 1:
            extra.append((1, 4 + k))
            tables.append(torch.randn(3, 1, generator=g, dtype=torch.float64))
    model = Tables(cards, (*small.scopes, *extra), (*small.tables, *tables))
    posterior = forced(pg.BP(model, progress=False)).run()
    assert posterior.converged
    nodes, _ = fractional_bp(model, 1.0)
    for ours, theirs in zip(model.beliefs(posterior), nodes):
        assert_close(ours, torch.as_tensor(theirs), rtol=0, atol=1e-7)


@pytest.mark.parametrize("steps", [1, 30])
def test_contradictory_constraints_are_named_in_the_fallback(steps):
    """Equalities around a cycle, between nodes held at different states."""
    equal = torch.full((2, 2), -INF, dtype=torch.float64).fill_diagonal_(0.0)
    first = torch.tensor([0.0, -INF], dtype=torch.float64)
    scopes = ((0,), (2,), (0, 1), (1, 2), (2, 3), (0, 3))
    model = Tables((2,) * 4, scopes, (first, first.flip(0), *(equal,) * 4))
    with pytest.raises(ZeroMass, match="mass is zero"):
        forced(pg.BP(model, progress=False, num_steps=steps)).run()


def test_derivatives_at_an_end_of_the_fallback_are_those_of_whole_runs():
    edges = torch.tensor(grid_edges(2))

    def ising(theta, w):
        with pyro.plate("nodes", 4):
            x = pyro.sample("x", dist.Bernoulli(logits=theta))
        spin = 2 * x - 1
        with pyro.plate("edges", len(edges)):
            pyro.factor("pair", w * spin[edges[:, 0]] * spin[edges[:, 1]])

    torch.manual_seed(3)
    theta, w = torch.randn(4).requires_grad_(), torch.randn(4).requires_grad_()

    def ends(theta, w):
        engine = pg.BP(lambda: ising(theta, w), progress=False, tol=1e-12, num_steps=2000)
        posterior = forced(engine).run()
        assert posterior.converged
        return posterior.marginal("x").probs[:, 1]

    assert gradcheck(ends, (theta, w), eps=1e-5, atol=1e-6)
