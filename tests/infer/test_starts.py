"""Starts whose particles coincide, carry weights, or come from functions of a number."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from torch.testing import assert_close

from pyrograph.errors import OptionError
from pyrograph.graph import trace_graph
from pyrograph.infer import GraphicalSVGD, Langevin
from pyrograph.infer.initial import apart, normal, within_reach


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


# ------------------------------------------------------------- starts that lie absurdly low
def failure_times():
    """Of scales near 0 scores of 1e36."""
    shape = pyro.sample("shape", dist.Gamma(2.0, 1.0))
    scale = pyro.sample("scale", dist.Gamma(2.0, 1.0))
    times = torch.linspace(0.1, 3.0, 20)
    with pyro.plate("n", 20):
        pyro.sample("time", dist.Weibull(scale, shape), obs=times)


def moments_on_a_grid():
    """Means and standard deviations of log shape and log scale."""
    z = torch.linspace(-6.0, 4.0, 1501, dtype=torch.float64)
    a, b = torch.meshgrid(z, z, indexing="ij")
    prior = dist.Gamma(torch.tensor(2.0, dtype=torch.float64), 1.0)
    log_p = prior.log_prob(a.exp()) + prior.log_prob(b.exp()) + a + b
    for time in torch.linspace(0.1, 3.0, 20):
        log_p = log_p + dist.Weibull(b.exp(), a.exp()).log_prob(time.double())
    p = log_p.flatten().softmax(0)
    both = torch.stack([a.flatten(), b.flatten()], 1)
    mean = p @ both
    return mean, (p @ (both - mean).square()).sqrt()


@pytest.mark.parametrize(("dtype", "seeds"), [(torch.float64, 3), (torch.float32, 1)])
def test_no_particle_freezes_the_others_by_where_it_starts(dtype, seeds):
    mean, width = moments_on_a_grid()
    for seed in range(seeds):
        pyro.set_rng_seed(seed)
        x = run(failure_times, num_steps=500, dtype=dtype).x.double()
        assert float(((x.mean(0) - mean) / width).abs().max()) < 0.1
        assert float((x.std(0) / width - 1).abs().max()) < 0.1


def test_starts_that_are_not_absurd_stay_what_they_are():
    graph = trace_graph(observed_once, unconstrained=True)
    drawn = normal(50, graph, torch.Generator().manual_seed(0))
    assert torch.equal(within_reach(graph, drawn), drawn)


def test_of_a_narrow_density_all_start_low_and_stay_apart():
    def narrow():
        pyro.sample("x", dist.Normal(0.0, 1e-6))

    graph = trace_graph(narrow, unconstrained=True)
    drawn = normal(200, graph, torch.Generator().manual_seed(0))
    found = within_reach(graph, drawn)
    assert 0.5 < float(found.std() / drawn.std()) <= 1


def volatility(returns):
    step = pyro.sample("step", dist.HalfNormal(0.3))
    noise = pyro.sample("noise", dist.Normal(torch.zeros(len(returns)), 1.0).to_event(1))
    log_variance = (step * noise).cumsum(0)
    with pyro.plate("times", len(returns)):
        pyro.sample("returns", dist.Normal(0.0, (log_variance / 2).exp()), obs=returns)


def test_a_step_that_ends_where_there_is_no_density_is_shortened():
    returns = torch.randn(100, generator=torch.Generator().manual_seed(3))
    for seed in range(3):
        pyro.set_rng_seed(seed)
        posterior = run(volatility, returns, num_steps=60)
        objective = posterior.history["objective"]
        assert bool(objective.isfinite().all()) and objective[-1] > objective[0]


def test_noise_is_not_shortened():
    assert GraphicalSVGD(observed_once, noise=0.01).halvings == 0
    assert Langevin(observed_once).halvings == 0 < GraphicalSVGD(observed_once).halvings
