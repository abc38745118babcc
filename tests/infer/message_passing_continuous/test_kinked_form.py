"""Mean field of factors with kinks. Truth: expectations under normal densities by integration, and
bounds maximised over means and variances by scipy."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import optimize, stats

import pyrograph as pg
from tests.infer.message_passing_continuous.runs import fit

Y = np.array([-1.0, 0.2, 0.3, 2.5, 9.0])
X = np.array([-2.0, -0.5, 0.1, 1.0, 3.0])
NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def check(u, tau):
    """Minus the loss of the tau-quantile."""
    return -np.maximum(tau * u, (tau - 1) * u)


def expected(f, mean, sd, kinks):
    """E f(u), u ~ N(mean, sd^2), by integration between kinks."""
    low, high = mean - 12 * sd, mean + 12 * sd
    cuts = np.unique(np.clip([low, mean, high, *kinks], low, high))
    half, middle = np.diff(cuts)[:, None] / 2, (cuts[1:] + cuts[:-1])[:, None] / 2
    u = middle + half * NODES
    return (half * WEIGHTS * f(u) * stats.norm.pdf(u, mean, sd)).sum()


def best(bound, size):
    start = np.concatenate([np.full(size, 0.1), np.full(size, -0.7)])
    options = {"xatol": 1e-8, "fatol": 1e-12, "maxiter": 20_000, "maxfev": 20_000}
    found = optimize.minimize(lambda p: -bound(p), start, method="Nelder-Mead", options=options)
    return -found.fun, found.x[:size], np.exp(found.x[size:])


def entropy(sd):
    return (np.log(sd) + 0.5 * np.log(2 * np.pi * np.e)).sum()


def test_laplace_densities_have_their_best_bound():
    def model():
        x = pyro.sample("x", dist.Laplace(0.0, 2.0))
        with pyro.plate("rows", len(Y)):
            pyro.sample("y", dist.Laplace(x, 0.7), obs=torch.tensor(Y))

    def bound(p):
        mean, sd = p[0], np.exp(p[1])
        total = entropy(np.array([sd]))
        for place, width in [(0.0, 2.0), *((y, 0.7) for y in Y)]:
            density = stats.laplace(place, width)
            total += expected(density.logpdf, mean, sd, [place])
        return total

    value, mean, sd = best(bound, 1)
    q = fit(model, (), pg.VMP)
    assert q.converged and q.evidence_kind == "lower bound"
    assert float(q.log_evidence) == pytest.approx(value, abs=1e-8)
    assert float(q.marginal("x").mean) == pytest.approx(mean[0], abs=1e-5)
    assert float(q.marginal("x").variance.sqrt()) == pytest.approx(sd[0], abs=1e-5)


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_laplace_differences_have_a_bound_that_nothing_near_exceeds(schedule):
    """Of all pairs of five nodes, each with its own kink and width: in turns few are looked at."""
    first, second = np.triu_indices(5, 1)
    place, width = 2 * np.sin(np.arange(10.0)), 0.5 + 0.1 * np.arange(10.0)

    def model():
        with pyro.plate("nodes", 5):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("pairs", 10):
            apart = x[torch.tensor(second)] - x[torch.tensor(first)]
            pyro.sample("d", dist.Laplace(apart, torch.tensor(width)), obs=torch.tensor(place))

    q = fit(model, (), pg.VMP, schedule=schedule)
    assert q.converged and q.evidence_kind == "lower bound"
    mean, sd = q.marginal("x").mean.numpy(), q.marginal("x").variance.sqrt().numpy()

    def bound(mean, sd):
        total = entropy(sd) + stats.norm.logpdf(mean).sum() - (sd**2).sum() / 2
        spread = np.hypot(sd[second], sd[first])
        for y, b, at, s in zip(place, width, mean[second] - mean[first], spread, strict=True):
            total += expected(stats.laplace(y, b).logpdf, at, s, [y])
        return total

    value = bound(mean, sd)
    assert float(q.log_evidence) == pytest.approx(value, abs=1e-8)
    for k in range(5):
        for step in (-1e-3, 1e-3):
            off = step * np.eye(5)[k]
            assert bound(mean + off, sd) < value and bound(mean, sd * (1 + off)) < value


def test_twins_are_looked_at_once_and_count_as_often_as_they_are():
    def model():
        with pyro.plate("nodes", 2):
            x = pyro.sample("x", dist.Normal(torch.tensor([0.0, 1.0]), 1.0))
        with pyro.plate("rows", 6):
            pyro.sample("y", dist.Laplace(x[torch.arange(6) // 3], 0.7), obs=torch.full((6,), 0.4))

    def bound(p, place):
        mean, sd = p[0], np.exp(p[1])
        pull = expected(stats.laplace(0.4, 0.7).logpdf, mean, sd, [0.4])
        return entropy(np.array([sd])) + stats.norm(place, 1).logpdf(mean) - sd**2 / 2 + 3 * pull

    q = fit(model, (), pg.VMP)
    found = [best(lambda p, place=place: bound(p, place), 1) for place in (0.0, 1.0)]
    assert float(q.log_evidence) == pytest.approx(found[0][0] + found[1][0], abs=1e-8)
    means = [f[1][0] for f in found]
    np.testing.assert_allclose(q.marginal("x").mean.numpy(), means, rtol=0, atol=1e-5)


@pytest.mark.parametrize("as_vector", [False, True])
def test_quantile_regression_has_its_best_bound(as_vector):
    """Of one combination of two nodes, or of two numbers of a node, in two pieces."""

    def model():
        if as_vector:
            slope, level = pyro.sample("b", dist.Normal(0.0, 2.0).expand([2]).to_event(1)).unbind()
        else:
            slope = pyro.sample("slope", dist.Normal(0.0, 2.0))
            level = pyro.sample("level", dist.Normal(0.0, 2.0))
        with pyro.plate("rows", len(Y)):
            off = torch.tensor(Y) - slope * torch.tensor(X) - level
            pyro.factor("loss", -torch.maximum(0.8 * off, -0.2 * off))

    def bound(p):
        mean, sd = p[:2], np.exp(p[2:])
        total = entropy(sd) + stats.norm(0, 2).logpdf(mean).sum() - (sd**2).sum() / 8
        for x, y in zip(X, Y, strict=True):
            width = np.hypot(sd[0] * x, sd[1])
            total += expected(lambda u: check(u, 0.8), y - mean[0] * x - mean[1], width, [0.0])
        return total

    q = fit(model, (), pg.VMP)
    assert q.converged and q.evidence_kind == "lower bound"
    value = float(q.log_evidence)
    if as_vector:  # correlated within the node: no less
        q_of = q.marginal("b")
        mean, covariance = q_of.mean.numpy(), q_of.covariance_matrix.numpy()
        total = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * covariance)[1]
        total += stats.norm(0, 2).logpdf(mean).sum() - covariance.trace() / 8
        for x, y in zip(X, Y, strict=True):
            a = np.array([x, 1.0])
            width = np.sqrt(a @ covariance @ a)
            total += expected(lambda u: check(u, 0.8), y - a @ mean, width, [0.0])
        assert value == pytest.approx(total, abs=1e-8)
        assert value > best(bound, 2)[0]
    else:
        assert value == pytest.approx(best(bound, 2)[0], abs=1e-7)


def test_clamps_of_squares_are_pieces_too():
    """A truncated quadratic, as in robust smoothing, in three pieces."""

    def model():
        x = pyro.sample("x", dist.Normal(1.0, 2.0))
        pyro.factor("pull", -(x - 0.3).square().clamp(max=4.0))

    def bound(p):
        mean, sd = p[0], np.exp(p[1])
        total = entropy(np.array([sd])) + stats.norm(1, 2).logpdf(mean) - sd**2 / 8
        pull = expected(lambda u: -np.minimum((u - 0.3) ** 2, 4), mean, sd, [-1.7, 2.3])
        return total + pull

    value, *_ = best(bound, 1)
    q = fit(model, (), pg.VMP)
    assert q.converged and q.evidence_kind == "lower bound"
    assert float(q.log_evidence) == pytest.approx(value, abs=1e-8)


def test_jumps_and_smooth_functions_are_not_taken_for_pieces():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("jump", torch.where(x > 0, 1.0, 0.0) - x.abs())
        pyro.sample("y", dist.Bernoulli(logits=x), obs=torch.tensor(1.0))

    q = fit(model, (), pg.VMP)
    assert q.evidence_kind == "estimate"


@pytest.mark.parametrize("place, width", [(5.0, 0.01), (1e3, 0.1), (1e3, 1e-4)])
def test_narrow_laplace_densities_far_from_the_first_beliefs_are_found(place, width):
    """Behind a kink there is a slope but no curvature, and sweeps run away: the mode start, at the
    kink itself, knows no precision there but that of beliefs with a width."""

    def model():
        pyro.sample("x", dist.Laplace(torch.tensor(place), torch.tensor(width)))

    q = fit(model, (), pg.VMP)
    assert q.converged and q.evidence_kind == "lower bound"
    # E|u| = s sqrt(2 / pi), so that s = width sqrt(pi / 2) is best
    value = 0.5 * np.log(np.pi / 2 * 2 * np.pi * np.e) - np.log(2) - 1
    assert float(q.log_evidence) == pytest.approx(value, abs=1e-8)
    assert float(q.marginal("x").mean) == pytest.approx(place, abs=1e-6 * width + 1e-12 * place)
    assert float(q.marginal("x").variance.sqrt()) == pytest.approx(
        width * np.sqrt(np.pi / 2), rel=1e-5
    )


def test_evidence_differentiates_by_a_width_that_is_learnt():
    """dF / db = E d log f / db at the optimum, -1 / b + E |u - y| / b^2."""
    width = torch.tensor(0.7, requires_grad=True)

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Laplace(x, width), obs=torch.tensor(0.4))

    q = fit(model, (), pg.VMP)
    q.log_evidence.backward()
    belief = q.marginal("x")
    mean, sd = float(belief.mean.detach()), float(belief.variance.sqrt().detach())
    apart = expected(lambda u: np.abs(u - 0.4), mean, sd, [0.4])
    assert float(width.grad) == pytest.approx(-1 / 0.7 + apart / 0.7**2, abs=2e-2)


def test_kinks_that_move_with_a_state_are_read_in_every_state():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Laplace(x + 2 * z, 0.5), obs=torch.tensor(1.8))

    def bound(p):
        mean, sd, share = p[0], np.exp(p[1]), 1 / (1 + np.exp(-p[2]))
        pulls = [
            expected(stats.laplace(1.8 - 2 * z, 0.5).logpdf, mean, sd, [1.8 - 2 * z])
            for z in (0, 1)
        ]
        total = entropy(np.array([sd])) + stats.norm.logpdf(mean) - sd**2 / 2
        for weight, prior, pull in zip((1 - share, share), (0.7, 0.3), pulls, strict=True):
            total += weight * (pull + np.log(prior / weight))
        return total

    found = optimize.minimize(lambda p: -bound(p), [0.1, -0.7, 0.1], method="Nelder-Mead")
    q = fit(model, (), pg.VMP)
    assert float(q.log_evidence) == pytest.approx(-found.fun, abs=3e-2)
    assert float(q.marginal("x").mean) == pytest.approx(found.x[0], abs=3e-2)
