"""The best K joint states by elimination: against enumeration, list Viterbi and exact sums."""

import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.dpvi import best_states as module
from pyrograph.infer.dpvi.best_states import best_states
from pyrograph.infer.dpvi.network import Network, Tables


def network_of(rng, num_nodes, zeros):
    """Factors of up to three nodes on nodes of up to three states."""
    cards = rng.integers(1, 4, num_nodes)
    tables = []
    for arity in range(1, min(num_nodes, 3) + 1):
        for _ in range(rng.integers(0, 4)):
            scope = rng.choice(num_nodes, arity, replace=False)
            values = rng.normal(size=(1, *cards[scope]))
            values[rng.random(values.shape) < zeros] = -(2.0**40)
            tables.append(Tables(torch.tensor(scope)[None], torch.tensor(values)))
    return Network(torch.tensor(cards), tables, torch.tensor(0.5, dtype=torch.float64))


def every_state(cards):
    return torch.tensor(list(itertools.product(*(range(c) for c in cards.tolist())))).t()


@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 30), st.sampled_from([0.0, 0.4]))
def test_they_are_those_of_all_joint_states(seed, num_nodes, count, zeros):
    network = network_of(np.random.default_rng(seed), num_nodes, zeros)
    scores = network.score(every_state(network.cards)).sort(descending=True).values
    x = best_states(network, min(count, network.num_states))
    assert_close(network.score(x), scores[:count], rtol=1e-12, atol=1e-9)
    assert x.unique(dim=1).shape == x.shape


def test_equal_scores_are_distinct_states():
    """No factor tells the states of two nodes and of a pair apart."""
    equal = Tables(torch.tensor([[0, 1]]), torch.zeros(1, 2, 3, dtype=torch.float64))
    network = Network(torch.tensor([2, 3, 2, 1]), [equal], torch.tensor(0.0, dtype=torch.float64))
    for count in (1, 5, 12):
        x = best_states(network, count)
        assert x.unique(dim=1).shape == (4, count)


def chain(observed, rng):
    start, move = rng.dirichlet(np.ones(4)), rng.dirichlet(np.full(4, 0.3), 4)
    emit = rng.dirichlet(np.full(5, 0.3), 4) + 1e-3
    emit /= emit.sum(1, keepdims=True)
    tables = [torch.tensor(v) for v in (start, move, emit)]

    def model():
        z = None
        for t in pyro.markov(range(len(observed))):
            probs = tables[0] if z is None else tables[1][z]
            z = pyro.sample(f"z{t}", dist.Categorical(probs))
            pyro.sample(f"y{t}", dist.Categorical(tables[2][z]), obs=torch.tensor(observed[t]))

    return model, start, move, emit


def list_viterbi(observed, start, move, emit, count):
    """Scores of the best paths: every state keeps its best."""
    lists = [[np.log(start[s] * emit[s, observed[0]])] for s in range(4)]
    for y in observed[1:]:
        lists = [
            sorted(
                (old + np.log(move[r, s] * emit[s, y]) for r in range(4) for old in lists[r]),
                reverse=True,
            )[:count]
            for s in range(4)
        ]
    return np.array(sorted(itertools.chain(*lists), reverse=True)[:count])


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("smoothing", [False, True])
def test_runs_on_a_chain_end_at_list_viterbis_paths(count, smoothing):
    rng = np.random.default_rng(count)
    observed = rng.integers(0, 5, 60)
    model, *numbers = chain(observed.tolist(), rng)
    options = {"num_particles": count, "progress": False}
    if smoothing:
        engine = pg.SequentialDPVI(model, smoothing=True, **options)
    else:
        engine = pg.DPVI(model, **options)
    q = engine.run()
    best = list_viterbi(observed, *numbers, count)
    assert q.converged
    assert float(q.log_evidence) == pytest.approx(logsumexp(best), abs=1e-10)
    np.testing.assert_allclose(q.log_weights.exp(), np.exp(best - logsumexp(best)), atol=1e-10)


def grid(side, coupling, field):
    def model():
        with pyro.plate("nodes", side * side):
            x = pyro.sample("x", dist.Bernoulli(0.5)) * 2 - 1
        pyro.factor("field", (field * x).sum())
        x = x.reshape(side, side)
        pyro.factor("across", coupling * (x[:, 1:] * x[:, :-1]).sum())
        pyro.factor("down", coupling * (x[1:] * x[:-1]).sum())

    return model


@pytest.mark.parametrize("seed", range(5))
def test_grids_have_their_best_states_and_local_moves_find_none_better(seed):
    field = torch.randn(64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    model = grid(8, 0.7, field)
    exact = pg.DPVI(model, num_particles=10, progress=False).run()
    local = pg.DPVI(model, num_particles=10, moves=("block", "region", "flip"), progress=False)
    assert float(local.run().log_evidence) <= float(exact.log_evidence) + 1e-10
    assert len(exact.history["objective"]) == 1


def test_what_is_summed_out_leaves_the_best_of_the_rest():
    rng = np.random.default_rng(0)
    model, *_ = chain(rng.integers(0, 5, 6).tolist(), rng)
    q = pg.DPVI(model, num_particles=3, sum_out=["z1", "z3"], progress=False).run()
    graph = pg.trace_graph(model)
    states = torch.tensor(list(itertools.product(range(4), repeat=6)))
    scores = graph.log_prob({f"z{t}": states[:, t] for t in range(6)}).reshape([4] * 6)
    kept = scores.logsumexp((1, 3)).flatten().sort(descending=True).values[:3]
    assert_close(q.log_evidence, kept.logsumexp(0), rtol=1e-10, atol=1e-10)


def test_particles_are_told_to_be_the_best_where_they_miss_much():
    model = grid(4, 0.05, torch.zeros(16, dtype=torch.float64))
    q = pg.DPVI(model, num_particles=5, progress=False).run()
    assert "too diffuse for so few, the best there are. Take pg.circuits" in q.status
    q = pg.DPVI(model, num_particles=5, moves="flip", progress=False).run()
    assert "too diffuse for so few, or they are elsewhere" in q.status


def test_large_graphs_are_left_to_moves(monkeypatch):
    field = torch.zeros(36, dtype=torch.float64)
    network = Network.of_graph(pg.trace_graph(grid(6, 0.3, field)))
    assert best_states(network, 4) is not None
    monkeypatch.setattr(module, "MOST_ENTRIES", 2**10)
    assert best_states(network, 4) is None
    monkeypatch.setattr(module, "MOST_NODES", 35)
    assert best_states(network, 1) is None
    wide = pg.trace_graph(grid(40, 0.3, torch.zeros(1600, dtype=torch.float64)))
    monkeypatch.undo()
    assert best_states(Network.of_graph(wide), 4) is None


def test_a_run_of_the_best_is_resumed_to_the_same_bits():
    rng = np.random.default_rng(3)
    model, *_ = chain(rng.integers(0, 5, 20).tolist(), rng)
    one = pg.DPVI(model, num_particles=6, progress=False)
    q = one.run()
    other = pg.DPVI(model, num_particles=6, progress=False)
    other.load_state_dict(one.state_dict())
    again = other.run()
    assert torch.equal(again.log_evidence, q.log_evidence)
    assert all(torch.equal(again.particles[n], v) for n, v in q.particles.items())
