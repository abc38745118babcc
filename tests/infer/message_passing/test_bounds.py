"""What the evidence is worth at any messages. Truth: sums over all states.

With q = prod_i base_i prod_a m_a and r_a = f_a / m_a, Z = int q * E_q prod_a r_a, and eq (66) puts
prod_a (E_q r_a^alpha_a)^(1 / alpha_a) for the last factor. So for fixed messages

    it does not fall in any alpha_a                      (power means; Minka's Theorem 2),
    with one factor it is Z at alpha = 1                 (below: a lower bound, above: an upper),
    with more it is a bound where kind_of says so        (Hoelder; Minka's Theorem 4).
"""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import pyrograph as pg

from .builders import boltzmann, chain, potts, random_messages, random_model, run

SLACK = 1e-9
SCOPES = {
    (2, 2, 2): [(0, 1), (1, 2), (0, 2)],
    (2, 3, 2): [(0, 1, 2), (0, 1)],
    (3, 2): [(0, 1)],
    (2, 2, 3, 2): [(0, 1), (1, 2), (2, 3), (0, 3)],
}
shapes = st.sampled_from(sorted(SCOPES))
seeds = st.integers(0, 10**6)


def started(model, alpha, seed, scale=1.5):
    engine = pg.PowerEP(model, alpha=alpha, progress=False).setup()
    random_messages(engine, seed, scale)
    return engine


def wide(model):
    return [f"f{k}" for k, scope in enumerate(model.scopes) if len(scope) > 1]


def check_bound(engine, model):
    kind, estimate, truth = engine.evidence_kind(), float(engine.log_evidence), float(model.log_z)
    slack = SLACK * (1 + abs(truth))
    if kind == "lower bound":
        assert estimate <= truth + slack
    if kind == "upper bound":
        assert estimate >= truth - slack
    if kind == "exact":
        assert abs(estimate - truth) <= slack
    return kind


@settings(max_examples=25)
@given(shapes, seeds, st.data())
def test_whatever_is_called_a_bound_is_one_at_any_messages(cards, seed, data):
    model = random_model(cards, SCOPES[cards], seed, 1.5)
    number = st.one_of(st.floats(-4, 5), st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, -1.0]))
    number = number.filter(lambda a: a == 0 or abs(a) > 0.05)
    alphas = {name: data.draw(number) for name in wide(model)}
    check_bound(started(model, alphas, seed + 1), model)


def holder_exponents(n: int, side: str):
    """1 / alpha of n factors for which Theorem 4 gives a bound."""
    shares = st.lists(st.floats(0.05, 1.0), min_size=n, max_size=n)
    if side == "upper":
        return shares.map(lambda s: [v / sum(s) * 0.999 for v in s])
    if side == "lower, all negative":
        return shares.map(lambda s: [-4 * v for v in s])
    return shares.map(lambda s: [1.001 + sum(s[1:]), *(-v for v in s[1:])])


@pytest.mark.parametrize("side", ["upper", "lower, all negative", "lower, one positive"])
@settings(max_examples=25)
@given(shapes, seeds, st.data())
def test_both_sides_of_theorem_4_hold_and_are_recognised(side, cards, seed, data):
    model = random_model(cards, SCOPES[cards], seed, 1.5)
    names = wide(model)
    exponents = data.draw(holder_exponents(len(names), side))
    engine = started(model, {n: 1 / t for n, t in zip(names, exponents)}, seed + 1)
    assert check_bound(engine, model) == ("upper bound" if side == "upper" else "lower bound")


@settings(max_examples=12)
@given(shapes, seeds, st.lists(st.floats(-3, 4), min_size=3, max_size=3))
def test_evidence_at_fixed_messages_does_not_fall_in_alpha(cards, seed, alphas):
    model = random_model(cards, SCOPES[cards], seed, 1.0)
    alphas = sorted(a if abs(a) > 0.05 else 0.0 for a in alphas)
    values = [float(started(model, a, seed + 1).log_evidence) for a in alphas]
    for low, high in itertools.pairwise(values):
        assert low <= high + SLACK * (1 + abs(high))


