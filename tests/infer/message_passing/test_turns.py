"""Sequential sweeps, which look at one colour's factors at a time. Truth: the same sweep with all
factors looked at for every colour, written here; sums over all states."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.ops.indexing import Vindex
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.beliefs import Natural
from pyrograph.beliefs.natural import where
from pyrograph.errors import ZeroMass
from pyrograph.infer.message_passing.continuous.quadratic import QuadraticFactors
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.discrete.binary import BinaryFactors
from pyrograph.infer.message_passing.discrete.differences import DifferenceFactors
from pyrograph.infer.message_passing.discrete.parity import ParityFactors
from pyrograph.infer.message_passing.discrete.tables import TableFactors
from pyrograph.infer.message_passing.sweeps import turns

from .builders import INF, Tables

NODES = 7
FIRST, SECOND = torch.triu_indices(NODES, NODES, 1)
PAIRS = len(FIRST)


def on_pairs(tables, own=None):
    """Discrete nodes, any two of which share a table ``[PAIRS, c, c]``."""
    c = tables.shape[-1]
    own = torch.randn(NODES, c) if own is None else own
    scopes = [*((i,) for i in range(NODES)), *zip(FIRST.tolist(), SECOND.tolist())]
    return Tables((c,) * NODES, tuple(scopes), (*own, *tables), plated=True)


def tables():
    return on_pairs(torch.randn(PAIRS, 3, 3))


def odds():
    return on_pairs(0.3 * torch.randn(PAIRS, 2, 2))


def constraints():
    """No two of the first states next to each other."""
    table = torch.randn(PAIRS, 3, 3)
    table[:, 0, 0] = -INF
    return on_pairs(table)


def differences():
    value = torch.randn(PAIRS, 35)
    state = torch.arange(18)
    return on_pairs(value[:, state.unsqueeze(1) - state + 17])


def checks():
    """Soft ones on five bits each, in several places of a code."""
    bits = torch.randn(12)

    def model():
        with pyro.plate("bits", 12):
            x = pyro.sample("x", dist.Bernoulli(logits=bits))
        for k in range(8):
            odd = torch.remainder(x[..., k : k + 5].sum(-1), 2)
            pyro.factor(f"check{k}", torch.where(odd > 0.5, -0.8, 0.1 * k))

    return model


def gaussian():
    y = torch.randn(PAIRS)

    def model():
        with pyro.plate("nodes", NODES):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("pairs", PAIRS):
            pyro.sample("y", dist.Normal(x[FIRST] - x[SECOND], 0.5), obs=y)

    return model


def vectors():
    """Each pair reads one number of its nodes."""
    y, column = torch.randn(PAIRS), torch.arange(PAIRS) % 3

    def model():
        with pyro.plate("nodes", NODES):
            x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("pairs", PAIRS):
            pyro.sample("y", dist.Normal(x[FIRST, column] + x[SECOND, column], 0.5), obs=y)

    return model


def matches():
    won = torch.bernoulli(torch.full((PAIRS,), 0.5))

    def model():
        with pyro.plate("nodes", NODES):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("pairs", PAIRS):
            pyro.sample("won", dist.Bernoulli(logits=x[FIRST] - x[SECOND]), obs=won)

    return model


def combined():
    """Each pair reads a combination of its nodes' numbers, one of its own."""
    weights, y = torch.randn(PAIRS, 3), torch.randn(PAIRS)

    def model():
        with pyro.plate("nodes", NODES):
            x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("pairs", PAIRS):
            mean = (weights * (x[FIRST] - x[SECOND])).sum(-1)
            pyro.sample("y", dist.StudentT(4.0, mean, 0.5), obs=y)

    return model


