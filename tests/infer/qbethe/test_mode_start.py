"""Starts at the mode, against least squares and Hessians written out."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import expit
from torch.distributions import constraints

import pyrograph as pg
from pyrograph.infer.qbethe import engine
from pyrograph.infer.qbethe.components import Components


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def heights(seed, rows=400):
    """Numbers far from 0 in units far from 1, regressors far from their spread."""
    generator = torch.Generator().manual_seed(seed)
    x = 68 + 4 * torch.randn(rows, generator=generator)
    y = -60_000 + 1_300 * x + 19_000 * torch.randn(rows, generator=generator)
    return torch.stack([torch.ones(rows), x], 1), y


def flat_regression(x, y):
    b = pyro.sample("b", dist.ImproperUniform(constraints.real_vector, (), (x.shape[1],)))
    sigma = pyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(x @ b, sigma), obs=y)


@pytest.mark.parametrize("seed", range(3))
def test_a_regression_with_flat_priors_is_least_squares(seed):
    x, y = heights(seed)
    pyro.set_rng_seed(seed)
    options = {"covariance": "full", "num_components": 1, "num_steps": 60}
    q = pg.fit(flat_regression, (x, y), infer=pg.QBethe, progress=False, **options)
    b, (residual,), *_ = np.linalg.lstsq(x.numpy(), y.numpy(), rcond=None)
    # b is Student's t about it: a flat prior of sigma leaves len(y) - 3 degrees of freedom
    variance = residual / (len(y) - 5) * np.linalg.inv((x.mT @ x).numpy())
    found = q.marginal("b")
    deviation = np.sqrt(variance.diagonal())
    assert (np.abs(found.mean.numpy() - b) < 0.02 * deviation).all()
    np.testing.assert_allclose(found.variance.numpy(), variance.diagonal(), rtol=0.03)


@pytest.mark.parametrize("components", [1, 5])
def test_components_start_where_the_posterior_is_if_priors_are_flat(components):
    generator = torch.Generator().manual_seed(0)
    y = 1e5 + 300 * torch.randn(50, generator=generator)

    def model():
        m = pyro.sample("m", dist.ImproperUniform(constraints.real, (), ()))
        with pyro.plate("rows", 50):
            pyro.sample("y", dist.StudentT(5.0, m, 300.0), obs=y)

    pyro.set_rng_seed(0)
    options = {"num_components": components, "num_steps": 200}
    q = pg.fit(model, infer=pg.QBethe, progress=False, **options)
    grid = torch.linspace(float(y.mean()) - 400, float(y.mean()) + 400, 8001)
    log_p = dist.StudentT(5.0, grid[:, None], 300.0).log_prob(y).sum(1)
    p = (log_p - log_p.max()).exp()
    p = p / p.sum()
    mean = (p * grid).sum()
    sd = (p * (grid - mean) ** 2).sum().sqrt()
    assert abs(float(q.marginal("m").mean - mean)) < 0.05 * float(sd)
    assert float(q.marginal("m").variance.sqrt() / sd) == pytest.approx(1, abs=0.05)
    log_z = float(log_p.logsumexp(0) + (grid[1] - grid[0]).log())
    assert float(q.log_evidence) == pytest.approx(log_z, abs=0.02)


def triangle():
    """Three numbers, each two of which are compared: scopes close a cycle."""
    first, second = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
    with pyro.plate("players", 3):
        x = pyro.sample("x", dist.Normal(0.0, 2.0))
    with pyro.plate("games", 3):
        wins = torch.tensor([8.0, 7.0, 3.0])
        logits = x[first] - x[second]
        pyro.sample("wins", dist.Binomial(10, logits=logits), obs=wins)


def test_on_cycles_scopes_start_with_parts_of_the_whole_inverse():
    pyro.set_rng_seed(0)
    found = pg.QBethe(triangle, num_components=1, covariance="full", progress=False).setup()
    assert not found.network.joins
    wins, difference = np.array([8.0, 7.0, 3.0]), np.eye(3) - np.roll(np.eye(3), 1, axis=1)
    x = np.zeros(3)
    for _ in range(30):
        p = expit(difference @ x)
        h = difference.T @ (10 * p * (1 - p) * difference.T).T + np.eye(3) / 4
        x = x + np.linalg.solve(h, difference.T @ (wins - 10 * p) - x / 4)
    mixture = Components(found.network.kinds, found.parameters)
    with torch.no_grad():
        np.testing.assert_allclose(mixture.means[0][0, 0, :, 0].numpy(), x, atol=1e-3)
        for scope in found.network.correlated:
            _, root = scope._together(mixture)
            for nodes, own in zip(scope.nodes.tolist(), (root @ root.mT)[0, 0], strict=True):
                truth = np.linalg.inv(h)[np.ix_(nodes, nodes)]
                np.testing.assert_allclose(own.numpy(), truth, rtol=1e-2)


def test_restarts_climb_from_their_own_draws():
    """Two modes that are alike: some restarts are in each."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 3.0))
        y = pyro.sample("y", dist.Normal(x, 1.0))
        pyro.factor("wells", -4 * (y.abs() - 3) ** 2)

    pyro.set_rng_seed(0)
    options = {"num_components": 1, "covariance": "full", "num_restarts": 12}
    found = pg.QBethe(model, progress=False, **options).setup()
    mixture = Components(found.network.kinds, found.parameters)
    node = found.graph.nodes_of("y").start
    row = found.network.kinds[0].nodes.tolist().index(node)
    y = mixture.means[0][:, 0, row, 0].detach().numpy()
    # the mode: x = 9 y / 10, 8 (3 - y) = y / 10
    np.testing.assert_allclose(np.abs(y), 24 / 8.1, atol=1e-3)
    assert 2 <= (y > 0).sum() <= 10


