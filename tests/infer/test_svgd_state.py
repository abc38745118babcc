"""What a step leaves behind when it breaks off, and schedules at the ends of a run."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyrograph.infer import GraphicalSVGD, particle
from pyrograph.kernels import RandomNeighbors

from .programs import gaussian_chain


def interrupted(*_args, **_kwargs):
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["density", "field"])
@pytest.mark.parametrize(
    "options", [{"noise": 0.01}, {"locality": RandomNeighbors(1), "anneal": 9}]
)
def test_an_interrupted_step_is_undone(monkeypatch, options, where):
    model, y = gaussian_chain()
    runs = []
    for interrupt in (False, True):
        pyro.set_rng_seed(0)
        engine = GraphicalSVGD(model, num_steps=10, num_particles=6, progress=False, **options)
        for _ in range(4):
            engine.step(y)
        if interrupt:
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                if where == "density":
                    patch.setattr(particle, "value_and_score", interrupted)
                else:  # after new scopes were drawn and the field measured
                    patch.setattr("pyrograph.kernels.stein.Field.discrepancy", interrupted)
                engine.step()
        runs.append(engine.run().x)
    assert torch.equal(*runs)


@pytest.mark.parametrize("extra", [{"reweight": True}, {"thin": 5}])
def test_a_posterior_of_random_scopes_is_the_same_whenever_asked(extra):
    model, y = gaussian_chain(12)
    options = {"locality": RandomNeighbors(1), "num_particles": 20, "num_steps": 20}
    engine = GraphicalSVGD(model, progress=False, **options, **extra)
    first = engine.run(y)
    stream = torch.get_rng_state()
    second = engine.posterior()
    assert torch.equal(stream, torch.get_rng_state())
    assert torch.equal(first.x, second.x) and torch.equal(first.weights, second.weights)


def test_a_density_tempered_to_the_end_is_told_of():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    options = {"progress": False, "num_steps": 100}
    tempered = GraphicalSVGD(model, anneal=1000, **options).run()
    assert float(tempered.marginal("x").variance) > 3  # p^(1 / 10) has ten times p's
    assert "anneal=1000 is more than the 100 steps done" in tempered.status
    assert "anneal" not in GraphicalSVGD(model, anneal=50, **options).run().status


def test_a_step_after_a_decay_over_no_steps_moves_nothing():
    model, y = gaussian_chain()
    engine = GraphicalSVGD(model, num_steps=0, decay="cosine", progress=False).setup(y)
    start = engine.x.clone()
    engine.step()
    assert torch.equal(engine.x, start)


def test_a_start_of_equal_particles_goes_on_from_its_state_in_an_engine_without_init():
    model, y = gaussian_chain()
    start = GraphicalSVGD(model, init=torch.zeros(6, 5), progress=False).setup(y)
    state = start.state_dict()
    resumed = GraphicalSVGD(model, num_particles=6, progress=False).setup(y)
    resumed.load_state_dict(state)
    for engine in (start, resumed):
        engine.step()
    assert torch.equal(start.x, resumed.x)
    assert len(resumed.x[:, 0].unique()) == 6  # equal ones would stay equal
