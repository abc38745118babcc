"""Whole domains of DPVI's best particle change at once."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.infer.dpvi.domains import MOST, domain_changes


def potts(side: int, num_states: int, strength: float):
    with pyro.plate("nodes", side * side):
        x = pyro.sample("x", dist.Categorical(torch.ones(num_states, dtype=torch.float64)))
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
    found = domain_changes(x, torch.full((10,), 3), *chain_of(10))
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
    found = domain_changes(x, cards, *chain_of(4))
    assert bool((found < cards.unsqueeze(1)).all())


@pytest.mark.parametrize("n", [1, 5])
def test_without_borders_there_is_nothing_to_change(n):
    empty = torch.zeros(n + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    for neighbors in (empty, chain_of(n)):
        x = torch.ones(n, dtype=torch.int64)
        assert domain_changes(x, torch.full((n,), 2), *neighbors).shape == (n, 0)


def test_the_largest_domains_come_first():
    x = torch.arange(10 * MOST) % 2
    x[:5] = 1
    found = domain_changes(x, torch.full((10 * MOST,), 2), *chain_of(10 * MOST))
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
