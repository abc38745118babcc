"""Mixtures start at what mean field says of them: against dense grids and mean field's bound."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing import mean_field_start
from pyrograph.infer.message_passing.iteration import Iteration
from pyrograph.infer.message_passing.mean_field_start import MeanFieldStart


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def counts(y, chance=None):
    """Two rates of which nothing is known that would tell them apart."""
    with pyro.plate("components", 2):
        rate = pyro.sample("rate", dist.Gamma(2.0, 0.5))
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Categorical(torch.ones(2) if chance is None else chance))
        pyro.sample("y", dist.Poisson(rate[z]), obs=y)


def counts_truth(y):
    """Log evidence, and means and deviations of the smaller and the larger rate."""
    rate = np.linspace(0.02, 20.0, 1000)
    log_y = stats.poisson.logpmf(y.numpy()[:, None], rate)  # [N, G]
    log_p = stats.gamma.logpdf(rate, 2.0, scale=2.0)
    log_p = log_p[:, None] + log_p + np.zeros((1000, 1000))
    for row in log_y:
        log_p += np.logaddexp(row[:, None], row) - math.log(2)
    p = np.exp(log_p - log_p.max())
    log_z = log_p.max() + np.log(p.sum()) + 2 * np.log(rate[1] - rate[0])
    p = np.triu(p) / np.triu(p).sum()  # the first rate is the smaller
    found = []
    for own in (p.sum(1), p.sum(0)):
        mean = own @ rate
        found.append((mean, math.sqrt(own @ (rate - mean) ** 2)))
    return log_z, found


@pytest.mark.parametrize("family", [{"rate": "gamma"}, {}])
@pytest.mark.parametrize("infer, error", [(pg.EP, 0.01), (pg.PowerEP, 0.05)])
def test_clusters_apart(infer, error, family):
    """From components that are alike the first answers are of negative precision, and `EP` met no
    density: "zero at every point of the grid"."""
    y = torch.from_numpy(np.random.default_rng(0).poisson(np.arange(60) % 2 * 10 + 2.0)).double()
    log_z, truth = counts_truth(y)
    posterior = pg.fit(counts, (y,), infer=infer, family=family, progress=False)
    assert posterior.converged
    assert float(posterior.log_evidence) == pytest.approx(log_z - math.log(2), abs=error)
    rate = posterior.marginal("rate")
    order = rate.mean.argsort()
    for k, (mean, sd) in zip(order, truth, strict=True):
        assert float(rate.mean[k]) == pytest.approx(mean, abs=0.05 * sd)
        assert float(rate.variance[k].sqrt()) == pytest.approx(sd, rel=0.05)


def test_scales_that_could_take_in_all_components():
    """The fixed point of one broad component is 45 nats below the bound of mean field."""
    y = torch.from_numpy(np.random.default_rng(1).normal(np.arange(80) % 2 * 6.0 - 3.0, 1.0))

    def model():
        with pyro.plate("components", 2):
            mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
            scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        weight = pyro.sample("weight", dist.Dirichlet(torch.ones(2)))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Categorical(weight))
            pyro.sample("y", dist.Normal(mean[z], scale[z]), obs=y)

    bound = pg.fit(model, infer=pg.VMP, progress=False).log_evidence
    posterior = pg.fit(model, infer=pg.EP, progress=False)
    assert posterior.converged and bound < posterior.log_evidence < bound + 0.5
    assert_close(
        posterior.marginal("mean").mean.sort().values, torch.tensor([-3.0, 3.0]), atol=0.4, rtol=0
    )


def start_of(engine):
    assert mean_field_start.applies(engine.network)
    parts = engine.graph, engine.network, engine.num_points, engine.family
    return MeanFieldStart(*parts, seed=0, is_wanted=True)


def test_more_components_than_clusters():
    """Mean field leaves two of four alike; from flat messages all four stayed so, 7 nats lower."""
    y = torch.from_numpy(np.random.default_rng(5).normal(np.arange(24) % 2 * 6.0, 1.0))

    def model():
        with pyro.plate("components", 4):
            mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Categorical(torch.ones(4)))
            pyro.sample("y", dist.Normal(mean[z], 1.0), obs=y)

    bound = pg.fit(model, infer=pg.VMP, progress=False).log_evidence
    posterior = pg.fit(model, infer=pg.EP, progress=False)
    assert posterior.converged and posterior.log_evidence > bound


def test_messages_stay_flat_where_mean_field_has_nothing_to_say():
    """Under zeros it refuses the program."""
    y = torch.tensor([1.0, 2.0, 11.0, 12.0])
    start = start_of(pg.EP(counts, progress=False).setup(y))
    bound = pg.fit(counts, (y,), infer=pg.VMP, progress=False).log_evidence
    assert start.messages() is not None
    assert start.bound == pytest.approx(float(bound), abs=1e-4)

    def model():
        pyro.factor("no", torch.zeros(()))
        with pyro.plate("components", 2):
            rate = pyro.sample("rate", dist.Gamma(2.0, 0.5))
        a = pyro.sample("a", dist.Categorical(torch.ones(2)))
        b = pyro.sample("b", dist.Categorical(torch.ones(2)))
        pyro.factor("differ", torch.where(a == b, -torch.inf, 0.0))
        for k, z in enumerate((a, b)):
            pyro.sample(f"y{k}", dist.Poisson(rate[z]), obs=y[3 * k])

    assert start_of(pg.EP(model, progress=False).setup()).messages() is None


def test_what_labels_do_not_choose_between_starts_as_ever():
    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(2)))
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Poisson((x + z).exp()), obs=torch.tensor(2.0))

    for infer in (pg.EP, pg.VMP):
        assert not mean_field_start.applies(infer(model, progress=False).setup().network)
    y = torch.tensor([1.0, 2.0, 11.0])
    assert not mean_field_start.applies(pg.VMP(counts, progress=False).setup(y).network)


def test_runs_are_reproducible_and_can_be_resumed():
    y = torch.from_numpy(np.random.default_rng(0).poisson(np.arange(12) % 2 * 10 + 2.0)).double()

    def engine(seed):
        pyro.set_rng_seed(seed)
        return pg.EP(counts, progress=False)

    whole = engine(3)
    expected = whole.run(y).marginal("rate").mean
    half = engine(3)
    half.step(y)
    resumed = engine(11)
    resumed.load_state_dict(half.state_dict())
    assert torch.equal(resumed.run(y).marginal("rate").mean, expected)
    assert torch.equal(engine(3).run(y).marginal("rate").mean, expected)


def test_messages_that_are_given_stay(monkeypatch):
    y = torch.tensor([1.0, 2.0, 11.0, 12.0])
    engine = pg.EP(counts, progress=False)
    engine.run(y)
    again = pg.EP(counts, init=engine.state_dict()["messages"], progress=False)
    monkeypatch.setattr(mean_field_start, "applies", None)
    again.run(y)
    assert again.num_done <= 2


def test_an_evidence_below_the_bound_of_mean_field_is_told_of(monkeypatch):
    """Also by a run that is resumed."""
    y = torch.tensor([1.0, 2.0, 11.0, 12.0])
    evidence = Iteration.evidence
    monkeypatch.setattr(
        Iteration, "evidence", lambda run: evidence(run) + 2.0 * run.network.is_mean_field
    )
    engine = pg.EP(counts, progress=False)
    engine.step(y)
    resumed = pg.EP(counts, progress=False)
    resumed.load_state_dict(engine.state_dict())
    for own in (engine, resumed):
        with pytest.warns(pg.errors.ConvergenceWarning, match="Mean field's bound"):
            posterior = own.run(y)
        assert posterior.converged and "not the best one" in posterior.status


# ---------------------------------------------------------------------- several numbers each
def lines(x, y):
    with pyro.plate("lines", 2):
        a = pyro.sample("a", dist.Normal(0.0, 3.0))
        b = pyro.sample("b", dist.Normal(0.0, 3.0))
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Categorical(torch.ones(2)))
        pyro.sample("y", dist.Normal(a[z] + b[z] * x, 0.3), obs=y)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_lines(seed):
    """Started from a row for every number, the intercept and the slope of one line from rows of
    others, mean field ended 141 nats lower. The truth: of the labels that made the rows."""
    x = torch.linspace(-2.0, 2.0, 24)
    which = torch.arange(24) % 2
    noise = torch.from_numpy(np.random.default_rng(0).normal(0.0, 0.3, 24))
    y = torch.where(which == 0, 1 + 2 * x, -1 - 2 * x) + noise
    known, means = -24 * math.log(2), []
    for k in range(2):
        rows = torch.stack([torch.ones(24), x], 1)[which == k]
        covariance = 9 * rows @ rows.T + 0.09 * torch.eye(len(rows))
        known += float(dist.MultivariateNormal(torch.zeros(12), covariance).log_prob(y[which == k]))
        means.append(9 * rows.T @ torch.linalg.solve(covariance, y[which == k]))
    pyro.set_rng_seed(seed)
    for infer in (pg.VMP, pg.EP):
        posterior = pg.fit(lines, (x, y), infer=infer, progress=False)
        assert posterior.converged and float(posterior.log_evidence) > known - 0.5
        found = torch.stack([posterior.marginal(name).mean for name in "ab"], 1)
        found = found[found[:, 1].argsort(descending=True)]
        assert_close(found, torch.stack(means), atol=0.15, rtol=0)
