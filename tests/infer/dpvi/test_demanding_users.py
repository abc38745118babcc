"""DPVI on the programs that people bring: every truth is Pyro's own density at every joint state,
a forward pass, or a closed form."""

from __future__ import annotations

import functools
import io
import itertools
import math
import sys
from collections.abc import Callable

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import Importance, Predictive, Trace_ELBO, TraceEnum_ELBO
from pyro.ops.indexing import Vindex
from scipy.special import logsumexp
from torch import tensor

import pyrograph as pg
from pyrograph.errors import (
    InferenceError,
    InvalidProgram,
    NonFiniteDensity,
    OptionError,
    ShapeMismatch,
    UnsupportedSite,
    ZeroMass,
)

D = pg.distributions
ENGINES = [pg.DPVI, pg.SequentialDPVI]


def fit(model: Callable, *args, infer=pg.DPVI, seed: int = 0, **options) -> pg.Posterior:
    pyro.set_rng_seed(seed)
    return infer(model, progress=False, **options).run(*args)


def every_state(model: Callable, *args, **sites) -> tuple[np.ndarray, dict[str, torch.Tensor]]:
    """Pyro's log density of every joint state, and the states ``{site: [N, *shape]}``; of every
    site its values and batch shape are given."""
    grids = []
    for values, batch in sites.values():
        combinations = itertools.product(values, repeat=math.prod(batch))
        shape = (*batch, *values.shape[1:])
        grids.append([torch.stack(c).reshape(shape) for c in combinations])
    scores, states = [], []
    for joint in itertools.product(*grids):
        data = dict(zip(sites, joint, strict=True))
        with torch.no_grad(), pyro.validation_enabled(False):
            trace = poutine.trace(poutine.condition(model, data=data)).get_trace(*args)
            scores.append(float(trace.log_prob_sum()))
        states.append(data)
    return np.array(scores), {n: torch.stack([s[n] for s in states]) for n in sites}


def expectation(scores: np.ndarray, values: torch.Tensor) -> np.ndarray:
    weights = np.exp(scores - logsumexp(scores))
    return np.tensordot(weights, values.double().numpy(), 1)


TWO, THREE = tensor([0.0, 1.0]).double(), torch.arange(3)


@functools.cache
def truth_of(model: Callable) -> tuple[np.ndarray, dict[str, torch.Tensor]]:
    """Of a program of the list below."""
    return every_state(model, **SITES[model])


# ---------------------------------------------------------------------- ordinary Pyro programs
def crowd(answers, asked):
    """Dawid and Skene with known skills; not everybody answers everything."""
    skill = tensor([[[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]]]).repeat(4, 1, 1)
    skill[3] = 1 / 3
    with pyro.plate("items", 3, dim=-1):
        z = pyro.sample("z", dist.Categorical(tensor([0.5, 0.3, 0.2])))
        with pyro.plate("workers", 4, dim=-2), poutine.mask(mask=asked):
            probs = Vindex(skill)[torch.arange(4)[:, None], z]
            pyro.sample("answer", dist.Categorical(probs), obs=answers)


def binomials():
    with pyro.plate("pots", 2):
        k = pyro.sample("k", dist.Binomial(3, 0.3))
    pyro.sample("seen", dist.Poisson(1 + k.sum()), obs=tensor(4.0))
    pyro.sample("b", dist.BetaBinomial(2.0, 3.0, 2))


def count_of_counts():
    n = pyro.sample("n", dist.Categorical(tensor([0.2, 0.3, 0.5])))
    each = dist.Binomial(n.double().unsqueeze(-1), tensor(0.3), validate_args=False)
    k = pyro.sample("k", dist.Categorical(logits=each.log_prob(torch.arange(3.0).double())))
    pyro.factor("more", 0.3 * k)


def one_hot():
    x = pyro.sample("x", dist.OneHotCategorical(tensor([0.2, 0.3, 0.5])))
    pyro.sample("y", dist.Bernoulli(tensor([0.1, 0.8])).to_event(0))  # a batch without a plate
    pyro.sample("w", dist.Bernoulli((x * tensor([0.1, 0.5, 0.9])).sum()))
    pyro.factor("f", 0.5 * x[..., 0])


def scaled():
    p = pyro.param("p", tensor(0.3))
    with pyro.plate("nodes", 3), poutine.scale(scale=2.5):
        x = pyro.sample("x", dist.Bernoulli(p))
        pyro.sample("y", dist.Normal(x, 1.0), obs=tensor([0.1, 0.5, 0.8]))
    pyro.deterministic("total", x.sum())


def two_plates():
    with pyro.plate("rows", 2, dim=-2):
        a = pyro.sample("a", dist.Bernoulli(0.4))
        columns = pyro.plate("columns", 3, dim=-1)
        with columns:
            b = pyro.sample("b", dist.Bernoulli(0.2 + 0.6 * a))
    with columns:
        pyro.factor("ties", (b[..., :1, :] == b[..., 1:, :]).double())


def partly_observed():
    mask = tensor([True, False, True])
    with pyro.plate("items", 3):
        z = pyro.sample("z", dist.Bernoulli(0.3))
        probs = Vindex(tensor([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]]))[z.long()]
        pyro.sample("y", dist.Categorical(probs), obs=tensor([0, 1, 2]), obs_mask=mask)


def chained():
    with pyro.plate("nodes", 4):
        x = pyro.sample("x", dist.Categorical(tensor([0.2, 0.3, 0.5])))
    z = pyro.sample("z", dist.Bernoulli(0.3))
    pyro.factor("f", 0.4 * (x[1:] * x[:-1]).sum() - z * x[0])


