"""Sweeps in plain numbers say what sweeps in the log domain say, wherever they are taken."""

from __future__ import annotations

import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.discrete.differences import DifferenceFactors
from pyrograph.infer.message_passing.network.evidence import log_evidence
from pyrograph.infer.message_passing.sweeps.plain import DEGREE, PlainSwept
from pyrograph.infer.message_passing.sweeps.plain_odds import PlainOdds
from pyrograph.infer.message_passing.sweeps.plain_states import PlainStates
from pyrograph.infer.message_passing.sweeps.sweep import Sweep, gap
from tests.infer.message_passing.builders import (
    INF,
    Tables,
    boltzmann,
    grid_edges,
    mixed_cycle,
    mixed_tree,
    potts,
    random_model,
    star,
    triples,
)

MODES = {"progress": False, "tol": None, "damping": 0.0}
KINDS = [torch.float64, torch.float32]


def field(pair, side=4, base=1.0, seed=0):
    """One table for all pairs of a grid."""
    torch.manual_seed(seed)
    unary = base * torch.randn(side * side, len(pair), dtype=pair.dtype)
    i, j = torch.tensor(grid_edges(side)).unbind(1)

    def model():
        with pyro.plate("nodes", side * side):
            x = pyro.sample("x", dist.Categorical(logits=unary))
        with pyro.plate("edges", len(i)):
            pyro.factor("pair", pair[x[i], x[j]])

    return model


def uneven(states):
    """A table that is no function of a difference, and not symmetric."""
    torch.manual_seed(1)
    return torch.randn(states, states, dtype=torch.float64)


def truncated_line(states):
    return -(torch.arange(states)[:, None] - torch.arange(states)).abs().clamp_max(3).double() / 2


def slopes(states, side=4):
    """Functions of a difference, another one of every pair."""
    torch.manual_seed(2)
    unary = torch.randn(side * side, states, dtype=torch.float64)
    i, j = torch.tensor(grid_edges(side)).unbind(1)
    rate = torch.rand(len(i), dtype=torch.float64) / 3

    def model():
        with pyro.plate("nodes", side * side):
            x = pyro.sample("x", dist.Categorical(logits=unary))
        with pyro.plate("edges", len(i)):
            pyro.factor("pair", -rate * (x[i] - x[j]).abs())

    return model


def rows_and_columns(side=4):
    """Binary nodes whose pairs along rows and along columns are statements of their own."""
    torch.manual_seed(3)
    at = torch.arange(side * side).view(side, side)
    across = at[:, :-1].flatten(), at[:, 1:].flatten()
    down = at[:-1].flatten(), at[1:].flatten()
    unary, tables = torch.randn(side * side, 2).double(), torch.randn(2, 12, 2, 2).double()

    def model():
        with pyro.plate("nodes", side * side):
            x = pyro.sample("x", dist.Categorical(logits=unary))
        for name, (i, j), table in zip(("across", "down"), (across, down), tables, strict=True):
            with pyro.plate(f"{name} pairs", len(i)):
                pyro.factor(name, table[torch.arange(len(i)), x[i], x[j]])

    return model


def ising(uneven: float = 0.0):
    """Pairs that tell only whether their nodes agree, but for one if ``uneven``."""
    torch.manual_seed(4)
    unary = torch.randn(16, 2).double()
    i, j = torch.tensor(grid_edges(4)).unbind(1)
    agree = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double()
    pair = torch.randn(len(i), 1, 1).double() * agree
    pair[3, 0, 1] += uneven

    def model():
        with pyro.plate("nodes", 16):
            x = pyro.sample("x", dist.Categorical(logits=unary))
        with pyro.plate("edges", len(i)):
            pyro.factor("pair", pair[torch.arange(len(i)), x[i], x[j]])

    return model


