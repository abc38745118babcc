"""Factors that read other continuous nodes in other states of discrete ones: each state's integral
is over what it reads, for beliefs of every family."""

import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, optimize, special, stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from tests.infer.message_passing_continuous.runs import fit


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def dims(model, args, infer=pg.EP, **options):
    engine = infer(model, progress=False, **options).setup(*args)
    return [b.local.dim for b in engine.network.blocks if isinstance(b, QuadratureFactors)]


GROUPS = np.array([0.6, 0.4])
HEADS, TAILS = np.array([2.0, 1.0, 3.0]), np.array([1.0, 2.5, 1.5])


def blocks(edges):
    """A graph of two kinds of nodes, its edges with probabilities by pairs of kinds."""
    i, j = np.triu_indices(nodes_of(edges), 1)
    with pyro.plate("kinds", 3):
        p = pyro.sample("p", dist.Beta(torch.tensor(HEADS), torch.tensor(TAILS)))
    with pyro.plate("nodes", nodes_of(edges)):
        z = pyro.sample("z", dist.Categorical(torch.tensor(GROUPS)))
    with pyro.plate("edges", len(edges)):
        pyro.sample("edge", dist.Bernoulli(p[z[i] + z[j]]), obs=edges)


def nodes_of(edges):
    return round((1 + (1 + 8 * len(edges)) ** 0.5) / 2)


def projected(one, two):
    """(a, b) of beta distributions whose E log p and E log(1 - p) these are."""

    def gap(log_ab):
        a, b = np.exp(log_ab)
        both = special.digamma([a, b]) - special.digamma(a + b)
        return both - [one, two]

    found = optimize.root(gap, np.zeros(2), tol=1e-13)
    assert abs(found.fun).max() < 1e-9
    return np.exp(found.x)


def statistics(ab):
    return special.digamma(ab) - special.digamma(ab.sum(-1, keepdims=True))


def plain_messages(edges, alpha, sweeps=400, step=0.5):
    """Power expectation propagation of :func:`blocks`, in closed form: f^alpha times a beta
    distribution is one. Beliefs of the probabilities ``[3, 2]`` and of the nodes ``[n, 2]``."""
    n, prior = nodes_of(edges), np.stack([HEADS, TAILS], 1)
    i, j = np.triu_indices(n, 1)
    to_p, to_z = np.zeros((len(edges), 3, 2)), np.zeros((len(edges), 2, 2))

    def beliefs():
        q, logits = prior + to_p.sum(0), np.tile(np.log(GROUPS), (n, 1))
        np.add.at(logits, i, to_z[:, 0])
        np.add.at(logits, j, to_z[:, 1])
        return q, logits

    for _ in range(sweeps):
        q, logits = beliefs()
        old = to_p.copy(), to_z.copy()
        for e, y in enumerate(edges):
            cavity = q - alpha * old[0][e]
            around = logits[[i[e], j[e]]] - alpha * old[1][e]
            lift = alpha * np.array([y, 1 - y])
            mass = special.betaln(*(cavity + lift).T) - special.betaln(*cavity.T)
            table = np.array([[mass[0], mass[1]], [mass[1], mass[2]]])
            joint = table + around[0][:, None] + around[1]
            share = np.exp(joint - special.logsumexp(joint))
            reads = np.array([share[0, 0], share[0, 1] + share[1, 0], share[1, 1]])[:, None]
            expected = reads * statistics(cavity + lift) + (1 - reads) * statistics(cavity)
            new_p = old[0][e] + (np.array([projected(*t) for t in expected]) - q) / alpha
            new_z = np.stack(
                [
                    special.logsumexp(table + around[1], axis=1),
                    special.logsumexp(table + around[0][:, None], axis=0),
                ]
            )
            new_z = (new_z - new_z[:, :1]) / alpha
            to_p[e] += step * (new_p - old[0][e])
            to_z[e] += step * (new_z - old[1][e])
        if max(abs(a - b).max() for a, b in zip(old, (to_p, to_z), strict=True)) < 1e-8:
            q, logits = beliefs()
            return q, special.softmax(logits, axis=1)
    raise AssertionError("no fixed point")


EDGES = np.array([1.0, 1.0, 0.0, 0.0, 1.0, 0.0])  # of four nodes


