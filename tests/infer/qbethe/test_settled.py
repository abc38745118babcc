"""What L-BFGS calls converged has settled, and what the gradient promises is what there is to gain.
Truth: closed forms, and the runs going on."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from numpy.testing import assert_allclose

import pyrograph as pg
from pyrograph.errors import ConvergenceWarning
from pyrograph.infer.qbethe.components import Components
from pyrograph.infer.qbethe.natural import natural_gain

from .programs import chain, switch, walk


def engine(model, seed=0, **options):
    pyro.set_rng_seed(seed)
    return pg.QBethe(model, **{"optimizer": "lbfgs", "progress": False, **options})


@pytest.mark.parametrize(
    "model, components, seed",
    [(chain, 3, 1), (switch, 1, 1)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_has_converged_gains_nothing_by_going_on(model, components, seed):
    run = engine(model, seed, num_components=components, hold_weights=20, num_steps=150, tol=1e-3)
    run.run()
    assert run.converged
    claimed, run.tol = run.history["objective"][-1], None
    run._start_optimiser()  # not by what the search remembers
    for _ in range(30):
        run.step()
    assert float(run.history["objective"][-1] - claimed) < 2e-3


@pytest.mark.parametrize("components", [1, 3])
def test_a_search_too_short_to_rest_says_so(components):
    options = {"num_components": components, "hold_weights": 4, "tol": 1e3}
    held = 4 if components > 1 else 0
    with pytest.warns(ConvergenceWarning, match="rest for 10 steps.*raise num_steps"):
        assert not engine(walk, num_steps=held + 10, **options).run().converged
    assert engine(walk, num_steps=held + 11, **options).run().converged


def test_the_natural_gain_of_a_mean_is_its_distance_and_of_a_width_a_quarter_of_the_slope():
    """Of q = N(m, s) and p = N(0, 1): m^2 s^2 / 2 + (1 - s^2)^2 / 4."""

    def normal():
        pyro.sample("x", dist.Normal(torch.tensor(5.0), 3.0))

    run = engine(normal, num_components=1).setup()
    for mean, scale in ((0.0, 1.0), (0.5, 1.0), (-2.0, 0.3), (0.1, 2.0)):
        kind = run.network.kinds[0]
        with torch.no_grad():
            run.parameters["mean_0"].copy_((5 + 3 * mean - kind.centre) / kind.unit)
            run.parameters["log_scale_0"].copy_((3 * scale / kind.unit).log())
        found = gain(run)
        assert_allclose(found, mean**2 * scale**2 / 2 + (1 - scale**2) ** 2 / 4, atol=1e-12)


def test_the_natural_gain_of_states_is_half_the_variance_of_the_log_ratio():
    target = np.array([0.2, 0.5, 0.3])

    def states():
        pyro.sample("z", dist.Categorical(torch.tensor(target)))

    run = engine(states, num_components=1).setup()
    p = np.array([0.6, 0.3, 0.1])
    with torch.no_grad():
        run.parameters["logits_0"].copy_(torch.tensor(p).log())
    ratio = np.log(target / p)
    assert_allclose(gain(run), 0.5 * (p @ ratio**2 - (p @ ratio) ** 2), atol=1e-12)


@pytest.mark.parametrize("near", [0.5, 0.9, 0.99])
def test_the_natural_gain_of_a_correlation_is_what_it_gains_nearby(near):
    """Log determinants and traces of two by two matrices, by hand."""

    def pair():
        with pyro.plate("two", 2):
            x = pyro.sample("x", dist.Normal(0.0, 1.0).mask(False))
        square = x[0] ** 2 + x[1] ** 2 - 2 * near * x[0] * x[1]
        pyro.factor("f", -square / (2 * (1 - near**2)))

    run = engine(pair, num_components=1, covariance="full").setup()
    t = near / np.sqrt(1 - near**2) + 1e-3 * (1 + near / (1 - near))
    with torch.no_grad():
        run.parameters["tie_0"].fill_(t)
    gain(run)
    for name, value in run.parameters.items():
        if name != "tie_0":
            value.grad = None
    found = float(natural_gain(Components(run.network.kinds, run.parameters)))

    def free_energy(t):
        r = t / np.sqrt(1 + t**2)
        return -(1 - near * r) / (1 - near**2) + 0.5 * np.log(1 - r**2)

    # widths held: the trace bends less than the entropy
    best = max(free_energy(s) for s in np.linspace(0.5 * t - 0.01, 1.01 * t, 20001))
    assert 0.3 < found / (best - free_energy(t)) < 3


def gain(run):
    for value in run.parameters.values():
        value.grad = None
    (-run.objective(run.parameters, run._rules).sum()).backward()
    return float(natural_gain(Components(run.network.kinds, run.parameters)))
