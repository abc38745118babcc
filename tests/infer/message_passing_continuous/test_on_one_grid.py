"""Factors on one scope whose product has no larger a grid, against dense grids and sums."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import special, stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.network import on_one_grid
from tests.infer.message_passing_continuous.runs import merged

PRIOR = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
CENTRE, WIDTH, SHIFT = (
    torch.tensor(x, dtype=torch.float64) for x in ([0.0, 1.0, -1.0], [1.0, 0.5, 2.0], [0, 0.4, 0.9])
)


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def summary(posterior):
    x, z = posterior.marginal("x"), posterior.marginal("z").probs
    return float(posterior.log_evidence), z, float(x.mean), float(x.variance.sqrt())


# ---------------------------------------------------------------------- a label and a number
LIKELIHOODS = {
    "normal": [
        lambda x, r, s: dist.Normal(x + r, 1.0).log_prob(torch.tensor(2.0)),
        lambda x, r, s: dist.Normal(x - r, s).log_prob(torch.tensor(0.3)),
    ],
    "a count": [lambda x, r, s: dist.Poisson((x + r).exp()).log_prob(torch.tensor(3.0))],
    "unlike ones": [
        lambda x, r, s: dist.Poisson((x + r).exp()).log_prob(torch.tensor(3.0)),
        lambda x, r, s: dist.Bernoulli(logits=2 * x - r).log_prob(torch.tensor(1.0)),
        lambda x, r, s: dist.StudentT(3.0, x, s).log_prob(torch.tensor(1.5)),
    ],
}


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_a_component_and_what_is_observed_of_it_are_bayes_rule(kind):
    """Apart they closed a cycle: P(z) 0.45 for 0.42 with one count, and "converged"."""

    def model():
        z = pyro.sample("z", dist.Categorical(PRIOR))
        x = pyro.sample("x", dist.Normal(CENTRE[z], WIDTH[z]))
        for k, likelihood in enumerate(LIKELIHOODS[kind]):
            pyro.factor(f"y{k}", likelihood(x, SHIFT[z], WIDTH[z]))

    engine = pg.EP(model, progress=False)
    posterior = engine.run()
    assert posterior.converged and merged(engine) == len(LIKELIHOODS[kind])
    grid = torch.linspace(-12.0, 12.0, 40001)[:, None]
    log_p = PRIOR.log() + dist.Normal(CENTRE, WIDTH).log_prob(grid)
    log_p = log_p + sum(own(grid, SHIFT, WIDTH) for own in LIKELIHOODS[kind])
    log_z = log_p.flatten().logsumexp(0) + (grid[1, 0] - grid[0, 0]).log()
    p = log_p.flatten().softmax(0).view_as(log_p)
    mean = (p.sum(1) * grid[:, 0]).sum()
    sd = (p.sum(1) * (grid[:, 0] - mean).square()).sum().sqrt()
    evidence, z, found_mean, found_sd = summary(posterior)
    assert evidence == pytest.approx(float(log_z), abs=1e-5)
    assert_close(z, p.sum(0), atol=1e-5, rtol=0)
    assert [found_mean, found_sd] == pytest.approx([float(mean), float(sd)], abs=1e-5)


@pytest.mark.parametrize("most_sets", [on_one_grid.MOST_SETS, 1])
def test_items_with_other_observations_each(most_sets, monkeypatch):
    """Items of one statement and of two, each some times: sets of these in blocks of their own, or
    together."""
    monkeypatch.setattr(on_one_grid, "MOST_SETS", most_sets)
    pyro.set_rng_seed(0)
    counts = [(1, 0), (0, 2), (3, 1), (0, 0), (2, 2), (5, 0)]
    k = [torch.poisson(torch.full((n,), 2.0)) for n, _ in counts]
    v = [torch.randn(m) for _, m in counts]

    def model():
        with pyro.plate("items", len(counts)):
            z = pyro.sample("z", dist.Categorical(PRIOR))
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        for i, (n, m) in enumerate(counts):
            for t in range(n):
                pyro.sample(f"k{i}.{t}", dist.Poisson((x[i] + SHIFT[z[i]]).exp()), obs=k[i][t])
            for t in range(m):
                pyro.sample(f"v{i}.{t}", dist.StudentT(4.0, x[i] - SHIFT[z[i]]), obs=v[i][t])

    engine = pg.EP(model, progress=False)
    posterior = engine.run()
    assert merged(engine) == sum(n + m - 1 for n, m in counts if n + m > 1)
    grid = torch.linspace(-10.0, 10.0, 20001)[:, None]
    total = 0.0
    for i in range(len(counts)):
        log_p = PRIOR.log() + dist.Normal(0.0, 1.0).log_prob(grid)
        for t in range(counts[i][0]):
            log_p = log_p + dist.Poisson((grid + SHIFT).exp()).log_prob(k[i][t])
        for t in range(counts[i][1]):
            log_p = log_p + dist.StudentT(4.0, grid - SHIFT).log_prob(v[i][t])
        total = total + log_p.flatten().logsumexp(0) + (grid[1, 0] - grid[0, 0]).log()
        p = log_p.flatten().softmax(0).view_as(log_p)
        assert_close(posterior.marginal("z").probs[i], p.sum(0), atol=1e-4, rtol=0)
        mean = (p.sum(1) * grid[:, 0]).sum()
        assert float(posterior.marginal("x").mean[i]) == pytest.approx(float(mean), abs=1e-4)
    assert float(posterior.log_evidence) == pytest.approx(float(total), abs=1e-3)


def test_gaussian_components_of_vectors_are_exact():
    """The prior reads all numbers of a vector, so that its product with rows that read one
    combination each takes no larger grid."""
    centre = torch.tensor([[0.0, 0.0, 1.0], [1.0, -1.0, 0.0]])
    weights = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]])
    y = torch.tensor([0.7, -0.4])

    def model():
        z = pyro.sample("z", dist.Categorical(PRIOR[:2] / PRIOR[:2].sum()))
        x = pyro.sample("x", dist.Normal(centre[z], 1.0).to_event(1))
        for t in range(2):
            pyro.sample(f"y{t}", dist.Normal((weights[z] * x).sum(-1), 0.5 + t), obs=y[t])

    posterior = pg.EP(model, progress=False).run()
    log_p = []
    for z in range(2):
        rows = weights[z].expand(2, 3)
        covariance = rows @ rows.T + torch.diag(torch.tensor([0.25, 2.25]))
        log_p.append(dist.MultivariateNormal(rows @ centre[z], covariance).log_prob(y))
    log_p = torch.stack(log_p) + (PRIOR[:2] / PRIOR[:2].sum()).log()
    assert float(posterior.log_evidence) == pytest.approx(float(log_p.logsumexp(0)), abs=1e-9)
    assert_close(posterior.marginal("z").probs, log_p.softmax(0), atol=1e-9, rtol=0)


ROWS = {
    "normal": (lambda f, z: dist.Normal(f + 0.8 * z, 0.7), 1e-4),
    "a toss": (lambda f, z: dist.Bernoulli(logits=f + 0.8 * z), 1e-4),
}


@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_a_label_and_a_vector(kind):
    """Every row reads a number, together they read two: apart the label's chance was .961 for .985
    of normal rows, and the evidence .03 nats off."""
    likelihood, within = ROWS[kind]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 5, 2, generator=generator) + 0.3 * torch.randn(2, 5, 2, generator=generator)
    y = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    prior = torch.tensor([0.4, 0.6])

    def model():
        z = pyro.sample("z", dist.Categorical(prior))
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", likelihood((x[z] * w).sum(-1), z), obs=y)

    engine = pg.EP(model, progress=False)
    posterior = engine.run()
    assert posterior.converged and merged(engine) == len(y) - 1
    side = torch.linspace(-6.0, 6.0, 601)
    w = torch.cartesian_prod(side, side)
    log_p = torch.stack([likelihood(w @ x[z].T, z).log_prob(y).sum(1) for z in range(2)], 1)
    log_p = log_p + dist.Normal(0.0, 1.0).log_prob(w).sum(1, keepdim=True) + prior.log()
    p = log_p.flatten().softmax(0).view_as(log_p)
    log_z = log_p.flatten().logsumexp(0) + 2 * (side[1] - side[0]).log()
    assert float(posterior.log_evidence) == pytest.approx(float(log_z), abs=within)
    assert_close(posterior.marginal("z").probs, p.sum(0), atol=within, rtol=0)
    assert_close(posterior.marginal("w").mean, p.sum(1) @ w, atol=within, rtol=0)


def test_normal_rows_of_a_label_are_multiplied_whatever_they_read():
    """In closed form: 30 of 8 coefficients, each row reading one combination."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 30, 8, generator=generator) + 0.2 * torch.randn(
        2, 30, 8, generator=generator
    )
    y = torch.randn(30, generator=generator)

    def model():
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.4, 0.6])))
        w = pyro.sample("w", dist.Normal(torch.zeros(8), 1.0).to_event(1))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal((x[z] * w).sum(-1), 0.7), obs=y)

    posterior = pg.EP(model, progress=False).run()
    noise = 0.49 * torch.eye(30)
    log_p = torch.stack(
        [
            dist.MultivariateNormal(torch.zeros(30), x[z] @ x[z].T + noise).log_prob(y)
            for z in (0, 1)
        ]
    )
    log_p = log_p + torch.tensor([0.4, 0.6]).log()
    assert float(posterior.log_evidence) == pytest.approx(float(log_p.logsumexp(0)), abs=1e-8)
    assert_close(posterior.marginal("z").probs, log_p.softmax(0), atol=1e-8, rtol=0)


