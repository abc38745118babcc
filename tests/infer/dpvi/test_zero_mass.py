"""Zeros apart from states that are very improbable, against enumeration."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import ZeroMass

ENGINES = (pg.DPVI, pg.SequentialDPVI)
#: Observations of two groups, each of which one state explains.
Y = torch.tensor([0.0, 5.0]).repeat(500)


def far_from_both(scale: float = 1e-4):
    x = pyro.sample("x", dist.Bernoulli(torch.tensor(0.25)))
    with pyro.plate("n", len(Y)):
        pyro.sample("y", dist.Normal(5 * x, scale), obs=Y + 1e-9 * torch.arange(len(Y)))


def log_joints(scale: float) -> list[float]:
    data = (Y + 1e-9 * torch.arange(len(Y))).tolist()
    constant = -len(Y) * (math.log(scale) + math.log(2 * math.pi) / 2)
    return [
        math.log(p) + constant - math.fsum(((y - mean) / scale) ** 2 / 2 for y in data)
        for p, mean in ((0.75, 0.0), (0.25, 5.0))
    ]


@pytest.mark.parametrize("infer", ENGINES)
@pytest.mark.parametrize("scale", [1e-4, 1e-6])
def test_sums_of_improbable_data_are_no_zeros(infer, scale):
    q = infer(far_from_both, progress=False).run(scale)
    assert q.evidence_kind == "exact"
    assert float(q.log_evidence) == pytest.approx(max(log_joints(scale)), rel=1e-12)


@pytest.mark.parametrize("infer", ENGINES)
def test_zeros_beside_improbable_data_are_still_zeros(infer):
    """The state that explains the data better breaks a constraint."""
    best = max(range(2), key=lambda k: log_joints(1e-4)[k])
    allowed = torch.tensor([0.0, 0.0]).index_fill(0, torch.tensor([best]), -torch.inf)

    def model():
        far_from_both()
        x = pyro.sample("w", dist.Bernoulli(0.5))
        pyro.factor("never", torch.tensor([0.0, -torch.inf])[x.long()])

    def other():
        x = pyro.sample("x", dist.Bernoulli(torch.tensor(0.25)))
        pyro.factor("constraint", allowed[x.long()])
        with pyro.plate("n", len(Y)):
            pyro.sample("y", dist.Normal(5 * x, 1e-4), obs=Y + 1e-9 * torch.arange(len(Y)))

    q = infer(model, progress=False).run()
    assert q.marginal("w").probs.tolist() == [1.0, 0.0]
    truth = max(log_joints(1e-4)) + math.log(0.5)
    assert float(q.log_evidence) == pytest.approx(truth, rel=1e-12)
    q = infer(other, progress=False).run()
    assert float(q.marginal("x").probs[best]) == 0
    assert float(q.log_evidence) == pytest.approx(min(log_joints(1e-4)), rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"sum_out": "auto"}, {"sum_out": "x"}], ids=str)
def test_a_node_that_no_state_allows_leaves_no_mass(options):
    first, second = torch.tensor([-torch.inf, 0.0]), torch.tensor([0.0, -torch.inf])

    def model():
        x = pyro.sample("x", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Bernoulli(0.3))
        pyro.factor("first", first[x.long()])
        pyro.factor("second", second[x.long()])

    with pytest.raises(ZeroMass):
        pg.DPVI(model, progress=False, **options).run()


@pytest.mark.parametrize("options", [{}, {"sum_out": "auto"}], ids=str)
def test_a_node_that_no_state_allows_among_too_many_to_look_at_leaves_no_mass(options):
    """Of 2^30 joint states a few are held; that node 7 has none proves it."""
    one = (torch.arange(30) != 7).double()

    def model():
        with pyro.plate("nodes", 30):
            x = pyro.sample("x", dist.Bernoulli(0.5))
            pyro.factor("first", torch.where(x > 0.5, 0.0, -torch.inf))
            pyro.factor("second", torch.where((x > 0.5) & (one < 0.5), -torch.inf, 0.0))
        with pyro.plate("pairs", 29):
            pyro.factor("pair", 0.1 * x[1:] * x[:-1])

    with pytest.raises(ZeroMass):
        pg.DPVI(model, progress=False, **options).run()


@pytest.mark.parametrize("infer", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_least_number_stands_for_a_zero(infer, dtype):
    """As masks are written: logits.masked_fill(mask, torch.finfo(dtype).min)."""
    least = torch.finfo(dtype).min
    pairs = torch.tensor([[0.0, least], [least, 0.5]], dtype=dtype)
    prior = torch.tensor([0.3, 0.7], dtype=dtype)

    def chain():
        z = [pyro.sample(f"z{i}", dist.Categorical(prior)) for i in range(3)]
        for i in range(2):
            pyro.factor(f"pair{i}", pairs[z[i], z[i + 1]])

    q = infer(chain, num_particles=8, progress=False).run()
    truth = math.log(0.3**3 + 0.7**3 * math.e)  # all states alike
    assert q.evidence_kind == "exact"
    assert float(q.log_evidence) == pytest.approx(truth, abs=1e-6)


def test_scores_that_came_from_states_without_mass_keep_their_digits():
    worth = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)

    def all_ones():
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Bernoulli(0.5).mask(False))
            pyro.factor("worth", worth * x)
            pyro.factor("hard", torch.where(x == 1, 0.0, -math.inf))
        pyro.factor("pair", 1e-3 * x[0] * x[1])

    start = {"x": torch.zeros(1, 3)}
    engine = pg.DPVI(all_ones, num_particles=1, moves="flip", init=start, progress=False).setup()
    for _ in range(4):  # a node each
        engine.step()
    assert engine.search.found.x.flatten().tolist() == [1, 1, 1]
    assert float(engine.search.found.score[0]) == pytest.approx(0.601, abs=1e-12)
