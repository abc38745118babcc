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
from pyrograph.errors import ZeroMass
from pyrograph.infer.dpvi import best_states as module
from pyrograph.infer.dpvi.best_states import best_states
from pyrograph.infer.dpvi.network import Network, Tables
from tests.infer.dpvi.viterbi import best_paths


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
    best = best_paths(observed, count, *numbers)
    assert q.converged
    assert float(q.log_evidence) == pytest.approx(logsumexp(best), abs=1e-10)
    np.testing.assert_allclose(q.log_weights.exp(), np.exp(best - logsumexp(best)), atol=1e-10)


def test_a_long_chain_has_list_viterbis_paths():
    rng = np.random.default_rng(0)
    start, move = rng.dirichlet(np.ones(2)), rng.dirichlet(np.ones(2), 2)
    emit = np.eye(2) / 2 + 0.25
    observed = rng.integers(0, 2, 6000)
    step = np.arange(len(observed))
    own = np.log(emit[:, observed].T)
    own[0] += np.log(start)
    pairs = np.broadcast_to(np.log(move), (len(step) - 1, 2, 2)).copy()
    tables = [
        Tables(torch.tensor(step)[:, None], torch.tensor(own)),
        Tables(torch.tensor(np.stack([step[:-1], step[1:]], 1)), torch.tensor(pairs)),
    ]
    network = Network(torch.full((len(step),), 2), tables, torch.tensor(0.0, dtype=torch.float64))
    best = best_paths(observed, 3, start, move, emit)
    np.testing.assert_allclose(network.score(best_states(network, 3)), best, rtol=1e-12)


@pytest.mark.parametrize("count", [127, 128, 255, 256, 257])
def test_lists_whose_places_just_fit_a_byte(count):
    """Also those of nodes of one state."""
    rng = np.random.default_rng(count)
    cards = torch.tensor([2, 2, 2, 2, 1, 2, 2, 2, 2])
    pairs = [
        Tables(torch.tensor([[k, k + 1]]), torch.tensor(rng.normal(size=(1, *cards[k : k + 2]))))
        for k in range(8)
    ]
    network = Network(cards, pairs[:-1], torch.tensor(0.0, dtype=torch.float64))
    scores = network.score(every_state(cards)).sort(descending=True).values
    x = best_states(network, min(count, network.num_states))
    assert_close(network.score(x), scores[:count], rtol=1e-12, atol=1e-12)
    assert x.unique(dim=1).shape == x.shape


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
    monkeypatch.setattr(module, "PRICE", 2**10)
    assert best_states(network, 4) is not None
    monkeypatch.setattr(module, "PRICE_OF_NODE", 2**10 / 36)
    assert best_states(network, 4) is None
    monkeypatch.setattr(module, "MOST_NODES", 35)
    assert best_states(network, 1) is None
    wide = pg.trace_graph(grid(40, 0.3, torch.zeros(1600, dtype=torch.float64)))
    monkeypatch.undo()
    assert best_states(Network.of_graph(wide), 4) is None


def test_dense_graphs_are_given_up_before_anything_is_done(monkeypatch):
    monkeypatch.setattr(module, "contexts_of", None)
    edges = torch.combinations(torch.arange(200))
    table = Tables(edges, torch.zeros(len(edges), 2, 2, dtype=torch.float64))
    zero = torch.tensor(0.0, dtype=torch.float64)
    assert best_states(Network(torch.full((200,), 2), [table], zero), 3) is None


def test_factors_on_the_same_nodes_are_added_up():
    rng = np.random.default_rng(0)
    scope = torch.tensor([[0, 1], [1, 2], [0, 1], [0, 1], [1, 2]])
    tables = [
        Tables(scope, torch.tensor(rng.normal(size=(5, 2, 2)))),
        Tables(torch.tensor([[2], [2], [0]]), torch.tensor(rng.normal(size=(3, 2)))),
    ]
    network = Network(torch.tensor([2, 2, 2]), tables, torch.tensor(0.0, dtype=torch.float64))
    assert [len(group.scope) for group in network.summed()] == [2, 2]
    x = every_state(network.cards)
    scores = network.score(x)
    summed = Network(network.cards, network.summed(), network.constant)
    assert_close(summed.score(x), scores, rtol=1e-13, atol=1e-13)
    best = network.score(best_states(network, 5))
    assert_close(best, scores.sort(descending=True).values[:5], rtol=1e-13, atol=1e-13)


def test_long_lists_of_two_chains_are_joined_by_few_pairs():
    def model():
        table = torch.tensor([[0.6, 0.4], [0.3, 0.7]], dtype=torch.float64)
        with pyro.plate("chains", 2):
            z = None
            for t in pyro.markov(range(16)):
                z = pyro.sample(f"z{t}", dist.Categorical(table[0] if z is None else table[z]))

    count = 20_000
    q = pg.DPVI(model, num_particles=count, progress=False).run()
    states = torch.tensor(list(itertools.product(range(2), repeat=16)))
    table = np.array([[0.6, 0.4], [0.3, 0.7]])
    one = np.log(table[0][states[:, 0]]) + np.log(table[states[:, :-1], states[:, 1:]]).sum(1)
    one = np.sort(one)[::-1][:count]
    both = np.sort((one[:2000, None] + one[None, :2000]).ravel())[::-1][:count]
    assert one[0] + one[2000] < both[-1]  # so that nothing better was left out
    assert float(q.log_evidence) == pytest.approx(logsumexp(both), abs=1e-9)
    i, j = module._worth_a_look(count, count, count)
    assert len(i) < count * (2 + np.log(count)) and ((i + 1) * (j.astype(int) + 1) <= count).all()


