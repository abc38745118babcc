"""Labels of clusters far apart compared with their width, against enumeration in double precision.

Every partition is scored by chained predictive densities of Student's t, in which nothing cancels.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import numpy as np
import pyro
import pytest
import torch
from scipy.special import logsumexp

import pyrograph as pg
from pyrograph.errors import NonFiniteDensity, ShapeMismatch
from pyrograph.infer.dpvi.labellings.labelled import Labellings
from pyrograph.infer.dpvi.labellings.reading import read_labelled

D = pg.distributions
KAPPA, A, NU = 1e-3, 1.0, 3.0
ENGINES = (pg.DPVI, pg.SequentialDPVI)


def partitions(n: int) -> list[tuple[int, ...]]:
    """Labels by first appearance."""
    found = [()]
    for _ in range(n):
        found = [(*z, c) for z in found for c in range(max(z, default=-1) + 2)]
    return found


def log_student(gap: np.ndarray, scale: np.ndarray, freedom: float) -> float:
    """Density of Student's t, ``gap [d]`` from its location."""
    dim, square = len(gap), float(gap @ np.linalg.solve(scale, gap))
    total = math.lgamma((freedom + dim) / 2) - math.lgamma(freedom / 2)
    total -= (dim * math.log(freedom * math.pi) + np.linalg.slogdet(scale)[1]) / 2
    return total - (freedom + dim) / 2 * math.log1p(square / freedom)


def log_marginal(x: np.ndarray, b: float) -> float:
    """Of observations ``[m, d]``: the normal inverse gamma for d = 1, else inverse Wishart."""
    dim = x.shape[1]
    kappa, mean, total = KAPPA, np.zeros(dim), 0.0
    nu, psi = (2 * A, 2 * b * np.eye(1)) if dim == 1 else (NU, b * np.eye(dim))
    for y in x:
        freedom = nu - dim + 1
        total += log_student(y - mean, psi * (kappa + 1) / (kappa * freedom), freedom)
        psi = psi + kappa / (kappa + 1) * np.outer(y - mean, y - mean)
        mean, kappa, nu = (kappa * mean + y) / (kappa + 1), kappa + 1, nu + 1
    return total


def log_joint(z: tuple[int, ...], x: torch.Tensor, b: float) -> float:
    """Under a Chinese restaurant process with alpha 1."""
    labels, rows = np.array(z), x.double().reshape(len(x), -1).numpy()
    total = -math.lgamma(len(z) + 1)
    for c in range(max(z) + 1):
        total += math.lgamma((labels == c).sum()) + log_marginal(rows[labels == c], b)
    return total


def mixture(x: torch.Tensor, b: float) -> None:
    """One-dimensional data under normal inverse gamma, others under inverse Wishart."""
    z = pyro.sample("z", D.ChineseRestaurant(torch.tensor(1.0, dtype=x.dtype), len(x)))
    kappa = torch.tensor(KAPPA, dtype=x.dtype)
    component = D.NormalInverseGamma(kappa, A, b, dim=0)
    if x.ndim == 2:
        component = D.NormalInverseWishart(kappa, NU, b * torch.eye(x.shape[1], dtype=x.dtype))
    pyro.sample("x", D.CollapsedMixture(z, component), obs=x)


