"""A computed number written over a whole buffer, or a part of one."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg


def assigned(s):
    mean = torch.zeros(4).double()
    mean[0:2] = s
    return mean


def filled(s):
    return torch.zeros(4).double().fill_(s)


def filled_in_part(s):
    mean = torch.ones(4).double()
    mean[1:3].fill_(s)
    return mean


def cleared_again(s):
    mean = filled(s)
    mean[0] = 0.5
    mean[2:].zero_()
    return mean


WRITES = (assigned, filled, filled_in_part, cleared_again)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
def test_a_number_written_over_a_buffer_keeps_scopes_and_density(write, verify):
    """Truth: the Gaussians by hand, and which means move with which latents."""

    def number(x):
        return torch.exp(torch.sin(x[0] * 2) + x[1])

    def model():
        with pyro.plate("p", 3):
            x = pyro.sample("x", dist.Normal(torch.zeros(3).double(), 1.0))
        with pyro.plate("q", 4):
            mean = torch.sin(write(number(x)))  # an element stays one factor
            pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.zeros(4).double())

    graph = pg.trace_graph(model, verify=verify)
    x = torch.randn(3).double()
    normal = dist.Normal(torch.zeros((), dtype=torch.float64), 1.0).log_prob
    expected = normal(x).sum() + normal(torch.sin(write(number(x)))).sum()
    torch.testing.assert_close(graph.log_prob({"x": x}), expected)
    torch.testing.assert_close(graph.sum_of_factors({"x": x}), expected)
    moved = write(torch.tensor(1.5)) != write(torch.tensor(2.5))
    assert graph.scopes("y") == [(("x", (0,)), ("x", (1,)))] * int(moved.sum())
