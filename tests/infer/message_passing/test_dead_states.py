"""States at zero: those that constraints hold there, and those that only look like it.

Truth: a search of all sets of states for those whose zeros hold themselves up, enumeration, and
closed forms on a cycle.
"""

import functools
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.discrete.states import by_slot
from pyrograph.infer.message_passing.nodes.log_values import bounded
from pyrograph.infer.message_passing.settling.dead_states import that_stay_dead
from pyrograph.infer.message_passing.settling.double_loop import DoubleLoop
from pyrograph.infer.message_passing.settling.newton import beliefs_of, fixed_point

from .builders import INF, Tables, grid_edges, random_model, run, tree_with_zeros
from .references import fractional_bp

EQUAL = torch.full((2, 2), -INF, dtype=torch.float64).fill_diagonal_(0.0)
AGREE = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)


def wired(model, alpha=1.0):
    """An engine that is set up, and its factors as slots."""
    engine = pg.FractionalBP(model, alpha=alpha, progress=False).setup()
    return engine, DoubleLoop(engine.graph, engine.network)


def found_dead(model, candidates):
    """Pairs (node, state) of a model of sites ``x0``, ``x1``, ... that stay dead."""
    engine, loop = wired(model)
    masks, labels = [], []
    for family in loop.families:
        ids = [int(engine.graph.nodes[v][0][1:]) for v in family.nodes.tolist()]
        labels.append(ids)
        states = range(family.size)
        masks.append(torch.tensor([[(v, x) in candidates for x in states] for v in ids]))
    dead = that_stay_dead(loop.families, loop.blocks, masks)
    return {(ids[row], x) for mask, ids in zip(dead, labels) for row, x in mask.nonzero().tolist()}


def holds_itself_up(model, chosen):
    """Whether the states can all be at zero: messages about them, taken back until all that is
    left follows from the rest, still exclude every one."""
    own = {
        (s[0], x)
        for s, t in zip(model.scopes, model.tables)
        if len(s) == 1
        for x in range(len(t))
        if t[x] == -INF
    }
    wide = [(s, t) for s, t in zip(model.scopes, model.tables) if len(s) > 1]
    zeros = {(a, i, x) for a, (s, _) in enumerate(wide) for i in s for j, x in chosen if i == j}

    def excluded(a, i, x):
        """Whether the cavity of node i to factor a has no state x."""
        return (i, x) in own or any(j == i and y == x and b != a for b, j, y in zeros)

    while True:
        unheld = set()
        for a, i, x in zeros:
            scope, table = wide[a]
            for state in itertools.product(*(range(c) for c in table.shape)):
                if state[scope.index(i)] != x or table[state] == -INF:
                    continue
                rest = [(j, y) for j, y in zip(scope, state) if j != i]
                if not any(excluded(a, j, y) for j, y in rest):
                    unheld.add((a, i, x))
                    break
        if not unheld:
            break
        zeros -= unheld
    return all(v in own or any((i, x) == v for _, i, x in zeros) for v in chosen)


def largest_by_search(model, candidates):
    """Union of all sets of candidates that hold themselves up."""
    out = set()
    for size in range(1, len(candidates) + 1):
        for chosen in itertools.combinations(sorted(candidates), size):
            if holds_itself_up(model, set(chosen)):
                out |= set(chosen)
    return out


SHAPES = [
    ((2, 2, 2), [(0, 1), (1, 2), (0, 2)]),
    ((2, 3, 2), [(0, 1), (1, 2), (0, 2)]),
    ((2, 2, 2, 2), [(0, 1), (1, 2), (2, 3), (0, 3)]),
    ((2, 2, 2, 2), [(0, 1, 2), (1, 2, 3), (0, 3)]),
    ((3, 2, 2), [(0, 1), (1, 2)]),
]


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from(SHAPES), st.sampled_from([0.3, 0.6]))
def test_what_stays_dead_is_the_largest_set_that_holds_itself_up(seed, shape, share):
    model = random_model(*shape, seed=seed, zeros=share)
    g = torch.Generator().manual_seed(seed)
    every = [(i, x) for i, c in enumerate(model.cards) for x in range(1, c)]
    candidates = {v for v in every if torch.rand((), generator=g) < 0.8}
    assert found_dead(model, candidates) == largest_by_search(model, candidates)


def test_a_cycle_of_equalities_holds_zeros_up_and_a_chain_does_not():
    """On the chain a factor would only hear back its own zero."""
    cycle = Tables((2,) * 3, ((0, 1), (1, 2), (0, 2)), (EQUAL,) * 3)
    chain = Tables((2,) * 3, ((0, 1), (1, 2)), (EQUAL,) * 2)
    ones = {(0, 1), (1, 1), (2, 1)}
    assert found_dead(cycle, ones) == ones
    assert found_dead(chain, ones) == set()
    assert found_dead(cycle, ones - {(1, 1)}) == set()


