"""Dirichlet beliefs: weights of mixtures, rows of transition and confusion matrices, sticks. Truth:
Dirichlet-multinomial closed forms, sums over all labels, coordinate ascent and expectation
propagation by hand."""

import itertools
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.ops.indexing import Vindex
from scipy import special, stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import OptionError, PyrographError, SlowWarning, UnsupportedFactor
from pyrograph.infer.message_passing.continuous.conjugate_factors import ConjugateFactors
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.network import slow_grids
from tests.infer.message_passing_continuous.runs import fit

DOUBLE = torch.float64
PRIOR = torch.tensor([0.5, 1.0, 2.0], dtype=DOUBLE)
LOC = torch.tensor([-2.0, 0.0, 2.0], dtype=DOUBLE)
Y = torch.tensor([-2.1, 0.3, 1.7, 1.1, 2.2, -0.9], dtype=DOUBLE)
WEIGHTS = {"w": "dirichlet"}


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def mixture(y=Y, prior=PRIOR, loc=LOC):
    w = pyro.sample("w", dist.Dirichlet(prior))
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Categorical(w))
        pyro.sample("y", dist.Normal(loc[z], 1.0), obs=y)


ALPHA = PRIOR.numpy()
LIKELIHOODS = stats.norm(LOC.numpy(), 1.0).logpdf(Y.numpy()[:, None])


def log_beta(a):
    return special.gammaln(a).sum(-1) - special.gammaln(a.sum(-1))


def log_means(a):
    return special.digamma(a) - special.digamma(a.sum(-1, keepdims=True))


# ---------------------------------------------------------------------- topics
@pytest.mark.parametrize("vocabulary", [20, 150])
def test_topics_of_words_are_where_coordinate_ascent_stands(vocabulary):
    """Latent Dirichlet allocation: Blei, Ng & Jordan (2003), with a prior on topics."""
    num_topics, num_documents, length = 3, 4, 12
    draw = np.random.default_rng(0)
    own = draw.dirichlet(np.full(vocabulary, 0.05), num_topics)
    word = np.concatenate([draw.choice(vocabulary, length, p=own[d % 3]) for d in range(4)])
    document = np.arange(num_documents).repeat(length)

    def topics():
        with pyro.plate("topics", num_topics):
            phi = pyro.sample("phi", dist.Dirichlet(torch.full((vocabulary,), 0.1)))
        with pyro.plate("documents", num_documents):
            theta = pyro.sample("theta", dist.Dirichlet(torch.full((num_topics,), 0.3)))
        with pyro.plate("words", len(word)):
            z = pyro.sample("z", dist.Categorical(theta[document]))
            pyro.sample("w", dist.Categorical(Vindex(phi)[z]), obs=torch.tensor(word))

    family = {"phi": "dirichlet", "theta": "dirichlet"}
    posterior = fit(topics, (), pg.VMP, family=family)
    assert posterior.converged
    phi = posterior.marginal("phi").concentration.numpy()
    theta = posterior.marginal("theta").concentration.numpy()
    z = posterior.marginal("z").probs.numpy()
    counts = [np.bincount(word, weights=z[:, k], minlength=vocabulary) for k in range(num_topics)]
    np.testing.assert_allclose(phi, 0.1 + np.stack(counts), rtol=1e-6)
    counts = [z[document == d].sum(0) for d in range(num_documents)]
    np.testing.assert_allclose(theta, 0.3 + np.stack(counts), rtol=1e-6)
    logs = log_means(theta)[document] + log_means(phi)[:, word].T
    np.testing.assert_allclose(z, special.softmax(logs, 1), atol=1e-6)
    bound = (z * logs).sum() - special.xlogy(z, z).sum()
    for eta, prior in ((phi, 0.1), (theta, 0.3)):
        bound += ((prior - eta) * log_means(eta)).sum()
        bound += (log_beta(eta) - log_beta(np.full_like(eta, prior))).sum()
    assert_close(float(posterior.log_evidence), bound, rtol=0, atol=1e-7)