MODELS = {
    "Potts of 3": field(torch.eye(3).double()),
    "Potts of 8": field(2 * torch.eye(8).double()),
    "a table of all": field(uneven(5)),
    "a difference of all": field(truncated_line(20)),
    "differences": slopes(17),
    "differences by transform": slopes(30),
    "tables": random_model((4,) * 9, grid_edges(3), 0, plated=True),
    "three nodes": potts(0),
    "mixed sizes": mixed_cycle(0),
    "no cycle": mixed_tree(0),
    "four nodes": triples(0),
    "a hub": star(0),
    "an isolated node": random_model((3,) * 4, [(0, 1), (1, 2), (0, 2)], 0, plated=True),
}
ODDS = {
    "spins": boltzmann(0),
    "spins that agree or not": ising(),
    "spins, one pair uneven": ising(0.3),
    "spins of one table": field(uneven(2)),
    "spins of a table each": random_model((2,) * 9, grid_edges(3), 0, plated=True),
    "spins of two statements": rows_and_columns(),
    "spins, a hub": random_model(
        (2,) * 8, [(0, i) for i in range(1, 8)] + [(1, 2)], 0, plated=True
    ),
    "spins, an isolated one": random_model((2,) * 4, [(0, 1), (1, 2), (0, 2)], 0, plated=True),
}
MODELS |= ODDS


def started(model, kind=torch.float64, **options):
    return pg.BP(model, **{**MODES, **options}, dtype=kind).setup()


def plain_of(network):
    return PlainOdds.of(network) or PlainStates.of(network)


def log_sweep(engine):
    return Sweep(engine.graph, engine.network, 1.0, None, False)


def pairs(ours, theirs):
    return [both for a, b in zip(ours, theirs, strict=True) for both in zip(a, b, strict=True)]


@pytest.mark.parametrize("name", MODELS)
def test_plain_sweeps_are_those_of_the_log_domain(name):
    engine = started(MODELS[name])
    plain = plain_of(engine.network)
    assert isinstance(plain, PlainOdds) == (name in ODDS)
    with torch.no_grad():
        messages, beliefs = engine.messages, engine.beliefs
        at = plain.start(messages)
        for _ in range(6):
            found = log_sweep(engine)(messages, beliefs)
            messages, beliefs = found.messages, found.beliefs
            at = plain(at)
            assert_close(at.residual, found.residual, rtol=1e-11, atol=1e-13)
            for ours, theirs in pairs(at.messages, messages):
                assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
            for ours, theirs in zip(at.beliefs, beliefs, strict=True):
                assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
            expected = log_evidence(engine.network, messages, beliefs)
            assert_close(plain.log_evidence(at), expected, rtol=1e-12, atol=1e-12)
    assert at.num_skipped == 0


def test_a_difference_that_all_pairs_share_is_one_matrix_here_too():
    (block,) = started(MODELS["a difference of all"]).network.blocks
    assert isinstance(block, DifferenceFactors) and block.shared.shape == (20, 20)


@pytest.mark.parametrize("name", ["Potts of 8", "tables", "mixed sizes", "differences", *ODDS])
def test_the_engine_takes_plain_sweeps_and_ends_at_the_same_fixed_point(name):
    engine = started(MODELS[name], tol=1e-11)
    engine.run()
    assert isinstance(engine.iteration.at, PlainSwept) and engine.converged
    assert float(gap(engine.network, engine.messages, engine.beliefs)) < 1e-10
    other = started(MODELS[name], tol=1e-11, schedule="sequential")
    other.run()
    assert not isinstance(other.iteration.at, PlainSwept)
    assert_close(engine.log_evidence, other.log_evidence, rtol=1e-11, atol=1e-10)
    for ours, theirs in pairs(engine.messages, other.messages):
        assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("make", [mixed_tree, star, triples], ids=lambda f: f.__name__)
def test_sweeps_over_a_tree_find_the_enumerated_truth(make):
    model = make(3)
    # messages to start from: with none trees of pairs are summed out without a sweep
    engine = pg.BP(model, progress=False, init=started(model).state_dict()["messages"])
    posterior = engine.run()
    assert isinstance(engine.iteration.at, PlainSwept)
    assert_close(posterior.log_evidence, model.log_z, rtol=0, atol=1e-10)
    for i, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief, model.marginal(i), rtol=0, atol=1e-10)


