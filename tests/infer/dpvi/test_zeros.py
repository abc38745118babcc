"""Filters whose pasts lose a constraint, or keep it, against enumeration."""

from __future__ import annotations

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import InferenceError, ShapeMismatch

START = [0.2, 0.3, 0.5]
MOVE = [[0.6, 0.4, 0.0], [0.2, 0.5, 0.3], [0.0, 0.5, 0.5]]  # no steps by two


def log_sum(weights) -> float:
    return math.log(math.fsum(weights))


def bridge(steps: int, end: int):
    """A walk whose step ``end`` is in state 0."""
    z = None
    for t in pyro.markov(range(steps)):
        p = torch.tensor(START if z is None else MOVE)
        z = pyro.sample(f"z{t}", dist.Categorical(p if z is None else p[z]))
        if t == end:
            pyro.factor("end", torch.where(z == 0, 0.0, -math.inf))


def log_evidence_of_bridge(steps: int, end: int) -> float:
    return log_sum(
        START[z[0]] * math.prod(MOVE[a][b] for a, b in itertools.pairwise(z))
        for z in itertools.product(range(3), repeat=steps)
        if z[end] == 0
    )


@pytest.mark.parametrize("smoothing", [False, True])
@pytest.mark.parametrize("end, kind", [(3, "lower bound"), (1, "exact")], ids=["moves", "stays"])
def test_pasts_that_a_constraint_ruled_out_are_missing_when_it_has_gone(end, kind, smoothing):
    engine = pg.SequentialDPVI(bridge, num_particles=100, smoothing=smoothing, progress=False)
    before = engine.run(2, 1)
    assert before.evidence_kind == "exact"
    assert float(before.log_evidence) == pytest.approx(log_evidence_of_bridge(2, 1), abs=1e-6)
    q, truth = engine.extend(4, end), log_evidence_of_bridge(4, end)
    kind = "exact" if smoothing else kind  # which goes to the best states, here all with mass
    assert q.evidence_kind == kind
    if kind == "exact":
        assert float(q.log_evidence) == pytest.approx(truth, abs=1e-6)
    else:
        assert float(q.log_evidence) < truth + 1e-6


def known_not_to_be(n: int, ruled_out: tuple[tuple[int, int], ...], tilt: float = 0.0):
    """Independent components, some of which are known not to be in some state."""
    with pyro.plate("p", n):
        z = pyro.sample("z", dist.Categorical(torch.tensor(START)))
        pyro.factor("tilt", tilt * z)
    for i, state in ruled_out:
        pyro.factor(f"not_{i}_{state}", torch.where(z[i] == state, -math.inf, 0.0))


def log_evidence(n: int, ruled_out: tuple[tuple[int, int], ...], tilt: float = 0.0) -> float:
    return log_sum(
        math.prod(START[s] * math.exp(tilt * s) for s in z)
        for z in itertools.product(range(3), repeat=n)
        if all(z[i] != state for i, state in ruled_out)
    )


@pytest.mark.parametrize(
    "after, kind",
    [
        (((0, 2),), "exact"),
        (((0, 2), (0, 1), (1, 1)), "exact"),
        (((0, 1),), "lower bound"),
        ((), "lower bound"),
    ],
    ids=["the same", "more", "another", "none"],
)
def test_an_extension_is_exact_where_all_zeros_of_the_past_stay(after, kind):
    engine = pg.SequentialDPVI(known_not_to_be, num_particles=100, progress=False)
    engine.run(2, ((0, 2),))
    q = engine.extend(3, after, 0.7)  # other data, too
    assert q.evidence_kind == kind
    if kind == "exact":
        truth = log_evidence(3, after, 0.7)
        assert float(q.log_evidence) == pytest.approx(truth, abs=1e-6)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("after", [((0, 2),), ()], ids=["the same", "none"])
def test_a_saved_state_is_exact_where_its_zeros_are(after, steps):
    engine = pg.SequentialDPVI(known_not_to_be, num_particles=100, progress=False)
    engine.setup(2, ((0, 2),))
    for _ in range(steps):
        engine.step()
    state = engine.state_dict()
    other = pg.SequentialDPVI(known_not_to_be, num_particles=100, progress=False).setup(2, after)
    other.load_state_dict(state)
    q = other.run()
    assert q.evidence_kind == ("exact" if after else "lower bound")
    assert float(q.log_evidence) == pytest.approx(log_evidence(2, ((0, 2),)), abs=1e-6)


def test_a_state_from_before_zeros_were_saved_is_exact_with_all_joint_states():
    for ruled_out, kind in [((), "exact"), (((0, 2),), "lower bound")]:
        engine = pg.SequentialDPVI(known_not_to_be, num_particles=100, progress=False)
        engine.run(2, ruled_out)
        state = {name: v for name, v in engine.state_dict().items() if name != "zeros"}
        other = pg.SequentialDPVI(known_not_to_be, num_particles=100, progress=False).setup(2, ())
        other.load_state_dict(state)
        q = other.run()
        assert q.evidence_kind == kind
        assert float(q.log_evidence) == pytest.approx(log_evidence(2, ruled_out), abs=1e-6)


def test_states_that_have_mass_in_another_program_alone_tell_that_it_is_another():
    """With room for all states those without mass are particles, too."""
    engine = pg.DPVI(known_not_to_be, num_particles=9, progress=False)
    engine.run(2, ((0, 2),))
    other = pg.DPVI(known_not_to_be, num_particles=9, progress=False).setup(2, ())
    with pytest.raises(ShapeMismatch, match="other data or parameters"):
        other.load_state_dict(engine.state_dict())


