"""Distinct numbers by a mask or by a sort, and distinct rows. Truth: torch.unique."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrograph.trace.distinct import distinct, distinct_rows, distinct_with_places, row_numbers

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


@given(
    st.integers(0, 4),
    st.sampled_from([2, 7, 2**40]),
    st.lists(st.integers(0, 2**39), min_size=0, max_size=60),
)
def test_row_numbers_are_those_of_distinct_rows_in_order(width, most, numbers):
    count = len(numbers) // width if width else 5
    rows = torch.tensor(numbers[: count * width], dtype=torch.int64).view(count, width) % most
    found = row_numbers(rows)
    expected = rows.unique(dim=0, return_inverse=True)[1] if count and width else 0 * found
    assert torch.equal(found, expected)
    differ, number = distinct_rows(rows)
    assert torch.equal(number, expected)
    assert torch.equal(differ[number], rows)
    assert len(differ) == len(number.unique())


def test_rows_whose_ranges_together_are_beyond_whole_numbers_stay_apart():
    big = 2**33
    rows = torch.tensor([[0, 0], [2**31, 0], [big - 1, big - 1], [0, 0], [2**32, 0]])
    assert torch.equal(row_numbers(rows), rows.unique(dim=0, return_inverse=True)[1])
