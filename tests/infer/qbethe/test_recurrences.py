"""Likelihoods that recur in their parameters: factors on one scope, multiplied into one."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import NonFiniteDensity
from pyrograph.infer.message_passing.network import shared_work
from pyrograph.infer.message_passing.network.product_density import ProductDensity
from pyrograph.infer.qbethe.piecewise import PiecewisePotential
from pyrograph.infer.qbethe.potentials import IntegratedPotential


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


#: Two noisy rises.
T = torch.arange(20.0)
Y = torch.stack([T / 15 + 0.4 * torch.sin(T**2), 0.4 * torch.cos(T**2) - T / 30])


def smoothing(y, scale=0.4):
    """A level of each series that an observation moves by a share of its error; NaN are missing."""
    with pyro.plate("series", len(y)):
        share = pyro.sample("share", dist.Normal(0.0, 1.5))
        start = pyro.sample("start", dist.Normal(0.0, 1.0))
        level = start
        for t in range(y.shape[1]):
            seen = ~y[:, t].isnan()
            value = torch.where(seen, y[:, t], 0.0)
            with pyro.poutine.mask(mask=seen):
                pyro.sample(f"y{t}", dist.Normal(level, scale), obs=value)
            level = level + seen * torch.sigmoid(share) * (value - level)


def truth(y, scale=0.4):
    """Log evidence of one series, means and standard deviations of share and start."""
    grid = np.linspace(-8, 8, 401)
    share, level = np.meshgrid(grid, grid, indexing="ij")
    log_p = stats.norm.logpdf(share, 0, 1.5) + stats.norm.logpdf(level)
    for value in y.numpy():
        log_p = log_p + stats.norm.logpdf(value, level, scale)
        level = level + (value - level) / (1 + np.exp(-share))
    peak, cell = log_p.max(), grid[1] - grid[0]
    p = np.exp(log_p - peak)
    log_z = peak + math.log(p.sum() * cell**2)
    p /= p.sum()
    means = [p.sum(1) @ grid, p.sum(0) @ grid]
    sds = [math.sqrt(p.sum(k) @ (grid - m) ** 2) for k, m in zip((1, 0), means, strict=True)]
    return log_z, means, sds


def set_up(y, **options):
    pyro.set_rng_seed(0)
    return pg.QBethe(smoothing, progress=False, **options).setup(y)


def products(engine):
    """How many factors are in each product."""
    locals_ = [potential.local for potential in engine.network.potentials]
    found = [v for v in locals_ if isinstance(v, ProductDensity)]
    return [int(torch.cat([row for *_, row in v._made_of]).bincount().max()) for v in found]


def with_gaps():
    y = Y.clone()
    y[0, 9] = torch.nan
    return y


@pytest.mark.parametrize("options", [{"covariance": "full"}, {"num_components": 2}])
@pytest.mark.parametrize("y", [Y[:1], with_gaps()], ids=["one", "two of different lengths"])
def test_products_leave_the_free_energy_as_it_is(y, options, monkeypatch):
    together = set_up(y, **options)
    assert sum(products(together)) >= y.shape[1] - 3
    monkeypatch.setattr(shared_work, "DEEP", 10**9)
    apart = set_up(y, **options)
    assert not products(apart)
    found = []
    for engine in (together, apart):
        pyro.set_rng_seed(1)
        leaves = {n: v.detach() + 0.1 * torch.randn_like(v) for n, v in engine.parameters.items()}
        for value in leaves.values():
            value.requires_grad_()
        energy = engine.objective(leaves, engine._rules)
        slopes = torch.autograd.grad(energy.sum(), list(leaves.values()), allow_unused=True)
        found.append([energy, *(slope for slope in slopes if slope is not None)])
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_the_evidence_is_a_bound_and_near_a_dense_grid():
    log_z, means, sds = truth(Y[0])
    posterior = set_up(Y[:1], covariance="full", num_quadrature=6, num_steps=120).run(Y[:1])
    assert posterior.evidence_kind == "lower bound"
    assert log_z - 0.01 < float(posterior.log_evidence) < log_z
    for site, mean, sd in zip(("share", "start"), means, sds, strict=True):
        marginal = posterior.marginal(site)
        assert float(marginal.mean) == pytest.approx(mean, abs=0.02 * sd)
        assert float(marginal.variance.sqrt()) == pytest.approx(sd, rel=0.05)


def test_every_factor_of_a_product_has_its_belief():
    posterior = set_up(Y, covariance="full", num_steps=5).run(Y)
    first, last = (posterior.factor_marginal(f"y{t}") for t in (1, 19))
    for ours, theirs in zip(first, last, strict=True):
        assert ours.shape[0] == 2
        assert_close(ours, theirs)


def test_the_factor_of_a_product_that_is_to_blame_is_named():
    def model(bad, limit):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        x = a
        for t in range(20):
            x = torch.tanh(b * x) + a
            pyro.factor(f"f{t}", torch.where((x > limit) & (t == 13), bad, -0.01 * x.square()))

    def engine(*args):
        pyro.set_rng_seed(0)
        return pg.QBethe(model, num_components=2, num_steps=3, progress=False).setup(*args)

    zero = torch.tensor(-torch.inf), 1.2
    excluding = engine(*zero)
    assert max(products(excluding)) > 10
    posterior = excluding.run(*zero)
    assert posterior.log_evidence is None
    assert '"f13"' in posterior.status and "is zero where" in posterior.status
    infinite = torch.tensor(torch.inf), 2.5
    with pytest.raises(NonFiniteDensity, match=r'"f13".* plus infinity'):
        engine(*infinite).run(*infinite)


def test_zeros_of_a_factor_leave_the_others_of_its_product(monkeypatch):
    """Where a component is on the wrong side they pull it back."""

    def model():
        a = pyro.sample("a", dist.Normal(4.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        x = a
        for t in range(20):
            x = 0.9 * x + torch.tanh(b * x) + 0.01 * a
            likelihood = dist.Normal(x, 0.5).log_prob(torch.tensor(1.0))
            most = 3.0 if t == 19 else 1e6
            pyro.factor(f"f{t}", torch.where(a < most, likelihood, -torch.inf))

    found = []
    for deep in (shared_work.DEEP, 10**9):
        monkeypatch.setattr(shared_work, "DEEP", deep)
        pyro.set_rng_seed(0)
        engine = pg.QBethe(model, num_components=1, progress=False).setup()
        found.append([len(products(engine))])
        for mean in (2.5, 4.0):
            leaves = {n: v.detach().clone() for n, v in engine.parameters.items()}
            leaves["mean_0"].fill_(mean).requires_grad_()
            energy = engine.objective(leaves, engine._rules).sum()
            found[-1] += [energy, *torch.autograd.grad(energy, leaves["mean_0"])]
    assert found[0].pop(0) == 1 and found[1].pop(0) == 0
    assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


def test_large_numbers_whose_sum_overflows_are_no_zeros():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        x = a
        for t in range(20):
            x = torch.tanh(b * x) + a
            pyro.factor(f"f{t}", -3e36 * x.square().cosh())

    engine = pg.QBethe(model, num_components=1, dtype=torch.float32, progress=False).setup()
    assert products(engine) == [20]
    potential = engine.network.potentials[-1]
    potential.met_zero = False  # at the start it may
    u = torch.tensor([0.3, 0.2]).expand(9, 1, 1, 2)
    value = potential.local(u)
    assert value.isfinite().all() and value.sum() == -torch.inf
    assert torch.equal(potential._checked(value, u), value)
    assert not potential.met_zero


@pytest.mark.parametrize("closed_forms", [None, False])
def test_factors_in_pieces_keep_their_closed_forms(closed_forms):
    """A product of them has kinks in all directions, which no grid sees."""

    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        x = a
        for t in range(30):
            x = 0.9 * x + b
            pyro.sample(f"y{t}", dist.Laplace(x, 0.3), obs=torch.tensor(2.0))

    engine = pg.QBethe(model, closed_forms=closed_forms, progress=False).setup()
    kinds = {type(potential) for potential in engine.network.potentials}
    is_closed = closed_forms is None
    assert not (is_closed and products(engine))
    assert (PiecewisePotential in kinds) == is_closed
    assert (IntegratedPotential in kinds) != is_closed
