"""Nodes that nothing else speaks of, values not observed or still to come, against closed forms:
densities of such nodes integrate to 1, so that the others' posterior and the evidence are what they
are without them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import pyrograph as pg
from pyrograph.beliefs import Gaussian
from pyrograph.infer.message_passing.quadrature.effective import Rest, effective

#: The posterior of a ~ N(loc, 1) after one observation at loc + 1 of noise 0.5, and its evidence.
MEAN, VARIANCE, EVIDENCE = 0.8, 0.2, stats.norm.logpdf(1, 0, math.sqrt(1.25))


@pytest.fixture(autouse=True)
def double() -> None:
    torch.set_default_dtype(torch.float64)  # put back by the fixture of all tests


def with_unobserved(child: Callable[[Tensor], dist.Distribution], count: int, loc: float):
    def model():
        a = pyro.sample("a", dist.Normal(loc, 1.0))
        pyro.sample("seen", dist.Normal(a, 0.5), obs=torch.tensor(loc + 1.0))
        with pyro.plate("missing", count):
            pyro.sample("x", child(a))

    return model


#: With mean and variance of the child less a.
CHILDREN = {
    "Student": (lambda a: dist.StudentT(9.0, a, 0.5), 0.0, 0.25 * 9 / 7),
    "Laplace": (lambda a: dist.Laplace(a - 7.0, 0.5), -7.0, 0.5),
    "Logistic": (lambda a: dist.Logistic(a + 2.0, 0.5), 2.0, 0.25 * math.pi**2 / 3),
    "Gumbel": (lambda a: dist.Gumbel(a, 0.5), 0.5 * 0.5772156649, 0.25 * math.pi**2 / 6),
}


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("loc", [0.0, 1e5])
@pytest.mark.parametrize("name", CHILDREN)
def test_unobserved_children_say_nothing_of_their_parent(
    name: str, loc: float, count: int, schedule: str
):
    child, shift, spread = CHILDREN[name]
    model = with_unobserved(child, count, loc)
    posterior = pg.fit(model, infer=pg.EP, schedule=schedule, progress=False)
    a, x = posterior.marginal("a"), posterior.marginal("x")
    assert posterior.converged and posterior.status == "converged"
    # each child's own integral is that of 32 points, or of many over a kink
    assert float(posterior.log_evidence) == pytest.approx(EVIDENCE, abs=5e-5 * count)
    assert float(a.mean) == pytest.approx(loc + MEAN, abs=1e-9)
    assert float(a.variance) == pytest.approx(VARIANCE, rel=1e-9)
    torch.testing.assert_close(x.mean, torch.full((count,), loc + MEAN + shift), rtol=0, atol=1e-3)
    torch.testing.assert_close(
        x.variance, torch.full((count,), VARIANCE + spread), rtol=3e-3, atol=0
    )


def test_nor_of_states_and_scales():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.Bernoulli(0.3))
        s = pyro.sample("s", dist.LogNormal(0.0, 0.5))
        pyro.sample("seen", dist.Normal(a, 0.5), obs=torch.tensor(1.0))
        with pyro.plate("missing", 50):
            pyro.sample("x", dist.Normal(a + 3 * z, 0.5))
            pyro.sample("y", dist.Normal(a, s))

    posterior = pg.fit(model, infer=pg.EP, progress=False)
    assert posterior.converged and posterior.status == "converged"
    assert float(posterior.log_evidence) == pytest.approx(EVIDENCE, abs=1e-9)
    assert float(posterior.marginal("a").variance) == pytest.approx(VARIANCE, rel=1e-9)
    assert float(posterior.marginal("z").probs[1]) == pytest.approx(0.3, abs=1e-9)
    log_s = posterior.marginal("s").base_dist
    assert (float(log_s.mean), float(log_s.variance)) == pytest.approx((0.0, 0.25), abs=1e-9)
    x, y = posterior.marginal("x"), posterior.marginal("y")
    torch.testing.assert_close(x.mean, torch.full((50,), MEAN + 0.9))
    torch.testing.assert_close(x.variance, torch.full((50,), VARIANCE + 0.25 + 9 * 0.3 * 0.7))
    torch.testing.assert_close(y.variance, torch.full((50,), VARIANCE + math.exp(0.5)))


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_forecasts_of_many_steps(schedule: str):
    """The last factor's message is constant, and then that of the one before."""

    def model():
        x = pyro.sample("x_0", dist.Normal(0.0, 1.0))
        pyro.sample("seen", dist.Normal(x, 0.5), obs=torch.tensor(1.0))
        for k in range(1, 31):
            x = pyro.sample(f"x_{k}", dist.StudentT(9.0, x, 0.5))

    posterior = pg.fit(model, infer=pg.EP, schedule=schedule, progress=False)
    assert posterior.converged
    for k in (0, 1, 30):
        found = posterior.marginal(f"x_{k}")
        assert float(found.mean) == pytest.approx(MEAN, abs=1e-6)
        assert float(found.variance) == pytest.approx(VARIANCE + k * 0.25 * 9 / 7, rel=3e-3)


