"""SequentialDPVI against the forward algorithm, forward-backward and list Viterbi."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import logsumexp

import pyrograph as pg
from pyrograph.errors import (
    ConvergenceWarning,
    InferenceError,
    OptionError,
    ShapeMismatch,
    ZeroMass,
)
from tests.infer.dpvi.viterbi import best_paths

RNG = np.random.default_rng(0)
START = np.array([0.5, 0.3, 0.2])
MOVE = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])
EMIT = np.array([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]])
LONG = RNG.integers(0, 3, 60)


def hmm(observed):
    """A loop in time."""
    move, emit = torch.tensor(MOVE), torch.tensor(EMIT)
    z = None
    for t in pyro.markov(range(len(observed))):
        z = pyro.sample(f"z_{t}", dist.Categorical(torch.tensor(START) if z is None else move[z]))
        pyro.sample(f"x_{t}", dist.Categorical(emit[z]), obs=observed[t])


def vectorised(observed):
    """The same in one site."""
    move, emit = torch.tensor(MOVE).log(), torch.tensor(EMIT)
    n = len(observed)
    with pyro.plate("times", n):
        z = pyro.sample("z", dist.Categorical(torch.ones(3) / 3).mask(False))
        pyro.sample("x", dist.Categorical(emit[z]), obs=observed)
    pyro.factor("start", torch.tensor(START).log()[z[0]])
    with pyro.plate("moves", n - 1):
        pyro.factor("move", move[z[:-1], z[1:]])


def forward(observed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log p(x_1..t) of every t, and the filtering marginals."""
    log_z, marginals, belief = 0.0, [], START
    totals = []
    for t, x in enumerate(observed):
        belief = belief if t == 0 else belief @ MOVE
        belief = belief * EMIT[:, x]
        log_z += math.log(belief.sum())
        belief = belief / belief.sum()
        marginals.append(belief)
        totals.append(log_z)
    return np.array(totals), np.array(marginals)


def run(model, observed, seed: int = 0, **options):
    pyro.set_rng_seed(seed)
    engine = pg.SequentialDPVI(model, progress=False, **options)
    return engine, engine.run(torch.as_tensor(observed))


@pytest.mark.parametrize("model", [hmm, vectorised])
def test_with_particles_for_all_paths_it_is_the_forward_algorithm(model):
    observed = LONG[:6]
    engine, q = run(model, observed, num_particles=3**6)
    totals, marginals = forward(observed)
    assert float(q.log_evidence) == pytest.approx(totals[-1], abs=1e-10)
    assert q.evidence_kind == "exact" and q.converged
    if model is vectorised:
        np.testing.assert_allclose(engine.filtered("z").numpy(), marginals, atol=1e-10)
    else:
        for t in range(6):
            found = engine.filtered(f"z_{t}").numpy()
            np.testing.assert_allclose(found, marginals[t], atol=1e-10)
    # one node a step: the evidence of every prefix
    if model is hmm:
        np.testing.assert_allclose(q.history["objective"].numpy(), totals, atol=1e-10)


@pytest.mark.parametrize("count", [1, 5, 30])
def test_its_bound_is_at_most_that_of_the_best_paths_and_smoothing_raises_it(count):
    best = logsumexp(best_paths(LONG, count, START, MOVE, EMIT))
    _, rough = run(hmm, LONG, num_particles=count)
    _, smooth = run(hmm, LONG, num_particles=count, smoothing=True)
    assert float(rough.log_evidence) <= best + 1e-9
    assert float(rough.log_evidence) - 1e-9 <= float(smooth.log_evidence) <= best + 1e-9
    assert float(smooth.log_evidence) <= forward(LONG)[0][-1]
    assert float(smooth.log_evidence) > best - 0.01  # measured: the best paths themselves
    assert smooth.converged


def test_particles_are_distinct_and_weighted_by_their_joint_density():
    _, q = run(vectorised, LONG, num_particles=20)
    z = q.particles["z"].numpy()
    assert len({tuple(row) for row in z.tolist()}) == 20
    score = np.log(START[z[:, 0]]) + np.log(EMIT[z, LONG]).sum(1)
    score = score + np.log(MOVE[z[:, :-1], z[:, 1:]]).sum(1)
    assert float(q.log_evidence) == pytest.approx(logsumexp(score), abs=1e-9)
    np.testing.assert_allclose(q.weights.numpy(), np.exp(score - logsumexp(score)), atol=1e-9)


