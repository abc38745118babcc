"""DPVI against enumeration: the best sets of states, the bound, and what it says of itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import SVI, Importance, Predictive, Trace_ELBO
from scipy.special import logsumexp

import pyrograph as pg
from pyrograph.errors import InferenceError, OptionError, ShapeMismatch, UnsupportedSite
from pyrograph.infer.dpvi import start
from pyrograph.infer.dpvi.clusters import Clusters
from pyrograph.infer.dpvi.network import Network, Tables
from pyrograph.infer.dpvi.start import climbed


def lattice(side: int) -> torch.Tensor:
    at = torch.arange(side * side).view(side, side)
    across = torch.stack([at[:, :-1].flatten(), at[:, 1:].flatten()], 1)
    return torch.cat([across, torch.stack([at[:-1].flatten(), at[1:].flatten()], 1)])


def ising(side: int, beta: float, field: torch.Tensor | None = None) -> Callable:
    edges = lattice(side)

    def model():
        with pyro.plate("nodes", side * side):
            x = 2 * pyro.sample("x", dist.Bernoulli(0.5).mask(False)) - 1
            if field is not None:
                pyro.factor("field", field * x)
        with pyro.plate("edges", len(edges)):
            pyro.factor("pair", beta * x[edges[:, 0]] * x[edges[:, 1]])

    return model


def ising_scores(side: int, beta: float, field: np.ndarray | float = 0.0) -> np.ndarray:
    """Scores of all states, falling."""
    x = np.array(list(itertools.product([-1.0, 1.0], repeat=side * side)))
    a, b = lattice(side).numpy().T
    return np.sort((x * field).sum(1) + beta * (x[:, a] * x[:, b]).sum(1))[::-1]


def fit(model: Callable, *args, seed: int = 0, **options) -> pg.Posterior:
    pyro.set_rng_seed(seed)
    return pg.DPVI(model, progress=False, **options).run(*args)


def mixed():
    """Nodes of two, three and four states, factors of one to three of them, a hard constraint."""
    a = pyro.sample("a", dist.Bernoulli(0.3))
    with pyro.plate("three", 3):
        b = pyro.sample("b", dist.Categorical(torch.tensor([0.2, 0.5, 0.3])))
    c = pyro.sample("c", dist.Categorical(torch.tensor([0.1, 0.4, 0.3, 0.2])))
    pyro.factor("triple", 0.7 * torch.cos(1.3 * b[0] + 0.5 * b[1] * a + c))
    pyro.factor("pair", -0.4 * (b[1] - b[2]).abs() * (1 + c))
    pyro.factor("hard", torch.where((a == 1) & (c == 3), -math.inf, 0.0))


def mixed_scores() -> dict[tuple[int, ...], float]:
    out = {}
    p = np.log([0.2, 0.5, 0.3])
    q = np.log([0.1, 0.4, 0.3, 0.2])
    for a, b0, b1, b2, c in itertools.product(range(2), *[range(3)] * 3, range(4)):
        if a == 1 and c == 3:
            continue
        value = math.log(0.3 if a else 0.7) + p[b0] + p[b1] + p[b2] + q[c]
        value += 0.7 * math.cos(1.3 * b0 + 0.5 * b1 * a + c) - 0.4 * abs(b1 - b2) * (1 + c)
        out[a, b0, b1, b2, c] = value
    return out


# ---------------------------------------------------------------------- the bound
@pytest.mark.parametrize("side", [3, 4])
@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_without_a_field_the_default_start_reaches_the_best_bound(side, beta, count):
    q = fit(ising(side, beta), num_particles=count)
    best = logsumexp(ising_scores(side, beta)[:count])
    assert float(q.log_evidence) == pytest.approx(best, abs=1e-9)
    assert q.converged
    assert q.evidence_kind == "lower bound"


def test_as_many_particles_as_states_give_the_evidence_and_its_marginals():
    q = fit(mixed, num_particles=2 * 27 * 4)
    scores = mixed_scores()
    log_z = logsumexp(list(scores.values()))
    assert float(q.log_evidence) == pytest.approx(log_z, abs=1e-10)
    assert q.evidence_kind == "exact"
    expected = np.zeros((3, 3))
    for state, score in scores.items():
        for k in range(3):
            expected[k, state[1 + k]] += math.exp(score - log_z)
    np.testing.assert_allclose(q.marginal("b").probs.numpy(), expected, atol=1e-10)
    mean = sum(s[4] * math.exp(v - log_z) for s, v in scores.items())
    assert float(q.marginal("c").mean) == pytest.approx(mean, abs=1e-10)


@pytest.mark.parametrize(
    "moves", ["block", "pair", "single", "flip", "region", ("block", "single"), None]
)
@pytest.mark.parametrize("count", [1, 3, 12])
def test_the_bound_never_falls_and_is_the_sum_of_scores_of_distinct_states(moves, count):
    pyro.set_rng_seed(1)
    engine = pg.DPVI(mixed, num_particles=count, moves=moves, init="random", progress=False)
    engine.setup()
    truth, last = mixed_scores(), -math.inf
    for _ in range(12):
        bound = engine.step()
        assert bound >= last - 1e-9
        last = bound
    q = engine.posterior()
    names = ["a", "b", "c"]
    states = torch.cat([q.particles[n].reshape(count, -1).double() for n in names], 1)
    rows = {tuple(int(v) for v in row) for row in states.tolist()}
    assert len(rows) == count
    values = sorted((truth[row] for row in rows), reverse=True)
    assert float(q.log_evidence) == pytest.approx(logsumexp(values), abs=1e-9)
    assert float(q.log_evidence) <= logsumexp(list(truth.values()))
    weights = np.exp(np.array(values) - logsumexp(values))
    np.testing.assert_allclose(q.weights.sort(descending=True).values, weights, atol=1e-9)


def test_one_particle_is_iterated_conditional_modes():
    generator = torch.Generator().manual_seed(0)
    field = torch.randn(36, generator=generator, dtype=torch.float64)
    start = (torch.rand(36, generator=generator) > 0.5).double()
    q = fit(ising(6, 0.6, field), num_particles=1, moves="single", init={"x": start.unsqueeze(0)})
    x, edges = 2 * start.numpy() - 1, lattice(6).numpy()
    while True:
        before = x.copy()
        for i in range(36):
            near = np.concatenate([edges[edges[:, 0] == i, 1], edges[edges[:, 1] == i, 0]])
            force = field[i].item() + 0.6 * x[near].sum()
            x[i] = np.sign(force)
        if (x == before).all():
            break
    np.testing.assert_array_equal(2 * q.particles["x"][0].numpy() - 1, x)


def random_network(seed: int, num_nodes: int, density: float) -> tuple[Callable, np.ndarray]:
    """Nodes of two or three states with random tables of pairs, and the scores of all states."""
    rng = np.random.default_rng(seed)
    cards = rng.integers(2, 4, num_nodes)
    unary = [torch.tensor(rng.normal(size=c)) for c in cards]
    pairs = {
        (i, j): torch.tensor(2 * rng.normal(size=(cards[i], cards[j])))
        for i, j in itertools.combinations(range(num_nodes), 2)
        if rng.random() < density
    }

    def model():
        x = [pyro.sample(f"x{i}", dist.Categorical(logits=unary[i])) for i in range(num_nodes)]
        for (i, j), table in pairs.items():
            pyro.factor(f"pair_{i}_{j}", table[x[i], x[j]])

    states = np.array(list(itertools.product(*(range(c) for c in cards))))
    scores = sum(unary[i].log_softmax(0).numpy()[states[:, i]] for i in range(num_nodes))
    for (i, j), table in pairs.items():
        scores = scores + table.numpy()[states[:, i], states[:, j]]
    return model, scores


@given(st.integers(0, 10_000), st.integers(2, 6), st.floats(0.2, 1.0), st.integers(1, 40))
@settings(max_examples=12, deadline=None)
def test_on_random_networks_the_bound_is_at_most_that_of_the_best_states(
    seed, num_nodes, density, count
):
    model, scores = random_network(seed, num_nodes, density)
    q = fit(model, num_particles=count, seed=seed)
    top = np.sort(scores)[::-1]
    assert float(q.log_evidence) <= logsumexp(top[:count]) + 1e-9
    assert float(q.log_evidence) >= top[0] - 1e-9 or count < 4  # the mode, with some particles
    if count >= len(scores):
        assert float(q.log_evidence) == pytest.approx(logsumexp(scores), abs=1e-9)
        assert q.evidence_kind == "exact"


@given(st.integers(0, 10_000), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_independent_nodes_are_solved_by_one_block_move(seed, count):
    rng = np.random.default_rng(seed)
    logits = torch.tensor(rng.normal(size=(6, 3)))

    def model():
        with pyro.plate("nodes", 6):
            pyro.sample("x", dist.Categorical(logits=logits))

    log_p = logits.log_softmax(1).numpy()
    states = np.array(list(itertools.product(range(3), repeat=6)))
    top = np.sort(log_p[np.arange(6), states].sum(1))[::-1][:count]
    pyro.set_rng_seed(seed)
    engine = pg.DPVI(model, num_particles=count, moves="block", init="random", progress=False)
    assert engine.step() == pytest.approx(logsumexp(top), abs=1e-10)
    np.testing.assert_allclose(engine.search.found.score.numpy(), top, atol=1e-10)


def test_scores_after_thousands_of_moves_are_those_from_scratch():
    generator = torch.Generator().manual_seed(3)
    field = torch.randn(100, generator=generator, dtype=torch.float64)
    pyro.set_rng_seed(0)
    engine = pg.DPVI(ising(10, 0.7, field), num_particles=8, progress=False, moves="single")
    engine.setup()
    search = engine.search
    for _ in range(20):  # 2000 moves of one node
        search.found = search.sweeps(search.found, "single", search.hashes)
    found, again = search.found, search.network.score(search.found.x)
    torch.testing.assert_close(found.score, again, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.hash, search.hashes(found.x), rtol=0, atol=0)


# ---------------------------------------------------------------------- starts and proposals
def test_a_symmetric_model_keeps_both_modes_with_two_particles():
    beta = 100.0
    for seed in range(5):
        q = fit(ising(3, beta), num_particles=2, seed=seed)
        assert float(q.log_evidence) == pytest.approx(12 * beta + math.log(2), abs=1e-9)
        assert q.particles["x"].sum(1).sort().values.tolist() == [0.0, 9.0]
        np.testing.assert_allclose(q.marginal("x").mean.numpy(), 0.5, atol=1e-9)


def test_opposites_are_offered_once():
    engine = pg.DPVI(ising(3, 0.3), num_particles=6, moves=("block",), progress=False).setup()
    particles, sweeps = engine.search.found, engine.search.sweeps
    (every,) = sweeps.far(particles, False, None)
    assert torch.equal(every, 1 - particles.x)
    (rest,) = sweeps.far(particles, False, particles.hash[:, [4, 0, 1]])
    assert torch.equal(rest, 1 - particles.x[:, [2, 3, 5]])


def test_starts_that_have_come_to_rest_are_not_scored_again(monkeypatch):
    scored = []
    plain = Clusters.local_scores

    def spy(self, x, only=None):
        scored.append(x.shape[1])
        return plain(self, x, only)

    monkeypatch.setattr(Clusters, "local_scores", spy)

    def chain():
        x = pyro.sample("x0", dist.Bernoulli(0.5))
        for k in range(1, 9):
            x = pyro.sample(f"x{k}", dist.Bernoulli(0.1 + 0.8 * x))

    network = Network.of_graph(pg.trace_graph(chain))
    blocks = [Clusters(network, torch.tensor([[node]])) for node in range(9)]
    rests = torch.zeros(9, dtype=torch.int64)
    moves = torch.stack([(torch.arange(9) == 4).long(), torch.arange(9) % 2], 1)
    found = climbed(torch.cat([rests[:, None], moves], 1), blocks)
    assert scored == [3] * 9 + [2] * 9
    torch.testing.assert_close(found, torch.tensor([[0, 0, 1]]).expand(9, 3))


@pytest.mark.parametrize("chunk", [1, 20, 2**20])
def test_starts_in_parts_climb_to_where_no_single_change_is_better(monkeypatch, chunk):
    monkeypatch.setattr(start, "CHUNK", chunk)
    engine = pg.DPVI(mixed, moves="block", progress=False).setup()
    x = torch.stack([torch.randint(int(c), (9,)) for c in engine.search.network.cards])
    found = climbed(x, engine.search.sweeps.blocks())
    truth = mixed_scores()
    assert found.shape == x.shape
    for before, state in zip(x.t().tolist(), found.t().tolist(), strict=True):
        score = truth[tuple(state)]
        assert score >= truth.get(tuple(before), -math.inf)
        for k, card in enumerate((2, 3, 3, 3, 4)):
            others = ((*state[:k], s, *state[k + 1 :]) for s in range(card))
            assert score >= max(truth.get(other, -math.inf) for other in others) - 1e-12


def test_another_posterior_or_values_may_start_it():
    field = torch.linspace(-1, 1, 9, dtype=torch.float64)
    model = ising(3, 0.4, field)
    other = pg.fit(model, infer=pg.BP, progress=False)
    best = logsumexp(ising_scores(3, 0.4, field.numpy())[:5])
    assert float(fit(model, num_particles=5, init=other).log_evidence) <= best + 1e-9
    values = {"x": torch.ones(2, 9)}
    assert float(fit(model, num_particles=5, init=values).log_evidence) <= best + 1e-9


def test_proposals_are_taken_where_they_are_better():
    # between the two all changes of one node break the constraint, and of two, and so on
    good = (torch.arange(8) < 4).float()

    def parity():
        with pyro.plate("nodes", 8):
            x = pyro.sample("x", dist.Bernoulli(0.5))
        four, none = (x == good).all(), x.sum() == 0
        pyro.factor("hard", torch.where(four | none, 2.0 * four, -math.inf))

    options = {"num_particles": 1, "init": {"x": torch.zeros(1, 8)}, "moves": ("block", "flip")}
    stuck = fit(parity, **options)
    assert float(stuck.particles["x"].sum()) == 0

    def halves(values):
        return {"x": torch.stack([good, 1 - good])}

    q = fit(parity, proposals=halves, **options)
    assert torch.equal(q.particles["x"][0], good)


# ---------------------------------------------------------------------- what it says
def test_a_diffuse_posterior_is_told_with_the_engines_to_use():
    q = fit(ising(20, 0.05), num_particles=4)  # a sum over all states would take long
    assert "pg.BP" in q.status and "mean-field" in q.status
    peaked = fit(ising(4, 1.0), num_particles=4)
    assert peaked.status == "converged"


def test_a_diffuse_posterior_is_told_its_share_where_the_sum_is_cheap():
    log_z = logsumexp(ising_scores(4, 0.05))
    q = fit(ising(4, 0.05), num_particles=4)
    share = math.exp(float(q.log_evidence) - log_z)
    assert f"{share:.2g} of the mass of all states, whose log is {log_z:.6g}" in q.status


def test_the_mean_field_bound_of_the_warning_is_a_bound():
    from pyrograph.infer.dpvi.diffuse import mean_field_bound
    from pyrograph.infer.dpvi.network import Network

    for beta in (0.05, 0.3, 1.0):
        network = Network.of_graph(pg.trace_graph(ising(3, beta)))
        log_z = logsumexp(ising_scores(3, beta))
        value = mean_field_bound(network)
        assert value <= log_z
        if beta == 0.05:
            assert value == pytest.approx(log_z, abs=0.05)


def test_a_run_cut_short_says_so():
    field = torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.warns(pg.errors.ConvergenceWarning, match="num_steps"):
        q = fit(ising(8, 0.5, field), num_particles=20, num_steps=1, init="random")
    assert not q.converged


def test_states_without_mass_are_no_particles():
    def impossible():
        x = pyro.sample("x", dist.Bernoulli(0.5))
        pyro.factor("never", torch.where(x >= 0, -math.inf, 0.0))

    with pytest.raises(InferenceError, match="hard constraint"):
        fit(impossible)

    def half():
        with pyro.plate("nodes", 2):
            x = pyro.sample("x", dist.Bernoulli(0.5))
        pyro.factor("one", torch.where(x.sum() == 1, 0.0, -math.inf))

    q = fit(half, num_particles=4)
    assert len(q.weights) == 2
    assert float(q.log_evidence) == pytest.approx(math.log(0.5))


@pytest.mark.parametrize(
    "fn, words",
    [
        (dist.Normal(0.0, 1.0), "NormalInverseGamma"),
        (dist.Beta(1.0, 1.0), "BetaBinomial"),
        (dist.Cauchy(0.0, 1.0), "pg.EP"),
        (dist.Poisson(3.0), "no finite list"),
    ],
)
def test_other_sites_are_refused_by_name_with_advice(fn, words):
    with pytest.raises(UnsupportedSite, match=words) as caught:
        fit(lambda: pyro.sample("theta", fn))
    assert '"theta"' in str(caught.value)


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"num_particles": 0}, OptionError, "num_particles"),
        ({"moves": "jump"}, OptionError, "block"),
        ({"moves": ()}, OptionError, "moves"),
        ({"init": "best"}, OptionError, "icm"),
        ({"init": {"y": torch.zeros(1, 9)}}, ShapeMismatch, '"x"'),
        ({"init": {"x": torch.zeros(1, 8)}}, ShapeMismatch, '"x"'),
        ({"init": {"x": torch.full((1, 9), 3.0)}}, OptionError, "states"),
    ],
)
def test_bad_options_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        fit(ising(3, 0.5), **options)


# ---------------------------------------------------------------------- results in use
def test_runs_repeat_under_a_seed_and_go_on_where_they_stopped():
    field = torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = ising(8, 0.5, field)

    def engine():
        pyro.set_rng_seed(5)
        return pg.DPVI(model, num_particles=6, init="random", progress=False).setup()

    one, two, three = engine(), engine(), engine()
    first = [one.step() for _ in range(8)]
    assert first == [two.step() for _ in range(8)]
    for _ in range(3):
        three.step()
    state = three.state_dict()
    pyro.set_rng_seed(77)
    other = pg.DPVI(model, num_particles=6, progress=False)
    other.load_state_dict(state)
    other.setup()
    assert [other.step() for _ in range(5)] == first[3:]
    torch.testing.assert_close(other.search.found.x, one.search.found.x)


def test_the_guide_has_the_density_of_the_joint_state():
    q = fit(mixed, num_particles=10)
    guide = q.guide()
    draws = Predictive(mixed, guide=guide, num_samples=50, return_sites=["a", "b", "c"])()
    assert draws["b"].shape[-1] == 3
    pyro.set_rng_seed(0)
    importance = Importance(mixed, guide, num_samples=20).run()
    # every draw has the same weight f(x) / w: the bound itself
    weights = torch.stack(list(importance.log_weights))
    torch.testing.assert_close(weights, q.log_evidence.expand(20).to(weights), rtol=0, atol=1e-5)
    pyro.clear_param_store()
    svi = SVI(mixed, q.guide(), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    assert -svi.step() == pytest.approx(float(q.log_evidence), abs=1e-5)
    saved = guide.state_dict()
    again = type(guide).from_state_dict(saved)
    assert {k: v.tolist() for k, v in again.median().items()} == {
        k: v.tolist() for k, v in guide.median().items()
    }
    part = q.guide(["b"])
    assert set(part()) == {"b"}


def test_draws_have_the_weights_of_the_particles():
    q = fit(mixed, num_particles=6)
    draws = q.sample(6000)
    mean = draws["c"].double().mean()
    assert float(mean) == pytest.approx(float(q.marginal("c").mean), abs=2e-3)


def test_the_program_of_message_passing_runs_by_changing_the_engine():
    model = ising(3, 0.3, torch.linspace(-1, 1, 9, dtype=torch.float64))
    exact = logsumexp(ising_scores(3, 0.3, np.linspace(-1, 1, 9)))
    for infer in (pg.DPVI, pg.TRW, pg.VMP):
        q = pg.fit(model, infer=infer, progress=False)
        side = {"lower bound": 1, "upper bound": -1}[q.evidence_kind]
        assert side * (exact - float(q.log_evidence)) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_have_the_dtype_asked_for(dtype):
    q = fit(ising(3, 0.5), num_particles=3, dtype=dtype)
    assert q.log_evidence.dtype is dtype and q.weights.dtype is dtype
    assert q.marginal("x").probs.dtype is dtype


# ---------------------------------------------------------------------- summing out
def checkers(side: int) -> np.ndarray:
    at = np.arange(side * side)
    return (at // side + at % side) % 2 == 0


@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_summing_out_half_of_a_lattice_gives_the_bound_over_the_other_half(count):
    field = torch.linspace(-1, 1, 9, dtype=torch.float64)
    model, beta = ising(3, 0.6, field), 0.6
    q = fit(model, num_particles=count, sum_out="auto")
    plain = fit(model, num_particles=count)
    assert float(q.log_evidence) > float(plain.log_evidence)
    x = np.array(list(itertools.product([-1.0, 1.0], repeat=9)))
    a, b = lattice(3).numpy().T
    score = (x * field.numpy()).sum(1) + beta * (x[:, a] * x[:, b]).sum(1)
    best = -math.inf
    for out in (checkers(3), ~checkers(3)):
        rest: dict[tuple, list[float]] = {}
        for row, value in zip(x[:, ~out], score, strict=True):
            rest.setdefault(tuple(row), []).append(value)
        sums = np.sort([logsumexp(values) for values in rest.values()])[::-1]
        best = max(best, logsumexp(sums[:count]))
    assert float(q.log_evidence) <= best + 1e-9
    if count == 16:  # 2 ** 4 states of four nodes, or half of those of five
        assert float(q.log_evidence) > best - 1e-3


def test_summed_out_nodes_have_their_exact_conditionals():
    field = torch.linspace(-1, 1, 9, dtype=torch.float64)
    model = ising(3, 0.6, field)
    q = fit(model, num_particles=2**9, sum_out="auto")
    x = np.array(list(itertools.product([-1.0, 1.0], repeat=9)))
    a, b = lattice(3).numpy().T
    score = (x * field.numpy()).sum(1) + 0.6 * (x[:, a] * x[:, b]).sum(1)
    p = np.exp(score - logsumexp(score))
    assert float(q.log_evidence) == pytest.approx(logsumexp(score), abs=1e-9)
    assert q.evidence_kind == "exact"
    np.testing.assert_allclose(q.marginal("x").mean.numpy(), p @ (x > 0), atol=1e-9)
    pyro.set_rng_seed(0)
    draws = 2 * q.sample(20_000)["x"].numpy() - 1
    # six standard errors
    pair = (draws[:, 0] * draws[:, 1]).mean()
    assert pair == pytest.approx(p @ (x[:, 0] * x[:, 1]), abs=6 / 20_000**0.5)
    weights = torch.stack(list(Importance(model, q.guide(), num_samples=10).run().log_weights))
    expected = q.log_evidence.expand(10).to(weights)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)
    guide = q.guide()
    again = type(guide).from_state_dict(guide.state_dict())
    assert torch.equal(again.median()["x"], guide.median()["x"])


def test_sites_of_different_states_and_hard_constraints_are_summed_out_too():
    scores = mixed_scores()
    for sites in (["c"], "a", ["a", "b"], "auto"):
        if sites == ["a", "b"]:
            with pytest.raises(OptionError, match="share a factor"):
                fit(mixed, sum_out=sites)
            continue
        q = fit(mixed, num_particles=216, sum_out=sites)
        assert float(q.log_evidence) == pytest.approx(logsumexp(list(scores.values())), abs=1e-9)
        mean = sum(s[4] * math.exp(v - logsumexp(list(scores.values()))) for s, v in scores.items())
        assert float(q.marginal("c").mean) == pytest.approx(mean, abs=1e-9)
    with pytest.raises(OptionError, match="names no site"):
        fit(mixed, sum_out="z")
    q = fit(mixed, num_particles=5, sum_out="a")
    with pytest.raises(OptionError, match="guide"):
        q.guide(["a"])


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_run_may_be_cut_anywhere_and_ends_where_it_would_have(steps):
    field = torch.randn(49, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    model = ising(7, 0.6, field)
    whole = fit(model, num_particles=4, init="random")
    pyro.set_rng_seed(0)
    first = pg.DPVI(model, num_particles=4, init="random", progress=False).setup()
    for _ in range(steps):
        first.step()
    second = pg.DPVI(model, num_particles=4, init="random", progress=False)
    second.load_state_dict(first.state_dict())
    q = second.run()
    assert float(q.log_evidence) == float(whole.log_evidence)
    n = len(whole.history["objective"])
    if steps <= n:
        assert len(q.history["objective"]) == n


def coupled(strength: float):
    with pyro.plate("nodes", 3):
        x = pyro.sample("x", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
    pyro.factor("pairs", strength * (x[0] == x[1]) + 0.5 * (x[1] == x[2]))


@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
@pytest.mark.parametrize("steps", [2, 100])
def test_a_state_of_other_parameters_is_refused_and_changes_nothing(infer, steps):
    saved = infer(coupled, num_particles=4, num_steps=steps, progress=False).setup(1.0)
    while saved.num_done < steps and not saved.converged:
        saved.step()
    engine = infer(coupled, num_particles=4, progress=False).setup(-3.0)
    with pytest.raises(ShapeMismatch, match="other data or parameters"):
        engine.load_state_dict(saved.state_dict())
    fresh = infer(coupled, num_particles=4, progress=False).run(-3.0)
    torch.testing.assert_close(engine.run().log_evidence, fresh.log_evidence)


def test_an_order_that_names_no_nodes_is_refused():
    with pytest.raises(OptionError, match="order= names nodes as"):
        pg.SequentialDPVI(coupled, order=["x"], progress=False).run(1.0)


@pytest.mark.filterwarnings("ignore::pyrograph.errors.ConvergenceWarning")
def test_a_run_that_is_cut_between_kinds_of_moves_says_so():
    model = ising(4, 0.6, torch.linspace(-0.3, 0.4, 16))
    engine = pg.DPVI(model, num_particles=4, moves=("block", "flip"), progress=False)
    while not engine._history or engine.history["gain"][-1] > engine.tol:
        engine.step()
    told = "after {} steps other kinds of moves have not had their turn. {}"
    assert engine.status.endswith(told.format(engine.num_done, "Go on with run()."))
    cut = pg.DPVI(model, num_particles=4, moves=("block", "flip"), progress=False)
    cut.num_steps = engine.num_done
    assert told.format(engine.num_done, "Raise num_steps.") in cut.run().status
    assert engine.run().converged


def one_of(count: int):
    z = pyro.sample("z", dist.Categorical(torch.ones(count, dtype=torch.float64) / count))
    pyro.sample("y", dist.Normal(z / 1e4, 1.0), obs=torch.tensor(3.0, dtype=torch.float64))


@pytest.mark.parametrize("count, moves", [(70_000, None), (1_000, ("block", "flip"))])
def test_as_many_particles_as_states_are_all_of_them_at_once(count, moves):
    """Of 70,000, moves of each to each would be 39 GB."""
    at = np.arange(count) / 1e4
    truth = logsumexp(-0.5 * (3 - at) ** 2 - 0.5 * np.log(2 * np.pi)) - np.log(count)
    posterior = fit(one_of, count, num_particles=count, moves=moves)
    assert posterior.evidence_kind == "exact" and posterior.converged
    assert float(posterior.log_evidence) == pytest.approx(truth, abs=1e-9)


def test_all_joint_states_are_listed_once():
    values = torch.zeros(1, 3, 2, dtype=torch.float64)
    tables = [Tables(torch.tensor([[2, 0]]), values)]
    found = Network(torch.tensor([2, 1, 3]), tables, torch.zeros((), dtype=torch.float64)).states()
    assert found.T.tolist() == [[a, 0, b] for a in range(2) for b in range(3)]