def unequal_ring(num_nodes):
    """Neighbours differ, all around."""

    def model():
        z = [pyro.sample(f"z{i}", dist.Bernoulli(0.5)) for i in range(num_nodes)]
        for i in range(num_nodes):
            same = z[i] == z[(i + 1) % num_nodes]
            pyro.factor(f"f{i}", torch.where(same, -torch.inf, 0.0))

    return model


@pytest.mark.parametrize("count", [1, 5, 64])
def test_what_cannot_be_is_told_for_any_number_of_particles(count):
    with pytest.raises(ZeroMass):
        pg.DPVI(unequal_ring(7), num_particles=count, progress=False).run()


def test_evidence_is_exact_where_all_states_with_mass_are_held():
    q = pg.DPVI(unequal_ring(8), num_particles=10, progress=False).run()
    assert q.evidence_kind == "exact" and len(q.weights) == 2
    assert float(q.log_evidence) == pytest.approx(-7 * np.log(2))


def smoothed(seed, **options):
    rng = np.random.default_rng(seed)
    model, *_ = chain(rng.integers(0, 5, 40).tolist(), rng)
    return pg.SequentialDPVI(model, num_particles=3, smoothing=True, progress=False, **options)


def test_smoothing_goes_to_the_best_in_one_step_and_tells_the_gain():
    gained = False
    for seed in range(5):
        engine = smoothed(seed)
        engine.run()
        bounds, gains = engine.history["objective"], engine.history["gain"]
        assert len(bounds) == 42  # of nodes, the step to the best and one sweep
        assert_close(gains[1:], bounds.diff(), rtol=0, atol=1e-9)
        gained |= float(gains[40]) > 0.01
    assert gained


def test_an_interrupt_on_the_way_to_the_best_leaves_it_to_be_done(monkeypatch):
    for seed in range(2):
        engine, whole = smoothed(seed), smoothed(seed).run()

        def interrupted(*arguments):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("pyrograph.infer.dpvi.state_search.best_states", interrupted)
            with pytest.raises(KeyboardInterrupt):
                engine.run()
        assert torch.equal(engine.run().log_evidence, whole.log_evidence)


@pytest.mark.parametrize("num_steps", [39, 40, 41, 42])
def test_smoothing_is_resumed_to_the_same_result_and_status(num_steps):
    engine = smoothed(1)
    whole = engine.run()
    first = smoothed(1, num_steps=num_steps)
    first.setup()
    for _ in range(num_steps):
        first.step()
    second = smoothed(1)
    second.load_state_dict(first.state_dict())
    q = second.run()
    assert torch.equal(q.log_evidence, whole.log_evidence) and q.status == whole.status
    assert "the best there are" in q.status
    assert torch.equal(second.history["objective"], engine.history["objective"])


def test_a_smoothed_run_goes_back_to_where_a_filter_of_fewer_particles_stopped():
    first = pg.SequentialDPVI(
        chain(list(range(5)) * 4, np.random.default_rng(2))[0], num_particles=2, progress=False
    )
    first.setup()
    for _ in range(10):
        first.step()
    engines = [
        pg.SequentialDPVI(first.model, num_particles=6, smoothing=True, progress=False)
        for _ in range(2)
    ]
    engines[0].run()  # it knows the best states of all nodes, of which none is needed yet
    engines[1].setup()
    for engine in engines:
        engine.load_state_dict(first.state_dict())
        engine.run()
    one, other = (engine.history["objective"] for engine in engines)
    assert torch.equal(one, other)


def test_the_best_of_another_program_are_not_this_ones():
    def model(first):
        x = pyro.sample("x", dist.Categorical(torch.ones(4, dtype=torch.float64)))
        y = pyro.sample("y", dist.Categorical(torch.ones(2, dtype=torch.float64)))
        pyro.factor("f", torch.tensor(first, dtype=torch.float64)[x.long()])
        pyro.factor("g", torch.tensor([0.0, -torch.inf], dtype=torch.float64)[y.long()])

    def engine():
        return pg.SequentialDPVI(model, num_particles=3, smoothing=True, progress=False)

    saved, other = engine(), engine()
    no = -torch.inf
    saved.run([0.0, no, no, no])
    other.setup([0.0, no, no, 5.0])
    other.load_state_dict(saved.state_dict())
    q = other.posterior()
    assert q.evidence_kind == "lower bound" and "the best there are" not in q.status


def test_tables_that_need_no_sums_are_not_copied():
    edges = torch.tensor([[0, 1], [1, 2]])
    table = Tables(edges, torch.zeros(2, 3, 3, dtype=torch.float64))
    zero = torch.tensor(0.0, dtype=torch.float64)
    assert Network(torch.full((3,), 3), [table], zero).summed()[0] is table


def test_more_particles_than_a_saved_run_had_start_at_the_best():
    rng = np.random.default_rng(3)
    model, *_ = chain(rng.integers(0, 5, 20).tolist(), rng)
    saved = pg.DPVI(model, num_particles=3, progress=False)
    saved.run()
    engine = pg.DPVI(model, num_particles=20, progress=False)
    engine.load_state_dict(saved.state_dict())
    fresh = pg.DPVI(model, num_particles=20, progress=False).run()
    assert torch.equal(engine.run().log_evidence, fresh.log_evidence)


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
