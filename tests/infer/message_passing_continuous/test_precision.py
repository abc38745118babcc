"""Single precision and mixtures of both: coefficients are as exact as the program's constants."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import expit, log_expit, logsumexp
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import UnsupportedFactor

from .reference import plain_ep

SINGLE, DOUBLE = torch.float32, torch.float64
#: Of a normal observation.
NOISE = 0.2


def smooth(count, jitter, dtype=SINGLE):
    """Covariance of a smooth function at points, and values of one."""
    x = torch.linspace(0, 1, count, dtype=dtype)
    covariance = torch.exp(-0.5 * ((x[:, None] - x) / 0.2) ** 2) + jitter * torch.eye(
        count, dtype=dtype
    )
    return covariance, torch.sin(6 * x)


def process(covariance, likelihood):
    f = pyro.sample("f", dist.MultivariateNormal(torch.zeros_like(covariance[0]), covariance))
    if likelihood is not None:
        with pyro.plate("n", len(covariance)):
            likelihood(f)


def regression(y):
    return lambda f: pyro.sample("y", dist.Normal(f, torch.tensor(NOISE, dtype=SINGLE)), obs=y)


def classes(y):
    return lambda f: pyro.sample("y", dist.Bernoulli(logits=f), obs=(y > 0).to(y))


@pytest.mark.parametrize("infer", [pg.BP, pg.EP, pg.VMP])
def test_a_smooth_prior_in_single_precision_is_normalised_about_its_mean(infer):
    covariance, _ = smooth(20, 1e-5)
    q = pg.fit(process, (covariance, None), infer=infer, progress=False)
    assert (
        abs(float(q.log_evidence)) < 0.03
    )  # its own density is off by as much, a condition of 1e6
    assert_close(q.marginal("f").mean, torch.zeros(20, dtype=SINGLE), rtol=0, atol=1e-4)


@pytest.mark.parametrize("jitter", [1e-4, 1e-5])
def test_a_smooth_process_in_single_precision_has_its_evidence_and_means(jitter):
    covariance, y = smooth(20, jitter)
    q = pg.fit(process, (covariance, regression(y)), infer=pg.BP, progress=False)
    k, values = covariance.double().numpy(), y.double().numpy()
    whole = k + NOISE**2 * np.eye(20)
    truth = stats.multivariate_normal(np.zeros(20), whole).logpdf(values)
    assert q.evidence_kind == "exact" and abs(float(q.log_evidence) - truth) < 1e-3
    mean = torch.tensor(k @ np.linalg.solve(whole, values), dtype=SINGLE)
    assert_close(q.marginal("f").mean, mean, rtol=0, atol=1e-3)


def test_classes_under_a_smooth_process_in_single_precision_are_those_of_plain_ep():
    covariance, y = smooth(20, 1e-5)
    q = pg.fit(process, (covariance, classes(y)), infer=pg.EP, progress=False)
    sign = np.sign(y.numpy())
    mean, _, evidence, _ = plain_ep(
        np.zeros(20),
        covariance.double().numpy(),
        np.eye(20),
        lambda a, z: log_expit((1 if sign[a] > 0 else -1) * z),
    )
    assert abs(float(q.log_evidence) - evidence) < 0.01
    assert_close(q.marginal("f").mean, torch.tensor(mean, dtype=SINGLE), rtol=0, atol=0.02)


def test_a_tight_prior_far_from_the_units_is_normalised():
    """Gradients where x is of size 1 are larger by forty digits than those where the density is."""
    size = 1e-20

    def model():
        x = pyro.sample(
            "x", dist.MultivariateNormal(torch.zeros(3), scale_tril=size * torch.eye(3))
        )
        pyro.sample("y", dist.Normal((x / size).sum(), 1.0), obs=torch.tensor(1.0))

    q = pg.fit(model, infer=pg.BP, progress=False)
    assert abs(float(q.log_evidence) - stats.norm(0, 2).logpdf(1.0)) < 1e-8


def test_curvatures_beyond_single_precision_are_told_where_it_is_computed_in():
    def model(size):
        x = pyro.sample("x", dist.MultivariateNormal(size.new_zeros(7), scale_tril=size.diag()))
        pyro.sample("y", dist.Normal(x.sum(), size.new_tensor(1.0)), obs=size.new_tensor(1.0))

    size = torch.full((7,), 1e-20, dtype=SINGLE)
    with pytest.raises(UnsupportedFactor, match=r'"x".*float32.*dtype=torch\.float64'):
        pg.fit(model, (size,), infer=pg.QBethe, progress=False)
    q = pg.fit(model, (size,), infer=pg.EP, progress=False)  # in double precision
    assert abs(float(q.log_evidence) - stats.norm(0, 1).logpdf(1.0)) < 1e-5


# ---------------------------------------------------------------------- double data, single priors
@pytest.mark.parametrize("infer", [pg.BP, pg.EP, pg.VMP])
def test_double_data_of_a_process_in_single_precision_is_still_gaussian(infer):
    covariance, y = smooth(12, 1e-4)
    y = y.double() + 0.1
    q = pg.fit(process, (covariance, regression(y)), infer=infer, progress=False)
    whole = covariance.double().numpy() + NOISE**2 * np.eye(12)
    truth = stats.multivariate_normal(np.zeros(12), whole).logpdf(y.numpy())
    assert q.evidence_kind == "exact" and abs(float(q.log_evidence) - truth) < 1e-4


def one(value):
    return torch.tensor(value, dtype=SINGLE)


def line(y):
    a = pyro.sample("a", dist.Normal(one(0.0), 10.0))
    b = pyro.sample("b", dist.Normal(one(0.0), 10.0))
    s = pyro.sample("s", dist.HalfCauchy(one(1.0)))
    with pyro.plate("n", 6):
        mean = a + b * torch.linspace(-1, 1, 6, dtype=SINGLE)
        pyro.sample("y", dist.Normal(mean, s), obs=y)


def line_evidence(y):
    """Sum over a grid of log s of what is left when a and b are summed out."""
    x = np.stack([np.ones(6), np.linspace(-1, 1, 6)], 1)
    grid = np.linspace(-6, 8, 281)
    terms = [
        stats.multivariate_normal(np.zeros(6), np.exp(2 * u) * np.eye(6) + 100 * x @ x.T).logpdf(y)
        + stats.halfcauchy.logpdf(np.exp(u))
        + u
        for u in grid
    ]
    return float(np.logaddexp.reduce(terms) + np.log(grid[1] - grid[0]))


@pytest.mark.parametrize("infer, most", [(pg.EP, 0.4), (pg.VMP, 0.7)])
def test_double_data_settle_to_double_precision_in_as_many_sweeps(infer, most):
    y = torch.from_numpy(np.random.default_rng(0).normal(size=6))
    mixed = pg.fit(line, (y,), infer=infer, progress=False)
    double = pg.fit(line, (y,), infer=infer, progress=False, dtype=DOUBLE)
    assert mixed.converged and float(mixed.history["residual"][-1]) <= 1e-8
    assert len(mixed.history["residual"]) == len(double.history["residual"])
    assert abs(float(mixed.log_evidence) - line_evidence(y.numpy())) < most


def logistic_truth(x, y):
    """Log evidence, means and standard deviations of weights N(0, 1), on Gauss-Hermite points
    about the mode."""
    x, sign = x.double().numpy(), 2 * y.double().numpy() - 1
    mode = np.zeros(x.shape[1])
    for _ in range(30):  # Newton's method
        p = expit(-sign * (x @ mode))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.eye(len(mode))
        mode = mode + np.linalg.solve(hessian, x.T @ (sign * p) - mode)
    root = np.linalg.cholesky(np.linalg.inv(hessian))
    points, weights = np.polynomial.hermite_e.hermegauss(7)
    z = np.stack(np.meshgrid(*[points] * len(mode)), -1).reshape(-1, len(mode))
    log_weight = sum(np.meshgrid(*[np.log(weights)] * len(mode))).ravel()
    w = mode + z @ root.T
    log_p = [log_expit(sign * (x @ one)).sum() for one in w] + stats.norm.logpdf(w).sum(1)
    log_p += log_weight + (z**2).sum(1) / 2
    share = np.exp(log_p - logsumexp(log_p))[:, None]
    mean = (share * w).sum(0)
    evidence = logsumexp(log_p) + np.linalg.slogdet(root)[1]
    return evidence, mean, np.sqrt((share * (w - mean) ** 2).sum(0))


def test_a_logistic_regression_of_many_rows_settles_in_single_precision():
    """Each row changes the belief by so little that its message is mostly rounding, unless that of
    quadrature is finer; and what the grids have in common adds up."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 3, generator=generator)
    y = torch.bernoulli((x @ torch.tensor([3.0, -2.0, 0.5])).sigmoid(), generator=generator)

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    engine = pg.EP(model, progress=False, dtype=SINGLE)
    q = engine.run()
    evidence, mean, sd = logistic_truth(x, y)
    assert q.converged and engine.num_done < 20
    assert q.marginal("w").mean.dtype == SINGLE
    assert np.abs((q.marginal("w").mean.numpy() - mean) / sd).max() < 0.02
    assert abs(float(q.log_evidence) - evidence) < 0.01


