"""Value and score of a graph, in one go and in parts."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.diagnostics import value_and_score
from pyrograph.errors import InferenceError


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


def scaled(y):
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(y * x, 1.0), obs=y)


def test_the_score_is_the_same_in_inference_mode():
    y, x = torch.tensor(3.0), torch.randn(5, 1)
    expected = -x - y * (y * x - y)
    graph = pg.trace_graph(scaled, (y,))
    with torch.inference_mode():
        made_inside, data = x.clone(), y.clone()
        for point in (x, made_inside):
            torch.testing.assert_close(value_and_score(graph, point)[1], expected)
    torch.testing.assert_close(value_and_score(graph, made_inside)[1], expected)
    torch.testing.assert_close(value_and_score(pg.trace_graph(scaled, (data,)), x)[1], expected)


def test_a_graph_read_in_inference_mode_is_refused_and_not_taken_for_flat():
    with torch.inference_mode():
        graph = pg.trace_graph(scaled, (torch.tensor(3.0),))
        with pytest.raises(InferenceError, match=r"inference_mode.*trace_graph outside"):
            value_and_score(graph, torch.randn(5, 1))
    with pytest.raises(InferenceError, match=r"inference_mode.*trace_graph outside"):
        value_and_score(graph, torch.randn(5, 1))


def test_a_density_in_steps_has_score_zero():
    graph = pg.trace_graph(lambda: pyro.sample("x", dist.Uniform(0.0, 4.0)))
    log_p, score = value_and_score(graph, torch.rand(3, 1))
    torch.testing.assert_close(log_p, torch.full((3,), -torch.tensor(4.0).log()))
    assert not score.any()
