"""Sweeps that run away from flat messages start again at the mode."""

import functools
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

import pyrograph as pg
from pyrograph.infer.message_passing.network.build import build
from pyrograph.infer.message_passing.settling.mode_start import messages_at_mode


def logistic(rows, labels):
    weights = pyro.sample("weights", dist.Normal(rows.new_zeros(rows.shape[1]), 10.0).to_event(1))
    with pyro.plate("rows", len(rows)):
        pyro.sample("labels", dist.Bernoulli(logits=rows @ weights), obs=labels)


def unknown_noise(rows, y):
    weights = pyro.sample("weights", dist.Normal(rows.new_zeros(rows.shape[1]), 10.0).to_event(1))
    noise = pyro.sample("noise", dist.LogNormal(rows.new_zeros(()), 1.0))
    with pyro.plate("rows", len(rows)):
        pyro.sample("y", dist.Normal(rows @ weights, noise), obs=y)


def labelled_rows(count, seed):
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 2, generator=draw, dtype=torch.float64)
    logits = rows @ torch.tensor([4.0, -3.0], dtype=torch.float64)
    return rows, (
        torch.rand(count, generator=draw, dtype=torch.float64) < logits.sigmoid()
    ).double()


def regression_rows(count, seed):
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 3, generator=draw, dtype=torch.float64)
    truth = 3 * torch.randn(3, generator=draw, dtype=torch.float64)
    return rows, rows @ truth + 0.05 * torch.randn(count, generator=draw, dtype=torch.float64)


def logistic_truth(rows, labels, prior=10.0, count=41):
    """Log evidence, mean and standard deviation on a dense grid about the mode."""
    x, t = rows.numpy(), labels.numpy()
    dims = x.shape[1]
    mode = np.zeros(dims)
    for _ in range(100):  # Newton's method
        p = 1 / (1 + np.exp(-x @ mode))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.eye(dims) / prior**2
        mode = mode + np.linalg.solve(hessian, x.T @ (t - p) - mode / prior**2)
    root = np.linalg.cholesky(np.linalg.inv(hessian))
    z = np.linspace(-7, 7, count)
    offsets = np.stack(np.meshgrid(*[z] * dims, indexing="ij"), -1).reshape(-1, dims)
    w = mode + offsets @ root.T
    logits = w @ x.T
    log_p = (t * logits - np.logaddexp(0, logits)).sum(1)
    log_p = log_p + stats.norm.logpdf(w, 0, prior).sum(1)
    weight = np.exp(log_p - log_p.max())
    evidence = log_p.max() + np.log(weight.sum() * (z[1] - z[0]) ** dims * np.linalg.det(root))
    mean = (weight[:, None] * w).sum(0) / weight.sum()
    return evidence, mean, np.sqrt((weight[:, None] * (w - mean) ** 2).sum(0) / weight.sum())


def noise_truth(rows, y):
    """Log evidence, mean and standard deviation of the log noise: the weights are integrated in
    closed form, the noise on a dense grid."""
    x, t = rows.numpy(), y.numpy()
    count = len(t)
    fit, _, _, _ = np.linalg.lstsq(x, t, rcond=None)
    rest = ((t - x @ fit) ** 2).sum()
    centre = 0.5 * math.log(rest / count)
    grid = centre + np.linspace(-8, 8, 201) / math.sqrt(2 * count)
    log_p = []
    for log_noise in grid:
        s2 = math.exp(2 * log_noise)
        inner = x.T @ x / s2 + np.eye(3) / 100
        shift = x.T @ t / s2
        value = -count / 2 * math.log(2 * math.pi * s2) - (t @ t) / (2 * s2)
        value += shift @ np.linalg.solve(inner, shift) / 2
        value -= np.linalg.slogdet(inner)[1] / 2 + 3 * math.log(10)
        log_p.append(value - log_noise**2 / 2 - math.log(2 * math.pi) / 2)
    log_p = np.array(log_p)
    weight = np.exp(log_p - log_p.max())
    mean = (weight * grid).sum() / weight.sum()
    sd = math.sqrt((weight * (grid - mean) ** 2).sum() / weight.sum())
    return log_p.max() + math.log(weight.sum() * (grid[1] - grid[0])), mean, sd