def contested(strength, kind):
    """A chain whose ends pull their way, and pairs that pull together, by ``strength``."""
    pull = torch.zeros(3, dtype=kind)
    pull[0] = strength
    push = pull.flip(0)
    along = strength * torch.eye(3, dtype=kind)
    along[0, 1] = along[2, 1] = strength / 3
    scopes = ((0,), (4,), (0, 1), (1, 2), (2, 3), (3, 4))
    return Tables((3,) * 5, scopes, (pull, push, along, along, along, along))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.49, 0.51, 1.0, 8.0])
def test_strong_couplings_are_plain_as_far_as_they_fit_and_right_beyond(kind, share):
    """Two strengths come together at a node."""
    limit = math.log(torch.finfo(kind).max) * 0.75
    model = contested(share * limit, kind)
    truth = contested(float(torch.tensor(share * limit, dtype=kind)), torch.float64)
    engine = started(model, kind)
    for _ in range(8):
        engine.step()
    assert isinstance(engine.iteration.at, PlainSwept) == (share < 0.5)
    posterior, close = engine.posterior(), 1e-12 if kind == torch.float64 else 2e-5
    scale = max(1.0, share * limit)
    assert abs(float(posterior.log_evidence) - float(truth.log_z)) < close * 10 * scale
    for i, belief in enumerate(model.beliefs(posterior)):
        expected = truth.marginal(i)
        assert_close(belief.double(), expected, rtol=0, atol=close * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_at_the_limit_no_belief_loses_its_digits(kind):
    """Near-ties of numbers as small as they may be: two nodes that contradict each other."""
    limit = math.log(torch.finfo(kind).max) * 0.75
    pair = torch.tensor([[0.0, -0.32], [-0.31, 0.0]], dtype=torch.float64) * limit
    unary = torch.tensor([[0.0, -0.65], [-0.65, 0.0]], dtype=torch.float64) * limit
    unary, pair = unary.to(kind), pair.to(kind)
    wide = torch.zeros(2, 3, dtype=kind) - limit / 2
    unary = torch.cat([unary, wide[:, :1]], 1)
    pair = torch.nn.functional.pad(pair, (0, 1, 0, 1), value=-0.3 * limit)
    scopes = ((0,), (1,), (0, 1))
    model = Tables((3, 3), scopes, (unary[0], unary[1], pair))
    engine = started(model, kind)
    for _ in range(3):
        engine.step()
    assert isinstance(engine.iteration.at, PlainSwept)
    truth = Tables((3, 3), scopes, (unary[0].double(), unary[1].double(), pair.double()))
    assert_close(engine.log_evidence.double(), truth.log_z, rtol=4 * torch.finfo(kind).eps, atol=0)
    posterior = engine.posterior()
    for i, belief in enumerate(model.beliefs(posterior)):
        slack = 8 * limit * torch.finfo(kind).eps
        assert_close(belief.double(), truth.marginal(i), rtol=slack, atol=0)


def test_networks_whose_numbers_may_not_fit_stay_in_logs():
    zeros = torch.eye(3).double()
    zeros[0, 2] = -INF
    hub = random_model((3,) * (DEGREE + 2), [(0, i) for i in range(1, DEGREE + 2)], 0, plated=True)
    for model in [
        field(zeros),
        field(700 * torch.eye(3).double()),
        field(torch.eye(3).double(), base=200.0),
        field(uneven(2), base=400.0),
        hub,
    ]:
        assert plain_of(started(model).network) is None
    fitting = field(torch.eye(3).double())
    for other in [
        pg.FractionalBP(fitting, **MODES, alpha=0.5),
        pg.TRW(fitting, **MODES),
        pg.VMP(fitting, **MODES),
    ]:
        assert plain_of(other.setup().network) is None


@pytest.mark.parametrize("options", [{"damping": 0.3}, {"schedule": "residual"}])
def test_damped_and_partial_sweeps_stay_in_logs(options):
    engine = started(MODELS["Potts of 3"], **options)
    engine.step()
    assert not isinstance(engine.iteration.at, PlainSwept)


def test_messages_that_no_factor_sends_are_left_to_logs_for_a_sweep():
    engine = started(MODELS["Potts of 3"])
    plain = PlainStates.of(engine.network)
    for value in (-800.0, -INF, torch.nan):
        messages = [[m.clone() for m in sent] for sent in engine.messages]
        messages[0][1][3, 2] = value
        assert plain.start(messages) is None
    messages[0][1][3, 2] = -800.0
    engine.messages = messages
    engine.step()
    assert not isinstance(engine.iteration.at, PlainSwept)
    engine.step()
    assert isinstance(engine.iteration.at, PlainSwept)


@pytest.mark.parametrize("name", ["tables", "spins of a table each"])
@pytest.mark.parametrize("where", ["log_evidence", "__call__"])
def test_a_step_that_fails_leaves_the_messages_as_they_were(where, name, monkeypatch):
    engine, other = (started(MODELS[name]) for _ in range(2))
    for _ in range(10):  # the next step looks at the evidence
        engine.step(), other.step()
    with monkeypatch.context() as patch:
        kind = type(plain_of(engine.network))
        done = getattr(kind, where)

        def failing(*args):
            done(*args)
            raise RuntimeError("stopped")

        patch.setattr(kind, where, failing)
        with pytest.raises(RuntimeError, match="stopped"):
            engine.step()
    for ours, theirs in pairs(engine.messages, other.messages):
        assert torch.equal(ours, theirs)
    for _ in range(3):
        engine.step(), other.step()
    for ours, theirs in pairs(engine.messages, other.messages):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["Potts of 8", *ODDS])
