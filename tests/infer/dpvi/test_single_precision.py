"""Scores of labels and of states whose log likelihoods are large, in single precision: weights and
bounds are those of double precision. Truth is numpy and scipy."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import gammaln, logsumexp

import pyrograph as pg
from pyrograph import distributions as pgd

SINGLE = torch.float32
KAPPA, A, B, LOC, ALPHA = 0.25, 2.0, 4e4, 5000.0, 1.0


def expression(n: int = 60, d: int = 600):
    """Two clusters, and six rows half-way between them, about 5000."""
    rng = np.random.default_rng(0)
    z, mu, scale = rng.integers(0, 2, n), rng.normal(size=(2, d)), 200.0
    x = mu[z] * scale + rng.normal(0, scale, (n, d))
    middle, along = mu.mean(0) * scale, mu[1] - mu[0]
    along /= np.linalg.norm(along)
    x[:6] = middle + rng.normal(0, scale, (6, d))
    x[:6] -= np.outer((x[:6] - middle) @ along, along)
    return (x + LOC).astype(np.float32)


def mixture(x):
    z = pyro.sample("z", pgd.ChineseRestaurant(ALPHA, len(x)))
    component = pgd.NormalInverseGamma(KAPPA, A, B, LOC)
    pyro.sample("x", pgd.CollapsedMixture(z, component), obs=x)


def log_joint(z, x):
    """Of a labelling, by the closed forms of partition and marginal likelihood."""
    x = x.astype(float)
    n = len(z)
    total = gammaln(ALPHA) - gammaln(ALPHA + n)
    for c in np.unique(z):
        own = x[z == c]
        size = len(own)
        kappa, a = KAPPA + size, A + size / 2
        mean = own.mean(0)
        b = B + 0.5 * ((own - mean) ** 2).sum(0)
        b = b + 0.5 * KAPPA * size / kappa * (mean - LOC) ** 2
        term = gammaln(a) - gammaln(A) + A * np.log(B) - a * np.log(b)
        term = term + 0.5 * np.log(KAPPA / kappa) - size / 2 * np.log(2 * np.pi)
        total += np.log(ALPHA) + gammaln(size) + term.sum()
    return total


@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
def test_weights_and_bound_of_labels_are_those_of_double_precision(infer):
    x = expression()
    pyro.set_rng_seed(0)
    torch.set_default_dtype(SINGLE)
    engine = infer(mixture, num_particles=20, progress=False)
    posterior = engine.run(torch.tensor(x))
    truth = np.array([log_joint(z, x) for z in engine.search.found.labels()["z"].numpy()])
    found = engine.search.found.score.double().numpy()
    assert abs(truth).min() > 1e5  # of which single precision has no digit behind the point
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        posterior.weights.numpy(), np.exp(truth - logsumexp(truth)), rtol=1e-4, atol=1e-7
    )
    assert float(engine.search.found.bound) == pytest.approx(logsumexp(truth), abs=1e-6)
    assert posterior.log_evidence.dtype == SINGLE


def independent(p):
    with pyro.plate("n", 50):
        pyro.sample("z", dist.Bernoulli(p))


@pytest.mark.parametrize("dtype", [SINGLE, torch.float64])
def test_particles_that_hold_all_but_little_are_not_called_few(dtype):
    """They miss 4e-5 of the mass, a product of marginals nothing."""
    p = torch.full((50,), 1e-6, dtype=dtype)
    posterior = pg.fit(independent, (p,), infer=pg.DPVI, num_particles=10, progress=False)
    assert posterior.status == "converged"


def test_the_mass_of_many_rows_is_not_mistaken_for_more_than_particles_hold():
    rng = np.random.default_rng(2)
    n, d = 20_000, 40
    means = (1e5 + rng.normal(0, 3e4, (3, d))).astype(np.float32)
    x = (means[rng.integers(0, 3, n)] + rng.normal(0, 1e4, (n, d))).astype(np.float32)
    means, x = torch.tensor(means), torch.tensor(x)

    def model():
        with pyro.plate("rows", n):
            z = pyro.sample("z", dist.Categorical(torch.ones(3, dtype=SINGLE) / 3))
            pyro.sample("x", dist.Normal(means[z], 1e4).to_event(1), obs=x)

    # every row is in its cluster but for odds of e^-100
    posterior = pg.fit(model, infer=pg.DPVI, num_particles=2, progress=False)
    assert posterior.status == "converged"


def loop(dtype):
    """A cycle of five, with irrational numbers, and a field of its own for each."""
    with pyro.plate("n", 5):
        x = pyro.sample("x", dist.Bernoulli(torch.linspace(0.2, 0.7, 5, dtype=dtype)))
    with pyro.plate("e", 5):
        pyro.factor("f", math.sqrt(0.4) * (x != x[[1, 2, 3, 4, 0]]).to(dtype))


def numbers(dtype):
    x = torch.tensor([0.1, -0.3, 2.2, 2.9, 0.7], dtype=dtype)
    z = pyro.sample("z", pgd.ChineseRestaurant(torch.tensor(ALPHA, dtype=dtype), 5))
    pyro.sample("x", pgd.CollapsedMixture(z, pgd.NormalInverseGamma(KAPPA, A, 1.0)), obs=x)


@pytest.mark.parametrize("dtypes", [(SINGLE, torch.float64), (torch.float64, SINGLE)])
@pytest.mark.parametrize("model", [loop, numbers])
@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
def test_a_state_goes_on_in_another_precision(infer, model, dtypes):
    saved, own = (infer(model, num_particles=6, progress=False) for _ in range(2))
    saved.run(dtypes[0])
    truth = own.run(dtypes[1])
    engine = infer(model, num_particles=6, progress=False).setup(dtypes[1])
    engine.load_state_dict(saved.state_dict())
    posterior = engine.run()
    site = "x" if model is loop else "z"
    assert torch.equal(posterior.particles[site], truth.particles[site])
    digits = 1e-9 if dtypes[1] == torch.float64 and model is loop else 1e-5
    assert float(posterior.log_evidence) == pytest.approx(float(truth.log_evidence), abs=digits)
    assert posterior.converged