def test_powers_of_many_shares_are_read_from_few_values(monkeypatch):
    """Twice as many take no more points."""
    points = []
    whole = LocalDensity.at_nodes

    def counted(self, x):
        points.append(len(x[0]))
        return whole(self, x)

    monkeypatch.setattr(LocalDensity, "at_nodes", counted)
    numbers = []
    for size in (100, 200):
        counts = torch.arange(size).remainder(7).to(DOUBLE)

        def texts(counts=counts):
            w = pyro.sample("w", dist.Dirichlet(torch.full((len(counts),), 0.5)))
            pyro.sample("y", dist.Multinomial(int(counts.sum()), w), obs=counts)

        points.clear()
        q = fit(texts, (), pg.EP, family=WEIGHTS)
        numbers.append(sum(points))
        truth = 0.5 + counts.numpy()
        np.testing.assert_allclose(q.marginal("w").concentration.numpy(), truth, rtol=1e-9)
    assert numbers[1] <= numbers[0]


# ---------------------------------------------------------------------- observed labels
def counted(labels, prior):
    w = pyro.sample("w", dist.Dirichlet(prior))
    with pyro.plate("rows", len(labels)):
        pyro.sample("y", dist.Categorical(w), obs=labels)


@pytest.mark.parametrize("engine", [pg.VMP, pg.EP, pg.PowerEP])
@pytest.mark.parametrize("size", [2, 3, 40])
def test_counts_of_categories_are_exact(engine, size):
    draw = torch.Generator().manual_seed(size)
    labels = torch.randint(size, (25,), generator=draw)
    prior = 0.2 + torch.rand(size, generator=draw)
    options = {"alpha": 0.5} if engine is pg.PowerEP else {}
    q = fit(counted, (labels, prior), engine, family=WEIGHTS, **options)
    after = prior + torch.bincount(labels, minlength=size)
    assert_close(q.marginal("w").concentration, after, rtol=1e-9, atol=1e-9)
    truth = log_beta(after.numpy()) - log_beta(prior.numpy())
    assert_close(float(q.log_evidence), float(truth), rtol=0, atol=1e-8)


def test_multinomial_counts_are_exact():
    counts = torch.tensor([[3.0, 0.0, 2.0], [1.0, 4.0, 0.0]])

    def model():
        w = pyro.sample("w", dist.Dirichlet(PRIOR))
        with pyro.plate("rows", 2):
            pyro.sample("y", dist.Multinomial(5, w), obs=counts)

    q = fit(model, (), pg.EP, family=WEIGHTS)
    assert_close(q.marginal("w").concentration, PRIOR + counts.sum(0), rtol=1e-8, atol=1e-8)
    coefficient = (special.gammaln(6) - special.gammaln(counts.numpy() + 1).sum(1)).sum()
    truth = log_beta((PRIOR + counts.sum(0)).numpy()) - log_beta(PRIOR.numpy()) + coefficient
    assert_close(float(q.log_evidence), float(truth), rtol=0, atol=1e-8)


# ---------------------------------------------------------------------- mixtures
def enumerated(prior=ALPHA):
    """Log evidence, shares of every label and means of the weights, over all labels."""
    logs, hits, means = [], [], []
    for z in itertools.product(range(3), repeat=len(Y)):
        after = prior + np.bincount(z, minlength=3)
        logs.append(log_beta(after) - log_beta(prior) + LIKELIHOODS[np.arange(len(Y)), z].sum())
        hits.append(np.eye(3)[list(z)]), means.append(after / after.sum())
    share = np.exp(np.array(logs) - special.logsumexp(logs))
    return (
        special.logsumexp(logs),
        np.tensordot(share, np.array(hits), 1),
        share @ np.array(means),
    )


def ascended(prior=ALPHA, sweeps=2000):
    """The bound, parameters and labels of mean field."""
    q = np.full((len(Y), 3), 1 / 3)
    for _ in range(sweeps):
        after = prior + q.sum(0)
        logs = LIKELIHOODS + log_means(after)
        q = special.softmax(logs, 1)
    after = prior + q.sum(0)
    bound = log_beta(after) - log_beta(prior) + (q * (LIKELIHOODS - np.log(q))).sum()
    return bound, after, q


@pytest.mark.parametrize("schedule", ["sequential", "parallel", "residual"])
def test_mean_field_is_coordinate_ascent(schedule):
    q = fit(mixture, (), pg.VMP, family=WEIGHTS, schedule=schedule)
    bound, after, labels = ascended()
    assert q.converged and q.evidence_kind == "lower bound"
    assert_close(float(q.log_evidence), bound, rtol=0, atol=1e-7)
    assert bound < enumerated()[0]
    np.testing.assert_allclose(q.marginal("w").concentration.numpy(), after, rtol=1e-6)
    np.testing.assert_allclose(q.marginal("z").probs.numpy(), labels, atol=1e-6)


