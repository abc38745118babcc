"""Noisy or and products of functions of single nodes, without tables. Truth: sums over all states,
and belief propagation on tables in numpy."""

import itertools
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import OptionError, UnsupportedFactor, ZeroMass
from pyrograph.infer.message_passing.discrete.noisy_or import NoisyOrFactors

from .builders import INF, Tables, log_of_rest, run
from .references import fractional_bp, free_energy


def states_of(k):
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=k)))


def fails(q, leak, z):
    """Probability that no cause, nor the leak, has its effect; causes and effects last."""
    return (1 - leak) * torch.prod(torch.where(z.unsqueeze(-2) > 0.5, 1 - q, 1.0), -1)


def truth(prior, q, leak, seen):
    """Log evidence and marginals, by sums over all states."""
    z = states_of(len(prior))
    t = fails(q, leak, z)
    log_f = torch.where(seen > 0.5, torch.log1p(-t), t.log()).sum(1)
    log_p = dist.Bernoulli(prior).log_prob(z).sum(1) + log_f
    return log_p.logsumexp(0), log_p.softmax(0) @ z


def by_powers(q, leak, z):
    return 1 - (1 - leak) * torch.prod((1 - q) ** z.unsqueeze(-2), -1)


def by_product(q, leak, z):
    return 1 - (1 - leak) * torch.prod(1 - q * z.unsqueeze(-2), -1)


def by_sum(q, leak, z):
    return -torch.expm1(torch.log1p(-leak) + (torch.log1p(-q) * z.unsqueeze(-2)).sum(-1))


def by_matrix(q, leak, z):
    return 1 - torch.exp(torch.log1p(-leak) + z @ torch.log1p(-q).t())


FORMS = [by_powers, by_product, by_sum, by_matrix]


def diagnosis(form, prior, q, leak, seen):
    def model():
        with pyro.plate("causes", len(prior)):
            z = pyro.sample("z", dist.Bernoulli(prior))
        with pyro.plate("effects", len(seen)):
            pyro.sample("f", dist.Bernoulli(form(q, leak, z)), obs=seen)

    return model


def network(k, seen, seed=0):
    torch.manual_seed(seed)
    seen = torch.tensor(seen)
    return 0.3 * torch.rand(k), 0.9 * torch.rand(len(seen), k), torch.full(seen.shape, 0.02), seen


def agrees(posterior, log_z, ones, tolerance=1e-10):
    assert_close(posterior.log_evidence, log_z, rtol=0, atol=tolerance)
    assert_close(posterior.marginal("z").probs[:, 1], ones, rtol=0, atol=tolerance)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seen", [[1.0], [0.0], [0.0, 1.0, 0.0]])
def test_one_effect_and_any_number_that_are_missing_are_exact(form, seen):
    parts = network(12, seen)
    posterior = run(diagnosis(form, *parts))
    agrees(posterior, *truth(*parts))
    assert posterior.evidence_kind == "exact"


def test_one_by_one_in_a_loop():
    prior, q, leak, seen = network(11, [1.0])

    def model():
        z = [pyro.sample(f"z{i}", dist.Bernoulli(prior[i])) for i in range(11)]
        none = 1 - leak[0]
        for i in range(11):
            none = none * (1 - q[0, i] * z[i])
        pyro.sample("f", dist.Bernoulli(1 - none), obs=seen[0])

    posterior = run(model)
    log_z, ones = truth(prior, q, leak, seen)
    assert_close(posterior.log_evidence, log_z, rtol=0, atol=1e-10)
    found = torch.stack([posterior.marginal(f"z{i}").probs[1] for i in range(11)])
    assert_close(found, ones, rtol=0, atol=1e-10)


def test_hundreds_of_causes():
    """With r = prod (1 - prior q) over the causes, p(f = 1) = 1 - (1 - leak) r."""
    k = 300
    prior, q, leak, seen = network(k, [1.0])
    prior, q = prior / 30, q / 3
    posterior = run(diagnosis(by_product, prior, q, leak, seen))
    miss = 1 - prior * q[0]
    none = (1 - leak[0]) * miss.prod()
    with_one = prior * (1 - none / miss * (1 - q[0])) / (1 - none)
    agrees(posterior, torch.log1p(-none), with_one)
    assert posterior.evidence_kind == "exact" and posterior.status == "converged"


