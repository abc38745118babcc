"""Mean field of programs with labels and products: where it starts, how it climbs, and polynomials
without error. Truth is plain coordinate ascent in closed form, and the states data were made of."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.continuous import twins

LN_2PI = math.log(2 * math.pi)


# ---------------------------------------------------------------------- starts
def answers(seed, num_items=600, num_people=30, each=5):
    """Items' states, and who answered what about which: people are more often right than wrong."""
    draw = torch.Generator().manual_seed(seed)
    z = torch.bernoulli(torch.full((num_items,), 0.5), generator=draw)
    ability = 1 + torch.randn(num_people, generator=draw)
    item = torch.arange(num_items).repeat_interleave(each)
    who = torch.randint(num_people, (num_items * each,), generator=draw)
    y = torch.bernoulli(torch.sigmoid(ability[who] * (2 * z[item] - 1)), generator=draw)
    return z, ability, item, who, y


def of_people(item, who, y):
    with pyro.plate("people", int(who.max()) + 1):
        ability = pyro.sample("ability", dist.Normal(1.0, 1.0))
    with pyro.plate("items", int(item.max()) + 1):
        z = pyro.sample("z", dist.Bernoulli(0.5))
    with pyro.plate("answers", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=ability[who] * (2 * z[item] - 1)), obs=y)


@pytest.mark.parametrize("schedule", ["sequential", "parallel"])
@pytest.mark.parametrize("seed", range(3))
def test_labels_are_set_apart_by_what_priors_say_of_annotators(seed, schedule):
    z, ability, *seen = answers(seed)
    item, who, y = seen
    votes = torch.zeros_like(z).index_add(0, item, (2 * y - 1) * ability[who])
    known = ((votes > 0) == (z > 0)).double().mean()  # by someone who knows the abilities
    pyro.set_rng_seed(0)
    posterior = pg.fit(of_people, tuple(seen), infer=pg.VMP, progress=False, schedule=schedule)
    right = ((posterior.marginal("z").mean > 0.5) == (z > 0)).double().mean()
    assert posterior.converged
    assert right > known - 0.03


# ---------------------------------------------------------------------- a bound that rises
def weighted_mixture(y, count):
    with pyro.plate("components", count):
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        precision = pyro.sample("precision", dist.Gamma(2.0, 2.0))
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(count)))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(mu[z], precision[z] ** -0.5), obs=y)


def test_sweeps_that_leave_a_plateau_are_not_taken_for_ones_that_run_away():
    """Steps grow a hundred times while components part, and the bound rises all the way."""
    draw = torch.Generator().manual_seed(0)
    parts = [(12, -5.0, 1.0), (15, 0.0, 1.0), (18, 6.0, 0.7)]
    y = torch.cat([m + s * torch.randn(n, generator=draw) for n, m, s in parts])
    pyro.set_rng_seed(0)
    engine = pg.VMP(weighted_mixture, progress=False)
    posterior = engine.run(y, 3)
    order = posterior.marginal("mu").mean.argsort()
    assert posterior.status == "converged"
    assert_close(
        posterior.marginal("mu").mean[order], torch.tensor([-5.0, 0.0, 6.0]), atol=0.4, rtol=0
    )
    shares = torch.tensor([12.0, 15.0, 18.0]) / 45
    assert_close(posterior.marginal("weights").mean[order], shares, atol=0.03, rtol=0)
    residual, bound = (posterior.history[k] for k in ("residual", "objective"))
    lowest = residual[5:].cummin(0).values
    assert bool((residual[5:] > 10 * lowest)[:-1].any())  # it did grow
    assert bool((bound.diff() >= -1e-9 * bound.abs()[1:]).all())


# ---------------------------------------------------------------------- products
def product(y, rank, noise):
    with pyro.plate("rows", len(y)):
        u = pyro.sample("u", dist.Normal(0.0, 1.0).expand([rank]).to_event(1))
    with pyro.plate("columns", y.shape[1]):
        v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([rank]).to_event(1))
    with pyro.plate("across", y.shape[1], dim=-1), pyro.plate("down", len(y), dim=-2):
        pyro.sample("y", dist.Normal((u[:, None] * v).sum(-1), noise), obs=y)


