"""Factors that are Gaussian in every state of their labels, against closed forms and grids."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.quadrature.in_states import MomentsInStates

PRIOR = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
WIDTH = 12


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def are_closed(engine):
    """Of the blocks that are integrated numerically, whether they are in closed form."""
    return [
        isinstance(block.tilted, MomentsInStates)
        for block in engine.network.blocks
        if hasattr(block, "tilted")
    ]


def random(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


# ---------------------------------------------------------------------- exact ones
def test_a_component_of_many_numbers_and_what_is_observed_of_it():
    """No grid serves twelve numbers, and terms of single ones closed cycles with the label."""
    centre, scale = random(3, WIDTH), torch.tensor([1.0, 0.5, 2.0])
    weights, noise, y = random(3, 4, WIDTH), 0.7, random(4)

    def model():
        z = pyro.sample("z", dist.Categorical(PRIOR))
        x = pyro.sample("x", dist.Normal(centre[z], scale[z]).to_event(1))
        pyro.sample("y", dist.Normal(weights[z] @ x, noise).to_event(1), obs=y)

    engine = pg.EP(model, progress=False)
    posterior = engine.run()
    assert posterior.converged and are_closed(engine) == [True]
    log_p, means, covariances = [], [], []
    for z in range(3):
        rows, spread = weights[z], scale[z].square() * torch.eye(WIDTH)
        of_y = rows @ spread @ rows.T + noise**2 * torch.eye(4)
        log_p.append(dist.MultivariateNormal(rows @ centre[z], of_y).log_prob(y))
        gain = spread @ rows.T @ torch.linalg.inv(of_y)
        means.append(centre[z] + gain @ (y - rows @ centre[z]))
        covariances.append(spread - gain @ rows @ spread)
    log_p, means = torch.stack(log_p) + PRIOR.log(), torch.stack(means)
    share = log_p.softmax(0)
    mean = share @ means
    off = means - mean
    covariance = torch.einsum("z,zij->ij", share, torch.stack(covariances))
    covariance = covariance + torch.einsum("z,zi,zj->ij", share, off, off)
    assert float(posterior.log_evidence) == pytest.approx(float(log_p.logsumexp(0)), abs=1e-9)
    assert_close(posterior.marginal("z").probs, share, atol=1e-9, rtol=0)
    found = posterior.marginal("x")
    assert_close(found.mean, mean, atol=1e-8, rtol=0)
    assert_close(found.covariance_matrix, covariance, atol=1e-8, rtol=0)


def one_row(centre, spread, y):
    """Components that a label chooses from; what is observed of one of them."""

    def model():
        with pyro.plate("components", len(centre)):
            x = pyro.sample("x", dist.Normal(centre, spread).to_event(1))
        z = pyro.sample("z", dist.Categorical(PRIOR))
        pyro.sample("y", dist.Normal(x[z], 1.0).to_event(1), obs=y)

    return model


def test_a_row_of_a_mixture_in_many_numbers():
    centre, y, spread = random(3, WIDTH), random(WIDTH), 1.5
    engine = pg.EP(one_row(centre, spread, y), progress=False)
    posterior = engine.run()
    assert are_closed(engine) == [True]
    log_p = dist.Normal(centre, (1 + spread**2) ** 0.5).log_prob(y).sum(1) + PRIOR.log()
    share = log_p.softmax(0)
    there = centre + spread**2 / (1 + spread**2) * (y - centre)
    mean = centre + share[:, None] * (there - centre)
    assert float(posterior.log_evidence) == pytest.approx(float(log_p.logsumexp(0)), abs=1e-9)
    assert_close(posterior.marginal("z").probs, share, atol=1e-9, rtol=0)
    assert_close(posterior.marginal("x").mean, mean, atol=1e-8, rtol=0)


def test_components_of_many_numbers_and_many_rows():
    """Matrices of factors are those of the component that a state reads: squares of the numbers of
    all components together were counted, too many from 336 rows of ten components in ten on, and
    rows were divided into terms, which close cycles."""
    components, width, rows = 40, 2, 132
    centre, y = random(components, width), random(rows, width)

    def model():
        with pyro.plate("components", components):
            mean = pyro.sample("mean", dist.Normal(centre, 1.0).to_event(1))
        with pyro.plate("rows", rows):
            z = pyro.sample("z", dist.Categorical(torch.ones(components) / components))
            pyro.sample("y", dist.Normal(mean[z], 1.0).to_event(1), obs=y)

    engine = pg.EP(model, progress=False, num_steps=1)
    with pytest.warns(pg.errors.ConvergenceWarning):
        engine.run()
    (block,) = (block for block in engine.network.blocks if hasattr(block, "tilted"))
    assert are_closed(engine) == [True] and block.local.dim == width


def test_the_evidence_is_differentiable():
    y, centre = random(WIDTH), random(3, WIDTH)

    def log_p(spread):
        return dist.Normal(centre, (1 + spread**2).sqrt()).log_prob(y).sum(1) + PRIOR.log()

    spread = torch.tensor(1.5, requires_grad=True)
    posterior = pg.fit(one_row(centre, spread, y), infer=pg.EP, progress=False)
    (found,) = torch.autograd.grad(posterior.log_evidence, spread)
    (expected,) = torch.autograd.grad(log_p(spread).logsumexp(0), spread)
    assert_close(found, expected, atol=1e-8, rtol=0)


def test_data_in_large_units():
    """1e8 standard deviations from 0, f is a difference of large numbers but where it is."""
    far = 1e8
    centre, y = random(3, 2) + far, random(2) + far
    posterior = pg.EP(one_row(centre, 1.0, y), progress=False).run()
    log_p = dist.Normal(centre, 2.0**0.5).log_prob(y).sum(1) + PRIOR.log()
    assert float(posterior.log_evidence) == pytest.approx(float(log_p.logsumexp(0)), abs=1e-6)
    assert_close(posterior.marginal("z").probs, log_p.softmax(0), atol=1e-6, rtol=0)


# ---------------------------------------------------------------------- as on grids
def switching():
    """A switching walk, observed with outliers."""
    y = torch.tensor([0.3, 9.0, 2.5])
    step, scale = torch.tensor([0.0, 1.5]), torch.tensor([0.3, 1.0])

    def model():
        x, z = 0.0, None
        for t in range(len(y)):
            chance = torch.tensor([0.6, 0.4]) if z is None else torch.tensor([[0.8, 0.2]] * 2)[z]
            z = pyro.sample(f"z{t}", dist.Categorical(chance))
            x = pyro.sample(f"x{t}", dist.Normal(x + step[z], scale[z]))
            out = pyro.sample(f"o{t}", dist.Bernoulli(0.1))
            pyro.sample(f"y{t}", dist.Normal(x, 0.5 + 9.5 * out), obs=y[t])

    return model


def mixture():
    y = torch.cat([random(6, 2) - 1.5, random(5, 2) + 1.5])
    centre = torch.tensor([[-1.0, -1.0], [1.0, 1.0]])

    def model():
        with pyro.plate("components", 2):
            x = pyro.sample("x", dist.Normal(centre, 2.0).to_event(1))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Categorical(PRIOR[:2] / PRIOR[:2].sum()))
            pyro.sample("y", dist.Normal(x[z], 1.0).to_event(1), obs=y)

    return model


@pytest.mark.parametrize("program", [switching, mixture])
@pytest.mark.parametrize("infer, options", [(pg.EP, {}), (pg.PowerEP, {"alpha": 0.5})])
def test_moments_are_those_of_grids(program, infer, options, monkeypatch):
    options = {"tol": 1e-9, "num_steps": 300, "progress": False} | options
    engine = infer(program(), **options)
    ours = engine.run()
    assert are_closed(engine) and all(are_closed(engine))
    monkeypatch.setattr(LocalDensity, "quadratic_in_states", None)
    engine = infer(program(), **options)
    theirs = engine.run()
    assert not any(are_closed(engine))
    assert_close(ours.log_evidence, theirs.log_evidence, atol=1e-6, rtol=0)
    for name in engine.graph.sites:
        ours_of, theirs_of = ours.marginal(name), theirs.marginal(name)
        if hasattr(ours_of, "probs"):
            assert_close(ours_of.probs, theirs_of.probs, atol=1e-6, rtol=0)
        else:
            assert_close(ours_of.mean, theirs_of.mean, atol=1e-6, rtol=0)
            assert_close(ours_of.variance, theirs_of.variance, atol=1e-6, rtol=0)


def test_a_resumed_run_is_the_unbroken_one():
    whole = pg.EP(mixture(), num_steps=12, tol=None, progress=False).run()
    first = pg.EP(mixture(), num_steps=5, tol=None, progress=False)
    first.run()
    second = pg.EP(mixture(), num_steps=12, tol=None, progress=False)
    second.load_state_dict(first.state_dict())
    resumed = second.run()
    assert_close(resumed.log_evidence, whole.log_evidence, atol=0, rtol=0)
    assert_close(resumed.marginal("x").mean, whole.marginal("x").mean, atol=0, rtol=0)


# ---------------------------------------------------------------------- what is none
def test_a_zero_state_takes_points():
    def model():
        z = pyro.sample("z", dist.Categorical(PRIOR))
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("y", torch.where(z == 2, -torch.inf, -(x - z).square()))

    engine = pg.EP(model, progress=False)
    posterior = engine.run()
    assert are_closed(engine) == [False]
    log_p = torch.stack(
        [dist.Normal(float(z), 1.5**0.5).log_prob(torch.tensor(0.0)) for z in (0, 1)]
    )
    log_p = log_p + PRIOR[:2].log() + 0.5 * torch.tensor(torch.pi).log()
    assert float(posterior.log_evidence) == pytest.approx(float(log_p.logsumexp(0)), abs=1e-9)
    assert_close(posterior.marginal("z").probs[:2], log_p.softmax(0), atol=1e-9, rtol=0)


def test_a_state_without_a_distribution_names_the_factor():
    def model():
        z = pyro.sample("z", dist.Categorical(PRIOR))
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("grows", z * x.square())

    with pytest.raises(pg.errors.InferenceError, match=r'"grows".*leave no'):
        pg.EP(model, progress=False).run()
