"""Distinct numbers by a mask or by a sort. Truth: torch.unique."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrograph.trace.distinct import distinct, distinct_with_places

dense = st.lists(st.integers(-3, 9), max_size=40)
sparse = st.lists(st.integers(-(10**12), 10**12), max_size=40)


@given(st.one_of(dense, sparse))
def test_they_are_those_of_a_sort(values):
    numbers = torch.tensor(values, dtype=torch.int64)
    expected, place = numbers.unique(return_inverse=True)
    assert torch.equal(distinct(numbers), expected)
    found, where = distinct_with_places(numbers)
    assert torch.equal(found, expected)
    assert torch.equal(where, place)


@pytest.mark.parametrize("low", [0, 10**15])
def test_a_dense_range_is_not_sorted(low, monkeypatch):
    numbers = low + torch.randint(500, (1000,))
    monkeypatch.setattr(torch.Tensor, "unique", None)
    found, place = distinct_with_places(numbers)
    assert torch.equal(found[place], numbers)
    assert torch.equal(distinct(numbers), found)