@pytest.mark.parametrize("edges", [EDGES[:1], EDGES[[0, 2, 3]], EDGES], ids=len)
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_power_ep_of_blocks_matches_closed_forms(edges, alpha):
    q, z = plain_messages(edges, alpha)
    args, family = (torch.tensor(edges),), {"p": "beta"}
    assert dims(blocks, args, family=family) == []  # in closed form
    found = fit(blocks, args, pg.PowerEP, alpha=alpha, family=family, tol=1e-9, num_steps=2000)
    p = found.marginal("p")
    ours = torch.stack([p.concentration1, p.concentration0], 1)
    assert_close(ours, torch.tensor(q), rtol=1e-5, atol=0)
    assert_close(found.marginal("z").probs, torch.tensor(z), rtol=0, atol=1e-6)


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_one_edge_is_exact(y):
    evidence, share, one = [], [], []
    for a, b in itertools.product(range(2), repeat=2):
        k = a + b
        up = np.array([HEADS, TAILS]).T + np.array([y, 1 - y]) * (np.arange(3) == k)[:, None]
        log_f = special.betaln(*up[k]) - special.betaln(HEADS[k], TAILS[k])
        evidence.append(np.log(GROUPS[a] * GROUPS[b]) + log_f)
        one.append(statistics(up))
    share = np.exp(evidence - special.logsumexp(evidence))
    q = fit(blocks, (torch.tensor([y]),), family={"p": "beta"})
    assert abs(float(q.log_evidence) - special.logsumexp(evidence)) < 1e-10
    assert_close(float(q.marginal("z").probs[0, 1]), share[2:].sum(), rtol=0, atol=1e-10)
    p = q.marginal("p")
    ours = statistics(torch.stack([p.concentration1, p.concentration0], 1).numpy())
    np.testing.assert_allclose(ours, np.tensordot(share, one, 1), atol=1e-10)


def test_vmp_of_blocks_solves_its_coordinate_equations():
    family = {"p": "beta"}
    args = (torch.tensor(EDGES),)
    assert dims(blocks, args, pg.VMP, family=family) == []
    q = fit(blocks, args, pg.VMP, family=family, tol=1e-10, num_steps=5000)
    p, z = q.marginal("p"), q.marginal("z").probs.numpy()
    ours = torch.stack([p.concentration1, p.concentration0], 1).numpy()
    i, j = np.triu_indices(4, 1)
    expected, logits = np.stack([HEADS, TAILS], 1), np.tile(np.log(GROUPS), (4, 1))
    for e, y in enumerate(EDGES):
        score = statistics(ours) @ [y, 1 - y]
        for a, b in itertools.product(range(2), repeat=2):
            expected[a + b] += z[i[e], a] * z[j[e], b] * np.array([y, 1 - y])
            logits[i[e], a] += z[j[e], b] * score[a + b]
            logits[j[e], b] += z[i[e], a] * score[a + b]
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    np.testing.assert_allclose(z, special.softmax(logits, axis=1), atol=1e-6)


def images(y, image):
    """One number of three, seen through an image of all of them."""
    with pyro.plate("components", 3):
        x = pyro.sample("x", dist.Normal(torch.tensor([-1.0, 0.5, 2.0]), 0.8))
    z = pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.5, 0.3])))
    pyro.sample("y", dist.Normal(image(x)[z], 0.1), obs=y)


@pytest.mark.parametrize("image", [torch.sigmoid, torch.nn.functional.softplus])
def test_numbers_chosen_after_they_are_bent_take_one_dimension(image):
    y, prior = 0.6, np.array([-1.0, 0.5, 2.0])
    args = torch.tensor(y), image
    assert dims(images, args) == [1]
    x = np.linspace(-9, 9, 20001)
    bent = image(torch.tensor(x)).numpy()
    f = stats.norm.pdf(y, bent, 0.1) * stats.norm.pdf(x, prior[:, None], 0.8)
    mass, first, second = (integrate.trapezoid(f * x**k, x) for k in range(3))
    share = np.array([0.2, 0.5, 0.3]) * mass
    evidence, share = share.sum(), share / share.sum()
    mean = share * first / mass + (1 - share) * prior
    square = share * second / mass + (1 - share) * (prior**2 + 0.64)
    q = fit(images, args)
    assert abs(float(q.log_evidence) - np.log(evidence)) < 1e-6
    assert_close(q.marginal("z").probs, torch.tensor(share), rtol=0, atol=1e-6)
    assert_close(q.marginal("x").mean, torch.tensor(mean), rtol=0, atol=1e-5)
    assert_close(q.marginal("x").variance, torch.tensor(square - mean**2), rtol=0, atol=1e-5)


