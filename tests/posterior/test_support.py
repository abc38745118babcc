"""Supports survive being written down as plain data."""

import io

import pytest
import torch
from pyro.distributions import constraints
from torch.distributions import biject_to
from torch.testing import assert_close

from pyrograph.errors import UnsupportedSite
from pyrograph.posterior.support import describe, restore

MAPPED = {
    "real": lambda: constraints.real,
    "real_vector": lambda: constraints.real_vector,
    "positive": lambda: constraints.positive,
    "nonnegative": lambda: constraints.nonnegative,
    "unit_interval": lambda: constraints.unit_interval,
    "interval": lambda: constraints.interval(-1.5, 2.0),
    "interval of tensors": lambda: constraints.interval(torch.zeros(3), torch.arange(1.0, 4.0)),
    "half_open_interval": lambda: constraints.half_open_interval(0.0, 3.0),
    "greater_than": lambda: constraints.greater_than(2.0),
    "greater_than a tensor": lambda: constraints.greater_than(torch.arange(3.0)),
    "greater_than_eq": lambda: constraints.greater_than_eq(-1.0),
    "less_than": lambda: constraints.less_than(2.5),
    "simplex": lambda: constraints.simplex,
    "corr_cholesky": lambda: constraints.corr_cholesky,
    "corr_matrix": lambda: constraints.corr_matrix,
    "softplus_positive": lambda: constraints.softplus_positive,
    "ordered_vector": lambda: constraints.ordered_vector,
    "positive_ordered_vector": lambda: constraints.positive_ordered_vector,
    "independent": lambda: constraints.independent(constraints.interval(0.0, 2.0), 1),
    "independent twice": lambda: constraints.independent(
        constraints.independent(constraints.positive, 1), 1
    ),
}
NOT_MAPPED = (
    "lower_cholesky",
    "unit_lower_cholesky",
    "softplus_lower_cholesky",
    "positive_definite",
    "positive_semidefinite",
)


def saved_and_loaded(description):
    buffer = io.BytesIO()
    torch.save(description, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("name", MAPPED)
def test_a_restored_support_maps_the_reals_alike(name):
    support = MAPPED[name]()
    again = restore(saved_and_loaded(describe(support, "x")))
    assert type(again) is type(support)
    free = torch.randn(4, 3)
    assert_close(biject_to(again)(free), biject_to(support)(free))


@pytest.mark.parametrize("name", NOT_MAPPED)
def test_supports_without_a_bijection_are_described_too(name):
    support = getattr(constraints, name)
    assert restore(saved_and_loaded(describe(support, "x"))) is support


def test_a_softplus_support_is_not_taken_for_a_bounded_one():
    assert describe(constraints.softplus_positive, "x") == {"kind": "softplus_positive"}
    assert describe(constraints.positive, "x") == {"kind": "positive"}


def test_a_support_that_depends_on_latents_says_what_to_do():
    with pytest.raises(UnsupportedSite, match=r'site "x".*fixed support.*guide\(sites='):
        describe(None, "x")


def test_an_unknown_support_names_the_site():
    with pytest.raises(UnsupportedSite, match='site "x"'):
        describe(constraints.sphere, "x")
