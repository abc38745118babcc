"""Supports of products of marginals within a table that has zeros, against going through all."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from pyrograph.divergences import Discrete, FullyFactorised, alpha_project, scale_free_divergence
from pyrograph.divergences.boxes import BOXES, grown_boxes, heaviest_boxes

ZERO = -math.inf


def table(cards, seed):
    generator = torch.Generator().manual_seed(seed)
    log_mass = torch.randn(cards, generator=generator)
    log_mass[torch.rand(cards, generator=generator) < 0.3] = ZERO
    log_mass[(0,) * len(cards)] = 0.5
    return log_mass


def every_box(log_mass):
    """Those that cannot be widened, heaviest first, as tuples of states."""
    choices = [
        [states for r in range(1, c + 1) for states in itertools.combinations(range(c), r)]
        for c in log_mass.shape
    ]
    found = {}
    for box in itertools.product(*choices):
        inside = log_mass[torch.meshgrid(*map(torch.tensor, box), indexing="ij")]
        if bool((inside > ZERO).all()):
            found[box] = float(inside.exp().sum())

    def holds(wide, narrow):
        return wide != narrow and all(set(n) <= set(w) for w, n in zip(wide, narrow))

    widest = [box for box in found if not any(holds(other, box) for other in found)]
    return sorted(widest, key=lambda box: -found[box])


def as_states(masks, cards):
    return [
        tuple(tuple(part.nonzero()[:, 0].tolist()) for part in mask.split(cards)) for mask in masks
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cards", [(4,), (2, 3), (3, 4, 2), (2, 2, 2, 2)], ids=str)
def test_the_heaviest_boxes_are_found_in_order(cards, seed):
    log_mass = table(cards, seed)
    truth = every_box(log_mass)
    assert as_states(heaviest_boxes(log_mass), cards) == truth[:BOXES]
    for grown in as_states(grown_boxes(log_mass), cards):
        assert grown in truth


@pytest.mark.parametrize("method", ["fixed point", "direct"])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_support_of_the_minimum_does_not_hang_on_the_order_of_variables(method, transposed):
    """At alpha = 0 the best q on one row is p itself there, and R = -log p(row)."""
    log_mass = torch.tensor(
        [[ZERO, 0.4383, 0.0394], [-1.1895, -0.5015, ZERO], [0.1522, ZERO, -0.2284]]
    )
    truth = -math.log((math.exp(0.4383) + math.exp(0.0394)) / float(log_mass.exp().sum()))
    p = Discrete(log_mass.T.contiguous() if transposed else log_mass, 2)
    q = alpha_project(p, FullyFactorised(), 0.0, method)
    assert_close(float(scale_free_divergence(p, q.joint(), 0.0)), truth, rtol=1e-6, atol=0)


def test_tables_of_a_batch_have_supports_of_their_own():
    """A diagonal of two states, and a table whose only zero is one corner."""
    tables = [[[0.0, ZERO], [ZERO, -1.0]], [[-1.0, 0.0], [0.5, ZERO]]]
    batch = Discrete(torch.tensor(tables), 2)
    together = alpha_project(batch, FullyFactorised(), -1.0)
    for i in range(2):
        alone = alpha_project(Discrete(torch.tensor(tables[i]), 2), FullyFactorised(), -1.0)
        for one, other in zip(together.log_marginals, alone.log_marginals):
            assert_close(one[i].exp(), other.exp(), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:alpha")
def test_wide_tables_with_zeros_are_projected_all_the_same():
    log_mass = table((14, 14), 0)
    q = alpha_project(Discrete(log_mass, 2), FullyFactorised(), 0.0, max_steps=50)
    rows, columns = ((m > ZERO).nonzero()[:, 0] for m in q.log_marginals)
    assert bool((log_mass[rows][:, columns] > ZERO).all())