def two_heaps(n: int, apart: float, width: float, dim: int, seed: int) -> torch.Tensor:
    """The first half about 0, the others about ``apart``; in single precision."""
    rng = np.random.default_rng(seed)
    x = width * rng.standard_normal((n, dim))
    x[n // 2 :, 0] += apart
    return torch.tensor(x if dim > 1 else x[:, 0], dtype=torch.float32)


@cache
def every_score(dim, apart, width, b):
    """Two heaps of seven points, and the log joint of all partitions."""
    x = two_heaps(7, apart, width, dim, seed=1)
    return x, {z: log_joint(z, x, b) for z in partitions(7)}


@pytest.mark.parametrize("infer", ENGINES)
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("apart, width, b", [(10, 0.01, 1e-4), (30, 0.01, 1e-4), (1000, 1, 1)])
def test_the_bound_in_single_precision_is_that_of_the_labels_it_names(infer, dim, apart, width, b):
    x, scores = every_score(dim, apart, width, b)
    pyro.set_rng_seed(0)
    q = infer(mixture, num_particles=12, progress=False).run(x, b)
    found = [tuple(z) for z in q.particles["z"].tolist()]
    assert found[int(q.weights.argmax())] == max(scores, key=scores.get) == (0, 0, 0, 1, 1, 1, 1)
    own = logsumexp([scores[z] for z in found])
    assert float(q.log_evidence) == pytest.approx(own, rel=1e-6, abs=1e-5)
    assert float(q.log_evidence) <= logsumexp(list(scores.values())) + 1e-5


@pytest.mark.parametrize("infer", ENGINES)
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("apart", [30.0, 1e4])
def test_planted_clusters_are_found(infer, dim, apart):
    x = two_heaps(40, apart, 0.01, dim, seed=2)
    pyro.set_rng_seed(0)
    q = infer(mixture, num_particles=5, progress=False).run(x, 1e-4)
    planted = (0,) * 20 + (1,) * 20
    assert tuple(q.particles["z"][int(q.weights.argmax())].tolist()) == planted
    own = logsumexp([log_joint(tuple(z), x, 1e-4) for z in q.particles["z"].tolist()])
    assert float(q.log_evidence) == pytest.approx(own, rel=1e-5, abs=1e-4)


def test_equal_data_under_a_tiny_scale_have_a_density():
    x = torch.ones(5, dtype=torch.float64)
    scores = [log_joint(z, x, 1e-30) for z in partitions(5)]
    for infer in ENGINES:
        q = infer(mixture, num_particles=60, progress=False).run(x, 1e-30)
        assert float(q.log_evidence) == pytest.approx(logsumexp(scores), rel=1e-9)


def test_scores_that_are_no_numbers_name_labels_and_data():
    program = read_labelled(mixture, (torch.randn(4), 1.0), {})
    broken = dataclasses.replace(program, constant=torch.tensor(math.nan))
    with pytest.raises(NonFiniteDensity, match=r'"z".*"x"'):
        Labellings(broken).filtered([("z", i) for i in range(4)], 3)


def test_one_cluster_of_ever_further_outliers_is_parted():
    """Far points join a cluster of near ones on the way."""
    near = [-0.1, 0.15, -0.3, 0.2, 0.1, -0.4, 0.3]
    x = torch.tensor([1.5e3**3, 1.5e3**2, 1.5e3, *near], dtype=torch.float64)
    x = torch.stack([x, torch.linspace(-1, 1, 10, dtype=torch.float64)], 1)
    start = {"z": torch.zeros(1, 10, dtype=torch.int64)}
    q = pg.DPVI(mixture, num_particles=3, init=start, progress=False).run(x, 1.0)
    found = [tuple(z) for z in q.particles["z"].tolist()]
    own = [log_joint(z, x, 1.0) for z in found]
    assert max(own) > log_joint((0,) * 10, x, 1.0) + 10
    assert float(q.log_evidence) == pytest.approx(logsumexp(own), abs=1e-4)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("most", [1, 3])
def test_moves_without_a_density_name_labels_and_data(value, most):
    x = torch.randn(4, 2)
    program = read_labelled(mixture, (x, 1.0), {})
    complete = Labellings(program, {"z": torch.zeros(1, 4, dtype=torch.int64)})
    empty = Labellings(program)
    for labellings, step in ((complete, complete.move), (empty, empty.take_in)):
        labellings.score = torch.full((1,), value, dtype=torch.float64)
        with pytest.raises(NonFiniteDensity, match=r'"z".*element 2.*"x"'):
            step("z", 2, most)


def test_one_labelling_of_many_without_a_density_is_not_dropped():
    program = read_labelled(mixture, (torch.randn(4, 2), 1.0), {})
    labels = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1]])
    labellings = Labellings(program, {"z": labels})
    labellings.score = torch.tensor([0.0, math.nan], dtype=torch.float64)
    with pytest.raises(NonFiniteDensity, match=r'"z".*element 3.*"x"'):
        labellings.move("z", 3, 2)


def at_a_distance(offset: float) -> torch.Tensor:
    rng = np.random.default_rng(3)
    return torch.tensor(rng.standard_normal((8, 2)) + offset)


@pytest.mark.parametrize("smoothing", [False, True])
def test_a_filter_goes_on_from_its_own_state_far_from_the_prior(smoothing):
    x = at_a_distance(3e6)
    pyro.set_rng_seed(0)
    ours, theirs = (
        pg.SequentialDPVI(mixture, num_particles=10, smoothing=smoothing, progress=False)
        for _ in range(2)
    )
    for infer in (ours, theirs):
        infer.setup(x, 1.0)
    for _ in range(6):
        ours.step()
    theirs.load_state_dict(ours.state_dict())
    own, found = float(ours.run().log_evidence), float(theirs.run().log_evidence)
    assert found == pytest.approx(own, abs=1e-4)


def test_a_saved_score_that_drifted_is_counted_anew_and_one_of_other_data_refused():
    x, infer = at_a_distance(0.0), pg.SequentialDPVI(mixture, num_particles=4, progress=False)
    infer.run(x, 1.0)
    state = infer.state_dict()
    infer.load_state_dict({**state, "score": state["score"] + 1e-5})
    labels = infer.search.found.labels()["z"].tolist()
    truth = [log_joint(tuple(z), x, 1.0) for z in labels]
    assert infer.search.found.score.tolist() == pytest.approx(truth, abs=1e-9)
    other, moved = pg.SequentialDPVI(mixture, num_particles=4, progress=False), x.clone()
    moved[0] += 0.1
    other.setup(moved, 1.0)
    now = [log_joint(tuple(z), moved, 1.0) for z in labels]
    gap = max(abs(a - b) for a, b in zip(now, truth, strict=True))
    with pytest.raises(ShapeMismatch, match=f"other data or parameters.*up to {gap:.3g}"):
        other.load_state_dict(state)


@pytest.mark.parametrize("infer", ENGINES)
def test_statements_of_several_data_sets_are_refused_by_name(infer):
    def model(x):
        z = pyro.sample("z", D.ChineseRestaurant(1.0, len(x)))
        component = D.NormalInverseGamma(torch.ones(3, 2), 1.0, 1.0)
        pyro.sample("x", D.CollapsedMixture(z, component), obs=x)

    with pytest.raises(ShapeMismatch, match='"x" has batch shape'):
        infer(model, progress=False).run(torch.randn(5, 2))

    def in_a_plate(x):
        z = pyro.sample("z", D.ChineseRestaurant(1.0, x.shape[1]))
        with pyro.plate("features", len(x)):
            pyro.sample("x", D.CollapsedMixture(z, D.DirichletCategorical(1.0, 3)), obs=x)

    with pytest.raises(ShapeMismatch, match=r'"x" has batch shape \(2,\), of a plate'):
        infer(in_a_plate, progress=False).run(torch.randint(3, (2, 5)))
