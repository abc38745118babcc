"""A state is taken over whole or not at all: engines to which damaged states were offered go on as
their twins, to which nothing was."""

from __future__ import annotations

import copy

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.distributions import BetaBernoulli, ChineseRestaurant, CollapsedRelation
from pyrograph.infer.arguments import same


def regression():
    """With factors that are integrated by quadrature."""
    t = torch.linspace(-2.0, 2.0, 6).double()
    w = pyro.sample("w", dist.Normal(torch.zeros_like(t[0]), 1.0))
    b = pyro.sample("b", dist.Normal(torch.zeros_like(t[0]), 1.0))
    with pyro.plate("data", 6):
        pyro.sample("y", dist.Bernoulli(logits=3 * w * t + b), obs=(t > 0.5).double())
    pyro.sample("c", dist.StudentT(3.0, w * b, 0.1), obs=torch.ones_like(t[0]))


def ising():
    x = [pyro.sample(f"x{i}", dist.Bernoulli(0.4)) for i in range(4)]
    for i in range(4):
        for j in range(i):
            pyro.factor(f"f{i}{j}", (1 + i - 2 * j) * (x[i] - 0.5) * (x[j] - 0.5))


def relation():
    cells = torch.eye(4, 5)
    z = pyro.sample("z", ChineseRestaurant(1.0, 4))
    w = pyro.sample("w", ChineseRestaurant(1.0, 5))
    pyro.sample("x", CollapsedRelation(z, w, BetaBernoulli(0.5, 0.5)), obs=cells)


ENGINES = {
    "EP": lambda: pg.EP(regression, tol=None, progress=False),
    "VMP": lambda: pg.VMP(regression, tol=None, progress=False),
    "TRW": lambda: pg.TRW(ising, edge_appearance="optimize", tol=None, progress=False),
    "QBethe": lambda: pg.QBethe(regression, optimizer="adam", tol=None, progress=False),
    "SVGD": lambda: pg.GraphicalSVGD(regression, num_particles=5, progress=False),
    "DPVI": lambda: pg.DPVI(ising, num_particles=3, init="random", tol=None, progress=False),
    "labels": lambda: pg.DPVI(relation, num_particles=3, init="random", tol=None, progress=False),
    "filter": lambda: pg.SequentialDPVI(ising, num_particles=3, smoothing=True, progress=False),
    "label filter": lambda: pg.SequentialDPVI(relation, num_particles=3, progress=False),
}


def advanced(make, num_steps):
    pyro.set_rng_seed(1)
    engine = make().setup()
    for _ in range(num_steps):
        engine.step()
    return engine


def damaged(state):
    """The state with one part after the other gone, or with other things in its place."""
    paths = [(name,) for name in state]
    paths += [(n, inner) for n, part in state.items() if isinstance(part, dict) for inner in part]
    for *above, name in paths:
        for other in (None, torch.zeros(3), {"junk": torch.zeros(1)}):
            found = copy.deepcopy(state)
            part = found[above[0]] if above else found
            part[name] = other
            yield found


@pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES)
def test_a_refused_state_leaves_the_engine_as_it_was(make):
    engine, twin, other = (advanced(make, num_steps) for num_steps in (2, 2, 4))
    before = copy.deepcopy(twin.state_dict())
    num_refused = 0
    for state in damaged(other.state_dict()):
        try:
            engine.load_state_dict(state)
        except Exception:  # whatever it is, it is refused
            num_refused += 1
            assert same(engine.state_dict(), before)
        else:  # what was there had no say
            engine.load_state_dict(copy.deepcopy(before))
            assert same(engine.state_dict(), before)
    assert num_refused > 10
    for _ in range(2):
        assert engine.step() == twin.step()
    assert same(engine.state_dict(), twin.state_dict())