def projected(expected, start):
    """The Dirichlet of these expected logarithms, by a root finder for the sum."""
    from scipy.optimize import root

    found = root(lambda t: log_means(np.exp(t)) - expected, np.log(start), tol=1e-13)
    assert abs(found.fun).max() < 1e-10
    return np.exp(found.x)


def plain_ep(prior=ALPHA, sweeps=60):
    """Sites one after the other: parameters, labels and the evidence."""
    sites = np.zeros((len(Y), 3))
    scale = np.zeros(len(Y))
    for _ in range(sweeps):
        for n in range(len(Y)):
            belief = prior + sites.sum(0)
            cavity = belief - sites[n]
            told = cavity + np.eye(3)
            logs = LIKELIHOODS[n] + np.array([log_beta(t) for t in told]) - log_beta(cavity)
            share = special.softmax(logs)
            after = projected(share @ log_means(told), belief)
            sites[n] = after - cavity
            scale[n] = special.logsumexp(logs) + log_beta(cavity) - log_beta(after)
    belief = prior + sites.sum(0)
    labels = []
    for n in range(len(Y)):
        cavity = belief - sites[n]
        labels.append(special.softmax(LIKELIHOODS[n] + np.log(cavity)))
    return log_beta(belief) - log_beta(prior) + scale.sum(), belief, np.array(labels)


def test_expectation_propagation_is_that_by_hand_and_near_enumeration():
    q = fit(mixture, (), pg.EP, family=WEIGHTS)
    evidence, belief, labels = plain_ep()
    assert_close(float(q.log_evidence), evidence, rtol=0, atol=1e-6)
    np.testing.assert_allclose(q.marginal("w").concentration.numpy(), belief, rtol=1e-5)
    np.testing.assert_allclose(q.marginal("z").probs.numpy(), labels, atol=1e-6)
    truth, shares, means = enumerated()
    assert abs(float(q.log_evidence) - truth) < 0.03  # measured: .015
    np.testing.assert_allclose(q.marginal("z").probs.numpy(), shares, atol=0.03)  # measured: .018
    np.testing.assert_allclose(q.marginal("w").mean.numpy(), means, atol=0.02)


def test_evidence_rises_with_alpha():
    """Mean field is a lower bound; alpha = 2 divides by less than there is."""
    powers = [fit(mixture, (), pg.PowerEP, alpha=a, family=WEIGHTS) for a in (0.5, 1.0, 2.0)]
    low, half, one, two = (
        float(q.log_evidence) for q in [fit(mixture, (), pg.VMP, family=WEIGHTS), *powers]
    )
    assert low < half < one < two and low < enumerated()[0] < two
    assert_close(float(powers[1].log_evidence), plain_ep()[0], rtol=0, atol=1e-6)


# ---------------------------------------------------------------------- rows that a state chooses
def chain(y, prior, emission):
    with pyro.plate("from", 2):
        row = pyro.sample("row", dist.Dirichlet(prior))
    z = pyro.sample("z_0", dist.Categorical(torch.ones(2) / 2))
    for t in range(1, len(y)):
        z = pyro.sample(f"z_{t}", dist.Categorical(row[z]))
        pyro.sample(f"y_{t}", dist.Categorical(emission[z]), obs=y[t])


CHAIN = (
    torch.tensor([0, 0, 1, 1, 1, 0]),
    torch.tensor([[3.0, 1.0], [1.0, 2.0]]),
    torch.tensor([[0.8, 0.2], [0.1, 0.9]]),
)


def test_transitions_are_those_of_coordinate_ascent():
    q = fit(chain, CHAIN, pg.VMP, family={"row": "dirichlet"})
    y, prior, emission = (t.numpy() for t in CHAIN)
    length = len(y)
    labels, log_e = np.full((length, 2), 0.5), np.log(emission)
    for _ in range(3000):
        counts = sum(np.outer(labels[t - 1], labels[t]) for t in range(1, length))
        log_row = log_means(prior + counts)
        for t in range(length):
            logs = np.zeros(2) if t == 0 else labels[t - 1] @ log_row + log_e[:, y[t]]
            if t + 1 < length:
                logs = logs + log_row @ labels[t + 1]
            labels[t] = special.softmax(logs)
    counts = sum(np.outer(labels[t - 1], labels[t]) for t in range(1, length))
    bound = (log_beta(prior + counts) - log_beta(prior)).sum() + np.log(0.5)
    bound += sum(labels[t] @ log_e[:, y[t]] for t in range(1, length))
    bound -= (labels * np.log(labels)).sum()
    assert_close(float(q.log_evidence), bound, rtol=0, atol=1e-7)
    found = q.marginal("row").concentration.numpy()
    np.testing.assert_allclose(found, prior + counts, rtol=1e-6)