def test_where_there_is_no_mode_it_starts_at_draws(monkeypatch):
    """A centred hierarchy: the density grows without bound as the scale goes to 0."""

    def model():
        tau = pyro.sample("tau", dist.HalfNormal(1.0))
        with pyro.plate("groups", 4):
            pyro.sample("x", dist.Normal(0.0, tau))

    def parameters():
        pyro.set_rng_seed(0)
        options = {"num_components": 1, "covariance": "full", "progress": False}
        return pg.QBethe(model, **options).setup().parameters

    found = parameters()
    monkeypatch.setattr(engine, "start_at_modes", lambda *start: None)
    for name, value in parameters().items():
        assert torch.equal(found[name], value)


def test_a_narrow_mode_of_small_scales_does_not_hold_the_component(monkeypatch):
    """Eight schools whose scale has a mode near 0: the best Gaussian is elsewhere."""
    y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sd = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = pyro.sample("tau", dist.InverseGamma(1.0, 1.0))
        with pyro.plate("schools", 8):
            theta = pyro.sample("theta", dist.Normal(mu, tau))
            pyro.sample("y", dist.Normal(theta, sd), obs=y)

    def reached():
        pyro.set_rng_seed(0)
        options = {"num_components": 1, "covariance": "full", "num_steps": 80, "lr": 0.1}
        q = pg.fit(model, infer=pg.QBethe, progress=False, **options)
        return float(q.history["objective"][-1])

    found = reached()
    monkeypatch.setattr(engine, "start_at_modes", lambda *start: None)
    assert found > reached() - 0.05


def test_a_run_that_starts_at_the_mode_resumes_to_the_same():
    x, y = heights(0, 40)
    options = {"covariance": "full", "num_components": 1, "num_steps": 20, "progress": False}
    pyro.set_rng_seed(0)
    whole = pg.QBethe(flat_regression, **options)
    whole.run(x, y)
    pyro.set_rng_seed(0)
    half = pg.QBethe(flat_regression, **options).setup(x, y)
    for _ in range(10):
        half.step()
    again = pg.QBethe(flat_regression, **options).setup(x, y)
    again.load_state_dict(half.state_dict())
    again.run()
    for name, value in whole.parameters.items():
        torch.testing.assert_close(again.parameters[name], value, rtol=0, atol=0)
