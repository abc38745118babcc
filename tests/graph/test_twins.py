"""Nodes with one closed blanket, against sets compared one by one."""

import pyro
import pyro.distributions as dist
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrograph.graph import trace_graph
from pyrograph.graph.markov import neighbors, quotient
from pyrograph.graph.twins import twins

NODES = 7
pairs = st.sets(st.tuples(*[st.integers(0, NODES - 1)] * 2).filter(lambda e: e[0] != e[1]))


def of_pairs(edges):
    scope = torch.tensor(sorted(edges), dtype=torch.int64).reshape(-1, 2)
    return neighbors([scope], NODES, torch.device("cpu"))


def sets_of(edges):
    """Closed neighbourhoods."""
    return [{v} | {b for e in edges for b in e if v in e} for v in range(NODES)]


@given(pairs)
def test_groups_are_those_of_equal_sets(edges):
    found, sets = twins(*of_pairs(edges)).tolist(), sets_of(edges)
    for u in range(NODES):
        for v in range(NODES):
            assert (found[u] == found[v]) == (sets[u] == sets[v])
    firsts = [found.index(group) for group in range(max(found) + 1)]
    assert firsts == sorted(firsts)


@given(pairs, st.lists(st.integers(0, 3), min_size=NODES, max_size=NODES))
def test_a_quotient_has_an_edge_wherever_members_have_one(edges, group):
    group = torch.tensor(group).unique(return_inverse=True)[1]
    pointer, index = quotient(*of_pairs(edges), group)
    of = group.tolist()
    expected = {(of[a], of[b]) for e in edges for a, b in (e, e[::-1]) if of[a] != of[b]}
    owner = torch.arange(len(pointer) - 1).repeat_interleave(pointer.diff()).tolist()
    assert list(zip(owner, index.tolist(), strict=True)) == sorted(expected)


def test_what_effects_share_is_one_group_and_they_are_none():
    """b reads the effects alone, and is no neighbour of a and s."""

    def model():
        a, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
        s = pyro.sample("s", dist.HalfNormal(1.0))
        with pyro.plate("schools", 3):
            t = pyro.sample("t", dist.Normal(a, s))
            pyro.sample("y", dist.Normal(b * t, 1.0), obs=torch.ones(3))

    graph = trace_graph(model)
    assert twins(*graph.neighbors).tolist() == [0, 1, 0, 2, 3, 4]