#: Of every program its sites: their values, and batch shapes.
SITES = {
    binomials: {"k": (torch.arange(4.0).double(), (2,)), "b": (torch.arange(3.0).double(), ())},
    count_of_counts: {"n": (THREE, ()), "k": (THREE, ())},
    one_hot: {"x": (torch.eye(3).double(), ()), "y": (TWO, (2,)), "w": (TWO, ())},
    scaled: {"x": (TWO, (3,))},
    two_plates: {"a": (TWO, (2, 1)), "b": (TWO, (2, 3))},
    partly_observed: {"z": (TWO, (3,)), "y_unobserved": (THREE, (3,))},
    chained: {"x": (THREE, (4,)), "z": (TWO, ())},
}

#: What nodes that are masked out add to Pyro's log density summed over all states.
MASKED = {partly_observed: 2 * math.log(3)}


@pytest.mark.parametrize("infer", ENGINES)
@pytest.mark.parametrize("model", SITES)
def test_with_particles_for_all_states_programs_of_all_kinds_are_exact(model, infer):
    scores, states = truth_of(model)
    q = fit(model, infer=infer, num_particles=300)
    log_z = logsumexp(scores) - MASKED.get(model, 0.0)
    assert float(q.log_evidence) == pytest.approx(log_z, abs=1e-9)
    assert q.evidence_kind == "exact" and not q.log_evidence.requires_grad
    for name, (_, batch) in SITES[model].items():
        marginal = q.marginal(name)
        assert tuple(marginal.batch_shape) == batch
        assert marginal.mean.shape == states[name].shape[1:]
        np.testing.assert_allclose(marginal.mean, expectation(scores, states[name]), atol=1e-9)
        square = expectation(scores, states[name].double() ** 2)
        variance = square - expectation(scores, states[name]) ** 2
        np.testing.assert_allclose(marginal.variance, variance, atol=1e-9)


@pytest.mark.parametrize("model", [model for model in SITES if model not in MASKED])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_with_few_particles_the_bound_is_that_of_the_states_it_names(model, count):
    (scores, states), sites = truth_of(model), SITES[model]
    found = {
        tuple(np.concatenate([states[n][i].double().flatten() for n in sites])): scores[i]
        for i in range(len(scores))
    }
    q = fit(model, num_particles=count)
    rows = torch.cat([q.particles[n].double().reshape(count, -1) for n in sites], 1)
    values = np.array([found[tuple(row)] for row in rows.tolist()])
    assert len({tuple(row) for row in rows.tolist()}) == count
    assert float(q.log_evidence) == pytest.approx(logsumexp(values), abs=1e-9)
    assert float(q.log_evidence) == pytest.approx(logsumexp(np.sort(scores)[-count:]), abs=1e-9)
    np.testing.assert_allclose(q.weights, np.exp(values - logsumexp(values)), atol=1e-9)


def test_crowdsourced_labels_have_the_posterior_of_bayes_rule():
    rng = np.random.default_rng(0)
    answers, asked = rng.integers(0, 3, (4, 3)), rng.random((4, 3)) < 0.7
    q = fit(crowd, tensor(answers), tensor(asked), num_particles=27)
    skill = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]])
    log_z = 0.0
    for item in range(3):
        p = np.array([0.5, 0.3, 0.2])
        for worker in range(4):
            if asked[worker, item]:
                p = p * (skill[:, answers[worker, item]] if worker < 3 else 1 / 3)
        log_z += math.log(p.sum())
        np.testing.assert_allclose(q.marginal("z").probs[item], p / p.sum(), atol=1e-10)
    assert float(q.log_evidence) == pytest.approx(log_z, abs=1e-10)


@pytest.mark.parametrize("infer", ENGINES)
def test_a_program_written_for_enumeration_has_the_evidence_that_pyro_enumerates(infer):
    def hmm(observed):
        z, move, emit = 0, tensor([[0.9, 0.1], [0.2, 0.8]]), tensor([[0.7, 0.3], [0.1, 0.9]])
        for t in pyro.markov(range(len(observed))):
            fn = dist.Categorical(Vindex(move)[z])
            z = pyro.sample(f"z_{t}", fn, infer={"enumerate": "parallel"})
            pyro.sample(f"x_{t}", dist.Categorical(Vindex(emit)[z]), obs=observed[t])

    observed = tensor([0, 1, 1, 0, 1])
    truth = -TraceEnum_ELBO(max_plate_nesting=0).loss(hmm, lambda observed: None, observed)
    q = fit(hmm, observed, infer=infer, num_particles=32)
    assert float(q.log_evidence) == pytest.approx(truth, abs=1e-9)


@pytest.mark.parametrize("infer", ENGINES)
def test_a_bayesian_network_with_evidence_is_exact_zeros_in_tables_and_all(data_root, infer):
    network = pg.datasets.bayesian_network("asia")
    evidence = {"xray": "yes", "dysp": "no"}
    sites = {n: (torch.arange(2), ()) for n in network.states if n not in evidence}
    scores, states = every_state(network, evidence, **sites)
    q = fit(network, evidence, infer=infer, num_particles=64)
    assert float(q.log_evidence) == pytest.approx(logsumexp(scores), abs=1e-9)
    for name in sites:
        found = float(q.marginal(name).mean)
        assert found == pytest.approx(float(expectation(scores, states[name])), abs=1e-9)
    # states of mass zero are no particles
    assert len(q.weights) == int(np.isfinite(scores).sum()) < len(scores)


@pytest.mark.parametrize("name", ["Grids_11", "Alchemy_11"])
def test_the_bound_of_a_contest_network_is_below_its_reference(data_root, name):
    reference = pg.datasets.uai_reference(name)
    q = fit(pg.datasets.read_uai(name), num_particles=4, num_steps=4, tol=None)
    assert float(q.log_evidence) < float(reference.log_evidence)
    score = q.graph.log_prob({n: v[0] for n, v in q.particles.items()})
    best = q.log_evidence + q.log_weights[0]
    assert float(score) == pytest.approx(float(best), rel=1e-6)


