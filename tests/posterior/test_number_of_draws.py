"""How many draws: any whole number from 0 on, of every posterior."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph import distributions as D
from pyrograph.errors import OptionError

GRAPHS = {
    "beliefs": lambda m: pg.BP(m, progress=False),
    "mixture": lambda m: pg.QBethe(m, num_steps=3, progress=False),
    "states": lambda m: pg.DPVI(m, num_particles=3, progress=False),
    "collapsed": lambda m: pg.CollapsedBBIS(m, num_particles=4, collapse=0.5, progress=False),
}


POINTS = torch.tensor([[-2.0], [-1.5], [1.0], [3.0]])


def coins():
    a = pyro.sample("a", dist.Bernoulli(0.3))
    pyro.sample("b", dist.Bernoulli(0.2 + 0.6 * a))


def level():
    pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))


def labels():
    z = pyro.sample("a", D.ChineseRestaurant(torch.tensor(1.0), 4))
    component = D.NormalInverseGamma(torch.tensor(0.1), 1.0, 1.0)
    pyro.sample("x", D.CollapsedMixture(z, component), obs=POINTS)


@pytest.fixture(params=[*GRAPHS, "particles", "labels"])
def posterior(request):
    pyro.set_rng_seed(0)
    if request.param == "particles":
        return pg.GraphicalSVGD(level, num_particles=5, num_steps=2, progress=False).run()
    if request.param == "labels":
        return pg.DPVI(labels, num_particles=3, progress=False).run()
    return GRAPHS[request.param](coins).run()


@pytest.mark.parametrize("number", [0, 1, 3, np.int64(2), torch.tensor(4)])
def test_whole_numbers_from_zero_on_are_taken(posterior, number):
    for name, value in posterior.sample(number).items():
        assert value.shape == (int(number), *posterior.graph.sites[name].shape)


@pytest.mark.parametrize("number", [-1, 2.5, "ten", None, True, torch.tensor(True)])
def test_other_numbers_are_refused(posterior, number):
    with pytest.raises(OptionError, match="num_samples"):
        posterior.sample(number)
