"""Numbers added up by bins of any sizes, and empty parts of latents."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.trace import operands

BINS = {
    "one": [0] * 9,
    "one of many": [4] * 9,
    "uneven": [2, 0, 2, 2, 5, 2, 0, 2, 3],
    "each its own": [6, 5, 4, 3, 2, 1, 0, 7, 8],
}


@pytest.mark.parametrize("name", BINS)
def test_every_bin_reads_what_is_added_to_it(name):
    """Truth: the sums by Python's loops."""
    where = BINS[name]

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(9), 1.0))
        total = torch.ones(10).index_add(0, torch.tensor(where), x, alpha=2.0)
        pyro.factor("f", total.cos())  # no sum, so that an element stays one factor

    graph = pg.trace_graph(model)
    members = [[k for k, b in enumerate(where) if b == row] for row in range(10)]
    assert graph.scopes("f") == [tuple(("x", (k,)) for k in mine) for mine in members if mine]
    x = torch.randn(5, 9)
    totals = torch.stack([1 + 2 * sum((x[:, k] for k in mine), 0 * x[:, 0]) for mine in members])
    prior = dist.Normal(0.0, 1.0).log_prob(x).sum(1)
    assert_close(graph.log_prob({"x": x}), prior + totals.cos().sum(0))


def test_a_full_bin_among_many_reads_no_more_than_is_added(monkeypatch):
    count = 1000
    where = torch.arange(count)
    where[: count // 2] = 0
    monkeypatch.setattr(operands, "MAX_READS", 2 * count)

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(count), 1.0).to_event(1))
        total = torch.zeros(count).index_add(0, where, x)
        pyro.factor("f", -total[0].square())

    x = torch.randn(2, count)
    truth = dist.Normal(0.0, 1.0).log_prob(x).sum(1) - x[:, : count // 2].sum(1).square()
    assert_close(pg.trace_graph(model).log_prob({"x": x}), truth)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_sums_have_the_dtype_of_what_they_are_added_to(dtype):
    seen = []

    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(3)).expand([4]).to_event(1))
        where = torch.tensor([0, 0, 2, 0])
        total = torch.zeros(3, dtype=dtype).index_add(0, where, z.to(dtype))
        seen.append(total.dtype)
        pyro.factor("f", total.double().sqrt().sum())

    z = torch.tensor([2, 1, 2, 1])
    truth = torch.tensor(2 + math.sqrt(2) - 4 * math.log(3))
    assert_close(pg.trace_graph(model).log_prob({"z": z}), truth)
    assert set(seen) == {dtype}


NOTHING = torch.zeros(0, dtype=torch.int64)
EMPTY = {
    "converted": lambda x: x[:0].float(),
    "rounded": lambda x: x[:0].long(),
    "masked and converted": lambda x: x[torch.zeros(3, dtype=torch.bool)].float(),
    "added to no bins": lambda x: torch.zeros(0).index_add(0, NOTHING, x[:0]),
    "added to bins": lambda x: torch.zeros(2).scatter_add(0, NOTHING, x[:0]),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_part_of_a_latent_adds_nothing(name):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.factor("f", EMPTY[name](x).sum() - x.square().sum())

    x = torch.randn(4, 3)
    truth = dist.Normal(0.0, 1.0).log_prob(x).sum(1) - x.square().sum(1)
    assert_close(pg.trace_graph(model).log_prob({"x": x}), truth)


def test_a_sum_of_whole_numbers_is_none_of_the_numbers_that_it_rounds():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 4.0).mask(False))
        pyro.factor("f", -x.sum(0, dtype=torch.int64).double() * x[0])

    graph = pg.trace_graph(model)
    x = torch.tensor([1.7, -2.4, 3.9])
    expected = torch.tensor(-(1 - 2 + 3) * 1.7)
    torch.testing.assert_close(graph.log_prob({"x": x}), expected)
    torch.testing.assert_close(graph.sum_of_factors({"x": x}), expected)
