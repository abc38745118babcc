"""Which columns a locality shows to each node."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrograph.errors import OptionError
from pyrograph.kernels import Blanket, Global, Mixed, RandomNeighbors, SteinOperator
from pyrograph.kernels.locality import Without, resolve

from .reference import blankets, column_scopes, drawn_scopes, grid_edges, layout_of

GRID = layout_of([1] * 20, grid_edges(4, 5))


def scopes_of(layout, locality, generator=None):
    ((weight, scopes),) = drawn_scopes(
        SteinOperator(layout, locality=locality, generator=generator)
    )
    assert weight == 1
    return scopes


@st.composite
def graphs(draw):
    widths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=8))
    node = st.integers(0, len(widths) - 1)
    edges = draw(st.lists(st.tuples(node, node).filter(lambda e: e[0] != e[1]), max_size=12))
    return layout_of(widths, edges)


@given(graphs())
def test_every_column_sees_its_closed_blanket(layout):
    assert scopes_of(layout, "blanket") == column_scopes(layout, blankets(layout))


@given(graphs(), st.integers(1, 4), st.integers(0, 100))
def test_random_scopes_are_own_node_and_k_of_its_blanket(layout, k, seed):
    scopes = scopes_of(layout, RandomNeighbors(k), torch.Generator().manual_seed(seed))
    node_of = torch.repeat_interleave(torch.arange(layout.num_nodes), layout.columns.diff())
    for column, scope in enumerate(scopes):
        node = int(node_of[column])
        seen = {int(node_of[c]) for c in scope}
        closed = blankets(layout)[node]
        assert node in seen
        assert seen <= closed
        assert len(seen) == min(k, len(closed) - 1) + 1


def test_random_neighbors_draw_every_neighbor_equally_often():
    layout = layout_of([1] * 6, [(0, j) for j in range(1, 6)])  # node 0 has five neighbours
    generator = torch.Generator().manual_seed(0)
    locality, counts, draws = RandomNeighbors(2), torch.zeros(6), 3000
    for _ in range(draws):
        kept = locality.draw(layout.pointer.diff(), generator)[0]
        counts[layout.index[kept]] += 1
    # binomial(3000, 0.4): sd 27; four of them
    assert (counts[1:] - 0.4 * draws).abs().max() < 108


def test_random_neighbors_follow_their_generator():
    first, second = (torch.Generator().manual_seed(3) for _ in range(2))
    locality = RandomNeighbors(2)
    assert scopes_of(GRID, locality, first) == scopes_of(GRID, locality, second)
    assert scopes_of(GRID, locality, first) != scopes_of(GRID, locality, second.manual_seed(4))


def test_an_operator_redraws_only_when_told():
    operator = SteinOperator(GRID, locality=RandomNeighbors(1))
    held = drawn_scopes(operator)
    assert drawn_scopes(operator) == held
    operator.draw()
    assert drawn_scopes(operator) != held


def test_names_resolve_and_others_are_refused():
    assert isinstance(resolve("blanket"), Blanket)
    assert isinstance(resolve("global"), Global)
    for wrong in ("local", None, 3, Global):
        with pytest.raises(OptionError, match="locality="):
            resolve(wrong)
    with pytest.raises(OptionError, match="RandomNeighbors"):
        RandomNeighbors(0)
    with pytest.raises(OptionError, match="weight"):
        Mixed("blanket", "global", weight=1.5)


def test_a_number_of_neighbours_may_be_one_of_numpy():
    assert repr(RandomNeighbors(np.int64(2))) == "RandomNeighbors(2)"
    kept = RandomNeighbors(np.int64(2)).draw(torch.tensor([3, 1]), None)
    assert (kept >= 0).sum(1).tolist() == [2, 1]
    for wrong in (np.int64(0), np.float64(2.0), True):
        with pytest.raises(OptionError, match="RandomNeighbors"):
            RandomNeighbors(wrong)


def test_a_mixture_redraws_if_a_part_does():
    assert not Mixed("blanket", "global").redraws
    assert Mixed("blanket", RandomNeighbors(2)).redraws
    nested = Mixed(Mixed("blanket", "global", 0.5), RandomNeighbors(2), 0.4)
    weights = [w for w, _ in SteinOperator(GRID, locality=nested).scopes]
    assert weights == pytest.approx([0.2, 0.2, 0.6])


@given(graphs(), st.sets(st.integers(0, 7)), st.integers(0, 100))
def test_kernels_of_nodes_left_out_are_dropped_and_the_others_stay(layout, nodes, seed):
    nodes = {node for node in nodes if node < layout.num_nodes}
    of_node = torch.arange(layout.num_nodes).repeat_interleave(layout.columns.diff())
    left_out = torch.tensor([int(node) in nodes for node in of_node])
    for locality in (Blanket(), RandomNeighbors(1)):
        full, rest = (
            scopes_of(layout, one, torch.Generator().manual_seed(seed))
            for one in (locality, Without(locality, left_out))
        )
        everything = list(range(layout.dim))
        for column, (before, after) in enumerate(zip(full, rest, strict=True)):
            if left_out[column] and not left_out.all():
                assert after in ([], everything)  # kernels on all columns are one
            else:
                assert after == before
