"""Discrete and continuous nodes together, against enumeration."""

import itertools
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from torch.testing import assert_close

import pyrograph as pg

from .reference import LinearGaussian


def fit(model, args=(), infer=pg.EP, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pg.errors.ConvergenceWarning)
        return pg.fit(model, args, infer=infer, progress=False, **options)


def enumerated(parts):
    """Log evidence, weights, mean and variance of a mixture of (log weight, LinearGaussian)."""
    logs = np.array([w + g.log_evidence for w, g in parts])
    share = np.exp(logs - logsumexp(logs))
    means = np.array([g.mean for _, g in parts])
    mean = share @ means
    spread = np.array([g.covariance.diagonal() for _, g in parts]) + (means - mean) ** 2
    return logsumexp(logs), share, mean, share @ spread


def switching(y):
    z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.5, 0.2])))
    loc = torch.tensor([-2.0, 0.0, 3.0])[z]
    x = pyro.sample("x", dist.Normal(loc, torch.tensor([0.5, 1.0, 2.0])[z]))
    pyro.sample("y", dist.Normal(2 * x + 1, 0.7), obs=y)


def test_one_switch_is_exact():
    parts = []
    for p, m, s in zip([0.3, 0.5, 0.2], [-2, 0, 3], [0.5, 1.0, 2.0], strict=True):
        parts.append((np.log(p), LinearGaussian(1).add(1.0, m, s**2).add(2.0, 0.9, 0.49)))
    evidence, share, mean, variance = enumerated(parts)
    q = fit(switching, (torch.tensor(1.9),))
    assert abs(float(q.log_evidence) - evidence) < 1e-8
    assert_close(q.marginal("z").probs, torch.tensor(share), rtol=0, atol=1e-8)
    assert_close(q.marginal("x").mean, torch.tensor(mean[0]), rtol=0, atol=1e-8)
    assert_close(q.marginal("x").variance, torch.tensor(variance[0]), rtol=0, atol=1e-8)


def spike_and_slab(x, y):
    with pyro.plate("feature", x.shape[1]):
        s = pyro.sample("s", dist.Bernoulli(0.4))
        w = pyro.sample("w", dist.Normal(0.0, torch.where(s > 0, 2.0, 0.05)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((x * w).sum(-1), 0.5), obs=y)


def spike_truth(x, y):
    n = x.shape[1]
    states = list(itertools.product([0, 1], repeat=n))
    parts = []
    for s in states:
        g = LinearGaussian(n)
        for j in range(n):
            g.add(np.eye(n)[j], 0.0, 4.0 if s[j] else 0.0025)
        g.add(x.numpy(), y.numpy(), 0.25 * np.eye(len(y)))
        parts.append((sum(np.log(0.4 if k else 0.6) for k in s), g))
    return states, *enumerated(parts)


def test_spike_and_slab_of_one_weight_is_exact():
    x, y = torch.tensor([[1.0], [0.5], [-1.0]]), torch.tensor([0.4, 0.1, -0.6])
    _, evidence, share, mean, variance = spike_truth(x, y)
    q = fit(spike_and_slab, (x, y))
    assert abs(float(q.log_evidence) - evidence) < 1e-5
    assert_close(q.marginal("s").probs[0], torch.tensor(share), rtol=0, atol=1e-5)
    assert_close(q.marginal("w").mean[0], torch.tensor(mean[0]), rtol=0, atol=1e-5)
    assert_close(q.marginal("w").variance[0], torch.tensor(variance[0]), rtol=0, atol=1e-5)


def test_spike_and_slab_regression_finds_the_weights_and_nearly_the_evidence():
    x = torch.randn(12, 3)
    y = x @ torch.tensor([1.5, 0.0, -1.0]) + 0.5 * torch.randn(12)
    states, evidence, share, mean, _ = spike_truth(x, y)
    on = share @ np.array(states)
    q = fit(spike_and_slab, (x, y), num_steps=200)
    assert_close(q.marginal("s").probs[:, 1], torch.tensor(on), rtol=0, atol=0.1)
    assert_close(q.marginal("w").mean, torch.tensor(mean), rtol=0, atol=0.1)
    assert abs(float(q.log_evidence) - evidence) < 0.5


def mixture(y):
    with pyro.plate("k", 2):
        mu = pyro.sample("mu", dist.Normal(torch.tensor([-1.0, 1.0]), 2.0))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.4, 0.6])))
        pyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)


