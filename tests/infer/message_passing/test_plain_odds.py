"""Odds of binary nodes in plain numbers: where they fit, to the limit, and what is left to logs."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.sweeps.plain import PlainSwept
from pyrograph.infer.message_passing.sweeps.plain_odds import PlainOdds
from tests.infer.message_passing.builders import (
    INF,
    Tables,
    boltzmann,
    grid_edges,
    random_model,
)

MODES = {"progress": False, "tol": None, "damping": 0.0}


def in_double(model):
    return Tables(model.cards, model.scopes, tuple(t.double() for t in model.tables), model.plated)


def hub(strength, pull, count, kind):
    """A node that its own factor pulls one way, and ``count`` neighbours the other way."""
    own = torch.tensor([0.0, pull], dtype=kind)
    leaf = torch.tensor([0.0, -strength], dtype=kind)
    pair = torch.tensor([[0.0, -strength], [-strength, 0.0]], dtype=kind)
    nodes = range(1, count + 1)
    scopes = ((0,), *((k,) for k in nodes), *((0, k) for k in nodes))
    return Tables((2,) * (count + 1), scopes, (own, *[leaf] * count, *[pair] * count), plated=True)


@pytest.mark.parametrize(
    ("kind", "count", "strength", "pull", "fits"),
    [
        (torch.float32, 2, 20.0, 20.0, True),
        (torch.float32, 2, 21.9, 22.0, True),  # 65.8 in all, 66.5 at most
        (torch.float32, 2, 22.5, 22.0, False),
        (torch.float32, 4, 10.0, 40.0, False),
        (torch.float64, 12, 39.0, 60.0, True),  # 528 in all, 532.3 at most
        (torch.float64, 12, 39.0, 468.0, False),  # a near tie
    ],
)
def test_strong_pulls_are_plain_as_far_as_they_fit_and_right_beyond(
    kind, count, strength, pull, fits
):
    model = hub(strength, pull, count, kind)
    start = pg.BP(model, **MODES, dtype=kind).setup().state_dict()["messages"]
    engine = pg.BP(
        model, **MODES, init=start, dtype=kind
    ).setup()  # sweeps, not the exact messages of trees
    for _ in range(4):
        engine.step()
    assert isinstance(engine.iteration.at, PlainSwept) == fits
    posterior, truth = engine.posterior(), in_double(model)
    slack = 20 * torch.finfo(kind).eps * (pull + count * strength)
    assert_close(engine.log_evidence.double(), truth.log_z, rtol=0, atol=slack)
    for i, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief.double(), truth.marginal(i), rtol=slack, atol=1e-30)


def test_single_precision_evidence_of_a_large_grid_is_that_of_double_precision():
    model = random_model((2,) * 40**2, grid_edges(40), 0, plated=True)
    found = []
    for kind in (torch.float32, torch.float64):
        tables = tuple(t.to(kind) for t in model.tables)
        same = Tables(model.cards, model.scopes, tables, plated=True)
        engine = pg.BP(same, **MODES, dtype=kind).setup()
        for _ in range(11):  # evaluates it at the last one
            engine.step()
        assert isinstance(engine.iteration.at, PlainSwept)
        assert engine.log_evidence.dtype == kind
        found.append(engine.log_evidence.double())
    assert_close(*found, rtol=2e-7, atol=0)


@pytest.mark.parametrize("scale", [0.05, 0.1])
def test_single_precision_evidence_does_not_cancel_at_nodes_of_many_factors(scale):
    """The same messages in double precision; 64 factors a node."""
    every = [(i, j) for j in range(65) for i in range(j)]
    model = random_model((2,) * 65, every, 0, scale, plated=True)
    single = Tables(model.cards, model.scopes, tuple(t.float() for t in model.tables), plated=True)
    engine = pg.BP(single, **MODES, dtype=torch.float32).setup()
    for _ in range(20):
        engine.step()
    assert isinstance(engine.iteration.at, PlainSwept)
    exact = pg.BP(in_double(single), **MODES).setup()
    exact.messages = [[m.double() for m in sent] for sent in engine.messages]
    expected = float(exact.log_evidence)
    assert abs(float(engine.log_evidence) - expected) < 4e-7 * abs(expected)


@pytest.mark.parametrize("odds", [20.5, 25.0, 36.0])
def test_odds_beyond_20_keep_the_digits_of_double_precision(odds):
    own = torch.tensor([0.0, odds]).double()
    pair = torch.tensor([[0.0, 0.3], [-0.2, 0.1]]).double()
    model = Tables((2, 2), ((0,), (1,), (0, 1)), (own, own.flip(0), pair))
    posterior = pg.fit(model, infer=pg.BP, progress=False)
    assert posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, model.log_z, rtol=0, atol=1e-13)


def test_messages_that_no_factor_sends_are_left_to_logs_for_a_sweep():
    engine = pg.BP(boltzmann(0), **MODES).setup()
    plain = PlainOdds.of(engine.network)
    for value in (-30.0, 30.0, INF, -INF, torch.nan):
        messages = [[m.clone() for m in sent] for sent in engine.messages]
        messages[0][0][3] = value
        assert plain.start(messages) is None
    messages[0][0][3] = 30.0
    engine.messages = messages
    engine.step()
    assert not isinstance(engine.iteration.at, PlainSwept)
    engine.step()
    assert isinstance(engine.iteration.at, PlainSwept)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_nodes_without_pairs_keep_odds_of_any_size(kind):
    odds = 800.0 if kind == torch.float64 else 110.0
    alone = torch.tensor([0.0, odds], dtype=kind)
    cycle = [(0, 1), (1, 2), (2, 3), (0, 3)]
    pair = torch.tensor([[0.3, -0.3], [-0.3, 0.3]], dtype=kind)
    scopes, tables = ((4,), *cycle), (alone, *[pair] * 4)
    engine = pg.BP(Tables((2,) * 5, scopes, tables), progress=False, dtype=kind)
    posterior = engine.run()
    assert isinstance(engine.iteration.at, PlainSwept)
    assert_close(posterior.marginal("x4").logits, alone.log_softmax(0))
    bethe = odds + 4 * math.log(2 * math.cosh(0.3))  # uniform messages
    assert_close(float(posterior.log_evidence), bethe, rtol=2 * torch.finfo(kind).eps, atol=0)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_the_default_dtype_of_torch_does_not_matter(default):
    torch.set_default_dtype(default)  # put back after every test
    model = random_model((2,) * 9, [(i, (i + 1) % 9) for i in range(9)], 0, plated=True)
    for kind in (torch.float32, torch.float64):
        tables = tuple(t.to(kind) for t in model.tables)
        same = Tables(model.cards, model.scopes, tables, plated=True)
        engine = pg.BP(same, **MODES, dtype=kind).setup()
        engine.step()
        assert isinstance(engine.iteration.at, PlainSwept)
        found = [engine.log_evidence, *engine.messages[0], *engine.beliefs]
        assert all(value.dtype == kind for value in found)
