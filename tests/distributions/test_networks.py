"""Relations of elements to each other: enumerated truths, and scores of single reassignments."""

import itertools
import math

import networkx as nx
import pyro
import pytest
import torch
from scipy.special import betaln
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.distributions import (
    BetaBernoulli,
    ChineseRestaurant,
    CollapsedRelation,
    join,
)
from pyrograph.errors import OptionError, ShapeMismatch
from tests.distributions.partitions import all_partitions, relabelled

A, B = 0.8, 1.4
N, P = 9, 4


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)


def network(n, undirected, held_out=0.2):
    """Entries of 0, 1 and NaN; of an undirected one alike in both places, or in one of them."""
    x = torch.bernoulli(torch.full((n, n), 0.4))
    if undirected:
        x = x.triu() + x.triu(1).mT
    return torch.where(torch.rand(n, n) < held_out, math.nan, x)


def by_hand(z, x, undirected):
    """Entry by entry, of one labelling."""
    cells = {}
    pairs = itertools.combinations(range(len(z)), 2) if undirected else None
    for i, j in pairs or itertools.product(range(len(z)), repeat=2):
        seen = {float(v) for v in ([x[i, j], x[j, i]] if undirected else [x[i, j]])}
        seen = {v for v in seen if v == v}
        if seen:
            (v,) = seen
            key = (int(z[i]), int(z[j]))
            counts = cells.setdefault(tuple(sorted(key)) if undirected else key, [0, 0])
            counts[int(v == 0)] += 1
    return sum(betaln(A + n, B + m) - betaln(A, B) for n, m in cells.values())


def relation(z, undirected, **options):
    return CollapsedRelation(z, z, BetaBernoulli(A, B), undirected=undirected, **options)


