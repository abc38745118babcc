"""Conjugate factors on one scope, multiplied among themselves and with others, against sums and
dense grids."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import special
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.continuous.conjugate_factors import ConjugateFactors
from tests.infer.message_passing_continuous.runs import merged

PRIOR = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
WIDTH = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_conjugate_factors_on_a_label_and_a_chance_are_exact():
    """Apart: evidence 0.7 nats too high, a standard deviation of .166 for .102."""
    k, n = torch.tensor([3.0, 5.0, 1.0]), torch.tensor([10.0, 7.0, 1.0])
    prior = torch.tensor([0.3, 0.7])

    def model():
        z = pyro.sample("z", dist.Categorical(prior))
        p = pyro.sample("p", dist.Beta(2.0, 3.0))
        q = torch.where(z == 1, p, 1 - p)
        pyro.sample("y0", dist.Binomial(n[0], q), obs=k[0])
        pyro.sample("y1", dist.Binomial(n[1], q), obs=k[1])
        pyro.sample("y2", dist.Bernoulli(q), obs=k[2])

    engine = pg.EP(model, family={"p": "beta"}, progress=False)
    posterior = engine.run()
    assert any(isinstance(block, ConjugateFactors) for block in engine.network.blocks)
    assert merged(engine) == 2
    ones, zeros = float(k.sum()), float((n - k).sum())
    log_binomial = float(
        sum(math.log(math.comb(int(a), int(b))) for a, b in zip(n, k, strict=True))
    )
    log_p, means = [], []
    for z, (a, b) in enumerate([(2 + zeros, 3 + ones), (2 + ones, 3 + zeros)]):
        log_p.append(math.log(float(prior[z])) + special.betaln(a, b) - special.betaln(2, 3))
        means.append(a / (a + b))
    log_z = special.logsumexp(log_p) + log_binomial
    share = np.exp(np.array(log_p) - special.logsumexp(log_p))
    assert float(posterior.log_evidence) == pytest.approx(log_z, abs=1e-9)
    assert_close(posterior.marginal("z").probs, torch.from_numpy(share), atol=1e-9, rtol=0)
    assert float(posterior.marginal("p").mean) == pytest.approx(share @ means, abs=1e-9)


@pytest.mark.parametrize("family", [{"x": "gamma"}, {}])
def test_conjugate_factors_beside_another_one(family):
    """Two counts and a normal observation of one label's rate: apart P(z) was .0076 for .0340 with
    the gamma belief."""
    prior, rate = torch.tensor([0.3, 0.7]), torch.tensor([0.5, 2.0])
    noise, k, y = torch.tensor([1.0, 0.4]), torch.tensor([2.0, 3.0]), torch.tensor(0.8)

    def model():
        z = pyro.sample("z", dist.Categorical(prior))
        x = pyro.sample("x", dist.Gamma(2.0, 1.0))
        with pyro.plate("counts", 2):
            pyro.sample("k", dist.Poisson(x * rate[z]), obs=k)
        pyro.sample("y", dist.Normal(x, noise[z]), obs=y)

    engine = pg.EP(model, family=family, progress=False)
    posterior = engine.run()
    assert posterior.converged and merged(engine) == 2
    x = torch.linspace(1e-4, 15.0, 60001)[:, None]
    log_p = prior.log() + dist.Gamma(2.0, 1.0).log_prob(x) + dist.Normal(x, noise).log_prob(y)
    log_p = log_p + sum(dist.Poisson(x * rate).log_prob(value) for value in k)
    p = log_p.flatten().softmax(0).view_as(log_p)
    log_z = log_p.flatten().logsumexp(0) + (x[1, 0] - x[0, 0]).log()
    # with a Gaussian belief in log x the prior is a factor of its own
    within = 1e-6 if family else 0.003
    assert float(posterior.log_evidence) == pytest.approx(float(log_z), abs=within)
    assert_close(posterior.marginal("z").probs, p.sum(0), atol=within, rtol=0)
    mean = (p.sum(1) * x[:, 0]).sum()
    assert float(posterior.marginal("x").mean) == pytest.approx(float(mean), abs=2 * within)


def test_a_beta_chance_beside_a_factor_that_is_not_conjugate():
    prior, k = torch.tensor([0.3, 0.7]), torch.tensor(3.0)

    def model():
        z = pyro.sample("z", dist.Categorical(prior))
        p = pyro.sample("p", dist.Beta(2.0, 3.0))
        pyro.sample("k", dist.Binomial(7, torch.where(z == 1, p, 1 - p)), obs=k)
        pyro.factor("near", -5 * (p - 0.4 - 0.3 * z).square())

    engine = pg.EP(model, family={"p": "beta"}, progress=False)
    posterior = engine.run()
    assert merged(engine) == 1
    p = torch.linspace(0.0, 1.0, 20003)[1:-1, None]
    log_p = prior.log() + dist.Beta(2.0, 3.0).log_prob(p)
    log_p = log_p + dist.Binomial(7, torch.cat([1 - p, p], 1)).log_prob(k)
    log_p = log_p - 5 * (p - 0.4 - 0.3 * torch.arange(2)).square()
    share = log_p.flatten().softmax(0).view_as(log_p)
    log_z = log_p.flatten().logsumexp(0) + (p[1, 0] - p[0, 0]).log()
    assert float(posterior.log_evidence) == pytest.approx(float(log_z), abs=1e-6)
    assert_close(posterior.marginal("z").probs, share.sum(0), atol=1e-6, rtol=0)
    found = posterior.marginal("p")  # its expected logarithms are those of the posterior
    a, b = found.concentration1, found.concentration0
    log = (share.sum(1) * p[:, 0].log()).sum()
    assert_close(a.digamma() - (a + b).digamma(), log, atol=1e-5, rtol=0)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("family", [{"rate": "gamma"}, {}])
def test_users_with_several_counts_each(family, seed):
    """EP is not exact here; with every count a factor it is 0.21 to 0.27 nats off, and 0.04 to 0.06
    in chances. The truth by a dense grid over both rates."""
    users, each = 12, 6
    generator = np.random.default_rng(seed)
    y = torch.from_numpy(generator.poisson(np.where(np.arange(users) % 2, 4.0, 2.0), (each, users)))
    y, chance = y.double(), torch.tensor([0.5, 0.5])
    mean = torch.tensor([2.0, 4.0])

    def model():
        with pyro.plate("components", 2):
            rate = pyro.sample("rate", dist.Gamma(10.0, 10.0 / mean))
        with pyro.plate("users", users):
            z = pyro.sample("z", dist.Categorical(chance))
            with pyro.plate("counts", each):
                pyro.sample("y", dist.Poisson(rate[z]), obs=y)

    engine = pg.EP(model, family=family, progress=False)
    posterior = engine.run()
    assert posterior.converged and merged(engine) == users * (each - 1)
    rate = torch.linspace(0.2, 9.0, 400)
    log_y = dist.Poisson(rate[:, None, None]).log_prob(y).sum(1) + math.log(0.5)  # [G, users]
    prior = [dist.Gamma(10.0, 10.0 / m).log_prob(rate) for m in mean]
    log_p = torch.logaddexp(log_y[:, None], log_y[None]).sum(2) + prior[0][:, None] + prior[1]
    log_z = log_p.flatten().logsumexp(0) + 2 * (rate[1] - rate[0]).log()
    p = log_p.flatten().softmax(0).view_as(log_p)
    assert float(posterior.log_evidence) == pytest.approx(float(log_z), abs=0.08)
    z = torch.stack(
        [(p * torch.sigmoid(log_y[None, :, i] - log_y[:, None, i])).sum() for i in range(users)]
    )
    assert_close(posterior.marginal("z").probs[:, 1], z, atol=0.035, rtol=0)
    found = posterior.marginal("rate").mean
    truth = torch.stack([(p.sum(1) * rate).sum(), (p.sum(0) * rate).sum()])
    assert_close(found, truth, atol=0.06, rtol=0)


@pytest.mark.parametrize("family", ["dirichlet", "beta"])
def test_one_of_two_annotators_judges_an_item_twice(family):
    """What stands alone beside products on other nodes stays conjugate: with Dirichlet rows it was
    refused, with beta ones integrated on grids. Truth by a sum over the item's class."""
    prior = torch.tensor([[[3.0, 1.0], [1.0, 2.0]], [[2.0, 0.5], [1.5, 4.0]]])  # annotator, class
    chance, y = torch.tensor([0.4, 0.6]), torch.tensor([0, 0, 1])
    who = torch.tensor([0, 0, 1])

    def model():
        c = pyro.sample("c", dist.Categorical(chance))
        with pyro.plate("classes", 2), pyro.plate("annotators", 2):
            if family == "beta":
                first = pyro.sample("row", dist.Beta(prior[..., 0], prior[..., 1]))
                row = torch.stack([first, 1 - first], -1)
            else:
                row = pyro.sample("row", dist.Dirichlet(prior))
        with pyro.plate("judgements", 3):
            pyro.sample("y", dist.Categorical(row[who, c]), obs=y)

    engine = pg.EP(model, family={"row": family}, progress=False)
    posterior = engine.run()
    assert merged(engine) == 1
    assert sum(isinstance(block, ConjugateFactors) for block in engine.network.blocks) == 2
    counts = torch.tensor([[2.0, 0.0], [0.0, 1.0]])[:, None]  # annotator, any class, judgement

    def log_beta(a):
        return a.lgamma().sum(-1) - a.sum(-1).lgamma()

    log_p = chance.log() + (log_beta(prior + counts) - log_beta(prior)).sum(0)
    assert float(posterior.log_evidence) == pytest.approx(float(log_p.logsumexp(0)), abs=1e-9)
    assert_close(posterior.marginal("c").probs, log_p.softmax(0), atol=1e-9, rtol=0)


