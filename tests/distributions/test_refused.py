"""What components and collapsed data refuse, by errors that say what to give instead."""

import numpy as np
import pytest
import torch

from pyrograph.distributions import (
    BetaBernoulli,
    ChineseRestaurant,
    ChineseRestaurantFranchise,
    CollapsedMixture,
    CollapsedRelation,
    DirichletCategorical,
    NormalInverseGamma,
    NormalInverseWishart,
    TruncatedLaplace,
    join,
)
from pyrograph.errors import OptionError, ShapeMismatch

Z = torch.tensor([0, 1])


@pytest.mark.parametrize(
    "make, error, said",
    [
        (
            lambda: NormalInverseGamma(torch.ones(3), torch.ones(2), 1.0),
            ShapeMismatch,
            r"\(3,\), \(2,\), \(\), \(\)",
        ),
        (lambda: NormalInverseGamma(None, 1.0, 1.0), OptionError, "numbers or tensors"),
        (
            lambda: NormalInverseWishart(1.0, 3.0, torch.eye(2), torch.ones(3)),
            ShapeMismatch,
            r"loc has shape \(3,\)",
        ),
        (lambda: NormalInverseWishart(1.0, 3.0, torch.zeros(0, 0)), ShapeMismatch, "d above 0"),
    ],
    ids=["shapes", "none", "loc", "no dimensions"],
)
def test_parameters_that_do_not_fit_are_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()


@pytest.mark.parametrize(
    "mask",
    [torch.ones(2, 2), torch.tensor([[2, 1], [1, 1]]), [[True, True], [True, True]], False],
    ids=["floats", "integers", "list", "bool"],
)
def test_masks_are_tensors_of_bool(mask):
    with pytest.raises(OptionError, match="give a tensor of bool"):
        CollapsedRelation(Z, Z, BetaBernoulli(1.0, 1.0), mask=mask)


@pytest.mark.parametrize("data", [[0, 1], np.array([0, 1])], ids=["list", "array"])
def test_data_are_tensors(data):
    with pytest.raises(OptionError, match=r"torch\.as_tensor"):
        CollapsedMixture(Z, DirichletCategorical(1.0, 2)).log_prob(data)
    with pytest.raises(OptionError, match=r"torch\.as_tensor"):
        CollapsedRelation(Z, Z, BetaBernoulli(1.0, 1.0)).log_prob([data, data])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ChineseRestaurant(torch.tensor([1.0, 2.0]), 2),
        lambda: ChineseRestaurantFranchise(torch.tensor([1.0, 2.0]), 1.0, 2),
        lambda: TruncatedLaplace(torch.tensor([1.0, 2.0]), 1.0, 3.0, low=0.0, high=4.0),
        lambda: CollapsedMixture(Z, DirichletCategorical(torch.ones(2, 3), 3)),
        lambda: CollapsedMixture(Z, NormalInverseGamma(torch.tensor([1.0, 2.0]), 1.0, 1.0, dim=0)),
        lambda: CollapsedRelation(Z, Z, BetaBernoulli(torch.tensor([1.0, 2.0]), 1.0)),
        lambda: CollapsedRelation(
            Z, Z, BetaBernoulli(1.0, 1.0), mask=torch.ones(2, 2, 2, dtype=torch.bool)
        ),
    ],
    ids=["restaurant", "franchise", "laplace", "symbols", "numbers", "relation", "masks"],
)
def test_batches_expand_to_shapes_that_they_broadcast_to(make):
    fn = make()
    assert fn.batch_shape == (2,)
    for shape in [(3,), (1,), (), (2, 1), (2, 3)]:
        with pytest.raises(ShapeMismatch, match=r"batch of shape \(2,\) does not expand"):
            fn.expand(shape)
    assert fn.expand((3, 2)).batch_shape == (3, 2) and fn.expand([2]).batch_shape == (2,)
    assert fn.expand((3, 2)).sample().shape == (3, 2, *fn.event_shape)


@pytest.mark.parametrize("i", [3, 5, -1])
def test_elements_that_there_are_not_are_refused(i):
    state = ChineseRestaurant(1.0, 3).incremental(torch.tensor([[0, 1]]))
    slot = torch.zeros(1, dtype=torch.int64)
    for ask in (state.scores, state.take_out, lambda i: state.put_in(i, slot)):
        with pytest.raises(OptionError, match=f"no element {i}: .* 0, ..., 2"):
            ask(i)
    assert state.labels.tolist() == [[0, 1, -1]]  # nothing has changed


UNCHECKED = {
    "restaurant": lambda **args: ChineseRestaurant(-1.0, 3, **args),
    "franchise": lambda **args: ChineseRestaurantFranchise(1.0, 0.0, 3, **args),
    "laplace": lambda **args: TruncatedLaplace(0.0, -1.0, 1.0, **args),
    "its cut": lambda **args: TruncatedLaplace(0.0, 1.0, 0.0, **args),
    "mixture": lambda **args: CollapsedMixture(Z / 2, DirichletCategorical(1.0, 2), **args),
    "relation": lambda **args: CollapsedRelation(Z / 2, Z, BetaBernoulli(1.0, 1.0), **args),
}


@pytest.mark.parametrize("make", UNCHECKED.values(), ids=UNCHECKED)
def test_values_are_checked_unless_validation_is_off(make):
    for args in ({}, {"validate_args": True}):
        with pytest.raises(OptionError):
            make(**args)
    assert not make(validate_args=False)._validate_args