def test_narrow_beliefs_in_single_precision_settle():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 5, generator=generator)
    y = x @ torch.full((5,), 20.0) + 0.1 * torch.randn(400, generator=generator)

    def model():  # weights of 20 +- 0.005
        w = pyro.sample("w", dist.Normal(torch.zeros(5), 10.0).to_event(1))
        log_noise = pyro.sample("log_noise", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(x @ w, log_noise.exp()), obs=y)

    q = pg.fit(model, infer=pg.EP, num_steps=30, progress=False, dtype=SINGLE)
    assert q.converged
    # the prior pulls by 1e-5 standard deviations, at any noise near that of least squares
    gram = x.double().T @ x.double()
    mean = torch.linalg.solve(gram + 1e-4 * torch.eye(5), x.double().T @ y.double())
    sd = 0.1 * gram.inverse().diagonal().sqrt()
    off = (q.marginal("w").mean.double() - mean) / sd
    assert off.abs().max() < 1e-3  # 20 is 2e-6 from the next number of single precision


def mixed(y):
    z = pyro.sample("z", dist.Bernoulli(0.3))
    m = pyro.sample("m", dist.Normal(0.0, 2.0))
    s = pyro.sample("s", dist.LogNormal(0.0, 0.5))
    with pyro.plate("n", len(y)):
        pyro.sample("y", dist.StudentT(4.0, m + z, s), obs=y)


