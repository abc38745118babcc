"""Factors of a weighted count, without tables. Truth: sums over all states, the distribution of
counts by convolution, and belief propagation and mean field on tables."""

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
from pyrograph.errors import NonFiniteDensity, OptionError, UnsupportedFactor, ZeroMass
from pyrograph.infer.message_passing.discrete.counts import CountFactors

from .builders import INF, Tables, run
from .references import fractional_bp, free_energy


def states_of(k):
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=k)))


def plated(log_f, probs):
    """A factor of states 0 and 1 that ``log_f`` gives the log of."""

    def model():
        with pyro.plate("nodes", len(probs)):
            z = pyro.sample("z", dist.Bernoulli(probs))
        pyro.factor("f", log_f(z))

    return model


def truth(log_f, probs):
    """Log evidence and marginals, by sums over all states."""
    z = states_of(len(probs))
    log_p = dist.Bernoulli(probs).log_prob(z).sum(1) + log_f(z)
    return log_p.logsumexp(0), log_p.softmax(0) @ z


def agrees(posterior, log_z, ones, tolerance=1e-10):
    assert_close(posterior.log_evidence, log_z, rtol=0, atol=tolerance)
    assert_close(posterior.marginal("z").probs[:, 1], ones, rtol=0, atol=tolerance)


def of_counts(probs):
    """Poisson-binomial probabilities."""
    found = np.ones(1)
    for p in probs.tolist():
        found = np.convolve(found, [1 - p, p])
    return torch.tensor(found)


def binomial(z):
    """Not refused where the number is below what is seen: validation is of Pyro, not of f."""
    return dist.Binomial(z.sum(-1), 0.3, validate_args=False).log_prob(torch.tensor(3.0))


def poisson(z):
    return dist.Poisson(0.7 * z.sum(-1) + 0.1).log_prob(torch.tensor(3.0))


def normal(z):
    return dist.Normal(z.sum(-1) * 0.37 - 1, 0.5).log_prob(torch.tensor(1.3).to(z))


def weighted(z):
    return -((z @ (1 + torch.arange(z.shape[-1]) % 3).to(z) - 5.0) ** 2)


def at_least(z):
    return torch.where(z.sum(-1) >= 7, 0.0, -INF)


def exactly(z):
    return torch.where(z.sum(-1) == 5, 0.0, -INF)


def pooled(z):
    """Sensitivity grows with the number of positives."""
    number = z.sum(-1)
    return torch.where(number > 0, 0.95 - 0.4 * 0.7**number, 0.02).log()


def looked_up(z):
    return torch.linspace(0.1, 0.9, 20).log()[z.sum(-1).long()]


def one_by_one(z):
    total = 0.0
    for i in range(z.shape[-1]):
        total = total + z[..., i]
    return -0.5 * (total - 4) ** 2


def with_one_node(z):
    return torch.where(z[..., 2] > 0, -0.3, 0.1) * (z.sum(-1) - 3) ** 2


def multiples(z):
    return -((0.1 * z[..., ::2].sum(-1) - 0.2 * z[..., 1::2].sum(-1) + 0.3) ** 2)


def most_of_them(z):
    return torch.where(z.mean(-1) >= 0.5, 0.0, -2.0)


def any_but_not_all(z):
    return torch.where((z == 1).any(-1) & ~(z == 1).all(-1), -0.2, -1.5)


RULES = [
    any_but_not_all,
    binomial,
    poisson,
    normal,
    weighted,
    at_least,
    exactly,
    pooled,
    looked_up,
    one_by_one,
    with_one_node,
    multiples,
    most_of_them,
]
PROBS = torch.linspace(0.05, 0.7, 13, dtype=torch.float64)


@pytest.mark.parametrize("k", [9, 40])
def test_one_of_many_is_no_noisy_or(k):
    """Both are zero with no ones and one with a single one."""
    probs = torch.linspace(0.1, 0.5, k, dtype=torch.float64)
    posterior = run(plated(lambda z: torch.where(z.sum(-1) == 1, 0.0, -INF), probs))
    odds = probs / (1 - probs)
    log_z = odds.sum().log() + torch.log1p(-probs).sum()
    agrees(posterior, log_z, odds / odds.sum())
    assert posterior.evidence_kind == "exact" and posterior.status == "converged"


def has_table(posterior):
    try:
        posterior.factor_marginal("f")
    except OptionError:
        return False
    return True


