"""What runs where the plain iteration would not do: the double loop, and contraction of forests.

Truth: enumeration, and the plain iteration where it converges.
"""

import networkx as nx
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.settling.double_loop import DoubleLoop
from pyrograph.infer.message_passing.sweeps.sweep import gap

from .builders import random_model


def grid_model(seed, strength, cards=2, zeros=0.0):
    graph = nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 4 if cards == 2 else 2))
    return random_model((cards,) * len(graph), list(graph.edges()), seed, strength, zeros, True)


@pytest.mark.parametrize("cards", [2, 3])
@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
def test_the_double_loop_comes_to_the_fixed_point_of_the_plain_iteration(cards, alpha):
    tables = grid_model(seed=1, strength=0.6, cards=cards)
    plain = pg.FractionalBP(tables, alpha=alpha, progress=False, damping=0.3, num_steps=3000)
    reference = plain.run()
    assert reference.converged
    engine = pg.FractionalBP(tables, alpha=alpha, progress=False).setup()
    loop = DoubleLoop(engine.graph, engine.network)
    for _ in range(100):
        engine.messages = loop.step(1e-8)
    assert_close(engine.log_evidence, reference.log_evidence, rtol=0, atol=1e-8)
    ours, theirs = engine.posterior(), reference
    assert_close(ours.marginal("x").probs, theirs.marginal("x").probs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_outer_steps_close_the_gap_of_strong_couplings(seed):
    """Between eq (66) of the messages and F of the beliefs."""
    tables = grid_model(seed, strength=2.5)
    engine = pg.BP(tables, progress=False).setup()
    loop = DoubleLoop(engine.graph, engine.network)
    gaps = []
    for _ in range(150):
        engine.messages = loop.step(1e-8)
        gaps.append(float(gap(engine.network, engine.messages, engine.beliefs)))
    assert gaps[-1] < 1e-3 * max(gaps[:5])


def spin_glass(seed, strength):
    """Couplings of both signs on a 4x4 grid: no state pleases all of them."""
    graph = nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 4))
    tables = random_model((2,) * 16, list(graph.edges()), seed, plated=True)
    generator = torch.Generator().manual_seed(seed)
    agree = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    weights = strength * torch.randn(len(tables.tables), generator=generator)
    glass = [
        0.5 * t if t.dim() == 1 else w * agree for t, w in zip(tables.tables, weights, strict=True)
    ]
    return type(tables)(tables.cards, tables.scopes, tuple(glass), True)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_an_oscillating_run_falls_back_and_says_that_it_converged(seed):
    tables = spin_glass(seed, strength=2.0)
    plain = pg.BP(tables, progress=False, damping=0.0, num_steps=200)
    with pytest.warns(pg.errors.ConvergenceWarning):
        assert not plain.run().converged
    engine = pg.BP(tables, progress=False, num_steps=3000)
    posterior = engine.run()
    assert posterior.converged
    assert posterior.status == "converged"
    # a fixed point: one plain sweep changes nothing
    assert float(gap(engine.network, engine.messages, engine.beliefs)) < 1e-7


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("cards", [(2,), (3,), (2, 3, 4)])
def test_contraction_gives_every_message_of_a_forest(seed, cards):
    forest = nx.random_labeled_tree(11, seed=seed)
    forest.remove_edge(*list(forest.edges())[seed])  # two trees
    sizes = tuple(cards[i % len(cards)] for i in range(11))
    tables = random_model(
        sizes, list(forest.edges()), seed, 2.0, zeros=0.25, plated=len(cards) == 1
    )
    fast = pg.BP(tables, progress=False)
    slow = pg.BP(tables, progress=False, schedule="sequential", damping=0.0)
    ours, theirs = fast.run(), slow.run()
    assert fast.num_done == 1
    assert ours.evidence_kind == "exact"
    assert_close(ours.log_evidence, tables.log_z, rtol=0, atol=1e-10)
    for a, b in zip(tables.beliefs(ours), tables.beliefs(theirs), strict=True):
        assert_close(a, b, rtol=0, atol=1e-10)
    for k, belief in tables.factor_beliefs(ours).items():
        assert_close(belief, tables.marginal(*tables.scopes[k]), rtol=0, atol=1e-10)


def test_a_long_chain_is_exact_after_one_step():
    torch.manual_seed(0)
    length, c = 3000, 3
    unary, pair = torch.randn(length, c), torch.randn(c, c)
    forward = unary[0]
    for i in range(1, length):
        forward = (forward[:, None] + pair).logsumexp(0) + unary[i]

    import pyro
    import pyro.distributions as dist

    def chain():
        with pyro.plate("nodes", length):
            x = pyro.sample("x", dist.Categorical(logits=torch.zeros(c)).mask(False))
            pyro.factor("unary", unary[torch.arange(length), x])
        with pyro.plate("steps", length - 1):
            pyro.factor("pair", pair[x[:-1], x[1:]])

    posterior = pg.fit(chain, infer=pg.BP, progress=False)
    assert posterior.converged
    assert len(posterior.history["residual"]) == 1
    assert_close(posterior.log_evidence, forward.logsumexp(0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("coupling", [3.0, 5.0, 10.0])
@pytest.mark.parametrize("alpha", [0.3, 0.5])
def test_fractional_messages_settle_on_a_tree_too(coupling, alpha):
    """Only alpha = 1 settles by itself there: here parallel messages would take turns."""

    def chain():
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Bernoulli(logits=torch.tensor([3.0, -3.0, 0.0]).double()))
        spin = 2 * x - 1
        with pyro.plate("edges", 2):
            pyro.factor("pair", coupling * spin[:-1] * spin[1:])

    posterior = pg.fit(chain, infer=pg.FractionalBP, alpha=alpha, progress=False)
    assert posterior.converged
    # attracting spins agree
    pairs = posterior.factor_marginal("pair")
    assert bool((pairs[:, 0, 0] + pairs[:, 1, 1] > 0.9).all())