# ---------------------------------------------------------------------- corners of programs
@pytest.mark.parametrize("moves", ["block", "pair", "single", "flip", None])
def test_sites_of_one_state_are_certain(moves):
    def model():
        pyro.sample("x", dist.Categorical(torch.ones(1)))
        with pyro.plate("nodes", 2):
            y = pyro.sample("y", dist.Categorical(torch.ones(1)))
        pyro.factor("f", 0.7 * (1.0 + y.sum()))

    q = fit(model, moves=moves)
    assert float(q.log_evidence) == pytest.approx(0.7) and q.evidence_kind == "exact"
    assert q.marginal("y").probs.tolist() == [[1.0], [1.0]] and len(q.weights) == 1


@pytest.mark.parametrize("infer", ENGINES)
def test_a_program_without_latents_is_refused(infer):
    with pytest.raises(InferenceError, match="no latent"):
        fit(lambda: pyro.sample("x", dist.Normal(0.0, 1.0), obs=tensor(1.0)), infer=infer)


def free():
    with pyro.plate("nodes", 3):
        pyro.sample("x", dist.Categorical(tensor([0.2, 0.3, 0.5])))


def test_nodes_that_share_no_factor_may_all_be_summed_out():
    q = fit(free, sum_out="auto", num_particles=4)
    assert float(q.log_evidence) == pytest.approx(0.0, abs=1e-12)
    assert q.evidence_kind == "exact" and len(q.weights) == 1
    np.testing.assert_allclose(q.marginal("x").probs, [[0.2, 0.3, 0.5]] * 3, atol=1e-12)
    draws = q.sample(6000)["x"]
    # four standard errors
    assert float((draws == 2).double().mean()) == pytest.approx(0.5, abs=4 * 0.5 / 18_000**0.5)
    assert q.sample(0)["x"].shape == (0, 3)


@pytest.mark.parametrize("infer", ENGINES)
def test_without_any_prior_the_evidence_counts_states(infer):
    def model():
        with pyro.plate("nodes", 3):
            pyro.sample("x", dist.Bernoulli(0.5).mask(False))

    assert float(fit(model, infer=infer, num_particles=8).log_evidence) == pytest.approx(
        math.log(8)
    )
    q = fit(model, infer=infer, num_particles=2)
    assert float(q.log_evidence) == pytest.approx(math.log(2)) and "pg.BP" in q.status


def observing(value: float, fn=None) -> Callable:
    def model():
        pyro.sample("x", dist.Bernoulli(0.5))
        pyro.sample("y", fn or dist.Normal(0.0, 1.0, validate_args=False), obs=tensor(value))

    return model


@pytest.mark.filterwarnings("ignore:Encountered")  # Pyro's own
@pytest.mark.parametrize("infer", ENGINES)
@pytest.mark.parametrize(
    "model, error, words",
    [
        (observing(math.nan), NonFiniteDensity, "observed to be nan"),
        (observing(2.0, dist.Delta(tensor(2.0), log_density=math.inf)), NonFiniteDensity, "inf"),
        (observing(2.0, dist.Uniform(0.0, 1.0, validate_args=False)), ZeroMass, "support"),
        (observing(math.nan, dist.Normal(0.0, 1.0)), InvalidProgram, 'after statement "y"'),
    ],
)
def test_data_without_a_density_are_told_before_the_run(model, error, words, infer):
    with pytest.raises(error, match=words):
        fit(model, infer=infer)


@pytest.mark.parametrize("infer", ENGINES)
def test_factors_that_are_zero_or_undefined_are_named(infer):
    def never():
        x = pyro.sample("x", dist.Bernoulli(0.5))
        pyro.factor("fine", x)
        pyro.factor("never", torch.where(x >= 0, -math.inf, 0.0))

    def undefined():
        x = pyro.sample("x", dist.Bernoulli(0.5))
        with pyro.validation_enabled(False):
            pyro.factor("ratio", (x - 1) / (x - 1))

    with pytest.raises(ZeroMass, match='"never"'):
        fit(never, infer=infer)
    with pytest.raises(NonFiniteDensity, match='"ratio"'):
        fit(undefined, infer=infer)


@pytest.mark.parametrize("infer", ENGINES)
def test_constraints_that_leave_nothing_together_are_told_as_such(infer):
    def model():
        x = pyro.sample("x", dist.Bernoulli(0.5))
        y = pyro.sample("y", dist.Bernoulli(0.5))
        pyro.factor("same", torch.where(x == y, 0.0, -math.inf))
        pyro.factor("other", torch.where(x != y, 0.0, -math.inf))

    with pytest.raises(ZeroMass, match="every joint state"):
        fit(model, infer=infer, num_particles=4)
    if infer is pg.DPVI:  # it knows that no state is better
        with pytest.raises(ZeroMass, match="every joint state"):
            fit(model, infer=infer, num_particles=1)
    with pytest.raises(InferenceError, match=r"(init|num_particles)") as raised:
        fit(model, infer=infer, num_particles=1, moves="flip")
    assert not isinstance(raised.value, ZeroMass)


@pytest.mark.parametrize("infer", ENGINES)
def test_outliers_are_no_zeros(infer):
    def model(shift):
        x = pyro.sample("x", dist.Categorical(tensor([0.25, 0.75])))
        pyro.sample("y", dist.Normal(x.double(), 1e-7), obs=tensor(0.5))  # -1.25e13 for both
        pyro.factor("far", tensor(shift))

    for shift in (0.0, -3e12):
        q = fit(model, shift, infer=infer)
        np.testing.assert_allclose(q.marginal("x").probs, [0.25, 0.75], atol=1e-2)  # 13 digits
        assert float(q.log_evidence) == pytest.approx(-1.25e13 + shift, rel=1e-9)