def test_a_factor_marginal_holds_both():
    model = with_unobserved(CHILDREN["Student"][0], 2, 5.0)
    mean, covariance = pg.fit(model, infer=pg.EP, progress=False).factor_marginal("x")
    torch.testing.assert_close(mean, torch.full((2, 2), 5.8), rtol=0, atol=1e-6)
    spread = 0.25 * 9 / 7
    expected = torch.tensor([[VARIANCE, VARIANCE], [VARIANCE, VARIANCE + spread]]).expand(2, 2, 2)
    torch.testing.assert_close(covariance, expected, rtol=3e-3, atol=0)


# ---------------------------------------------------------------------- the combination
def orthonormal(rows: int, columns: int) -> Tensor:
    return torch.linalg.qr(torch.randn(2, 3, columns, columns)).Q[..., :rows, :]


def cavities() -> list[Gaussian]:
    """Of two nodes, of one and two numbers, for three factors."""
    root = torch.randn(3, 2, 2)
    one = Gaussian(torch.rand(3, 1, 1) + 0.1, torch.randn(3, 1))
    return [one, Gaussian(root @ root.mT + 0.1 * torch.eye(2), torch.randn(3, 2))]


def test_proper_cavities_give_the_same_either_way():
    torch.manual_seed(0)
    rest, parts = Rest(orthonormal(2, 3)), cavities()
    proper = effective(rest, parts, torch.tensor([False, False, False]))
    others = effective(rest, parts, torch.tensor([True, False, True]))
    torch.testing.assert_close(others.g.precision, proper.g.precision)
    torch.testing.assert_close(others.g.shift, proper.g.shift)
    torch.testing.assert_close(others.log_rest, proper.log_rest)
    # and those of the Gaussian of all numbers, given any distribution of the combinations
    mean, root = torch.randn(2, 3, 2), torch.randn(2, 3, 2, 2)
    for part in (slice(0, 1), slice(1, 3), slice(0, 3)):
        ours, theirs = (x.moments(mean, root @ root.mT, part) for x in (others, proper))
        torch.testing.assert_close(ours, theirs)


def test_flat_cavities_are_usable_where_others_hold_what_is_not_read():
    difference = torch.tensor([1.0, -1.0]) / math.sqrt(2)
    rest = Rest(difference.expand(1, 4, 1, 2))
    first = Gaussian(torch.tensor([2.0, 0.0, 0.0, 2.0]).view(4, 1, 1), torch.ones(4, 1))
    second = Gaussian(torch.tensor([0.0, 3.0, 0.0, -1.0]).view(4, 1, 1), torch.zeros(4, 1))
    usable, flat = rest.sorted([first, second])
    assert usable.tolist() == [True, True, False, False]
    assert flat.tolist() == [True, True, False, False]
    one = Rest(difference.expand(1, 1, 1, 2))
    found = effective(one, [first[:1], second[:1]], torch.tensor([True]))  # x_1 ~ N(.5, 1 / 2)
    torch.testing.assert_close(found.g.precision, torch.zeros(1, 1, 1, 1))
    mean, covariance = found.moments(torch.tensor([[[0.7]]]), torch.zeros(1, 1, 1, 1), slice(0, 2))
    # given the difference, which says nothing of x_1 alone
    torch.testing.assert_close(mean[0, 0], torch.tensor([0.5, 0.5 - 0.7 * math.sqrt(2)]))
    torch.testing.assert_close(covariance[0, 0], torch.full((2, 2), 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forecasts_in_either_precision(dtype: torch.dtype):
    torch.set_default_dtype(dtype)

    def model():
        x = pyro.sample("x_0", dist.Normal(0.0, 1.0))
        pyro.sample("seen", dist.Normal(x, 0.5), obs=torch.tensor(1.0))
        for k in range(1, 11):
            x = pyro.sample(f"x_{k}", dist.Logistic(x, 0.3))

    posterior = pg.fit(model, infer=pg.EP, progress=False)
    last = float(posterior.marginal("x_10").variance)
    assert posterior.converged and posterior.status == "converged"
    assert float(posterior.log_evidence) == pytest.approx(EVIDENCE, abs=1e-4)
    assert last == pytest.approx(VARIANCE + 10 * 0.09 * math.pi**2 / 3, rel=1e-3)


@pytest.mark.parametrize("unit", [1e-5, 1e-4, 3.8e-4, 1e-2, 1.0])
def test_narrow_children_of_two_numbers_are_found(unit: float):

    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros(2), unit).to_event(1))
        x = pyro.sample("x", dist.Logistic(a, unit).to_event(1))
        pyro.sample("seen", dist.Normal(x.sum(), unit), obs=torch.tensor(0.5 * unit))

    posterior = pg.fit(model, infer=pg.EP, num_steps=20, progress=False)
    assert posterior.converged and posterior.status == "converged"
    # the sum has variance 2 (1 + pi^2 / 3) + 1 and is all but normal
    expected = stats.norm.logpdf(0.5, 0, math.sqrt(3 + 2 * math.pi**2 / 3)) - math.log(unit)
    assert float(posterior.log_evidence) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("width, scale, count", [(2, 0.3, 20), (2, 0.01, 20), (3, 0.3, 1)])