def test_rows_of_a_label_whose_grid_is_large_stay_apart(monkeypatch):
    x = torch.linspace(-1.0, 1.0, 8)

    def model():
        z = pyro.sample("z", dist.Bernoulli(0.5))
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            f = w[0] + w[1] * x + w[2] * x.square() * z
            pyro.sample("y", dist.Bernoulli(logits=f), obs=(x > 0.1).double())

    assert merged(pg.EP(model, progress=False).setup()) == len(x) - 1
    monkeypatch.setattr(on_one_grid, "FEW_COMPUTED", 1000)
    assert merged(pg.EP(model, progress=False).setup()) == 0


# ---------------------------------------------------------------------- two numbers
@pytest.mark.parametrize("count", [3, 30])
def test_a_mean_and_a_scale(count):
    """The rows are Gaussian in the mean given the scale; apart 3 of them were 0.1 nats off."""
    y = torch.tensor(np.random.default_rng(0).normal(0.7, 1.5, count))

    def model():
        mean = pyro.sample("x", dist.Normal(0.0, 3.0))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
        with pyro.plate("rows", count):
            pyro.sample("y", dist.Normal(mean, scale), obs=y)

    engine = pg.EP(model, progress=False)
    posterior = engine.run()
    assert posterior.converged and merged(engine) == count - 1
    log_scale = np.linspace(-3.0, 3.0, 4001)
    scale, total, square = np.exp(log_scale), float(y.sum()), float((y**2).sum())
    precision, shift = count / scale**2 + 1 / 9, total / scale**2
    log_p = stats.norm.logpdf(log_scale, 0.0, 0.5) - count * np.log(scale * np.sqrt(2 * np.pi))
    log_p += (shift**2 / precision - square / scale**2 - np.log(9 * precision)) / 2
    log_z = special.logsumexp(log_p) + np.log(log_scale[1] - log_scale[0])
    p = np.exp(log_p - special.logsumexp(log_p))
    mean = p @ (shift / precision)
    sd = np.sqrt(p @ (1 / precision + (shift / precision) ** 2) - mean**2)
    assert float(posterior.log_evidence) == pytest.approx(log_z, abs=1e-4)
    found = posterior.marginal("x")
    assert [float(found.mean), float(found.variance.sqrt())] == pytest.approx([mean, sd], abs=1e-4)
    log_sd = posterior.sample(20_000)["scale"].log()
    assert float(log_sd.mean()) == pytest.approx(p @ log_scale, abs=0.02)


