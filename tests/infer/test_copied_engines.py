"""Engines that are copied, or pickled, in the middle of a run go on as the original does."""

import copy
import io
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.distributions import ChineseRestaurant, CollapsedMixture, NormalInverseGamma
from pyrograph.errors import InferenceError

Y = torch.tensor([0.4, 1.9, -0.3, 2.2, 0.7])


def by_torch(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def by_pickle(thing):
    return pickle.loads(pickle.dumps(thing))


def heavy_tails(y):
    level = pyro.sample("level", dist.Normal(0.0, 2.0))
    with pyro.plate("rows", len(y)):
        x = pyro.sample("x", dist.Normal(level, 1.0))
        pyro.sample("y", dist.StudentT(4.0, x, 0.5), obs=y)


def ring(y):
    with pyro.plate("nodes", len(y)):
        x = pyro.sample("x", dist.Bernoulli(logits=y))
    with pyro.plate("edges", len(y)):
        pyro.factor("pair", torch.where(x == x.roll(1), 1.3, -0.4))


def clusters(y):
    z = pyro.sample("z", ChineseRestaurant(1.0, len(y)))
    pyro.sample("y", CollapsedMixture(z, NormalInverseGamma(0.1, 1.0, 1.0)), obs=y)


RUNS = [
    (pg.EP, heavy_tails, {}),
    (pg.VMP, heavy_tails, {}),
    (pg.QBethe, heavy_tails, {"num_components": 2}),
    (pg.GraphicalSVGD, heavy_tails, {"num_particles": 5}),
    (pg.Langevin, heavy_tails, {"num_particles": 5}),
    (pg.BP, ring, {"damping": 0.5}),
    (pg.TRW, ring, {"edge_appearance": "optimize"}),
    (pg.DPVI, ring, {"num_particles": 4}),
    (pg.SequentialDPVI, ring, {"num_particles": 4, "smoothing": True}),
    (pg.BBIS, ring, {"num_particles": 4}),
    (pg.CollapsedBBIS, ring, {"num_particles": 4}),
    (pg.DPVI, clusters, {"num_particles": 4}),
    (pg.SequentialDPVI, clusters, {"num_particles": 4}),
]


@pytest.mark.parametrize("copied", [copy.deepcopy, by_pickle, by_torch])
@pytest.mark.parametrize(("infer", "model", "options"), RUNS)
@pytest.mark.filterwarnings("ignore::pyrograph.errors.PyrographWarning")
def test_a_copy_goes_on_as_the_original(infer, model, options, copied):
    engine = infer(model, num_steps=9, progress=False, **options).setup(Y)
    for _ in range(3):
        engine.step()
    again = copied(engine)
    draws = []
    for each in (engine, again):
        pyro.set_rng_seed(5)
        posterior = each.run(Y)
        draws.append(posterior.sample(5))
    assert_close(draws[1], draws[0], rtol=0, atol=0)
    assert again.num_done == engine.num_done
    for name, values in engine.history.items():
        assert_close(again.history[name], values, rtol=0, atol=0)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, by_pickle, by_torch])
def test_a_copy_knows_that_arguments_changed_before(copied):
    y = Y.clone()
    engine = pg.BP(ring, progress=False).setup(y)
    assert copied(engine).run(y).converged
    y += 1
    with pytest.raises(InferenceError, match="changed in place"):
        copied(engine).run(y)
