"""How many sums over single nodes factors are known to read, and sums over counts by a tree."""

import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.discrete.count_trees import sums_by_tree
from pyrograph.infer.message_passing.discrete.sums_read import sums_read

W = torch.linspace(0.1, 1, 12)


def group_of(rule):
    def model():
        with pyro.plate("nodes", 12):
            z = pyro.sample("z", dist.Bernoulli(torch.full((12,), 0.1)))
        pyro.factor("f", torch.exp(rule(z)))  # sums would be split

    return next(group for group in pg.trace_graph(model).factors if group.arity > 1)


@pytest.mark.parametrize(
    "rule, count",
    [
        (lambda z: z.sum(-1) ** 2, 1),
        (lambda z: (W.to(z) * z).sum(-1) ** 2, 1),
        (lambda z: (2 * z[..., :6].sum(-1) - z[..., 6:].sum(-1)) ** 2, 2),
        (lambda z: z.sum(-1) ** 2 * z[..., 3], 2),
        (lambda z: (z == 1).any(-1) * 1.0, 1),
        (lambda z: z.sum(-1).floor() + (z.mean(-1) > 0.5), 2),
        (lambda z: z.prod(-1), 12),
        (lambda z: z.sort(-1).values.sum(-1), 12),
        (lambda z: (z[..., 1:] * z[..., :-1]).sum(-1), 12),
    ],
)
def test_numbers_read(rule, count):
    found = sums_read(group_of(rule), scales=False)
    assert found.is_read.sum() == count


def test_numbers_are_those_that_the_steps_come_by():
    group = group_of(lambda z: (2 * z[..., :6].sum(-1) - z[..., 6:].sum(-1)) ** 2)
    z = torch.rand(12, 5)
    first, second = 2 * z[:6].sum(0), -z[6:].sum(0)
    found = sums_read(group, scales=True)
    assert_close(found.program(list(z.unsqueeze(1)))[found.place[0]], (first + second).unsqueeze(0))
    assert found.is_smooth


@pytest.mark.parametrize("k", [1, 2, 5, 8, 11])
def test_sums_by_a_tree_are_those_over_all_states(k):
    torch.manual_seed(0)
    nodes, weights = torch.rand(3, k, 2), torch.randint(3, (3, k, 2))
    g = torch.rand(3, 2 * k + 1)
    found, total = torch.zeros(3, k, 2), torch.zeros(3)
    factor, node = torch.arange(3), torch.arange(k)
    for state in itertools.product(range(2), repeat=k):
        place = torch.tensor(state)
        p, count = nodes[:, node, place], weights[:, node, place].sum(1)
        total += p.prod(1) * g[factor, count]
        for i, x in enumerate(state):
            found[:, i, x] += p[:, node != i].prod(1) * g[factor, count]
    ours = sums_by_tree(nodes, weights, g)
    assert_close(ours, (found, total))
