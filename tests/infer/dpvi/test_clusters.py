"""Scores of clusters by the factors around them are differences of scores of the whole."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrograph.infer.dpvi import clusters as scored
from pyrograph.infer.dpvi import network as tables
from pyrograph.infer.dpvi.clusters import Clusters
from pyrograph.infer.dpvi.network import Network, Tables


@st.composite
def networks(draw):
    """Nodes of 2 or 3 states, groups of factors of up to four slots."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    cards = torch.tensor(draw(st.lists(st.integers(2, 3), min_size=4, max_size=7)))
    tables = []
    for _ in range(draw(st.integers(1, 4))):
        slots = draw(st.lists(st.integers(2, 3), min_size=1, max_size=4))
        choices = [(cards == card).nonzero()[:, 0] for card in slots]
        if not all(map(len, choices)):
            continue
        count = draw(st.integers(1, 5))
        # a node may stand in two slots of a factor
        scope = [own[torch.randint(len(own), (count,))] for own in choices]
        tables.append(Tables(torch.stack(scope, 1), torch.randn(count, *slots).double()))
    return Network(cards, tables, torch.tensor(0.5, dtype=torch.float64))


@pytest.mark.parametrize("wide", [tables.WIDE, 1], ids=["copied", "in place"])
@given(networks(), st.integers(1, 3), st.data())
def test_local_scores_are_differences_of_scores(wide, network, size, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "WIDE", wide)
        scores_are_differences(network, size, data)


@pytest.mark.parametrize("chunk", [1, 40])
@given(network=networks(), size=st.integers(1, 2), data=st.data())
@settings(max_examples=15)
def test_local_scores_in_parts_are_differences_of_scores(chunk, network, size, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scored, "CHUNK", chunk)
        scores_are_differences(network, size, data)


def scores_are_differences(network, size, data):
    order = data.draw(st.permutations(range(network.num_nodes)))
    nodes = torch.tensor(order[: len(order) - len(order) % size]).view(-1, size)
    # of clusters of like numbers of states
    cards = network.cards[nodes]
    clusters = Clusters(network, nodes[(cards == cards[0]).all(1)])
    x = torch.stack([torch.randint(int(card), (3,)) for card in network.cards])
    local = clusters.local_scores(x)
    for j, own in enumerate(clusters.nodes):
        torch.testing.assert_close(clusters.local_scores(x, j)[0], local[j])
        moved = x.unsqueeze(2).repeat(1, 1, clusters.num_states)
        moved[own] = clusters.states.T.unsqueeze(1)
        score = network.score(moved.flatten(1)).view(3, -1)
        change = local[j] - local[j, :, :1]
        torch.testing.assert_close(change, score - score[:, :1], rtol=0, atol=1e-12)


def test_values_of_a_node_in_the_last_slot_are_not_copied():
    table = Tables(torch.tensor([[0, 1]]), torch.arange(6.0).view(1, 2, 3))
    assert table.seen_by((-1, 0)).values.data_ptr() == table.values.data_ptr()
    torch.testing.assert_close(table.seen_by((0, -1)).values, table.values[0].T)


def test_a_wide_table_is_never_copied():
    """Twelve looks at it would be twelve copies."""
    nodes = torch.arange(12)
    table = Tables(nodes.unsqueeze(0), torch.randn(1, *[2] * 12).double())
    network = Network(torch.full((12,), 2), [table], torch.zeros((), dtype=torch.float64))
    clusters = Clusters(network, nodes.unsqueeze(1))
    x = torch.randint(2, (12, 4))
    scores = clusters.local_scores(x)
    for node in range(12):
        for state in (0, 1):
            moved = x.clone()
            moved[node] = state
            torch.testing.assert_close(scores[node, :, state], network.score(moved))
        slots = tuple(0 if other == node else -1 for other in range(12))
        assert table.seen_by(slots).values.data_ptr() == table.values.data_ptr()
