"""States that are saved, of other data or in the middle of an extension, against enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm

import pyrograph as pg
from pyrograph.errors import InferenceError, ShapeMismatch
from tests.distributions.partitions import all_partitions, restaurant_urn

D = pg.distributions
DATA = torch.tensor([0, 0, 1, 2, 1, 1])
X = DATA.tolist()
START, MOVE = np.array([0.3, 0.7]), np.array([[0.2, 0.8], [0.6, 0.4]])


def symbols(x):
    z = pyro.sample("z", D.ChineseRestaurant(torch.tensor(1.5), len(x)))
    pyro.sample("x", D.CollapsedMixture(z, D.DirichletCategorical(1.0, 3)), obs=x)


def two_lengths(n, m):
    """Labels of two sites that do not come in step with each other."""
    for name, size in (("z", n), ("w", m)):
        z = pyro.sample(name, D.ChineseRestaurant(torch.tensor(1.5), size))
        data = D.CollapsedMixture(z, D.DirichletCategorical(1.0, 3))
        pyro.sample(f"x_{name}", data, obs=DATA[:size])


def log_evidence(x):
    """Sum over partitions of the urn and of the predictive probabilities in each cluster."""
    total = 0.0
    for z in all_partitions(len(x)).tolist():
        p = restaurant_urn(z, 1.5)
        for t, symbol in enumerate(x):
            own = [x[s] for s in range(t) if z[s] == z[t]]
            p *= (1 + own.count(symbol)) / (3 + len(own))
        total += p
    return math.log(total)


def chain(steps):
    """Two plates, so that nodes of an extension come in after those of both."""
    with pyro.plate("a", steps):
        z = pyro.sample("z", dist.Categorical(torch.tensor(START)))
    with pyro.plate("b", steps):
        w = pyro.sample("w", dist.Categorical(torch.tensor(MOVE)[z]))
    with pyro.plate("c", steps):
        pyro.sample("y", dist.Normal(w.double(), 1.0), obs=torch.arange(steps).double())


def log_evidence_of_chain(steps):
    pairs = list(itertools.product(range(2), range(2)))
    return sum(
        logsumexp([math.log(START[a] * MOVE[a, b]) + norm.logpdf(y, b) for a, b in pairs])
        for y in range(steps)
    )


@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
def test_a_state_of_labels_is_not_taken_over_to_other_data(infer):
    first = infer(symbols, num_particles=5, progress=False)
    first.run(DATA)
    state = first.state_dict()
    second = infer(symbols, num_particles=5, progress=False).setup(DATA.flip(0) % 2)
    with pytest.raises(ShapeMismatch, match="other data or parameters"):
        second.load_state_dict(state)
    third = infer(symbols, num_particles=5, progress=False).setup(DATA)
    third.load_state_dict(state)
    assert third.converged
    assert float(third.posterior().log_evidence) == float(first.posterior().log_evidence)


def test_a_state_of_labels_from_before_scores_were_saved_is_loaded():
    first = pg.DPVI(symbols, num_particles=300, progress=False)
    first.run(DATA)
    state = first.state_dict()
    del state["score"]
    second = pg.DPVI(symbols, num_particles=300, progress=False).setup(DATA)
    second.load_state_dict(state)
    truth = log_evidence(X)
    assert float(second.posterior().log_evidence) == pytest.approx(truth, abs=1e-9)


def test_an_engine_that_has_converged_goes_on_from_labels_of_fewer_particles():
    first = pg.DPVI(symbols, num_particles=2, progress=False)
    first.run(DATA)
    second = pg.DPVI(symbols, num_particles=300, progress=False)
    second.run(DATA)
    second.load_state_dict(first.state_dict())
    assert not second.converged
    truth = log_evidence(X)
    assert float(second.run().log_evidence) == pytest.approx(truth, abs=1e-6)


@pytest.mark.parametrize(
    "model, before, after, steps, truth",
    [
        (two_lengths, (2, 3), (4, 3), 5, lambda: sum(map(log_evidence, (X[:4], X[:3])))),
        (chain, (1,), (3,), 3, lambda: log_evidence_of_chain(3)),
    ],
    ids=["labels", "nodes"],
)
def test_a_run_goes_on_in_the_middle_of_an_extension(model, before, after, steps, truth, tmp_path):
    options = {"num_particles": 200, "progress": False}
    first = pg.SequentialDPVI(model, num_steps=steps, tol=None, **options)
    first.run(*before)
    with pytest.raises(InferenceError, match="are in"):
        first.extend(*after)
    torch.save(first.state_dict(), tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    second = pg.SequentialDPVI(model, **options).setup(*after)
    second.load_state_dict(state)
    q = second.run()
    assert second.num_done == (7 if model is two_lengths else 6)
    assert q.evidence_kind == "exact"
    assert float(q.log_evidence) == pytest.approx(truth(), abs=1e-6)


@pytest.mark.parametrize(
    "model, args, truth",
    [
        (symbols, (DATA,), lambda: log_evidence(X)),
        (chain, (3,), lambda: log_evidence_of_chain(3)),
    ],
    ids=["labels", "nodes"],
)
def test_states_from_before_orders_were_saved_are_loaded(model, args, truth):
    first = pg.SequentialDPVI(model, num_particles=300, progress=False).setup(*args)
    first.step()
    first.step()
    state = {k: v for k, v in first.state_dict().items() if k not in ("elements", "sequence")}
    second = pg.SequentialDPVI(model, num_particles=300, progress=False).setup(*args)
    second.load_state_dict(state)
    assert float(second.run().log_evidence) == pytest.approx(truth(), abs=1e-6)


def likes(seed):
    """A relation of 0 and 1, in which many labellings have equal scores."""
    g = torch.Generator().manual_seed(seed)
    n, m = torch.randint(4, 12, (2,), generator=g).tolist()
    x = (torch.rand(n, m, generator=g) < 0.4).float()

    def model():
        z = pyro.sample("z", D.ChineseRestaurant(1.0, n))
        w = pyro.sample("w", D.ChineseRestaurant(1.0, m))
        pyro.sample("x", D.CollapsedRelation(z, w, D.BetaBernoulli(0.5, 0.5)), obs=x)

    return model


def few_symbols(seed):
    g = torch.Generator().manual_seed(seed)
    n = int(torch.randint(6, 25, (1,), generator=g))
    x = torch.randint(0, 3, (n,), generator=g)

    def model():
        z = pyro.sample("z", D.ChineseRestaurant(1.0, n))
        pyro.sample("x", D.CollapsedMixture(z, D.DirichletCategorical(0.5, 3)), obs=x)

    return model


@pytest.mark.parametrize(
    "make, seed, count, stop",
    [
        *((likes, 30, 3, stop) for stop in (0, 1, 4, 6)),
        (likes, 18, 5, 3),
        (few_symbols, 4, 6, 1),
        (few_symbols, 6, 3, 12),
        (few_symbols, 8, 5, 3),
    ],
)
def test_a_pass_that_was_cut_takes_the_same_of_equal_labellings(make, seed, count, stop, tmp_path):
    engines = [
        pg.SequentialDPVI(make(seed), num_particles=count, progress=False).setup() for _ in "123"
    ]
    whole, first, second = engines
    for _ in range(stop):
        first.step()
    torch.save(first.state_dict(), tmp_path / "state")
    second.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    second.load_state_dict(second.state_dict())  # nothing is lost on the way
    num_elements = sum(labels.shape[1] for labels in whole.values().values())
    for engine in (whole, second):
        while engine.num_done < num_elements:
            engine.step()
    torch.testing.assert_close(
        second.history["objective"], whole.history["objective"], rtol=0, atol=1e-9
    )
    for site, labels in whole.values().items():
        assert torch.equal(second.values()[site], labels)
