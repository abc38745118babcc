"""DPVI on partitions, relations and state sequences, against enumeration."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Importance, Predictive
from scipy import stats
from scipy.special import betaln, gammaln, logsumexp

import pyrograph as pg
from pyrograph.errors import (
    InferenceError,
    NonFiniteDensity,
    ShapeMismatch,
    UnsupportedFactor,
    UnsupportedSite,
)
from pyrograph.infer.dpvi.labellings.labelled import in_order

D = pg.distributions
KAPPA, A, B, ALPHA = 0.04, 1.0, 1.0, 0.5


def two_heaps(n: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    centre = np.where(rng.random((n, 1)) < 0.5, -1.5, 1.5)
    return torch.tensor(centre + 0.6 * rng.normal(size=(n, 2)))


def mixture(x):
    z = pyro.sample("z", D.ChineseRestaurant(torch.tensor(ALPHA, dtype=torch.float64), len(x)))
    component = D.NormalInverseGamma(torch.tensor(KAPPA, dtype=torch.float64), A, B)
    pyro.sample("x", D.CollapsedMixture(z, component), obs=x)


def partitions(n: int):
    """Labels by first appearance."""

    def grow(labels):
        if len(labels) == n:
            yield tuple(labels)
            return
        for c in range(max(labels, default=-1) + 2):
            yield from grow([*labels, c])

    return list(grow([]))


def log_crp(labels, alpha: float) -> float:
    counts = np.bincount(labels)
    total = len(counts) * math.log(alpha) + gammaln(counts).sum()
    return total + gammaln(alpha) - gammaln(alpha + len(labels))


def log_marginal(x: np.ndarray) -> float:
    """Normal inverse gamma, by chained predictive t densities."""
    total = 0.0
    for d in range(x.shape[1]):
        kappa, mean, a, b = KAPPA, 0.0, A, B
        for value in x[:, d]:
            scale = math.sqrt(b * (kappa + 1) / (a * kappa))
            total += stats.t.logpdf(value, 2 * a, mean, scale)
            b += 0.5 * kappa / (kappa + 1) * (value - mean) ** 2
            mean = (kappa * mean + value) / (kappa + 1)
            kappa, a = kappa + 1, a + 0.5
    return total


def mixture_scores(x: torch.Tensor) -> dict[tuple, float]:
    @functools.cache
    def of_heap(members: tuple) -> float:  # partitions have most heaps in common
        return log_marginal(x.numpy()[list(members)])

    out = {}
    for labels in partitions(len(x)):
        z = np.array(labels)
        heaps = [tuple(np.flatnonzero(z == c).tolist()) for c in range(z.max() + 1)]
        out[labels] = log_crp(labels, ALPHA) + sum(map(of_heap, heaps))
    return out


@functools.cache
def scores_of_seven() -> dict[tuple, float]:
    return mixture_scores(two_heaps(7, seed=1))


def fit(model, *args, infer=pg.DPVI, seed: int = 0, **options):
    pyro.set_rng_seed(seed)
    return infer(model, progress=False, **options).run(*args)


@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
def test_with_all_partitions_the_evidence_is_exact(infer):
    x = two_heaps(6)
    scores = mixture_scores(x)
    q = fit(mixture, x, infer=infer, num_particles=300)
    assert len(q.weights) == len(scores) == 203  # the sixth Bell number
    log_z = logsumexp(list(scores.values()))
    assert float(q.log_evidence) == pytest.approx(log_z, abs=1e-9)
    together = np.zeros((6, 6))
    for labels, value in scores.items():
        z = np.array(labels)
        together += math.exp(value - log_z) * (z[:, None] == z)
    np.testing.assert_allclose(q.together("z").numpy(), together, atol=1e-9)
    probs = np.zeros(7)
    for labels, value in scores.items():
        probs[max(labels) + 1] += math.exp(value - log_z)
    np.testing.assert_allclose(q.num_clusters("z").probs.numpy(), probs, atol=1e-9)


@pytest.mark.parametrize("count", [1, 3, 10, 40])
def test_the_bound_never_falls_and_is_that_of_distinct_partitions(count):
    x = two_heaps(7, seed=1)
    scores = scores_of_seven()
    pyro.set_rng_seed(0)
    engine = pg.DPVI(mixture, num_particles=count, progress=False).setup(x)
    last = float(engine.search.found.bound)
    for _ in range(5):
        bound = engine.step()
        assert bound >= last - 1e-9
        last = bound
    q = engine.posterior()
    rows = {tuple(row) for row in q.particles["z"].tolist()}
    assert len(rows) == count
    found = sorted((scores[row] for row in rows), reverse=True)
    assert last == pytest.approx(logsumexp(found), abs=1e-9)
    top = np.sort(list(scores.values()))[::-1][:count]
    assert last <= logsumexp(top) + 1e-9
    assert last > logsumexp(top) - 0.01  # measured, four seeds: the best partitions themselves


def test_scores_after_thousands_of_moves_are_those_from_scratch():
    x = two_heaps(60, seed=2)
    pyro.set_rng_seed(0)
    engine = pg.DPVI(mixture, num_particles=12, progress=False).setup(x)
    found = engine.search.found
    for _ in range(34):  # some 2000 moves
        found.sweep(12)
    score, key = found.score.clone(), found._key()
    found.rescore()
    torch.testing.assert_close(found.score, score, rtol=0, atol=1e-9)
    torch.testing.assert_close(found._key(), key, rtol=0, atol=0)


def relation(r):
    one = torch.tensor(1.0, dtype=torch.float64)
    rows = pyro.sample("rows", D.ChineseRestaurant(one, r.shape[0]))
    columns = pyro.sample("columns", D.ChineseRestaurant(one, r.shape[1]))
    pyro.sample("r", D.CollapsedRelation(rows, columns, D.BetaBernoulli(one, one)), obs=r)


def log_relation(r, rows, columns) -> float:
    """Cell by cell under Beta(1, 1), NaN held out."""
    rows, columns = np.array(rows), np.array(columns)
    cells = [
        r[np.ix_(rows == c, columns == d)]
        for c, d in itertools.product(range(rows.max() + 1), range(columns.max() + 1))
    ]
    return sum(betaln(1 + np.nansum(cell), 1 + np.nansum(1 - cell)) for cell in cells)


def test_a_relation_with_held_out_cells_is_exact_with_all_pairs_of_partitions():
    rng = np.random.default_rng(0)
    r = (rng.random((4, 3)) < 0.5).astype(float)
    r[1, 2] = np.nan
    scores = [
        log_crp(a, 1.0) + log_crp(b, 1.0) + log_relation(r, a, b)
        for a, b in itertools.product(partitions(4), partitions(3))
    ]
    for infer in (pg.DPVI, pg.SequentialDPVI):
        q = fit(relation, torch.tensor(r), infer=infer, num_particles=100)
        assert len(q.weights) == 15 * 5
        assert float(q.log_evidence) == pytest.approx(logsumexp(scores), abs=1e-9)


#: Statements and the sites of their rows and columns.
SHARED = {
    "rows": {"r": ("a", "b"), "s": ("a", "c")},
    "rows and columns": {"r": ("a", "b"), "s": ("a", "b")},
    "in a ring": {"r": ("a", "b"), "s": ("b", "c"), "t": ("c", "a")},
}


@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
@pytest.mark.parametrize("which", SHARED)
def test_relations_that_share_labels_are_exact_with_all_of_them(which, infer):
    rng = np.random.default_rng(1)
    size = {"a": 4, "b": 3, "c": 2}
    data = {
        name: (rng.random((size[u], size[v])) < 0.5).astype(float)
        for name, (u, v) in SHARED[which].items()
    }
    used = sorted({site for pair in SHARED[which].values() for site in pair})

    def model():
        one = torch.tensor(1.0, dtype=torch.float64)
        z = {site: pyro.sample(site, D.ChineseRestaurant(one, size[site])) for site in used}
        for name, (u, v) in SHARED[which].items():
            fn = D.CollapsedRelation(z[u], z[v], D.BetaBernoulli(one, one))
            pyro.sample(name, fn, obs=torch.tensor(data[name]))

    scores = {}
    for every in itertools.product(*(partitions(size[site]) for site in used)):
        z = dict(zip(used, every))
        scores[every] = sum(log_crp(labels, 1.0) for labels in every) + sum(
            log_relation(data[name], z[u], z[v]) for name, (u, v) in SHARED[which].items()
        )
    log_z = logsumexp(list(scores.values()))
    q = fit(model, infer=infer, num_particles=200)
    assert len(q.weights) == len(scores)
    assert float(q.log_evidence) == pytest.approx(log_z, abs=1e-9)
    # fewer than there are: what is found is scored as it should be, and is among the best
    few = fit(model, infer=infer, num_particles=12)
    rows = zip(*(few.particles[site].tolist() for site in used))
    found = [scores[tuple(map(tuple, row))] for row in rows]
    assert float(few.log_evidence) == pytest.approx(logsumexp(found), abs=1e-9)
    best = sorted(scores.values())[-12:]
    assert logsumexp(found) > logsumexp(best) - (0.01 if infer is pg.DPVI else 1.0)


@pytest.mark.parametrize("urn", ["paper", "franchise"])
def test_state_sequences_are_exact_with_all_of_them(urn):
    y = torch.tensor([0, 0, 1, 1, 0])

    def ihmm(y):
        alpha = torch.tensor(0.7, dtype=torch.float64)
        z = pyro.sample("z", D.ChineseRestaurantFranchise(alpha, 1.3, len(y), urn=urn))
        emission = D.DirichletCategorical(torch.tensor(0.5, dtype=torch.float64), 2)
        pyro.sample("y", D.CollapsedMixture(z, emission), obs=y)

    prior = D.ChineseRestaurantFranchise(torch.tensor(0.7, dtype=torch.float64), 1.3, 5, urn=urn)
    scores = []
    for labels in partitions(5):
        z = np.array(labels)
        value = float(prior.log_prob(torch.tensor(labels)))
        for c in range(z.max() + 1):
            counts = np.bincount(y.numpy()[z == c], minlength=2)
            value += gammaln(1.0) - gammaln(1.0 + counts.sum())
            value += (gammaln(0.5 + counts) - gammaln(0.5)).sum()
        scores.append(value)
    q = fit(ihmm, y, num_particles=100)
    assert len(q.weights) == 52
    assert float(q.log_evidence) == pytest.approx(logsumexp(scores), abs=1e-9)
    few = fit(ihmm, y, infer=pg.SequentialDPVI, num_particles=5, smoothing=True)
    assert float(few.log_evidence) <= logsumexp(np.sort(scores)[::-1][:5]) + 1e-9


def test_extending_is_a_run_over_everything():
    x = two_heaps(30, seed=3)
    pyro.set_rng_seed(0)
    engine = pg.SequentialDPVI(mixture, num_particles=6, progress=False)
    engine.run(x[:10])
    engine.extend(x[:21])
    q = engine.extend(x)
    whole = fit(mixture, x, infer=pg.SequentialDPVI, num_particles=6)
    assert float(q.log_evidence) == pytest.approx(float(whole.log_evidence), abs=1e-9)
    assert torch.equal(q.particles["z"], whole.particles["z"])
    assert len(q.history["objective"]) == 30
    smooth = fit(mixture, x, infer=pg.SequentialDPVI, num_particles=6, smoothing=True)
    assert float(smooth.log_evidence) >= float(whole.log_evidence) - 1e-9


def test_runs_go_on_where_they_stopped():
    x = two_heaps(40, seed=4)
    whole = fit(mixture, x, infer=pg.SequentialDPVI, num_particles=5, smoothing=True)
    pyro.set_rng_seed(0)
    first = pg.SequentialDPVI(mixture, num_particles=5, smoothing=True, progress=False).setup(x)
    for _ in range(17):
        first.step()
    with pytest.raises(InferenceError, match="17 of 40"):
        first.posterior()
    with pytest.raises(InferenceError, match="together"):
        first.filtered("z")
    second = pg.SequentialDPVI(mixture, num_particles=5, smoothing=True, progress=False)
    second.load_state_dict(first.state_dict())
    q = second.run(x)
    assert float(q.log_evidence) == pytest.approx(float(whole.log_evidence), abs=1e-9)
    assert torch.equal(q.particles["z"], whole.particles["z"])

    third = pg.DPVI(mixture, num_particles=5, progress=False).setup(x)
    third.step()
    fourth = pg.DPVI(mixture, num_particles=5, progress=False)
    fourth.load_state_dict(third.state_dict())
    a, b = third.step(), fourth.setup(x).step()
    assert a == pytest.approx(b, abs=1e-9)


def test_labels_and_other_posteriors_may_start_it_and_be_proposed():
    x = two_heaps(12, seed=5)
    apart = {"z": torch.arange(12).unsqueeze(0)}
    q = fit(mixture, x, num_particles=4, init=apart, num_steps=30)
    again = fit(mixture, x, num_particles=4, init=q)
    assert float(again.log_evidence) >= float(q.log_evidence) - 1e-9
    truth = (x[:, 0] > 0).long().unsqueeze(0)
    proposed = fit(
        mixture,
        x,
        num_particles=1,
        init=apart,
        num_steps=1,
        tol=None,
        proposals=lambda values: {"z": truth},
    )
    assert torch.equal(proposed.particles["z"], in_order(truth))
    with pytest.raises(ShapeMismatch, match='"z"'):
        fit(mixture, x, init={"z": torch.zeros(1, 5).long()})


def test_the_guide_feeds_importance_and_predictive():
    x = two_heaps(8)
    q = fit(mixture, x, num_particles=9)
    guide = q.guide()
    weights = torch.stack(list(Importance(mixture, guide, num_samples=10).run(x).log_weights))
    torch.testing.assert_close(weights.double(), q.log_evidence.expand(10), rtol=0, atol=1e-5)
    draws = Predictive(mixture, guide=guide, num_samples=4, return_sites=["z"])(x)["z"]
    assert draws.shape == (4, 8)
    again = type(guide).from_state_dict(guide.state_dict())
    best = q.particles["z"][q.weights.argmax()]
    assert torch.equal(again.median()["z"], best)
    assert torch.equal(guide.median()["z"], best)
    assert q.sample(5)["z"].shape == (5, 8)


def test_programs_that_labels_alone_do_not_cover_are_refused_by_name():
    x = two_heaps(5)

    def beside(x):
        mixture(x)
        pyro.sample("theta", dist.Normal(0.0, 1.0))

    with pytest.raises(UnsupportedSite, match='"theta"'):
        fit(beside, x)

    def reads(x):
        z = pyro.sample("z", D.ChineseRestaurant(1.0, len(x)))
        pyro.factor("odd", (z % 2).double().sum())

    with pytest.raises(UnsupportedFactor, match='"odd"'):
        fit(reads, x)


def test_labels_are_renamed_by_first_appearance():
    labels = torch.tensor([[3, 3, 0, 7, 0], [-1, 2, -1, 2, 0]])
    assert in_order(labels).tolist() == [[0, 0, 1, 2, 1], [-1, 0, -1, 0, 1]]


def test_splits_and_merges_leave_local_optima_of_single_labels():
    x = two_heaps(60, seed=6)
    together, apart = torch.zeros(1, 60).long(), torch.arange(60).unsqueeze(0)
    best = fit(mixture, x, num_particles=3)
    for start in (together, apart):
        q = fit(mixture, x, num_particles=3, init={"z": start})
        assert float(q.log_evidence) == pytest.approx(float(best.log_evidence), abs=1e-6)
        assert q.converged
    counts = best.num_clusters("z")
    assert int(counts.probs.argmax()) == 2


def test_results_take_derivatives():
    q = fit(mixture, two_heaps(10), num_particles=3)
    logits = q.guide().logits
    logits.sum().backward()
    assert not q.weights.is_inference() and not q.particles["z"].is_inference()
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    (scale * q.log_evidence).backward()
    assert float(scale.grad) == float(q.log_evidence)


def test_particles_that_still_add_much_are_told():
    def vague(x):
        z = pyro.sample("z", D.ChineseRestaurant(torch.tensor(3.0, dtype=torch.float64), len(x)))
        one = torch.tensor(1.0, dtype=torch.float64)
        pyro.sample("x", D.CollapsedMixture(z, D.NormalInverseGamma(one, 3.0, 1.0)), obs=x)

    q = fit(vague, 0.3 * two_heaps(8), num_particles=8)
    score = q.log_weights.sort(descending=True).values
    assert -float(score[:4].logsumexp(0)) > 0.3 and "num_particles" in q.status
    sure = fit(mixture, two_heaps(40, seed=7), num_particles=4)
    score = sure.log_weights.sort(descending=True).values
    assert -float(score[:2].logsumexp(0)) < 0.3 and sure.status == "converged"


@pytest.mark.parametrize("steps", [1, 3, 4, 5])
def test_splits_go_on_with_the_same_random_numbers(steps):
    x = two_heaps(50, seed=8)
    whole = fit(mixture, x, num_particles=3, init={"z": torch.zeros(1, 50).long()})
    pyro.set_rng_seed(0)
    init = {"z": torch.zeros(1, 50).long()}
    first = pg.DPVI(mixture, num_particles=3, init=init, progress=False).setup(x)
    for _ in range(steps):
        first.step()
    second = pg.DPVI(mixture, num_particles=3, init=init, progress=False)
    second.load_state_dict(first.state_dict())
    q = second.run(x)
    assert float(q.log_evidence) == pytest.approx(float(whole.log_evidence), abs=1e-9)
    if steps <= len(whole.history["objective"]):
        torch.testing.assert_close(q.history["objective"], whole.history["objective"])


def wishart(x):
    z = pyro.sample("z", D.ChineseRestaurant(torch.tensor(ALPHA, dtype=torch.float64), len(x)))
    component = D.NormalInverseWishart(0.05, 3.0, torch.eye(2, dtype=torch.float64))
    pyro.sample("x", D.CollapsedMixture(z, component), obs=x)


def symbols(x):
    z = pyro.sample("z", D.ChineseRestaurant(torch.tensor(ALPHA, dtype=torch.float64), len(x)))
    component = D.DirichletCategorical(torch.tensor(0.3, dtype=torch.float64), 3)
    pyro.sample("x", D.CollapsedMixture(z, component), obs=(x[:, 0] > 0).long() + (x[:, 1] > 1))


@pytest.mark.parametrize("model", [mixture, wishart, symbols])
@pytest.mark.parametrize("count", [1, 5])
def test_a_sweep_that_passes_over_elements_is_that_of_every_element(model, count):
    x = two_heaps(80, seed=9)
    start = {"z": torch.arange(80).remainder(7).unsqueeze(0)}
    pyro.set_rng_seed(0)
    engines = [pg.DPVI(model, num_particles=count, init=start, progress=False) for _ in range(2)]
    fast, slow = (engine.setup(x).search.found for engine in engines)
    for _ in range(4):
        fast.sweep(count)
        for name, i in slow.elements:
            slow.move(name, i, count)
        torch.testing.assert_close(fast.score, slow.score, rtol=0, atol=1e-9)
        assert torch.equal(fast._key(), slow._key())
    climbed, plain = (engine.setup(x).search.found for engine in engines)
    climbed.climb()
    for name, i in plain.elements:
        clusters = plain.clusters[name]
        clusters.take_out(i)
        clusters.put_in(i, clusters.scores(i).argmax(1))
    assert torch.equal(climbed._key(), plain._key())


def five_points(x):
    """What the programs below share."""
    return D.NormalInverseGamma(torch.tensor(0.5, dtype=x.dtype), 2.0, 1.5)


def prior_reads(x):
    z = pyro.sample("z", D.ChineseRestaurant(1.0, 3))
    w = pyro.sample("w", D.ChineseRestaurant(torch.where(z.max() > 0, 5.0, 0.2), len(x)))
    pyro.sample("x", D.CollapsedMixture(w, five_points(x)), obs=x)


def parameter_reads(x):
    z = pyro.sample("z", D.ChineseRestaurant(1.0, 3))
    w = pyro.sample("w", D.ChineseRestaurant(1.0, len(x)))
    component = D.NormalInverseGamma(0.5 + z.max().to(x.dtype), 2.0, 1.5)
    pyro.sample("x", D.CollapsedMixture(w, component), obs=x)


def data_read(x):
    z = pyro.sample("z", D.ChineseRestaurant(1.0, len(x)))
    pyro.sample("x", D.CollapsedMixture(z, five_points(x)), obs=x - 3.0 * z.unsqueeze(1))


def rare_factor(x):
    # draws from the prior nearly always put all elements together
    z = pyro.sample("z", D.ChineseRestaurant(0.001, len(x)))
    pyro.sample("x", D.CollapsedMixture(z, five_points(x)), obs=x)
    pyro.factor("f", -3.0 * z.max().to(x.dtype))


def rare_statement(x):
    z = pyro.sample("z", D.ChineseRestaurant(0.001, len(x)))
    pyro.sample("x", D.CollapsedMixture(z, five_points(x)), obs=x)
    if int(z.max()) > 2:
        pyro.factor("f", torch.ones(()))


def table_of_two(x):
    z = pyro.sample("z", D.ChineseRestaurant(0.001, len(x)))
    pyro.sample("x", D.CollapsedMixture(z, five_points(x)), obs=x)
    pyro.factor("f", torch.zeros(2)[z].sum())


def not_three(x):
    # neither one cluster, nor many, nor draws from the prior show it
    z = pyro.sample("z", D.ChineseRestaurant(0.001, len(x)))
    pyro.sample("x", D.CollapsedMixture(z, five_points(x)), obs=x)
    pyro.factor("f", -50.0 * (z.max() + 1 != 3).to(x.dtype))


def three_at_most(x):
    # impossible at most labels, so that the density is -inf at the first ones
    z = pyro.sample("z", D.ChineseRestaurant(0.001, len(x)))
    pyro.sample("x", D.CollapsedMixture(z, five_points(x)), obs=x)
    pyro.factor("f", torch.where(z.max() + 1 == 3, 0.0, -torch.inf))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (not_three, '"f" changes with the labels'),
        (three_at_most, '"f" changes with the labels'),
        (prior_reads, '"w" changes with the labels'),
        (parameter_reads, '"x" changes with the labels'),
        (data_read, '"x" changes with the labels'),
        (rare_factor, '"f" changes with the labels'),
        (rare_statement, '"f" changes with the labels'),
        (table_of_two, "fails at other labels"),
    ],
)
def test_statements_that_read_labels_in_another_way_are_refused(model, said):
    for infer in (pg.DPVI, pg.SequentialDPVI):
        with pytest.raises(UnsupportedFactor, match=said):
            fit(model, two_heaps(5), infer=infer)


@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
def test_a_statement_that_reads_the_best_labels_alone_is_refused(infer):
    x = two_heaps(40)
    best = infer(mixture, num_particles=5, progress=False).run(x)
    best = best.particles["z"][best.weights.argmax()]

    def model(x):
        z = pyro.sample("z", D.ChineseRestaurant(torch.tensor(ALPHA, dtype=x.dtype), len(x)))
        component = D.NormalInverseGamma(torch.tensor(KAPPA, dtype=x.dtype), A, B)
        pyro.sample("x", D.CollapsedMixture(z, component), obs=x)
        pyro.factor("f", -3.0 * (z == best).all().to(x.dtype))

    with pytest.raises(UnsupportedFactor, match='"f" changes with the labels'):
        infer(model, num_particles=5, progress=False).run(x)


def test_an_impossible_statement_beside_labels_is_named():
    def model(x):
        mixture(x)
        pyro.factor("never", torch.tensor(-torch.inf))

    with pytest.raises(NonFiniteDensity, match='"never" has log density -inf'):
        fit(model, two_heaps(5))


@pytest.mark.parametrize("which", ["scale", "mask"])
@pytest.mark.parametrize("statement", ["prior", "data"])
def test_scaled_and_masked_statements_are_refused(which, statement):
    change = pyro.poutine.scale(scale=2.0) if which == "scale" else pyro.poutine.mask(mask=False)
    none = contextlib.nullcontext()

    def model(x):
        with change if statement == "prior" else none:
            z = pyro.sample("z", D.ChineseRestaurant(1.0, len(x)))
        with change if statement == "data" else none:
            pyro.sample("x", D.CollapsedMixture(z, five_points(x)), obs=x)

    with pytest.raises(UnsupportedFactor, match=r'"[xz]" is scaled or masked'):
        fit(model, two_heaps(5))


def test_a_state_of_other_data_is_refused_and_changes_nothing():
    x, other = two_heaps(6), 3 * two_heaps(6)
    for steps in (3, 6):
        saved = pg.SequentialDPVI(mixture, num_particles=5, progress=False).setup(x)
        for _ in range(steps):
            saved.step()
        engine = pg.SequentialDPVI(mixture, num_particles=5, progress=False).setup(other)
        with pytest.raises(ShapeMismatch, match="other data or parameters"):
            engine.load_state_dict(saved.state_dict())
        again = pg.SequentialDPVI(mixture, num_particles=5, progress=False)
        assert torch.equal(engine.run().log_evidence, again.run(other).log_evidence)


@pytest.mark.parametrize(
    "as_given", [torch.Tensor.float, torch.Tensor.numpy, torch.Tensor.tolist, lambda z: z[:0]]
)
def test_labels_are_proposed_in_any_form(as_given):
    def proposals(values):
        return {"z": as_given(values["z"])}

    plain, proposed = fit(mixture, two_heaps(5)), fit(mixture, two_heaps(5), proposals=proposals)
    torch.testing.assert_close(proposed.log_evidence, plain.log_evidence)


@pytest.mark.parametrize(
    ("proposals", "said"),
    [
        (lambda values: None, "returned NoneType"),
        (lambda values: {"z": values["z"] - 1}, "must be labels 0, 1"),
        (lambda values: {"z": "abc"}, "no tensor of labels"),
    ],
)
def test_proposals_that_are_no_labels_are_refused(proposals, said):
    with pytest.raises(pg.errors.OptionError, match=said):
        fit(mixture, two_heaps(5), proposals=proposals)


@pytest.mark.parametrize(
    "infer, options, start",
    [(pg.DPVI, {"init": "random"}, 0), (pg.SequentialDPVI, {"smoothing": True}, 12)],
)
def test_a_step_whose_proposals_raise_leaves_the_labels_as_they_were(infer, options, start):
    def proposals(values):
        if fails:
            raise RuntimeError("no proposals today")
        return {name: z[:0] for name, z in values.items()}

    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)).double()
    options = {"num_particles": 3, "proposals": proposals, "progress": False, **options}
    engine, twin = infer(mixture, **options), infer(mixture, **options)
    for each in (engine, twin):
        fails = False
        pyro.set_rng_seed(1)
        each.setup(x)
        for _ in range(start):
            each.step()
    for _ in range(4):
        fails, before = True, engine.values()
        with pytest.raises(RuntimeError, match="today"):
            engine.step()
        assert torch.equal(engine.values()["z"], before["z"])
        fails = False
        assert engine.step() == twin.step()
        assert torch.equal(engine.values()["z"], twin.values()["z"])


def test_names_of_labels_may_be_large_numbers():
    z = torch.tensor([[0, 1, 0, 1, 10**11]])
    assert in_order(z).tolist() == [[0, 1, 0, 1, 2]]
    assert in_order(torch.tensor([[-1, 10**11, 5]])).tolist() == [[-1, 0, 1]]
    assert fit(mixture, two_heaps(5), init={"z": z}).converged


def test_other_precisions_and_devices_than_the_programs_are_refused():
    with pytest.raises(pg.errors.OptionError, match="leave dtype= and device= out"):
        fit(mixture, two_heaps(5), dtype=torch.float32)
    with pytest.raises(pg.errors.OptionError, match="device="):
        fit(mixture, two_heaps(5), device="meta")
    assert fit(mixture, two_heaps(5), dtype=torch.float64, device="cpu").converged


def test_values_of_labels_are_the_particles():
    engine = pg.DPVI(mixture, num_particles=3, progress=False).setup(two_heaps(5))
    assert torch.equal(engine.values()["z"], engine.posterior().particles["z"])


@pytest.mark.parametrize("single", [False, True])
def test_data_that_change_under_a_run_are_told(single):
    x = two_heaps(16).to(torch.float32 if single else torch.float64)
    engine = pg.DPVI(mixture, num_particles=3, progress=False).setup(x)
    engine.step()
    engine.posterior()
    x.copy_(x[torch.randperm(16)])
    engine.step()
    with pytest.raises(UnsupportedFactor, match="these changed while it ran"):
        engine.posterior()