def test_a_program_that_fails_at_some_draws_is_read_at_others():
    def model():
        x = pyro.sample("x", dist.Bernoulli(0.5))
        scale = torch.where(x > 0, 1.0, -1.0)
        pyro.factor("only", torch.where(x > 0, 0.0, -math.inf))
        pyro.sample("y", dist.Normal(0.0, scale), obs=tensor(0.0))

    for seed in range(4):
        with pytest.raises(NonFiniteDensity, match='"y"'):
            fit(model, seed=seed)

    def always():
        pyro.sample("x", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Normal(0.0, -1.0), obs=tensor(0.0))

    with pytest.raises(InvalidProgram, match='"x"'):
        fit(always)


def ladder(steps: int) -> tuple[Callable, tuple[float, ...]]:
    """From all zeros the only way into the support is one node after the other, the last first: an
    upper node asks for those below it, each time by fewer zeros than are won."""
    logits = torch.linspace(-0.7, 1.1, steps)

    def model():
        with pyro.plate("nodes", steps):
            x = pyro.sample("x", dist.Bernoulli(logits=logits))
        for k in range(1, steps):
            for copy in range(k):
                broken = (x[k] > 0) & (x[k - 1] == 0)
                pyro.factor(f"{k}_{copy}", torch.where(broken, -math.inf, 0.0))
        for copy in range(steps):
            pyro.factor(f"top_{copy}", torch.where(x[-1] == 0, -math.inf, 0.0))

    return model, logits


def test_scores_are_sharp_also_after_a_way_through_states_without_mass():
    model, logits = ladder(6)
    start = {"x": torch.zeros(1, 6)}
    q = fit(model, num_particles=1, moves="single", init=start)
    assert q.particles["x"].tolist() == [[1.0] * 6]
    exact = float(torch.nn.functional.logsigmoid(logits).sum())
    assert float(q.log_evidence) == pytest.approx(exact, abs=1e-9)
    assert len(q.history["objective"]) > 3  # several sweeps from one rung to the next


@given(
    st.integers(0, 10_000), st.integers(1, 20), st.sampled_from(["block", "single", "flip", None])
)
@settings(max_examples=12)
def test_with_hard_constraints_bounds_never_fall_and_are_those_of_states_with_mass(
    seed, count, moves
):
    rng = np.random.default_rng(seed)
    tables = {}
    for i, j in itertools.combinations(range(4), 2):
        table = rng.normal(size=(3, 3))
        table[rng.random((3, 3)) < 0.25] = -math.inf
        table[0, 0] = 0.1  # all zeros is a state with mass
        tables[i, j] = tensor(table)

    def model():
        with pyro.plate("nodes", 4):
            x = pyro.sample("x", dist.Categorical(torch.ones(3) / 3))
        for (i, j), table in tables.items():
            pyro.factor(f"f_{i}_{j}", table[x[i], x[j]])

    states = np.array(list(itertools.product(range(3), repeat=4)))
    scores = -4 * math.log(3) + sum(
        t.numpy()[states[:, i], states[:, j]] for (i, j), t in tables.items()
    )
    found = {tuple(s): v for s, v in zip(states.tolist(), scores, strict=True)}
    init = {"x": torch.cat([torch.zeros(1, 4), tensor(rng.integers(0, 3, (3, 4)))]).long()}
    q = fit(model, num_particles=count, moves=moves, init=init)
    values = [found[tuple(row)] for row in q.particles["x"].tolist()]
    assert float(q.log_evidence) == pytest.approx(logsumexp(values), abs=1e-9)
    assert float(q.log_evidence) <= logsumexp(np.sort(scores)[::-1][:count]) + 1e-9
    bounds = q.history["objective"].numpy()
    assert (np.diff(bounds) >= -1e-9 * (1 + np.abs(bounds[1:]))).all()


@pytest.mark.parametrize("count", [1, 7])
def test_a_site_of_many_states_keeps_the_best_of_them(count):
    logits = 3 * torch.randn(20_000, generator=torch.Generator().manual_seed(0))

    def model():
        pyro.sample("x", dist.Categorical(logits=logits))

    for infer in ENGINES:
        q = fit(model, infer=infer, num_particles=count)
        best = logits.log_softmax(0).topk(count).values
        assert float(q.log_evidence) == pytest.approx(float(best.logsumexp(0)), abs=1e-9)


def test_pairs_of_many_states_are_left_to_other_moves():
    c = 400  # a pair has 160,000 joint states
    table = torch.randn(c, c, generator=torch.Generator().manual_seed(0))

    def model():
        with pyro.plate("nodes", 8):
            x = pyro.sample("x", dist.Categorical(logits=torch.zeros(c)))
        with pyro.plate("pairs", 7):
            pyro.factor("f", table[x[:-1], x[1:]])

    engine = pg.DPVI(model, num_particles=64, progress=False).setup()
    assert "pair" not in engine.search.sweeps.clusters
    score = torch.zeros(c)  # the best path, by Viterbi
    for _ in range(7):
        score = (score.unsqueeze(1) + table).amax(0)
    most = float(score.max()) - 8 * math.log(c) + math.log(64)
    assert -8 * math.log(c) < float(engine.run().log_evidence) <= most


def test_single_precision_programs_have_bounds_summed_in_double():
    torch.set_default_dtype(torch.float32)

    def model():
        with pyro.plate("nodes", 4):
            x = pyro.sample("x", dist.Bernoulli(tensor([0.1, 0.4, 0.6, 0.9])))
        pyro.factor("offset", tensor(1e4))
        pyro.factor("f", x.sum())

    q = fit(model, num_particles=16)
    assert q.log_evidence.dtype is torch.float32
    exact = sum(math.log(1 - p + p * math.e) for p in (0.1, 0.4, 0.6, 0.9)) + 1e4
    assert float(q.log_evidence) == pytest.approx(exact, abs=2e-3)  # of float32 at 1e4
    assert float(q.history["objective"][-1]) == pytest.approx(exact, abs=1e-5)
    p = [0.1, 0.4, 0.6, 0.9]
    expected = [v * math.e / (1 - v + v * math.e) for v in p]
    np.testing.assert_allclose(q.marginal("x").mean, expected, atol=1e-6)