@pytest.mark.parametrize("model", [hmm, vectorised])
@pytest.mark.parametrize("smoothing", [False, True])
def test_extending_is_a_run_over_everything(model, smoothing):
    pyro.set_rng_seed(0)
    engine = pg.SequentialDPVI(model, num_particles=8, progress=False)
    engine.run(torch.as_tensor(LONG[:20]))
    engine.smoothing = smoothing
    for stop in (35, 60):
        q = engine.extend(torch.as_tensor(LONG[:stop]))
    if smoothing:
        assert float(q.log_evidence) <= forward(LONG)[0][-1]
        return
    _, whole = run(model, LONG, num_particles=8)
    assert float(q.log_evidence) == pytest.approx(float(whole.log_evidence), abs=1e-9)
    for name, value in whole.particles.items():
        torch.testing.assert_close(q.particles[name], value)
    assert len(q.history["objective"]) == 60


@pytest.mark.parametrize("smoothing", [False, True])
def test_an_extension_may_bring_data_alone(smoothing):
    def revised(observed):
        move, emit, z = torch.tensor(MOVE), torch.tensor(EMIT), None
        for t in pyro.markov(range(6)):
            probs = torch.tensor(START) if z is None else move[z]
            z = pyro.sample(f"z_{t}", dist.Categorical(probs))
        with pyro.plate("readings", len(observed)):
            pyro.sample("x", dist.Categorical(emit[z]), obs=observed)

    engine, _ = run(revised, LONG[:1], num_particles=3**6, smoothing=smoothing)
    for stop in (1, 4, 4):
        q = engine.extend(torch.as_tensor(LONG[:stop]))
    last = START @ np.linalg.matrix_power(MOVE, 5) * EMIT[:, LONG[:4]].prod(1)
    assert float(q.log_evidence) == pytest.approx(math.log(last.sum()), abs=1e-10)
    assert q.converged and q.evidence_kind == "exact"
    np.testing.assert_allclose(q.marginal("z_5").probs.numpy(), last / last.sum(), atol=1e-10)


NEAR = np.array([[0.6, 0.4, 0.0], [0.2, 0.5, 0.3], [0.0, 0.5, 0.5]])


def walk(allowed):
    """No steps by two, and of every step the states that it may be in."""
    z = None
    for t in pyro.markov(range(len(allowed))):
        before, z = z, pyro.sample(f"z_{t}", dist.Categorical(torch.ones(3) / 3).mask(False))
        # a factor: Pyro takes a probability of 0 as a small one
        table = torch.tensor(START).log() if t == 0 else torch.tensor(NEAR).log()
        pyro.factor(f"step_{t}", table[z] if t == 0 else table[before, z])
        for k, states in enumerate(allowed[t]):
            is_in = torch.tensor([s in states for s in range(3)])
            pyro.factor(f"in_{t}_{k}", torch.where(is_in, 0.0, -math.inf)[z])


def log_evidence_of_walk(allowed) -> float:
    """Forwards in time."""
    belief = None
    for constraints in allowed:
        belief = START if belief is None else belief @ NEAR
        for states in constraints:
            belief = belief * np.isin(range(3), states)
    return math.log(belief.sum())


FREE, LOW, HIGH = [[0, 1, 2]], [[0]], [[2]]


@pytest.mark.parametrize(
    "smoothing, count, wrong, error",
    [
        (False, 50, [LOW + HIGH], ZeroMass),  # no state at all
        (True, 50, [LOW + HIGH], ZeroMass),
        (False, 1, [HIGH], InferenceError),  # one that the past that was kept does not lead to
        (True, 1, [HIGH], InferenceError),
        (False, 1, [FREE, FREE, LOW + HIGH], InferenceError),  # after some came in
    ],
)
def test_an_extension_whose_nodes_cannot_come_in_leaves_the_filter_as_it_was(
    smoothing, count, wrong, error
):
    past, after = [LOW, FREE], [LOW, FREE, FREE, FREE]
    options = {"num_particles": count, "smoothing": smoothing, "progress": False}
    engine, other = (pg.SequentialDPVI(walk, **options) for _ in "12")
    before, _ = engine.run(past), other.run(past)
    for _ in range(2):
        with pytest.raises(error):
            engine.extend(past + wrong)
        for q in (engine.posterior(), engine.run(past)):
            assert torch.equal(q.log_evidence, before.log_evidence)
            assert torch.equal(q.weights, before.weights)
            assert torch.equal(q.particles["z_1"], before.particles["z_1"])
            assert q.evidence_kind == before.evidence_kind
        assert torch.equal(engine.filtered("z_1"), other.filtered("z_1"))
        assert engine.num_done == other.num_done and engine.num_steps == other.num_steps
    q, expected = engine.extend(after), other.extend(after)
    if count == 50:
        assert float(q.log_evidence) == pytest.approx(log_evidence_of_walk(after), abs=1e-12)
    assert torch.equal(q.log_evidence, expected.log_evidence)
    assert torch.equal(q.weights, expected.weights)
    for name, value in expected.particles.items():
        assert torch.equal(q.particles[name], value)
        assert torch.equal(engine.filtered(name), other.filtered(name))
    assert torch.equal(q.history["objective"], expected.history["objective"])


