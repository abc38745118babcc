"""One component of full covariance is the posterior itself where this is a Gaussian along a forest,
with default arguments. Truth: Kalman's filter and the smoother of Rauch, Tung and Striebel."""

from fractions import Fraction

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats

import pyrograph as pg
from pyrograph.errors import InferenceError

#: Step, noise of steps, what is seen of a state and the noise of that: a number that returns to
#: zero, a slow walk seen badly, a fast one seen well, and place and speed.
MODELS = {
    "returning": ([[0.95]], [[0.09]], [1.0], 0.5),
    "slow": ([[1.0]], [[0.01]], [1.0], 1.0),
    "fast": ([[1.0]], [[1.0]], [1.0], 0.1),
    "place and speed": ([[1.0, 1.0], [0.0, 1.0]], [[0.05 / 3, 0.025], [0.025, 0.05]], [1, 0], 1.0),
}


def data(step, noise, seen, scale, length):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=len(step)), []
    for _ in range(length):
        y.append(np.dot(seen, x) + scale * rng.normal())
        x = np.dot(step, x) + np.linalg.cholesky(noise) @ rng.normal(size=len(x))
    return y


def smoothed(step, noise, seen, scale, y):
    """log p(y), means ``[T, d]`` and covariances ``[T, d, d]``."""
    step, noise, seen = np.array(step), np.array(noise), np.array([seen], float)
    mean, covariance = np.zeros(len(step)), np.eye(len(step))
    predicted, filtered, log_p = [], [], 0.0
    for t, value in enumerate(y):
        if t:
            mean, covariance = step @ mean, step @ covariance @ step.T + noise
        predicted.append((mean, covariance))
        spread = seen @ covariance @ seen.T + scale**2
        log_p += stats.norm(seen @ mean, np.sqrt(spread)).logpdf(value).item()
        gain = covariance @ seen.T / spread
        mean = mean + gain @ (value - seen @ mean)
        covariance = covariance - gain @ seen @ covariance
        filtered.append((mean, covariance))
    out = [filtered[-1]]
    for t in range(len(y) - 2, -1, -1):
        gain = filtered[t][1] @ step.T @ np.linalg.inv(predicted[t + 1][1])
        mean = filtered[t][0] + gain @ (out[-1][0] - predicted[t + 1][0])
        after = out[-1][1] - predicted[t + 1][1]
        out.append((mean, filtered[t][1] + gain @ after @ gain.T))
    means, covariances = zip(*reversed(out), strict=True)
    return log_p, np.array(means), np.array(covariances)


def chain(step, noise, seen, scale, y):
    step, noise, seen = (torch.tensor(v).to(torch.get_default_dtype()) for v in (step, noise, seen))
    x = None
    for t, value in enumerate(y):
        centre = torch.zeros(len(step)) if x is None else step @ x
        x = pyro.sample(
            f"x{t}", dist.MultivariateNormal(centre, torch.eye(len(step)) if x is None else noise)
        )
        pyro.sample(f"y{t}", dist.Normal(seen @ x, scale), obs=torch.tensor(value).to(noise))


def fit(model, *args, **options):
    options = {"num_components": 1, "covariance": "full", "progress": False, **options}
    return pg.fit(model, args, infer=pg.QBethe, **options)


def assert_smoothed(q, name, y, atol=1e-6):
    log_p, means, covariances = smoothed(*MODELS[name], y)
    assert_allclose(float(q.log_evidence), log_p, rtol=0, atol=atol)
    for t in range(len(y)):
        marginal = q.marginal(f"x{t}")
        sd = np.sqrt(np.diagonal(covariances[t]))
        assert_allclose(marginal.mean.numpy() / sd, means[t] / sd, rtol=0, atol=atol)
        assert_allclose(marginal.variance.numpy() / sd**2, 1.0, rtol=0, atol=atol)


@pytest.mark.parametrize("name, options", [("fast", {"num_steps": 100}), ("place and speed", {})])
def test_kalman_chains_are_exact_by_default(name, options):
    y = data(*MODELS[name], 8)
    q = fit(chain, *MODELS[name], y, **options)
    assert q.evidence_kind == "lower bound"
    assert len(q.history["objective"]) == options.get("num_steps", 1000)
    assert_smoothed(q, name, y)