# ---------------------------------------------------------------------- options
X, Z = torch.zeros(2, 4), torch.zeros(2)


@pytest.mark.parametrize(
    "init, error",
    [
        ({"x": X + 1.5, "z": Z}, OptionError),
        ({"x": X + math.nan, "z": Z}, OptionError),
        ({"x": X - 1, "z": Z}, OptionError),
        ({"x": X + 3, "z": Z}, OptionError),
        ({"x": X, "z": torch.zeros(3)}, ShapeMismatch),
        ({"x": X[0], "z": Z[0]}, ShapeMismatch),
        ({"x": X}, ShapeMismatch),
        ({"x": X, "z": Z, "zz": Z}, ShapeMismatch),
        ({"x": X[:0], "z": Z[:0]}, OptionError),
        (X, OptionError),
        (7, OptionError),
        (None, OptionError),
        ({"x": X.to(torch.complex64), "z": Z}, OptionError),
        ({"x": X.to_sparse(), "z": Z}, OptionError),
    ],
)
def test_starts_that_are_no_joint_states_are_refused(init, error):
    with pytest.raises(error):
        fit(chained, init=init, num_particles=3)


@pytest.mark.parametrize(
    "init",
    [
        {"x": X, "z": Z},  # twice the same
        {"x": X.long(), "z": Z.bool()},
        {"x": X.numpy(), "z": Z.numpy()},
        {"x": [[0, 1, 2, 0]], "z": [1]},
        {"x": X.half(), "z": Z.to(torch.int16)},
        {"x": X.bfloat16(), "z": Z.to(torch.uint8)},
        {"x": X.to(torch.uint64), "z": Z.to(torch.uint16)},
    ],
)
def test_starts_of_every_kind_of_numbers_are_taken(init):
    scores, _ = truth_of(chained)
    q = fit(chained, init=init, num_particles=len(scores))
    assert float(q.log_evidence) == pytest.approx(logsumexp(scores), abs=1e-9)
    assert len(q.weights) == len(scores)


@pytest.mark.parametrize(
    "options",
    [
        {"moves": 5},
        {"moves": [3]},
        {"moves": "split"},
        {"proposals": 3},
        {"sum_out": ["z", "zz"]},
        {"sum_out": []},
        {"sum_out": 5},
        {"num_particles": 2.0},
    ],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(OptionError):
        fit(chained, **options)


def test_proposals_are_checked_like_starts():
    with pytest.raises(ShapeMismatch, match='"z"'):
        fit(chained, proposals=lambda values: {"x": values["x"]})
    with pytest.raises(OptionError, match='"z"'):
        fit(chained, proposals=lambda values: {**values, "z": values["z"] + 0.5})
    for change in (lambda z: z.to(torch.complex128), torch.Tensor.to_sparse):
        with pytest.raises(OptionError, match='"z"'):
            fit(chained, proposals=lambda values, to=change: {**values, "z": to(values["z"])})


def test_more_particles_than_states_are_as_many_as_states():
    scores, _ = truth_of(chained)
    for sum_out in (None, "z", "x", "auto"):
        if sum_out == "x":
            with pytest.raises(OptionError, match="share a factor"):
                fit(chained, sum_out=sum_out)
            continue
        q = fit(chained, num_particles=1000, sum_out=sum_out)
        assert float(q.log_evidence) == pytest.approx(logsumexp(scores), abs=1e-9)
        assert float(q.weights.sum()) == pytest.approx(1.0)
        assert q.evidence_kind == "exact" and q.status == "converged"
    assert len(fit(chained, num_particles=1000).weights) == len(scores)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"init": "random"},
        {"init": {"x": X, "z": Z}},
        {"init": "posterior"},
        {"sum_out": "auto"},
        {"infer": pg.SequentialDPVI},
        {"infer": pg.SequentialDPVI, "smoothing": True},
    ],
    ids=str,
)
def test_more_particles_than_memory_cost_what_all_states_cost(options):
    scores, states = truth_of(chained)
    if options.get("init") == "posterior":
        options = {"init": fit(chained, num_particles=3)}
    q = fit(chained, num_particles=10**15, **options)  # nothing can be made for so many
    assert q.evidence_kind == "exact"
    assert float(q.log_evidence) == pytest.approx(logsumexp(scores), abs=1e-9)
    expected = expectation(scores, torch.nn.functional.one_hot(states["x"].long()))
    np.testing.assert_allclose(q.marginal("x").probs.numpy(), expected, atol=1e-9)


def test_a_state_of_all_particles_is_gone_on_from_by_engines_of_more():
    scores, _ = truth_of(chained)
    first = pg.DPVI(chained, num_particles=10**15, progress=False)
    first.run()
    second = pg.DPVI(chained, num_particles=10**16, progress=False).setup()
    second.load_state_dict(first.state_dict())
    assert float(second.run().log_evidence) == pytest.approx(logsumexp(scores), abs=1e-9)


# ---------------------------------------------------------------------- life of an engine
@pytest.mark.parametrize("infer", ENGINES)
@pytest.mark.parametrize("call", ["posterior", "state_dict", "values", "extend", "filtered"])
def test_what_needs_a_program_says_so_before_there_is_one(infer, call):
    engine = infer(chained, progress=False)
    if not hasattr(engine, call):
        return
    with pytest.raises(InferenceError, match="setup"):
        getattr(engine, call)(*(("x",) if call == "filtered" else ()))


