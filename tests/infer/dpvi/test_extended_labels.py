"""Labels handed over to another program or another engine, against enumeration."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import betaln, gammaln, logsumexp

import pyrograph as pg
from pyrograph.errors import OptionError, ShapeMismatch

D = pg.distributions
CELLS = np.random.default_rng(0).integers(0, 2, (5, 3))
DATA = torch.tensor([0, 0, 1, 2, 1])


def partitions(n: int) -> list[tuple[int, ...]]:
    """Labels by first appearance."""
    found = [()]
    for _ in range(n):
        found = [(*z, c) for z in found for c in range(max(z, default=-1) + 2)]
    return found


def log_crp(z: tuple[int, ...], alpha: float) -> float:
    counts = np.bincount(z)
    total = len(counts) * math.log(alpha) + gammaln(counts).sum()
    return total + gammaln(alpha) - gammaln(alpha + len(z))


def log_symbols(symbols: np.ndarray) -> float:
    """Three symbols, concentration 1/2."""
    counts = np.bincount(symbols, minlength=3)
    rises = gammaln(0.5 + counts) - gammaln(0.5)
    return gammaln(1.5) - gammaln(1.5 + len(symbols)) + rises.sum()


def evidence(symbols: torch.Tensor, alpha: float = 1.0, extra: float | None = None) -> float:
    scores = []
    for z in partitions(len(symbols)):
        heaps = [symbols.numpy()[np.array(z) == c] for c in range(max(z) + 1)]
        scores.append(log_crp(z, alpha) + sum(map(log_symbols, heaps)))
    constant = 0.0 if extra is None else -(extra**2 + math.log(2 * math.pi)) / 2
    return logsumexp(scores) + constant


def model(symbols, alpha=1.0, extra=None):
    z = pyro.sample("z", D.ChineseRestaurant(torch.tensor(alpha), len(symbols)))
    pyro.sample("x", D.CollapsedMixture(z, D.DirichletCategorical(0.5, 3)), obs=symbols)
    if extra is not None:
        pyro.sample("extra", dist.Normal(0.0, 1.0), obs=torch.tensor(extra))


@pytest.mark.parametrize("smoothing", [False, True])
@pytest.mark.parametrize(
    "before, after",
    [
        ((DATA[:3],), (DATA,)),
        ((DATA,), (DATA.clamp_max(1),)),
        ((DATA[:3],), ((DATA + 1) % 2,)),
        ((DATA, 1.0), (DATA, 3.0)),
        ((DATA, 1.0, 0.5), (DATA, 1.0, 2.0)),
        ((DATA[:4], 1.0, 0.5), (DATA, 3.0, 2.0)),
    ],
    ids=["longer", "other data", "longer, other data", "alpha", "constant", "all"],
)
def test_labels_are_scored_by_the_program_they_are_handed_to(before, after, smoothing):
    engine = pg.SequentialDPVI(model, num_particles=60, smoothing=smoothing, progress=False)
    assert float(engine.run(*before).log_evidence) == pytest.approx(evidence(*before), abs=1e-9)
    q = engine.extend(*after)
    assert q.evidence_kind == "exact"
    assert float(q.log_evidence) == pytest.approx(evidence(*after), abs=1e-9)


@pytest.mark.parametrize("num_particles", [7, 60])
def test_labels_handed_over_stand_by_their_new_scores(num_particles):
    engine = pg.SequentialDPVI(model, num_particles=num_particles, progress=False)
    engine.run(DATA)
    symbols = (DATA + 1) % 2
    q = engine.extend(symbols)
    scores = []
    for z in q.particles["z"].tolist():
        heaps = [symbols.numpy()[np.array(z) == c] for c in range(max(z) + 1)]
        scores.append(log_crp(tuple(z), 1.0) + sum(map(log_symbols, heaps)))
    assert scores == sorted(scores, reverse=True)
    assert q.weights.tolist() == pytest.approx(np.exp(scores - logsumexp(scores)), abs=1e-9)


def relation(cells):
    u = pyro.sample("u", D.ChineseRestaurant(1.0, cells.shape[0]))
    v = pyro.sample("v", D.ChineseRestaurant(1.0, cells.shape[1]))
    pyro.sample("cells", D.CollapsedRelation(u, v, D.BetaBernoulli(1.0, 2.0)), obs=cells)


def test_labels_of_a_relation_are_scored_by_the_cells_they_are_handed_to():
    cells = torch.tensor(CELLS[:3], dtype=torch.float64)
    engine = pg.SequentialDPVI(relation, num_particles=100, progress=False)
    engine.run(cells)
    other = 1 - CELLS[:3]
    scores = []
    for u in partitions(3):
        for v in partitions(3):
            total = log_crp(u, 1.0) + log_crp(v, 1.0)
            for r in range(max(u) + 1):
                for c in range(max(v) + 1):
                    block = other[np.array(u) == r][:, np.array(v) == c]
                    total += betaln(1 + block.sum(), 2 + (1 - block).sum()) - betaln(1, 2)
            scores.append(total)
    q = engine.extend(1 - cells)
    assert float(q.log_evidence) == pytest.approx(logsumexp(scores), abs=1e-9)


@pytest.mark.parametrize("smoothing", [False, True])
@pytest.mark.parametrize("num_in", [3, 5])
def test_a_state_of_more_particles_is_cut_to_a_lower_bound(smoothing, num_in):
    many = pg.SequentialDPVI(model, num_particles=60, smoothing=smoothing, progress=False)
    many.setup(DATA)
    for _ in range(num_in):
        many.step()
    few = pg.SequentialDPVI(model, num_particles=3, smoothing=smoothing, progress=False)
    few.setup(DATA)
    few.load_state_dict(many.state_dict())
    q = few.run()
    assert len(q.weights) == 3 and q.evidence_kind == "lower bound"
    best = {
        z: log_crp(z, 1.0)
        + sum(log_symbols(DATA.numpy()[np.array(z) == c]) for c in range(max(z) + 1))
        for z in partitions(5)
    }
    own = logsumexp([best[tuple(z)] for z in q.particles["z"].tolist()])
    assert float(q.log_evidence) == pytest.approx(own, abs=1e-9)
    assert float(q.log_evidence) < evidence(DATA) - 1e-3


@pytest.mark.parametrize("counts", [(1, 2), (2, 1), (3, 2)])
def test_starts_and_proposals_have_as_many_labellings_of_every_site(counts):
    cells = torch.tensor(CELLS[:3], dtype=torch.float64)
    given = {
        name: torch.zeros(m, 3, dtype=torch.long) for name, m in zip("uv", counts, strict=True)
    }
    for options in ({"init": given}, {"proposals": lambda _: given}):
        with pytest.raises(ShapeMismatch, match="M must be the same"):
            pg.DPVI(relation, progress=False, **options).run(cells)


def nodes():
    with pyro.plate("a", 3):
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.5, 0.3])))
    pyro.factor("f", 0.5 * z[2])


@pytest.mark.parametrize(
    "order", [5, [("z", ("a",)), ("z", (1,)), ("z", (2,))], [(["z"], (0,)), ("z", (1,))]]
)
def test_orders_that_are_none_are_refused(order):
    with pytest.raises(OptionError, match="order="):
        pg.SequentialDPVI(nodes, order=order, progress=False).run()


@pytest.mark.parametrize("value", ["a", None, [[0, 0], [1]]], ids=["text", "none", "ragged"])
def test_values_that_are_no_tensors_name_their_site(value):
    for options in ({"init": {"z": value}}, {"proposals": lambda _: {"z": value}}):
        with pytest.raises(OptionError, match='site "z"'):
            pg.DPVI(nodes, progress=False, **options).run()


def two_sites(names, symbols):
    """The same data under labels of their own of each name."""
    for name in names:
        z = pyro.sample(name, D.ChineseRestaurant(torch.tensor(1.0), len(symbols)))
        data = D.CollapsedMixture(z, D.DirichletCategorical(0.5, 3))
        pyro.sample(f"x_{name}", data, obs=symbols)


@pytest.mark.parametrize("after", ["z", "w", "zu"], ids=["left out", "the other", "renamed"])
def test_labels_that_are_in_must_be_in_the_longer_program(after):
    engine = pg.SequentialDPVI(two_sites, num_particles=30, progress=False)
    before = float(engine.run("zw", DATA[:3]).log_evidence)
    with pytest.raises(ShapeMismatch, match=r'labels "[zw]" are in'):
        engine.extend(after, DATA[:3])
    assert float(engine.posterior().log_evidence) == before


def test_labels_of_new_sites_are_taken_in():
    engine = pg.SequentialDPVI(two_sites, num_particles=30, progress=False)
    engine.run("z", DATA[:3])
    q = engine.extend("zw", DATA[:3])
    assert q.evidence_kind == "exact"
    assert float(q.log_evidence) == pytest.approx(2 * evidence(DATA[:3]), abs=1e-6)


@pytest.mark.parametrize("before", [True, False])
def test_labels_and_nodes_are_not_handed_over_to_each_other(before):
    def either(has_labels):
        if has_labels:
            pyro.sample("z", D.ChineseRestaurant(1.0, 3))
        else:
            pyro.sample("a", dist.Categorical(torch.ones(3)))

    engine = pg.SequentialDPVI(either, progress=False)
    engine.run(before)
    with pytest.raises(ShapeMismatch, match=r'site "[az]" is in'):
        engine.extend(not before)