def test_a_logistic_regression_under_a_wide_prior_settles():
    rows, labels = labelled_rows(2000, 0)
    evidence, mean, sd = logistic_truth(rows, labels)
    engine = pg.EP(logistic, num_steps=60, progress=False)
    posterior = engine.run(rows, labels)
    assert posterior.converged and engine.state_dict()["automatic"]["was_at_mode"]
    found = posterior.marginal("weights")
    assert np.abs((found.mean.numpy() - mean) / sd).max() < 0.01
    assert np.abs(found.variance.sqrt().numpy() / sd - 1).max() < 0.005
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=0.005)


def test_a_regression_of_unknown_noise_under_a_wide_prior_settles():
    rows, y = regression_rows(1000, 0)
    evidence, mean, sd = noise_truth(rows, y)
    engine = pg.EP(unknown_noise, num_steps=60, progress=False)
    posterior = engine.run(rows, y)
    assert posterior.converged and engine.state_dict()["automatic"]["was_at_mode"]
    draws = posterior.sample(20_000)["noise"].log()
    assert float(draws.mean()) == pytest.approx(mean, abs=0.05 * sd)
    assert float(draws.std()) == pytest.approx(sd, rel=0.03)
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=0.02)


def test_the_start_is_the_laplace_approximation():
    """Beliefs stand at the mode, their precisions are the diagonal blocks of -Hessian."""
    counts = torch.tensor([3.0, 8.0, 1.0, 4.0], dtype=torch.float64)

    def model():
        level = pyro.sample("level", dist.Normal(counts.new_zeros(()), 2.0))
        with pyro.plate("places", 4):
            local = pyro.sample("local", dist.Normal(level, 0.7))
            pyro.sample("counts", dist.Poisson(local.exp()), obs=counts)

    def log_p(v):
        level, local = v[0], v[1:]
        prior = -(level**2) / 8 - ((local - level) ** 2).sum() / (2 * 0.49)
        return prior + (counts * local - local.exp()).sum()

    v = torch.zeros(5, dtype=torch.float64)
    for _ in range(50):
        slope = torch.autograd.functional.jacobian(log_p, v)
        v = v - torch.linalg.solve(torch.autograd.functional.hessian(log_p, v), slope)
    precision = -torch.autograd.functional.hessian(log_p, v).diagonal()

    graph = pg.trace_graph(model, unconstrained=True)
    network = build(graph, lambda group: torch.ones(group.num_factors, dtype=torch.float64))
    engine = pg.EP(model).setup()
    beliefs = engine.network.beliefs_of(messages_at_mode(graph, network))[0]
    torch.testing.assert_close(beliefs.precision.flatten(), precision, rtol=1e-4, atol=0)
    torch.testing.assert_close(beliefs.mean.flatten(), v, rtol=0, atol=1e-4)


def test_discrete_nodes_have_no_mode_to_start_from():
    def model():
        x = pyro.sample("x", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(3 * x, 1.0))

    engine = pg.EP(model).setup()
    assert messages_at_mode(engine.graph, engine.network) is None


def test_a_run_resumed_after_the_start_ends_where_the_whole_run_does():
    rows, labels = labelled_rows(300, 0)
    whole = pg.EP(logistic, num_steps=60)
    whole.run(rows, labels)
    first = pg.EP(logistic, num_steps=60).setup(rows, labels)
    while not first.state_dict()["automatic"]["was_at_mode"]:
        first.step()
    again = pg.EP(logistic, num_steps=60).setup(rows, labels)
    again.load_state_dict(first.state_dict())
    posterior = again.run()
    expected = whole.posterior().marginal("weights")
    torch.testing.assert_close(posterior.marginal("weights").mean, expected.mean)
    assert again.num_done == whole.num_done