@pytest.mark.parametrize("family", [{"early": "gamma", "late": "gamma"}, {}])
def test_counts_before_and_after_a_change_are_exact(family):
    """Each reads one rate or the other, by the year of the change: apart, as gamma beliefs had
    them, the evidence was 0.09 nats low on 60 years. Truth by a sum over that year."""
    y = torch.tensor([4.0, 5.0, 3.0, 4.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    years = torch.arange(len(y))

    def model():
        early = pyro.sample("early", dist.Gamma(2.0, 1.0))
        late = pyro.sample("late", dist.Gamma(3.0, 2.0))
        change = pyro.sample("change", dist.Categorical(torch.ones(len(y)) / len(y)))
        with pyro.plate("years", len(y)):
            rate = torch.where(years < change, early, late)
            pyro.sample("y", dist.Poisson(rate), obs=y)

    engine = pg.EP(model, family=family, progress=False)
    posterior = engine.run()
    before = torch.cat([torch.zeros(1), y.cumsum(0)[:-1]])

    def log_mass(a, b, count, years):
        """Of a Gamma(a, b) rate's counts in some years, without their factorials."""
        constant = a * math.log(b) - math.lgamma(a)
        return (a + count).lgamma() - (a + count) * (b + years).log() + constant

    log_p = log_mass(2.0, 1.0, before, years) - math.log(len(y))
    log_p = log_p + log_mass(3.0, 2.0, y.sum() - before, len(y) - years) - (y + 1).lgamma().sum()
    within = 1e-8 if family else 0.01
    assert float(posterior.log_evidence) == pytest.approx(float(log_p.logsumexp(0)), abs=within)
    assert_close(posterior.marginal("change").probs, log_p.softmax(0), atol=within, rtol=0)
    mean = (log_p.softmax(0) * (2 + before) / (1 + years)).sum()
    found = posterior.marginal("early").mean
    assert float(found) == pytest.approx(float(mean), abs=0.02)


def test_priors_that_say_one_rate_each_in_every_state_of_a_label():
    """Each reads either rate in one of the two states, their product both in all: kept apart, they
    left each other no proper cavity, and there was no evidence."""
    prior = torch.tensor([0.3, 0.7])

    def model():
        z = pyro.sample("z", dist.Categorical(prior))
        r, s = (pyro.sample(name, dist.Gamma(1.0, 1.0).mask(False)) for name in "rs")
        first = dist.Gamma(2.0, 1.0).log_prob(r), dist.Gamma(3.0, 1.0).log_prob(s)
        second = dist.Gamma(4.0, 2.0).log_prob(s), dist.Gamma(3.0, 2.0).log_prob(r)
        pyro.factor("first", torch.where(z == 0, *first))
        pyro.factor("second", torch.where(z == 0, *second))

    engine = pg.EP(model, family={"r": "gamma", "s": "gamma"}, num_steps=20, progress=False)
    posterior = engine.run()
    assert engine.converged and merged(engine) == 1
    assert float(posterior.log_evidence) == pytest.approx(0.0, abs=1e-9)
    assert_close(posterior.marginal("z").probs, prior, atol=1e-9, rtol=0)
    means = [float(posterior.marginal(name).mean) for name in "rs"]
    assert means == pytest.approx([0.3 * 2 + 0.7 * 1.5, 0.3 * 2 + 0.7 * 3], abs=1e-8)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_rate_whose_only_factor_is_a_product(count):
    """Its prior depends on the label, so that the cavity is flat: all updates were skipped."""
    shape, factor, y = (
        torch.tensor(x) for x in ([1.5, 0.5, 3.0], [0.5, 1.0, 2.0], [2.0, 0.0, 5.0])
    )

    def log_p(b):
        total = PRIOR.log() + shape * b.log() - shape.lgamma()
        for k in y[:count]:
            total = total + k * factor.log() - (k + 1).lgamma()
        after = shape + y[:count].sum()
        return total + after.lgamma() - after * (b + count * factor).log()

    def model(b):
        z = pyro.sample("z", dist.Categorical(PRIOR))
        x = pyro.sample("x", dist.Gamma(shape[z], b))
        for k in range(count):
            pyro.sample(f"y{k}", dist.Poisson(x * factor[z]), obs=y[k])

    b = torch.tensor(1.5, requires_grad=True)
    posterior = pg.fit(model, (b,), infer=pg.EP, family={"x": "gamma"}, progress=False)
    assert posterior.converged
    truth, p = log_p(b).logsumexp(0), log_p(b).detach().softmax(0)
    assert_close(posterior.log_evidence, truth, atol=1e-9, rtol=0)
    assert_close(posterior.marginal("z").probs, p, atol=1e-9, rtol=0)
    mean = p @ ((shape + y[:count].sum()) / (1.5 + count * factor))
    assert_close(posterior.marginal("x").mean, mean, atol=1e-9, rtol=0)
    if count:
        found, expected = (torch.autograd.grad(z, b)[0] for z in (posterior.log_evidence, truth))
        assert_close(found, expected, atol=1e-8, rtol=0)


def test_a_label_without_a_state_names_the_statement_to_blame():
    def model():
        z = pyro.sample("z", dist.Categorical(PRIOR))
        x = pyro.sample("x", dist.Gamma(2.0, 1.0))
        for k in range(2):
            pyro.sample(f"y{k}", dist.Poisson(x * WIDTH[z]), obs=torch.tensor(2.0))
        pyro.factor("bad", torch.where(z >= 0, -torch.inf, x))

    for family in ({}, {"x": "gamma"}):
        with pytest.raises(pg.errors.ZeroMass, match='"bad"'):
            pg.EP(model, family=family, progress=False).run()


def test_a_mean_and_a_precision_with_a_gamma_belief():
    """Apart: evidence -6.425."""
    y = torch.tensor([0.3, -1.2, 2.0])

    def model():
        mean = pyro.sample("x", dist.Normal(0.0, 2.0))
        precision = pyro.sample("tau", dist.Gamma(2.0, 2.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(mean, precision**-0.5), obs=y)

    engine = pg.EP(model, family={"tau": "gamma"}, progress=False)
    posterior = engine.run()
    assert posterior.converged and merged(engine) == len(y) - 1
    mean, tau = torch.linspace(-8.0, 8.0, 1601)[:, None], torch.linspace(1e-3, 10.0, 3000)
    log_p = dist.Normal(0.0, 2.0).log_prob(mean) + dist.Gamma(2.0, 2.0).log_prob(tau)
    log_p = log_p + sum(dist.Normal(mean, tau**-0.5).log_prob(v) for v in y)
    p = log_p.flatten().softmax(0).view_as(log_p)
    log_z = log_p.flatten().logsumexp(0) + math.log(0.01) + (tau[1] - tau[0]).log()
    assert float(posterior.log_evidence) == pytest.approx(float(log_z), abs=1e-4)
    found = [float(posterior.marginal(name).mean) for name in ("x", "tau")]
    truth = [float((p.sum(1) * mean[:, 0]).sum()), float((p.sum(0) * tau).sum())]
    assert found == pytest.approx(truth, abs=1e-4)