def test_messages_that_were_handed_out_do_not_change_with_the_next_sweeps(name):
    engine = started(MODELS[name])
    engine.step()
    messages, beliefs = engine.messages, engine.beliefs
    kept = [m.clone() for sent in messages for m in sent] + [beliefs[0].clone()]
    for _ in range(4):
        engine.step()
    for ours, theirs in zip([m for s in messages for m in s] + beliefs, kept, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_run_goes_on_from_the_same_bits(name):
    whole, resumed = (started(MODELS[name]) for _ in range(2))
    for k in range(9):
        whole.step()
        if k == 3:
            state = whole.state_dict()
    resumed.load_state_dict(state)
    for _ in range(5):
        resumed.step()
    for ours, theirs in pairs(resumed.messages, whole.messages):
        assert torch.equal(ours, theirs)
    for name, values in whole.history.items():
        assert torch.equal(resumed.history[name], values)


@pytest.mark.parametrize("name", ["Potts of 8", "spins"])
def test_saved_messages_that_were_changed_are_taken_as_they_are(name):
    engine = started(MODELS[name])
    for _ in range(3):
        engine.step()
    state = engine.state_dict()
    state["messages"]["0.0"] = state["messages"]["0.0"].flip(-1)
    other = started(MODELS[name])
    other.load_state_dict(state)
    assert torch.equal(other.messages[0][0], state["messages"]["0.0"])


def test_plain_numbers_that_do_not_fit_other_data_are_not_taken_over():
    """A hub of five states, four leaves of three, one of four: messages of the first data lie far
    below the range of the second, whose sums would overflow."""
    scopes = [(k,) for k in range(6)] + [(0, k) for k in range(1, 6)]

    def model(is_first):
        hub, leaf, last = torch.zeros(5), torch.zeros(3), torch.zeros(4)
        pairs, wide = [torch.zeros(5, 3) for _ in range(4)], torch.zeros(5, 4)
        for k, pair in enumerate(pairs):
            if is_first:
                pair[:, 0] = -125.0
            pair[k + 1, 0] = 0.0 if is_first else 1.0
        if is_first:
            leaf[0], wide[0, 0] = 400.0, 1.0
        else:
            hub[1:], wide[:, 1], wide[1, 1], last[1] = -120.0, -400.0, -399.0, 100.0
        tables = [hub, *[leaf] * 4, last, *pairs, wide]
        return Tables((5, 3, 3, 3, 3, 4), tuple(scopes), tuple(t.double() for t in tables))

    start = pg.BP(model(True), progress=False).setup().state_dict()["messages"]
    first = pg.BP(model(True), progress=False, damping=0.0, init=start)
    first.run()
    assert isinstance(first.iteration.at, PlainSwept)
    engine = pg.BP(model(False), progress=False).setup()
    engine.load_state_dict(first.state_dict())
    posterior, fresh = engine.run(), pg.fit(model(False), infer=pg.BP, progress=False)
    assert posterior.converged
    assert_close(posterior.log_evidence, fresh.log_evidence, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_nodes_without_pairs_keep_states_of_any_improbability(kind):
    least = -800.0 if kind == torch.float64 else -110.0
    cycle = [(0, 1), (1, 2), (2, 3), (0, 3)]
    alone = torch.tensor([0.0, least, 0.5, 1.0]).double()
    pair = 0.3 * torch.eye(3).double()
    model = Tables((3,) * 4 + (4,), ((4,), *cycle), (alone, *[pair] * 4))
    engine = started(model, kind)
    posterior = engine.run()
    assert isinstance(engine.iteration.at, PlainSwept)
    assert_close(posterior.marginal("x4").logits, alone.log_softmax(0).to(kind))


def test_automatic_damping_takes_over_from_plain_sweeps():
    """An antiferromagnet of three states on triangles, too strong for undamped sweeps."""
    pair = -9.0 * torch.eye(3).double()
    scopes = [(i, j) for i in range(5) for j in range(i)]
    base = random_model((3,) * 5, [], 0, 0.1)
    model = Tables(base.cards, base.scopes + tuple(scopes), base.tables + (pair,) * 10)
    engine = pg.BP(model, progress=False, num_steps=400)
    engine.setup()
    engine.step()
    assert isinstance(engine.iteration.at, PlainSwept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine.run()
    assert engine.converged and not isinstance(engine.iteration.at, PlainSwept)
    assert float(gap(engine.network, engine.messages, engine.beliefs)) < 1e-7


@pytest.mark.parametrize("states", [2, 3])
def test_derivatives_at_the_fixed_point_of_plain_sweeps_are_the_enumerated_ones(states):
    seeded = torch.Generator().manual_seed(0)
    unary = torch.randn(4, states, generator=seeded, dtype=torch.float64)
    weight = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    scopes = ((0,), (1,), (2,), (3,), (0, 1), (1, 2), (1, 3))

    def model(weight):
        x = [pyro.sample(f"x{i}", dist.Categorical(logits=unary[i])) for i in range(4)]
        for i, j in scopes[4:]:
            pyro.factor(f"f{i}{j}", (weight * torch.eye(states).double())[x[i], x[j]])

    first = pg.BP(model, progress=False).setup(weight)
    engine = pg.BP(model, progress=False, tol=1e-12, init=first.state_dict()["messages"])
    posterior = engine.run(weight)
    assert isinstance(engine.iteration.at, PlainSwept)
    tables = [row.log_softmax(0) for row in unary] + [weight * torch.eye(states).double()] * 3
    truth = Tables((states,) * 4, scopes, tuple(tables))
    for found, expected in [
        (posterior.log_evidence, truth.log_z),
        (posterior.marginal("x1").probs[0], truth.marginal(1)[0]),
    ]:
        (ours,) = torch.autograd.grad(found, weight, retain_graph=True)
        (theirs,) = torch.autograd.grad(expected, weight, retain_graph=True)
        assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_logs_that_inference_mode_asks_for_are_ordinary_tensors():
    weight = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def model(weight):
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Categorical(logits=torch.tensor([0.0, 0.3, 1.0]).double()))
        pyro.factor("f", (weight * torch.eye(3).double())[x[[0, 1, 2]], x[[1, 2, 0]]].sum(-1))

    engine = pg.BP(model, progress=False).setup(weight)
    engine.step()
    with torch.inference_mode():
        assert not engine.messages[0][0].is_inference() and not engine.beliefs[0].is_inference()


def test_the_engine_looks_for_plain_numbers_once(monkeypatch):
    calls = []
    engine = started(MODELS["tables"])
    find = PlainStates.of
    monkeypatch.setattr(PlainStates, "of", lambda n: (calls.append(n), find(n))[1])
    for _ in range(3):
        engine.step()
    assert len(calls) == 1
