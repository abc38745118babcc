"""Handlers around the call count as those around the model do."""

from contextlib import nullcontext

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

import pyrograph as pg

P, Q, Y = 0.3, torch.tensor([0.2, 0.9]), torch.tensor(1.5)
ONE = torch.tensor(1.0)


def model():
    g = pyro.sample("g", dist.Bernoulli(torch.tensor(P)))
    h = pyro.sample("h", dist.Bernoulli(Q[g.long()]))
    pyro.sample("y", dist.Normal(g + h, 1.0), obs=Y)


def joint(g, h):
    p = (P if g else 1 - P) * (Q[g] if h else 1 - Q[g])
    return p * dist.Normal(float(g + h), 1.0).log_prob(Y).exp()


ALL = sum(joint(g, h) for g in (0, 1) for h in (0, 1))
GIVEN = joint(1, 0) + joint(1, 1)


@pytest.mark.parametrize(
    ("handler", "sites", "evidence"),
    [
        (nullcontext, {"g": (), "h": ()}, ALL),
        (lambda: poutine.condition(data={"g": ONE}), {"h": ()}, GIVEN),
        (lambda: poutine.do(data={"g": ONE}), {"g": (), "h": ()}, GIVEN / P),
        (lambda: pyro.plate("copies", 2), {"g": (2,), "h": (2,)}, ALL**2),
        (poutine.block, {"g": (), "h": ()}, ALL),
    ],
    ids=["none", "condition", "do", "plate", "block"],
)
@pytest.mark.parametrize("infer", [pg.BP, pg.DPVI])
def test_handlers_around_fit(infer, handler, sites, evidence):
    options = {"num_particles": 16} if infer is pg.DPVI else {}
    with handler():
        posterior = pg.fit(model, infer=infer, progress=False, **options)
    assert {name: site.batch_shape for name, site in posterior.graph.sites.items()} == sites
    assert posterior.log_evidence.item() == pytest.approx(evidence.log().item(), abs=1e-5)


def test_an_unconditioned_observation_is_latent():
    with poutine.uncondition():
        graph = pg.trace_graph(model)
    assert list(graph.sites) == ["g", "h", "y"]


def test_a_blocked_fit_leaves_an_outer_trace_alone():
    def program():
        with poutine.block():
            return pg.fit(model, infer=pg.BP, progress=False)

    assert not poutine.trace(program).get_trace().stochastic_nodes


def test_handlers_stay_after_a_program_that_fails():
    def broken():
        pyro.sample("g", dist.Bernoulli(ONE))
        raise KeyError("no such thing")

    with poutine.condition(data={"g": torch.tensor(0.0)}):
        with pytest.raises(KeyError):
            pg.trace_graph(broken)
        assert pyro.sample("g", dist.Bernoulli(ONE)) == 0.0


def test_nested_blocks_keep_statements_from_all_that_is_around_the_inner_one():
    def program():
        with poutine.block(), poutine.condition(data={"g": ONE}), poutine.block():
            return pg.trace_graph(model)

    with poutine.trace() as trace:
        graph = program()
    assert not trace.trace.stochastic_nodes
    assert list(graph.sites) == ["g", "h"]


def test_qbethe_draws_its_start_within_the_handlers():
    def line():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.Normal(x, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=Y)

    with poutine.condition(data={"x": ONE}):  # z | x, y ~ N(5/4, 1/2), y | x ~ N(1, 2)
        posterior = pg.fit(line, infer=pg.QBethe, num_components=1, num_steps=300, progress=False)
    assert posterior.marginal("z").mean.item() == pytest.approx(1.25, abs=1e-2)
    truth = (dist.Normal(0.0, 1.0).log_prob(ONE) + dist.Normal(1.0, 2**0.5).log_prob(Y)).item()
    assert posterior.log_evidence.item() == pytest.approx(truth, abs=1e-2)
