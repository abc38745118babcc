"""Which numbers reach a local function in each state, against those known by hand."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

import pyrograph as pg
from pyrograph.trace.forms.reach import leaves_that_reach

WIDTH, STATES = 4, 3


def reach_of(
    function: Callable[[Tensor, Tensor], Tensor], differentiable: bool = False
) -> list[list[int]]:
    """Of ``function(x, z)`` at four numbers, which ones reach it in every state of z."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0).expand([WIDTH]).to_event(1).mask(False))
        z = pyro.sample("z", dist.Categorical(torch.ones(STATES)))
        pyro.factor("f", function(x, z))

    group = next(
        g for g in pg.trace_graph(model, differentiable=differentiable).factors if g.name == "f"
    )
    given: list[Tensor | None] = [
        None if s.name == "x" else torch.arange(3.0)[None] for s in group.slots
    ]
    k = given.index(None)
    found = leaves_that_reach(group.program, given)
    assert all((f is None) == (g is not None) for f, g in zip(found, given, strict=True))
    return [row.nonzero().flatten().tolist() for row in found[k].t()]


def gate(x, z):
    return torch.where(z == 0, x[0].sigmoid(), torch.where(z == 1, x[1] * x[2], 0.5))


#: Functions, and the numbers that each state reads.
KNOWN = {
    "an entry": (lambda x, z: x[z] ** 2, [[0], [1], [2]]),
    "an entry of an image": (lambda x, z: x.sigmoid()[z].log(), [[0], [1], [2]]),
    "an entry by a sum": (lambda x, z: x.exp().cos()[z + 1], [[1], [2], [3]]),
    "entries, and one besides": (lambda x, z: x[3] * x.tanh()[z], [[0, 3], [1, 3], [2, 3]]),
    "switches": (gate, [[0], [1, 2], []]),
    "a cumulative sum": (lambda x, z: x.sigmoid().cumsum(0)[z], [[0], [0, 1], [0, 1, 2]]),
    "a softmax": (lambda x, z: x.softmax(0)[z], [[0, 1, 2, 3]] * 3),
    "an indicator": (lambda x, z: (z == 2) * x[0].sin() + x[1].cos(), [[1], [1], [0, 1]]),
    "one hot": (
        lambda x, z: torch.nn.functional.one_hot(z.long(), WIDTH).to(x.dtype) @ x.sigmoid(),
        [[0], [1], [2]],
    ),
    "a threshold far away": (lambda x, z: (x.sigmoid() > 1.0).float()[z], [[0], [1], [2]]),
    "a difference with itself": (lambda x, z: (x[z] - x[z]).exp(), [[0], [1], [2]]),
    "a condition that is latent": (lambda x, z: torch.where(x[3] > z, x[0], x[1]), [[0, 1, 3]] * 3),
}


@pytest.mark.parametrize("name", KNOWN)
def test_states_are_reached_by_what_they_read(name):
    function, expected = KNOWN[name]
    assert reach_of(function) == expected


def test_a_constant_that_may_change_is_no_zero():
    closed = torch.zeros((), requires_grad=True)
    expected = [[0, 1], [0, 2], [0, 3]]
    found = reach_of(lambda x, z: closed * x[0].sin() + x.sigmoid()[z + 1], differentiable=True)
    assert found == expected


def test_long_chains_are_reached_from_their_beginning():
    def doubled(x, z):
        value = x.sigmoid()[z]
        for _ in range(1100):  # weights overflow
            value = value * value
        return value

    assert reach_of(doubled) == [[0], [1], [2]]
