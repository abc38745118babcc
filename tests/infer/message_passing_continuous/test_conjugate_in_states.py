"""Gamma and beta nodes that discrete ones choose among. Truth: sums over all labels in closed form,
coordinate ascent and expectation propagation by hand."""

import itertools
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import special
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import OptionError, UnsupportedFactor
from pyrograph.infer.message_passing.continuous.conjugate_factors import ConjugateFactors
from tests.infer.message_passing_continuous.runs import fit

DOUBLE = torch.float64
Y = torch.tensor([0.0, 1.0, 8.0, 7.0, 0.0], dtype=DOUBLE)
HEADS = torch.tensor([0.0, 1.0, 6.0, 6.0, 2.0], dtype=DOUBLE)
SHARES = (
    torch.tensor([[9.0, 1.0], [7.0, 3.0], [1.0, 9.0], [2.0, 8.0], [6.0, 4.0]], dtype=DOUBLE) / 10
)


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def counts(y=Y, shape=0.1, exposure=1.0):
    with pyro.plate("components", 2):
        rate = pyro.sample("rate", dist.Gamma(shape, shape))
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Categorical(SHARES[: len(y)]))
        pyro.sample("y", dist.Poisson(exposure * rate[z]), obs=y)


def tosses(y=HEADS, shape=0.3):
    with pyro.plate("coins", 2):
        p = pyro.sample("p", dist.Beta(shape, shape))
    with pyro.plate("rows", len(y)):
        z = pyro.sample("z", dist.Categorical(SHARES))
        pyro.sample("y", dist.Binomial(6, p[z]), obs=y)


class Gamma:
    """exp(a log x - b x): numbers (a, b)."""

    site, family, prior = "rate", "gamma", staticmethod(lambda s: np.array([s, s]))
    said = staticmethod(lambda y: np.array([y, 1.0]))
    scale = staticmethod(lambda y: -special.gammaln(y + 1))
    log_mass = staticmethod(lambda e: special.gammaln(e[0]) - e[0] * np.log(e[1]))
    expected = staticmethod(
        lambda e: np.array([special.digamma(e[0]) - np.log(e[1]), -e[0] / e[1]])
    )
    mean = staticmethod(lambda e: e[0] / e[1])


class Beta:
    """exp(a log x + b log (1 - x))."""

    site, family, prior = "p", "beta", staticmethod(lambda s: np.array([s, s]))
    said = staticmethod(lambda y: np.array([y, 6 - y]))
    scale = staticmethod(lambda y: np.log(special.comb(6, y)))
    log_mass = staticmethod(lambda e: special.betaln(e[0], e[1]))
    expected = staticmethod(lambda e: special.digamma(e) - special.digamma(e.sum()))
    mean = staticmethod(lambda e: e[0] / e.sum())


CASES = [(counts, Gamma, Y), (tosses, Beta, HEADS)]
each_case = pytest.mark.parametrize(("model", "kind", "y"), CASES, ids=["gamma", "beta"])


def enumerated(kind, y, shape):
    """Log evidence, p(z = 1) and E x by sums over all labels."""
    prior = kind.prior(shape)
    logs, labels, means = [], [], []
    for z in itertools.product(range(2), repeat=len(y)):
        eta = [prior + sum((kind.said(v) for v, k in zip(y, z, strict=True) if k == c), 0 * prior)
               for c in range(2)]  # fmt: skip
        mass = sum(kind.log_mass(e) - kind.log_mass(prior) for e in eta)
        share = SHARES.numpy()[np.arange(len(y)), z]
        logs.append(mass + np.log(share).sum() + kind.scale(y).sum())
        labels.append(z), means.append([kind.mean(e) for e in eta])
    weights = np.exp(np.array(logs) - special.logsumexp(logs))
    return special.logsumexp(logs), weights @ np.array(labels), weights @ np.array(means)