def test_rows_that_read_a_number_each_stay_apart():
    """Together they would read two: every row of a regression is a factor of the algorithm."""
    x = torch.linspace(-1.0, 1.0, 12)

    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=a + b * x), obs=(x > 0.1).double())

    assert merged(pg.EP(model, progress=False).setup()) == 0


def test_factors_of_one_node_stay_apart():
    """They close no cycle: clutter's are the factors of plain EP."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 10.0))
        with pyro.plate("rows", 5):
            pyro.sample("y", dist.StudentT(3.0, x, 1.0), obs=torch.arange(5.0))

    assert merged(pg.EP(model, progress=False).setup()) == 0


@pytest.mark.parametrize("infer", [pg.PowerEP, pg.VMP])
def test_of_other_alphas_nothing_is_multiplied(infer):
    def model():
        z = pyro.sample("z", dist.Categorical(PRIOR))
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 3):
            pyro.sample("y", dist.Poisson((x + SHIFT[z]).exp()), obs=torch.ones(3))

    assert merged(infer(model, progress=False).setup()) == 0


def test_every_factor_of_a_product_has_its_belief():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        s = pyro.sample("s", dist.LogNormal(0.0, 0.3))
        pyro.sample("y", dist.Normal(a, s), obs=torch.tensor(1.0))
        pyro.sample("k", dist.StudentT(5.0, a, s), obs=torch.tensor(0.5))

    posterior = pg.EP(model, progress=False).run()
    for ours, theirs in zip(*map(posterior.factor_marginal, ("y", "k")), strict=True):
        assert_close(ours, theirs)


def test_the_statement_without_a_density_is_named():
    def model():
        z = pyro.sample("z", dist.Categorical(PRIOR))
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("fine", dist.Poisson((x + SHIFT[z]).exp()), obs=torch.tensor(1.0))
        scale = torch.sqrt(x - 0.2 * z)
        pyro.sample("bad", dist.Normal(x, scale, validate_args=False), obs=torch.tensor(0.0))

    with pytest.raises(pg.errors.NonFiniteDensity, match='"bad"'):
        pg.EP(model, progress=False).run()


def test_the_evidence_is_differentiable_through_a_product():
    def log_z(shift):
        def model():
            z = pyro.sample("z", dist.Categorical(PRIOR[:2]))
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            rate = (x + shift * z).exp()
            pyro.sample("y", dist.Poisson(rate), obs=torch.tensor(3.0))
            pyro.sample("k", dist.Bernoulli(logits=x - shift * z), obs=torch.tensor(1.0))

        return pg.fit(model, infer=pg.EP, tol=1e-10, progress=False).log_evidence

    shift = torch.tensor(0.7, requires_grad=True)
    (slope,) = torch.autograd.grad(log_z(shift), shift)
    up, down = (float(log_z(torch.tensor(0.7 + d))) for d in (1e-4, -1e-4))
    assert float(slope) == pytest.approx((up - down) / 2e-4, rel=1e-5)


def test_where_one_factor_is_zero_another_one_may_overflow():
    """In states that are zero points reach where a count's rate is none any more: an error named
    the count, and derivatives were NaN."""
    shift = torch.tensor([[0.1, 0.5, -0.25], [0.45, 0.05, 0.15]])

    def log_z(by):
        def model():
            z = pyro.sample("z", dist.Categorical(PRIOR))
            u = pyro.sample("u", dist.Categorical(PRIOR[1:]))
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            for k in range(2):
                rate = (x + by * shift[u, z] * (k + 1)).exp()
                pyro.sample(f"y{k}", dist.Poisson(rate), obs=torch.tensor(float(k)))
            pyro.factor("table", torch.where((z == 0) & (u == 1), -torch.inf, 0.0))
            pyro.factor("zero", torch.where((z == 2) & (u == 0), -torch.inf, -x.square() / 10))

        return pg.fit(model, infer=pg.EP, tol=1e-10, progress=False).log_evidence

    by = torch.tensor(1.0, requires_grad=True)
    (slope,) = torch.autograd.grad(log_z(by), by)
    up, down = (float(log_z(torch.tensor(1.0 + d))) for d in (1e-4, -1e-4))
    assert float(slope) == pytest.approx((up - down) / 2e-4, rel=1e-4)
