"""A computed number written over a whole buffer, or a part of one."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.trace.record import recording


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


# ---------------------------------------------------------------------- writes and reads in turn
def kept_ids(model):
    """Numbers in the storages that the steps of a program keep."""
    with recording() as recorder:
        model(recorder.leaf("x", torch.randn(2)))
    storages = {}
    for step in recorder.steps:
        for operand in step.operands:
            if isinstance(operand.ids, torch.Tensor):
                storage = operand.ids.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes() // 8
    return sum(storages.values())


@pytest.mark.parametrize("read", ["one number", "a few"])
def test_what_a_loop_of_writes_and_reads_keeps_grows_with_its_length(read):
    def loop(n):
        def model(x):
            buffer = torch.zeros(n)
            for t in range(n):
                buffer[t] = x[0] * 2
                (buffer[t] if read == "one number" else buffer[max(t - 3, 0) : t + 1]).exp()

        return model

    kept = [kept_ids(loop(n)) for n in (100, 400)]
    assert kept[0] > 100
    assert kept[1] < 5 * kept[0]


def moved_within(x):
    """Reads of the whole buffer, which steps keep, between writes; and a write of its own parts."""
    buffer = torch.zeros(6).double()
    buffer[:3] = x
    first = buffer.exp()
    buffer[3] = first[0] * x[1]
    second = buffer.sin()
    buffer[1:3] = buffer[0:2].clone()
    buffer[4:] = buffer[:2]
    buffer[5] = 2.0
    return torch.cat([first, second, buffer.tanh()])


def test_numbers_read_before_a_write_are_those_of_then():
    """Truth: the program itself, and for the scopes which numbers move."""

    def model():
        with pyro.plate("p", 3):
            x = pyro.sample("x", dist.Normal(torch.zeros(3).double(), 1.0))
        with pyro.plate("q", 18):
            y = torch.zeros(18).double()
            pyro.sample("y", dist.Normal(moved_within(x).cos(), 1.0), obs=y)

    graph = pg.trace_graph(model)
    x = torch.randn(3).double()
    normal = dist.Normal(torch.zeros((), dtype=torch.float64), 1.0).log_prob
    expected = normal(x).sum() + normal(moved_within(x).cos()).sum()
    torch.testing.assert_close(graph.sum_of_factors({"x": x}), expected)
    steps = torch.eye(3).double()
    depends = torch.stack([moved_within(x + step) != moved_within(x) for step in steps], 1)
    scopes = [{("x", (k,)) for k in row.nonzero()[:, 0].tolist()} for row in depends]
    assert [set(scope) for scope in graph.scopes("y")] == [scope for scope in scopes if scope]
