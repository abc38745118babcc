"""Priors and relations with parameters in single precision, against products of plain factors.

The truth is made of the urns' and the cells' factors, one draw after the other, in double
precision: nothing in it cancels.
"""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyrograph.distributions import (
    BetaBernoulli,
    ChineseRestaurant,
    ChineseRestaurantFranchise,
    CollapsedRelation,
)
from tests.distributions.partitions import all_partitions, table_urn

#: The same number in single and in double precision.
TENTH = float(np.float32(0.1))


@pytest.mark.parametrize("alpha", [TENTH, 1.0, 64.0])
@pytest.mark.parametrize("num_clusters", [1, 3])
def test_partitions_of_many_elements_keep_their_digits(alpha, num_clusters):
    n = 30_000
    z = torch.arange(n) % num_clusters
    steps = [np.log(np.arange(1, size)).sum() for size in z.bincount().numpy()]
    truth = sum(steps) + num_clusters * math.log(alpha) - np.log(alpha + np.arange(n)).sum()
    restaurant = ChineseRestaurant(torch.tensor(alpha, dtype=torch.float32), n)
    found = restaurant.log_prob(z)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(truth, rel=1e-6)
    incremental = restaurant.incremental(z.unsqueeze(0)).log_prob()
    assert incremental.dtype == torch.float32
    assert float(incremental) == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize(
    "gamma, dtype", [(1e4, torch.float32), (1e7, torch.float32), (1e12, torch.float64)]
)
def test_franchises_of_many_states_keep_their_digits(gamma, dtype):
    z = all_partitions(4)
    alpha = torch.tensor(0.5, dtype=dtype)
    franchise = ChineseRestaurantFranchise(alpha, torch.tensor(gamma, dtype=dtype), 4)
    truth = torch.tensor([math.log(table_urn(tuple(row), 0.5, gamma)) for row in z.tolist()])
    found = franchise.log_prob(z)
    assert found.dtype == dtype
    assert_close(found.double(), truth.double(), rtol=1e-6, atol=1e-6)
    assert_close(franchise.incremental(z).log_prob(), found)


def in_single(a):
    a = torch.tensor(a, dtype=torch.float32)
    return BetaBernoulli(a, a)


def log_cells(x, rows, columns, a, b):
    """log of the product of the predictive probabilities, entry by entry of each cell."""
    total = 0.0
    for r in np.unique(rows):
        for c in np.unique(columns):
            cell = x[np.ix_(rows == r, columns == c)]
            one, zero = np.arange(cell.sum()), np.arange((1 - cell).sum())
            total += np.log(a + one).sum() + np.log(b + zero).sum()
            total -= np.log(a + b + np.arange(cell.size)).sum()
    return total


@pytest.mark.parametrize("a, n", [(1e6, 10), (1.0, 300)], ids=["strong prior", "large cells"])
def test_relations_keep_their_digits(a, n):
    x = np.zeros((n, n), dtype=int)
    x[0, :3] = 1
    rows, columns = np.arange(n) % 2, np.zeros(n, dtype=int)
    truth = log_cells(x, rows, columns, a, a)
    u, v = torch.tensor(rows), torch.tensor(columns)
    relation = CollapsedRelation(u, v, in_single(a))
    data = torch.tensor(x, dtype=torch.float32)
    found = relation.log_prob(data)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(truth, rel=1e-6)
    state = relation.incremental(u.unsqueeze(0), v.unsqueeze(0), data)
    assert float(state.rows.log_prob()) == pytest.approx(truth, rel=1e-6)
    state.rows.take_out(1)
    scores = state.rows.scores(1)
    assert scores.dtype == torch.float32
    kept = np.arange(n) != 1
    without = log_cells(x[kept], rows[kept], columns, a, a)
    assert float(scores[0, 1]) == pytest.approx(truth - without, rel=1e-6)


def test_relations_of_more_entries_than_single_precision_counts():
    n = 4097  # 2^24 + 2^13 + 1 entries
    z = torch.zeros(1, n, dtype=torch.int64)
    relation = CollapsedRelation(z[0], z[0], in_single(1.0))
    state = relation.incremental(z, z, torch.zeros(n, n, dtype=torch.float32))
    # the probability of zeros alone is 1 / (N + 1)
    assert float(state.rows.log_prob()) == pytest.approx(-math.log(n * n + 1), rel=1e-6)