@pytest.mark.parametrize("rule", RULES)
def test_one_factor_is_exact(rule):
    posterior = run(plated(rule, PROBS))
    agrees(posterior, *truth(rule, PROBS))
    assert posterior.evidence_kind == "exact" and posterior.status == "converged"
    assert not has_table(posterior)


@pytest.mark.parametrize("k", [200, 300])
def test_hundreds_of_nodes_by_convolution(k):
    """With counts of all others, p(z_i = 1 | f) is found for the first node and the last."""
    torch.manual_seed(0)
    probs, seen = 0.2 * torch.rand(k), torch.tensor(9.0)

    def log_f(z):
        return dist.Binomial(z.sum(-1), 0.4, validate_args=False).log_prob(seen)

    posterior = run(plated(log_f, probs))
    count = torch.arange(k + 1.0)
    like = dist.Binomial(count, 0.4, validate_args=False).log_prob(seen).exp()
    z = (of_counts(probs) * like).sum()
    assert_close(posterior.log_evidence, z.log(), rtol=1e-12, atol=1e-10)
    for i, others in ((0, probs[1:]), (k - 1, probs[:-1])):
        one = probs[i] * (of_counts(others) * like[1:]).sum() / z
        assert_close(posterior.marginal("z").probs[i, 1], one, rtol=1e-10, atol=0)
    assert posterior.evidence_kind == "exact"


@pytest.mark.parametrize("engine", [pg.BP, pg.EP])
@pytest.mark.parametrize("schedule", ["parallel", "sequential", "residual"])
def test_counts_that_share_nodes_are_at_the_fixed_point_of_their_tables(engine, schedule):
    torch.manual_seed(0)
    probs, scopes = 0.3 * torch.rand(12), [list(range(9)), list(range(3, 12))]
    seen = torch.tensor([1.0, 0.0])

    def log_f(z, y):
        number = z.sum(-1)
        p = torch.where(number > 0, 0.95 - 0.4 * 0.7**number, 0.02)
        return dist.Bernoulli(p).log_prob(y)

    def model():
        with pyro.plate("nodes", 12):
            z = pyro.sample("z", dist.Bernoulli(probs))
        for i, scope in enumerate(scopes):
            pyro.factor(f"f{i}", log_f(z[..., scope], seen[i]))

    tables = [log_f(states_of(9), y).view([2] * 9).double() for y in seen]
    base = torch.stack([1 - probs, probs], 1).log().double()
    alone = tuple((i,) for i in range(12))
    reference = Tables((2,) * 12, (*alone, *map(tuple, scopes)), (*base.unbind(), *tables))
    nodes, factors = fractional_bp(reference, 1.0)
    evidence = free_energy(reference, nodes, dict(zip((12, 13), factors)), 1.0)
    posterior = run(model, engine, schedule=schedule, tol=1e-12)
    assert posterior.converged and posterior.evidence_kind == "estimate"
    assert_close(posterior.marginal("z").probs.numpy(), np.array(nodes), rtol=0, atol=1e-8)
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=1e-8)


def in_real_numbers(rule):
    """The same function, but that no steps tell: sorted nodes."""
    return lambda z: rule(z.sort(-1).values)


@pytest.mark.parametrize("rule", [poisson, normal, pooled])
@pytest.mark.parametrize(
    "engine, options",
    [
        (pg.VMP, {}),
        (pg.FractionalBP, {"alpha": 0.5}),
        (pg.FractionalBP, {"alpha": 3.0}),
        (pg.PowerEP, {"alpha": -1.0}),
    ],
)
def test_every_alpha_is_that_of_tables(rule, engine, options):
    probs = PROBS[:10]
    posterior = run(plated(rule, probs), engine, **options)
    by_table = run(plated(in_real_numbers(rule), probs), engine, **options)
    assert has_table(by_table) and not has_table(posterior)
    assert posterior.evidence_kind == by_table.evidence_kind
    agrees(posterior, by_table.log_evidence, by_table.marginal("z").probs[:, 1], 1e-6)


def test_one_excluded_state_of_many_is_not_missed():
    pattern, logits = torch.arange(40) % 3 == 0, torch.full((40,), 3.0)
    probs = torch.where(pattern, logits, -logits).sigmoid()
    posterior = run(plated(lambda z: torch.where((z == pattern).all(-1), -INF, 0.0), probs))
    likeliest = torch.sigmoid(torch.tensor(3.0)) ** 40
    assert_close(posterior.log_evidence, torch.log1p(-likeliest), rtol=0, atol=1e-10)
    one = (probs - likeliest * pattern) / (1 - likeliest)
    assert_close(posterior.marginal("z").probs[:, 1], one, rtol=0, atol=1e-10)


