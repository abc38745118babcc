"""Parity checks without tables. Truth: sums over all states."""

import itertools
import re

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import OptionError, ZeroMass
from pyrograph.infer.message_passing.discrete import parity as parity_module
from pyrograph.infer.message_passing.discrete.parity import parity_values
from pyrograph.infer.message_passing.discrete.symmetry import is_symmetric

from .builders import INF, Tables, run
from .references import fractional_bp, free_energy


def binary(fields, rule):
    """Bits with log odds, under a factor ``rule(x)`` of all of them."""

    def model():
        with pyro.plate("bits", len(fields)):
            x = pyro.sample("x", dist.Bernoulli(logits=fields))
        pyro.factor("rule", rule(x))

    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=len(fields))))
    value = rule(states) + dist.Bernoulli(logits=fields).log_prob(states).sum(1)
    share = value.softmax(0)
    return model, value.logsumexp(0), share @ states


def parity(even, odd):
    def rule(x):
        is_odd = torch.remainder(x.sum(-1), 2)
        return torch.where(is_odd > 0.5, odd, even)

    return rule


def check(model, log_z, ones, engine=pg.BP, tolerance=1e-10, **options):
    posterior = run(model, engine, **options)
    assert_close(posterior.log_evidence, log_z, rtol=0, atol=tolerance)
    assert_close(posterior.marginal("x").probs[:, 1], ones, rtol=0, atol=tolerance)
    return posterior


@pytest.mark.parametrize("k", [2, 4, 5, 8, 13])
@pytest.mark.parametrize("values", [(0.0, -INF), (-INF, 0.3), (0.7, -0.4)])
def test_hard_and_soft_checks_are_exact(k, values):
    check(*binary(torch.randn(k), parity(*values)))


@pytest.mark.parametrize("values", [(0.0, -INF), (0.7, -0.4)])
def test_checks_on_more_bits_than_can_be_looked_at_one_by_one(values):
    """The even states have half of 1 + prod (1 - 2 p_i) of the mass."""
    fields, even, odd = 0.5 * torch.randn(30), *np.exp(values)
    p = torch.sigmoid(fields).numpy()

    def mass(p):
        return (even * (1 + np.prod(1 - 2 * p)) + odd * (1 - np.prod(1 - 2 * p))) / 2

    def model():
        with pyro.plate("bits", 30):
            x = pyro.sample("x", dist.Bernoulli(logits=fields))
        pyro.factor("rule", parity(*values)(x))

    posterior = run(model, pg.BP)
    assert posterior.evidence_kind == "exact"
    assert float(posterior.log_evidence) == pytest.approx(np.log(mass(p)), abs=1e-10)
    for i in range(30):
        with_one = p[i] * mass(np.where(np.arange(30) == i, 1.0, p)) / mass(p)
        assert float(posterior.marginal("x").probs[i, 1]) == pytest.approx(with_one, abs=1e-10)


@pytest.mark.parametrize("alpha", [0.6, 2.0])
def test_powers_of_a_check_do_what_the_table_of_a_check_does(alpha):
    """A wide check and one too small to be found: both end at their own fixed point, and the bound
    of Theorem 4 holds for one factor."""
    model, log_z, _ = binary(torch.randn(6), parity(0.5, -0.5))
    posterior = run(model, pg.FractionalBP, alpha=alpha)
    assert posterior.evidence_kind == ("lower bound" if alpha < 1 else "upper bound")
    gap = float(posterior.log_evidence - log_z)
    assert (gap <= 1e-12) if alpha < 1 else (gap >= -1e-12)


@pytest.mark.parametrize("alpha", [0.4, 1.0, 1.6])
@pytest.mark.parametrize("values", [((0.9, -0.6), (-0.4, 0.8)), ((0.0, -INF), (-INF, 0.3))])
def test_powers_of_checks_on_a_cycle_are_at_the_fixed_point_of_their_tables(values, alpha):
    scopes, checks = ((0, 1, 2, 3, 4), (2, 3, 4, 5, 6)), []
    for scope, (even, odd) in zip(scopes, values):
        states = torch.cartesian_prod(*[torch.arange(2)] * len(scope))
        logs = torch.where(states.sum(1) % 2 == 0, even, odd)
        checks.append(logs.double().view([2] * len(scope)))
    fields = torch.randn(7, 2, dtype=torch.float64).unbind()
    alone = tuple((i,) for i in range(7))
    model = Tables((2,) * 7, (*alone, *scopes), (*fields, *checks), plated=True)
    nodes, factors = fractional_bp(model, alpha)
    evidence = free_energy(model, nodes, dict(zip((7, 8), factors)), alpha)

    posterior = run(model, pg.FractionalBP, alpha=alpha)
    assert posterior.converged, posterior.status
    assert_close(posterior.marginal("x").probs.numpy(), np.array(nodes), rtol=0, atol=1e-6)
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=1e-6)


