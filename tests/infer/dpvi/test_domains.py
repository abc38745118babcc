"""Whole domains of DPVI's best particle change at once."""

from __future__ import annotations

import functools

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.infer.dpvi.domains import MOST, domain_changes, domains_of


def potts(side: int, num_states: int, strength: float, probs: tuple[float, ...] | None = None):
    weights = torch.tensor(probs or (1.0,) * num_states, dtype=torch.float64)
    with pyro.plate("nodes", side * side):
        x = pyro.sample("x", dist.Categorical(weights))
    grid = torch.arange(side * side).view(side, side)
    edges = torch.cat(
        [
            torch.stack([grid[:, :-1].flatten(), grid[:, 1:].flatten()]),
            torch.stack([grid[:-1].flatten(), grid[1:].flatten()]),
        ],
        1,
    )
    with pyro.plate("edges", edges.shape[1]):
        pyro.factor("pair", strength * (x[edges[0]] == x[edges[1]]).double())


def chain_of(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Neighbours of a chain, as CSR."""
    near = [[u for u in (v - 1, v + 1) if 0 <= u < n] for v in range(n)]
    sizes = torch.tensor([0, *(len(own) for own in near)])
    return sizes.cumsum(0), torch.tensor([u for own in near for u in own], dtype=torch.int64)


def test_domains_take_the_state_they_border_on_most():
    x = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 1])
    found = domains_of(x, torch.full((10,), 3), *chain_of(10)).changes
    expected = {
        (0, 0, 0, 1, 1, 1, 1, 1, 1, 1),
        (1, 1, 1, 1, 1, 2, 2, 2, 2, 1),
        # a tie: either state
        (0, 0, 0, 0, 0, 2, 2, 2, 2, 1),
        (0, 0, 0, 1, 1, 2, 2, 2, 2, 2),
    }
    assert {tuple(column) for column in found.t().tolist()} == expected


def test_states_that_a_node_lacks_are_not_proposed():
    x = torch.tensor([2, 2, 0, 0])
    cards = torch.tensor([3, 3, 2, 2])
    found = domains_of(x, cards, *chain_of(4)).changes
    assert bool((found < cards.unsqueeze(1)).all())


@pytest.mark.parametrize("n", [1, 5])
def test_without_borders_there_is_nothing_to_change(n):
    empty = torch.zeros(n + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    for neighbors in (empty, chain_of(n)):
        x = torch.ones(n, dtype=torch.int64)
        assert domains_of(x, torch.full((n,), 2), *neighbors).changes.shape == (n, 0)


def test_the_largest_domains_come_first():
    x = torch.arange(10 * MOST) % 2
    x[:5] = 1
    found = domains_of(x, torch.full((10 * MOST,), 2), *chain_of(10 * MOST)).changes
    assert found.shape == (10 * MOST, MOST)
    assert found[:5, 0].tolist() == [0] * 5


@pytest.mark.parametrize("num_states", [2, 3])
def test_stripes_are_left(num_states):
    # walls of a stripe have no gain in any change of a few nodes
    side = 12
    stripes = (torch.arange(side) // 4 % num_states).repeat(side, 1).reshape(1, -1)
    engine = pg.DPVI(potts, num_particles=1, init={"x": stripes}, progress=False)
    found = engine.run(side, num_states, 5.0).particles["x"][0]
    assert len(found.unique()) == 1


def test_algorithm_1_leaves_domains_as_they_are():
    stripes = (torch.arange(12) // 4 % 2).repeat(12, 1).reshape(1, -1)
    engine = pg.DPVI(potts, num_particles=1, moves="single", init={"x": stripes}, progress=False)
    assert len(engine.run(12, 2, 5.0).particles["x"][0].unique()) == 2


def test_domains_that_gain_change_together():
    # three islands in a sea that the prior holds
    model = functools.partial(potts, probs=(0.8, 0.1, 0.1))
    engine = pg.DPVI(model, num_particles=1, progress=False).setup(12, 3, 1.0)
    x = torch.zeros(12, 12, dtype=torch.int64)
    x[2:4, 1:3] = x[7:9, 2:4] = 1
    x[4:6, 8:10] = 2
    found = domain_changes(engine.search.network, x.flatten(), *engine.graph.neighbors)
    single = domains_of(x.flatten(), engine.search.network.cards, *engine.graph.neighbors).changes
    assert torch.equal(found[:, :4], single)
    assert found.shape[1] == 6  # and two, and three of them together
    assert bool((found[:, 5] == 0).all())


def test_neighbours_do_not_change_together():
    # each of two stripes would gain as the other, both would change places
    engine = pg.DPVI(potts, num_particles=1, progress=False).setup(12, 2, 1.0)
    stripes = (torch.arange(12) // 6).repeat(12, 1).flatten()
    found = domain_changes(engine.search.network, stripes, *engine.graph.neighbors)
    assert sorted(found.sum(0).tolist()) == [0, 144]