@settings(max_examples=8)
@given(seeds)
def test_evidence_of_one_factor_crosses_log_z_at_alpha_one(seed):
    model = random_model((2, 3, 2), [(0, 1, 2)], seed, 1.5)
    truth = model.log_z
    for alpha in (-1.0, 0.0, 0.5, 0.99):
        assert float(started(model, alpha, seed + 1).log_evidence) <= truth + SLACK
    assert_close(started(model, 1.0, seed + 1).log_evidence, truth, rtol=0, atol=1e-10)
    for alpha in (1.01, 2.0, 5.0):
        assert float(started(model, alpha, seed + 1).log_evidence) >= truth - SLACK


@pytest.mark.parametrize("alpha", [0.0, 1e-4, -1e-4])
def test_alpha_zero_is_the_limit_from_both_sides(alpha):
    model = random_model((2, 3, 2, 2), SCOPES[2, 2, 3, 2], 0, 1.0)
    zero = started(model, 0.0, 1).log_evidence
    assert_close(started(model, alpha, 1).log_evidence, zero, rtol=0, atol=0.02)


@settings(max_examples=25)
@given(shapes, seeds, st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]))
def test_the_scale_of_messages_changes_neither_evidence_nor_what_follows(cards, seed, alpha):
    """Tables only: log odds have no scale."""
    model = random_model(cards, SCOPES[cards], seed, 1.0)
    engine, other = started(model, alpha, seed + 1), started(model, alpha, seed + 1)
    g = torch.Generator().manual_seed(seed)
    other.messages = [
        [m + 3 * torch.randn((len(m), 1), generator=g) if m.dim() == 2 else m for m in block]
        for block in other.messages
    ]
    assert_close(engine.log_evidence, other.log_evidence, rtol=1e-12, atol=1e-10)
    for _ in range(2):
        engine.step(), other.step()
    assert_close(engine.log_evidence, other.log_evidence, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_large_alphas_bound_a_grid_from_above_and_mean_field_from_below(seed):
    model = boltzmann(seed)
    low, high = run(model, pg.VMP), run(model, pg.FractionalBP, alpha=24.0, num_steps=3000)
    assert (low.evidence_kind, high.evidence_kind) == ("lower bound", "upper bound")
    assert float(low.log_evidence) <= float(model.log_z) <= float(high.log_evidence)


def test_one_alpha_below_the_count_of_factors_promises_nothing():
    model = potts(0)
    count = sum(len(s) > 1 for s in model.scopes)
    for alpha, kind in ((count, "upper bound"), (count - 0.5, "estimate"), (1.0, "estimate")):
        engine = pg.PowerEP(model, alpha=alpha, progress=False).setup()
        assert engine.evidence_kind() == kind


def test_trees_are_called_exact_only_at_alpha_one_and_once_converged():
    model = random_model((2, 3, 2), [(0, 1), (1, 2)], 0)
    engine = pg.BP(model, progress=False).setup()
    assert engine.evidence_kind() == "estimate"
    assert engine.run().evidence_kind == "exact"
    assert run(model, pg.FractionalBP, alpha={"f3": 0.5}).evidence_kind != "exact"


@pytest.mark.parametrize(
    "schedule, tol",
    [
        ("parallel", 10.0),
        ("sequential", 1e-5),
        ("sequential", 10.0),
        ("residual", 10.0),
    ],
)
def test_a_loose_tolerance_makes_no_exact_evidence(schedule, tol):
    model = chain(0)
    posterior = run(model, tol=tol, schedule=schedule)
    error = abs(float(posterior.log_evidence - model.log_z))
    assert posterior.evidence_kind != "exact" or error < 1e-6