def cluster(data):
    """Symbols in clusters."""
    z = pyro.sample("z", pg.distributions.ChineseRestaurant(1.0, len(data)))
    component = pg.distributions.DirichletCategorical(0.5, 3)
    pyro.sample("x", pg.distributions.CollapsedMixture(z, component), obs=data)


@pytest.mark.parametrize("model", [vectorised, cluster])
def test_an_extension_that_fails_in_smoothing_leaves_the_filter_as_it_was(model):
    data, is_broken = torch.as_tensor(LONG[:12]), False

    def proposals(values):
        return None if is_broken else {name: v[:0] for name, v in values.items()}

    options = {"num_particles": 4, "smoothing": True, "proposals": proposals, "progress": False}
    engine, other = (pg.SequentialDPVI(model, **options) for _ in "12")
    for one in (engine, other):
        pyro.set_rng_seed(0)
        before = one.run(data[:7])
    is_broken = True
    with pytest.raises(OptionError, match="proposals="):
        engine.extend(data)
    assert torch.equal(engine.posterior().weights, before.weights)
    is_broken, found = False, []
    for one in (engine, other):
        pyro.set_rng_seed(1)
        found.append(one.extend(data))
    q, expected = found
    assert torch.equal(q.log_evidence, expected.log_evidence)
    assert torch.equal(q.particles["z"], expected.particles["z"])
    assert torch.equal(q.history["objective"], expected.history["objective"])


def test_another_order_is_the_users():
    def pair(observed):
        with pyro.plate("times", 4):
            a = pyro.sample("a", dist.Bernoulli(0.4))
            b = pyro.sample("b", dist.Bernoulli(0.6))
        pyro.factor("f", -(a - b).abs().sum() + (a[1:] * a[:-1]).sum())

    labels = [(site, (t,)) for t in range(4) for site in ("a", "b")]
    _, q = run(pair, LONG, num_particles=256, order=labels)
    _, other = run(pair, LONG, num_particles=256)
    assert float(q.log_evidence) == pytest.approx(float(other.log_evidence), abs=1e-10)
    with pytest.raises(OptionError, match="order"):
        run(pair, LONG, order=labels[:-1])


def test_hard_constraints_that_no_kept_past_meets_are_told():
    def trap(observed):
        a = pyro.sample("a", dist.Categorical(torch.tensor([0.6, 0.3, 0.1])))
        b = pyro.sample("b", dist.Bernoulli(0.5))
        pyro.factor("only", torch.where((a == 2) & (b == 1), 0.0, -math.inf))

    with pytest.raises(InferenceError, match="num_particles"):
        run(trap, LONG, num_particles=2)
    _, q = run(trap, LONG, num_particles=3)
    assert float(q.log_evidence) == pytest.approx(math.log(0.1 * 0.5))


def test_runs_stop_and_go_on_where_they_stopped():
    observed = torch.as_tensor(LONG)
    _, whole = run(hmm, LONG, num_particles=5, smoothing=True)
    pyro.set_rng_seed(0)
    first = pg.SequentialDPVI(hmm, num_particles=5, smoothing=True, progress=False)
    first.setup(observed)
    for _ in range(25):
        first.step()
    with pytest.raises(InferenceError, match="25 of 60"):
        first.posterior()
    with pytest.raises(InferenceError, match="z_59"):
        first.filtered("z_59")
    second = pg.SequentialDPVI(hmm, num_particles=5, smoothing=True, progress=False)
    second.load_state_dict(first.state_dict())
    q = second.run(observed)
    assert float(q.log_evidence) == float(whole.log_evidence)
    torch.testing.assert_close(q.history["objective"], whole.history["objective"])