def ascended(kind, y, shape, sweeps=500):
    """The bound and parameters of mean field, by coordinate ascent."""
    prior, log_share = kind.prior(shape), np.log(SHARES.numpy())
    said, q = np.array([kind.said(v) for v in y]), SHARES.numpy().copy()
    for _ in range(sweeps):
        eta = prior + q.T @ said
        log_q = log_share + said @ np.array([kind.expected(e) for e in eta]).T
        q = special.softmax(log_q, 1)
    bound = special.logsumexp(log_q, 1).sum() + kind.scale(y).sum()
    for e in prior + q.T @ said:  # minus the divergence of what q is now from the prior
        bound += kind.log_mass(e) - kind.log_mass(prior) - (e - prior) @ kind.expected(e)
    return bound, eta


@each_case
@pytest.mark.parametrize("schedule", ["parallel", "sequential", "residual"])
@pytest.mark.parametrize("shape", [0.05, 0.3, 2.0])
def test_mean_field_is_coordinate_ascent_and_its_bound_one(model, kind, y, shape, schedule):
    q = fit(model, (y, shape), pg.VMP, family={kind.site: kind.family}, schedule=schedule)
    y = y.numpy()
    bound, eta = ascended(kind, y, shape)
    assert q.converged and q.evidence_kind == "lower bound"
    assert_close(float(q.log_evidence), bound, rtol=0, atol=1e-7)
    assert float(q.log_evidence) < enumerated(kind, y, shape)[0]
    found = q.marginal(kind.site).mean.numpy()
    np.testing.assert_allclose(found, [kind.mean(e) for e in eta], rtol=1e-5)


def projected(kind, expected, start):
    """Newton's method with differences, a step of which keeps parameters positive."""
    eta = start.copy()
    for _ in range(200):
        gap = expected - kind.expected(eta)
        size = 1e-6 * eta
        jacobian = np.array(
            [
                (kind.expected(eta + d) - kind.expected(eta - d)) / (2 * d.sum())
                for d in np.diag(size)
            ]
        ).T
        step = np.linalg.solve(jacobian, gap)
        eta = np.maximum(eta + step, 0.2 * eta)
        if (abs(step) < 1e-12 * eta).all():
            break
    return eta


def plain_ep(kind, y, shape, sweeps=100):
    """Sites one after the other: parameters of both components, and the evidence."""
    prior, log_share = kind.prior(shape), np.log(SHARES.numpy())
    sites = np.zeros((len(y), 2, 2))
    for _ in range(sweeps):
        before = sites.copy()
        for n, v in enumerate(y):
            cavity = prior + sites.sum(0) - sites[n]
            told = cavity + kind.said(v)
            logs = [kind.log_mass(t) - kind.log_mass(c) for t, c in zip(told, cavity, strict=True)]
            share = special.softmax(log_share[n] + logs)
            for c in range(2):
                there = share[c] * kind.expected(told[c])
                there = there + (1 - share[c]) * kind.expected(cavity[c])
                sites[n, c] = projected(kind, there, cavity[c] + sites[n, c]) - cavity[c]
        if abs(sites - before).max() < 1e-11:
            break
    eta = prior + sites.sum(0)
    total = sum(kind.log_mass(e) - kind.log_mass(prior) for e in eta)
    for n, v in enumerate(y):
        cavity = eta - sites[n]
        logs = [kind.log_mass(c + kind.said(v)) - kind.log_mass(c) for c in cavity]
        total += special.logsumexp(log_share[n] + logs) + kind.scale(v)
        pairs = zip(cavity, eta, strict=True)
        total += sum(kind.log_mass(c) - kind.log_mass(e) for c, e in pairs)
    return eta, total


@each_case
def test_ep_is_that_by_hand_and_near_enumeration(model, kind, y, shape=1.0):
    q = fit(model, (y, shape), pg.EP, family={kind.site: kind.family})
    y = y.numpy()
    eta, evidence = plain_ep(kind, y, shape)
    assert q.converged and q.evidence_kind == "estimate"
    np.testing.assert_allclose(
        q.marginal(kind.site).mean.numpy(), [kind.mean(e) for e in eta], rtol=1e-6
    )
    assert_close(float(q.log_evidence), evidence, rtol=0, atol=1e-6)
    truth, labels, means = enumerated(kind, y, shape)
    assert abs(float(q.log_evidence) - truth) < 0.05
    np.testing.assert_allclose(q.marginal("z").probs[:, 1].numpy(), labels, rtol=0, atol=0.02)
    np.testing.assert_allclose(q.marginal(kind.site).mean.numpy(), means, rtol=0.05)