def test_an_engine_serves_one_set_of_arguments_until_it_is_set_up_again():
    def model(y, *, scale=1.0):
        with pyro.plate("data", len(y)):
            x = pyro.sample("x", dist.Bernoulli(0.5))
            pyro.sample("y", dist.Normal(x, scale), obs=y)

    def truth(y, scale):
        constant = -0.5 * math.log(2 * math.pi) - math.log(scale) - math.log(2)
        return sum(
            constant + np.logaddexp(-0.5 * (v / scale) ** 2, -0.5 * ((v - 1) / scale) ** 2)
            for v in y
        )

    engine = pg.DPVI(model, num_particles=32, progress=False)
    engine.step(tensor([0.3, -0.2]), scale=2.0)  # no run before
    assert float(engine.posterior().log_evidence) == pytest.approx(truth([0.3, -0.2], 2.0))
    with pytest.raises(InferenceError, match="other model arguments"):
        engine.step(tensor([0.3, -0.2]), scale=3.0)
    q = engine.setup(tensor([0.3, -0.2, 1.0])).run()
    assert float(q.log_evidence) == pytest.approx(truth([0.3, -0.2, 1.0], 1.0))
    q = pg.fit(model, (tensor([0.4]),), {"scale": 0.5}, infer=pg.DPVI, progress=False)
    assert float(q.log_evidence) == pytest.approx(truth([0.4], 0.5))


def test_two_engines_on_one_model_share_nothing():
    def engine():
        pyro.set_rng_seed(3)
        return pg.DPVI(chained, num_particles=4, init="random", moves="single", progress=False)

    alone = [engine().setup().step() for _ in range(1)]
    one, two = engine().setup(), engine().setup()
    assert [one.step()] == alone and [two.step()] == alone
    before = two.search.found.x.clone()
    for _ in range(3):
        one.step()
    assert torch.equal(two.search.found.x, before)


def test_states_of_other_options_are_refused_or_gone_on_from():
    first = pg.DPVI(chained, num_particles=5, progress=False)
    first.run()
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    scores = np.sort(truth_of(chained)[0])[::-1]
    for options in ({"num_particles": 3}, {"num_particles": 9}, {"moves": "flip"}):
        engine = pg.DPVI(chained, **{"num_particles": 5, "progress": False, **options})
        engine.load_state_dict(state)
        q = engine.run()
        count = engine.num_particles
        assert float(q.log_evidence) == pytest.approx(logsumexp(scores[:count]), abs=1e-9)
        assert len(q.weights) == count and q.converged
    for infer, options in ((pg.DPVI, {"sum_out": "z"}), (pg.SequentialDPVI, {})):
        engine = infer(chained, num_particles=5, progress=False, **options)
        engine.load_state_dict(state)
        with pytest.raises(ShapeMismatch):
            engine.setup()


@pytest.mark.parametrize("options", [{"num_particles": 9}, {"moves": "flip"}], ids=str)
def test_an_engine_that_has_converged_goes_on_from_a_state_of_other_options(options):
    first = pg.DPVI(chained, num_particles=5, progress=False)
    first.run()
    engine = pg.DPVI(chained, **{"num_particles": 5, "progress": False, **options})
    assert engine.run().converged
    engine.load_state_dict(first.state_dict())
    assert not engine.converged
    scores = np.sort(truth_of(chained)[0])[::-1][: engine.num_particles]
    q = engine.run()
    assert q.converged
    assert float(q.log_evidence) == pytest.approx(logsumexp(scores), abs=1e-6)


# ---------------------------------------------------------------------- posteriors in use
@pytest.mark.parametrize("sum_out", [None, "a"])
def test_guides_are_vectorised_over_pyros_particles(sum_out):
    q = fit(two_plates, num_particles=6, sum_out=sum_out)
    for parallel in (False, True):
        draws = Predictive(two_plates, guide=q.guide(), num_samples=40, parallel=parallel)()
        assert draws["a"].shape == (40, 2, 1) and draws["b"].shape == (40, 2, 3)
        if sum_out is None:
            rows = {tuple(r) for r in torch.cat([draws[n].flatten(1) for n in "ab"], 1).tolist()}
            own = torch.cat([q.particles[n].flatten(1) for n in "ab"], 1)
            assert rows <= {tuple(r) for r in own.tolist()}
    for vectorised in (False, True):
        elbo = Trace_ELBO(num_particles=8, vectorize_particles=vectorised, max_plate_nesting=2)
        loss = elbo.loss(two_plates, q.guide())
        assert -loss == pytest.approx(float(q.log_evidence), abs=1e-9)


def test_draws_feed_predictive_and_guides_of_some_sites_have_their_marginal():
    scores, states = truth_of(chained)
    q = fit(chained, num_particles=200)
    draws = q.sample(30)
    traced = Predictive(chained, posterior_samples=draws, return_sites=["x", "z"])()
    assert torch.equal(traced["x"], draws["x"])
    one = float(expectation(scores, states["z"]))
    seen = set()
    for _ in range(20):
        trace = poutine.trace(q.guide(["z"])).get_trace()
        z = float(trace.nodes["z"]["value"])
        expected = math.log(one if z else 1 - one)
        assert float(trace.log_prob_sum().detach()) == pytest.approx(expected, abs=1e-9)
        seen.add(z)
    assert seen == {0.0, 1.0}
    weights = torch.stack(list(Importance(chained, q.guide(), num_samples=5).run().log_weights))
    np.testing.assert_allclose(weights, np.full(5, logsumexp(scores)), atol=1e-9)


def test_without_arviz_the_export_says_what_to_install(monkeypatch):
    q = fit(chained, num_particles=3)
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pyrograph\[arviz\]"):
        q.to_arviz()


def test_a_site_that_is_not_there_is_named_by_every_question():
    engine = pg.SequentialDPVI(chained, num_particles=3, progress=False)
    q = engine.run()
    for ask in (q.marginal, lambda name: q.guide([name]), engine.filtered):
        with pytest.raises(OptionError, match='"y"'):
            ask("y")


