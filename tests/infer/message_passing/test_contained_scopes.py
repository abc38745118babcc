"""Gaussian factors on some of another's nodes are part of it; truth: dense Gaussian algebra."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.infer.message_passing.network.contained import contained

MOVE = torch.tensor([[1.0, 1.0], [0.0, 0.9]], dtype=torch.float64)
Y = torch.tensor([0.3, -0.4, 1.2, 2.5, 2.2, 3.9, 5.1], dtype=torch.float64)
T = len(Y)
NOISE = 0.25 * torch.eye(T, dtype=torch.float64)


def trend(y, sd=0.5):
    """A level and its slope, the sums of their innovations: row t reads the first t of these."""
    zero = torch.zeros(2, dtype=torch.float64)
    state = start = pyro.sample("start", dist.Normal(zero, 1.0).to_event(1))
    with pyro.plate("steps", T - 1):
        step = pyro.sample("step", dist.Normal(zero, 0.4).to_event(1))
    levels = [start[0]]
    for t in range(T - 1):
        state = MOVE @ state + step[t]
        levels.append(state[0])
    with pyro.plate("rows", T):
        pyro.sample("y", dist.Normal(torch.stack(levels), sd), obs=y)


def dense(y, noise=NOISE):
    """log Z, mean ``[2 T]`` and covariance of start and steps."""
    read = torch.zeros(T, 2 * T, dtype=torch.float64)
    for t in range(T):
        for s in range(t + 1):
            read[t, 2 * s : 2 * s + 2] = torch.linalg.matrix_power(MOVE, t - s)[0]
    prior = torch.tensor([1.0] * 2 + [0.16] * (2 * T - 2), dtype=torch.float64).diag()
    seen = read @ prior @ read.T + noise
    gain = prior @ read.T @ seen.inverse()
    log_z = torch.distributions.MultivariateNormal(torch.zeros_like(y), seen).log_prob(y)
    return log_z, gain @ y, prior - gain @ read @ prior


@pytest.mark.parametrize("infer", [pg.BP, pg.EP])
def test_sums_of_more_and_more_innovations_are_exact(infer):
    log_z, mean, covariance = dense(Y)
    posterior = pg.fit(trend, (Y,), infer=infer, progress=False)
    assert posterior.evidence_kind == "exact"
    assert float(posterior.log_evidence) == pytest.approx(float(log_z), abs=1e-9)
    start, steps = posterior.marginal("start"), posterior.marginal("step")
    found = torch.cat([start.mean.view(2), steps.mean.reshape(-1)])
    assert torch.allclose(found, mean, atol=1e-9)
    spread = torch.cat([start.variance.view(2), steps.variance.reshape(-1)])
    assert torch.allclose(spread, covariance.diagonal(), atol=1e-9)


def test_beliefs_over_contained_scopes_are_those_of_the_larger():
    def pairs():
        zero = torch.zeros(3, dtype=torch.float64)
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Normal(zero, 1.0))
        z = pyro.sample("z", dist.Normal(zero[:2], 1.0).to_event(1))
        pyro.sample("all", dist.Normal(x.sum() + z[0] - 2 * z[1], 0.5), obs=Y[0])
        pyro.sample("last", dist.Normal(x[2] - x[1], 0.5), obs=Y[1])
        pyro.sample("mixed", dist.Normal(x[1] + z[1], 0.5), obs=Y[2])

    posterior = pg.fit(pairs, infer=pg.BP, progress=False)
    # numbers: x_0, x_1, x_2, z_0, z_1
    read = torch.tensor(
        [[1.0, 1.0, 1.0, 1.0, -2.0], [0.0, -1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 1.0]],
        dtype=torch.float64,
    )
    covariance = (torch.eye(5, dtype=torch.float64) + 4 * read.T @ read).inverse()
    mean = covariance @ (4 * read.T @ Y[:3])
    assert posterior.evidence_kind == "exact"
    for statement, numbers in (("last", [1, 2]), ("mixed", [1, 3, 4]), ("all", [0, 1, 2, 3, 4])):
        own_mean, own = posterior.factor_marginal(statement)
        ((*scope,),) = posterior.graph.scopes(statement)
        order = {("x", 0): [0], ("x", 1): [1], ("x", 2): [2]}
        at = [n for name, index in scope for n in order.get((name, *index), [3, 4])]
        assert sorted(at) == numbers
        assert torch.allclose(own_mean[0], mean[at], atol=1e-10)
        assert torch.allclose(own[0], covariance[at][:, at], atol=1e-10)


def test_the_evidence_differentiates_through_contained_factors():
    sd = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    posterior = pg.fit(trend, (Y, sd), infer=pg.BP, progress=False)
    (slope,) = torch.autograd.grad(posterior.log_evidence, sd)
    variance = torch.tensor(0.25, dtype=torch.float64, requires_grad=True)
    log_z, _, _ = dense(Y, variance * torch.eye(T, dtype=torch.float64))
    (truth,) = torch.autograd.grad(log_z, variance)
    assert float(slope) == pytest.approx(float(truth), rel=1e-6)  # d variance = 2 sd d sd = d sd


def test_scopes_belong_to_the_one_largest_that_has_all_of_their_nodes():
    pairs = torch.tensor([[0, 1], [1, 2], [3, 4], [0, 5], [6, 7]])
    triples = torch.tensor([[0, 1, 2], [1, 2, 3], [0, 5, 6]])
    quadruples = torch.tensor([[0, 1, 2, 8], [3, 4, 6, 7]])
    inner, outer = contained([quadruples, pairs, triples])
    every = [set(s) for group in (quadruples, pairs, triples) for s in group.tolist()]
    largest = [not any(a < b for b in every) for a in every]
    truth = {}
    for i, own in enumerate(every):
        holders = [j for j, other in enumerate(every) if largest[j] and own < other]
        if len(holders) == 1:
            truth[i] = holders[0]
    assert dict(zip(inner.tolist(), outer.tolist(), strict=True)) == truth
    assert len(truth) == 5  # (1, 2) lies in two, and stays


def test_alike_nodes_stay_alike_where_two_scopes_hold_a_third():
    def program():
        zero = torch.zeros(4, dtype=torch.float64)
        with pyro.plate("nodes", 4):
            x = pyro.sample("x", dist.Normal(zero, 1.0))
        pyro.sample("pair", dist.Normal(x[0] + x[1], 1.0), obs=Y[0])
        pyro.sample("left", dist.Normal(x[0] + x[1] + x[2], 1.0), obs=Y[2])
        pyro.sample("right", dist.Normal(x[0] + x[1] + x[3], 1.0), obs=Y[2])

    posterior = pg.fit(program, infer=pg.BP, progress=False)
    assert posterior.evidence_kind == "estimate"
    found = posterior.marginal("x")
    assert torch.allclose(found.variance[2], found.variance[3], atol=1e-7)
    read = torch.tensor([[1.0, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]], dtype=torch.float64)
    precision = torch.eye(4, dtype=torch.float64) + read.T @ read
    mean = torch.linalg.solve(precision, read.T @ Y[[0, 2, 2]])
    assert torch.allclose(found.mean, mean, atol=1e-6)