@pytest.mark.parametrize("schedule", ["parallel", "sequential", "residual"])
@pytest.mark.parametrize("engine", [pg.BP, pg.EP])
def test_effects_that_share_causes_are_at_the_fixed_point_of_their_tables(engine, schedule):
    prior, q, leak, seen = network(12, [1.0, 0.0, 1.0])
    q[0, 9:], q[2, :3] = 0, 0  # nine causes each
    tables, scopes = [], []
    for row in (0, 2):
        scopes.append(tuple(q[row].nonzero().flatten().tolist()))
        own = q[row : row + 1, list(scopes[-1])]
        tables.append(torch.log1p(-fails(own, leak[:1], states_of(9))).view([2] * 9))
    missing = torch.stack([torch.zeros(12), torch.log1p(-q[1])], 1)
    base = torch.stack([1 - prior, prior], 1).log() + missing
    alone = tuple((i,) for i in range(12))
    reference = Tables((2,) * 12, (*alone, *scopes), (*base.double().unbind(), *tables))
    nodes, factors = fractional_bp(reference, 1.0)
    evidence = free_energy(reference, nodes, dict(zip((12, 13), factors)), 1.0)

    options = {"schedule": schedule, "tol": 1e-12}
    posterior = run(diagnosis(by_sum, prior, q, leak, seen), engine, **options)
    assert posterior.converged and posterior.evidence_kind == "estimate"
    assert_close(posterior.marginal("z").probs.numpy(), np.array(nodes), rtol=0, atol=1e-8)
    log_z = float(posterior.log_evidence)
    assert log_z == pytest.approx(evidence + math.log1p(-float(leak[1])), abs=1e-8)


def test_single_precision():
    parts = network(12, [0.0, 1.0, 0.0])
    posterior = run(diagnosis(by_product, *(part.float() for part in parts)))
    log_z, ones = truth(*parts)
    agrees(posterior, log_z.float(), ones.float(), 1e-5)


# ---------------------------------------------------------------------- ends of the range
@pytest.mark.parametrize("strength", [1e-12, 1e-6, 1.0, 30.0, 300.0])
def test_weak_and_strong_causes_keep_their_digits(strength):
    """Without a leak, f = 1 - exp(-w z): its values and the chances of causes span all sizes."""
    torch.manual_seed(0)
    w, logits = strength * torch.rand(11), torch.linspace(-30, -1, 11)

    def model():
        with pyro.plate("causes", 11):
            z = pyro.sample("z", dist.Bernoulli(logits=logits))
        pyro.factor("f", log_of_rest((w * z).sum(-1)))

    z = states_of(11)
    log_p = log_of_rest((w * z).sum(1)) + dist.Bernoulli(logits=logits).log_prob(z).sum(1)
    posterior = run(model)
    assert_close(posterior.log_evidence, log_p.logsumexp(0), rtol=1e-12, atol=1e-10)
    ones = log_p.softmax(0) @ z
    assert_close(posterior.marginal("z").probs[:, 1], ones, rtol=1e-9, atol=1e-14)


def test_causes_that_all_but_exclude_each_other_do_not_run_below_the_smallest_number():
    """Every cause has odds e^-900, and one of them there must be."""

    def model():
        with pyro.plate("causes", 12):
            z = pyro.sample("z", dist.Bernoulli(logits=torch.full((12,), -900.0)))
        pyro.factor("f", torch.where((z > 0.5).any(-1), 0.0, -INF))

    posterior = run(model)
    agrees(posterior, torch.tensor(-900.0 + math.log(12)), torch.full((12,), 1 / 12))


def test_certain_causes_and_effects_without_a_leak():
    prior, q, leak, seen = network(12, [1.0, 0.0])
    q[:, ::3], q[0, ::4], leak[:] = 1.0, 0.0, 0.0
    prior[5] = 1.0

    posterior = run(diagnosis(by_product, prior, q, leak, seen))
    log_z, ones = truth(prior, q, leak, seen)
    agrees(posterior, log_z, ones, 1e-9)  # Bernoulli clamps what is impossible at 2e-16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("event", ["or", "and"])
