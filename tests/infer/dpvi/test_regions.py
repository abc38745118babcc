"""Beams over regions of near nodes, and the polish by single nodes that they come before."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

import pyrograph as pg
from pyrograph.infer.dpvi import blocks, regions
from pyrograph.infer.dpvi.clusters import Clusters
from pyrograph.infer.dpvi.regions import SIZE

POLISHED = ("block", "single")


def pairwise(cards: np.ndarray, pairs: np.ndarray, seed: int, scale: float = 1.0) -> Callable:
    """Nodes with random terms of their own, N(0, .5^2), and of pairs ``[E, 2]``, N(0, scale^2)."""
    rng = np.random.default_rng(seed)
    own = [torch.tensor(0.5 * rng.normal(size=c)) for c in cards]
    tables = [torch.tensor(scale * rng.normal(size=(cards[i], cards[j]))) for i, j in pairs]

    def model():
        x = []
        for i, term in enumerate(own):
            x.append(pyro.sample(f"x{i}", dist.Categorical(torch.ones(len(term))).mask(False)))
            pyro.factor(f"own_{i}", term[x[i]])
        for (i, j), table in zip(pairs, tables, strict=True):
            pyro.factor(f"pair_{i}_{j}", table[x[i], x[j]])

    model.score = lambda states: (
        sum(t.numpy()[states[:, i]] for i, t in enumerate(own))
        + sum(
            t.numpy()[states[:, i], states[:, j]] for (i, j), t in zip(pairs, tables, strict=True)
        )
    )
    return model


def spins(field: np.ndarray, pairs: np.ndarray, strength: np.ndarray | float) -> Callable:
    """exp(sum_i h_i x_i + sum_ij J_ij x_i x_j) of spins -1 and 1."""
    h, (a, b) = torch.as_tensor(field), torch.as_tensor(pairs).T
    strength = torch.as_tensor(strength)

    def model():
        with pyro.plate("nodes", len(h)):
            x = 2 * pyro.sample("x", dist.Bernoulli(0.5).mask(False)) - 1
            pyro.factor("field", h * x)
        with pyro.plate("pairs", len(a)):
            pyro.factor("pair", strength * x[a] * x[b])

    return model


def lattice(side: int) -> np.ndarray:
    at = np.arange(side * side).reshape(side, side)
    across = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], 1)
    return np.concatenate([across, np.stack([at[:-1].ravel(), at[1:].ravel()], 1)])


def some_pairs(rng: np.random.Generator, num_nodes: int, share: float) -> np.ndarray:
    every = np.array(list(itertools.combinations(range(num_nodes), 2))).reshape(-1, 2)
    return every[rng.random(len(every)) < share]


def engine_of(model: Callable, moves, count: int, **options) -> pg.DPVI:
    pyro.set_rng_seed(0)
    options = {"num_particles": count, "moves": moves, "progress": False, **options}
    return pg.DPVI(model, **options).setup()


def bound_of(model: Callable, moves, count: int, **options) -> float:
    return float(engine_of(model, moves, count, **options).run().log_evidence)


# ---------------------------------------------------------------------- one sweep
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0.2, 1.0))
@settings(max_examples=15, deadline=None)
def test_a_beam_with_room_for_all_states_ends_at_the_mode(seed, num_nodes, share):
    rng = np.random.default_rng(seed)
    model = pairwise(np.full(num_nodes, 2), some_pairs(rng, num_nodes, share), seed, scale=2.0)
    states = np.array(list(itertools.product(range(2), repeat=num_nodes)))
    engine = engine_of(model, "region", 1, init="random")
    engine.step()
    assert float(engine.search.found.score[0]) == pytest.approx(model.score(states).max(), abs=1e-9)


@given(st.integers(0, 10_000), st.integers(2, 36), st.floats(0.0, 0.3))
@settings(max_examples=10, deadline=None)
def test_regions_cover_all_nodes_twice_and_those_of_a_set_share_no_factor(seed, num_nodes, share):
    rng = np.random.default_rng(seed)
    cards, pairs = rng.integers(1, 4, num_nodes), some_pairs(rng, num_nodes, share)
    engine = engine_of(pairwise(cards, pairs, seed), "region", 2)
    sets = [found.nodes.numpy() for found in engine.search.sweeps.clusters["region"]]
    covered = np.bincount([v for s in sets for v in s[s >= 0]], minlength=num_nodes)
    np.testing.assert_array_equal(covered, np.where(cards > 1, 2, 0))
    for own in sets:
        assert own.shape[1] == SIZE
        region = np.full(num_nodes, -1)
        for r, nodes in enumerate(own):
            region[nodes[nodes >= 0]] = r
        a, b = region[pairs].T
        assert (((a == b) | (a < 0)) | (b < 0)).all()


def test_regions_and_pairs_in_parts_are_all_of_them(monkeypatch):
    model = spins(np.zeros(64), lattice(8), 0.5)
    moves = ("pair", "region")
    whole = engine_of(model, None, 4).search.sweeps.clusters
    assert whole.keys() == {"block", *moves, "flip"}
    monkeypatch.setattr(regions, "AT_ONCE", 2 * 32 * 2)
    monkeypatch.setattr(blocks, "AT_ONCE", 3 * 4 * 4)
    parts = engine_of(model, None, 4).search.sweeps.clusters
    for kind in moves:
        both = [
            sorted(row for part in found[kind] for row in part.nodes.tolist())
            for found in (whole, parts)
        ]
        assert both[0] == both[1]
        assert len(parts[kind]) > len(whole[kind])
    assert max(len(part.nodes) for part in parts["region"]) <= 2
    assert max(len(part.nodes) for part in parts["pair"]) <= 3


def test_some_clusters_have_the_scores_they_have_among_all():
    rng = np.random.default_rng(0)
    cards = np.full(12, 3)
    engine = engine_of(pairwise(cards, some_pairs(rng, 12, 0.4), 0), "single", 5, init="random")
    every = Clusters(engine.search.network, torch.arange(12).unsqueeze(1))
    which = torch.tensor([7, 0, 11, 3])
    x = engine.search.found.x
    part = every.part(which)
    torch.testing.assert_close(part.local_scores(x), every.local_scores(x)[which])
    torch.testing.assert_close(part.local_scores(x, 2), every.local_scores(x, 11))
    torch.testing.assert_close(part.current(x), every.current(x)[which])


# ---------------------------------------------------------------------- runs
def test_a_detour_is_found_where_cheap_changes_elsewhere_fill_all_particles():
    # two spins hold each other against their fields; 40 others have next to none, and one a strong
    # one, which keeps the opposite of all out
    cheap = np.linspace(0.001, 0.01, 40)
    field = np.concatenate([[-0.5, -0.5], cheap, [9.0]])
    model = spins(field, np.array([[0, 1]]), 2.0)
    costs = [2 * sum(s) for r in range(3) for s in itertools.combinations(cheap[:10], r)]
    best = 2.0 + 1.0 + cheap.sum() + 9.0 - np.sort(costs)[:4]
    start = {"x": torch.ones(1, 43)}
    assert bound_of(model, "block", 4, init=start) == pytest.approx(logsumexp(best) - 2.0, abs=1e-9)
    assert bound_of(model, POLISHED, 4, init=start) == pytest.approx(logsumexp(best), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["weak", "field", "strong", "glass", "sparse", "potts"])
def test_blocks_with_a_polish_end_at_the_bound_of_algorithm_1_or_above(kind, seed):
    rng, side = np.random.default_rng(seed), 9
    n = side * side
    if kind == "sparse":
        pairs = np.unique(np.sort(rng.integers(0, n, (3 * n, 2)), 1), axis=0)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        model = spins(0.3 * rng.normal(size=n), pairs, 0.7 * rng.normal(size=len(pairs)))
    elif kind == "potts":
        model = pairwise(np.full(16, 4), lattice(4), seed)
    elif kind == "glass":
        model = spins(0.3 * rng.normal(size=n), lattice(side), rng.normal(size=144))
    else:
        beta = {"weak": 0.3, "field": 0.5, "strong": 1.0}[kind]
        model = spins(rng.normal(size=n), lattice(side), beta)
    sequential = bound_of(model, "single", 10)
    assert bound_of(model, POLISHED, 10) >= sequential - 1e-3 * abs(sequential)


@given(st.integers(0, 10_000), st.integers(2, 6), st.floats(0.2, 1.0), st.integers(1, 30))
@settings(max_examples=15, deadline=None)
def test_the_bound_rises_to_at_most_that_of_the_best_states(seed, num_nodes, share, count):
    rng = np.random.default_rng(seed)
    cards = rng.integers(1, 4, num_nodes)
    model = pairwise(cards, some_pairs(rng, num_nodes, share), seed, scale=2.0)
    states = np.array(list(itertools.product(*(range(c) for c in cards))))
    best = np.sort(model.score(states))[::-1]
    engine = engine_of(model, POLISHED, count, init="random")
    q = engine.run()
    assert (q.history["objective"].diff() >= -1e-9).all()
    found = engine.search.found
    assert found.x.unique(dim=1).shape[1] == len(found)
    np.testing.assert_allclose(found.score, model.score(found.x.T.numpy()), atol=1e-9)
    assert float(q.log_evidence) <= logsumexp(best[:count]) + 1e-9
    assert float(q.log_evidence) >= best[0] - 1e-9  # the mode


@pytest.mark.parametrize("count", [1, 3, 10])
def test_single_nodes_alone_are_algorithm_1(count):
    rng, pairs = np.random.default_rng(4), lattice(4)
    field = rng.normal(size=16)
    start = rng.integers(0, 2, (12, 16))

    def score(x):
        s = 2 * np.array(x) - 1
        return field @ s + 0.6 * (s[pairs[:, 0]] * s[pairs[:, 1]]).sum()

    model = spins(field, pairs, 0.6)
    engine = engine_of(model, "single", count, init={"x": torch.tensor(start).double()})
    pool = sorted({tuple(x) for x in start.tolist()}, key=score)[-count:]
    for _ in range(4):
        for i in range(16):
            every = {(*x[:i], s, *x[i + 1 :]) for x in pool for s in (0, 1)}
            pool = sorted(every, key=score)[-count:]
        pool = sorted({*pool, *(tuple(1 - v for v in x) for x in pool)}, key=score)[-count:]
        bound = logsumexp([score(x) for x in pool])
        assert engine.step() == pytest.approx(bound, abs=1e-9)
        assert {tuple(x) for x in engine.search.found.x.T.tolist()} == set(pool)


@pytest.mark.parametrize("moves", ["region", ("region", "flip"), POLISHED])
def test_hard_constraints_hold_and_changes_pass_through_states_that_break_them(moves):
    worth = torch.tensor([0.0, 1.0, 3.0, 2.0], dtype=torch.float64)

    def one_of_four():
        with pyro.plate("nodes", 4):
            x = pyro.sample("x", dist.Bernoulli(0.5).mask(False))
        pyro.factor("worth", (worth * x).sum())
        pyro.factor("hard", torch.where(x.sum() == 1, 0.0, -math.inf))

    start = {"x": torch.tensor([[1.0, 0, 0, 0]])}
    engine = engine_of(one_of_four, moves, 1, init=start)
    assert float(engine.run().log_evidence) == pytest.approx(3.0, abs=1e-12)


@pytest.mark.parametrize("chunk", [regions.CHUNK, 250])
def test_gains_behind_states_that_break_constraints_are_exact(monkeypatch, chunk):
    monkeypatch.setattr(regions, "CHUNK", chunk)
    # what is best differs by less than the rounding of a sum with a zero in it
    rng = np.random.default_rng(0)
    worth = torch.tensor(1e-4 * rng.random((100, 4)) + rng.normal(size=(100, 1)))

    def one_of_four_each():
        with pyro.plate("sets", 100):
            x = [pyro.sample(f"x{i}", dist.Bernoulli(0.5).mask(False)) for i in range(4)]
            pyro.factor("worth", sum(worth[:, i] * x[i] for i in range(4)))
            pyro.factor("hard", torch.where(sum(x) == 1, 0.0, -math.inf))

    start = {f"x{i}": torch.full((1, 100), float(i == 0)) for i in range(4)}
    engine = engine_of(one_of_four_each, "region", 1, init=start)
    engine.run()
    best = float(worth.amax(1).sum())
    assert float(engine.search.found.score[0]) == pytest.approx(best, abs=1e-10)


def test_nodes_that_are_summed_out_are_in_no_region():
    rng = np.random.default_rng(5)
    cards = rng.integers(2, 4, 7)
    model = pairwise(cards, some_pairs(rng, 7, 0.4), 5)
    states = np.array(list(itertools.product(*(range(c) for c in cards))))
    q = engine_of(model, POLISHED, len(states), sum_out="auto").run()
    assert float(q.log_evidence) == pytest.approx(logsumexp(model.score(states)), abs=1e-9)


@pytest.mark.parametrize("steps", [1, 3, 5, 6, 7, 8])
def test_a_polished_run_may_be_cut_anywhere_and_ends_where_it_would_have(steps):
    model = spins(np.random.default_rng(2).normal(size=49), lattice(7), 0.6)
    whole = engine_of(model, POLISHED, 6).run()
    first = engine_of(model, POLISHED, 6)
    for _ in range(steps):
        first.step()
    pyro.set_rng_seed(7)
    second = pg.DPVI(model, num_particles=6, moves=POLISHED, progress=False)
    second.load_state_dict(first.state_dict())
    q = second.run()
    assert float(q.log_evidence) == float(whole.log_evidence)
    assert torch.equal(q.particles["x"], whole.particles["x"])