def mixture_truth(y):
    states, parts = list(itertools.product([0, 1], repeat=len(y))), []
    for z in states:
        g = LinearGaussian(2).add(np.eye(2), [-1.0, 1.0], 4 * np.eye(2))
        for k, value in zip(z, y.tolist(), strict=True):
            g.add(np.eye(2)[k], value, 1.0)
        parts.append((sum(np.log([0.4, 0.6][k]) for k in z), g))
    return states, *enumerated(parts)


def test_a_mixture_with_one_observation_is_exact():
    y = torch.tensor([0.7])
    _, evidence, share, mean, variance = mixture_truth(y)
    q = fit(mixture, (y,))
    assert abs(float(q.log_evidence) - evidence) < 1e-8
    assert_close(q.marginal("z").probs[0], torch.tensor(share), rtol=0, atol=1e-8)
    assert_close(q.marginal("mu").mean, torch.tensor(mean), rtol=0, atol=1e-8)
    assert_close(q.marginal("mu").variance, torch.tensor(variance), rtol=0, atol=1e-8)


def vector_mixture(centres, y):
    mu = pyro.sample("mu", dist.Normal(centres, 2.0).to_event(2))  # [K, d], one node
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(torch.ones(len(centres)) / len(centres)))
        pyro.sample("y", dist.Normal(mu[z], 0.5).to_event(1), obs=y)


@pytest.mark.parametrize("shape", [(7, 1), (3, 2), (2, 5)], ids=str)
def test_a_mixture_whose_means_are_one_node_is_exact(shape):
    states, d = shape
    centres = torch.linspace(-3.0, 3.0, states * d).view(states, d)
    y = torch.linspace(0.5, 1.0, d)
    parts = []
    for k in range(states):
        g = LinearGaussian(states * d).add(
            np.eye(states * d), centres.flatten().numpy(), 4 * np.eye(states * d)
        )
        read = np.eye(states * d)[k * d : (k + 1) * d]
        parts.append((-np.log(states), g.add(read, y.numpy(), 0.25 * np.eye(d))))
    evidence, share, mean, variance = enumerated(parts)
    q = fit(vector_mixture, (centres, y[None]), dtype=torch.float64)
    assert abs(float(q.log_evidence) - evidence) < 1e-6
    assert_close(q.marginal("z").probs[0], torch.tensor(share), rtol=0, atol=1e-6)
    assert_close(q.marginal("mu").mean.flatten(), torch.tensor(mean), rtol=0, atol=1e-5)
    assert_close(q.marginal("mu").variance.flatten(), torch.tensor(variance), rtol=0, atol=1e-5)


def test_mean_field_of_a_mixture_whose_means_are_one_node_is_a_fixed_point():
    centres = np.linspace(-3.0, 3.0, 7)
    y = np.array([-3.2, -2.8, -0.9, 0.1, 1.9, 3.3])
    args = torch.tensor(centres)[:, None], torch.tensor(y)[:, None]
    q = fit(vector_mixture, args, pg.VMP, tol=1e-12, num_steps=3000)
    mean, variance = (
        v.flatten().numpy() for v in (q.marginal("mu").mean, q.marginal("mu").variance)
    )
    log_r = -0.5 * ((y[:, None] - mean) ** 2 + variance) / 0.25
    r = np.exp(log_r - logsumexp(log_r, 1, keepdims=True))
    updated = 1 / (0.25 + r.sum(0) / 0.25)
    assert_close(q.marginal("z").probs, torch.tensor(r), rtol=0, atol=1e-8)
    np.testing.assert_allclose(variance, updated, rtol=1e-8)
    np.testing.assert_allclose(mean, updated * (0.25 * centres + r.T @ y / 0.25), atol=1e-8)