def test_transitions_of_expectation_propagation_are_near_enumeration():
    q = fit(chain, CHAIN, pg.EP, family={"row": "dirichlet"})
    y, prior, emission = (t.numpy() for t in CHAIN)
    logs, means = [], []
    for z in itertools.product(range(2), repeat=len(y)):
        counts = np.zeros((2, 2))
        np.add.at(counts, (list(z[:-1]), list(z[1:])), 1)
        own = (log_beta(prior + counts) - log_beta(prior)).sum()
        logs.append(own + np.log(emission[list(z[1:]), y[1:]]).sum() + np.log(0.5))
        after = prior + counts
        means.append(after / after.sum(1, keepdims=True))
    share = np.exp(np.array(logs) - special.logsumexp(logs))
    # the rows close cycles over all steps
    assert abs(float(q.log_evidence) - special.logsumexp(logs)) < 0.2  # measured: .134
    truth = np.tensordot(share, np.array(means), 1)
    np.testing.assert_allclose(q.marginal("row").mean.numpy(), truth, atol=0.03)


# ---------------------------------------------------------------------- sums over several nodes
def sticks(y, loc):
    count = len(loc)
    with pyro.plate("sticks", count - 1):
        v = pyro.sample("v", dist.Beta(1.0, 1.5))
    w = torch.nn.functional.pad(v, (0, 1), value=1.0)
    w = w * torch.nn.functional.pad((1 - v).cumprod(-1), (1, 0), value=1.0)
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Categorical(w))
        pyro.sample("y", dist.Normal(loc[z], 1.0), obs=y)


@pytest.mark.parametrize("count", [3, 12, 30])
def test_sticks_of_a_truncated_process_are_those_of_coordinate_ascent(count):
    """As in Blei & Jordan (2006)."""
    loc = torch.linspace(-4, 4, count)
    q = fit(sticks, (Y, loc), pg.VMP, family={"v": "beta"})
    like = stats.norm(loc.numpy(), 1.0).logpdf(Y.numpy()[:, None])
    labels = np.full((len(Y), count), 1 / count)
    for _ in range(3000):
        total = labels.sum(0)
        later = total[::-1].cumsum()[::-1]
        a, b = 1.0 + total[:-1], 1.5 + later[1:]
        log_v, log_rest = log_means(np.stack([a, b], 1)).T
        log_w = np.append(log_v, 0.0) + np.insert(log_rest.cumsum(), 0, 0.0)
        labels = special.softmax(like + log_w, 1)
    bound = special.betaln(a, b).sum() - (count - 1) * special.betaln(1.0, 1.5)
    bound += (labels * like).sum() - special.xlogy(labels, labels).sum()
    assert_close(float(q.log_evidence), bound, rtol=0, atol=1e-6)
    np.testing.assert_allclose(q.marginal("v").mean.numpy(), a / (a + b), atol=1e-5)


# ---------------------------------------------------------------------- what comes of it
def test_posteriors_are_dirichlet_distributions_that_compose():
    q = fit(mixture, (), pg.VMP, family=WEIGHTS)
    w = q.marginal("w")
    assert isinstance(w, dist.Dirichlet) and q.sample(5)["w"].shape == (5, 3)
    guide = q.guide()
    values = pyro.poutine.trace(guide).get_trace().nodes["w"]["value"]
    assert_close(values.sum(), torch.tensor(1.0))
    again = type(guide).from_state_dict(guide.state_dict())
    assert_close(again.distribution("w").concentration, w.concentration)
    weights = pyro.infer.Importance(mixture, guide, num_samples=400).run()
    assert abs(float(weights.get_log_normalizer()) - enumerated()[0]) < 0.2


