"""Factors on the same nodes count as one: trees with such factors are exact.

Truth: enumeration of all states, and dense Gaussian algebra.
"""

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import ShapeMismatch, ZeroMass

START = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
MOVES = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]], dtype=torch.float64)
MEANS = torch.tensor([[0.3, -1.2, 2.0], [1.5, 0.0, -0.4], [-2.0, 0.9, 0.1]], dtype=torch.float64)
SEEN = torch.tensor([0.3, -1.0, 0.8, 2.0], dtype=torch.float64)
T = len(SEEN)


def switching(seen):
    """A chain whose observations depend on both ends of a step."""
    x = pyro.sample("x0", dist.Categorical(START))
    for t in range(T):
        after = pyro.sample(f"x{t + 1}", dist.Categorical(MOVES[x]))
        pyro.sample(f"y{t}", dist.Normal(MEANS[x, after], 0.5), obs=seen[t])
        x = after


def enumerated(log_p, cards):
    """log Z, all states ``[S, n]`` and their probabilities ``[S]``."""
    states = torch.tensor(list(itertools.product(*map(range, cards))))
    value = log_p(states)
    return value.logsumexp(0), states, value.softmax(0)


def log_switching(x):
    out = START.log()[x[:, 0]]
    for t in range(T):
        a, b = x[:, t], x[:, t + 1]
        out = out + MOVES[a, b].log() - 0.5 * ((SEEN[t] - MEANS[a, b]) / 0.5) ** 2
    return out - T * (math.log(0.5) + 0.5 * math.log(2 * math.pi))


def pair_table(states, probs, i, j, cards):
    out = torch.zeros(cards, dtype=torch.float64)
    return out.index_put((states[:, i], states[:, j]), probs, accumulate=True)


@pytest.mark.parametrize("infer", [pg.BP, pg.EP])
@pytest.mark.parametrize("schedule", ["parallel", "sequential", "residual"])
def test_a_chain_observed_through_its_steps_is_exact(infer, schedule):
    log_z, states, probs = enumerated(log_switching, (3,) * (T + 1))
    posterior = pg.fit(switching, (SEEN,), infer=infer, schedule=schedule, progress=False)
    assert posterior.evidence_kind == "exact"
    assert float(posterior.log_evidence) == pytest.approx(float(log_z), abs=1e-10)
    for t in range(T + 1):
        truth = torch.zeros(3, dtype=torch.float64).index_add(0, states[:, t], probs)
        assert torch.allclose(posterior.marginal(f"x{t}").probs, truth, atol=1e-10)
    for t in range(T):
        truth = pair_table(states, probs, t, t + 1, (3, 3))
        for statement in (f"x{t + 1}", f"y{t}"):
            assert torch.allclose(posterior.factor_marginal(statement)[0], truth, atol=1e-10)


def test_its_draws_are_joint():
    _, states, probs = enumerated(log_switching, (3,) * (T + 1))
    posterior = pg.fit(switching, (SEEN,), infer=pg.BP, progress=False)
    pyro.set_rng_seed(0)
    draws = posterior.sample(20000)
    found = torch.zeros(9).index_add(0, 3 * draws["x0"] + draws["x2"], torch.full((20000,), 5e-5))
    truth = pair_table(states, probs, 0, 2, (3, 3)).flatten().float()
    error = (truth * (1 - truth) / 20000).sqrt()
    assert bool(((found - truth).abs() <= 4.5 * error + 1e-6).all())
    # far from a product of marginals
    apart = (truth.view(3, 3).sum(1, keepdim=True) * truth.view(3, 3).sum(0)).flatten()
    assert bool(((apart - truth).abs() > 9 * error).any())


def test_repeated_edges_of_one_statement_are_one():
    edges = torch.tensor([[0, 1], [1, 2], [1, 0], [2, 3], [1, 2], [0, 1]])
    weight = torch.tensor([0.4, -0.9, 1.1, 0.3, 0.8, -0.2], dtype=torch.float64)
    lean = torch.tensor([0.2, -0.5, 0.1, 0.7], dtype=torch.float64)

    def program():
        with pyro.plate("nodes", 4):
            x = pyro.sample("x", dist.Bernoulli(logits=lean))
        a, b = x[edges[:, 0]], x[edges[:, 1]]
        with pyro.plate("edges", len(edges)):
            pyro.factor("pair", weight * a * (1 + b) - 0.3 * b)

    def log_p(s):
        x = s.double()
        a, b = x[:, edges[:, 0]], x[:, edges[:, 1]]
        prior = x * lean - torch.nn.functional.softplus(lean)
        return prior.sum(1) + (weight * a * (1 + b) - 0.3 * b).sum(1)

    log_z, states, probs = enumerated(log_p, (2,) * 4)
    posterior = pg.fit(program, infer=pg.BP, progress=False)
    assert posterior.evidence_kind == "exact"
    assert float(posterior.log_evidence) == pytest.approx(float(log_z), abs=1e-10)
    assert torch.allclose(posterior.marginal("x").probs[:, 1], probs @ states.double(), atol=1e-10)
    found = posterior.factor_marginal("pair")
    for e, (i, j) in enumerate(edges.sort(1).values.tolist()):
        assert torch.allclose(found[e], pair_table(states, probs, i, j, (2, 2)), atol=1e-10)