def test_a_separated_mixture_is_near_enumeration_up_to_the_mirrored_labels():
    # the mirrored labelling has 5% of the truth; EP keeps to one
    y = torch.tensor([-3.2, -2.5, -2.9, 2.4, 3.1, 2.0, 3.3])
    states, evidence, share, mean, variance = mixture_truth(y)
    second = share @ np.array(states)
    q = fit(mixture, (y,), num_steps=200)
    assert_close(q.marginal("z").probs[:, 1], torch.tensor(second), rtol=0, atol=0.06)
    assert ((q.marginal("mu").mean - torch.tensor(mean)).abs() < 0.5).all()
    assert (q.marginal("mu").variance / torch.tensor(variance)).max() < 1.5
    assert abs(float(q.log_evidence) - evidence) < 0.3


def emissions(y, stay):
    mu = pyro.sample("mu", dist.Normal(1.0, 0.5))
    z = pyro.sample("z0", dist.Bernoulli(0.5))
    for t in range(len(y)):
        if t:
            z = pyro.sample(f"z{t}", dist.Bernoulli(torch.where(z > 0, stay, 1 - stay)))
        pyro.sample(f"y{t}", dist.Normal(torch.where(z > 0, mu, -mu), 0.6), obs=y[t])


def test_a_chain_with_a_latent_emission_is_near_enumeration():
    y, stay = torch.tensor([1.2, 0.8, -0.9, -1.4, 0.2]), torch.tensor(0.8)
    states, parts = list(itertools.product([0, 1], repeat=5)), []
    for z in states:
        g, w = LinearGaussian(1).add(1.0, 1.0, 0.25), np.log(0.5)
        for t, value in enumerate(y.tolist()):
            g.add(1.0 if z[t] else -1.0, value, 0.36)
            if t:
                w += np.log(0.8 if z[t] == z[t - 1] else 0.2)
        parts.append((w, g))
    evidence, share, mean, variance = enumerated(parts)
    q = fit(emissions, (y, stay), num_steps=300)
    on = share @ np.array(states)
    got = torch.stack([q.marginal(f"z{t}").probs[1] for t in range(5)])
    assert_close(got, torch.tensor(on), rtol=0, atol=0.03)
    assert abs(float(q.marginal("mu").mean) - mean[0]) < 0.2 * variance[0] ** 0.5
    assert abs(float(q.log_evidence) - evidence) < 0.1


def test_a_logistic_label_read_off_a_latent_is_near_the_sum_of_integrals():
    def model():
        x = pyro.sample("x", dist.Normal(0.4, 1.0))
        z = pyro.sample("z", dist.Bernoulli(logits=2 * x))
        pyro.sample(
            "y", dist.Normal(torch.tensor([-1.0, 1.0])[z.long()], 0.8), obs=0.5 * x.new_ones(())
        )

    grid = np.linspace(-9, 9, 20001)
    weight = stats.norm.pdf(grid, 0.4, 1) * (grid[1] - grid[0])
    on = 1 / (1 + np.exp(-2 * grid))
    joint = np.stack([(1 - on) * stats.norm.pdf(0.5, -1, 0.8), on * stats.norm.pdf(0.5, 1, 0.8)])
    mass = joint @ weight
    q = fit(model)
    assert abs(float(q.log_evidence) - np.log(mass.sum())) < 1e-6
    assert_close(q.marginal("z").probs, torch.tensor(mass / mass.sum()), rtol=0, atol=1e-6)
    mean = (joint.sum(0) * weight) @ grid / mass.sum()
    assert abs(float(q.marginal("x").mean) - mean) < 1e-6
