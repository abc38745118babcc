"""Incremental scores against full rescoring by log_prob, after thousands of random moves."""

import itertools
import math

import pytest
import torch
from scipy.special import betaln
from torch.testing import assert_close

from pyrograph.distributions import (
    BetaBernoulli,
    ChineseRestaurant,
    ChineseRestaurantFranchise,
    CollapsedMixture,
    CollapsedRelation,
    DirichletCategorical,
    NormalInverseGamma,
    NormalInverseWishart,
    RelationScores,
    join,
    mixture_term,
    normal_inverse_gamma,
    normal_inverse_wishart_term,
)
from pyrograph.errors import OptionError, ShapeMismatch

N, P = 15, 4
DATA = torch.randn(N, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 + 5
SYMBOLS = torch.randint(4, (N,), generator=torch.Generator().manual_seed(2))
COMPONENTS = {
    "gamma": lambda: (NormalInverseGamma(0.04, 1.0, 1.0), DATA),
    "gamma of numbers": lambda: (NormalInverseGamma(0.04, 1.5, 0.5, 2.0), DATA[:, 0]),
    "gamma per dimension": lambda: (
        NormalInverseGamma(torch.tensor([0.1, 2.0]), 1.5, 0.5, torch.tensor([3.0, 5.0])),
        DATA,
    ),
    "wishart": lambda: (NormalInverseWishart(0.01, 3.5, torch.eye(2) + 0.3, 4.0), DATA),
    "symbols": lambda: (DirichletCategorical(torch.tensor([0.5, 1.0, 2.0, 0.3]), 4), SYMBOLS),
}


def mixture(name):
    """A state and the function of labels it must equal."""
    component, data = COMPONENTS[name]()
    labels = torch.randint(3, (P, N))
    state = CollapsedMixture(labels, component).incremental(labels, data)
    return state, lambda z: CollapsedMixture(z, component).log_prob(data)


def prior(fn):
    labels = torch.randint(3, (P, N))
    return fn.incremental(labels), fn.log_prob


def joint():
    component, data = COMPONENTS["gamma"]()
    labels = torch.randint(3, (P, N))
    fn = ChineseRestaurant(0.7, N)
    state = join(
        fn.incremental(labels), CollapsedMixture(labels, component).incremental(labels, data)
    )
    return state, lambda z: fn.log_prob(z) + CollapsedMixture(z, component).log_prob(data)


STATES = {name: (lambda name=name: mixture(name)) for name in COMPONENTS} | {
    "restaurant": lambda: prior(ChineseRestaurant(0.7, N)),
    "restaurant with mixture": joint,
}
SEQUENCES = {
    urn: (lambda urn=urn: prior(ChineseRestaurantFranchise(0.7, 1.3, N, urn=urn)))
    for urn in ("paper", "franchise")
}


def move(state, truth=None):
    """One random reassignment in every particle; with ``truth``, every score is checked."""
    i = int(torch.randint(state.labels.shape[1], ()))
    state.take_out(i)
    scores, base = state.scores(i), state.log_prob()
    if truth is not None:
        for c in range(state.capacity):
            z = state.labels.clone()
            z[:, i] = c
            open_slot = scores[:, c].isfinite()
            assert_close((base + scores[:, c])[open_slot], truth(z)[open_slot], rtol=0, atol=1e-9)
    label = torch.multinomial(scores.isfinite().double(), 1).squeeze(-1)
    state.put_in(i, label)


@pytest.mark.parametrize("name", STATES)
def test_scores_equal_full_rescoring_after_two_thousand_moves(name):
    state, truth = STATES[name]()
    for _ in range(2000):
        i = int(torch.randint(N, ()))
        state.take_out(i)
        state.put_in(i, torch.multinomial((~state.seating.closed()).double(), 1).squeeze(-1))
    assert_close(state.log_prob(), truth(state.labels), rtol=0, atol=1e-9)
    for _ in range(3):
        move(state, truth)


@pytest.mark.parametrize("name", SEQUENCES)
def test_scores_of_states_in_mid_sequence_equal_full_rescoring(name):
    state, truth = SEQUENCES[name]()
    for _ in range(15):
        move(state, truth)


@pytest.mark.parametrize("name", STATES | SEQUENCES)
def test_exactly_one_free_slot_is_open(name):
    state, _ = (STATES | SEQUENCES)[name]()
    for _ in range(20):
        i = int(torch.randint(N, ()))
        state.take_out(i)
        scores = state.scores(i)
        for p in range(P):
            used = set(state.labels[p].tolist()) - {-1}
            free = next(c for c in range(state.capacity) if c not in used)
            finite = scores[p].isfinite().nonzero().flatten().tolist()
            assert set(finite) == used | {free}
        state.put_in(i, torch.multinomial(scores.isfinite().double(), 1).squeeze(-1))


@pytest.mark.parametrize("name", STATES | SEQUENCES)
def test_filtering_from_nothing_gives_the_full_joint(name):
    """Elements put in one by one, particles selected on the way, slots growing past the first."""
    full, truth = (STATES | SEQUENCES)[name]()
    if name in COMPONENTS:
        component, data = COMPONENTS[name]()
        empty = torch.zeros(1, 0, dtype=torch.long)
        labels = torch.zeros(N, dtype=torch.long)
        state = CollapsedMixture(labels, component).incremental(empty, data)
    else:
        state = full.select(torch.zeros(1, dtype=torch.long))
        for i in range(N):
            state.take_out(i)
    joint = state.log_prob()
    assert_close(joint, torch.zeros(1), rtol=0, atol=1e-12)
    for t in range(N):
        scores = joint.unsqueeze(-1) + state.scores(t)
        # the first step opens all there is; later ones prefer new clusters, so that slots run out
        flat = scores.flatten().isfinite().nonzero().flatten()[-P:]
        joint = scores.flatten()[flat]
        state = state.select(flat // scores.shape[1])
        state.put_in(t, flat % scores.shape[1])
    assert state.capacity > full.capacity
    assert_close(joint, truth(state.labels), rtol=0, atol=1e-9)
    assert_close(state.log_prob(), joint, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", STATES | SEQUENCES)
def test_a_selected_copy_does_not_share_its_state(name):
    state, truth = (STATES | SEQUENCES)[name]()
    before, labels = state.log_prob(), state.labels.clone()
    copy = state.select(torch.tensor([2, 2, 0]))
    assert_close(copy.labels, labels[[2, 2, 0]])
    for _ in range(10):
        move(copy)
    assert_close(state.labels, labels)
    assert_close(state.log_prob(), before)
    assert_close(copy.log_prob(), truth(copy.labels), rtol=0, atol=1e-9)


def test_parts_that_have_moved_are_joined_as_they_stand():
    component, data = COMPONENTS["gamma"]()
    labels = torch.randint(3, (P, N))
    fn = ChineseRestaurant(0.7, N)
    first = fn.incremental(labels)
    for _ in range(6):
        move(first)
    second = CollapsedMixture(labels, component).incremental(first.labels.clone(), data)
    state = join(first, second)

    def truth(z):
        return fn.log_prob(z) + CollapsedMixture(z, component).log_prob(data)

    assert_close(state.log_prob(), truth(state.labels), rtol=0, atol=1e-9)
    for _ in range(5):
        move(state, truth)


def relation():
    value = torch.bernoulli(torch.full((N, 7), 0.4))
    value[torch.rand(N, 7) < 0.2] = math.nan
    rows, columns = torch.randint(3, (P, N)), torch.randint(2, (P, 7))
    component = BetaBernoulli(0.8, 1.4)
    state = CollapsedRelation(rows, columns, component).incremental(rows, columns, value)
    return state, lambda u, v: CollapsedRelation(u, v, component).log_prob(value), (rows, columns)


def test_rows_and_columns_of_a_relation_equal_full_rescoring_after_thousands_of_moves():
    state, truth, _ = relation()
    for _ in range(1000):
        for side in (state.rows, state.columns):
            i = int(torch.randint(side.labels.shape[1], ()))
            side.take_out(i)
            side.put_in(i, torch.multinomial((~side.seating.closed()).double(), 1).squeeze(-1))
    expected = truth(state.rows.labels, state.columns.labels)
    assert_close(state.rows.log_prob(), expected, rtol=0, atol=1e-9)
    assert_close(state.columns.log_prob(), expected, rtol=0, atol=1e-9)
    for _ in range(3):
        move(state.rows, lambda u: truth(u, state.columns.labels))
        move(state.columns, lambda v: truth(state.rows.labels, v))


def test_a_selected_relation_keeps_its_rows_and_columns_together():
    state, truth, (rows, columns) = relation()
    priors = ChineseRestaurant(1.0, N), ChineseRestaurant(2.0, 7)
    state = RelationScores(
        join(state.rows, priors[0].incremental(rows)),
        join(state.columns, priors[1].incremental(columns)),
    )
    copy = state.select(torch.tensor([3, 1, 1]))
    for _ in range(20):
        move(copy.rows)
        move(copy.columns)
    likelihood = truth(copy.rows.labels, copy.columns.labels)
    assert_close(copy.rows.log_prob(), likelihood + priors[0].log_prob(copy.rows.labels))
    assert_close(copy.columns.log_prob(), likelihood + priors[1].log_prob(copy.columns.labels))
    assert_close(state.rows.labels, rows)


def log_relation(rows, columns, value):
    """Cell by cell, under Beta(0.8, 1.4), of one labelling of rows and of columns each."""
    total = 0.0
    for r, c in itertools.product(set(rows.tolist()), set(columns.tolist())):
        cell = value[rows == r][:, columns == c]
        ones, zeros = float((cell == 1).sum()), float((cell == 0).sum())
        total += betaln(0.8 + ones, 1.4 + zeros) - betaln(0.8, 1.4)
    return total


@pytest.mark.parametrize("prior_first", [False, True])
def test_relations_over_the_same_rows_see_each_others_moves_whatever_the_order(prior_first):
    rows, component = torch.randint(3, (P, N)), BetaBernoulli(0.8, 1.4)
    values = [torch.bernoulli(torch.full((N, m), 0.4)) for m in (7, 4)]
    starts = [torch.randint(2, (P, m)) for m in (7, 4)]
    relations = [
        CollapsedRelation(rows, start, component).incremental(rows, start, value)
        for start, value in zip(starts, values)
    ]
    parts = [ChineseRestaurant(1.0, N).incremental(rows), *(r.rows for r in relations)]
    state = join(*parts) if prior_first else join(*parts[::-1])
    for _ in range(40):
        move(state)
        for relation in relations:
            move(relation.columns)
    prior = ChineseRestaurant(1.0, N).log_prob(state.labels)
    both = torch.zeros(P)
    for relation, value in zip(relations, values):
        labels = zip(state.labels, relation.columns.labels)
        expected = torch.tensor([log_relation(u, v, value) for u, v in labels])
        assert_close(relation.columns.log_prob(), expected, rtol=0, atol=1e-9)
        both += expected
    assert_close(state.log_prob(), prior + both, rtol=0, atol=1e-9)


def test_rows_and_columns_of_one_relation_are_not_joined():
    labels = torch.randint(3, (P, N))
    fn = CollapsedRelation(labels, labels, BetaBernoulli(0.8, 1.4))
    state = fn.incremental(labels, labels, torch.ones(N, N))
    with pytest.raises(OptionError, match="would move both"):
        join(state.rows, state.columns)


def test_wide_clusters_do_not_make_the_sums_drift():
    """Two groups 2,000 standard deviations apart, mixed and parted again for 2,500 moves."""
    x = torch.randn(20, 2) + torch.tensor([[1000.0], [-1000.0]]).repeat(10, 1)
    labels = torch.arange(20).remainder(2).expand(3, 20)
    for component in (
        NormalInverseGamma(0.04, 1.0, 1.0),
        NormalInverseWishart(0.04, 3.0, torch.eye(2)),
    ):
        state = CollapsedMixture(labels, component).incremental(labels, x)
        for _ in range(2500):
            i = int(torch.randint(20, ()))
            state.take_out(i)
            state.put_in(i, torch.randint(3, (3,)).clamp_max(state.capacity - 1))
        for i in range(20):
            state.take_out(i)
            state.put_in(i, labels[:, i])
        drifted = state.log_prob()
        state.refresh()
        expected = CollapsedMixture(labels, component).log_prob(x)
        assert_close(drifted, expected, rtol=0, atol=1e-7)
        assert_close(state.log_prob(), expected, rtol=0, atol=1e-8)


def test_misuse_is_named():
    state, _ = STATES["restaurant"]()
    with pytest.raises(OptionError, match="take it out"):
        state.scores(0)
    with pytest.raises(OptionError, match="take it out"):
        state.put_in(0, torch.zeros(P, dtype=torch.long))
    state.take_out(0)
    with pytest.raises(OptionError, match="out already"):
        state.take_out(0)
    with pytest.raises(ShapeMismatch, match="same labels"):
        join(state, ChineseRestaurant(1.0, N).incremental(torch.zeros(P, N, dtype=torch.long)))


@pytest.mark.parametrize("name", STATES)
def test_gains_of_many_elements_at_once_are_those_one_by_one(name):
    state, truth = STATES[name]()
    for _ in range(20):
        move(state)
    elements = torch.randperm(N)[:7]
    labels, before = state.labels, state.log_prob()
    gains = state.gains(elements)
    assert gains.shape == (P, state.capacity, 7)
    for k, i in enumerate(elements.tolist()):
        for c in range(state.capacity):
            z = labels.clone()
            z[:, i] = c
            known = gains[:, c, k].isfinite()
            assert_close(gains[known, c, k], (truth(z) - before)[known], rtol=0, atol=1e-7)
            # -inf where nothing new comes out, or at free slots behind the first
            size = (z == c).sum(1)
            assert bool((known | (labels[:, i] == c) | (size == 1)).all())


@pytest.mark.parametrize("name", STATES)
def test_joins_of_many_elements_at_once_differ_as_scores_one_by_one(name):
    state, _ = STATES[name]()
    for _ in range(20):
        move(state)
    out, inside = torch.randperm(N)[:8].split(4)
    for i in out.tolist():
        state.take_out(i)
    joins = state.joins(torch.cat([out, inside]))
    assert joins.shape == (P, state.capacity, 8)
    for k, i in enumerate([*out.tolist(), *inside.tolist()]):
        own = state.seating.slot_of(i)
        is_in = bool((own >= 0).all())
        if is_in:
            state.take_out(i)
        excess = joins[:, :, k] - state.scores(i)
        if is_in:
            state.put_in(i, own)
        for p in range(P):
            # an element that is in is counted in its own cluster
            slots = [c for c in state.labels[p].unique().tolist() if c >= 0 and c != own[p]]
            slots += [] if is_in else [int(state.seating.open()[p])]
            assert_close(
                excess[p, slots], excess[p, slots[:1]].expand(len(slots)), atol=1e-9, rtol=0
            )


@pytest.mark.parametrize("name", COMPONENTS)
@pytest.mark.parametrize("numbers", [1, 40])
def test_clusters_are_counted_in_pieces_as_all_at_once(monkeypatch, name, numbers):
    state, truth = mixture(name)
    for module in (mixture_term, normal_inverse_gamma, normal_inverse_wishart_term):
        monkeypatch.setattr(module, "AT_ONCE", numbers)
    state.refresh()
    assert_close(state.log_prob(), truth(state.labels), rtol=0, atol=1e-9)
    move(state, truth)


def test_particles_that_have_a_cluster_in_common_share_one_row():
    state, _ = joint()
    for _ in range(50):
        move(state)
    state.refresh()
    every = {
        frozenset((row == c).nonzero().flatten().tolist())
        for row in state.labels
        for c in row.unique()
    }
    assert state.seating.num_rows == len(every) + 2  # and the two rows without elements
    same = state.select(torch.zeros(50, dtype=torch.long))
    same.take_out(3)
    before = same.seating.num_rows
    same.put_in(3, same.seating.open())
    assert same.seating.num_rows == before + 1
