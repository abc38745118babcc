"""Gibbs chains against the probabilities of all states."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import OptionError
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.importance import Gibbs
from pyrograph.infer.importance.gibbs import Chains
from tests.infer.importance.programs import all_states, grid, mixed


def chains_of(model, num_chains: int, scan: str, seed: int = 0):
    graph = pg.trace_graph(model)
    generator = torch.Generator().manual_seed(seed)
    return graph, Chains(graph, Network.of_graph(graph), num_chains, generator, scan)


@pytest.mark.parametrize("scan", ["block", "systematic", "random"])
@pytest.mark.parametrize("model", [mixed, grid(2, 0.8)], ids=["mixed", "grid"])
def test_many_chains_reach_the_probabilities_of_all_states(model, scan):
    n = 20_000
    graph, chains = chains_of(model, n, scan)
    chains.advance(150)
    x, p = all_states(graph)
    place = torch.zeros(n, dtype=torch.int64)
    for code, card in zip(chains.x, x.amax(1) + 1, strict=True):
        place = place * int(card) + code
    share = place.bincount(minlength=len(p)).double() / n
    error = (share - p) / (p * (1 - p) / n).sqrt()
    # the largest of 24 standard normal errors
    assert float(error.abs().max()) < 4.5


@pytest.mark.parametrize("scan", ["block", "systematic", "random"])
def test_the_law_of_the_program_is_kept(scan):
    """From all states in their proportions, a sweep leaves the proportions."""
    graph, chains = chains_of(mixed, 1, scan)
    x, p = all_states(graph)
    n = 50_000
    chains.x = x[:, torch.multinomial(p, n, replacement=True)]
    before = torch.stack([(chains.x == c).double().mean(1) for c in range(4)])
    chains.advance(3)
    after = torch.stack([(chains.x == c).double().mean(1) for c in range(4)])
    assert_close(after, before, rtol=0, atol=4 * (0.5 / n) ** 0.5)


def test_steps_are_counted_node_by_node():
    graph, chains = chains_of(grid(4), 1, "random")
    x = chains.x.clone()
    chains.advance(1)
    assert int((chains.x != x).sum()) <= 1
    network, generator = Network.of_graph(graph), torch.Generator().manual_seed(0)
    many = Gibbs(burn_in=0, thin=1, num_chains=1, scan="systematic").draw(
        graph, network, 17, generator
    )
    changed = (many.diff(dim=1) != 0).nonzero()
    # state k + 1 differs from state k in the node that comes next in the order
    assert all(int(node) == (int(step) + 1) % 16 for node, step in changed)


def test_draws_are_shared_out_over_chains_and_repeat_with_the_seed():
    graph = pg.trace_graph(mixed)
    network = Network.of_graph(graph)
    draw = Gibbs(burn_in=6, thin=3, num_chains=4).draw
    first = draw(graph, network, 10, torch.Generator().manual_seed(5))
    assert first.shape == (3, 10)
    assert_close(first, draw(graph, network, 10, torch.Generator().manual_seed(5)))
    assert not torch.equal(first, draw(graph, network, 10, torch.Generator().manual_seed(6)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"burn_in": -1}, "burn_in"),
        ({"num_chains": 0}, "num_chains"),
        ({"thin": 0}, "thin"),
        ({"scan": "spiral"}, "spiral"),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        Gibbs(**options)