@pytest.mark.parametrize("infer", ENGINES)
def test_continuous_and_wide_sites_are_refused_by_name(infer):
    def mixed():
        pyro.sample("k", dist.Bernoulli(0.5))
        pyro.sample("rate", dist.Gamma(1.0, 1.0))

    with pytest.raises(UnsupportedSite, match=r'"rate".*GammaPoisson'):
        fit(mixed, infer=infer)
    with pytest.raises(UnsupportedSite, match=r'"k".*plate'):
        fit(lambda: pyro.sample("k", dist.Bernoulli(torch.ones(3) / 2).to_event(1)), infer=infer)
    with pytest.raises(UnsupportedSite, match='"k"'):
        fit(lambda: pyro.sample("k", dist.Binomial(tensor([2.0, 3.0]), 0.5)), infer=infer)


# ---------------------------------------------------------------------- in time
MOVE, EMIT = np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([[0.9, 0.1], [0.25, 0.75]])


def several_chains(observed):
    """A plate of chains inside of a loop in time."""
    z, chains = None, pyro.plate("chains", observed.shape[1])
    for t in pyro.markov(range(observed.shape[0])):
        with chains:
            p = tensor([0.5, 0.5]) if z is None else tensor(MOVE)[z]
            z = pyro.sample(f"z_{t}", dist.Categorical(p))
            pyro.sample(f"x_{t}", dist.Categorical(tensor(EMIT)[z]), obs=observed[t])


def test_filtered_marginals_of_a_plate_of_chains_are_those_of_each_chain():
    observed = torch.randint(0, 2, (4, 2))
    engine = pg.SequentialDPVI(several_chains, num_particles=2**8, progress=False)
    q = engine.run(observed)
    log_z, beliefs = 0.0, np.full((2, 2), 0.5)
    for t, x in enumerate(observed.numpy()):
        beliefs = (beliefs if t == 0 else beliefs @ MOVE) * EMIT[:, x].T
        log_z += np.log(beliefs.sum(1)).sum()
        beliefs = beliefs / beliefs.sum(1, keepdims=True)
        # the second chain has seen its symbol, the first one both
        found = engine.filtered(f"z_{t}").numpy()
        np.testing.assert_allclose(found, beliefs, atol=1e-10)
    assert float(q.log_evidence) == pytest.approx(log_z, abs=1e-10)
    assert q.evidence_kind == "exact"


def lattice(side: int, field: torch.Tensor) -> Callable:
    at = torch.arange(side * side).view(side, side)
    edges = torch.cat(
        [
            torch.stack([at[:, :-1].flatten(), at[:, 1:].flatten()], 1),
            torch.stack([at[:-1].flatten(), at[1:].flatten()], 1),
        ]
    )

    def model():
        with pyro.plate("nodes", side * side):
            x = 2 * pyro.sample("x", dist.Bernoulli(0.5).mask(False)) - 1
            pyro.factor("field", field * x)
        with pyro.plate("edges", len(edges)):
            pyro.factor("pair", 0.5 * x[edges[:, 0]] * x[edges[:, 1]])

    return model


def test_filtering_is_a_beam_search_over_prefixes():
    side, count = 4, 5
    field = torch.randn(16, generator=torch.Generator().manual_seed(1))
    engine = pg.SequentialDPVI(lattice(side, field), num_particles=count, progress=False)
    bounds = engine.run().history["objective"]
    beam = [((), 0.0)]
    for v in range(side * side):
        grown = []
        for past, score in beam:
            for s in (-1.0, 1.0):
                more = float(field[v]) * s
                more += 0.5 * s * past[v - 1] if v % side else 0.0
                more += 0.5 * s * past[v - side] if v >= side else 0.0
                grown.append(((*past, s), score + more))
        beam = sorted(grown, key=lambda path: -path[1])[:count]
        assert float(bounds[v]) == pytest.approx(logsumexp([p[1] for p in beam]), abs=1e-9)
    found = {tuple(row) for row in (2 * engine.posterior().particles["x"] - 1).tolist()}
    assert found == {path for path, _ in beam}
    # pasts are back pointers: a step touches the row above alone, not all that is in
    fresh = pg.SequentialDPVI(lattice(side, field), num_particles=count, progress=False).setup()
    assert len(fresh._filter.paths._recent) == side


@pytest.mark.parametrize("stop", [1, 6, 11, 15, 16, 17])
def test_a_filter_may_be_looked_at_and_saved_at_any_step(stop):
    field = torch.randn(16, generator=torch.Generator().manual_seed(2))
    model = lattice(4, field)
    whole = fit(model, infer=pg.SequentialDPVI, num_particles=4, smoothing=True)
    pyro.set_rng_seed(0)
    first = pg.SequentialDPVI(model, num_particles=4, smoothing=True, progress=False).setup()
    for _ in range(stop):
        first.step()
        seen = first.values()["x"]
        assert len({tuple(row) for row in seen.tolist()}) == len(seen)
    second = pg.SequentialDPVI(model, num_particles=4, smoothing=True, progress=False)
    second.load_state_dict(first.state_dict())
    for engine in (first, second):
        q = engine.run()
        assert float(q.log_evidence) == float(whole.log_evidence)
        assert torch.equal(q.particles["x"], whole.particles["x"])


def changing(y, *, closed=False):
    p = tensor(0.5)
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z_{t}", dist.Bernoulli(p))
        p = 0.2 + 0.6 * z
        pyro.sample(f"y_{t}", dist.Normal(z, 1.0), obs=y[t])
        if t == 0 and closed:
            pyro.factor("closed", torch.where(z > 0, -math.inf, 0.0))


@pytest.mark.filterwarnings("ignore:Encountered")
def test_an_extension_that_fails_leaves_the_filter_as_it_was():
    y = torch.randn(8, generator=torch.Generator().manual_seed(0))
    whole = fit(changing, y, infer=pg.SequentialDPVI, num_particles=4)
    pyro.set_rng_seed(0)
    engine = pg.SequentialDPVI(changing, num_particles=4, progress=False)
    before = engine.run(y[:5])
    with pytest.raises(ShapeMismatch, match='"z_3"'):  # shorter
        engine.extend(y[:3])
    with pytest.raises(TypeError):
        engine.extend()
    with pytest.raises(NonFiniteDensity), pyro.validation_enabled(False):
        engine.extend(torch.cat([y[:5], tensor([math.nan])]))
    assert float(engine.posterior().log_evidence) == float(before.log_evidence)
    q = engine.extend(y)
    assert float(q.log_evidence) == pytest.approx(float(whole.log_evidence), abs=1e-12)
    assert torch.equal(q.particles["z_7"], whole.particles["z_7"])
    assert len(engine.extend(y).history["objective"]) == 8  # nothing new