@pytest.mark.parametrize("moves", [None, ("block", "region", "flip")])
def test_runs_that_go_on_while_they_are_smoothed_have_the_same_bits(moves):
    observed = torch.as_tensor(LONG)

    def engine():
        options = {"num_particles": 5, "smoothing": True, "moves": moves, "progress": False}
        return pg.SequentialDPVI(hmm, **options)

    whole, first = engine(), engine()
    expected = whole.run(observed)
    first.setup(observed)
    for done in range(1, 63):
        first.step()
        if done < 59:
            continue
        second = engine()
        second.load_state_dict(first.state_dict())
        q = second.run(observed)
        assert torch.equal(q.log_evidence, expected.log_evidence)
        assert torch.equal(second.state_dict()["score"], whole.state_dict()["score"])
        assert torch.equal(second.history["objective"], whole.history["objective"])


@pytest.mark.parametrize(
    "options, words",
    [
        ({"init": "random"}, "init=.*pg.DPVI"),
        ({"init": {"z_0": torch.zeros(1)}}, "init=.*pg.DPVI"),
        ({"sum_out": "auto"}, "sum_out=.*pg.DPVI"),
        ({"sum_out": None}, "sum_out=.*pg.DPVI"),
        ({"smoothing": "no"}, "smoothing='no'"),
        ({"smoothing": None}, "smoothing=None"),
        ({"smoothing": 2.5}, "smoothing=2.5"),
    ],
    ids=str,
)
def test_options_that_a_filter_has_no_use_for_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        pg.SequentialDPVI(hmm, **options)


def test_a_warning_about_an_extension_that_is_in_takes_nothing_back():
    data = torch.as_tensor(LONG[:12])
    options = {"num_particles": 4, "smoothing": True, "num_steps": 14, "progress": False}
    engine = pg.SequentialDPVI(vectorised, **options)
    engine.run(data[:7])
    with pytest.raises(ConvergenceWarning):  # an error in these tests
        engine.extend(data)
    assert engine.posterior().particles["z"].shape == (4, 12)


@pytest.mark.parametrize("model", [hmm, vectorised, cluster])
def test_arguments_packed_into_a_tuple_are_told_apart_from_arguments(model):
    data = torch.as_tensor(LONG[:9]).double() if model is cluster else torch.as_tensor(LONG[:9])
    engine = pg.SequentialDPVI(model, num_particles=4, progress=False)
    engine.run(data[:5])
    before = engine.posterior().log_evidence
    with pytest.raises(OptionError, match="one by one"):
        engine.extend((data,))
    assert torch.equal(engine.posterior().log_evidence, before)
    engine.extend(data)  # goes on as if nothing had been


def labelled(x):
    z = pyro.sample("z", pg.distributions.ChineseRestaurant(1.5, len(x)))
    component = pg.distributions.DirichletCategorical(1.0, 3)
    pyro.sample("x", pg.distributions.CollapsedMixture(z, component), obs=x)


@pytest.mark.parametrize("model", [hmm, labelled])
def test_a_filter_that_is_done_does_not_grow(model):
    def engine(count, **options):
        return pg.SequentialDPVI(model, num_particles=count, progress=False, **options)

    observed = torch.as_tensor(LONG)
    first = engine(4)
    first.run(observed)
    second = engine(12).setup(observed)
    with pytest.raises(ShapeMismatch, match="done and kept 4 particles, where num_particles=12"):
        second.load_state_dict(first.state_dict())
    assert len(second.run(observed).weights) == 12
    smoothed = engine(12, smoothing=True).setup(observed)
    smoothed.load_state_dict(first.state_dict())
    assert len(smoothed.run(observed).weights) == 12


@pytest.mark.parametrize("model", [hmm, labelled])
def test_a_filter_that_kept_every_state_is_as_good_for_more_particles(model):
    few = torch.as_tensor(LONG[:3])
    first = pg.SequentialDPVI(model, num_particles=27, progress=False)
    q = first.run(few)
    second = pg.SequentialDPVI(model, num_particles=100, progress=False).setup(few)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.run(few).weights, q.weights)
    assert second.converged


def test_a_filter_on_its_way_says_how_far_it_is():
    engine = pg.SequentialDPVI(hmm, num_particles=3, num_steps=2, progress=False)
    engine.step(torch.tensor([0, 2, 1, 1, 0, 2, 2, 0]))
    assert engine.status == "not converged: 1 of 8 nodes are in. Go on with run()."
    engine.step()
    assert engine.status == "not converged: 2 of 8 nodes are in. Raise num_steps."
    engine.num_steps = 8
    assert engine.run().converged and engine.status == "converged"