@pytest.mark.parametrize("length", [5, 20, 60])
@pytest.mark.parametrize("name", ["returning", "slow"])
def test_chains_of_any_length_are_exact_from_the_start(name, length):
    y = data(*MODELS[name], length)
    assert_smoothed(fit(chain, *MODELS[name], y, num_steps=3), name, y)


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_a_tolerance_is_met_at_once(optimizer):
    y = data(*MODELS["place and speed"], 20)
    q = fit(chain, *MODELS["place and speed"], y, optimizer=optimizer, tol=1e-9, num_restarts=2)
    assert q.status == "converged"
    assert len(q.history["objective"]) < 30
    assert_smoothed(q, "place and speed", y)


def test_in_single_precision_too():
    torch.set_default_dtype(torch.float32)
    y = data(*MODELS["returning"], 40)
    assert_smoothed(fit(chain, *MODELS["returning"], y, num_steps=200), "returning", y, 1e-3)


def test_branches_wide_scopes_and_several_trees_meet_in_any_order():
    """Sites are sampled from the leaves inwards and the other way; truth is one dense normal."""

    def model():
        pyro.sample("alone", dist.Normal(1.0, 2.0))
        with pyro.plate("ends", 3):
            e = pyro.sample("e", dist.Normal(0.0, torch.tensor([1.0, 2.0, 0.5])))
        hub = pyro.sample("hub", dist.Normal(0.0, 3.0))
        with pyro.plate("ties", 3):
            pyro.factor("tie", -((e - torch.tensor([0.5, -1.0, 2.0]) * hub).square()))
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.factor("wide", -(a + 2 * b - hub + 0.7).square())

    q = fit(model, num_steps=30)
    J = np.diag([0.25, 1.0, 0.25, 4.0, 1 / 9, 1.0, 1.0])  # alone, e, hub, a, b
    h, constant = np.zeros(7), -0.5 * 0.25
    h[0] = 0.25
    for k, slope in enumerate([0.5, -1.0, 2.0]):
        row = np.zeros(7)
        row[1 + k], row[4] = 1.0, -slope
        J += 2 * np.outer(row, row)
    row = np.array([0, 0, 0, 0, -1.0, 1.0, 2.0])
    J, h, constant = J + 2 * np.outer(row, row), h - 2 * 0.7 * row, constant - 0.49
    constant -= np.log([2.0, 1.0, 2.0, 0.5, 3.0]).sum()
    mean, covariance = np.linalg.solve(J, h), np.linalg.inv(J)
    log_z = constant + 0.5 * h @ mean - 0.5 * np.linalg.slogdet(J)[1]
    assert_allclose(float(q.log_evidence), log_z, atol=1e-9)
    marginals = [q.marginal(name) for name in ("alone", "e", "hub", "a", "b")]
    assert_allclose(np.concatenate([np.atleast_1d(m.mean) for m in marginals]), mean, atol=1e-9)
    widths = np.concatenate([np.atleast_1d(m.variance) for m in marginals])
    assert_allclose(widths, np.diag(covariance), atol=1e-9)
    (_, inner) = q.factor_marginal("wide")
    order = [[name for name, *_ in q.graph.scopes("wide")[0]].index(n) for n in ("hub", "a", "b")]
    assert_allclose(inner[0][order][:, order], covariance[4:, 4:], atol=1e-9)


def test_numbers_of_very_different_widths_are_not_walked_away_from():
    """Where correlations are all but one, gradients at the posterior itself are not quite 0."""

    def model():
        x = pyro.sample("x", dist.MultivariateNormal(torch.zeros(3), 1e6 * torch.eye(3)))
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        misfit = (x[:2] - 1e4 * z).square().sum() + 1e4 * (x[2] - x[0]).square()
        pyro.factor("tie", -0.5 * misfit)

    rows = [[1, 0, 0, -1e4, 0], [0, 1, 0, 0, -1e4], [-100, 0, 100, 0, 0]]
    J = np.diag([1e-6, 1e-6, 1e-6, 1.0, 1.0]) + np.transpose(rows) @ rows
    log_z = -1.5 * np.log(1e6) - 0.5 * np.linalg.slogdet(J)[1]
    q = fit(model, num_steps=60)
    assert_allclose(float(q.log_evidence), log_z, atol=1e-5)
    widths = np.concatenate([q.marginal(name).variance for name in ("x", "z")])
    assert_allclose(widths, np.diag(np.linalg.inv(J)), rtol=1e-5)