def test_factors_that_share_no_scope_keep_their_blocks():
    """Only some edges of a ring are doubled; a reference sums over the ring."""
    n, twice = 5, torch.tensor([1, 3])
    first = torch.randn(n, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    second = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def field(is_one):
        with pyro.plate("nodes", n):
            x = pyro.sample("x", dist.Categorical(torch.ones(3, dtype=torch.float64)))
        after, e = x.roll(-1), torch.arange(n)
        table = first.index_add(0, twice, second) if is_one else first
        with pyro.plate("ring", n):
            pyro.factor("pair", table[e, x, after])
        if not is_one:
            with pyro.plate("again", 2):
                pyro.factor("more", second[torch.arange(2), x[twice], after[twice]])

    run = {"infer": pg.BP, "progress": False, "tol": 1e-12}
    apart, one = (pg.fit(field, (is_one,), **run) for is_one in (False, True))
    assert apart.evidence_kind == one.evidence_kind == "estimate"
    assert torch.allclose(apart.log_evidence, one.log_evidence, atol=1e-10)
    assert torch.allclose(apart.marginal("x").probs, one.marginal("x").probs, atol=1e-10)


def test_factors_that_exclude_each_other_are_told():
    def program():
        x = pyro.sample("x", dist.Bernoulli(torch.tensor(0.5)))
        y = pyro.sample("y", dist.Bernoulli(torch.tensor(0.5)))
        pyro.factor("equal", torch.where(x == y, 0.0, -torch.inf))
        pyro.factor("unequal", torch.where(x != y, 0.0, -torch.inf))

    with pytest.raises(ZeroMass, match="equal"):
        pg.fit(program, infer=pg.BP, progress=False)


def test_the_evidence_differentiates_through_products():
    def evidence(scale):
        def program(seen):
            x = pyro.sample("x", dist.Categorical(START))
            for t in range(T):
                after = pyro.sample(f"x{t + 1}", dist.Categorical(MOVES[x]))
                pyro.sample(f"y{t}", dist.Normal(MEANS[x, after], scale), obs=seen[t])
                x = after

        return pg.fit(program, (SEEN,), infer=pg.BP, progress=False).log_evidence

    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(evidence(scale), scale)
    with torch.no_grad():
        step = 1e-5
        ahead, behind = evidence(scale + step), evidence(scale - step)
    assert float(slope) == pytest.approx(float((ahead - behind) / (2 * step)), rel=1e-6)


def test_states_that_kept_such_factors_apart_are_refused():
    """Their blocks are others: taken for these, they would stand for another posterior."""
    engine = pg.BP(switching, progress=False)
    engine.run(SEEN)
    state = engine.state_dict()
    state["messages"]["9.0"] = state["messages"]["0.0"].clone()
    with pytest.raises(ShapeMismatch, match=r"9\.0"):
        pg.BP(switching, progress=False).setup(SEEN).load_state_dict(state)


def test_thousands_of_factors_on_one_pair_keep_their_digits_in_single_precision():
    count = 20000
    weight = torch.rand(count, 2, 2, generator=torch.Generator().manual_seed(0)).float() - 0.5
    table = weight.double().sum(0)

    def program():
        with pyro.plate("nodes", 2):
            x = pyro.sample("x", dist.Bernoulli(torch.full((2,), 0.5, dtype=torch.float32)))
        x = x.long()
        with pyro.plate("many", count):
            pyro.factor("pair", weight[torch.arange(count), x[0], x[1]])

    posterior = pg.fit(program, infer=pg.BP, progress=False)
    log_z = table.logsumexp((0, 1)) - math.log(4)
    assert posterior.log_evidence.dtype == torch.float32
    # what is left of the sum of their largest values, in its last digit
    peaks = float(weight.double().amax((1, 2)).sum())
    assert abs(float(posterior.log_evidence) - float(log_z)) < 2e-7 * peaks
    truth = table.flatten().softmax(0).view(2, 2)
    assert torch.allclose(posterior.factor_marginal("pair")[0].double(), truth, atol=1e-5)


# ---------------------------------------------------------------------- Gaussian
STEPS = torch.tensor([0.4, -1.0, 2.2], dtype=torch.float64)
LOADS = torch.tensor([[1.0, -2.0], [0.5, 0.3], [2.0, 1.0]], dtype=torch.float64)


def walk():
    """Numbers of two axes; every observation reads one combination of both ends of a step."""
    zero = torch.zeros(2, dtype=torch.float64)
    x = pyro.sample("x0", dist.Normal(zero, 1.0).to_event(1))
    for t in range(3):
        after = pyro.sample(f"x{t + 1}", dist.Normal(0.8 * x, 0.5).to_event(1))
        mean = (LOADS[t] * x).sum(-1) - (after * LOADS[t].flip(0)).sum(-1)
        pyro.sample(f"y{t}", dist.Normal(mean, 0.7), obs=STEPS[t])
        x = after


@pytest.mark.parametrize("infer", [pg.BP, pg.EP])
def test_a_gaussian_chain_observed_through_its_steps_is_exact(infer):
    log_z, mean, covariance = dense_walk()
    posterior = pg.fit(walk, infer=infer, progress=False)
    assert posterior.evidence_kind == "exact"
    assert float(posterior.log_evidence) == pytest.approx(float(log_z), abs=1e-9)
    for t in range(4):
        at = slice(2 * t, 2 * t + 2)
        found = posterior.marginal(f"x{t}")
        assert torch.allclose(found.mean, mean[at], atol=1e-9)
        assert torch.allclose(found.variance, covariance.diagonal()[at], atol=1e-9)
    for t in range(3):
        at = slice(2 * t, 2 * t + 4)
        for statement in (f"x{t + 1}", f"y{t}"):
            own_mean, own = posterior.factor_marginal(statement)
            assert torch.allclose(own_mean[0], mean[at], atol=1e-9)
            assert torch.allclose(own[0], covariance[at, at], atol=1e-9)


def dense_walk():
    """log Z, mean ``[8]`` and covariance ``[8, 8]``."""
    eye = torch.eye(2, dtype=torch.float64)
    move = torch.zeros(8, 8, dtype=torch.float64)
    noise = torch.block_diag(eye, *[0.25 * eye] * 3)
    for t in range(3):
        move[2 * t + 2 : 2 * t + 4, 2 * t : 2 * t + 2] = 0.8 * eye
    back = (torch.eye(8, dtype=torch.float64) - move).inverse()
    prior = back @ noise @ back.T
    read = torch.zeros(3, 8, dtype=torch.float64)
    for t in range(3):
        read[t, 2 * t : 2 * t + 2] = LOADS[t]
        read[t, 2 * t + 2 : 2 * t + 4] = -LOADS[t].flip(0)
    seen = read @ prior @ read.T + 0.49 * torch.eye(3, dtype=torch.float64)
    gain = prior @ read.T @ seen.inverse()
    log_z = torch.distributions.MultivariateNormal(torch.zeros_like(STEPS), seen).log_prob(STEPS)
    return log_z, gain @ STEPS, prior - gain @ read @ prior


def test_many_observations_of_one_pair_keep_their_digits_in_single_precision():
    """A regression with its level apart: all rows are functions of the same two nodes."""
    count, d = 5000, 3
    g = torch.Generator().manual_seed(0)
    rows = torch.randn(count, d, generator=g).float()
    y = (
        rows @ rows.new_tensor([1.0, -2.0, 0.5]) + 3.0 + 0.5 * torch.randn(count, generator=g)
    ).float()

    def regression():
        w = pyro.sample("w", dist.Normal(rows.new_zeros(d), 2.0).to_event(1))
        b = pyro.sample("b", dist.Normal(rows.new_zeros(()), 5.0))
        with pyro.plate("rows", count):
            pyro.sample("y", dist.Normal(rows @ w + b, 0.5), obs=y)

    posterior = pg.fit(regression, infer=pg.BP, progress=False)
    design = torch.cat([rows, rows.new_ones(count, 1)], 1).double()
    prior = torch.tensor([0.25] * d + [0.04], dtype=torch.float64)
    precision = 4 * design.T @ design + prior.diag()
    mean = torch.linalg.solve(precision, 4 * design.T @ y.double())
    spread = precision.inverse().diagonal().sqrt()
    found = torch.cat([posterior.marginal("w").mean, posterior.marginal("b").mean.view(1)])
    assert found.dtype == torch.float32
    assert float(((found - mean).abs() / spread).max()) < 0.02
    gap = y.double() - design @ mean
    log_z = 0.5 * prior.log().sum() - 0.5 * precision.logdet() - 0.5 * prior @ mean.square()
    log_z = log_z - 2 * gap.square().sum() - count * (math.log(0.5) + 0.5 * math.log(2 * math.pi))
    assert float(posterior.log_evidence) == pytest.approx(float(log_z), rel=1e-6)
    assert posterior.evidence_kind == "exact"