def one_of_many(n: int, c: int, before: int = 1, tilt: float = 0.0):
    """Of the first node ``before`` states are possible, and of a longer program the others."""
    states = torch.arange(c)
    x = [pyro.sample(f"x{i}", dist.Categorical(torch.ones(c) / c)) for i in range(n)]
    pyro.factor("tilt", tilt * x[0])
    if n == 1:
        pyro.factor("first", torch.where(states < before, 0.0, -math.inf)[x[0]])
    else:
        pyro.factor("others", torch.where(states < before, -math.inf, 0.0)[x[0]] + 0.0 * x[1])


@pytest.mark.parametrize(
    "count, before, words",
    [
        (10_000, 1, "earlier program .* new engine\\.$"),
        (2, 3, "earlier program .* new engine with more particles\\.$"),
    ],
    ids=["a zero has gone", "too few as well"],
)
def test_states_that_zeros_ruled_out_are_not_missed_for_want_of_particles(count, before, words):
    c = 5
    truth = math.log((c - before) / c)  # of the longer program
    engine = pg.SequentialDPVI(one_of_many, num_particles=count, progress=False)
    engine.run(1, c, before)
    with pytest.raises(InferenceError, match=words):
        engine.extend(2, c, before)
    more = pg.SequentialDPVI(one_of_many, num_particles=100 * count, progress=False)
    more.run(1, c, before)
    with pytest.raises(InferenceError, match="new engine"):  # more are of no use, as it says
        more.extend(2, c, before)
    q = pg.SequentialDPVI(one_of_many, num_particles=100, progress=False).run(2, c, before)
    assert float(q.log_evidence) == pytest.approx(truth, abs=1e-12)


def test_states_that_came_after_the_best_are_missed_for_want_of_particles():
    def trap(n):
        a = pyro.sample("a", dist.Categorical(torch.tensor([0.6, 0.3, 0.1])))
        b = pyro.sample("b", dist.Bernoulli(0.5))
        if n > 2:
            c = pyro.sample("c", dist.Bernoulli(0.5))
            pyro.factor("only", torch.where((a == 2) & (b == 1) & (c == 1), 0.0, -math.inf))

    few = pg.SequentialDPVI(trap, num_particles=2, progress=False)
    few.run(2)
    with pytest.raises(InferenceError, match=r"hard constraint\. Raise num_particles\.$"):
        few.extend(3)
    enough = pg.SequentialDPVI(trap, num_particles=6, progress=False)
    enough.run(2)
    assert float(enough.extend(3).log_evidence) == pytest.approx(math.log(0.1 * 0.5 * 0.5))


@pytest.mark.parametrize("told", [True, False], ids=["now", "from before causes were saved"])
@pytest.mark.parametrize(
    "before, words", [(3, "new engine with more particles"), (5, "Raise num_particles")]
)
def test_saved_states_tell_why_states_are_missing(before, words, told):
    """Of five states two are kept; a zero is lifted where there were some."""

    def engine():
        return pg.SequentialDPVI(opening, num_particles=2, progress=False)

    def opening(n, possible):
        x = pyro.sample("x", dist.Categorical(torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04])))
        if n == 1:
            pyro.factor("first", torch.where(torch.arange(5) < possible, 0.0, -math.inf)[x])
        if n > 1:
            y = pyro.sample("y", dist.Bernoulli(0.5))
            pyro.factor("less", -0.5 * y)
        if n > 2:
            z = pyro.sample("z", dist.Bernoulli(0.5))
            pyro.factor("last", torch.where(x == 4, 0.0, -math.inf) + 0.0 * z)

    first = engine()
    first.run(1, before)
    first.extend(2, before)
    state = first.state_dict()
    if not told:
        state = {name: v for name, v in state.items() if name not in ("is_cut", "is_opened")}
        words = "new engine with more particles"  # which helps in both cases
    second = engine().setup(2, before)
    second.load_state_dict(state)
    with pytest.raises(InferenceError, match=words):
        second.extend(3, before)


def durations(emission):
    """A chain of segments of 1 to 4 steps of two kinds, its states (kind, steps left), and the log
    mass by the forward recursion."""
    arrive = torch.tensor([0.1, 0.2, 0.3, 0.4])
    step = torch.zeros(8, 8)
    for kind in range(2):
        step[4 * kind, 4 * (1 - kind) : 4 * (2 - kind)] = arrive
        for left in range(1, 4):
            step[4 * kind + left, 4 * kind + left - 1] = 1.0
    first = torch.cat([arrive, arrive]) / 2

    def model():
        with pyro.plate("T", len(emission)):
            z = pyro.sample("z", dist.Categorical(torch.ones(8)).mask(False))
            pyro.factor("seen", emission[torch.arange(len(emission)), (z >= 4).long()])
        pyro.factor("first", first.log()[z[0]])
        with pyro.plate("steps", len(emission) - 1):
            pyro.factor("step", step.log()[z[:-1], z[1:]])

    weight = emission.repeat_interleave(4, 1)
    ahead = first.log() + weight[0]
    for row in weight[1:]:
        ahead = (ahead[:, None] + step.log()).logsumexp(0) + row
    return model, float(ahead.logsumexp(0))


def test_particles_that_crowd_one_of_many_places_are_not_said_to_have_converged_alone():
    rows = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    model, log_mass = durations(0.3 * rows)
    q = pg.fit(model, infer=pg.DPVI, num_particles=30, progress=False)
    assert float(q.log_evidence) < log_mass - 5
    share = math.exp(float(q.log_evidence) - log_mass)
    assert f"{share:.2g} of the mass of all states, whose log is {log_mass:.6g}" in q.status
    model, log_mass = durations(3 * rows[:12])
    q = pg.fit(model, infer=pg.DPVI, num_particles=200, progress=False)
    assert float(q.log_evidence) > log_mass - math.log(2)
    assert "of the mass" not in q.status