def filtered(step, noise, prior, y):
    """log p(y) and the mean of the last place of a walk, in exact rational numbers."""
    mean, variance, log_p = Fraction(0), Fraction(prior) ** 2, 0.0
    for t, value in enumerate(map(Fraction, y)):
        variance += Fraction(step) ** 2 if t else 0
        spread = variance + Fraction(noise) ** 2
        log_p -= 0.5 * float((value - mean) ** 2 / spread) + 0.5 * np.log(2 * np.pi * float(spread))
        mean += variance / spread * (value - mean)
        variance *= 1 - variance / spread
    return log_p, float(mean)


@pytest.mark.parametrize(
    "step, noise, place, prior, rtol",
    [
        (1e-4, 1.0, 5.0, 1.0, 1e-14),
        (1e-3, 1e2, 1e6, 1e8, 1e-11),
        (1.0, 1e-3, 1e9, 1e12, 1e-14),
    ],
)
def test_stiff_walks_under_wide_priors_stay_at_the_posterior(step, noise, place, prior, rtol):
    """Rounding of gradients is much in units of priors, and steps would be as long as these."""
    y = place + noise * np.sin(3 * np.arange(12))

    def model():
        x = pyro.sample("x0", dist.Normal(torch.tensor(0.0, dtype=torch.float64), prior))
        for t, value in enumerate(torch.tensor(y)):
            x = pyro.sample(f"x{t}", dist.Normal(x, step)) if t else x
            pyro.sample(f"y{t}", dist.Normal(x, noise), obs=value)

    q = fit(model, num_steps=10)
    log_p, mean = filtered(step, noise, prior, y)
    assert q.evidence_kind == "lower bound"
    assert float(q.log_evidence) == pytest.approx(log_p, abs=1e-4)
    assert float(q.marginal("x11").mean) == pytest.approx(mean, rel=rtol)


def test_what_has_no_density_starts_elsewhere():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        y = pyro.sample("y", dist.Normal(x, 1.0))
        pyro.factor("upwards", 0.8 * y**2)

    objective = fit(model, num_steps=5).history["objective"]
    assert (objective.abs() < 100).all()


@pytest.mark.parametrize("seed", range(8))
def test_differences_alone_are_refused(seed):
    torch.manual_seed(seed)  # some would leave a precision above 0, by rounding
    weights = torch.rand(5)

    def model():
        with pyro.plate("nodes", 6):
            x = pyro.sample("x", dist.Normal(0.0, 1.0).mask(False))
        with pyro.plate("edges", 5):
            pyro.factor("tie", -(weights * (x[1:] - x[:-1])).square())

    with pytest.raises(InferenceError, match=r'improper: .* "x"\[0\] by \+1; "x"\[1\] by \+1'):
        fit(model, num_steps=5)


def test_a_single_node_of_several_numbers_is_solved_too():
    """A regression on years: level and slope are all but one number, in a single node."""
    rng = np.random.default_rng(0)
    year = torch.arange(1980.0, 2020.0)
    y = torch.tensor(287 + 0.02 * (year.numpy() - 2000) + 0.1 * rng.normal(size=40))
    scale = torch.tensor([1000.0, 10.0])

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), scale).to_event(1))
        with pyro.plate("years", len(year)):
            pyro.sample("y", dist.Normal(w[0] + w[1] * year, 0.1), obs=y)

    q = pg.fit(
        model, infer=pg.QBethe, num_components=1, covariance="full", num_steps=150, progress=False
    )
    x = np.stack([np.ones(40), year.numpy()], 1)
    covariance = np.linalg.inv(x.T @ x / 0.01 + np.diag(scale.numpy() ** -2.0))
    # log N(y; Xw, .01) + log N(w; 0, scale^2) - log p(w | y) at the mean
    mean = covariance @ x.T @ y.numpy() / 0.01
    log_z = stats.norm(x @ mean, 0.1).logpdf(y.numpy()).sum()
    log_z += stats.norm(0.0, scale.numpy()).logpdf(mean).sum()
    log_z += np.log(2 * np.pi) + np.linalg.slogdet(covariance)[1] / 2
    assert_allclose(float(q.log_evidence), log_z, atol=1e-4)
    sd = np.sqrt(np.diag(covariance))
    w = q.marginal("w")
    assert_allclose(w.mean.numpy() / sd, mean / sd, atol=1e-3)
    assert_allclose(w.stddev.numpy() / sd, 1.0, rtol=1e-3)
