"""Zeros that torch's distributions clamp to eps. Truth: the programs' tables, by hand."""

from __future__ import annotations

import copy
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.ops.indexing import Vindex
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.circuits import Hamming, compile_graph, fully_factorised, kdsd
from pyrograph.errors import InvalidCircuit
from tests.circuits.random_circuits import states
from tests.circuits.test_stein import stein_kernel

ROWS = torch.tensor([[0.2, 0.8], [0.0, 1.0]])


def rows():
    a = pyro.sample("a", dist.Categorical(torch.tensor([0.5, 0.5])))
    pyro.sample("b", dist.Categorical(ROWS[a]))


def sure():
    a = pyro.sample("a", dist.Bernoulli(0.5))
    pyro.sample("b", dist.Bernoulli(torch.where(a > 0, 1.0, 0.8)))


def constant():
    pyro.sample("a", dist.Categorical(torch.tensor([0.5, 0.0, 0.5])))
    pyro.sample("b", dist.Bernoulli(0.3))


def double_precision():
    pyro.sample("a", dist.Categorical(torch.tensor([1.0, 0.0], dtype=torch.double)))
    pyro.sample("b", dist.Bernoulli(0.3))


def counts():
    pyro.sample("a", dist.Bernoulli(0.3))
    pyro.sample("b", dist.Binomial(2, torch.tensor(0.0)))


def seen():
    """y is never (1, 0) at a = 1."""
    a = pyro.sample("a", dist.Categorical(torch.tensor([0.5, 0.5])))
    pyro.sample("b", dist.Bernoulli(0.3))
    p = torch.tensor([[0.2, 0.4], [0.3, 1.0]])[a]
    pyro.sample("y", dist.Bernoulli(p).to_event(1), obs=torch.tensor([1.0, 0.0]))


ZEROS = {
    rows: {(1, 0)},
    sure: {(1, 0)},
    constant: {(1, 0), (1, 1)},
    double_precision: {(1, 0), (1, 1)},
    counts: {(0, 1), (0, 2), (1, 1), (1, 2)},
    seen: {(1, 0), (1, 1)},
}


@pytest.mark.parametrize("program", ZEROS, ids=lambda f: f.__name__)
def test_a_target_whose_zeros_are_clamped_is_refused_with_the_state(program):
    p = compile_graph(pg.trace_graph(program))
    q = fully_factorised([torch.ones(c) / c for c in p.cards])
    assert p.clamped_state in ZEROS[program]
    text = r"zero at the state \[" + ", ".join(map(str, p.clamped_state)) + r"\], but for the eps"
    for same in (p, p.normalized(), p.condition({}), copy.deepcopy(p)):
        with pytest.raises(InvalidCircuit, match=text):
            kdsd(q, same)


def test_evidence_may_exclude_what_is_clamped():
    graph = pg.trace_graph(rows)
    assert compile_graph(graph, {("a", ()): 0}).clamped_state is None
    assert compile_graph(graph, {("b", ()): 1}).clamped_state is None
    assert compile_graph(graph, {("a", ()): 1}).clamped_state == (1, 0)


def test_a_published_network_with_a_rule_is_refused(data_root):
    """In asia, "either" is the or of "lung" and "tub"."""
    network = pg.datasets.bayesian_network("asia")

    def program():
        value = {}
        for name in network.names:
            row = Vindex(network.tables[name])[tuple(value[u] for u in network.parents[name])]
            value[name] = pyro.sample(name, dist.Categorical(row))

    p = compile_graph(pg.trace_graph(program))
    value = dict(zip(network.names, p.clamped_state, strict=True))
    entries = [
        float(network.tables[name][(*(value[u] for u in network.parents[name]), value[name])])
        for name in network.names
    ]
    assert math.prod(entries) == 0
    with pytest.raises(InvalidCircuit, match="zero at the state"):
        kdsd(p, p)


SMALL = {
    "probabilities": (dist.Categorical(torch.tensor([1e-6, 1 - 1e-6])), [1e-6, 1 - 1e-6]),
    "logits": (dist.Categorical(logits=torch.tensor([0.0, math.log(1e-12)])), [1.0, 1e-12]),
    "a factor": (None, [1.0, 1.1 * torch.finfo(torch.float32).eps]),
}


@pytest.mark.parametrize("name", SMALL)
def test_probabilities_that_are_small_are_served(name):
    fn, first = SMALL[name]
    table = torch.tensor([[0.2, 0.8], [1e-5, 1 - 1e-5]], dtype=torch.double)

    def program():
        if fn is None:
            a = pyro.sample("a", dist.Categorical(logits=torch.zeros(2)))
            pyro.factor("small", a * math.log(first[1]) * torch.ones(()))
        else:
            a = pyro.sample("a", fn)
        pyro.sample("b", dist.Categorical(table[a]))

    p = compile_graph(pg.trace_graph(program))
    truth = torch.tensor(first, dtype=torch.double)[:, None] * table
    assert p.clamped_state is None
    q = torch.tensor([0.6, 0.4], dtype=torch.double)
    found = kdsd(fully_factorised([q, q]), p)
    x = states([2, 2])

    class Target:
        """What the reference asks of p."""

        log_prob = staticmethod(lambda x: truth[x[:, 0].long(), x[:, 1].long()].log())

    weights = q[x[:, 0].long()] * q[x[:, 1].long()]
    expected = weights @ stein_kernel(Target, Hamming(), [2, 2]) @ weights
    assert_close(found, expected, rtol=1e-5, atol=0)
