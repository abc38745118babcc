"""Value and score of a graph, in one go and in parts."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.diagnostics import value_and_score


def chain():
    with pyro.plate("nodes", 6):
        x = pyro.sample("x", dist.Normal(1.0, 2.0))
    pyro.factor("pairs", -(x[1:] * x[:-1]).cos())


@pytest.mark.parametrize("numbers", [1, 100, 10**9])
def test_the_score_does_not_depend_on_how_many_particles_are_taken_at_once(numbers, monkeypatch):
    monkeypatch.setattr("pyrograph.diagnostics.score.MAX_NUMBERS", numbers)
    graph = pg.trace_graph(chain)
    x = torch.randn(7, 6)
    log_p, score = value_and_score(graph, x)

    # log N(x; 1, 2) = -(x - 1)^2 / 8 - log 2 - log(2 pi) / 2, and d cos(ab) / da = -b sin(ab)
    normal = -((x - 1) ** 2) / 8 - torch.tensor(2.0).log() - torch.tensor(2 * torch.pi).log() / 2
    product = x[:, 1:] * x[:, :-1]
    expected = -(x - 1) / 4
    expected[:, 1:] += x[:, :-1] * product.sin()
    expected[:, :-1] += x[:, 1:] * product.sin()
    torch.testing.assert_close(log_p, normal.sum(1) - product.cos().sum(1))
    torch.testing.assert_close(score, expected)