def test_steps_have_no_slope_and_are_integrated():

    def steps():
        x = pyro.sample("x", dist.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0))
        y = pyro.sample("y", dist.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0))
        fall = torch.where(x > 0.3, 0.0, -3.0)
        pyro.factor("steps", fall * torch.where(y > 0, 1.0, 2.0))

    posterior = pg.fit(steps, infer=pg.EP, progress=False)
    above = stats.norm.sf(0.3)
    low = 0.5 * math.exp(-3) + 0.5 * math.exp(-6)
    evidence = above + (1 - above) * low
    mean = stats.norm.pdf(0.3) * (1 - low) / evidence
    assert posterior.converged
    assert float(posterior.log_evidence) == pytest.approx(math.log(evidence), abs=1e-3)
    assert float(posterior.marginal("x").mean) == pytest.approx(mean, abs=1e-3)


def counts(seed):
    draw = np.random.default_rng(seed)
    return torch.tensor(draw.poisson(20 * np.exp(0.5 + 0.6 * draw.normal(size=40)))).double()


def hierarchy(y):
    """Counts of 40 groups, whose rates have a latent mean and a latent log scale."""
    mean = pyro.sample("mean", dist.Normal(y.new_zeros(()), 5.0))
    log_scale = pyro.sample("log_scale", dist.Normal(y.new_zeros(()), 2.0))
    with pyro.plate("groups", len(y)):
        log_rate = pyro.sample("log_rate", dist.Normal(mean, log_scale.exp()))
        pyro.sample("y", dist.Poisson(20 * log_rate.exp()), obs=y)


@functools.cache
def hierarchy_truth(seed):
    """Log evidence of ``counts(seed)``, mean and standard deviation of the log scale: rates on
    Gauss-Hermite points about their own modes, mean and scale on a dense grid."""
    mean, log_scale = np.meshgrid(
        np.linspace(-0.3, 1.5, 61), np.linspace(-1.2, 0.3, 61), indexing="ij"
    )
    z, w = np.polynomial.hermite_e.hermegauss(20)
    log_p = stats.norm.logpdf(mean, 0, 5) + stats.norm.logpdf(log_scale, 0, 2)
    for count in counts(seed).numpy():
        x = np.full_like(mean, math.log((count + 0.5) / 20))
        curve = np.exp(-2 * log_scale)
        for _ in range(30):  # Newton's method
            slope = count - 20 * np.exp(x) - (x - mean) * curve
            x = x + np.clip(slope / (20 * np.exp(x) + curve), -1, 1)
        width = (20 * np.exp(x) + curve) ** -0.5
        t = x[..., None] + width[..., None] * z
        inner = stats.poisson.logpmf(count, 20 * np.exp(t)) + z**2 / 2 + np.log(w)
        inner = inner + stats.norm.logpdf(t, mean[..., None], np.exp(log_scale)[..., None])
        log_p = log_p + logsumexp(inner, axis=-1) + np.log(width)
    cell = (mean[1, 0] - mean[0, 0]) * (log_scale[0, 1] - log_scale[0, 0])
    weight = np.exp(log_p - logsumexp(log_p))
    centre = (weight * log_scale).sum()
    sd = math.sqrt((weight * (log_scale - centre) ** 2).sum())
    return logsumexp(log_p) + math.log(cell), centre, sd


@pytest.mark.parametrize(
    "options, evidence_within, moments_within",
    [({}, 0.02, 0.02), ({"alpha": 0.5}, 0.25, 0.05), ({"alpha": 0.25}, 0.35, 0.05)],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_hierarchy_settles_at_any_power(seed, options, evidence_within, moments_within):
    y = counts(seed)
    evidence, centre, sd = hierarchy_truth(seed)
    preset = pg.PowerEP if options else pg.EP
    posterior = preset(hierarchy, num_steps=300, **options).run(y)
    assert posterior.converged
    found = posterior.marginal("log_scale")
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=evidence_within)
    assert float(found.mean) == pytest.approx(centre, abs=moments_within * sd)


