"""Unadjusted Langevin on a Gaussian, whose discretised law is known exactly."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyrograph.errors import ConvergenceWarning, OptionError
from pyrograph.infer import Langevin


def test_the_stationary_variance_is_that_of_the_discretised_chain():
    precision, eps = torch.tensor([1.0, 4.0]), 0.1

    def model():
        with pyro.plate("p", 2):
            pyro.sample("x", dist.Normal(3.0, precision.rsqrt()))

    engine = Langevin(model, step_size=eps, num_particles=4000, num_steps=120, progress=False)
    x = engine.run().x
    # x <- (1 - eps a) x + sqrt(2 eps) xi has variance 1 / (a (1 - eps a / 2)): 1.053 and 0.3125
    truth = 1 / (precision * (1 - eps * precision / 2))
    # 4000 independent chains: relative sd of the variance .022, of the mean .016 sd
    assert ((x.var(0) / truth - 1).abs() < 0.09).all()
    assert ((x.mean(0) - 3).abs() < 0.065 * truth.sqrt()).all()


def test_chains_are_independent_of_each_other():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    start = torch.randn(6, 1)
    runs = []
    for shift in (0.0, 5.0):
        pyro.set_rng_seed(1)
        init = start.clone()
        init[3] += shift
        engine = Langevin(model, init=init, num_particles=6, num_steps=5, progress=False)
        runs.append(engine.run().x)
    others = [0, 1, 2, 4, 5]
    assert torch.equal(runs[0][others], runs[1][others])
    assert float(runs[1][3] - runs[0][3]) > 4


def test_the_discrepancy_is_measured_only_for_tol():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    options = {"step_size": 0.05, "num_steps": 200, "progress": False}
    assert set(Langevin(model, **options).run().history) == {"objective"}
    posterior = Langevin(model, tol=0.1, **options).run()
    assert posterior.converged
    assert float(posterior.history["ksd"][-1]) <= 0.1


@pytest.mark.parametrize("step_size", [0, -1e-3, float("nan"), "big"])
def test_step_sizes_are_checked(step_size):
    with pytest.raises(OptionError, match="step_size"):
        Langevin(lambda: None, step_size=step_size)


def test_a_start_where_a_scale_is_nearly_zero_does_not_throw_chains_away():
    """Scores there are 1e5 and more: whole steps would end where numbers do."""
    torch.manual_seed(0)
    design = torch.randn(60, 4)
    y = design @ torch.tensor([1.0, -1.0, 0.5, 0.0]) + 2.0 + 0.7 * torch.randn(60)

    def model():
        b = pyro.sample("b", dist.Normal(torch.zeros(4), 3.0).to_event(1))
        a, s = pyro.sample("a", dist.Normal(0.0, 5.0)), pyro.sample("s", dist.HalfNormal(2.0))
        with pyro.plate("n", 60):
            pyro.sample("y", dist.Normal(design @ b + a, s), obs=y)

    ones = torch.cat([design, torch.ones(60, 1)], 1)
    truth = torch.linalg.lstsq(ones, y).solution  # priors are wide
    posterior = Langevin(model, num_steps=3000, num_particles=100, progress=False).run()
    slopes = posterior.marginal("b").mean
    error = 0.7 / 60**0.5
    assert ((slopes - truth[:4]).abs() < error).all()  # at most .4 of it in five seeds
    assert abs(float(posterior.marginal("s").mean) - 0.7) < 0.1


def test_drifts_are_cut_in_the_coordinates_of_the_run():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1e-3))
        pyro.sample("y", dist.Normal(0.0, 1e3))

    start = torch.tensor([[1.0, 1e3], [1e-3, 1e3]])
    engine = Langevin(model, init=start, num_particles=2, step_size=1e-7, progress=False)
    engine.setup()
    noise = (2 * 1e-7) ** 0.5
    before = engine.x.clone()
    engine.step()
    moved = engine.x - before
    assert abs(float(moved[0, 0]) + 10 * noise) < 5 * noise  # 0.1 without the cut
    assert abs(float(moved[1, 0]) + 1e-4) < 5 * noise


def test_a_step_too_long_for_one_coordinate_alone_is_told_of_where_convergence_is_denied():
    """Its variance is 1 / (1 - .6 / 2) = 1.43 of the target's, the median one's 1.003."""

    def model():
        pyro.sample("x", dist.Normal(torch.zeros(9), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(0.0, 0.1))

    start = torch.randn(1500, 10)
    start[:, 9] *= 0.1 / (1 - 0.3) ** 0.5
    options = {"step_size": 0.006, "num_particles": 1500, "num_steps": 25, "progress": False}
    with pytest.warns(ConvergenceWarning, match='at site "y".*step_size is too long'):
        Langevin(model, init=start, tol=1e6, **options).run()
