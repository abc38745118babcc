"""The forward pass over labellings, against the pool of shared clusters and against log densities.

A pass keeps K of the extensions; where the last that is kept and the first that is not are equally
good, which one is kept is anybody's choice, and what follows may differ.
"""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pyrograph as pg
from pyrograph.infer.dpvi.labellings import forward, screening
from pyrograph.infer.dpvi.labellings.labelled import Labellings, in_order
from pyrograph.infer.dpvi.labellings.reading import read_labelled

D = pg.distributions
KINDS = ("numbers", "points", "own scales", "symbols", "two", "both", "three")


def program_of(kind: str, n: int, seed: int, alpha=1.0, grid=None, dtype=torch.float64, scale=1.0):
    """Data of three heaps and their program; ``grid`` rounds them, so that there are ties."""
    rng = np.random.default_rng(seed)
    heap = rng.integers(0, 3, n)
    points = 2.0 * heap[:, None] + rng.normal(size=(n, 3))
    points = points if grid is None else grid * np.round(points / grid)
    points = torch.tensor(scale * points, dtype=dtype)
    symbols = torch.tensor(rng.integers(0, 2, n) + heap)
    number = torch.tensor(0.3, dtype=dtype)

    def statement(name, z, component, data):
        pyro.sample(name, D.CollapsedMixture(z, component), obs=data)

    def model():
        z = pyro.sample("z", D.ChineseRestaurant(torch.tensor(alpha, dtype=dtype), n))
        if kind in ("numbers", "two"):
            statement("x", z, D.NormalInverseGamma(number, 1.0, 1.5, 0.5, dim=0), points[:, 0])
        if kind in ("points", "both"):
            statement("y", z, D.NormalInverseGamma(number, 2.0, 0.5 * scale**2, dim=3), points)
        if kind in ("own scales", "two", "three"):
            kappa, b = torch.tensor([[0.3, 0.9, 2.7], [0.5, 2.0, 1.0]], dtype=dtype)
            statement("w", z, D.NormalInverseGamma(kappa, 1.0, b, number), points)
        if kind in ("symbols", "both", "three"):
            statement("s", z, D.DirichletCategorical(number, 4), symbols)
        if kind == "three":
            weights = torch.tensor([0.2, 1.0], dtype=dtype)
            statement("v", z, D.DirichletCategorical(weights, 2), symbols % 2)

    return read_labelled(model, (), {})


def found(labellings: Labellings) -> dict[tuple, float]:
    labels = in_order(labellings.labels()["z"]).tolist()
    return dict(zip(map(tuple, labels), labellings.score.tolist(), strict=True))


def assert_same_passes(program, elements, most: int, tolerance: float = 1e-9) -> bool:
    """Step by step, until the choice is anybody's; False if that happened."""
    ours, pooled = Labellings(program), Labellings(program)
    for i in elements:
        with torch.inference_mode():
            candidates = pooled.score.unsqueeze(1) + pooled.clusters["z"].scores(i)
            best = candidates.flatten().sort(descending=True).values
            is_all = pooled._take_in("z", i, most)
        assert ours.take_in("z", i, most) == is_all
        a, b = ours.score.sort().values, pooled.score.sort().values
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        cut = best[most - 1 : most + 1].tolist()
        if len(cut) == 2 and cut[1] > cut[0] - 1e2 * tolerance * (1 + abs(cut[0])):
            return False
    assert ours._pass is not None and pooled._pass is None
    assert ours.bound_so_far == pytest.approx(float(pooled.bound), rel=tolerance, abs=tolerance)
    mine, theirs = found(ours), found(pooled)
    assert mine.keys() == theirs.keys() and len(mine) == len(ours)
    assert mine == pytest.approx(theirs, rel=tolerance, abs=tolerance)
    for done in (ours, pooled):
        done.rescore()
    assert found(ours) == pytest.approx(found(pooled), rel=tolerance, abs=tolerance)
    true = program.log_prob({"z": ours.labels()["z"]}).double()
    torch.testing.assert_close(ours.score, true, rtol=tolerance, atol=tolerance)
    return True


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 14),
    most=st.integers(1, 60),
    seed=st.integers(0, 10_000),
    alpha=st.sampled_from([0.1, 1.0, 20.0]),
    grid=st.sampled_from([None, 0.5]),
    shuffled=st.booleans(),
)
def test_a_pass_is_that_of_shared_clusters(kind, n, most, seed, alpha, grid, shuffled):
    program = program_of(kind, n, seed, alpha, grid)
    order = np.random.default_rng(seed).permutation(n) if shuffled else range(n)
    assert_same_passes(program, [int(i) for i in order], most)


@pytest.mark.parametrize("kind", ["numbers", "points", "own scales", "two"])
def test_clusters_may_become_many(kind):
    # as many clusters as elements, nearly: slots run out again and again
    program = program_of(kind, 40, 1, alpha=200.0)
    assert assert_same_passes(program, range(40), 7)
    longer = Labellings(program)
    for i in range(40):
        longer.take_in("z", i, 7)
    assert int(longer.labels()["z"].max()) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_with_room_for_all_partitions_all_are_kept(kind):
    program = program_of(kind, 6, 2)
    assert assert_same_passes(program, range(6), 300)
    everything = Labellings(program)
    assert all(everything.take_in("z", i, 300) for i in range(6))
    assert len(found(everything)) == len(everything) == 203  # the sixth Bell number


