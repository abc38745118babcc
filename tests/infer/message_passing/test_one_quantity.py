"""How factors are known to read their nodes, and what is taken for a noisy or on that ground."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import UnsupportedFactor
from pyrograph.infer.message_passing.discrete.one_quantity import reads_one_quantity

from .builders import log_of_rest, run


def wide(rule, k=40):
    def model():
        with pyro.plate("causes", k):
            z = pyro.sample("z", dist.Bernoulli(torch.full((k,), 0.1)))
        pyro.factor("f", rule(z))

    return model


W = torch.linspace(0.1, 1, 40)
CERTAIN = torch.where(torch.arange(40) % 4 == 0, W, 1.0)


@pytest.mark.parametrize(
    "rule",
    [
        lambda z: torch.sigmoid((W * z).sum(-1) - 3).log(),
        lambda z: -((W * z).sum(-1) ** 2),
        lambda z: log_of_rest(0.1 + (W * z).sum(-1)) - 40.0 * (z.sum(-1) > 39),
        lambda z: log_of_rest(0.1 + (W * z).sum(-1) ** 2),
        lambda z: log_of_rest(0.1 + (W * z).sum(-1)) - 40.0 * ((W * z).sum(-1) > 12),
        lambda z: torch.log1p(-0.9 * (1 - W * z).prod(-1)) + 0.5 * z[..., 3] * z[..., 7],
        lambda z: torch.log1p(-0.9 * (1 - W * z).prod(-1) - 0.05 * (1 - W**2 * z).prod(-1)),
        lambda z: (1 - CERTAIN * z).prod(-1).clamp(0.01, 0.99).log(),
        lambda z: (1 - 0.9 * (1 - CERTAIN * z).prod(-1)).clamp(0.12, 0.99).log(),
    ],
)
def test_what_is_no_noisy_or_is_not_taken_for_one(rule):
    with pytest.raises(UnsupportedFactor, match='factor "f"'):
        run(wide(rule))


def test_what_is_known_by_some_states_alone_is_no_bound():
    """Sorted numbers: a step that is not looked through."""

    def rule(z):
        return torch.log1p(-0.9 * (1 - 0.5 * z.sort(-1).values).prod(-1))

    posterior = run(wide(rule))
    assert posterior.evidence_kind == "estimate"
    assert "no others being tried" in posterior.status
    same = run(wide(lambda z: torch.log1p(-0.9 * (1 - 0.5 * z).prod(-1))))
    assert same.evidence_kind == "exact"
    assert_close(posterior.log_evidence, same.log_evidence)


@pytest.mark.parametrize(
    "rule, is_one",
    [
        (lambda z: (W * z).sum(-1).exp(), True),
        (lambda z: (W * z).sum(-1) / 2 + (z**W).mean(-1) + 3 * z[..., 0], True),
        (lambda z: (z.to(W) @ W - 1).sigmoid().log(), True),
        (lambda z: (1 - W * z).prod(-1) * (2 - z[..., 3]) / (1 + z[..., 5]), True),
        (lambda z: torch.where((z == 1).any(-1), 1.0, 2.0), True),
        (lambda z: log_of_rest(1 + z.sum(-1)) - z.sum(-1), False),  # sums of two names
        (lambda z: log_of_rest(1 + z.sum(-1)), True),
        (lambda z: (W * z).sum(-1) * z[..., 3], False),
        (lambda z: (1 - W * z).prod(-1) + z[..., 3], False),
        (lambda z: (W * z).sum(-1).exp() + z[..., 3], False),
        (lambda z: (W * z).sum(-1).floor(), False),
        (lambda z: (W * z).sum(-1).long() + z[..., 3], False),
        (lambda z: (z.sum(-1) % 2 == 0).double(), False),
        (lambda z: z.sum(-1).eq(17.0).double(), False),
        (lambda z: ((z.sum(-1) > 16.5) & (z.sum(-1) < 17.5)).double(), False),
        (lambda z: z.sort(-1).values.prod(-1), False),
        (lambda z: z[..., :20].prod(-1) + z[..., 20:].prod(-1), False),
        (lambda z: torch.where(z[..., 0] > 0, z.sum(-1), 0.0), False),
        (lambda z: 1 / z.sum(-1).add(1), True),
        (lambda z: 1 / z.sum(-1).add(1) + z[..., 0], False),
    ],
)
def test_functions_of_one_sum_or_product_are_known(rule, is_one):
    graph = pg.trace_graph(wide(lambda z: torch.exp(rule(z))))  # sums would be split
    group = next(group for group in graph.factors if group.arity > 1)
    assert reads_one_quantity(group) == is_one