@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_powers_are_near_enumeration_where_labels_are_all_but_known(alpha):
    q = fit(counts, (Y, 1.0), pg.PowerEP, family={"rate": "gamma"}, alpha=alpha)
    _, labels, means = enumerated(Gamma, Y.numpy(), 1.0)
    assert q.converged
    np.testing.assert_allclose(q.marginal("z").probs[:, 1].numpy(), labels, rtol=0, atol=0.03)
    np.testing.assert_allclose(q.marginal("rate").mean.numpy(), means, rtol=0.05)


def test_a_single_factor_is_projected_without_error():
    """One row: the beliefs have the means of x and of log x, and the evidence is exact."""
    y = torch.tensor([3.0])
    q = fit(counts, (y, 0.5), pg.EP, family={"rate": "gamma"})
    share, a = SHARES[0].numpy(), np.array([0.5, 3.5])
    mass = special.gammaln(3.5) - special.gammaln(0.5) + 0.5 * np.log(0.5) - 3.5 * np.log(1.5)
    assert_close(float(q.log_evidence), mass - math.log(6), rtol=0, atol=1e-9)
    told, prior = a[1] / 1.5, 1.0
    np.testing.assert_allclose(
        q.marginal("rate").mean.numpy(), share * told + (1 - share) * prior, rtol=1e-9
    )


def inflated(y, shape=2.0):
    rate = pyro.sample("rate", dist.Gamma(shape, 1.0))
    with pyro.plate("rows", len(y)):
        is_zero = pyro.sample("is_zero", dist.Bernoulli(torch.full((len(y),), 0.3)))
        log_p = dist.Poisson(rate).log_prob(y)
        nothing = torch.where(y == 0, 0.0, -torch.inf)
        pyro.factor("y", torch.where(is_zero > 0, nothing, log_p))


def test_zeros_in_a_state_are_kept_by_ep_and_refused_by_mean_field():
    y = torch.tensor([0.0, 0.0, 3.0, 4.0])
    logs = []
    for n in range(3):  # of the two zeros so many are counts
        total, rate = 7.0, 2.0 + n
        mass = special.gammaln(2 + total) - special.gammaln(2.0) - (2 + total) * np.log(1 + rate)
        ways = math.log(math.comb(2, n)) + (2 + n) * math.log(0.7) + (2 - n) * math.log(0.3)
        logs.append(mass + ways - special.gammaln(4.0) - special.gammaln(5.0))
    q = fit(inflated, (y,), pg.EP, family={"rate": "gamma"})
    assert abs(float(q.log_evidence) - special.logsumexp(logs)) < 0.02
    assert_close(q.marginal("is_zero").probs[2:, 1], torch.zeros(2))
    with pytest.raises(OptionError, match=r'factor "y".*has zeros'):
        fit(inflated, (y,), pg.VMP, family={"rate": "gamma"})


VERDICTS = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0], [0, 1, 0], [1, 1, 0]], dtype=DOUBLE)


def verdicts(shape, prevalence=0.6):
    """Judges who find what is there, and do not find what is not: sensitivity and specificity."""
    with pyro.plate("judges", 3):
        finds = pyro.sample("finds", dist.Beta(2 * shape, shape))
        spares = pyro.sample("spares", dist.Beta(2 * shape, shape))
    with pyro.plate("cases", len(VERDICTS), dim=-2):
        z = pyro.sample("z", dist.Bernoulli(prevalence))
        with pyro.plate("each", 3, dim=-1):
            pyro.sample("y", dist.Bernoulli(z * finds + (1 - z) * (1 - spares)), obs=VERDICTS)


