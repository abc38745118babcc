"""A run from a saved state is the uninterrupted one, bit for bit; what does not fit is refused."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import ShapeMismatch


def hybrid():
    """Numbers and states: factors of each kind and of both."""
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.7])))
    w = pyro.sample("w", dist.Bernoulli(torch.tensor([0.2, 0.6])[z]))
    y = pyro.sample("y", dist.Normal(0.8 * x + w, 0.4))
    pyro.sample("t", dist.StudentT(3.0, y + torch.tensor([0.5, -0.5])[z], 0.6))
    pyro.sample("o", dist.Normal(y, 0.5), obs=torch.tensor(0.2))


@pytest.mark.parametrize("saved_at", [2, 6])
@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_resumed_run_is_the_uninterrupted_one(covariance, optimizer, saved_at):
    def engine():
        return pg.QBethe(
            hybrid,
            num_components=2,
            num_restarts=2,
            num_entropy=6,
            covariance=covariance,
            optimizer=optimizer,
            num_steps=9,
            hold_weights=4,
            progress=False,
        )

    pyro.set_rng_seed(0)
    first = engine()
    for _ in range(saved_at):
        first.step()
    state = first.state_dict()
    whole = first.run()
    pyro.set_rng_seed(7)
    second = engine()
    second.load_state_dict(state)
    again = second.run()
    assert whole.history.keys() == again.history.keys()
    for name, values in whole.history.items():
        assert torch.equal(again.history[name], values)
    for name, value in first.parameters.items():
        assert torch.equal(second.parameters[name], value)
    assert torch.equal(again.log_evidence, whole.log_evidence)


def test_a_state_whose_correlations_have_other_names_is_said_to_be_older():
    run = pg.QBethe(hybrid, covariance="full", progress=False).setup()
    state = run.state_dict()
    state["parameters"]["tie_7"] = state["parameters"].pop("tie_0")
    with pytest.raises(ShapeMismatch, match=r"other options or .* earlier version.*start anew"):
        run.load_state_dict(state)


def walk():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    y = pyro.sample("y", dist.Normal(x, 0.1))
    pyro.sample("o", dist.Normal(y, 0.5), obs=torch.tensor(2.0))


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_a_run_that_starts_at_the_posterior_stays_there_when_it_goes_on(optimizer):
    def engine():
        options = {"covariance": "full", "optimizer": optimizer, "num_steps": 12}
        return pg.QBethe(walk, num_components=1, progress=False, **options)

    first, second = engine(), engine()
    for _ in range(5):
        first.step()
    second.load_state_dict(first.state_dict())
    truth = dist.Normal(0.0, (1 + 0.01 + 0.25) ** 0.5).log_prob(torch.tensor(2.0))
    for run in (first, second):
        posterior = run.run()
        assert run.num_done == 12
        assert float(posterior.log_evidence) == pytest.approx(float(truth), abs=1e-9)
    assert all(torch.equal(second.parameters[name], v) for name, v in first.parameters.items())
