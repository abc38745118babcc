"""Continuous nodes that factors read together with discrete ones, correlated or not, against dense
grids with enumeration and against coordinate ascent in closed form."""

from functools import cache

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import entr, expit, logsumexp
from scipy.stats import multivariate_normal, norm

from pyrograph.infer.qbethe import entropy
from pyrograph.infer.qbethe.rules import coarse, fine, fine_entropies

from .programs import CELL, GRID
from .test_free_energy import DOUBLE, engine, exact, mixture_of
from .test_joint import fit

SLOPES = torch.tensor([0.5, -1.0, 1.5], dtype=torch.float64)
LEVELS = torch.tensor([-0.4, 0.1, 0.6], dtype=torch.float64)


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# ---------------------------------------------------------------------- the free energy
def pull(a, b):
    return -0.3 * (a - b) ** 2 - 0.02 * (a + b) ** 4


def told(a, b, slope, state):
    """A smooth function of both numbers in state 0, a ridge in state 1."""
    return -0.5 * (a - slope * b) ** 2 if state else -0.1 * (a * b - slope) ** 2


def beside_states(is_pulled):
    """Two numbers, three binary nodes that share both, and one of three states that has one."""
    a = pyro.sample("a", dist.Normal(0.3, 1.0))
    b = pyro.sample("b", dist.Normal(-0.2, 1.0))
    if is_pulled:
        pyro.factor("pull", pull(a, b))
    k = pyro.sample("k", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
    pyro.factor("level", -((a - LEVELS[k]) ** 2))
    with pyro.plate("n", 3):
        z = pyro.sample("z", dist.Bernoulli(0.4))
        pyro.factor("told", torch.where(z == 1, told(a, b, SLOPES, 1), told(a, b, SLOPES, 0)))


def tables(is_pulled):
    """log f: of the numbers, ``[G, G]``; of k, ``[3, G]``; of every z, ``[2, G, G]``."""
    a, b = GRID[:, None], GRID[None]
    both = norm.logpdf(a, 0.3, 1) + norm.logpdf(b, -0.2, 1) + (pull(a, b) if is_pulled else 0)
    level = np.stack(
        [np.log(p) - (GRID - c) ** 2 for p, c in zip([0.2, 0.3, 0.5], LEVELS.numpy(), strict=True)]
    )
    states = [
        np.stack([np.log(p) + told(a, b, slope, s) for s, p in enumerate([0.6, 0.4])])
        for slope in SLOPES.numpy()
    ]
    return both, level, states


def dense_log_z(is_pulled):
    both, level, states = tables(is_pulled)
    total = both + logsumexp(level, 0)[:, None] + sum(logsumexp(s, 0) for s in states)
    return logsumexp(total) + 2 * CELL


def dense_free_energy(found, is_pulled):
    """Of the first restart: E log f and the entropy of the distribution b(a, b) b(k | a)
    prod_n b(z_n | a, b), by sums over the grid and all states."""
    m = mixture_of(found)
    kind_of = {(k.is_discrete, k.size): n for n, k in enumerate(m.kinds)}
    numbers, binary, three = kind_of[False, 1], kind_of[True, 2], kind_of[True, 3]
    w, tie = m.weights[0].numpy(), np.zeros(len(m.weights[0]))
    if "tie_0" in found.parameters:
        tie = found.parameters["tie_0"].detach()[0, :, 0, 0].numpy()
    mean, scale = m.means[numbers][0, :, :, 0].numpy(), m.scales[numbers][0, :, :, 0].numpy()
    grid = np.dstack(np.meshgrid(GRID, GRID, indexing="ij"))
    parts = []
    for k in range(len(w)):
        rho = tie[k] / np.sqrt(1 + tie[k] ** 2)
        correlation = np.array([[1, rho], [rho, 1]])
        covariance = correlation * np.outer(scale[k], scale[k])
        parts.append(w[k] * multivariate_normal(mean[k], covariance).pdf(grid))
    parts = np.stack(parts)  # [L, G, G]
    cell = np.exp(CELL)

    def h(density, size):
        return -(density * np.log(density + 1e-300)).sum() * size

    both, level, states = tables(is_pulled)
    of_numbers, of_a = parts.sum(0), parts.sum((0, 2)) * cell
    total = (of_numbers * both).sum() * cell**2 + h(of_numbers, cell**2)
    p = m.log_probs[three][0, :, 0].exp().numpy()
    with_k = np.einsum("lc,lg->cg", p, parts.sum(2) * cell)
    total += (with_k * level).sum() * cell + h(with_k, cell) - h(of_a, cell)
    for n, own in enumerate(states):
        p = m.log_probs[binary][0, :, n].exp().numpy()
        with_z = np.einsum("lc,lgh->cgh", p, parts)
        total += (with_z * own).sum() * cell**2 + h(with_z, cell**2) - h(of_numbers, cell**2)
    return total


def apart(components, is_pulled, covariance="full"):
    options = {"num_components": components, "covariance": covariance, "spread": 0.5}
    found = engine(lambda: beside_states(is_pulled), **options)
    with torch.no_grad():
        for name in found.network.num_ties:
            found.parameters[name].add_(0.8)
    return found


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("is_pulled", [True, False])
@pytest.mark.parametrize("components", [1, 3])
def test_the_free_energy_beside_states_is_that_of_a_dense_tree(components, is_pulled, covariance):
    found = apart(components, is_pulled, covariance)
    truth = dense_free_energy(found, is_pulled)
    assert abs(exact(found)[0].item() - truth) < 2e-3
    assert truth < dense_log_z(is_pulled)


def test_samples_of_correlated_nodes_and_states_agree_with_the_grid(monkeypatch):
    found = apart(3, True)
    monkeypatch.setattr(entropy, "MAX_PAIR_POINTS", 0)
    with torch.no_grad():
        value = found.objective(found.parameters, (fine(DOUBLE), fine_entropies(DOUBLE)))
    assert abs(value[0].item() - dense_free_energy(found, True)) < 0.02


@pytest.mark.parametrize("most_points", [2**14, 0])
def test_derivatives_beside_states_are_those_of_differences(monkeypatch, most_points):
    monkeypatch.setattr(entropy, "MAX_PAIR_POINTS", most_points)
    found, rules = apart(3, False), (coarse(6, DOUBLE), coarse(12, DOUBLE))
    found.objective(found.parameters, rules).sum().backward()
    # drawn states jump where probabilities move, so that these have no differences there
    names = [n for n in found.parameters if most_points or not n.startswith("logits")]
    for name in names:
        value = found.parameters[name]
        step = 1e-5 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            ends = []
            for sign in (1, -1):
                moved = {**found.parameters, name: value + sign * step}
                ends.append(found.objective(moved, rules)[0].item())
        slope = (value.grad * step).sum().item()
        assert abs((ends[0] - ends[1]) / 2 - slope) < 1e-4 * abs(slope) + 1e-10, name


# ---------------------------------------------------------------------- fits
def outliers():
    """A plane through points, some of them off it: rows (1, u, v) and heights."""
    generator = np.random.RandomState(3)
    rows = np.c_[np.ones(6), 1 + generator.rand(6), generator.randn(6)]
    heights = rows @ [1.0, 0.5, -0.4] + 0.3 * generator.randn(6)
    heights[::5] += 4
    return rows, heights


def plane():
    rows, heights = (torch.from_numpy(value) for value in outliers())
    level = pyro.sample("level", dist.Normal(0.0, 2.0))
    slopes = pyro.sample("slopes", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    with pyro.plate("n", len(rows)):
        z = pyro.sample("z", dist.Bernoulli(0.2))
        mean = level + rows[:, 1:] @ slopes
        pyro.sample("y", dist.Normal(mean, torch.where(z == 1, 3.0, 0.3)), obs=heights)


@cache
def ascended():
    """Coordinate ascent over one normal of all numbers and independent z: its bound, mean and
    covariance, and probabilities of z = 1."""
    rows, heights = outliers()
    r = np.full(len(rows), 0.2)
    for _ in range(3000):
        w = r / 9 + (1 - r) / 0.09
        covariance = np.linalg.inv(np.eye(3) / 4 + rows.T @ (w[:, None] * rows))
        mean = covariance @ rows.T @ (w * heights)
        off = (heights - rows @ mean) ** 2 + np.einsum("ni,ij,nj->n", rows, covariance, rows)
        on, out = np.log(0.8 / 0.3) - off / 0.18, np.log(0.2 / 3) - off / 18
        r = expit(out - on)
    bound = (r * out + (1 - r) * on + entr(r) + entr(1 - r) - 0.5 * np.log(2 * np.pi)).sum()
    bound -= 0.5 * (mean @ mean + np.trace(covariance)) / 4 + 3 * np.log(2)
    return bound + 0.5 * np.linalg.slogdet(covariance)[1] + 1.5, mean, covariance, r


@pytest.fixture(scope="module")
def fitted():
    torch.set_default_dtype(torch.float64)
    q = fit(plane, num_components=1, num_steps=400, lr=0.1)
    torch.set_default_dtype(torch.float32)
    return q


def test_numbers_shared_by_discrete_nodes_are_correlated_as_by_coordinate_ascent(fitted):
    bound, mean, covariance, r = ascended()
    assert abs(float(fitted.log_evidence) - bound) < 2e-3
    assert fitted.evidence_kind == "lower bound"
    marginals = [fitted.marginal(name) for name in ("level", "slopes")]
    found = np.concatenate([np.atleast_1d(m.mean) for m in marginals])
    spread = np.concatenate([np.atleast_1d(m.variance) for m in marginals])
    np.testing.assert_allclose(found, mean, atol=0.01)
    np.testing.assert_allclose(spread, covariance.diagonal(), rtol=0.02)
    np.testing.assert_allclose(fitted.marginal("z").probs[:, 1], r, atol=2e-3)


def test_numbers_shared_by_discrete_nodes_are_conditioned_drawn_and_guided_together(fitted):
    _, mean, covariance, _ = ascended()
    given = fitted.condition({"level": torch.tensor(2.0), "z": torch.zeros(6)})
    gain = covariance[1:, 0] / covariance[0, 0]
    slopes = given.marginal("slopes")
    np.testing.assert_allclose(slopes.mean, mean[1:] + gain * (2.0 - mean[0]), atol=0.02)
    left = covariance[1:, 1:] - np.outer(gain, covariance[0, 1:])
    np.testing.assert_allclose(slopes.variance, left.diagonal(), rtol=0.03)
    draws = fitted.sample(20_000)
    numbers = np.c_[draws["level"], draws["slopes"]]
    np.testing.assert_allclose(np.corrcoef(numbers.T), _correlation(covariance), atol=0.02)
    ours = fitted.guide(["level", "slopes"]).distribution().log_prob(torch.tensor(numbers[:20]))
    truth = multivariate_normal(mean, covariance).logpdf(numbers[:20])
    np.testing.assert_allclose(ours.detach(), truth, atol=0.1)


def _correlation(covariance):
    scale = np.sqrt(covariance.diagonal())
    return covariance / np.outer(scale, scale)


def test_more_components_stay_below_the_evidence_where_regions_make_a_tree():
    q = fit(lambda: beside_states(True), num_components=2, num_steps=50, lr=0.2)
    one = fit(lambda: beside_states(True), num_components=1, num_steps=50, lr=0.2)
    assert q.evidence_kind == one.evidence_kind == "lower bound"
    assert one.log_evidence < q.log_evidence < dense_log_z(True)


POINTS = np.array([-2.5, -1.8, 1.6, 2.7])


def clusters():
    """Which of the two means is which nothing tells."""
    with pyro.plate("clusters", 2):
        mean = pyro.sample("mean", dist.Normal(0.0, 3.0))
    with pyro.plate("rows", len(POINTS)):
        z = pyro.sample("z", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Normal(mean[z.long()], 1.0), obs=torch.from_numpy(POINTS))


@pytest.mark.parametrize("seed", range(2))
def test_rows_of_a_mixture_leave_its_means_both_orders(seed):
    """Counted one by one means would take the entropy of the order once more a row."""
    pyro.set_rng_seed(seed)
    q = fit(clusters, num_components=4, covariance="diagonal", num_steps=150, lr=0.1)
    prior, rows = norm.logpdf(GRID, 0, 3), norm.logpdf(POINTS[:, None], GRID, 1)
    both = np.logaddexp(rows[:, :, None], rows[:, None]).sum(0) - len(rows) * np.log(2)
    log_z = logsumexp(prior[:, None] + prior + both) + 2 * CELL
    assert q.evidence_kind == "lower bound"
    assert log_z - 0.1 < float(q.log_evidence) < log_z  # one order alone is .69 below
    assert abs(float((q.sample(2000)["mean"][:, 0] > 0).double().mean()) - 0.5) < 0.1


# ---------------------------------------------------------------------- what is a bound
def chained():
    a, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    z = pyro.sample("z", dist.Bernoulli(0.4))
    t = pyro.sample("t", dist.Bernoulli(0.3 + 0.4 * z))
    for name, state in {"f": z, "g": t}.items():
        pyro.sample(name, dist.Normal(a + b, 1.0 + state), obs=torch.tensor(0.5))


def ring():
    with pyro.plate("nodes", 3):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.Bernoulli(0.4))
    for i, j in [(0, 1), (1, 2), (2, 0)]:
        pyro.sample(f"f{i}", dist.Normal(x[i] + x[j], 1.0 + z[i]), obs=torch.tensor(0.5))


@pytest.mark.parametrize(
    "model, components, kind",
    [(chained, 1, "lower bound"), (chained, 2, "lower bound"), (ring, 1, "estimate")],
)
def test_the_evidence_is_a_bound_where_a_joint_distribution_has_it(model, components, kind):
    q = fit(model, num_components=components, num_steps=30)
    assert q.evidence_kind == kind
    assert ("independently" in q.status) == (model is ring)


def test_one_component_of_a_chain_of_states_is_below_the_evidence():
    q = fit(chained, num_components=1, num_steps=60, lr=0.2)
    log_z = logsumexp(
        [
            np.log(p) + _of_sum(1.0 + z, 1.0 + t)
            for z in (0, 1)
            for t in (0, 1)
            for p in [(0.4 if z else 0.6) * (0.3 + 0.4 * z if t else 0.7 - 0.4 * z)]
        ]
    )
    assert log_z - 0.3 < float(q.log_evidence) < log_z
    draws = q.sample(4000)
    assert np.corrcoef(draws["a"], draws["b"])[0, 1] < -0.3


def _of_sum(first, second):
    """log density of two readings of a + b, 0.5 both."""
    covariance = 2 * np.ones((2, 2)) + np.diag([first**2, second**2])
    return multivariate_normal(np.zeros(2), covariance).logpdf([0.5, 0.5])
