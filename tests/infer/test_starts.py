"""Starts whose particles coincide, carry weights, or come from functions of a number."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from torch.testing import assert_close

from pyrograph.errors import OptionError
from pyrograph.infer import GraphicalSVGD
from pyrograph.infer.initial import apart


def observed_once():
    """N(1/2, 1/2) is its posterior."""
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(1.0))


def run(model, *args, **options):
    return GraphicalSVGD(model, progress=False, **options).run(*args)


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_particles_that_start_at_one_point_spread(value):
    marginal = run(observed_once, init={"x": torch.full((50,), value)}, num_steps=300).marginal("x")
    assert float(marginal.mean) == pytest.approx(0.5, abs=0.01)
    assert float(marginal.variance) == pytest.approx(0.5, rel=0.05)


def test_a_point_guide_is_a_start():
    guide = AutoDelta(observed_once)
    svi = SVI(observed_once, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(100):
        svi.step()
    marginal = run(observed_once, init=guide, num_steps=300).marginal("x")
    assert float(marginal.variance) == pytest.approx(0.5, rel=0.05)


def test_a_smaller_posterior_gives_distinct_particles():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))

    few = run(model, num_particles=10, num_steps=100)
    many = run(model, num_particles=60, init=few, num_steps=200)
    assert len(many.x.unique(dim=0)) == 60
    assert_close(many.marginal("x").variance, torch.ones(3), rtol=0.1, atol=0)


def test_only_particles_that_started_alike_are_moved_apart():
    start = torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.0, 1.0], [5.0, 1.0]])
    x = torch.randn(4, 2)
    moved = apart(x, start, torch.ones)
    shift = torch.zeros(4, 2)
    shift[2, 0] = 0.1 * start[:, 0].std(correction=0)  # a repetition of the first
    shift[1:, 1] = 0.1  # all in one place: no spread to take a share of
    assert_close(moved, x + shift)
    distinct = torch.randn(4, 2)
    assert apart(x, distinct, None) is x


def test_noise_and_a_single_particle_are_left_alone():
    start = {"x": torch.zeros(1)}
    one = run(observed_once, init=start, num_steps=200)
    assert float(one.x) == pytest.approx(0.5, abs=1e-6)


def test_a_weighted_posterior_of_equal_size_is_resampled():
    x = torch.linspace(-1.0, 4.0, 200)[:, None]  # mean 1.5, of a target with mean 0

    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    weighted = run(model, init=x, num_steps=0, reweight=True)
    mean = float(weighted.weights @ x[:, 0])
    assert abs(mean) < 0.2
    started = run(model, init=weighted, num_steps=0)
    # systematic resampling: within a particle's share of the range
    assert float(started.x.mean()) == pytest.approx(mean, abs=5 / 200)


def plate_of(n):
    with pyro.plate("p", n):
        pyro.sample("x", dist.Normal(0.0, 1.0))


def test_a_function_of_n_is_given_the_number_though_the_model_takes_an_argument():
    for init in (lambda n: torch.zeros(n, 5), lambda num_particles: torch.zeros(num_particles, 5)):
        posterior = run(plate_of, 5, init=init, num_particles=7, num_steps=0)
        assert posterior.x.shape == (7, 5)


def test_a_guide_whose_argument_is_called_n_is_given_the_models():
    def guide(n):
        with pyro.plate("p", n):
            pyro.sample("x", dist.Normal(3.0, 0.1))

    assert run(plate_of, 5, init=guide, num_particles=7, num_steps=0).x.shape == (7, 5)


def test_a_function_that_fails_on_the_models_arguments_is_told_how_to_take_the_number():
    def model(data):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=data)

    data = torch.tensor([0.5])[0]
    with pytest.raises(OptionError, match="call its argument n or num_particles"):
        run(model, data, init=lambda k: {"x": torch.randn(k)}, num_steps=0)