def ascended(y, mean, covariance, noise, sweeps=500):
    """Coordinate ascent of q(U) q(V) from some q(V): means, covariances, and the bound."""

    def half(y, m, s):  # the other factor's rows given these
        precision = torch.eye(m.shape[1]) + (s + m[:, :, None] * m[:, None]).sum(0) / noise**2
        cov = torch.linalg.inv(precision)
        return y @ m @ cov / noise**2, cov.expand(len(y), -1, -1)

    v = mean, covariance
    for _ in range(sweeps):
        u = half(y, *v)
        v = half(y.T, *u)
    second = [s + m[:, :, None] * m[:, None] for m, s in (u, v)]
    square = y.square() - 2 * y * (u[0] @ v[0].T) + torch.einsum("iab,jab->ij", *second)
    bound = (-0.5 * square / noise**2 - math.log(noise) - 0.5 * LN_2PI).sum()
    for (m, s), rows in ((u, second[0]), (v, second[1])):
        d = m.shape[1]
        bound = bound + 0.5 * (torch.logdet(s) + d - rows.diagonal(dim1=1, dim2=2).sum(1)).sum()
    return u, v, bound


@pytest.mark.parametrize("rank", [1, 2, 3, 6])
def test_products_under_noise_are_integrated_without_error(rank):
    """u and v of six numbers each are twelve dimensions."""
    draw = torch.Generator().manual_seed(rank)
    u, v = (torch.randn(n, rank, generator=draw) for n in (12, 9))
    y = u @ v.T + 0.5 * torch.randn(12, 9, generator=draw)
    pyro.set_rng_seed(0)
    posterior = pg.fit(product, (y, rank, 0.5), infer=pg.VMP, progress=False)
    assert posterior.status == "converged"
    found = posterior.marginal("v")
    _, (mean, covariance), bound = ascended(y, found.mean, found.covariance_matrix, 0.5)
    assert_close(posterior.log_evidence, bound)
    assert_close(found.mean, mean, atol=1e-5, rtol=0)
    assert_close(found.covariance_matrix, covariance, atol=1e-6, rtol=0)
    assert bound > ascended(y, v, torch.eye(rank).expand(9, -1, -1), 0.5)[2] - 1  # from the truth


@pytest.mark.parametrize("num_points", [3, 10])
def test_products_of_many_numbers_need_no_grid_whatever_is_asked_for(num_points):
    draw = torch.Generator().manual_seed(0)
    y = torch.randn(4, 3, generator=draw)
    found = []
    for options in ({}, {"num_points": num_points}):
        engine = pg.VMP(product, progress=False, **options)
        engine.setup(y, 4, 0.5)
        assert [b.expected.rule[1].numel() for b in engine.network.blocks] == [577]  # not 10^8
        found.append(engine.step())
    assert found[0] == found[1]


# ---------------------------------------------------------------------- twins
def documents(y, of, power):
    with pyro.plate("documents", 4):
        topics = pyro.sample("topics", dist.Dirichlet(torch.full((3,), 0.7)))
    with pyro.plate("words", len(y)):
        z = pyro.sample("z", dist.Categorical(topics[of] ** power))
        pyro.sample("y", dist.Normal(torch.tensor([-2.0, 0.0, 2.0])[z], 1.0), obs=y)


def words(count=40):
    draw = torch.Generator().manual_seed(0)
    return 2 * torch.randn(count, generator=draw), torch.arange(count) % 4


def test_labels_with_the_same_weights_are_looked_at_once(monkeypatch):
    y, of = words()
    found = {}
    for times in (2, 10**9):
        monkeypatch.setattr(twins, "TIMES", times)
        engine = pg.VMP(documents, progress=False)
        found[times] = engine.run(y, of, 1.0)
        twins_of = [b.expected._twins for b in engine.network.blocks]
        sizes = [own[0].local.num_factors for own in twins_of if own is not None]
        assert sizes == ([4] if times == 2 else [])
    some, every = found[2], found[10**9]
    assert some.status == "converged"
    assert_close(some.log_evidence, every.log_evidence, rtol=1e-12, atol=0)
    assert_close(some.marginal("z").probs, every.marginal("z").probs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (40,)])
def test_derivatives_reach_every_twin(shape):
    """By central differences, of a number that all have and of numbers of their own."""
    y, of = words()

    def bound(power):
        return pg.fit(documents, (y, of, power), infer=pg.VMP, progress=False).log_evidence

    power = torch.full(shape, 1.5)
    power = (power[:, None] if shape else power).requires_grad_()
    (slope,) = torch.autograd.grad(bound(power), power)
    if not shape:
        with torch.no_grad():
            expected = (bound(power + 1e-4) - bound(power - 1e-4)) / 2e-4
        assert_close(slope, expected, rtol=1e-5, atol=0)
        return
    for k in (0, 39):
        step = torch.zeros_like(power)
        step[k] = 1e-4
        with torch.no_grad():
            expected = (bound(power + step) - bound(power - step)) / 2e-4
        assert_close(slope[k, 0], expected, rtol=1e-4, atol=1e-6)
