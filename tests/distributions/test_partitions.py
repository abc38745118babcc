"""The urns against loops over customers, sums over all partitions, and their own samples."""

import pyro
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.distributions import ChineseRestaurant, ChineseRestaurantFranchise
from pyrograph.distributions.labels import by_appearance
from pyrograph.errors import OptionError, ShapeMismatch
from tests.distributions.partitions import (
    all_partitions,
    chi_square,
    paper_urn,
    relabelled,
    restaurant_urn,
    table_urn,
)

URNS = {
    "restaurant": (lambda n: ChineseRestaurant(0.7, n), lambda z: restaurant_urn(z, 0.7)),
    "paper": (
        lambda n: ChineseRestaurantFranchise(0.7, 1.3, n, urn="paper"),
        lambda z: paper_urn(z, 0.7, 1.3),
    ),
    "franchise": (
        lambda n: ChineseRestaurantFranchise(0.7, 1.3, n),
        lambda z: table_urn(z, 0.7, 1.3),
    ),
}


def test_the_package_is_part_of_the_public_face():
    assert pg.distributions.ChineseRestaurant is ChineseRestaurant


@pytest.mark.parametrize("urn", URNS)
def test_probabilities_of_all_partitions_of_8_points_sum_to_one(urn):
    z = all_partitions(8)
    assert len(z) == 4140
    assert_close(URNS[urn][0](8).log_prob(z).logsumexp(0), torch.tensor(0.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("urn", URNS)
@pytest.mark.parametrize("n", [1, 2, 6])
def test_every_sequence_has_the_probability_of_the_urn_played_move_by_move(urn, n):
    make, truth = URNS[urn]
    z = all_partitions(n)
    expected = torch.tensor([truth(row) for row in z.tolist()])
    assert_close(make(n).log_prob(z), expected.log(), rtol=0, atol=1e-12)


def test_sequences_with_long_runs_agree_with_the_tables_summed_one_by_one():
    z = torch.tensor([[0, 0, 0, 0, 1, 0, 0, 0, 1, 1], [0, 1, 0, 1, 0, 1, 0, 1, 0, 2]])
    fn = ChineseRestaurantFranchise(2.5, 0.4, 10)
    expected = torch.tensor([table_urn(row, 2.5, 0.4) for row in z.tolist()])
    assert_close(fn.log_prob(z), expected.log(), rtol=0, atol=1e-12)


def test_a_long_series_has_a_finite_probability_that_the_urn_of_counts_confirms():
    z = torch.randint(6, (400,))
    assert ChineseRestaurantFranchise(1.0, 1.0, 400).log_prob(z).isfinite()
    expected = torch.tensor(paper_urn(z[:150].tolist(), 1.0, 1.0)).log()
    fn = ChineseRestaurantFranchise(1.0, 1.0, 150, urn="paper")
    assert_close(fn.log_prob(z[:150]), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("urn", URNS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_samples_have_the_frequencies_of_log_prob(urn, seed):
    pyro.set_rng_seed(seed)
    fn, z = URNS[urn][0](5), all_partitions(5)
    draws = fn.sample((20_000,))
    assert (draws == by_appearance(draws)).all()
    statistic, freedom = chi_square(draws, z, fn.log_prob(z).exp())
    assert stats.chi2.sf(statistic, freedom) > 1e-3


@pytest.mark.parametrize("urn", ["paper", "franchise"])
def test_long_samples_open_more_states_than_the_tables_start_with(urn):
    """The mean number of states against the mean of an urn whose rows are all fresh."""
    z = ChineseRestaurantFranchise(1e9, 5.0, 60, urn=urn).sample((500,))
    found = (z.max(-1).values + 1).double().mean()
    # alpha large: every move goes to the oracle, a Chinese restaurant of 60 customers, unless the
    # paper's oracle leaves out the states its row has visited, which makes new ones likelier
    expected = sum(5.0 / (5.0 + t) for t in range(60))
    assert found > expected - 0.5
    assert urn == "paper" or found < expected + 0.5


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(0, 10**6))
def test_names_of_the_labels_do_not_matter(labels, seed):
    z = torch.tensor(labels)
    other = relabelled(z, torch.Generator().manual_seed(seed))
    assert_close(by_appearance(other), by_appearance(z))
    for make, _ in URNS.values():
        assert_close(make(len(z)).log_prob(other), make(len(z)).log_prob(z), rtol=0, atol=1e-12)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=12))
def test_labels_by_appearance_are_the_loops(labels):
    seen = {}
    expected = [seen.setdefault(label, len(seen)) for label in labels]
    assert by_appearance(torch.tensor(labels)).tolist() == expected


def test_the_restaurant_is_exchangeable_and_the_paper_urn_is_not():
    z = all_partitions(6)
    order = torch.randperm(6)
    restaurant = ChineseRestaurant(0.7, 6)
    assert_close(restaurant.log_prob(z[:, order]), restaurant.log_prob(z))
    # two sequences with one set of moves: 0 0 1 0 and 0 1 0 0 both move 0-0, 0-1 and 1-0 once
    one, two = torch.tensor([0, 0, 1, 0]), torch.tensor([0, 1, 0, 0])
    tables = ChineseRestaurantFranchise(0.7, 1.3, 4)
    counts = ChineseRestaurantFranchise(0.7, 1.3, 4, urn="paper")
    assert_close(tables.log_prob(one), tables.log_prob(two))
    assert abs(counts.log_prob(one) - counts.log_prob(two)) > 1e-3


@pytest.mark.parametrize("urn", URNS)
def test_batches_equal_their_elements(urn):
    z = torch.randint(4, (3, 2, 7))
    alpha = torch.tensor([0.5, 2.0])
    if urn == "restaurant":
        make = lambda a: ChineseRestaurant(a, 7)  # noqa: E731
    else:
        make = lambda a: ChineseRestaurantFranchise(a, 1.3, 7, urn=urn)  # noqa: E731
    fn = make(alpha)
    assert (fn.batch_shape, fn.event_shape) == ((2,), (7,))
    assert fn.sample((3,)).shape == (3, 2, 7)
    expected = torch.stack([make(float(a)).log_prob(z[:, k]) for k, a in enumerate(alpha)], dim=1)
    assert_close(fn.log_prob(z), expected)
    assert_close(make(0.5).expand((3, 2)).log_prob(z), make(0.5).log_prob(z))
    assert make(0.5).expand((3, 2)).sample().shape == (3, 2, 7)


@pytest.mark.parametrize("urn", URNS)
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_a_batch_of_no_sequences_has_as_many_probabilities(urn, n, shape):
    alpha = torch.tensor([0.7, 1.1, 2.0][: shape[-1] or 1], requires_grad=True)
    if urn == "restaurant":
        fn = ChineseRestaurant(alpha, n)
    else:
        fn = ChineseRestaurantFranchise(alpha, 1.3, n, urn=urn)
    found = fn.log_prob(torch.zeros(*shape, n, dtype=torch.int64))
    assert (found.shape, found.dtype) == (shape, alpha.dtype)
    found.sum().backward()
    assert_close(alpha.grad, torch.zeros_like(alpha))
    assert fn.log_prob(fn.sample((0,))).shape == (0, len(alpha))


@pytest.mark.parametrize("urn", URNS)
def test_gradients_of_the_concentrations_are_finite_differences(urn):
    z = torch.randint(3, (9,))

    def log_prob(alpha, gamma):
        if urn == "restaurant":
            return ChineseRestaurant(alpha, 9).log_prob(z) + 0 * gamma
        return ChineseRestaurantFranchise(alpha, gamma, 9, urn=urn).log_prob(z)

    inputs = tuple(torch.tensor(v, requires_grad=True) for v in (0.8, 1.7))
    assert torch.autograd.gradcheck(log_prob, inputs)


@pytest.mark.parametrize("urn", URNS)
def test_single_precision_follows_the_parameters(urn):
    z = torch.randint(3, (9,))
    alpha = torch.tensor(0.7, dtype=torch.float32)
    if urn == "restaurant":
        fn = ChineseRestaurant(alpha, 9)
    else:
        fn = ChineseRestaurantFranchise(alpha, torch.tensor(1.3, dtype=torch.float32), 9, urn=urn)
    assert fn.log_prob(z).dtype == torch.float32
    assert_close(fn.log_prob(z).double(), URNS[urn][0](9).log_prob(z), rtol=1e-5, atol=1e-5)
    scores = fn.incremental(z.expand(2, 9)[:, :4]).scores(4)
    assert scores.dtype == torch.float32


@pytest.mark.parametrize("alpha", [1e-6, 0.5, 1.0, 30.0, 1e5, 1e7])
def test_no_digits_are_lost_at_any_concentration(alpha):
    # in single precision, against the urn played element by element in double
    n = 50
    every = (torch.zeros(n).long(), torch.arange(n), torch.arange(n) // 2)
    found = ChineseRestaurant(torch.tensor(alpha, dtype=torch.float32), n).log_prob(
        torch.stack(every)
    )
    for value, z in zip(found, every, strict=True):
        chances = [
            (float(k) if (k := int((z[:i] == z[i]).sum())) else alpha) / (alpha + i)
            for i in range(n)
        ]
        expected = torch.tensor(chances, dtype=torch.float64).log().sum().float()
        assert_close(value, expected, rtol=3e-5, atol=5e-5)


def test_programs_run_and_condition():
    def model(z=None):
        alpha = pyro.sample("alpha", pyro.distributions.Gamma(1.0, 1.0))
        with pyro.plate("series", 3):
            return pyro.sample("z", ChineseRestaurant(alpha, 6), obs=z)

    assert model().shape == (3, 6)
    trace = pyro.poutine.trace(model).get_trace(torch.randint(2, (3, 6)))
    assert trace.log_prob_sum().isfinite()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ChineseRestaurant(0.0, 5), "above 0"),
        (lambda: ChineseRestaurant(1.0, 0), "at least 1"),
        (lambda: ChineseRestaurantFranchise(1.0, -1.0, 5), "gamma"),
        (lambda: ChineseRestaurantFranchise(1.0, 1.0, 5, urn="polya"), '"paper"'),
        (lambda: ChineseRestaurant(1.0, 2).log_prob(torch.tensor([0.5, 1.0])), "integers"),
        (lambda: ChineseRestaurant(1.0, 2).incremental(torch.tensor([[0.0]])), "integers"),
        (lambda: ChineseRestaurant(1.0, 2).incremental(torch.tensor([[7]])), "slots below 2"),
        (lambda: ChineseRestaurant(1.0, 2).incremental(torch.tensor([[-1, 0], [0, 0]])), "-1"),
    ],
)
def test_bad_arguments_are_named(make, text):
    with pytest.raises(OptionError, match=text):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ChineseRestaurant(1.0, 3).log_prob(torch.tensor([0, 1])),
        lambda: ChineseRestaurantFranchise(1.0, 1.0, 3).log_prob(torch.tensor(0)),
        lambda: ChineseRestaurant(1.0, 3).incremental(torch.tensor([0, 1])),
        lambda: ChineseRestaurant(torch.ones(2), 3).incremental(torch.tensor([[0, 1]])),
    ],
)
def test_wrong_shapes_are_named(make):
    with pytest.raises(ShapeMismatch, match="shape"):
        make()
