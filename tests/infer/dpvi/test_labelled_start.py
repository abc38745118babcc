"""Chains that cool, by which DPVI of relations starts."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch
from scipy import stats

import pyrograph as pg
from pyrograph.errors import OptionError
from pyrograph.infer.dpvi.labellings.labelled_start import CHAINS, _drawn, cooled
from pyrograph.infer.dpvi.labellings.reading import read_labelled
from tests.distributions.partitions import all_partitions, restaurant_urn

D = pg.distributions


def relation(r):
    one = torch.ones((), dtype=r.dtype)
    rows = pyro.sample("rows", D.ChineseRestaurant(one, r.shape[0]))
    columns = pyro.sample("columns", D.ChineseRestaurant(one, r.shape[1]))
    pyro.sample("r", D.CollapsedRelation(rows, columns, D.BetaBernoulli(one, one)), obs=r)


def planted(seed: int, n: int = 30, m: int = 40, dtype: torch.dtype = torch.float64):
    """A relation of 5 by 6 clusters, 30 % of it held out, and its labels."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, 5, n), rng.integers(0, 6, m)
    r = (rng.random((n, m)) < rng.random((5, 6))[rows][:, columns]).astype(float)
    r[rng.random((n, m)) < 0.3] = np.nan
    labels = {"rows": torch.tensor(rows)[None], "columns": torch.tensor(columns)[None]}
    return torch.tensor(r, dtype=dtype), labels


@pytest.mark.parametrize("seed", [2, 3])
def test_relations_reach_what_a_start_from_the_truth_reaches(seed):
    # passes of filtering in their place end 24 and 16 below
    r, truth = planted(seed)
    pyro.set_rng_seed(seed)
    found = pg.DPVI(relation, num_particles=10, progress=False).run(r)
    known = pg.DPVI(relation, num_particles=10, progress=False, init=truth).run(r)
    assert float(found.log_evidence) > float(known.log_evidence) - 2


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_labels_are_drawn_at_their_temperature(temperature):
    score = torch.tensor([0.3, -1.0, -torch.inf, 1.2], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    drawn = _drawn(score.expand(20_000, 4), temperature, generator)
    expected = 20_000 * (score / temperature).softmax(0)
    counts = drawn.bincount(minlength=4)
    assert counts[2] == 0
    possible = [0, 1, 3]
    assert stats.chisquare(counts[possible], expected[possible]).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chains_end_in_complete_labellings_with_their_scores(dtype):
    r, _ = planted(0, 8, 9, dtype)
    program = read_labelled(relation, (r,), {})
    found = cooled(program, torch.Generator().manual_seed(0))
    labels = found.labels()
    assert {name: tuple(z.shape) for name, z in labels.items()} == {
        "rows": (CHAINS, 8),
        "columns": (CHAINS, 9),
    }
    assert all(bool((z >= 0).all()) for z in labels.values())
    torch.testing.assert_close(found.score, program.log_prob(labels).double())


def test_the_same_seed_starts_the_same_run():
    r, _ = planted(1, 10, 12)

    def run():
        pyro.set_rng_seed(3)
        return pg.DPVI(relation, num_particles=4, progress=False).run(r)

    one, two = run(), run()
    assert torch.equal(one.particles["rows"], two.particles["rows"])
    assert torch.equal(one.log_weights, two.log_weights)


def points(n: int):
    z = pyro.sample("z", D.ChineseRestaurant(0.7, n))
    data = torch.arange(n) % 2
    pyro.sample("x", D.CollapsedMixture(z, D.DirichletCategorical(1.0, 2)), obs=data)


def test_draws_of_a_posterior_start_engines_of_more_particles_than_memory():
    first = pg.DPVI(points, num_particles=3, progress=False).run(4)
    q = pg.DPVI(points, num_particles=10**15, progress=False, init=first).run(4)
    assert q.evidence_kind == "exact"
    total = 0.0
    for z in all_partitions(4).tolist():
        p = restaurant_urn(z, 0.7)
        for t in range(4):  # data 0, 1, 0, 1, by their predictive probabilities in each cluster
            own = [s % 2 for s in range(t) if z[s] == z[t]]
            p *= (1 + own.count(t % 2)) / (2 + len(own))
        total += p
    assert float(q.log_evidence) == pytest.approx(np.log(total), abs=1e-12)


@pytest.mark.parametrize(
    "change",
    [lambda z: z.to(torch.complex64), torch.Tensor.to_sparse],
    ids=["complex", "sparse"],
)
def test_labels_of_numbers_that_are_none_are_refused(change):
    z = torch.tensor([[0, 0, 1, 1]])
    with pytest.raises(OptionError, match='init= of "z" is no tensor of labels'):
        pg.DPVI(points, init={"z": change(z)}, progress=False).run(4)
    with pytest.raises(OptionError, match='proposals= of "z" is no tensor of labels'):
        pg.DPVI(points, proposals=lambda _: {"z": change(z)}, progress=False).run(4)
    for taken in (z.half(), z.to(torch.uint16)):
        assert pg.DPVI(points, init={"z": taken}, progress=False).run(4).converged