def test_a_soft_factor_holds_no_zero_up():
    soft = torch.tensor([[0.0, -50.0], [-50.0, 0.0]], dtype=torch.float64)
    cycle = Tables((2,) * 3, ((0, 1), (1, 2), (0, 2)), (EQUAL, EQUAL, soft))
    assert found_dead(cycle, {(0, 1), (1, 1), (2, 1)}) == set()


# ---------------------------------------------------------------------- Newton's method on them
def equalities(field):
    own = torch.tensor([0.0, field], dtype=torch.float64)
    return Tables((2,) * 3, ((0,), (0, 1), (1, 2), (0, 2)), (own, EQUAL, EQUAL, EQUAL))


def of_state_one(loop, found):
    return torch.cat(beliefs_of(loop.families, loop.blocks, found)).softmax(1)[:, 1]


@pytest.mark.parametrize("alpha", [0.75, 1.0])
@pytest.mark.parametrize("field", [-0.5, -5.0])
def test_around_equalities_the_weaker_state_dies(alpha, field):
    """Each turn multiplies the odds by exp(field) at alpha = 1, by more below."""
    _, loop = wired(equalities(field), alpha)
    gone = [[m + torch.tensor([0.0, -40.0]) for m in sent] for sent in loop.sent]
    found = fixed_point(loop.families, loop.blocks, gone, 1e-9)
    assert found is not None and not of_state_one(loop, found).any()


@functools.cache
def at_rest(field, alpha):
    """An engine that has settled on equalities, its factors, and its beliefs in state 1."""
    model = equalities(field)
    engine, loop = wired(model, alpha)
    engine.run()
    return engine, loop, torch.cat([b[1:] for b in model.beliefs(engine.posterior())])


@pytest.mark.parametrize("shift", [0.5, -0.5, 2.0, 6.0])
@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("field", [-5.0, -10.0, -20.0, -30.0])
def test_a_state_that_comes_to_rest_is_not_taken_for_dying(alpha, field, shift):
    """Above alpha = 1 the odds of state 1 settle: log odds l of every message and the field h at
    one node have l = (sum of cavities) / alpha with a finite solution, however small."""
    engine, loop, expected = at_rest(field, alpha)
    moved = [[m + torch.tensor([0.0, shift]) for m in by_slot(s)] for s in engine.messages]
    found = fixed_point(loop.families, loop.blocks, moved, 1e-10)
    if found is not None:
        assert_close(of_state_one(loop, found), expected, rtol=1e-6, atol=0)


def forced(engine):
    """The engine, over to its fallback from the first step on."""
    engine.setup()
    engine.iteration.settling.automatic.is_exhausted = True
    return engine


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("field", [-3.0, -0.5])
def test_a_cycle_of_equalities_beside_a_spin_glass_is_decided_and_the_glass_settles(seed, field):
    """Linked by a coupling whose pull at most is 0.6 in log odds."""
    g = torch.Generator().manual_seed(seed)
    edges = grid_edges(4)
    scopes = [(i,) for i in range(16)] + edges + [(16,), (16, 17), (17, 18), (16, 18), (15, 16)]
    tables = [0.5 * torch.randn(2, generator=g, dtype=torch.float64) for _ in range(16)]
    tables += [2 * torch.randn((), generator=g, dtype=torch.float64) * AGREE for _ in edges]
    tables += [torch.tensor([0.0, field], dtype=torch.float64), *(EQUAL,) * 3, 0.1 * AGREE]
    model = Tables((2,) * 19, tuple(scopes), tuple(tables))
    engine = pg.BP(model, progress=False, num_steps=1500)
    posterior = engine.run()
    assert posterior.converged
    nodes, factors = model.beliefs(posterior), model.factor_beliefs(posterior)
    assert all(float(nodes[i][1]) < 1e-15 for i in (16, 17, 18))
    for k, belief in factors.items():
        for slot, i in enumerate(model.scopes[k]):
            assert_close(belief.sum(1 - slot), nodes[i], rtol=0, atol=1e-7)


