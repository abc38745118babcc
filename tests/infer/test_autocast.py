"""Engines leave ``torch.autocast``, which rounds products of matrices to three digits. Truth: the
forward algorithm in double precision, and the same runs outside."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg

Y = torch.tensor([0.4, 1.9, -0.3, 2.2, 0.7], dtype=torch.float32)


@pytest.fixture(autouse=True)
def single():
    """Numbers in double precision are left alone by autocast."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


def heavy_tails(y):
    level = pyro.sample("level", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.StudentT(4.0, level[0] + level[1] * y.cos(), 0.5), obs=y)


def chain(y):
    with pyro.plate("times", len(y)):
        x = pyro.sample("x", dist.Categorical(logits=y[:, None] * torch.arange(3.0)))
    with pyro.plate("steps", len(y) - 1):
        pyro.factor("pair", torch.arange(9.0).reshape(3, 3).sin()[x[:-1], x[1:]])


RUNS = [
    (pg.EP, heavy_tails, {}),
    (pg.VMP, heavy_tails, {}),
    (pg.QBethe, heavy_tails, {"num_steps": 20}),
    (pg.GraphicalSVGD, heavy_tails, {"num_steps": 20, "num_particles": 9}),
    (pg.BP, chain, {}),
    (pg.TRW, chain, {}),
    (pg.VMP, chain, {}),
    (pg.QBethe, chain, {"num_steps": 20}),
    (pg.DPVI, chain, {"num_particles": 5}),
    (pg.BBIS, chain, {"num_particles": 5}),
    (pg.CollapsedBBIS, chain, {"num_particles": 5}),
]


@pytest.mark.parametrize(("infer", "model", "options"), RUNS)
@pytest.mark.filterwarnings("ignore::pyrograph.errors.PyrographWarning")
def test_runs_are_those_outside(infer, model, options):
    found = []
    for is_on in (False, True):
        pyro.set_rng_seed(0)
        engine = infer(model, progress=False, **options)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on):
            posterior = engine.run(Y)
            stepped = engine.posterior()
        found.append((posterior, stepped))
    (outside, _), inside = found
    for posterior in inside:
        for name in outside.graph.sites:
            own, expected = posterior.marginal(name), outside.marginal(name)
            assert_close(own.mean, expected.mean, rtol=0, atol=0)
            assert_close(own.variance, expected.variance, rtol=0, atol=0)
        if outside.log_evidence is not None:
            assert posterior.log_evidence == outside.log_evidence


def test_a_network_of_emissions_is_trained_by_the_forward_algorithms_derivatives():
    torch.manual_seed(0)
    network = torch.nn.Linear(4, 5)
    couplings = torch.nn.Parameter(torch.randn(5, 5))
    x = torch.randn(2, 30, 4)

    def field(x):
        with pyro.plate("rows", len(x), dim=-2), pyro.plate("times", x.shape[1]):
            z = pyro.sample("z", dist.Categorical(logits=network(x)))
        with pyro.plate("rows of pairs", len(x), dim=-2), pyro.plate("steps", x.shape[1] - 1):
            pyro.factor("pair", couplings[z[:, :-1], z[:, 1:]])

    with torch.autocast("cpu", dtype=torch.bfloat16):
        posterior = pg.fit(field, (x,), infer=pg.BP, progress=False)
    emissions = network(x).double().log_softmax(-1)
    forward = emissions[:, 0]
    for t in range(1, x.shape[1]):
        forward = (forward[:, :, None] + couplings).logsumexp(1) + emissions[:, t]
    truth = forward.logsumexp(1).sum()
    assert posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence.double(), truth, rtol=0, atol=1e-4)
    parameters = [*network.parameters(), couplings]
    found = torch.autograd.grad(posterior.log_evidence, parameters)
    assert_close(found, torch.autograd.grad(truth, parameters), rtol=1e-4, atol=1e-4)