@pytest.mark.parametrize("kind", ["points", "two", "both"])
def test_data_in_single_precision_have_sums_in_double(kind):
    program = program_of(kind, 30, 3, dtype=torch.float32)
    assert_same_passes(program, range(30), 5, tolerance=2e-4)
    ours = Labellings(program)
    ours.begin_pass()
    assert ours._sums.table.dtype == torch.float64 and ours.score.dtype == torch.float64
    assert program.dtype == torch.float32


@pytest.mark.parametrize("scale", [1e-120, 1.0, 1e120])
def test_scales_whose_product_leaves_the_range_are_no_harm(scale):
    program = program_of("points", 12, 4, scale=scale)
    ours = Labellings(program)
    ours.begin_pass()
    assert ours._sums.by_product == (scale == 1.0)
    assert assert_same_passes(program, range(12), 6)


@pytest.mark.parametrize("kind", ["points", "both"])
def test_a_pass_goes_on_where_the_pool_or_a_pass_stopped(kind):
    program = program_of(kind, 30, 5)
    whole, parts = Labellings(program), Labellings(program)
    for i in range(30):
        whole.take_in("z", i, 8)
        parts.take_in("z", i, 8)
        if i % 7 == 3:
            assert parts.clusters["z"].seating.num_inside == i + 1
        if i % 5 == 2:
            parts = parts.within(program)
    assert found(parts) == pytest.approx(found(whole), abs=1e-9)


@pytest.mark.parametrize("numbers", [1, 700])
def test_a_pass_that_goes_on_counts_its_labels_in_parts(monkeypatch, numbers):
    program = program_of("both", 20, 8)
    labellings = Labellings(program)
    for i in range(12):
        labellings.take_in("z", i, 9)
    monkeypatch.setattr(forward, "AT_ONCE", numbers)
    labellings = labellings.within(program)
    for i in range(12, 20):
        labellings.take_in("z", i, 9)
    labels = labellings.labels()["z"]
    assert labellings._pass is not None and len(labels) == 9
    true = program.log_prob({"z": labels})
    torch.testing.assert_close(labellings.score, true, rtol=0, atol=1e-9)


@pytest.mark.parametrize("most", [4, 40])
@pytest.mark.parametrize("numbers", [1, 300, screening.SCREENED])
def test_a_sweep_passes_over_elements_that_would_stay(monkeypatch, numbers, most):
    monkeypatch.setattr(screening, "SCREENED", numbers)
    program = program_of("points", 18, 9)
    start = torch.randint(3, (4, 18), generator=torch.Generator().manual_seed(0))
    swept, moved = (Labellings(program, {"z": start}) for _ in range(2))
    for _ in range(3):
        swept.sweep(most)
        for i in range(18):
            moved.move("z", i, most)
        assert found(swept) == pytest.approx(found(moved), abs=1e-9)


def test_large_states_are_shared(monkeypatch):
    program = program_of("points", 30, 6)
    whole = Labellings(program)
    for i in range(30):
        whole.take_in("z", i, 20)
    monkeypatch.setattr(forward, "LARGE", 500)
    shared = Labellings(program)
    for i in range(30):
        shared.take_in("z", i, 20)
    assert shared._pass is None
    assert found(shared) == pytest.approx(found(whole), abs=1e-9)


def test_what_has_another_form_takes_the_pool():
    def wishart(x):
        z = pyro.sample("z", D.ChineseRestaurant(1.0, len(x)))
        component = D.NormalInverseWishart(0.1, 3.0, torch.eye(2))
        pyro.sample("x", D.CollapsedMixture(z, component), obs=x)

    def series(y):
        z = pyro.sample("z", D.ChineseRestaurantFranchise(1.0, 1.0, len(y)))
        pyro.sample("y", D.CollapsedMixture(z, D.DirichletCategorical(0.5, 2)), obs=y)

    def two_sites(x):
        for name in ("a", "b"):
            z = pyro.sample(name, D.ChineseRestaurant(1.0, len(x)))
            component = D.NormalInverseGamma(0.1, 1.0, 1.0)
            pyro.sample("x" + name, D.CollapsedMixture(z, component), obs=x)

    for model, data in (
        (wishart, torch.randn(5, 2)),
        (series, torch.tensor([0, 1, 1])),
        (two_sites, torch.randn(5, 2)),
    ):
        labellings = Labellings(read_labelled(model, (data,), {}))
        labellings.begin_pass()
        assert labellings._pass is None


def test_smoothing_and_checkpoints_take_over_from_a_pass():
    x = program_of("points", 25, 7).mixtures["y"][2]

    def model(x):
        z = pyro.sample("z", D.ChineseRestaurant(torch.tensor(1.0, dtype=torch.float64), len(x)))
        component = D.NormalInverseGamma(torch.tensor(0.3, dtype=torch.float64), 2.0, 0.5)
        pyro.sample("x", D.CollapsedMixture(z, component), obs=x)

    whole = pg.SequentialDPVI(model, num_particles=6, smoothing=True, progress=False)
    q = whole.run(x)
    watched = pg.SequentialDPVI(model, num_particles=6, smoothing=True, progress=False).setup(x)
    for _ in range(25):
        watched.step()
        watched.state_dict()
    assert watched.history["objective"][-1] == pytest.approx(float(watched.search.found.bound))
    again = watched.run()
    torch.testing.assert_close(again.history["objective"], q.history["objective"])
    assert torch.equal(again.particles["z"], q.particles["z"])
    assert not q.particles["z"].is_inference() and not q.log_evidence.is_inference()