def scaled(y):
    s = pyro.sample("s", dist.Gamma(2.0, 1.0))
    with pyro.plate("n", len(y)):
        pyro.sample("y", dist.StudentT(4.0, 0.0, s), obs=y)


@pytest.mark.parametrize("infer", [pg.EP, pg.PowerEP, pg.VMP])
@pytest.mark.parametrize(("model", "options"), [(mixed, {}), (scaled, {"family": {"s": "gamma"}})])
def test_results_in_single_precision_are_those_in_double_rounded(infer, model, options):
    y = 1.3 * torch.randn(40, generator=torch.Generator().manual_seed(0)) + 0.4
    single, double = (
        pg.fit(model, (y,), infer=infer, progress=False, dtype=dtype, **options)
        for dtype in (SINGLE, DOUBLE)
    )
    assert single.converged and single.log_evidence.dtype == SINGLE
    assert_close(single.log_evidence.double(), double.log_evidence, rtol=0, atol=1e-3)
    for site in double.graph.sites:
        mine, exact = single.marginal(site).mean, double.marginal(site).mean
        assert mine.dtype == SINGLE
        assert_close(mine.double(), exact, rtol=0, atol=1e-3)


def test_derivatives_in_single_precision_are_those_of_differences():
    y = 1.3 * torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=SINGLE)

    def model(a):
        m = pyro.sample("m", dist.Normal(a.new_zeros(()), 2.0))
        s = pyro.sample("s", dist.LogNormal(a.new_zeros(()), 0.5))
        with pyro.plate("n", len(y)):
            pyro.sample("y", dist.StudentT(4.0, m, a * s), obs=y.to(a))

    def found(a):
        q = pg.fit(model, (a,), infer=pg.EP, progress=False)
        return torch.stack([q.log_evidence, q.marginal("s").base_dist.loc])

    a = torch.tensor(1.0, dtype=SINGLE, requires_grad=True)
    slopes = [torch.autograd.grad(value, a, retain_graph=True)[0] for value in found(a)]
    step = 1e-4
    up, down = (found(torch.tensor(1 + h, dtype=DOUBLE)) for h in (step, -step))
    assert_close(torch.stack(slopes).double(), (up - down) / (2 * step), rtol=0, atol=2e-3)
