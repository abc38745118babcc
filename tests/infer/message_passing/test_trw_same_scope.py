"""Factors on the same two nodes are one edge of the spanning trees.

Truth: enumeration, dense Gaussian algebra, and the convex program solved by scipy, which keeps
such factors apart as readily as in one.
"""

import itertools
import math

import networkx as nx
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import OptionError, ShapeMismatch, ZeroMass
from pyrograph.infer.message_passing.discrete.differences import DifferenceFactors
from pyrograph.infer.message_passing.spanning_trees import uniform_appearance

from .builders import Tables, random_messages, random_model, run
from .test_differences import banded, dense, truncated
from .test_trw import convex_bound

APPEARANCES = ["uniform", "optimize"]
TREE = [(0, 1), (1, 2), (0, 1), (1, 3), (1, 2), (0, 1)]
TRIANGLE = [(0, 1), (1, 2), (0, 2), (0, 1), (0, 2), (0, 2)]


def multiplied(tables: Tables) -> Tables:
    """The same with one table for each scope."""
    scopes = tuple(dict.fromkeys(tables.scopes))
    product = [
        sum(t for s, t in zip(tables.scopes, tables.tables) if s == scope) for scope in scopes
    ]
    return Tables(tables.cards, scopes, tuple(product), tables.plated)


@pytest.mark.parametrize("appearance", APPEARANCES)
@pytest.mark.parametrize("cards", [(2,) * 4, (3,) * 4, (2, 3, 4, 2)])
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_a_tree_with_edges_named_twice_is_exact(appearance, cards, zeros):
    tables = random_model(cards, TREE, 3, 1.5, zeros, plated=len(set(cards)) == 1)
    posterior = run(tables, pg.TRW, edge_appearance=appearance)
    assert posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, tables.log_z, rtol=0, atol=1e-10)
    for i, found in enumerate(tables.beliefs(posterior)):
        assert_close(found, tables.marginal(i), rtol=0, atol=1e-9)
    for k, found in tables.factor_beliefs(posterior).items():
        assert_close(found, tables.marginal(*tables.scopes[k]), rtol=0, atol=1e-9)


def test_a_chain_observed_through_its_steps_is_exact():
    start, moves = torch.tensor([0.6, 0.4]).double(), torch.tensor([[0.8, 0.2], [0.3, 0.7]])
    means = torch.tensor([[0.3, -1.2], [1.5, 0.0]], dtype=torch.float64)
    seen = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64)

    def switching():
        x = pyro.sample("x0", dist.Categorical(start))
        for t in range(3):
            after = pyro.sample(f"x{t + 1}", dist.Categorical(moves.double()[x]))
            pyro.sample(f"y{t}", dist.Normal(means[x, after], 0.5), obs=seen[t])
            x = after

    total = []
    for x in itertools.product((0, 1), repeat=4):
        value = math.log(start[x[0]])
        for t in range(3):
            a, b = x[t], x[t + 1]
            value += math.log(moves.double()[a, b]) - 2 * float(seen[t] - means[a, b]) ** 2
        total.append(value - 3 * math.log(0.5 * math.sqrt(2 * math.pi)))
    log_z = torch.tensor(total, dtype=torch.float64).logsumexp(0)
    posterior = run(switching, pg.TRW)
    assert posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, log_z, rtol=0, atol=1e-10)


def test_the_bound_of_given_appearances_is_that_of_their_sums_and_tighter_than_side_by_side():
    apart = random_model((2,) * 3, TRIANGLE, 5, 1.0, plated=True)
    edges = torch.tensor(TRIANGLE)
    mu = uniform_appearance(edges, 3)
    engine = pg.TRW(apart, edge_appearance=mu, progress=False)
    bound = float(engine.run().log_evidence)
    one = multiplied(apart)
    pairs = [s for s in one.scopes if len(s) == 2]
    together = torch.stack([mu[[tuple(e) == s for e in TRIANGLE]].sum() for s in pairs])
    assert bound == pytest.approx(convex_bound(one, together.numpy()), abs=1e-5)
    looser = convex_bound(apart, mu.numpy())
    assert float(apart.log_z) < bound < looser - 0.05
    again = pg.TRW(apart, edge_appearance=engine.mu, progress=False).run()
    assert float(again.log_evidence) == bound


@pytest.mark.parametrize("appearance", APPEARANCES)
@pytest.mark.parametrize("cards", [2, 3])
def test_the_bound_is_that_of_the_program_of_their_products(appearance, cards):
    apart = random_model((cards,) * 3, TRIANGLE, 2, 1.0, plated=True)
    options = {"edge_appearance": appearance, "tol": 1e-11}
    found, expected = (run(m, pg.TRW, **options) for m in (apart, multiplied(apart)))
    assert found.evidence_kind == "upper bound"
    assert_close(found.log_evidence, expected.log_evidence, rtol=0, atol=1e-9)
    assert float(found.log_evidence) > float(apart.log_z)


