"""Discrete sites whose states depend on other latents: refused, with advice that works."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import UnsupportedSite

MOST, SEEN = 6, torch.tensor(5.0)
ENGINES = [pg.BP, pg.TRW, pg.EP, pg.VMP, pg.QBethe, pg.DPVI, pg.SequentialDPVI, pg.CollapsedBBIS]


def thinned(kind):
    """A count of a count."""

    def model():
        n = pyro.sample("n", dist.Binomial(MOST, torch.tensor(0.5)))
        if kind == "binomial":
            fn = dist.Binomial(n, torch.tensor(0.3))
        elif kind == "beta-binomial":
            fn = dist.BetaBinomial(torch.tensor(2.0), torch.tensor(3.0), n)
        else:
            fn = dist.Binomial(2 * n + 1 - n.remainder(2), torch.tensor(0.3))
        k = pyro.sample("k", fn)
        pyro.sample("y", dist.Normal(k, 0.5), obs=SEEN)

    return model


def over_most_states():
    n = pyro.sample("n", dist.Binomial(MOST, torch.tensor(0.5)))
    counts = torch.arange(MOST + 1.0)
    each = dist.Binomial(n.unsqueeze(-1), torch.tensor(0.3), validate_args=False)
    k = pyro.sample("k", dist.Categorical(logits=each.log_prob(counts)))
    pyro.sample("y", dist.Normal(k.float(), 0.5), obs=SEEN)


@pytest.mark.parametrize("kind", ["binomial", "beta-binomial", "of a function"])
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__)
def test_engines_refuse_states_that_depend_on_latents_at_every_draw(engine, kind):
    for seed in range(3):
        pyro.set_rng_seed(seed)
        with pytest.raises(UnsupportedSite, match=r'"k" .*depend on other latents.*most \+ 1'):
            pg.fit(thinned(kind), infer=engine, progress=False)


def test_circuits_refuse_them_too():
    for seed in range(3):
        pyro.set_rng_seed(seed)
        graph = pg.trace_graph(thinned("binomial"))
        with pytest.raises(UnsupportedSite, match=r'"k" .*depend on other latents.*most \+ 1'):
            pg.circuits.compile_graph(graph)


def test_the_graph_has_the_programs_density_at_all_states():
    graph = pg.trace_graph(thinned("binomial"))
    assert graph.sites["k"].enumeration is None
    for n in range(MOST + 1):
        for k in range(n + 1):
            values = {"n": torch.tensor(float(n)), "k": torch.tensor(float(k))}
            model = pyro.condition(thinned("binomial"), values)
            expected = pyro.poutine.trace(model).get_trace().log_prob_sum()
            assert_close(graph.log_prob(values), expected)


@pytest.mark.parametrize("engine", [pg.BP, pg.TRW, pg.DPVI])
def test_what_the_refusal_advises_is_exact(engine):
    k = torch.arange(MOST + 1.0)  # a thinned binomial is one
    prior = dist.Binomial(MOST, torch.tensor(0.5 * 0.3)).log_prob(k)
    joint = prior + dist.Normal(k, 0.5).log_prob(SEEN)
    found = pg.fit(
        over_most_states,
        infer=engine,
        progress=False,
        **({"num_particles": 49} if engine is pg.DPVI else {}),
    )
    assert_close(found.log_evidence, joint.logsumexp(0), rtol=0, atol=1e-5)


def test_unequal_counts_that_are_constants_are_told_apart():
    def model():
        with pyro.plate("plots", 2):
            k = pyro.sample("k", dist.Binomial(torch.tensor([3.0, 5.0]), torch.tensor(0.5)))
            pyro.sample("y", dist.Normal(k, 1.0), obs=torch.zeros(2))

    with pytest.raises(UnsupportedSite, match=r"unequal numbers of states.*one pyro.sample"):
        pg.fit(model, infer=pg.BP, progress=False)
