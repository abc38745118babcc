"""Beliefs over the scopes of continuous factors are over the numbers of their nodes."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg

from .reference import LinearGaussian, dense

X = torch.tensor([[1.0, 0.5, 0.0], [-0.3, 1.0, 2.0]], dtype=torch.float64)
EXACT = {"rtol": 1e-9, "atol": 1e-10}


def fit(model, infer=pg.EP, **options):
    return pg.fit(model, infer=infer, progress=False, **options)


def regression(num_joint):
    """Of the two observations the first ``num_joint`` read the intercept too."""

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        both = torch.arange(2) < num_joint
        with pyro.plate("n", 2):
            pyro.sample("y", dist.Normal(X @ w + both * b, 1.0), obs=torch.tensor([1.0, 0.0]))

    eye = np.eye(4)
    truth = LinearGaussian(4)
    for k in range(4):
        truth.add(eye[k], 0.0, 1.0)
    for row, value, j in zip(X.numpy(), (1.0, 0.0), range(2), strict=True):
        truth.add(np.append(row, float(j < num_joint)), value, 1.0)
    return model, truth


def one_joint_row():
    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(X[0] @ w + b, 1.0), obs=torch.tensor(1.0))
        pyro.sample("v", dist.Normal(X[1] @ w, 1.0), obs=torch.tensor(0.0))

    return model, regression(1)[1]


@pytest.mark.parametrize("infer", [pg.BP, pg.EP])
def test_beliefs_of_a_gaussian_tree_are_the_joint_ones_of_its_nodes(infer):
    model, truth = one_joint_row()
    mean, covariance = fit(model, infer).factor_marginal("y")
    assert_close(mean[0], torch.tensor(truth.mean), **EXACT)
    assert_close(covariance[0], torch.tensor(truth.covariance), **EXACT)


def test_means_of_gaussian_factors_in_a_loop_are_those_of_their_nodes():
    model, truth = regression(2)
    mean, covariance = fit(model).factor_marginal("y")
    assert covariance.shape == (2, 4, 4)
    assert_close(mean, torch.tensor(truth.mean).expand(2, 4), rtol=0, atol=1e-6)


def test_mean_field_beliefs_of_scopes_are_products_of_the_nodes():
    model, _ = one_joint_row()
    posterior = fit(model, pg.VMP)
    mean, covariance = posterior.factor_marginal("y")
    w, b = posterior.marginal("w"), posterior.marginal("b")
    assert_close(mean[0], torch.cat([w.mean, b.mean[None]]), **EXACT)
    assert_close(covariance[0], torch.block_diag(w.covariance_matrix, b.variance[None]), **EXACT)


def test_a_logistic_factor_of_one_vector_has_the_moments_of_its_numbers():
    loc, scale, row = np.array([0.4, -0.2]), np.array([1.0, 1.5]), np.array([1.2, -0.7])

    def model():
        prior = dist.Normal(torch.tensor(loc), torch.tensor(scale)).to_event(1)
        w = pyro.sample("w", prior)
        logit = (torch.tensor(row) * w).sum()
        pyro.sample("y", dist.Bernoulli(logits=logit), obs=torch.tensor(1.0))

    def log_density(w):
        prior = -0.5 * (((w - loc) / scale) ** 2).sum(-1)
        return prior - np.logaddexp(0, -w @ row)

    _, mean, covariance = dense(log_density, [-9, -13], [9, 13], 801)
    found = fit(model).factor_marginal("y")
    assert_close(found[0][0], torch.tensor(mean), rtol=0, atol=1e-6)
    assert_close(found[1][0], torch.tensor(covariance), rtol=0, atol=1e-6)


def test_a_logistic_factor_of_a_vector_and_a_number_has_their_joint_moments():
    row = np.array([1.2, -0.7])

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        b = pyro.sample("b", dist.Normal(0.5, 0.8))
        logit = (torch.tensor(row) * w).sum() + b
        pyro.sample("y", dist.Bernoulli(logits=2 * logit), obs=torch.tensor(0.0))

    def log_density(v):
        prior = -0.5 * (v[..., :2] ** 2).sum(-1) - 0.5 * ((v[..., 2] - 0.5) / 0.8) ** 2
        return prior - np.logaddexp(0, 2 * (v[..., :2] @ row + v[..., 2]))

    _, mean, covariance = dense(log_density, [-8, -8, -6], [8, 8, 7], 121)
    found = fit(model).factor_marginal("y")
    assert_close(found[0][0], torch.tensor(mean), rtol=0, atol=1e-6)
    assert_close(found[1][0], torch.tensor(covariance), rtol=0, atol=1e-6)


def test_a_factor_of_one_entry_speaks_of_the_whole_vector():
    """A count of exp(w_1): dense quadrature over both correlated numbers."""
    root = np.array([[1.0, 0.0], [0.6, 0.8]])

    def model():
        prior = dist.MultivariateNormal(torch.zeros(2), scale_tril=torch.tensor(root))
        w = pyro.sample("w", prior)
        pyro.sample("y", dist.Poisson(w[1].exp()), obs=torch.tensor(3.0))

    precision = np.linalg.inv(root @ root.T)

    def log_density(w):
        return -0.5 * ((w @ precision) * w).sum(-1) + 3 * w[..., 1] - np.exp(w[..., 1])

    _, mean, covariance = dense(log_density, [-8, -8], [8, 8], 801)
    found = fit(model).factor_marginal("y")
    assert_close(found[0][0], torch.tensor(mean), rtol=0, atol=1e-6)
    assert_close(found[1][0], torch.tensor(covariance), rtol=0, atol=1e-6)