def learning_dogs(dogs, trials, seed):
    """Rows of 1, shocks avoided and shocks had so far, and whether the next one is had."""
    draw = torch.Generator().manual_seed(seed)
    avoided, had = torch.zeros(2, dogs, dtype=torch.float64)
    rows, shocks = [], []
    for _ in range(trials):
        rows.append(torch.stack([torch.ones_like(had), avoided, had], 1))
        chance = (1.8 - 0.36 * avoided - 0.21 * had).sigmoid()
        shocks.append((torch.rand(dogs, generator=draw, dtype=torch.float64) < chance).double())
        avoided, had = avoided + 1 - shocks[-1], had + shocks[-1]
    return torch.cat(rows), torch.cat(shocks)


def test_sweeps_that_leave_the_mode_slowly_start_there_again_with_more_damping():
    """From first messages under priors of width 100 no damping settles them: after 300 sweeps the
    intercept was 176, and the log evidence -2387."""
    rows, shocks = learning_dogs(10, 20, 0)

    def model():
        weights = [pyro.sample(f"w{k}", dist.Normal(0.0, 100.0)) for k in range(3)]
        with pyro.plate("rows", len(rows)):
            logits = sum(w * column for w, column in zip(weights, rows.T, strict=True))
            pyro.sample("shocks", dist.Bernoulli(logits=logits), obs=shocks)

    evidence, mean, sd = logistic_truth(rows, shocks, prior=100.0, count=25)
    posterior = pg.EP(model, num_steps=100).run()
    assert posterior.converged
    found = np.array([float(posterior.marginal(f"w{k}").mean) for k in range(3)])
    assert (found - mean) / sd == pytest.approx(0, abs=0.1)
    # three sites that shift together, each with a belief of its own
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=2.0)


def test_a_run_that_fails_starts_again_with_more_damping(monkeypatch):
    """Without a mode to start from: a centred hierarchy of a scale that may be 0 has none."""
    where = "pyrograph.infer.message_passing.settling.settling.messages_at_mode"
    monkeypatch.setattr(where, lambda graph, network: None)
    y = counts(0)
    evidence, _, _ = hierarchy_truth(0)
    posterior = pg.PowerEP(hierarchy, num_steps=500).run(y)
    assert posterior.converged
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=0.25)


@pytest.mark.parametrize("infer", [pg.EP, pg.PowerEP])
@pytest.mark.parametrize("counts", [[0.0, 0.0, 0.0, 1e4], [1e3, 1e4, 1e5], [0.0] * 30 + [5e4]])
def test_counts_that_contradict_each_other_have_their_peaks_far_off_their_cavities(infer, counts):
    """From the cavity that the others make, a count of 10,000 beside three of 0 has its peak 87
    deviations off: a grid that does not reach it has a sliver at its edge for the moments."""
    y = torch.tensor(counts, dtype=torch.float64)

    def model():
        level = pyro.sample("level", dist.Normal(torch.tensor(0.0, dtype=torch.float64), 10.0))
        with pyro.plate("places", len(y)):
            pyro.sample("counts", dist.Poisson(level.exp()), obs=y)

    top = math.log(y.mean())
    grid = np.linspace(top - 12 / math.sqrt(y.sum()), top + 12 / math.sqrt(y.sum()), 4001)
    log_p = stats.norm.logpdf(grid, 0, 10)
    log_p += stats.poisson.logpmf(y.numpy()[:, None], np.exp(grid)).sum(0)
    share = np.exp(log_p - logsumexp(log_p))
    mean = (share * grid).sum()
    sd = math.sqrt((share * (grid - mean) ** 2).sum())
    posterior = pg.fit(model, infer=infer, progress=False, num_steps=30)
    found = posterior.marginal("level")
    assert posterior.converged
    assert float(found.mean) == pytest.approx(mean, abs=0.01 * sd)
    assert float(found.stddev) == pytest.approx(sd, rel=0.001)
    evidence = logsumexp(log_p) + math.log(grid[1] - grid[0])
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=1e-3)
