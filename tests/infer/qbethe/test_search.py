"""L-BFGS where densities break down and at kinks. Truth is by hand: minima and parabolas."""

from copy import deepcopy

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import ConvergenceWarning, NonFiniteDensity
from pyrograph.infer.qbethe.search import LineSearch, promised_gain


def leaf(*values):
    return torch.tensor([values], dtype=torch.float64, requires_grad=True)


class Barrier:
    """3 x - log x, of which there is none below 0; its minimum is at 1 / 3."""

    def __init__(self, x, fails_at=None):
        self.x, self.failed, self.calls, self.fails_at = x, 0, 0, fails_at

    def __call__(self):
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("interrupted")
        self.x.grad = None
        if bool((self.x <= 0).any()):
            self.failed += 1
            raise NonFiniteDensity("a logarithm of a negative number")
        loss = (3 * self.x - self.x.log()).sum()
        loss.backward()
        return loss


def test_a_search_steps_back_from_where_the_loss_is_no_number():
    x = leaf(0.5)
    loss, search = Barrier(x), LineSearch([x])
    for _ in range(10):
        search.step(loss)
    assert loss.failed
    assert_close(x.detach(), torch.full((1, 1), 1 / 3).double(), rtol=1e-6, atol=0)


def test_where_it_begins_the_loss_has_to_be_a_number():
    x = leaf(-1.0)
    with pytest.raises(NonFiniteDensity, match="negative"):
        LineSearch([x]).step(Barrier(x))
    assert x.tolist() == [[-1.0]]


def test_a_step_that_raises_leaves_parameters_and_memory_as_they_were():
    x = leaf(0.9, 0.1)
    search = LineSearch([x])
    search.step(Barrier(x))
    values, memory = x.detach().clone(), deepcopy(search.state_dict())
    with pytest.raises(RuntimeError, match="interrupted"):
        search.step(Barrier(x, fails_at=3))
    assert torch.equal(x, values)
    assert_close(search.state_dict()["state"], memory["state"], rtol=0, atol=0)


@pytest.mark.parametrize("curvature", [0.5, 1e4])
def test_at_a_parabola_the_promise_is_the_height_above_its_minimum(curvature):
    x = leaf(1e-3)

    def loss():
        x.grad = None
        value = 0.5 * curvature * x.square().sum()
        value.backward()
        return value

    height = 0.5 * curvature * 1e-6
    gain = promised_gain([x], loss)
    if curvature > 1:
        assert float(gain) == pytest.approx(height, rel=1e-5)
    else:  # no step is longer than the gradient
        assert height / 2 < float(gain) <= height
    assert x.tolist() == [[1e-3]]


def test_the_promise_at_a_kink_is_that_of_its_slope():
    x = leaf(1e-10, 2.0)  # next to the kink of |x|

    def loss():
        x.grad = None
        value = (x[:, 0].abs() + 0.5 * x[:, 1].square()).sum()
        value.backward()
        return value

    assert float(promised_gain([x], loss)) > 0.5


def gammas():
    with pyro.plate("two", 2):
        pyro.sample("x", dist.Gamma(2.5, 1.5))
    pyro.sample("y", dist.Laplace(0.0, 1.0))


@pytest.mark.parametrize("seed", [1, 3])
def test_a_smooth_program_is_not_said_to_be_infinite_where_a_search_went_too_far(seed):
    pyro.set_rng_seed(seed)
    infer = pg.QBethe(gammas, optimizer="lbfgs", num_components=3, num_steps=30, progress=False)
    q = infer.run()
    assert -0.1 < float(q.log_evidence) < 0.01  # of a prior log Z is 0


def kinks():
    x = pyro.sample("x", dist.Normal(0.3, 1.0))
    y = pyro.sample("y", dist.Laplace(0.0, 1.0))
    pyro.factor("tie", -(2.0 * (x - y).abs()).clamp_max(0.7))
    pyro.factor("low", -(x - 0.2).abs())


def test_a_search_that_is_stuck_at_a_kink_has_not_converged():
    pyro.set_rng_seed(0)
    options = {"closed_forms": False, "num_components": 1, "num_steps": 30, "progress": False}
    infer = pg.QBethe(kinks, optimizer="lbfgs", tol=1e-6, **options)
    with pytest.warns(ConvergenceWarning, match="kinks: take optimizer"):
        infer.run()
    slopes = torch.autograd.grad(
        infer.objective(infer.parameters, infer._rules).sum(),
        [v for name, v in infer.parameters.items() if name != "weights"],
    )
    assert max(float(slope.abs().max()) for slope in slopes) > 0.1