@pytest.mark.parametrize("seed", range(12))
def test_with_weak_tables_and_zeros_the_fallback_ends_where_plain_loops_do(seed):
    scopes = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2, 4)]
    model = random_model((2, 3, 3, 2, 3), scopes, seed, 0.4, zeros=0.2)
    try:
        nodes, _ = fractional_bp(model, 1.0)
    except AssertionError:
        pytest.skip("plain loops do not settle")
    posterior = forced(pg.BP(model, progress=False, num_steps=3000)).run()
    assert posterior.converged
    for ours, theirs in zip(model.beliefs(posterior), nodes):
        assert_close(ours, torch.as_tensor(theirs), rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_on_trees_with_zeros_the_double_loop_is_exact(seed):
    model = tree_with_zeros(seed)
    engine, loop = wired(model)
    for _ in range(21):
        engine.messages = [list(sent) for sent in loop.step(1e-8)]
    assert_close(engine.log_evidence, model.log_z, rtol=0, atol=1e-8)
    for i, belief in enumerate(model.beliefs(engine.posterior())):
        assert_close(belief, model.marginal(i), rtol=0, atol=1e-8)


# ---------------------------------------------------------------------- soft and huge
LONG = ((0,), (3,), (0, 1), (1, 2), (2, 3))
EQUAL3 = torch.full((3, 3), -INF, dtype=torch.float64).fill_diagonal_(0.0)


def far_apart(size, dtype, closed):
    """State 0 is best by ``size`` at one end of a chain of equalities, worst by 4 ``size`` at the
    other; between 1 and 2 it is a matter of 1. ``closed`` by a factor that says nothing."""
    near = torch.tensor([0.0, -size, -size - 1], dtype=dtype)
    other = torch.tensor([-4 * size, 0.0, 0.0], dtype=dtype)
    scopes, tables = LONG, (near, other, *(EQUAL3.to(dtype),) * 3)
    if closed:
        scopes, tables = (*scopes, (0, 3)), (*tables, torch.zeros(3, 3, dtype=dtype))
    return Tables((3,) * 4, scopes, tables)


HUGE = [(1e3, torch.float64), (1e5, torch.float64), (3e6, torch.float64), (1e3, torch.float32)]


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("size, dtype", HUGE)
def test_huge_soft_values_beside_zeros_make_no_ties(size, dtype, fallback):
    torch.set_default_dtype(dtype)
    model = far_apart(size, dtype, closed=fallback)
    engine = pg.BP(model, progress=False, num_steps=400)
    posterior = (forced(engine) if fallback else engine).run()
    assert posterior.converged
    tolerance = 1e-8 if dtype == torch.float64 else 1e-4
    expected = torch.tensor([0.0, 1.0, float(torch.tensor(-1.0).exp())], dtype=dtype)
    for belief in model.beliefs(posterior):
        assert_close(belief, expected / expected.sum(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("size, dtype", HUGE)
def test_states_that_a_belief_needs_are_not_settled_however_unlikely_one_factor_finds_them(
    size, dtype
):
    torch.set_default_dtype(dtype)
    model = far_apart(size, dtype, closed=True)
    posterior = pg.BP(model, progress=False).run()
    assert posterior.converged
    expected = torch.tensor([0.0, 1.0, float(torch.tensor(-1.0).exp())], dtype=dtype)
    for belief in model.beliefs(posterior):
        assert_close(belief, expected / expected.sum(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("schedule", ["parallel", "sequential", "residual"])
def test_fields_that_outweigh_each_other_hop_by_hop_are_heard_at_the_end(schedule):
    """Equalities along a chain, 100 for state 0 at every node, 450 for state 1 at the last; closed
    by a factor that says nothing, so that the plain iteration runs."""
    equal = torch.full((2, 2), -INF).fill_diagonal_(0.0)
    fields = [torch.tensor([0.0, -100.0])] * 5 + [torch.tensor([-450.0, 0.0])]
    pairs = [(i, i + 1) for i in range(5)]
    scopes = (*((i,) for i in range(6)), *pairs, (0, 5))
    model = Tables((2,) * 6, scopes, (*fields, *[equal] * 5, torch.zeros(2, 2)))
    posterior = pg.BP(model, progress=False, schedule=schedule).run()
    assert posterior.converged
    for i, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief, model.marginal(i), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1e3, 1e5])
@pytest.mark.parametrize("zeros", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_random_huge_tables_on_trees_are_exact(seed, zeros, size):
    scopes = [(0, 1, 2), (2, 3), (2, 4), (4, 5, 6)]
    model = random_model((3, 2, 3, 2, 4, 2, 3), scopes, seed, size, zeros=zeros)
    posterior = run(model)
    assert_close(posterior.log_evidence, model.log_z, rtol=1e-12, atol=1e-8)
    for i, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief, model.marginal(i), rtol=0, atol=1e-8)


log_values = st.floats(-1e9, 1e9) | st.just(-INF)


@given(st.lists(st.tuples(log_values, log_values), min_size=2, max_size=5))
def test_bounds_move_no_belief_above_their_depth(pairs):
    """And keep zeros, and no value above 0 of the best state."""
    value, cavity = torch.tensor(pairs, dtype=torch.float64).t().unsqueeze(1)
    out = bounded(value, cavity)
    assert torch.equal(torch.isneginf(out), torch.isneginf(value))
    before, after = value + cavity, out + cavity
    if bool(torch.isneginf(before).all()):
        return
    best = before.argmax()
    before, after = before - before[0, best], after - after[0, best]
    near = before > -1e6
    assert_close(after[near], before[near], rtol=0, atol=1e-5)
    assert bool((after[~near] < -9e5).all())
