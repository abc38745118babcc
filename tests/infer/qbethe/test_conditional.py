"""Potentials quadratic in some numbers given others, against closed forms. Those of exponentials
are closed forms themselves, and are looked at with these and without.

With t and s jointly Gaussian, E[h(s) e^(-2 t)] is e^(2 v - 2 m) times E[h(s)] of s moved by
-2 Cov(s, t), where m and v are mean and variance of t.
"""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.infer.qbethe.components import Components
from pyrograph.infer.qbethe.conditional import ConditionalPotential
from pyrograph.infer.qbethe.exponential import ExponentialPotential
from pyrograph.infer.qbethe.potentials import IntegratedPotential

ROWS = torch.tensor(
    [[1.0, 0.5, -2.0], [1.0, -1.0, 0.3], [0.0, 2.0, 1.0], [3.0, 0.1, -0.7]]
).double()
SEEN = torch.tensor([0.4, -1.0, 2.5, 0.0]).double()


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(params=[ExponentialPotential, ConditionalPotential])
def kind(request, monkeypatch):
    """Of potentials to look at."""
    if request.param is ConditionalPotential:
        monkeypatch.setattr(ExponentialPotential, "recognised", lambda potential: None)
    return request.param


def regression():
    """Combinations of a node of three, and a log scale."""
    b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    t = pyro.sample("t", dist.Normal(0.0, 0.5))
    with pyro.plate("rows", 4):
        pyro.sample("y", dist.Normal(ROWS @ b, t.exp()), obs=SEEN)


def area():
    """Three nodes of one number, quadratic in two of them jointly, given the third."""
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    y = pyro.sample("y", dist.Normal(0.0, 1.0))
    t = pyro.sample("t", dist.Normal(0.0, 0.5))
    pyro.factor("f", -(2 * x**2 + x * y + y**2 - y) * (-2 * t).exp() - t)


def engine_of(model, seed, **options):
    """Set up, with parameters moved at random."""
    pyro.set_rng_seed(seed)
    found = pg.QBethe(model, progress=False, **options)
    found.setup()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in found.parameters.values():
            value += 0.4 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return found


def only(found, kind):
    (own,) = [p for p in found.network.potentials if isinstance(p, kind)]
    assert kind is ExponentialPotential or own.dim == 1
    return own


def expected(found, kind):
    mixture = Components(found.network.kinds, found.parameters)
    with torch.no_grad():
        return only(found, kind).expected(mixture, found._rules[0])[0].numpy()


def joint(found, names):
    """Means ``[L, R]`` and covariances ``[L, R, R]`` of all nodes, in the order of the names."""
    mixture = Components(found.network.kinds, found.parameters)
    (scope,) = found.network.correlated
    with torch.no_grad():
        mean, root = scope._together(mixture)
    mean, root = mean[0, :, 0].numpy(), root[0, :, 0].numpy()
    nodes = scope.nodes[0].tolist()
    sizes = [found.graph.sites[n].width for n in names]
    starts = dict(zip(nodes, np.cumsum([0, *scope.sizes]), strict=False))
    order = [
        starts[found.graph.nodes_of(n).start] + i
        for n, w in zip(names, sizes, strict=True)
        for i in range(w)
    ]
    covariance = root @ root.swapaxes(-1, -2)
    return mean[:, order], covariance[:, order][:, :, order]


@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_normal_density_of_combinations_and_a_log_scale(components, seed, kind):
    found = engine_of(regression, seed, num_components=components, covariance="full")
    mean, covariance = joint(found, ["b", "t"])
    rows = ROWS.numpy()
    for k, value in enumerate(expected(found, kind)):
        m, v = mean[k, 3], covariance[k, 3, 3]
        moved = mean[k, :3] - 2 * covariance[k, :3, 3]
        left = SEEN.numpy() - rows @ moved
        square = left**2 + np.einsum("ni,ij,nj->n", rows, covariance[k, :3, :3], rows)
        each = -0.5 * math.log(2 * math.pi) - m - 0.5 * square * math.exp(2 * v - 2 * m)
        assert value == pytest.approx(each.sum(), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_two_numbers_jointly_quadratic(seed, kind):
    found = engine_of(area, seed, num_components=2, covariance="full")
    mean, covariance = joint(found, ["x", "y", "t"])
    form = np.array([[2.0, 0.5], [0.5, 1.0]])
    for k, value in enumerate(expected(found, kind)):
        m, v = mean[k, 2], covariance[k, 2, 2]
        moved = mean[k, :2] - 2 * covariance[k, :2, 2]
        inner = moved @ form @ moved + np.trace(form @ covariance[k, :2, :2]) - moved[1]
        assert value == pytest.approx(-inner * math.exp(2 * v - 2 * m) - m, rel=1e-6)


def test_beside_a_discrete_node(kind):
    """Given its state, and independent nodes: e^t x^2 in one of two, -x^2 in the other."""

    def model():
        z = pyro.sample("z", dist.Bernoulli(0.3)).long()
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        t = pyro.sample("t", dist.Normal(0.0, 0.5))
        pyro.factor("f", -(x**2) * torch.stack([t.exp(), torch.ones_like(t)])[z])

    found = engine_of(model, 0, num_components=2)
    mixture = Components(found.network.kinds, found.parameters)
    with torch.no_grad():
        mean, scale = (value[0].squeeze(-1) for value in (mixture.means[1], mixture.scales[1]))
        p = mixture.log_probs[0][0, :, 0].exp()
    x, t = (found.graph.nodes_of(name).start for name in ("x", "t"))
    row = {int(node): k for k, node in enumerate(found.network.kinds[1].nodes)}
    square = mean[:, row[x]] ** 2 + scale[:, row[x]] ** 2
    growth = (mean[:, row[t]] + 0.5 * scale[:, row[t]] ** 2).exp()
    torch.testing.assert_close(
        torch.as_tensor(expected(found, kind)),
        -square * (p[:, 0] * growth + p[:, 1]),
        rtol=1e-6,
        atol=0,
    )


def test_what_is_quadratic_in_nothing_is_integrated_whole():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        y = pyro.sample("y", dist.Normal(0.0, 1.0))
        pyro.factor("f", -(((x**2 + y**2).sqrt() - 1) ** 2))

    found = engine_of(model, 0)
    kinds = {type(p) for p in found.network.potentials}
    assert ConditionalPotential not in kinds and IntegratedPotential in kinds


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_gradients_are_those_of_differences(optimizer, kind):
    found = engine_of(regression, 0, num_components=1, covariance="full", optimizer=optimizer)
    names = list(found.parameters)

    def energy(*values):
        mixture = Components(found.network.kinds, dict(zip(names, values, strict=True)))
        return only(found, kind).expected(mixture, found._rules[0])

    assert torch.autograd.gradcheck(energy, [found.parameters[name] for name in names])


def test_many_numbers_are_not_taken_in_pairs_of_points():
    """A walk of 40 numbers and its scale, as one factor."""

    def model():
        b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([40]).to_event(1))
        t = pyro.sample("t", dist.Normal(0.0, 0.5))
        pyro.sample("c", dist.Normal(b, t.exp()).to_event(1), obs=torch.zeros(40))

    found = engine_of(model, 0, num_components=1)
    for potential in found.network.potentials:
        if isinstance(potential, ConditionalPotential):
            assert len(potential._standard(torch.zeros(16, potential.dim))) <= 16 * 32