@pytest.mark.parametrize("shape", [0.05, 0.5, 2.0])
def test_what_is_left_of_one_is_conjugate_too(shape):
    # 1 - (1 - x) has few digits of a small x; taken for no beta, it was integrated on points:
    # with shape .05 not at rest after 1000 sweeps, at an estimate of -13.58
    q = fit(verdicts, (shape,), pg.VMP, family={"finds": "beta", "spares": "beta"})
    y, prior = VERDICTS.numpy(), np.array([2 * shape, shape])
    said = np.stack([np.stack([1 - y, y], -1), np.stack([y, 1 - y], -1)])  # [z, case, judge, 2]
    log_share = np.log([0.4, 0.6])

    def posteriors(share):
        return prior + np.einsum("cz,zcjp->zjp", share, said)

    def mass(eta):
        return (special.betaln(eta[..., 0], eta[..., 1]) - special.betaln(*prior)).sum()

    def expected(eta):
        return special.digamma(eta) - special.digamma(eta.sum(-1, keepdims=True))

    bounds = []
    for start in (0.4 + 0.3 * y[:, :1], 0.4 + 0.3 * y[:, 1:2], 0.9 - 0.8 * y[:, 1:2]):
        share = np.concatenate([1 - start, start], 1)
        for _ in range(500):
            eta = posteriors(share)
            log_q = log_share + np.einsum("zcjp,zjp->cz", said, expected(eta))
            share = special.softmax(log_q, 1)
        eta = posteriors(share)
        entropy = (share * (log_share - np.log(np.maximum(share, 1e-300)))).sum()
        bounds.append(mass(eta) + entropy)
    logs = [
        mass(posteriors(np.eye(2)[list(z)])) + log_share[list(z)].sum()
        for z in itertools.product(range(2), repeat=len(y))
    ]
    assert q.converged and q.evidence_kind == "lower bound"
    assert min(abs(float(q.log_evidence) - bound) for bound in bounds) < 1e-6
    assert float(q.log_evidence) < special.logsumexp(logs)


def test_bp_still_says_that_it_projects_nothing():
    with pytest.raises(UnsupportedFactor, match="BP projects nothing"):
        fit(counts, (), pg.BP, family={"rate": "gamma"})


def test_what_is_conjugate_in_one_state_alone_is_integrated_by_quadrature():
    def mixed(kind):
        rate = pyro.sample("rate", dist.Gamma(3.0, 1.0))
        z = pyro.sample("z", dist.Bernoulli(0.5))
        two = dist.Normal(rate, 1.0).log_prob(torch.tensor(2.0))
        one = dist.Poisson(rate).log_prob(torch.tensor(2.0))
        pyro.factor("y", torch.where(z > 0, one if kind else two, one))

    for kind in (True, False):
        engine = pg.EP(mixed, family={"rate": "gamma"}, progress=False).setup(kind)
        assert any(isinstance(b, ConjugateFactors) for b in engine.network.blocks) == kind
        assert engine.network.has_quadrature != kind