def communities():
    """Labels of nodes, and a logit for every pair of labels."""
    links = torch.bernoulli(torch.full((PAIRS,), 0.5))

    def model():
        logits = pyro.sample("logits", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
        with pyro.plate("nodes", NODES):
            z = pyro.sample("z", dist.Categorical(torch.tensor([0.6, 0.4])))
        with pyro.plate("pairs", PAIRS):
            chosen = Vindex(logits)[z[FIRST], z[SECOND]]
            pyro.sample("links", dist.Bernoulli(logits=chosen), obs=links)

    return model


def rates():
    """Counts of pairs, by gamma beliefs."""
    counts = torch.poisson(torch.full((PAIRS,), 3.0))

    def model():
        with pyro.plate("nodes", NODES):
            x = pyro.sample("x", dist.Gamma(3.0, 2.0))
        with pyro.plate("pairs", PAIRS):
            pyro.sample("counts", dist.Poisson(x[FIRST] + x[SECOND]), obs=counts)

    return model


#: A program, an engine with its options, and the kind of its factors.
CASES = {
    "tables": (tables, pg.BP, {}, TableFactors),
    "tables at alpha 0": (tables, pg.VMP, {}, TableFactors),
    "tables at alpha 1/2": (tables, pg.FractionalBP, {}, TableFactors),
    "damped": (tables, pg.BP, {"damping": 0.3}, TableFactors),
    "zeros": (constraints, pg.BP, {}, TableFactors),
    "odds": (odds, pg.BP, {}, BinaryFactors),
    "odds at alpha 0": (odds, pg.VMP, {}, BinaryFactors),
    "differences": (differences, pg.BP, {}, DifferenceFactors),
    "differences at alpha 0": (differences, pg.VMP, {}, DifferenceFactors),
    "checks": (checks, pg.BP, {}, ParityFactors),
    "checks at alpha 0": (checks, pg.VMP, {}, ParityFactors),
    "gaussian": (gaussian, pg.EP, {}, QuadraticFactors),
    "gaussian at alpha 0": (gaussian, pg.VMP, {}, QuadraticFactors),
    "numbers of vectors": (vectors, pg.EP, {}, QuadraticFactors),
    "numbers of vectors at alpha 0": (vectors, pg.VMP, {}, QuadraticFactors),
    "grids": (matches, pg.EP, {}, QuadratureFactors),
    "grids at alpha 0": (matches, pg.VMP, {}, QuadratureFactors),
    "combinations at alpha 0": (combined, pg.VMP, {}, QuadratureFactors),
    "labels and numbers": (communities, pg.VMP, {}, QuadratureFactors),
    "gamma beliefs": (rates, pg.VMP, {"family": {"x": "gamma"}}, QuadratureFactors),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def engine_of(case):
    program, preset, options, kind = case
    torch.manual_seed(1)
    engine = preset(program(), schedule="sequential", progress=False, **options).setup()
    assert kind in map(type, engine.network.blocks)
    return engine


def numbers(message):
    return [*message.parameters().values()] if isinstance(message, Natural) else [message]


def close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(numbers(ours), numbers(theirs), strict=True):
            assert_close(a, b, rtol=1e-8, atol=1e-9)


def swept(engine, messages, beliefs, eta):
    """All factors are looked at for every colour, and what is not sent thrown away."""
    network = engine.network
    colours = turns.colour_of_nodes(engine.graph, engine.network)
    for mask in (colours == k for k in colours.unique()):
        found = []
        for block, old in zip(network.blocks, messages, strict=True):
            new, _ = block.update(old, beliefs)
            found.append([])
            for family, rows, before, after in zip(
                block.families, block.rows, old, new, strict=True
            ):
                goes = mask[network.families[family].nodes][rows]
                if isinstance(before, Natural):
                    moved = where(goes, before + eta * (after - before), before)
                else:
                    moved = torch.where(after.isinf(), after, before + eta * (after - before))
                    moved = torch.where(
                        goes if goes.dim() == moved.dim() else goes[:, None], moved, before
                    )
                found[-1].append(moved)
        messages, beliefs = found, network.beliefs_of(found)
    return messages, beliefs


@each_case
def test_a_sweep_is_that_of_all_factors_for_every_colour(case):
    ours, theirs = engine_of(case), engine_of(case)
    messages, beliefs = theirs.messages, theirs.beliefs
    eta = 1 - ours.iteration.settling.damping
    sweep = ours.iteration.next_sweep
    at = ours.iteration.at
    for _ in range(3):
        at = sweep(at.messages, at.beliefs)
        assert not at.is_cut
        messages, beliefs = swept(theirs, messages, beliefs, eta)
        for found, expected in zip(at.messages, messages, strict=True):
            close(found, expected)
        close(at.beliefs, beliefs)


@each_case
def test_a_part_of_a_block_is_those_factors(case):
    engine = engine_of(case)
    engine.step()
    for block, sent in zip(engine.network.blocks, engine.messages, strict=True):
        if isinstance(block, QuadratureFactors) and not block.is_mean_field:
            continue
        which = torch.arange(block.num_factors)[1::3]
        rows = [torch.isin(port, which).nonzero().squeeze(1) for port in block.senders]
        part, some = block.part(which), [turns.taken(m, r) for m, r in zip(sent, rows)]
        new, _ = block.update(sent, engine.beliefs)
        close(part.update(some, engine.beliefs)[0], [turns.taken(m, r) for m, r in zip(new, rows)])
        ratio = block.log_ratio(sent, engine.beliefs)[which]
        assert_close(part.log_ratio(some, engine.beliefs), ratio, rtol=1e-9, atol=1e-9)


@each_case
def test_a_sweep_leaves_what_it_started_from(case):
    engine = engine_of(case)
    at = engine.iteration.at
    held = [v for block in [*at.messages, at.beliefs] for m in block for v in numbers(m)]
    before = [v.clone() for v in held]
    engine.iteration.next_sweep(at.messages, at.beliefs)
    assert all(map(torch.equal, before, held))


@pytest.mark.parametrize("name", ["tables", "odds at alpha 0", "gaussian", "grids at alpha 0"])
def test_each_factor_is_looked_at_once_for_every_node(name, monkeypatch):
    engine = engine_of(CASES[name])
    looked_at = 0
    kinds = {type(block) for block in engine.network.blocks}
    for kind in kinds:
        update = kind.update

        def counted(block, messages, beliefs, update=update):
            nonlocal looked_at
            looked_at += block.num_factors
            return update(block, messages, beliefs)

        monkeypatch.setattr(kind, "update", counted)
    engine.iteration.next_sweep(engine.messages, engine.beliefs)
    assert looked_at == 2 * PAIRS


def test_what_leaves_a_node_nothing_is_named():
    """Any two nodes must differ, and two of them have one state alone."""
    table = torch.zeros(PAIRS, 3, 3)
    table[:, range(3), range(3)] = -INF
    own = torch.zeros(NODES, 3)
    own[:2, 1:] = -INF
    engine = pg.BP(on_pairs(table, own), schedule="sequential", progress=False)
    with pytest.raises(ZeroMass, match=r'"f2"\[0\]|node "x"\[[01]\]'):
        engine.run()