@pytest.mark.parametrize("seen", [0.0, 1.0])
@pytest.mark.parametrize("prior", [0.1, 1.0])
def test_certain_events_against_all_odds_are_as_unlikely_as_bernoulli_says(
    dtype, event, seen, prior
):
    """It clamps probabilities of 0 and 1 at the eps of its dtype."""
    prior, seen = torch.full((10,), prior, dtype=dtype), torch.tensor(seen, dtype=dtype)

    def log_f(z):
        is_on = (z == 1).any(-1) if event == "or" else (z == 1).all(-1)
        return dist.Bernoulli(is_on.to(dtype)).log_prob(seen)

    def model():
        with pyro.plate("causes", 10):
            z = pyro.sample("z", dist.Bernoulli(prior))
        pyro.factor("f", log_f(z))

    z = states_of(10).to(dtype)
    log_p = (log_f(z) + dist.Bernoulli(prior).log_prob(z).sum(1)).double()
    posterior, near = run(model), {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}
    assert_close(posterior.log_evidence, log_p.logsumexp(0), **near)
    ones = log_p.softmax(0) @ z.double()
    assert_close(posterior.marginal("z").probs[:, 1], ones, **near)


@pytest.mark.parametrize("seen", [0.0, 1.0])
@pytest.mark.parametrize("strength", [0.3, 0.01])
def test_weak_causes_without_a_leak_in_single_precision(strength, seen):
    """Where no cause is there the probability is clamped, and lambdas are quotients by it."""
    prior, q, leak, _ = network(40, [seen])
    q *= strength
    none = torch.prod(1 - prior.double() * q.double())
    parts = (v.float() for v in (prior, q, 0 * leak, torch.tensor([seen])))
    posterior = run(diagnosis(by_product, *parts))
    log_z = (torch.log1p(-none) if seen else none.log()).float()
    assert_close(posterior.log_evidence, log_z, rtol=0, atol=3e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_effects_at_once_and_powers_are_no_clamped_noisy_or(dtype):
    """Their values are smaller than what a clamped probability may be off by."""
    torch.manual_seed(0)
    prior, q, seen = 0.3 * torch.rand(10), 0.3 * torch.rand(90, 10), torch.arange(90) % 3 == 0
    prior, q, seen = (v.to(dtype) for v in (prior, q, seen))

    def log_f(z):
        p = 1 - 0.99 * torch.prod(1 - q * z.unsqueeze(-2), -1)
        return dist.Bernoulli(p).to_event(1), dist.Bernoulli(0.8 * p[..., 0])

    def model():
        with pyro.plate("causes", 10):
            z = pyro.sample("z", dist.Bernoulli(prior))
        all_of_them, first = log_f(z)
        pyro.sample("f", all_of_them, obs=seen)
        with pyro.poutine.scale(scale=300.0):
            pyro.sample("g", first, obs=torch.ones((), dtype=dtype))

    z = states_of(10).to(dtype)
    all_of_them, first = log_f(z)
    log_p = all_of_them.log_prob(seen) + 300 * first.log_prob(torch.ones((), dtype=dtype))
    log_p = log_p + dist.Bernoulli(prior).log_prob(z).sum(1)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-3
    agrees(run(model), log_p.logsumexp(0), log_p.softmax(0) @ z, tolerance)


def test_effects_of_the_same_causes_are_one_factor():
    """Their tables are multiplied, so that they close no cycle."""
    parts = network(12, [1.0, 0.0, 1.0, 1.0])
    posterior = run(diagnosis(by_product, *parts))
    agrees(posterior, *truth(*parts))
    assert posterior.evidence_kind == "exact"


def test_an_effect_without_any_cause_has_no_mass():
    def model():
        with pyro.plate("causes", 12):
            z = pyro.sample("z", dist.Bernoulli(0.3))
            pyro.factor("pin", torch.where(z > 0.5, -INF, 0.0))
        pyro.factor("f", log_of_rest(z.sum(-1)))

    with pytest.raises(ZeroMass, match='factor "f"'):
        run(model)


# ---------------------------------------------------------------------- of the same form
def check_rule(rule, k=11, engine=pg.BP, tolerance=1e-10):
    """A factor of states 0 and 1 that ``rule`` gives the log of."""
    torch.manual_seed(1)
    logits = torch.randn(k)

    def model():
        with pyro.plate("causes", k):
            z = pyro.sample("z", dist.Bernoulli(logits=logits))
        pyro.factor("f", rule(z))

    z = states_of(k)
    log_p = rule(z) + dist.Bernoulli(logits=logits).log_prob(z).sum(1)
    posterior = run(model, engine)
    agrees(posterior, log_p.logsumexp(0), log_p.softmax(0) @ z, tolerance)
    with pytest.raises(OptionError):
        posterior.factor_marginal("f")  # no table was made
    return posterior


POLARITY = torch.arange(11) % 2 == 0
Q = torch.linspace(0.1, 0.95, 11)


@pytest.mark.parametrize(
    "rule",
    [
        lambda z: torch.where((z == 1).all(-1), 0.9, 0.2).log(),  # DINA: slip and guess
        lambda z: torch.where((z == 1).any(-1), 0.8, 0.1).log(),  # DINO
        lambda z: torch.log(0.05 + 0.9 * (1 - 0.97 * torch.prod(1 - Q * z, -1))),
        lambda z: torch.log(0.95 - 0.9 * (1 - 0.97 * torch.prod(1 - Q * z, -1))),
        lambda z: torch.log(1 - 0.99 * torch.prod(1 - Q * torch.where(POLARITY, z, 1 - z), -1)),
        lambda z: torch.log(3.0 * torch.prod(1 - 0.5 * Q * z, -1) + 2.0),
    ],
)
def test_other_factors_affine_in_one_product(rule):
    assert check_rule(rule).evidence_kind == "exact"


def test_one_excluded_state_is_not_missed():
    """P is 0 around the first states and around the last: nothing there has an effect."""
    logits = torch.where(POLARITY, 3.0, -3.0)

    def model():
        with pyro.plate("causes", 11):
            z = pyro.sample("z", dist.Bernoulli(logits=logits))
        pyro.factor("f", torch.where((z == POLARITY).all(-1), -INF, 0.0))

    likeliest = torch.sigmoid(torch.tensor(3.0)) ** 11
    assert_close(run(model).log_evidence, torch.log1p(-likeliest), rtol=0, atol=1e-10)


def test_nodes_of_several_states():
    torch.manual_seed(0)
    cards, k = [2, 3, 4, 3, 2, 3], 6
    keep = [torch.rand(c) for c in cards]
    probs = [torch.rand(c).softmax(0) for c in cards]

    def log_f(x):
        kept = [keep[i][x[i].long()] for i in range(k)]
        return torch.log1p(-0.9 * torch.stack(torch.broadcast_tensors(*kept)).prod(0))

    def model():
        x = [pyro.sample(f"x{i}", dist.Categorical(probs[i])) for i in range(k)]
        pyro.factor("f", log_f(x))

    grid = torch.cartesian_prod(*[torch.arange(c) for c in cards])
    log_p = log_f(grid.unbind(1)) + sum(probs[i].log()[grid[:, i]] for i in range(k))
    posterior = run(model)
    assert_close(posterior.log_evidence, log_p.logsumexp(0), rtol=0, atol=1e-10)
    for i, c in enumerate(cards):
        share = torch.zeros(c).index_add(0, grid[:, i], log_p.softmax(0))
        assert_close(posterior.marginal(f"x{i}").probs, share, rtol=0, atol=1e-10)
    with pytest.raises(OptionError, match="noisy or"):
        posterior.factor_marginal("f")


# ---------------------------------------------------------------------- other engines
@pytest.mark.parametrize(
    "engine, options", [(pg.VMP, {}), (pg.FractionalBP, {"alpha": 0.5}), (pg.PowerEP, {})]
)
def test_missing_effects_are_exact_for_every_alpha(engine, options):
    parts = network(40, [0.0] * 5)
    prior, q, leak, _ = parts
    posterior = run(diagnosis(by_product, *parts), engine, **options)
    odds = prior.logit() + torch.log1p(-q).sum(0)
    log_z = torch.log1p(-leak).sum() + torch.log1p(-prior * -torch.expm1(torch.log1p(-q).sum(0)))
    agrees(posterior, log_z.sum() - 39 * torch.log1p(-leak).sum(), odds.sigmoid(), 1e-9)
    assert posterior.evidence_kind == "exact"


@pytest.mark.parametrize("engine, options", [(pg.VMP, {}), (pg.FractionalBP, {"alpha": 0.5})])
def test_powers_of_wide_ones_are_refused_and_of_narrow_ones_go_by_their_tables(engine, options):
    with pytest.raises(UnsupportedFactor, match=r"noisy or of 40 nodes.* pg\.BP or pg\.EP"):
        run(diagnosis(by_product, *network(40, [0.0, 1.0])), engine, **options)
    posterior = run(diagnosis(by_product, *network(10, [0.0, 1.0])), engine, **options)
    assert posterior.factor_marginal("f").shape == (2, *[2] * 10)


def test_an_alpha_of_1_for_the_statement_serves_beside_others():
    parts = network(40, [0.0, 1.0])
    posterior = run(diagnosis(by_product, *parts), pg.PowerEP, alpha={"f": 1.0, "z": 0.5})
    truth = run(diagnosis(by_product, *parts))
    assert_close(posterior.marginal("z").probs, truth.marginal("z").probs)


# ---------------------------------------------------------------------- derivatives
@pytest.mark.parametrize("form", [by_product, by_sum])
def test_derivatives_are_those_of_finite_differences(form):
    """Of a cycle: two effects share seven causes."""
    prior, q, leak, seen = network(11, [1.0, 0.0, 1.0])

    def value(prior, q, leak):
        def model():
            with pyro.plate("causes", 11):
                z = pyro.sample("z", dist.Bernoulli(prior))
            for k in range(3):
                mine = slice(k, k + 9)
                p = form(q[k, mine], leak[k], z[..., mine])
                pyro.sample(f"f{k}", dist.Bernoulli(p), obs=seen[k])

        posterior = run(model, tol=1e-13, num_steps=3000)
        assert posterior.evidence_kind == "estimate"
        ones = posterior.marginal("z").probs[:, 1]
        return torch.cat([posterior.log_evidence.reshape(1), ones])

    point = tuple(part.requires_grad_() for part in (prior, q, leak))
    # along random directions of 47 numbers and of 12 results: all of them would take a minute
    assert gradcheck(value, point, eps=1e-6, atol=1e-5, fast_mode=True)


def test_derivatives_with_respect_to_a_sensitivity_that_starts_out_at_1():
    """At s = 1 the values are those of a noisy or, whose derivatives are others."""
    prior, q, leak, _ = network(10, [1.0])

    def value(s):
        def model():
            with pyro.plate("causes", 10):
                z = pyro.sample("z", dist.Bernoulli(prior))
            pyro.factor("f", torch.log(s * by_product(q[0], leak[0], z)))

        posterior = run(model)
        ones = posterior.marginal("z").probs[:, 1]
        return torch.cat([posterior.log_evidence.reshape(1), ones])

    assert gradcheck(value, (torch.tensor(1.0, requires_grad=True),), eps=1e-6, atol=1e-6)


def test_factors_some_at_a_time_are_those_of_all():
    torch.manual_seed(0)
    ends, weight = torch.rand(4, 2).log(), torch.rand(3, 4, 2)
    logs = [torch.stack([w, 1 - w], 1).log() for w in weight]
    rows = [torch.arange(4) + i for i in range(3)]
    block = NoisyOrFactors(ends, logs, torch.ones(4), rows, [0, 0, 0])
    beliefs, messages = [torch.randn(6, 2)], [torch.randn(12, 2)]
    which = torch.tensor([1, 3])
    part = block.part(which)
    mine = (3 * which.unsqueeze(1) + torch.arange(3)).flatten()
    found = part.update([messages[0][mine]], beliefs)[0][0]
    assert_close(found, block.update(messages, beliefs)[0][0][mine])