@pytest.mark.parametrize("undirected", [False, True])
def test_likelihoods_of_all_partitions_are_products_of_cells(undirected):
    z, x = all_partitions(5), network(5, undirected)
    expected = torch.tensor([by_hand(own, x, undirected) for own in z])
    for labels in (z, relabelled(z, torch.Generator().manual_seed(0))):
        assert_close(relation(labels, undirected).log_prob(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n", "undirected"), [(3, False), (4, True)])
def test_probabilities_of_all_networks_add_up_to_one(n, undirected):
    entries = torch.tensor(list(itertools.product((0.0, 1.0), repeat=6 if undirected else 9)))
    if undirected:
        i, j = torch.triu_indices(n, n, 1)
        x = torch.zeros(len(entries), n, n)
        x[:, i, j] = x[:, j, i] = entries
    else:
        x = entries.view(-1, n, n)
    for z in all_partitions(n):
        assert_close(relation(z, undirected).log_prob(x).exp().sum(), torch.tensor(1.0))


def test_a_pair_may_be_given_in_either_place_or_both():
    x = network(N, True, held_out=0)
    z, upper = torch.randint(3, (P, N)), torch.ones(N, N).triu(1).bool()
    expected = relation(z, True).log_prob(x)
    for mask in (upper, upper.mT, upper | torch.rand(N, N).lt(0.5)):
        assert_close(relation(z, True, mask=mask).log_prob(x), expected)
        assert_close(relation(z, True).log_prob(x.masked_fill(~mask, math.nan)), expected)
    order = torch.randperm(N)
    assert_close(relation(z[:, order], True).log_prob(x[order][:, order]), expected)


def test_an_undirected_network_has_no_entries_on_its_diagonal():
    x, z = network(N, True), torch.randint(3, (N,))
    other = x.clone()
    other.fill_diagonal_(1.0)
    assert_close(relation(z, True).log_prob(other), relation(z, True).log_prob(x))
    assert float(relation(z, False).log_prob(other)) != float(relation(z, False).log_prob(x))


def states(undirected):
    """Of a network alone, and beside a prior and another network."""
    z, x, other = torch.randint(3, (P, N)), network(N, undirected), network(N, not undirected)
    prior = ChineseRestaurant(0.7, N)
    alone = relation(z, undirected).incremental_within(z, x)
    beside = join(
        prior.incremental(z),
        relation(z, undirected).incremental_within(z, x),
        relation(z, not undirected).incremental_within(z, other),
    )

    def of_all(z):
        both = relation(z, undirected).log_prob(x) + relation(z, not undirected).log_prob(other)
        return prior.log_prob(z) + both

    return [(alone, lambda z: relation(z, undirected).log_prob(x)), (beside, of_all)]


@pytest.mark.parametrize("undirected", [False, True])
def test_scores_equal_full_rescoring_after_a_hundred_moves(undirected):
    for state, truth in states(undirected):
        for step in range(100):
            i = int(torch.randint(N, ()))
            state.take_out(i)
            scores, base = state.scores(i), state.log_prob()
            if step >= 95:
                for c in range(state.capacity):
                    z = state.labels.clone()
                    z[:, i] = c
                    is_open = scores[:, c].isfinite()
                    found = (base + scores[:, c])[is_open]
                    assert_close(found, truth(z)[is_open], rtol=0, atol=1e-9)
            state.put_in(i, torch.multinomial(scores.isfinite().double(), 1).squeeze(-1))
        assert_close(state.log_prob(), truth(state.labels), rtol=0, atol=1e-9)
        copy = state.select(torch.tensor([3, 1, 1]))
        copy.take_out(2)
        copy.put_in(2, torch.zeros(3, dtype=torch.long))
        assert_close(copy.log_prob(), truth(copy.labels), rtol=0, atol=1e-9)
        assert_close(state.log_prob(), truth(state.labels), rtol=0, atol=1e-9)


@pytest.mark.parametrize("undirected", [False, True])
def test_elements_that_come_in_one_by_one_give_the_whole(undirected):
    x, nobody = network(N, undirected), torch.zeros(1, 0, dtype=torch.long)
    fn = relation(torch.zeros(N, dtype=torch.long), undirected)
    state = fn.incremental_within(nobody, x)
    total = torch.zeros(1)
    for i in range(N):  # an element of its own each: slots grow
        slot = state.seating.open()
        total = total + state.scores(i).gather(1, slot.unsqueeze(1)).squeeze(1)
        state.put_in(i, slot)
    assert_close(total, relation(state.labels, undirected).log_prob(x), rtol=0, atol=1e-9)
    assert_close(state.log_prob(), total, rtol=0, atol=1e-9)


def test_samples_of_undirected_networks_are_symmetric_and_have_the_moments_of_their_cells():
    """Two entries of one cell: means a / (a + b), correlated by 1 / (a + b + 1)."""
    x = relation(torch.tensor([0, 0, 1, 1, 1]), True).sample((40_000,))
    assert torch.equal(x, x.mT) and not bool(x.diagonal(dim1=1, dim2=2).any())
    mean, correlation = A / (A + B), 1 / (A + B + 1)
    i, j = torch.triu_indices(5, 5, 1)
    assert_close(x[:, i, j].mean(0), torch.full((10,), mean), rtol=0, atol=5 * 0.5 / 200)
    one_cell = torch.corrcoef(torch.stack([x[:, 0, 2], x[:, 1, 4], x[:, 2, 4]]))
    assert abs(float(one_cell[0, 1]) - correlation) < 0.03
    assert abs(float(one_cell[0, 2])) < 0.03


def test_wrong_uses_are_refused():
    z, x = torch.tensor([0, 0, 1]), torch.zeros(3, 3)
    component = BetaBernoulli(1.0, 1.0)
    with pytest.raises(OptionError, match="the same labels as rows and as columns"):
        CollapsedRelation(z, z.clone(), component, undirected=True)
    with pytest.raises(OptionError, match="undirected='yes' must be True or False"):
        CollapsedRelation(z, z, component, undirected="yes")
    x[0, 1] = 1.0
    with pytest.raises(OptionError, match=r"\(i, j\) and \(j, i\) differ"):
        CollapsedRelation(z, z, component, validate_args=True, undirected=True).log_prob(x)
    with pytest.raises(ShapeMismatch, match="3 x 2 is not one of elements to each other"):
        fn = CollapsedRelation(z, z[:2], component)
        fn.incremental_within(z.unsqueeze(0), torch.zeros(3, 2))


# ---------------------------------------------------------------------- DPVI
def community(x, undirected):
    z = pyro.sample("z", ChineseRestaurant(1.0, len(x)))
    fn = CollapsedRelation(z, z, BetaBernoulli(A, B), undirected=undirected)
    pyro.sample("x", fn, obs=x)


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("engine", [pg.DPVI, pg.SequentialDPVI])
def test_all_partitions_as_particles_give_the_evidence(engine, undirected):
    x, z = network(6, undirected), all_partitions(6)
    prior = ChineseRestaurant(1.0, 6).log_prob(z)
    likelihood = torch.tensor([by_hand(own, x, undirected) for own in z])
    found = pg.fit(community, (x, undirected), infer=engine, num_particles=300, progress=False)
    expected = (prior + likelihood).logsumexp(0)
    assert_close(found.log_evidence, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("undirected", "seed"), [(False, 2), (True, 5)])
def test_planted_communities_are_found(undirected, seed):
    pyro.set_rng_seed(seed)  # passes of filtering alone lose it
    truth = torch.arange(60) % 3
    alike = truth.unsqueeze(0) == truth.unsqueeze(1)
    x = torch.bernoulli(torch.where(alike, 0.5, 0.05))
    x = x.triu(1) + x.triu(1).mT if undirected else x
    found = pg.fit(community, (x, undirected), infer=pg.DPVI, num_particles=5, progress=False)
    best = found.particles["z"][found.weights.argmax()]
    assert torch.equal(best.unsqueeze(0) == best.unsqueeze(1), alike)


def test_members_of_a_karate_club_form_blocks_that_beat_its_two_factions():
    graph = nx.karate_club_graph()
    x = torch.from_numpy(nx.to_numpy_array(graph, weight=None))
    factions = torch.tensor([graph.nodes[i]["club"] == "Officer" for i in graph]).long()
    given = ChineseRestaurant(1.0, 34).log_prob(factions) + by_hand(factions, x, True)
    found = pg.fit(community, (x, True), infer=pg.DPVI, num_particles=10, progress=False)
    assert float(found.log_evidence) > float(given) + 10
    hubs = found.sample(50)["z"]  # leaders and their followers are told apart
    assert bool((hubs[:, 0] != hubs[:, 11]).all() and (hubs[:, 33] != hubs[:, 14]).all())
