"""What factors read of wide nodes: entries looked up are what matrix products would find."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.beliefs import Gaussian
from pyrograph.infer.message_passing.nodes.basis import Combinations, Entries


def positive_definite(*size):
    root = torch.randn(*size, dtype=torch.float64)
    return root @ root.mT + 0.1 * torch.eye(size[-1], dtype=torch.float64)


@pytest.fixture(params=[1, 4], ids=["one node", "four nodes"])
def scene(request):
    """Two ways to read the same entries, the nodes' beliefs, and the factors' rows."""
    torch.manual_seed(3)
    entries = Entries(torch.tensor([[0, 4], [3, 1], [1, 3], [4, 2], [0, 4]]), 5)
    like = torch.zeros((), dtype=torch.float64)
    belief = Gaussian(
        positive_definite(request.param, 5, 5), torch.randn(request.param, 5, dtype=torch.float64)
    )
    rows = torch.arange(5) % request.param
    return entries, Combinations(entries.rows(like)), belief, rows


def test_moments_of_entries(scene):
    entries, combinations, belief, rows = scene
    for found, expected in zip(
        entries.moments(belief, rows), combinations.moments(belief, rows), strict=True
    ):
        assert_close(found, expected)


def test_sites_of_entries_are_added_where_they_belong_and_twice_where_two_do(scene):
    entries, combinations, belief, rows = scene
    site = Gaussian(positive_definite(5, 2, 2), torch.randn(5, 2, dtype=torch.float64))
    found, expected = (way.added(belief, rows, site) for way in (entries, combinations))
    assert_close(found.precision, expected.precision)
    assert_close(found.shift, expected.shift)


def test_entries_of_values_and_of_matrices_with_batches_in_front(scene):
    entries, combinations, _, _ = scene
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    assert_close(entries.of(x), combinations.of(x))
    matrix = torch.randn(2, 3, 5, 5, 4, dtype=torch.float64)
    assert_close(entries.times(matrix), combinations.times(matrix))


def points_of_a_process(kernel, y):
    f = pyro.sample("f", dist.MultivariateNormal(torch.zeros_like(y), kernel))
    with pyro.plate("points", len(y)):
        pyro.factor("y", torch.special.log_ndtr(f * (2 * y - 1)))


def test_factors_on_single_points_of_a_process_keep_their_columns_alone():
    x = torch.linspace(-1, 1, 30, dtype=torch.float64)
    kernel = torch.exp(-((x[:, None] - x) ** 2)) + 1e-3 * torch.eye(30)
    engine = pg.EP(points_of_a_process, progress=False).setup(kernel, (x > 0).double())
    (block,) = engine.network.blocks
    (basis,) = block.bases
    assert isinstance(basis, Entries)
    assert basis.columns.flatten().tolist() == list(range(30))
