"""Filters whose pasts lose a constraint, or keep it, against enumeration."""

from __future__ import annotations

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import ShapeMismatch

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