MEANS, SHAPES = np.array([-2.0, 0.0, 2.5]), np.array([2.0, 3.0, 4.0])


def normals(y):
    """A mixture with a mean and a precision of each component."""
    with pyro.plate("components", 3):
        mean = pyro.sample("mean", dist.Normal(torch.tensor(MEANS), 1.0))
        precision = pyro.sample("precision", dist.Gamma(torch.tensor(SHAPES), 1.5))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.4, 0.3])))
        pyro.sample("y", dist.Normal(mean[z], precision[z].rsqrt()), obs=y)


def test_one_value_of_a_mixture_of_normals_is_exact():
    y, weight = 0.7, np.array([0.3, 0.4, 0.3])
    args, family = (torch.tensor([y]),), {"precision": "gamma"}
    assert dims(normals, args, family=family) == [2]
    m, t = np.linspace(-8, 9, 1001)[:, None], np.linspace(-8, 4, 1001)
    rows = []
    for k in range(3):
        prior = stats.norm.logpdf(m, MEANS[k], 1) + t
        prior = prior + stats.gamma.logpdf(np.exp(t), SHAPES[k], scale=1 / 1.5)
        f = np.exp(prior + stats.norm.logpdf(y, m, np.exp(-t / 2)))
        sums = [f, f * m, f * m**2, f * t, f * np.exp(t)]
        rows.append([s.sum() * (m[1, 0] - m[0, 0]) * (t[1] - t[0]) for s in sums])
    mass, *moments = np.array(rows).T
    share = weight * mass / (weight @ mass)
    rest = MEANS, MEANS**2 + 1, special.digamma(SHAPES) - np.log(1.5), SHAPES / 1.5
    mean, square, log_tau, tau = (
        share * a / mass + (1 - share) * b for a, b in zip(moments, rest, strict=True)
    )
    q = fit(normals, args, family=family, num_points=48)
    assert abs(float(q.log_evidence) - np.log(weight @ mass)) < 1e-5
    assert_close(q.marginal("z").probs[0], torch.tensor(share), rtol=0, atol=1e-5)
    assert_close(q.marginal("mean").mean, torch.tensor(mean), rtol=0, atol=1e-5)
    assert_close(q.marginal("mean").variance, torch.tensor(square - mean**2), rtol=0, atol=1e-4)
    gamma = q.marginal("precision")
    a, b = gamma.concentration.numpy(), gamma.rate.numpy()
    np.testing.assert_allclose(a / b, tau, rtol=1e-4)
    np.testing.assert_allclose(special.digamma(a) - np.log(b), log_tau, atol=1e-4)


def test_vmp_of_a_mixture_of_normals_solves_its_coordinate_equations():
    y = np.array([-2.2, -1.5, 0.1, 0.4, 2.2, 3.0])
    family = {"precision": "gamma"}
    q = fit(normals, (torch.tensor(y),), pg.VMP, family=family, tol=1e-9, num_steps=5000)
    gamma = q.marginal("precision")
    a, b = gamma.concentration.numpy(), gamma.rate.numpy()
    mean, variance = q.marginal("mean").mean.numpy(), q.marginal("mean").variance.numpy()
    r, tau = q.marginal("z").probs.numpy(), a / b
    square = (y[:, None] - mean) ** 2 + variance
    logits = np.log([0.3, 0.4, 0.3]) + 0.5 * (special.digamma(a) - np.log(b)) - 0.5 * tau * square
    np.testing.assert_allclose(r, special.softmax(logits, axis=1), atol=1e-5)
    np.testing.assert_allclose(a, SHAPES + 0.5 * r.sum(0), rtol=1e-4)
    np.testing.assert_allclose(b, 1.5 + 0.5 * (r * square).sum(0), rtol=1e-4)
    np.testing.assert_allclose(1 / variance, 1 + tau * r.sum(0), rtol=1e-4)
    np.testing.assert_allclose(mean / variance, MEANS + tau * (r.T @ y), rtol=0, atol=1e-3)