def test_an_extension_of_all_pasts_is_exact_and_one_that_opens_closed_states_is_not():
    y = torch.randn(4, generator=torch.Generator().manual_seed(0))
    sites = {f"z_{t}": (TWO, ()) for t in range(4)}
    truth = logsumexp(every_state(changing, y, **sites)[0])
    engine = pg.SequentialDPVI(changing, num_particles=16, progress=False)
    engine.run(y[:2])
    q = engine.extend(y)
    assert q.evidence_kind == "exact"
    assert float(q.log_evidence) == pytest.approx(truth, abs=1e-9)
    engine = pg.SequentialDPVI(changing, num_particles=16, progress=False)
    engine.run(y[:2], closed=True)
    q = engine.extend(y + 0.1)  # other data about the past, and no constraint
    assert q.evidence_kind == "lower bound"


def test_an_order_by_time_is_kept_through_two_sites():
    def factorial(n):
        with pyro.plate("times", n):
            a = pyro.sample("a", dist.Bernoulli(0.4))
            b = pyro.sample("b", dist.Bernoulli(0.6))
        pyro.factor("steps", (a[1:] * a[:-1] - b[1:] * b[:-1]).sum())
        pyro.factor("seen", torch.where((a + b) > 0, 0.0, -math.inf).sum())

    truth = logsumexp(every_state(factorial, 4, a=(TWO, (4,)), b=(TWO, (4,)))[0])
    by_time = [(site, (t,)) for t in range(4) for site in ("b", "a")]
    for order in (None, by_time):
        q = fit(factorial, 4, infer=pg.SequentialDPVI, num_particles=256, order=order)
        assert float(q.log_evidence) == pytest.approx(truth, abs=1e-9)
        assert q.evidence_kind == "exact"
    with pytest.raises(ShapeMismatch, match='"c"'):
        fit(factorial, 4, infer=pg.SequentialDPVI, order=[("c", (0,))])


# ---------------------------------------------------------------------- labellings
def mixture(x):
    z = pyro.sample("z", D.ChineseRestaurant(tensor(0.5), len(x)))
    component = D.NormalInverseGamma(tensor(0.1), 1.0, 1.0)
    pyro.sample("x", D.CollapsedMixture(z, component), obs=x)


def relation(r):
    one = tensor(1.0)
    rows = pyro.sample("rows", D.ChineseRestaurant(one, r.shape[0]))
    columns = pyro.sample("columns", D.ChineseRestaurant(one, r.shape[1]))
    pyro.sample("r", D.CollapsedRelation(rows, columns, D.BetaBernoulli(one, one)), obs=r)


POINTS = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("infer", ENGINES)
def test_all_partitions_are_known_to_be_all(infer):
    q = fit(mixture, POINTS, infer=infer, num_particles=52)  # the fifth Bell number
    assert q.evidence_kind == "exact" and len(q.weights) == 52
    assert fit(mixture, POINTS, infer=infer, num_particles=51).evidence_kind == "lower bound"


@pytest.mark.parametrize("infer", ENGINES)
def test_a_relation_whose_cells_are_all_held_out_has_its_prior(infer):
    q = fit(relation, torch.full((3, 4), math.nan), infer=infer, num_particles=5 * 15)
    assert float(q.log_evidence) == pytest.approx(0.0, abs=1e-9)
    assert q.evidence_kind == "exact"
    # two of a Chinese restaurant of mass one sit together half of the time
    together = q.together("columns").numpy()
    np.testing.assert_allclose(together, 0.5 + 0.5 * np.eye(4), atol=1e-9)


@pytest.mark.filterwarnings("error:Encountered")
@pytest.mark.parametrize("infer", ENGINES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_numbers_in_a_mixture_are_told(infer, value):
    x = POINTS.clone()
    x[1, 0] = value
    with pytest.raises(NonFiniteDensity, match=r'"x" .* data of element 1:'):
        fit(mixture, x, infer=infer)


@pytest.mark.parametrize(
    "options, error",
    [
        ({"moves": "block"}, OptionError),
        ({"moves": ("pair", "split")}, OptionError),
        ({"sum_out": "auto"}, OptionError),
        ({"init": {"z": torch.full((1, 5), -1)}}, OptionError),
        ({"init": {"z": torch.full((1, 5), 0.5)}}, OptionError),
        ({"init": {"z": torch.zeros(0, 5).long()}}, OptionError),
        ({"init": {"z": torch.zeros(1, 4).long()}}, ShapeMismatch),
    ],
)
def test_options_that_are_not_for_labels_are_refused(options, error):
    with pytest.raises(error):
        fit(mixture, POINTS, **options)


def test_one_point_is_one_cluster():
    q = fit(mixture, POINTS[:1])
    assert q.particles["z"].tolist() == [[0]] and q.num_clusters("z").probs.tolist() == [0.0, 1.0]
    assert q.evidence_kind == "exact"


def test_label_states_of_more_particles_are_cut_to_the_best():
    first = pg.DPVI(mixture, num_particles=52, progress=False)
    all_scores = first.run(POINTS).log_weights + first.posterior().log_evidence
    second = pg.DPVI(mixture, num_particles=7, progress=False)
    second.load_state_dict(first.state_dict())
    q = second.run(POINTS)
    best = all_scores.topk(7).values.logsumexp(0)
    assert len(q.weights) == 7
    assert float(q.log_evidence) == pytest.approx(float(best), abs=1e-9)