@pytest.mark.parametrize("infer", [pg.EP, pg.VMP])
def test_single_precision_and_a_resumed_run_agree(infer):
    options = {"family": {"rate": "gamma"}, "progress": False}
    whole = infer(counts, **options).run(Y, 1.0)
    first = infer(counts, num_steps=3, tol=None, **options)
    first.run(Y, 1.0)
    second = infer(counts, **options).setup(Y, 1.0)
    second.load_state_dict(first.state_dict())
    resumed = second.run(Y, 1.0)
    assert torch.equal(resumed.marginal("rate").mean, whole.marginal("rate").mean)
    low = infer(counts, dtype=torch.float32, **options).run(Y, 1.0)
    assert low.marginal("rate").mean.dtype == torch.float32
    assert_close(low.log_evidence.double(), whole.log_evidence, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("infer", [pg.EP, pg.VMP])
def test_the_evidence_has_derivatives_by_the_program(infer):
    def evidence(exposure):
        q = fit(counts, (Y, 1.0, exposure), infer, family={"rate": "gamma"}, tol=1e-10)
        return q.log_evidence

    exposure = torch.tensor(1.3, requires_grad=True)
    (slope,) = torch.autograd.grad(evidence(exposure), exposure)
    with torch.no_grad():
        up, down = (evidence(torch.tensor(1.3 + h)) for h in (1e-4, -1e-4))
    assert_close(slope, (up - down) / 2e-4, rtol=1e-5, atol=1e-6)


def test_marginals_beside_zeros_have_derivatives():
    y = torch.tensor([0.0, 0.0, 3.0, 4.0])

    def marginals(shape):
        q = fit(inflated, (y, shape), pg.EP, family={"rate": "gamma"}, tol=1e-11)
        return torch.stack([q.marginal("rate").mean, q.marginal("is_zero").probs[0, 1]])

    shape = torch.tensor(2.0, requires_grad=True)
    found = marginals(shape)
    slopes = [torch.autograd.grad(x, shape, retain_graph=True)[0] for x in found]
    with torch.no_grad():
        up, down = (marginals(torch.tensor(2.0 + h)) for h in (1e-4, -1e-4))
    assert_close(torch.stack(slopes), (up - down) / 2e-4, rtol=1e-5, atol=1e-6)


OVERLAPPING = [
    [0.004, 0.548, 0.448],
    [0.826, 0.087, 0.087],
    [0.064, 0.502, 0.434],
    [0.386, 0.419, 0.195],
    [0.089, 0.022, 0.889],
    [0.767, 0.09, 0.143],
]


def test_components_that_overlap_settle_after_sweeps_that_run_away():
    y, weights = torch.tensor([7.0, 1.0, 1.0, 1.0, 0.0, 0.0]), torch.tensor(OVERLAPPING)

    def mixture():
        with pyro.plate("components", 3):
            rate = pyro.sample("rate", dist.Gamma(torch.full((3,), 0.6), 0.6))
        with pyro.plate("rows", 6):
            z = pyro.sample("z", dist.Categorical(weights))
            pyro.sample("y", dist.Poisson(rate[z]), obs=y)

    q = fit(mixture, (), pg.EP, family={"rate": "gamma"})
    damped = fit(mixture, (), pg.EP, family={"rate": "gamma"}, damping=0.3)
    assert q.converged and len(q.history["residual"]) < 400
    assert_close(q.marginal("rate").mean, damped.marginal("rate").mean, rtol=1e-5, atol=0)


@pytest.mark.parametrize("size", [1e3, 1e6])
def test_large_counts_settle_where_their_labels_are_known(size):
    """Expectations of such beliefs keep few digits of their parameters."""
    y = size * torch.tensor([1.0, 2.0, 8.0, 9.0, 1.5])
    q = fit(counts, (y, 1.0), pg.EP, family={"rate": "gamma"})
    assert q.converged and len(q.history["residual"]) < 200
    labels = torch.tensor([0, 0, 1, 1, 0])
    sums = torch.stack([y[labels == k].sum() for k in range(2)])
    marginal = q.marginal("rate")
    found = marginal.concentration.sort().values  # of which component is which it may end in either
    assert_close(found, 1 + sums, rtol=1e-12, atol=0)
    assert_close(marginal.rate.sort().values, torch.tensor([3.0, 4.0]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("infer", [pg.EP, pg.VMP])
def test_joint_beliefs_of_labels_and_components_are_refused_by_name(infer):
    posterior = fit(counts, (Y, 1.0), infer, family={"rate": "gamma"})
    with pytest.raises(OptionError, match='factors of "y" join discrete and continuous nodes'):
        posterior.factor_marginal("y")


@pytest.mark.parametrize("infer", [pg.EP, pg.VMP])
def test_joint_beliefs_of_components_without_labels_are_products(infer):
    def both_work(y):
        with pyro.plate("parts", 2):
            works = pyro.sample("works", dist.Beta(torch.tensor([2.0, 0.5]), 3.0))
        with pyro.plate("devices", len(y)):
            pyro.sample("y", dist.Bernoulli(works.prod()), obs=y)

    posterior = fit(both_work, (torch.ones(4),), infer, family={"works": "beta"})
    mean, covariance = posterior.factor_marginal("y")
    a, b = np.array([6.0, 4.5]), 3.0  # counts of logits: each device adds one to both
    logit = special.digamma(a) - special.digamma(b)
    spread = np.diag(special.polygamma(1, a) + special.polygamma(1, b))
    assert_close(mean, torch.tensor(logit).expand(4, 2), rtol=1e-9, atol=0)
    assert_close(covariance, torch.tensor(spread).expand(4, 2, 2), rtol=1e-9, atol=1e-12)