def test_quantiles_are_those_of_every_number_and_medians_add_up():
    q = fit(mixture, (), pg.VMP, family=WEIGHTS)
    a = q.marginal("w").concentration.numpy()
    found = q.guide().quantiles([0.1, 0.9])["w"].numpy()
    marginal = stats.beta(a, a.sum() - a)
    np.testing.assert_allclose(found, [marginal.ppf(0.1), marginal.ppf(0.9)], rtol=1e-6)
    first = stats.beta(a[0], a[1:].sum()).median()
    second = (1 - first) * stats.beta(a[1], a[2]).median()
    middle = q.guide().median()["w"].numpy()
    np.testing.assert_allclose(middle, [first, second, 1 - first - second], rtol=1e-6)


def test_single_precision_and_many_weights():
    torch.set_default_dtype(torch.float32)
    draw = torch.Generator().manual_seed(0)
    loc = torch.linspace(-20, 20, 30)
    y = loc[torch.randint(30, (200,), generator=draw)]
    q = fit(mixture, (y, torch.ones(30), loc), pg.VMP, family=WEIGHTS)
    found = q.marginal("w")
    assert found.concentration.dtype == torch.float32
    assert_close(found.concentration.sum(), torch.tensor(230.0), rtol=1e-4, atol=0)


def test_evidence_differentiates_by_the_prior():
    prior = PRIOR.clone().requires_grad_()
    value = fit(mixture, (Y, prior), pg.EP, family=WEIGHTS).log_evidence
    (slope,) = torch.autograd.grad(value, prior)
    for k in range(3):
        step = 1e-5 * torch.eye(3)[k]
        ends = [
            float(fit(mixture, (Y, PRIOR + s * step), pg.EP, family=WEIGHTS).log_evidence)
            for s in (-1, 1)
        ]
        assert_close(float(slope[k]), (ends[1] - ends[0]) / 2e-5, rtol=1e-4, atol=1e-6)


def test_runs_resume():
    whole = pg.EP(mixture, family=WEIGHTS, progress=False)
    expected = whole.run()
    begun = pg.EP(mixture, family=WEIGHTS, progress=False, num_steps=3)
    with pytest.warns(pg.errors.ConvergenceWarning):
        begun.run()
    other = pg.EP(mixture, family=WEIGHTS, progress=False)
    other.load_state_dict(begun.state_dict())
    found = other.run()
    assert_close(
        found.marginal("w").concentration, expected.marginal("w").concentration, rtol=0, atol=1e-8
    )


# ---------------------------------------------------------------------- what is refused
def test_factors_that_are_not_conjugate_are_named():
    def model():
        w = pyro.sample("w", dist.Dirichlet(PRIOR))
        pyro.factor("near", -((w - 0.3) ** 2).sum())

    with pytest.raises(UnsupportedFactor, match=r'"near".* not conjugate to "w"'):
        fit(model, (), pg.EP, family=WEIGHTS)


def test_a_threshold_is_no_power():
    def model():
        w = pyro.sample("w", dist.Dirichlet(PRIOR))
        pyro.factor("high", torch.where(w[0] > 0.9, -1.0, 0.0))

    with pytest.raises(UnsupportedFactor, match='"high"'):
        fit(model, (), pg.EP, family=WEIGHTS)


def test_factors_with_gaussian_nodes_are_named():
    def model():
        w = pyro.sample("w", dist.Dirichlet(PRIOR))
        pyro.sample("x", dist.Normal(w[0], 1.0))

    with pytest.raises(UnsupportedFactor, match=r'"x".* not conjugate to "w"'):
        fit(model, (), pg.EP, family=WEIGHTS)


def test_sites_on_other_supports_are_refused():
    def model():
        pyro.sample("w", dist.Beta(1.0, 2.0))

    with pytest.raises(OptionError, match="simplex"):
        fit(model, (), pg.EP, family=WEIGHTS)


def test_wide_weights_are_told_of_the_family():
    with pytest.raises(UnsupportedFactor, match=r'family=\{"w": "dirichlet"\}'):
        fit(mixture, (Y, torch.ones(9), torch.linspace(-2, 2, 9)), pg.EP)