@st.composite
def models_with_parallel_edges(draw):
    num_nodes = draw(st.integers(2, 4))
    pair = st.sampled_from(list(itertools.combinations(range(num_nodes), 2)))
    scopes = draw(st.lists(pair, min_size=2, max_size=7))
    options = {"strength": 1.5, "zeros": draw(st.sampled_from([0.0, 0.15]))}
    plated = draw(st.booleans())
    cards = (draw(st.sampled_from([2, 3])),) * num_nodes
    return random_model(cards, scopes, draw(st.integers(0, 99)), **options, plated=plated)


@given(models_with_parallel_edges(), st.sampled_from(APPEARANCES), st.integers(0, 99))
@settings(max_examples=12)
def test_any_messages_give_an_upper_bound_and_forests_are_exact(tables, appearance, seed):
    engine = pg.TRW(tables, edge_appearance=appearance, num_trees=3, progress=False).setup()
    random_messages(engine, seed)
    truth = float(tables.log_z)
    assert engine.evidence_kind() == "upper bound"
    assert float(engine.log_evidence) >= truth - 1e-9
    posterior = run(tables, pg.TRW, edge_appearance=appearance, num_trees=3)
    assert float(posterior.log_evidence) >= truth - 1e-9
    pairs = nx.Graph([s for s in tables.scopes if len(s) == 2])
    assert (posterior.evidence_kind == "exact") == nx.is_forest(pairs)
    if nx.is_forest(pairs):
        assert float(posterior.log_evidence) == pytest.approx(truth, abs=1e-9)


def test_sums_beyond_any_tree_are_refused():
    tables = random_model((2,) * 3, [(0, 1), (0, 1), (1, 2)], 0, plated=True)
    mu = torch.tensor([0.7, 0.5, 1.0])
    with pytest.raises(OptionError, match=r'1\.2 .* 2 nodes "x"\[0\], "x"\[1\], where'):
        run(tables, pg.TRW, edge_appearance=mu)
    with pytest.raises(OptionError, match="the graph has 3 factors on pairs"):
        run(tables, pg.TRW, edge_appearance=torch.ones(2))


def test_factors_that_exclude_each_other_are_told():
    equal = torch.where(torch.eye(2).bool(), 0.0, -torch.inf)
    unequal = torch.where(torch.eye(2).bool(), -torch.inf, 0.0)
    tables = Tables((2, 2), ((0, 1), (0, 1)), (equal, unequal))
    with pytest.raises(ZeroMass, match="f0"):
        run(tables, pg.TRW)


# ---------------------------------------------------------------------- Gaussian
def gaussian(pull, i, j):
    def program():
        with pyro.plate("nodes", int(j.max()) + 1):
            x = pyro.sample("x", dist.Normal(torch.arange(int(j.max()) + 1).double() / 4, 1.0))
        with pyro.plate("pairs", len(i)):
            pyro.factor("pair", -0.5 * pull * (x[i] - x[j] - 0.5).square())

    n = int(j.max()) + 1
    read = torch.zeros(len(i), n, dtype=torch.float64)
    read[torch.arange(len(i)), i], read[torch.arange(len(i)), j] = 1.0, -1.0
    precision = torch.eye(n, dtype=torch.float64) + read.T @ (pull.unsqueeze(1) * read)
    start = torch.arange(n).double() / 4
    shift = start + 0.5 * read.T @ pull
    constant = -0.5 * start @ start - 0.125 * pull.sum()
    mean = torch.linalg.solve(precision, shift)
    return program, constant + 0.5 * shift @ mean - 0.5 * torch.logdet(precision), mean


@pytest.mark.parametrize("appearance", APPEARANCES)
def test_gaussian_trees_with_edges_named_twice_are_exact(appearance):
    i, j = torch.tensor(TREE).unbind(1)
    pull = torch.tensor([0.4, 1.0, 2.0, 0.3, 0.7, 1.1], dtype=torch.float64)
    program, log_z, mean = gaussian(pull, i, j)
    posterior = run(program, pg.TRW, edge_appearance=appearance)
    assert posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, log_z, rtol=0, atol=1e-9)
    assert_close(posterior.marginal("x").mean, mean, rtol=0, atol=1e-8)


@pytest.mark.parametrize("appearance", APPEARANCES)
def test_gaussian_rings_with_edges_named_twice_have_the_bound_of_their_products(appearance):
    i, j = torch.tensor(TRIANGLE).unbind(1)
    pull = torch.tensor([0.4, 1.0, 2.0, 0.3, 0.7, 1.1], dtype=torch.float64)
    program, log_z, mean = gaussian(pull, i, j)
    summed = torch.stack([pull[0] + pull[3], pull[1], pull[2] + pull[4] + pull[5]])
    expected = run(gaussian(summed, i[:3], j[:3])[0], pg.TRW, edge_appearance=appearance, tol=1e-12)
    found = run(program, pg.TRW, edge_appearance=appearance, tol=1e-12)
    assert found.evidence_kind == "upper bound"
    assert_close(found.log_evidence, expected.log_evidence, rtol=0, atol=1e-8)
    assert float(found.log_evidence) > float(log_z)
    assert_close(found.marginal("x").mean, mean, rtol=0, atol=1e-7)


# ---------------------------------------------------------------------- differences
C = 16


