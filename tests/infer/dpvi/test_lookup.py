"""Rows and columns against plain indexing, hashes bit by bit."""

import pytest
import torch

from pyrograph.infer.dpvi.lookup import columns_at, rows_at
from pyrograph.infer.dpvi.particles import Hash


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_rows_are_those_of_an_index(width, dtype):
    table = (100 * torch.randn(7, width, dtype=torch.float64)).to(dtype)
    rows = torch.randint(0, 7, (4, 5))
    assert torch.equal(rows_at(table, rows), table[rows])


def test_rows_of_two_may_be_infinite():
    table = torch.tensor([[-torch.inf, 1.0], [torch.inf, -0.0]], dtype=torch.float64)
    rows = torch.tensor([[1, 0], [0, 0]])
    assert torch.equal(rows_at(table, rows), table[rows])


def test_no_rows():
    table = torch.randn(3, 2, dtype=torch.float64)
    assert rows_at(table, torch.zeros(0, 4, dtype=torch.int64)).shape == (0, 4, 2)


@pytest.mark.parametrize("count", [0, 1, 6])
def test_columns_are_those_of_an_index(count):
    table, columns = torch.randint(0, 9, (5, 3)), torch.randint(0, 3, (count,))
    assert torch.equal(columns_at(table, columns), table[:, columns])


def test_hashes_are_sums_of_bits():
    """Whatever the bits are as floating-point numbers, NaN among them."""
    cards = torch.tensor([3, 2, 4])
    hashes = Hash(cards)
    hashes.bits[0] = torch.tensor([0x7FF0000000000001, -1])  # NaN, signalling and quiet
    x = torch.tensor([[0, 2], [1, 0], [3, 1]])
    want = hashes.bits[[0, 4, 8]].sum(0), hashes.bits[[2, 3, 6]].sum(0)
    assert torch.equal(hashes(x), torch.stack(want, 1))