@pytest.mark.parametrize("engine", [pg.EP, pg.VMP])
def test_large_grids_are_told_of_the_family(engine, monkeypatch):
    """Under VMP there is no grid."""

    def annotators(log_f=None):
        with pyro.plate("labels", 4):
            row = pyro.sample("row", dist.Dirichlet(torch.ones(4)))
        z = pyro.sample("z", dist.Categorical(torch.ones(4)))
        if log_f is None:
            pyro.sample("y", dist.Categorical(row[z]), obs=torch.tensor(1))
        else:
            pyro.factor("y", log_f(row[z]))

    monkeypatch.setattr(slow_grids, "MANY", 20_000)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", SlowWarning)
        engine(annotators, progress=False).setup()
        engine(annotators, family={"row": "dirichlet"}, progress=False).setup()
        engine(annotators, progress=False).setup(lambda p: -(p[1] - p[0] * p[2]).square())
    found = [str(warning.message) for warning in told]
    assert len(found) == (engine is pg.EP)
    assert all('"y"' in text and 'family={"row": "dirichlet"}' in text for text in found)


def test_labels_are_conjugate_factors():
    engine = pg.VMP(mixture, family=WEIGHTS, progress=False).setup()
    assert ConjugateFactors in map(type, engine.network.blocks)


def test_rows_of_one_event_are_told_of_plates_and_the_family():
    def model():
        rows = pyro.sample("rows", dist.Dirichlet(torch.ones(4, 7)).to_event(1))
        z = pyro.sample("z", dist.Categorical(torch.ones(4)))
        pyro.sample("y", dist.Categorical(rows[z]), obs=torch.tensor(1))

    with pytest.raises(UnsupportedFactor, match=r'pyro.plate.*with family=\{"rows": "dirichlet"\}'):
        fit(model, (), pg.EP)


@pytest.mark.parametrize("engine", [pg.EP, pg.VMP])
@pytest.mark.parametrize("family", ["gamma", "dirichlet"])
def test_a_factor_that_is_zero_everywhere_is_named(engine, family):
    def model():
        prior = dist.Gamma(2.0, 1.0) if family == "gamma" else dist.Dirichlet(PRIOR)
        w = pyro.sample("w", prior)
        pyro.factor("nowhere", torch.where(w.sum() > -1, -torch.inf, 0.0))

    with pytest.raises(PyrographError, match='"nowhere"'):
        fit(model, (), engine, family={"w": family})


@pytest.mark.parametrize("engine", [pg.EP, pg.VMP])
def test_products_of_several_nodes_need_no_label(engine):
    def model():
        w = pyro.sample("w", dist.Dirichlet(PRIOR))
        u = pyro.sample("u", dist.Dirichlet(PRIOR + 1))
        pyro.factor("both", 2 * w[0].log() + u[1].log())

    q = fit(model, (), engine, family={"w": "dirichlet", "u": "dirichlet"})
    one, two = PRIOR + torch.tensor([2.0, 0, 0]), PRIOR + 1 + torch.tensor([0, 1.0, 0])
    assert_close(q.marginal("w").concentration, one, rtol=1e-7, atol=1e-7)
    assert_close(q.marginal("u").concentration, two, rtol=1e-7, atol=1e-7)
    truth = sum(
        log_beta(a.numpy()) - log_beta(b.numpy()) for a, b in [(one, PRIOR), (two, PRIOR + 1)]
    )
    assert_close(float(q.log_evidence), float(truth), rtol=0, atol=1e-7)


def test_sticks_of_observed_labels_are_exact():
    labels = torch.tensor([0, 2, 2, 6, 1, 7])

    def model():
        with pyro.plate("sticks", 7):
            v = pyro.sample("v", dist.Beta(1.0, 1.5))
        w = torch.nn.functional.pad(v, (0, 1), value=1.0)
        w = w * torch.nn.functional.pad((1 - v).cumprod(-1), (1, 0), value=1.0)
        with pyro.plate("rows", len(labels)):
            pyro.sample("z", dist.Categorical(w), obs=labels)

    q = fit(model, (), pg.VMP, family={"v": "beta"})
    counts = np.bincount(labels.numpy(), minlength=8)
    later = counts[::-1].cumsum()[::-1]
    a, b = 1.0 + counts[:-1], 1.5 + later[1:]
    np.testing.assert_allclose(q.marginal("v").mean.numpy(), a / (a + b), rtol=1e-6)
    truth = special.betaln(a, b).sum() - 7 * special.betaln(1.0, 1.5)
    assert_close(float(q.log_evidence), float(truth), rtol=0, atol=1e-7)
