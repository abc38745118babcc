"""Particles joined by further states: what is kept, and that nothing is kept twice."""

from __future__ import annotations

import itertools

import pytest
import torch

from pyrograph.infer.dpvi.network import Network, Tables
from pyrograph.infer.dpvi.particles import Hash, Particles, first_of_equal


def chain(seed: int) -> Network:
    """Five nodes of three states in a row."""
    values = torch.randn(4, 3, 3, dtype=torch.float64, generator=torch.manual_seed(seed))
    scope = torch.stack([torch.arange(4), torch.arange(1, 5)], 1)
    constant = torch.tensor(-7.0, dtype=torch.float64)
    return Network(torch.full((5,), 3), [Tables(scope, values)], constant)


@pytest.mark.parametrize("seed", range(5))
def test_joined_particles_are_the_best_of_all_states_offered(seed: int):
    network, generator = chain(seed), torch.manual_seed(seed)
    hashes = Hash(network.cards)
    present = Particles.best(network, hashes, torch.randint(3, (5, 6), generator=generator), 6)
    offered = torch.cat([torch.randint(3, (5, 30), generator=generator), present.x], 1)
    found = present.joined(network, hashes, offered, 8)

    (group,) = network.tables
    scores = {
        state: -7.0 + sum(float(group.values[i, state[i], state[i + 1]]) for i in range(4))
        for state in {tuple(s) for s in torch.cat([present.x, offered], 1).T.tolist()}
    }
    best = sorted(scores, key=scores.get, reverse=True)[:8]
    assert [tuple(s) for s in found.x.T.tolist()] == best
    assert found.score.tolist() == pytest.approx([scores[s] for s in best], abs=1e-12)
    assert torch.equal(found.hash, hashes(found.x))


def test_particles_grow_up_to_all_states():
    network = chain(0)
    hashes = Hash(network.cards)
    every = torch.tensor(list(itertools.product(range(3), repeat=5))).T
    present = Particles.best(network, hashes, every[:, :1], 1)
    found = present.joined(network, hashes, every, 1000)
    assert len(found) == 3**5
    assert len(found.x.unique(dim=1).T) == 3**5


def test_states_are_equal_where_both_of_their_hashes_are():
    keys = [(5, 1), (5, 2), (4, 1), (5, 2), (4, 1), (6, 1)]
    first = [key not in keys[:k] for k, key in enumerate(keys)]
    assert first_of_equal(torch.tensor(keys).T).tolist() == first
