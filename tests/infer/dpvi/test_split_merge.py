"""Splits and merges lead out of labellings that no single label improves."""

import numpy as np
import pyro
import pytest
import torch

import pyrograph as pg
from pyrograph import distributions as D
from pyrograph.infer.dpvi.labellings import split_merge
from pyrograph.infer.dpvi.labellings.labelled import Labellings


def mixture(x):
    z = pyro.sample("z", D.ChineseRestaurant(torch.tensor(0.1), len(x)))
    component = D.NormalInverseWishart(0.01, x.shape[1] + 1.0, torch.eye(x.shape[1]))
    pyro.sample("x", D.CollapsedMixture(z, component), obs=x)


def three_groups(seed, scale, num_columns=10, n=300):
    """Points ``[n, d]`` and their groups, by first appearance."""
    rng = np.random.default_rng(seed)
    centres, group = rng.standard_normal((3, num_columns)), rng.integers(0, 3, n)
    x = scale * (centres[group] + 0.4 * rng.standard_normal((n, num_columns)))
    return torch.as_tensor(x), D.labels.in_order(torch.as_tensor(group)[None])[0]


def log_joint(x, z):
    trace = pyro.poutine.trace(pyro.condition(mixture, {"z": z})).get_trace(x)
    return float(trace.log_prob_sum())


def engine_at(x, z, num_particles=3):
    engine = pg.DPVI(mixture, num_particles=num_particles, progress=False, init="random").setup(x)
    engine.search.found = Labellings(engine.search.found.program, {"z": z[None]})
    return engine


# ---------------------------------------------------------------------- runs
@pytest.mark.parametrize("scale, seed", [(3.0, 1), (8.0, 1), (8.0, 3)])
def test_labels_are_at_least_as_probable_as_those_that_made_the_data(seed, scale):
    # in units of which the prior's scale is an eighth, the first pass leaves two dozen clusters;
    # without splits and merges both runs there end below the truth
    x, truth = three_groups(seed, scale, n=120)
    pyro.set_rng_seed(seed)
    engine = pg.DPVI(mixture, num_particles=5, progress=False).setup(x)
    assert engine.run().converged
    assert float(engine.search.found.score.max()) >= log_joint(x, truth) - 1e-6


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_few_elements(n):
    x = torch.as_tensor(np.random.default_rng(n).standard_normal((n, 2)))
    for seed in range(5):
        pyro.set_rng_seed(seed)
        engine = pg.DPVI(mixture, num_particles=5, progress=False).setup(x)
        assert engine.run().converged


# ---------------------------------------------------------------------- moves
@pytest.mark.parametrize("seed", range(6))
def test_two_groups_in_one_cluster_are_found_at_once(seed):
    x, truth = three_groups(seed, 3.0)
    z = D.labels.in_order(truth.clamp_max(1)[None])[0]
    engine = engine_at(x, z)
    generator = torch.Generator().manual_seed(seed)
    found = split_merge.splits_and_merges(engine.search.found, 3, generator)
    best = Labellings(engine.search.found.program, found).score.max()
    assert float(best) >= log_joint(x, truth) - 1e-6 > float(engine.search.found.score[0])


@pytest.mark.parametrize("seed", range(4))
def test_a_way_of_merges_leads_through_worse_labellings(seed):
    x, truth = three_groups(seed, 8.0)
    # every group in a dozen parts
    generator = torch.Generator().manual_seed(seed)
    parts = truth * 12 + torch.randint(12, truth.shape, generator=generator)
    z = D.labels.in_order(parts[None])[0]
    engine = engine_at(x, z)
    merges = split_merge._merges(engine.search.found, "z")
    best = max(float(Labellings(engine.search.found.program, m).score.max()) for m in merges)
    assert best >= log_joint(x, truth) - 1e-6


def related(seen):
    """Entries of rows and columns in clusters."""
    rows = pyro.sample("rows", D.ChineseRestaurant(torch.tensor(1.0), seen.shape[0]))
    columns = pyro.sample("columns", D.ChineseRestaurant(torch.tensor(1.0), seen.shape[1]))
    pyro.sample("r", D.CollapsedRelation(rows, columns, D.BetaBernoulli(1.0, 1.0)), obs=seen)


@pytest.mark.parametrize("n", [6, 20])
def test_two_groups_of_rows_in_one_cluster_are_parted(n):
    """All rows of a small cluster, and a few of a large one, start a cluster each."""
    halves, columns = torch.arange(n) % 2, torch.arange(30) % 3
    seen = torch.rand(n, 30) < torch.tensor([[0.05, 0.9, 0.1], [0.9, 0.2, 0.9]])[halves][:, columns]
    engine = pg.DPVI(related, num_particles=1, progress=False, init="random").setup(seen.double())
    at = {"rows": torch.zeros(1, n, dtype=torch.int64), "columns": columns[None]}
    best = Labellings(engine.search.found.program, at)
    splits = split_merge._splits(best, "rows", 0, torch.Generator().manual_seed(0))
    parted = Labellings(best.program, at | {"rows": halves[None]})
    assert float(splits.score.max()) >= float(parted.score) - 1e-9 > float(best.score) + 5


def test_elements_are_scored_at_once_as_by_turns(monkeypatch):
    x, truth = three_groups(0, 3.0, n=60)
    best = engine_at(x, truth).search.found
    members, alone = (truth == 1).nonzero().squeeze(1), torch.tensor([4, 0, 7])
    at_once = split_merge._at_home(best, "z", members, alone)
    monkeypatch.setattr(split_merge, "_at_once", split_merge._by_turns)
    torch.testing.assert_close(at_once, split_merge._at_home(best, "z", members, alone))
    assert int(at_once.isinf().sum()) == 3


def test_splits_part_one_cluster_and_leave_the_others():
    x, truth = three_groups(0, 3.0)
    engine = engine_at(x, truth)
    splits = split_merge._splits(engine.search.found, "z", 1, torch.Generator().manual_seed(0))
    for z in splits.labels()["z"]:
        assert len(z.unique()) == 4
        for c in (0, 2):
            assert len(z[truth == c].unique()) == 1
        assert len(z[truth == 1].unique()) == 2
    assert split_merge._splits(engine_at(x[:1], truth[:1]).search.found, "z", 0, None) is None