@pytest.mark.parametrize(
    "make",
    [ChineseRestaurant, lambda *a, **args: ChineseRestaurantFranchise(1.0, *a, **args)],
    ids=["restaurant", "franchise"],
)
def test_values_of_labels_are_checked_unless_validation_is_off(make):
    halves = torch.tensor([0.0, 0.5, 0.5])  # a partition like another
    with pytest.raises(OptionError, match="not whole"):
        make(2.0, 3).log_prob(halves)
    fn = make(2.0, 3, validate_args=False)
    assert fn.log_prob(halves) == fn.log_prob(torch.tensor([0, 1, 1]))


def test_nothing_to_join_is_refused():
    with pytest.raises(OptionError, match="nothing to join"):
        join()


COUNTS = {
    "restaurant": lambda n: ChineseRestaurant(1.0, n).n,
    "franchise": lambda n: ChineseRestaurantFranchise(1.0, 1.0, n).n,
    "symbols": lambda n: DirichletCategorical(1.0, n).num_symbols,
    "numbers": lambda n: NormalInverseGamma(1.0, 1.0, 1.0, dim=n).dim,
}


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
def test_counts_are_whole_numbers_of_any_kind(count):
    for n in (4, np.int64(4), np.uint8(4), np.array(4), torch.tensor(4)):
        assert type(count(n)) is int and count(n) == 4
    for n in (True, np.bool_(True), torch.tensor(True), 4.0, np.float64(4), torch.tensor(4.0)):
        with pytest.raises(OptionError, match="must be a whole number"):
            count(n)
    for n in (-1, np.int64(-1), "4", [4]):
        with pytest.raises(OptionError, match="must be a whole number"):
            count(n)
    assert ChineseRestaurant(1.0, np.int64(4)).sample().shape == (4,)


def test_labels_are_on_the_device_of_the_data():
    numbers = CollapsedMixture(Z, NormalInverseGamma(1.0, 1.0, 1.0))
    relation = CollapsedRelation(Z, Z, BetaBernoulli(1.0, 1.0))
    for mixture, shape in ((numbers, 2), (relation, (2, 2))):
        with pytest.raises(OptionError, match="data are on meta, labels on cpu"):
            mixture.log_prob(torch.zeros(shape, device="meta"))


ONES, LABELS = torch.ones, torch.zeros(4, 5, dtype=torch.int64)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: NormalInverseWishart(ONES(3), 4 * ONES(2), torch.eye(2)),
            r"kappa, nu, scale_matrix and loc have batches \(3,\), \(2,\), \(\), \(\)",
        ),
        (lambda: BetaBernoulli(ONES(3), ONES(2)), r"a and b have shapes \(3,\), \(2,\)"),
        (
            lambda: ChineseRestaurantFranchise(ONES(3), ONES(2), 4),
            r"alpha and gamma have shapes \(3,\), \(2,\)",
        ),
        (
            lambda: CollapsedMixture(LABELS, DirichletCategorical(ONES(3, 2), 2)),
            r"z and component have batches \(4,\), \(3,\)",
        ),
        (
            lambda: CollapsedRelation(LABELS, LABELS[:3], BetaBernoulli(1.0, 1.0)),
            r"rows, columns and component have batches \(4,\), \(3,\), \(\)",
        ),
        (
            lambda: CollapsedRelation(
                LABELS, LABELS, BetaBernoulli(1.0, 1.0), mask=ONES(3, 5, 5, dtype=torch.bool)
            ),
            r"columns, component and mask have batches \(4,\), \(4,\), \(\), \(3,\)",
        ),
        (
            lambda: CollapsedMixture(LABELS, DirichletCategorical(1.0, 2)).log_prob(LABELS[:3]),
            r"value and distribution have batches \(3,\), \(4,\)",
        ),
        (
            lambda: CollapsedMixture(LABELS, NormalInverseGamma(1.0, 1.0, 1.0)).log_prob(
                torch.zeros(3, 5, 2)
            ),
            r"value and distribution have batches \(3,\), \(4,\)",
        ),
        (
            lambda: CollapsedRelation(LABELS, LABELS, BetaBernoulli(1.0, 1.0)).log_prob(
                torch.zeros(3, 5, 5)
            ),
            r"value and distribution have batches \(3,\), \(4,\)",
        ),
        (
            lambda: ChineseRestaurant(ONES(2), 5).log_prob(LABELS[:3]),
            r"value and distribution have batches \(3,\), \(2,\)",
        ),
        (
            lambda: ChineseRestaurantFranchise(ONES(2), 1.0, 5).log_prob(LABELS[:3]),
            r"value and distribution have batches \(3,\), \(2,\)",
        ),
    ],
)
def test_batches_that_do_not_broadcast_are_named(make, said):
    with pytest.raises(ShapeMismatch, match=said + ".* do not broadcast"):
        make()


def test_complex_data_are_refused():
    mixture = CollapsedMixture(Z, NormalInverseGamma(1.0, 1.0, 1.0, dim=0))
    for ask in (mixture.log_prob, lambda x: mixture.incremental(Z[None], x)):
        with pytest.raises(OptionError, match=r"data are torch.complex128; give real numbers"):
            ask(torch.tensor([0.0, 1j]))


@pytest.mark.parametrize("loc", [np.nan, np.inf, torch.tensor([0.0, np.nan])], ids=str)
def test_means_of_normal_components_are_finite(loc):
    with pytest.raises(OptionError, match=r"NormalInverseGamma: loc=.* must be finite"):
        NormalInverseGamma(1.0, 1.0, 1.0, loc)
    with pytest.raises(OptionError, match=r"NormalInverseWishart: loc=.* must be finite"):
        NormalInverseWishart(1.0, 3.0, torch.eye(2), loc)