@pytest.mark.parametrize("values", [(0.5, -0.5), (-1.0, 1.4), (0.0, 0.8)])
def test_mean_field_of_a_soft_check_is_at_rest_and_claims_what_its_beliefs_do(values):
    """Sums over all states: log q_i = E_{q minus i} log f + const, and the bound is
    E_q log f + H(q)."""
    fields = torch.randn(5)
    model, log_z, _ = binary(fields, parity(*values))
    posterior = run(model, pg.VMP)
    prob = posterior.marginal("x").probs[:, 1]
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=5)))
    single = dist.Bernoulli(probs=prob).log_prob(states)
    log_f = parity(*values)(states) + dist.Bernoulli(logits=fields).log_prob(states).sum(1)
    bound = (single.sum(1).exp() * (log_f - single.sum(1))).sum()
    assert_close(posterior.log_evidence, bound, rtol=0, atol=1e-10)
    assert float(bound) < float(log_z) - 1e-6  # a product is no parity
    assert posterior.evidence_kind == "lower bound"
    for i in range(5):
        others = (single.sum(1) - single[:, i]).exp() * log_f
        ones = states[:, i] == 1
        assert_close(others[ones].sum() - others[~ones].sum(), prob[i].logit(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("strength", [10.0, 20.0, 30.0, 40.0, 300.0])
@pytest.mark.parametrize("k", [4, 5, 9])
def test_strong_bits_against_one_another_keep_their_digits(k, strength):
    """All but one bit are 0 with large odds, the last is 1 with almost as large odds."""
    fields = torch.full((k,), -strength)
    fields[-1] = strength - 1
    check(*binary(fields, parity(0.0, -INF)), tolerance=1e-9)


@pytest.mark.parametrize("k", [4, 6])
def test_a_steep_but_soft_check_may_be_violated(k):
    """Bits pinned to odd parity; odd parity has log value -40, no zero."""
    pins = torch.tensor([[0.0, -INF]] * (k - 1) + [[-INF, 0.0]])
    rule = parity(0.0, -40.0)

    def model():
        with pyro.plate("bits", k):
            x = pyro.sample("x", dist.Bernoulli(0.5))
            pyro.factor("pin", torch.where(x > 0.5, pins[:, 1], pins[:, 0]))
        pyro.factor("rule", rule(x))

    posterior = run(model)
    truth = -40.0 - k * torch.tensor(2.0).log()
    assert_close(posterior.log_evidence, truth, rtol=0, atol=1e-9)


def test_a_check_against_certain_bits_has_no_mass():
    k = 6

    def model():
        with pyro.plate("bits", k):
            x = pyro.sample("x", dist.Bernoulli(0.5))
            pyro.factor("pin", torch.where(x > 0.5, -INF, 0.0))
        pyro.factor("rule", parity(-INF, 0.0)(x))

    with pytest.raises(ZeroMass, match='factor "rule"'):
        run(model)


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_two_checks_that_want_opposite_bits_have_no_mass(schedule):
    """All other bits are pinned: bit 4 would have to be 0 by the one check and 1 by the other."""
    pin = torch.tensor([0.0, 0, 0, 0, 9, 1, 0, 0, 0])

    def model():
        with pyro.plate("bits", 9):
            x = pyro.sample("x", dist.Bernoulli(0.5))
            pyro.factor("pin", torch.where((pin < 5) & (x != pin), -INF, 0.0))
        pyro.factor("first", parity(0.0, -INF)(x[..., :5]))
        pyro.factor("second", parity(0.0, -INF)(x[..., 4:]))

    with pytest.raises(ZeroMass):
        run(model, schedule=schedule)


@pytest.mark.parametrize("k", [5, 12, 13, 15])
def test_not_all_ones_is_not_taken_for_a_check(k):
    """One state of 2^k is excluded, the likeliest; parity looks right at all others."""
    pattern = torch.ones(k)
    fields = torch.full((k,), 3.0)

    def clause(x):
        distance = (x - pattern).abs().sum(-1)
        return torch.where(distance < 0.5, -INF, 0.0)

    check(*binary(fields, clause), tolerance=1e-8)


def one_by_one(x):
    """A soft check in steps that are not known to treat all bits alike."""
    total = x[..., 0]
    for i in range(1, x.shape[-1]):
        total = total + x[..., i]
    return torch.where(total % 2 == 0, 0.4, -0.4)


def wide(k, rule):
    def model():
        with pyro.plate("bits", k):
            x = pyro.sample("x", dist.Bernoulli(logits=torch.full((k,), 0.3)))
        pyro.factor("rule", rule(x))

    return model


@pytest.mark.parametrize("check_of", [parity(0.4, -0.4), one_by_one], ids=["sum", "one by one"])
@pytest.mark.parametrize("num_ones", [34, 33, 32, 31, 17, 3, 2])
def test_a_wide_factor_that_is_no_check_at_some_number_of_ones_is_not_taken_for_one(
    check_of, num_ones
):
    """Its table is over the budget; it is a function of the number of ones, which is binomial."""

    def rule(x):
        return check_of(x) - 4.0 * (x.sum(-1) == num_ones)

    ones = torch.arange(35.0, dtype=torch.float64)
    of_ones = dist.Binomial(34, logits=torch.tensor(0.3)).log_prob(ones)
    soft = torch.where(ones % 2 == 0, 0.4, -0.4) - 4.0 * (ones == num_ones)
    posterior = run(wide(34, rule))
    assert_close(posterior.log_evidence, (of_ones + soft).logsumexp(0), rtol=0, atol=1e-6)
    assert posterior.evidence_kind == "exact"


@pytest.mark.parametrize("k", [26, 34])
@pytest.mark.parametrize("start", [0, 11])
def test_a_wide_factor_that_is_no_check_at_one_run_of_ones_is_not_taken_for_one(k, start):
    place = torch.arange(k)
    pattern = ((place >= start) & (place < start + 10)).double()
    model = wide(k, lambda x: one_by_one(x) - ((x - pattern).abs().sum(-1) == 0).double())
    group = next(g for g in pg.trace_graph(model).factors if g.arity == k)
    assert parity_values(group) is None


@pytest.mark.parametrize("k", [20, 26])
def test_what_is_a_check_at_all_states_tried_is_called_exact_only_if_these_are_all(k):
    """The sum over even states of prod p is (1 + prod (1 - 2 p)) / 2."""
    posterior = run(wide(k, one_by_one), pg.BP)
    lean = 1 - 2 * torch.sigmoid(torch.tensor(0.3, dtype=torch.float64))
    even, soft = (1 + lean**k) / 2, torch.tensor([0.4, -0.4], dtype=torch.float64).exp()
    log_z = (even * soft[0] + (1 - even) * soft[1]).log()
    assert_close(posterior.log_evidence, log_z, rtol=0, atol=1e-10)
    if k == 20:
        assert posterior.evidence_kind == "exact" and posterior.status == "converged"
    else:
        assert posterior.evidence_kind == "estimate"
        assert re.search(
            rf'"rule" are taken for checks .* of their 2\^{k} states', posterior.status
        )


UNLIKE = torch.tensor([1.0] * 25 + [3.0])


@pytest.mark.parametrize(
    "rule, is_alike",
    [
        (lambda x: (x.sum(-1) % 2 == 0).double(), True),
        (lambda x: (x.long().sum(-1) % 2).double(), True),
        (lambda x: ((x == 1).sum(-1) % 2).double(), True),
        (lambda x: (1 - 2 * x).prod(-1), True),
        (lambda x: x.prod(-1) - 2 * x.sum(-1), True),
        (lambda x: ((UNLIKE * x).sum(-1) % 2).double(), False),
        (lambda x: x.sum(-1) * x[..., 3], False),
        (lambda x: (x[..., 1:].sum(-1) + x[..., 0]) % 2, False),
        (lambda x: (0.1 * x).sum(-1), False),
        (lambda x: x[..., ::2].prod(-1) + x[..., 1::2].prod(-1), False),
        (lambda x: x.flip(-1).cumsum(-1).sum(-1), False),
        (lambda x: torch.cat([x, x[..., :1]], -1).sum(-1), False),
    ],
)
def test_only_functions_of_the_number_of_ones_are_known_to_be(rule, is_alike):
    model = wide(26, lambda x: rule(x).sin())
    group = next(g for g in pg.trace_graph(model).factors if g.arity == 26)
    assert is_symmetric(group) == is_alike


def test_a_code_of_two_checks_without_cycles_is_exact():
    fields = torch.randn(9)

    def rule(x):
        return parity(0.0, -INF)(x[..., :5])

    def other(x):
        return parity(0.0, -INF)(x[..., 4:])

    _, log_z, ones = binary(fields, lambda x: rule(x) + other(x))

    def model():
        with pyro.plate("bits", 9):
            x = pyro.sample("x", dist.Bernoulli(logits=fields))
        pyro.factor("first", rule(x))
        pyro.factor("second", other(x))

    check(model, log_z, ones)


def test_of_a_wide_factor_that_is_plainly_no_check_few_states_are_laid_out(monkeypatch):
    """All that are probed are 128 k^2 numbers, 650 MB of 800 bits."""
    k, laid_out = 800, []
    ones = parity_module._ones

    def counted(*args):
        laid_out.append(ones(*args))
        return laid_out[-1]

    monkeypatch.setattr(parity_module, "_ones", counted)

    def model():
        with pyro.plate("bits", k):
            x = pyro.sample("x", dist.Bernoulli(0.01))
        pyro.factor("rule", torch.log1p(-0.9 * torch.prod(1 - 0.5 * x, -1)))

    log_z = np.log1p(-0.9 * (1 - 0.005) ** k)
    assert float(run(model).log_evidence) == pytest.approx(log_z, abs=1e-10)
    assert sum(states.numel() for states in laid_out) <= k * (k + 1)


@pytest.mark.parametrize("k", [5, 8])
def test_checks_on_the_same_bits_are_one_factor(k):
    """Two readings of one parity, another factor on its bits, and a check that shares none."""
    fields, other = torch.randn(k), torch.randn(6)
    rule, twice = parity(0.7, -0.4), torch.tensor([0.9, 0.2]).log()

    def both(x):
        is_odd = torch.remainder(x.sum(-1), 2)
        return rule(x) + torch.where(is_odd > 0.5, *twice) + 0.3 * x.prod(-1)

    def model():
        with pyro.plate("bits", k):
            x = pyro.sample("x", dist.Bernoulli(logits=fields))
        with pyro.plate("others", 6):
            y = pyro.sample("y", dist.Bernoulli(logits=other))
        pyro.factor("rule", rule(x))
        pyro.factor("twice", torch.where(torch.remainder(x.sum(-1), 2) > 0.5, *twice))
        pyro.factor("all", 0.3 * x.prod(-1))
        pyro.factor("apart", rule(y))

    _, log_z, ones = binary(fields, both)
    posterior = check(model, log_z + binary(other, rule)[1], ones)
    assert posterior.evidence_kind == "exact"
    assert posterior.factor_marginal("rule").shape[-k:] == (2,) * k


def test_mean_field_in_single_precision_while_the_default_is_double():
    """m_i = tanh(h_i + J prod_{j != i} m_j) of spins 1 - 2 x_i, by coordinate ascent in numpy."""
    assert torch.get_default_dtype() == torch.float64
    fields, even, odd = torch.randn(9, dtype=torch.float32), 0.7, -1.4
    h, coupling = -fields.numpy().astype(float) / 2, (even - odd) / 2
    m = np.tanh(h)
    for i in 200 * list(range(9)):
        m[i] = np.tanh(h[i] + coupling * np.prod(np.delete(m, i)))
    p = (1 + m) / 2
    entropy = -(p * np.log(p) + (1 - p) * np.log1p(-p)).sum()
    prior = (h * m - np.log(2 * np.cosh(h))).sum()
    bound = prior + (even + odd) / 2 + coupling * np.prod(m) + entropy

    def model():
        with pyro.plate("bits", 9):
            x = pyro.sample("x", dist.Bernoulli(logits=fields))
        pyro.factor("rule", torch.where(x.sum(-1) % 2 > 0.5, odd, even).float())

    posterior = run(model, pg.VMP)
    assert posterior.evidence_kind == "lower bound"
    assert posterior.log_evidence.dtype == torch.float32
    assert float(posterior.log_evidence) == pytest.approx(bound, abs=1e-5)
    assert_close(
        posterior.marginal("x").probs[:, 1].numpy(), (1 - p).astype("f4"), rtol=0, atol=1e-5
    )


def test_the_belief_over_a_wide_check_is_refused_in_words():
    model, *_ = binary(torch.randn(6), parity(0.0, -INF))
    with pytest.raises(OptionError, match="marginals of its nodes"):
        run(model).factor_marginal("rule")
