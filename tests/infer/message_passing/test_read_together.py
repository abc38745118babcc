"""Turns of mean field: which nodes may move at once. Truth: what messages really depend on."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.beliefs import Natural
from pyrograph.infer.message_passing.sweeps.turns import colour_of_nodes

DOUBLE = torch.float64
Y = torch.tensor([-3.0, -2.5, 0.1, 2.4, 3.2], dtype=DOUBLE)


def mixture():
    w = pyro.sample("w", dist.Dirichlet(torch.ones(4, dtype=DOUBLE)))
    with pyro.plate("components", 4):
        mu = pyro.sample("mu", dist.Normal(torch.arange(4, dtype=DOUBLE), 2.0))
        tau = pyro.sample("tau", dist.Gamma(torch.tensor(2.0, dtype=DOUBLE), 1.5))
    with pyro.plate("rows", len(Y)):
        z = pyro.sample("z", dist.Categorical(w))
        pyro.sample("y", dist.Normal(mu[z], tau[z].rsqrt()), obs=Y)


def sticks():
    with pyro.plate("sticks", 3):
        v = pyro.sample("v", dist.Beta(torch.tensor(1.0, dtype=DOUBLE), 1.5))
    w = torch.nn.functional.pad(v, (0, 1), value=1.0)
    w = w * torch.nn.functional.pad((1 - v).cumprod(-1), (1, 0), value=1.0)
    with pyro.plate("rows", len(Y)):
        z = pyro.sample("z", dist.Categorical(w))
        pyro.sample("y", dist.Normal(z.to(DOUBLE), 1.0), obs=Y)


def sums_of_neighbours():
    """State k reads components k and k + 1 together."""
    with pyro.plate("components", 4):
        mu = pyro.sample("mu", dist.Normal(torch.arange(4, dtype=DOUBLE), 2.0))
    both = torch.stack([mu[:-1], mu[1:]])
    with pyro.plate("rows", len(Y)):
        z = pyro.sample("z", dist.Categorical(torch.ones(3, dtype=DOUBLE)))
        pyro.sample("y", dist.StudentT(4.0, both[0, z] * both[1, z], 1.0), obs=Y)


FAMILIES = {"w": "dirichlet", "tau": "gamma", "v": "beta"}


def set_up(model):
    sites = pg.trace_graph(model).sites
    family = {name: kind for name, kind in FAMILIES.items() if name in sites}
    engine = pg.VMP(model, family=family, progress=False, num_steps=2).setup()
    engine.advance()  # beliefs that are no priors
    return engine, colour_of_nodes(engine.graph, engine.network)


@pytest.mark.parametrize(("model", "turns"), [(mixture, 3), (sticks, 2)])
def test_alternatives_share_turns(model, turns):
    _, colours = set_up(model)
    assert len(colours.unique()) == turns


def test_nodes_that_one_state_reads_have_several():
    engine, colours = set_up(mixture)
    mu, tau = (colours[engine.graph.nodes_of(site)] for site in ("mu", "tau"))
    assert bool((mu != tau).all())
    engine, colours = set_up(sums_of_neighbours)
    own = colours[engine.graph.nodes_of("mu")]
    assert bool((own[1:] != own[:-1]).all())


def sent_to(engine, beliefs):
    """Of every node, all that it is sent."""
    network, found = engine.network, {}
    for block, old in zip(network.blocks, engine.messages, strict=True):
        new, _ = block.update(old, beliefs)
        for family, rows, message in zip(block.families, block.rows, new, strict=True):
            numbers = message.parameters().values() if isinstance(message, Natural) else [message]
            for value in numbers:
                for row, own in zip(rows.tolist(), value, strict=True):
                    node = int(network.families[family].nodes[row])
                    found.setdefault(node, []).append(own)
    return found


@pytest.mark.parametrize("model", [mixture, sticks, sums_of_neighbours])
def test_messages_into_a_turn_depend_on_none_of_its_beliefs(model):
    engine, colours = set_up(model)
    network, before, reaches = engine.network, sent_to(engine, engine.beliefs), 0
    for number, family in enumerate(network.families):
        for row, node in enumerate(family.nodes.tolist()):
            beliefs = list(engine.beliefs)
            q = beliefs[number]
            if isinstance(q, Natural):
                scale = torch.ones(len(family.nodes), dtype=DOUBLE)
                scale[row] = 2.0
                beliefs[number] = scale * q
            else:
                beliefs[number] = q.clone()
                beliefs[number][row, 0] += 1.0
            after = sent_to(engine, beliefs)
            for other, messages in after.items():
                same = all(map(torch.equal, messages, before[other]))
                reaches += other != node and not same
                if other != node and colours[other] == colours[node]:
                    assert same, (engine.graph.nodes[node], engine.graph.nodes[other])
    assert reaches  # something depends on something