def differences(kind, scopes, more=()):
    """A program of pairs by difference, and of tables on ``more`` in a statement of their own."""
    torch.manual_seed(0)
    own = [torch.randn(C).double() for _ in range(3)]
    far = dense(kind(C, len(scopes)).expand(len(scopes), -1)).double()
    near = torch.randn(len(more), C, C).double()
    every = (*((k,) for k in range(3)), *scopes, *more)
    truth = Tables((C,) * 3, every, (*own, *far, *near))

    def program():
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Categorical(logits=torch.zeros(C).double()).mask(False))
            pyro.factor("own", torch.stack(own)[torch.arange(3), x])
        for name, table, pairs in (("far", far, scopes), ("near", near, more)):
            if len(pairs):
                i, j = torch.tensor(pairs).unbind(1)
                with pyro.plate(f"{name}s", len(pairs)):
                    pyro.factor(name, table[torch.arange(len(pairs)), x[i], x[j]])

    return program, truth


@pytest.mark.parametrize("infer", [pg.BP, pg.TRW])
@pytest.mark.parametrize("kind", [truncated, banded])
@pytest.mark.parametrize("more", [(), ((0, 1),), ((0, 1), (1, 2), (0, 1))])
def test_differences_on_one_pair_are_one_factor(infer, kind, more):
    scopes = [(0, 1), (1, 2), (0, 1)]
    program, truth = differences(kind, scopes, more)
    engine = infer(program, progress=False)
    posterior = engine.run()
    assert posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, truth.log_z, rtol=0, atol=1e-9)
    assert_close(posterior.marginal("x").probs[1], truth.marginal(1), rtol=0, atol=1e-9)
    for name, pairs in (("far", scopes), ("near", more)):
        for found, pair in zip(posterior.factor_marginal(name) if pairs else (), pairs):
            assert_close(found, truth.marginal(*pair), rtol=0, atol=1e-9)
    kept = [block.num_factors for block in engine.network.blocks if is_by_difference(block)]
    assert sum(kept) == 2 - len(set(more))  # those beside a table are in it


def is_by_difference(block):
    return isinstance(block, DifferenceFactors)


def test_a_bound_over_differences_on_one_pair_is_that_of_their_tables():
    program, truth = differences(truncated, [(0, 1), (1, 2), (0, 2), (0, 1)], [(1, 2)])
    found = run(program, pg.TRW, tol=1e-11)
    expected = run(multiplied(truth), pg.TRW, tol=1e-11)
    assert_close(found.log_evidence, expected.log_evidence, rtol=0, atol=1e-9)
    assert float(found.log_evidence) > float(truth.log_z)


# ---------------------------------------------------------------------- states and gradients
@pytest.mark.parametrize("separate", [False, True])
def test_states_that_kept_such_factors_apart_are_refused(monkeypatch, separate):
    tables = random_model((3,) * 3, TRIANGLE, 1, plated=not separate)
    options = {"edge_appearance": uniform_appearance(torch.tensor(TRIANGLE), 3), "progress": False}
    with monkeypatch.context() as patch:
        patch.setattr(pg.TRW, "one_alpha", False)
        apart = pg.TRW(tables, **options).setup()
        apart.step()
        state = apart.state_dict()
    engine = pg.TRW(tables, **options).setup()
    with pytest.raises(ShapeMismatch, match="kept factors on the same nodes apart"):
        engine.load_state_dict(state)


def test_a_run_with_optimised_trees_goes_on_from_its_state():
    tables = random_model((2,) * 4, [*TRIANGLE, (2, 3), (1, 3), (2, 3)], 1, plated=True)
    options = {"edge_appearance": "optimize", "progress": False}
    whole = pg.TRW(tables, **options)
    whole.run()
    first, second = (pg.TRW(tables, **options) for _ in range(2))
    for _ in range(20):
        first.step()
    second.load_state_dict(first.state_dict())
    second.run()
    assert second.num_done == whole.num_done
    assert torch.equal(second.mu, whole.mu)
    assert torch.equal(second.log_evidence, whole.log_evidence)


def test_gradients_reach_every_factor_of_an_edge():
    table = random_model((2,) * 3, TRIANGLE, 4).tables[3:]
    i, j = torch.tensor(TRIANGLE).unbind(1)

    def evidence(theta):
        def program():
            with pyro.plate("nodes", 3):
                x = pyro.sample("x", dist.Bernoulli(torch.full((3,), 0.5, dtype=torch.float64)))
            x = x.long()
            with pyro.plate("pairs", 6):
                pyro.factor("f", theta * torch.stack(table)[torch.arange(6), x[i], x[j]])

        return run(program, pg.TRW, tol=1e-11).log_evidence

    theta = torch.linspace(0.5, 1.0, 6).double().requires_grad_()
    (found,) = torch.autograd.grad(evidence(theta), theta)
    with torch.no_grad():
        step = 1e-5 * torch.eye(6).double()
        quotient = torch.stack([evidence(theta + e) - evidence(theta - e) for e in step]) / 2e-5
    assert_close(found, quotient, rtol=0, atol=1e-6)