def test_unobserved_vectors_say_nothing_of_their_parent(width: int, scale: float, count: int):
    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros(width), 1.0).to_event(1))
        pyro.sample("seen", dist.Normal(a.sum(), 0.5), obs=torch.tensor(0.5))
        with pyro.plate("missing", count):
            pyro.sample("x", dist.StudentT(4.0, a, scale).to_event(1))

    posterior = pg.fit(model, infer=pg.EP, num_steps=20, progress=False)
    total = width + 0.25  # variance of what is seen
    expected = stats.norm.logpdf(0.5, 0, math.sqrt(total))
    assert posterior.converged and posterior.status == "converged"
    assert float(posterior.log_evidence) == pytest.approx(expected, abs=2e-5 * count)
    a = posterior.marginal("a")
    assert_close(a.mean, torch.full((width,), 0.5 / total), rtol=1e-6, atol=0)
    assert_close(a.variance, torch.full((width,), 1 - 1 / total), rtol=1e-6, atol=0)


@pytest.mark.parametrize("width", [1, 2])
def test_states_that_read_one_of_many_nodes_take_none_of_others_twice(width: int):
    """A mixture of K components, of which each state reads one: K squared numbers, not K cubed."""
    most = []
    for count in (8, 16):
        joint = torch.eye(count * width).view(count, 1, width, count * width)
        a = torch.randn(count, 2, width, width)
        parts = [Gaussian(m @ m.mT + torch.eye(width), torch.randn(2, width)) for m in a]
        with Sizes() as sizes:
            found = effective(Rest(joint.repeat(1, 2, 1, 1)), parts, torch.tensor([False, False]))
        most.append(max(sizes.seen))
        for k, part in enumerate(parts):
            assert_close(found.g.mean[k], part.mean)
            assert_close(found.g.covariance[k], part.covariance)
            own, covariance = torch.full((2, width), 7.0), torch.eye(width).repeat(2, 1, 1)
            for other, cavity in enumerate(parts):
                place = slice(other * width, (other + 1) * width)
                there = found.moments(own, covariance, place)
                expected = (own, covariance) if other == k else (cavity.mean, cavity.covariance)
                assert_close((there[0][k], there[1][k]), expected)
    assert most[1] <= 4 * most[0]


class Sizes(TorchDispatchMode):
    """Of all tensors that are made in memory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.seen.append(out.untyped_storage().nbytes() // out.element_size())
        return out


def test_a_cavity_that_says_next_to_nothing_is_looked_into_where_the_belief_is():
    """Of a wide factor alone it stands 1e4 and 100 of its widths off: nothing was found there, and
    sweeps began again with more and more damping. Truth by quadrature."""

    def model():
        s = pyro.sample("s", dist.HalfNormal(1.0))
        pyro.sample("y", dist.StudentT(3.0, s.log(), 100.0), obs=torch.tensor(0.3))

    def density(u):
        return stats.halfnorm.pdf(np.exp(u)) * np.exp(u) * stats.t(3, u, 100).pdf(0.3)

    truth = np.log(quad(density, -40, 5, limit=500)[0])
    engine = pg.EP(model, progress=False)
    assert float(engine.run().log_evidence) == pytest.approx(truth, abs=1e-6)
    assert engine.num_done < 15  # 39 with those starts
    again = pg.EP(model, init=engine.state_dict()["messages"], progress=False).setup()
    for _ in range(2):  # 0.25 nats off, and the step led away
        assert float(again.log_evidence) == pytest.approx(truth, abs=1e-6)
        again.step()