def test_a_wide_or_under_mean_field():
    """It has powers and a logarithm as few numbers, unlike a noisy or."""
    probs = torch.full((40,), 0.1)
    posterior = run(plated(lambda z: torch.where((z == 1).any(-1), -0.2, -1.5), probs), pg.VMP)
    q = posterior.marginal("z").probs[:, 1]
    field = torch.logit(probs) + 1.3 * torch.stack(
        [(1 - q[torch.arange(40) != i]).prod() for i in range(40)]
    )
    assert_close(q, torch.sigmoid(field), rtol=0, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_constraints_under_other_alphas(alpha):
    probs = PROBS[:10]
    posterior = run(plated(exactly, probs), pg.FractionalBP, alpha=alpha)
    by_table = run(plated(in_real_numbers(exactly), probs), pg.FractionalBP, alpha=alpha)
    agrees(posterior, by_table.log_evidence, by_table.marginal("z").probs[:, 1], 1e-6)


def test_nodes_of_several_states():
    torch.manual_seed(0)
    cards = [2, 3, 4, 3, 2, 3, 2, 3]
    probs = [torch.rand(c).softmax(0) for c in cards]

    def log_f(x):
        return dist.Poisson(0.5 + sum(x)).log_prob(torch.tensor(4.0))

    def model():
        x = [pyro.sample(f"x{i}", dist.Categorical(probs[i])) for i in range(len(cards))]
        pyro.factor("f", log_f(x))

    grid = torch.cartesian_prod(*[torch.arange(c) for c in cards])
    log_p = log_f(grid.unbind(1)) + sum(probs[i].log()[grid[:, i]] for i in range(len(cards)))
    posterior = run(model)
    assert_close(posterior.log_evidence, log_p.logsumexp(0), rtol=0, atol=1e-10)
    for i, c in enumerate(cards):
        share = torch.zeros(c).index_add(0, grid[:, i], log_p.softmax(0))
        assert_close(posterior.marginal(f"x{i}").probs, share, rtol=0, atol=1e-10)
    with pytest.raises(OptionError, match="count"):
        posterior.factor_marginal("f")


def test_like_factors_of_different_weights():
    """On nodes of their own; the largest counts differ."""
    weights = 1 + torch.stack([torch.arange(11) % 2, torch.arange(11) % 3])
    probs, seen = torch.linspace(0.1, 0.6, 22).view(2, 11), torch.tensor([5.0, 12.0])

    def model():
        with pyro.plate("groups", 2, dim=-2), pyro.plate("nodes", 11, dim=-1):
            z = pyro.sample("z", dist.Bernoulli(probs))
        with pyro.plate("sums", 2):
            pyro.sample("f", dist.Poisson(1 + (weights * z).sum(-1)), obs=seen)

    posterior, z, log_z = run(model), states_of(11), 0.0
    for own, p, y, ones in zip(weights, probs, seen, posterior.marginal("z").probs[..., 1]):
        log_p = dist.Bernoulli(p).log_prob(z).sum(1)
        log_p = log_p + dist.Poisson(1 + (own * z).sum(1)).log_prob(y)
        assert_close(ones, log_p.softmax(0) @ z, rtol=0, atol=1e-10)
        log_z = log_z + log_p.logsumexp(0)
    assert_close(posterior.log_evidence, log_z, rtol=0, atol=1e-10)
    assert posterior.evidence_kind == "exact" and not has_table(posterior)


# ---------------------------------------------------------------------- ends of the range
def test_counts_far_from_what_was_expected_keep_their_digits():
    """Of nodes with odds e^-900 five must be 1: all terms are below the smallest number."""
    k, odds = 12, torch.linspace(-905, -895, 12)

    def model():
        with pyro.plate("nodes", k):
            z = pyro.sample("z", dist.Bernoulli(logits=odds))
        pyro.factor("f", torch.where(z.sum(-1) == 5, 0.0, -INF))

    z = states_of(k)
    log_p = (z * odds).sum(1).masked_fill(z.sum(1) != 5, -INF)
    agrees(run(model), log_p.logsumexp(0), log_p.softmax(0) @ z)


def test_single_precision():
    probs = PROBS.float()
    log_z, ones = truth(normal, PROBS)
    agrees(run(plated(normal, probs)), log_z.float(), ones.float(), 1e-5)


def test_a_threshold_is_where_single_precision_puts_it():
    """3 * 0.1 is 0.3 there, and not in double precision."""

    def log_f(z):
        return torch.where(z.float().sum(-1) * 0.1 == 0.3, 0.0, -1.0).to(z)

    assert int((log_f(states_of(4)) == 0).sum()) == 4
    log_z, ones = truth(log_f, PROBS)
    agrees(run(plated(log_f, PROBS.float())), log_z.float(), ones.float(), 1e-5)


def test_no_state_that_the_nodes_leave_has_the_count():
    def model():
        with pyro.plate("nodes", 12):
            z = pyro.sample("z", dist.Bernoulli(0.3))
            pyro.factor("pin", torch.where(z > 0.5, -INF, 0.0))
        pyro.factor("f", at_least(z))

    with pytest.raises(ZeroMass, match='factor "f"'):
        run(model)


@pytest.mark.parametrize("number", [14, -1])
def test_a_count_that_there_is_not(number):
    with pytest.raises(ZeroMass, match=r'"f".* whatever its nodes are'):
        run(plated(lambda z: torch.where(z.sum(-1) == number, 0.0, -INF), PROBS))


def test_what_has_no_density_at_some_count_is_refused():
    with pytest.raises(NonFiniteDensity, match='factor "f"'):
        run(plated(lambda z: (z.sum(-1) - 2).log(), PROBS))


def test_zeros_are_refused_by_mean_field():
    with pytest.raises(OptionError, match="zeros"):
        run(plated(exactly, PROBS), pg.VMP)


# ---------------------------------------------------------------------- on the same nodes
def test_readings_of_one_count_are_one_factor():
    seen = torch.tensor([0.4, 1.9, 1.1])

    def model():
        with pyro.plate("nodes", 13):
            z = pyro.sample("z", dist.Bernoulli(PROBS))
        with pyro.plate("readings", 3):
            pyro.sample("y", dist.Normal(z.sum(-1, keepdim=True) * 0.37, 0.5), obs=seen)
        pyro.factor("f", 0.1 - at_most_six(z))

    def at_most_six(z):
        return torch.where(13 - z.sum(-1) > 6, 0.0, 9.0)

    def log_f(z):
        y = dist.Normal(z.sum(-1, keepdim=True) * 0.37, 0.5).log_prob(seen).sum(-1)
        return y + 0.1 - at_most_six(z)

    posterior = run(model)
    agrees(posterior, *truth(log_f, PROBS))
    assert posterior.evidence_kind == "exact"


def test_different_counts_of_the_same_nodes_go_by_their_table():
    def model():
        with pyro.plate("nodes", 13):
            z = pyro.sample("z", dist.Bernoulli(PROBS))
        pyro.factor("f", normal(z))
        pyro.factor("g", weighted(z))

    posterior = run(model)
    agrees(posterior, *truth(lambda z: normal(z) + weighted(z), PROBS))
    assert posterior.evidence_kind == "exact" and has_table(posterior)


def test_a_wide_noisy_or_beside_a_count_is_multiplied_into_it():
    """Both are functions of the number of causes, here of 40."""
    probs = torch.full((40,), 0.1)

    def model():
        with pyro.plate("causes", 40):
            z = pyro.sample("z", dist.Bernoulli(probs))
        pyro.sample("y", dist.Bernoulli(1 - 0.9 * 0.5 ** z.sum(-1)), obs=torch.tensor(1.0))
        pyro.factor("f", poisson(z))

    count = torch.arange(41.0)
    like = torch.log1p(-0.9 * 0.5**count) + dist.Poisson(0.7 * count + 0.1).log_prob(
        torch.tensor(3.0)
    )
    posterior = run(model)
    log_z = (of_counts(probs).log() + like).logsumexp(0)
    assert_close(posterior.log_evidence, log_z, rtol=0, atol=1e-10)
    assert posterior.evidence_kind == "exact"


def test_a_check_of_parity_beside_a_count_is_multiplied_into_it():
    def parity(z):
        return torch.where(z.sum(-1) % 2 == 0, 0.7, -0.7)

    def model():
        with pyro.plate("nodes", 13):
            z = pyro.sample("z", dist.Bernoulli(PROBS))
        pyro.factor("f", parity(z))
        pyro.factor("g", one_by_one(z))

    posterior = run(model)
    agrees(posterior, *truth(lambda z: parity(z) + one_by_one(z), PROBS))
    assert posterior.evidence_kind == "exact"


# ---------------------------------------------------------------------- what is none
REAL = torch.linspace(0.1, 1, 40, dtype=torch.float64) ** 1.7
TENTHS = torch.tensor([0.1, 0.2, *[0.1] * 37, 0.3], dtype=torch.float64)


@pytest.mark.parametrize(
    "rule",
    [
        lambda z: -(((REAL * z).sum(-1) - 3) ** 2),  # no whole numbers
        lambda z: z[..., :20].prod(-1) - 0.1 * z.sum(-1) ** 2 + z[..., 1:].prod(-1),
        lambda z: -(z.sort(-1).values.sum(-1) ** 2),  # a step that is not looked through
        lambda z: torch.where((0.1 * z).sum(-1) >= 0.3, 0.0, -1.0),  # rounding tells states apart
        lambda z: ((TENTHS * z).sum(-1) - 0.3).pow(2).log(),  # or keeps some of them from zero
    ],
)
def test_what_is_not_known_to_be_a_count_is_not_taken_for_one(rule):
    with pytest.raises(UnsupportedFactor, match='factor "f"'):
        run(plated(rule, torch.full((40,), 0.1)))


def test_weights_that_are_learnt_are_not_taken_for_one_unit():
    weights = torch.ones(40, requires_grad=True)
    with pytest.raises(UnsupportedFactor, match='factor "f"'):
        run(plated(lambda z: -(((weights * z).sum(-1) - 3) ** 2), torch.full((40,), 0.1)))


# ---------------------------------------------------------------------- derivatives
@pytest.mark.parametrize(
    "engine, options", [(pg.BP, {}), (pg.VMP, {}), (pg.FractionalBP, {"alpha": 0.5})]
)
def test_derivatives_are_those_of_finite_differences(engine, options):
    """Of a cycle: two counts share eight nodes."""
    first = torch.linspace(-2.0, 0.5, 12).double()

    def value(shift, effect, spread):
        logits = first + shift * torch.arange(12)

        def model():
            with pyro.plate("nodes", 12):
                z = pyro.sample("z", dist.Bernoulli(logits=logits))
            for k in range(2):
                total = z[..., 2 * k : 2 * k + 10].sum(-1)
                y = dist.Normal(total * effect, spread)
                pyro.sample(f"f{k}", y, obs=torch.tensor(1.3 + k, dtype=torch.float64))

        posterior = run(model, engine, tol=1e-13, num_steps=5000, **options)
        assert posterior.evidence_kind != "exact"
        ones = posterior.marginal("z").probs[:, 1]
        return torch.cat([posterior.log_evidence.reshape(1), ones])

    point = tuple(torch.tensor(v).double().requires_grad_() for v in (0.1, 0.37, 0.8))
    assert gradcheck(value, point, eps=1e-6, atol=1e-5)


def test_derivatives_of_a_constraint():
    def value(shift):
        posterior = run(plated(exactly, PROBS**shift))
        ones = posterior.marginal("z").probs[:, 1]
        return torch.cat([posterior.log_evidence.reshape(1), ones])

    assert gradcheck(value, (torch.tensor(1.0).double().requires_grad_(),), eps=1e-6, atol=1e-6)


def test_factors_some_at_a_time_are_those_of_all():
    torch.manual_seed(0)
    weights = [torch.randint(3, (4, 2)) for _ in range(3)]
    rows = [torch.arange(4) + i for i in range(3)]
    block = CountFactors(torch.randn(4, 7), weights, torch.ones(4), rows, [0, 0, 0])
    beliefs, messages = [torch.randn(6, 2)], [torch.randn(12, 2)]
    which = torch.tensor([1, 3])
    mine = (3 * which.unsqueeze(1) + torch.arange(3)).flatten()
    found = block.part(which).update([messages[0][mine]], beliefs)[0][0]
    assert_close(found, block.update(messages, beliefs)[0][0][mine])


def test_messages_are_sums_over_all_states_of_the_others():
    torch.manual_seed(0)
    weights, log_g = [torch.randint(3, (1, 3)) for _ in range(4)], torch.randn(1, 9)
    rows = [torch.tensor([i]) for i in range(4)]
    block = CountFactors(log_g, weights, torch.ones(1), rows, [0] * 4)
    beliefs, messages = torch.randn(4, 3), torch.zeros(4, 3)
    found = block.update([messages], [beliefs])[0][0].softmax(1)
    total = torch.zeros(4, 3)
    for state in itertools.product(range(3), repeat=4):
        count = sum(int(weights[i][0, x]) for i, x in enumerate(state))
        said = sum(float(beliefs[i, x]) for i, x in enumerate(state))
        for i, x in enumerate(state):
            total[i, x] += math.exp(said - float(beliefs[i, x]) + float(log_g[0, count]))
    assert_close(found, total / total.sum(1, keepdim=True), check_dtype=False)
