"""Which share of all mass the particles have, where a sum over all states is cheap.

The truth is enumeration, or the forward recursion over all joint states of a step.
"""

import heapq
import math
from itertools import product

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import logsumexp

import pyrograph as pg
from pyrograph.infer.dpvi import contexts
from pyrograph.infer.dpvi.diffuse import log_mass_of_forest, warning_of_gain
from pyrograph.infer.dpvi.mass import log_mass_of
from pyrograph.infer.dpvi.network import Network

IMPOSSIBLE = torch.tensor(-math.inf)
CHECKS = np.array([[(j >> k) & 1 for j in range(1, 16)] for k in range(4)])


def fit(model, engine=pg.DPVI, **options):
    return pg.fit(model, infer=engine, progress=False, **options)


def said(bound, log_mass):
    """What a status says of the share."""
    share = math.exp(bound - log_mass)
    return f"{share:.2g} of the mass of all states, whose log is {log_mass:.6g}"


def hamming(received, error):
    """The code (15, 11) over a binary symmetric channel, and the log mass by enumeration."""
    bit = np.array(received)

    def model():
        with pyro.plate("bits", 15):
            x = pyro.sample("x", dist.Bernoulli(0.5))
            one = error + (1 - 2 * error) * x
            pyro.sample("r", dist.Bernoulli(one), obs=torch.tensor(bit, dtype=x.dtype))
        parity = (torch.tensor(CHECKS, dtype=x.dtype) @ x) % 2
        with pyro.plate("checks", 4):
            pyro.factor("check", torch.where(parity == 0, torch.tensor(0.0), IMPOSSIBLE))

    return model, best_words(bit, error, 2**11)


def best_words(received, error, count):
    """The log mass of the best codewords, by enumeration."""
    words = np.array(list(product((0, 1), repeat=15)))
    words = words[~(words @ CHECKS.T % 2).any(1)]
    agrees = np.where(words == received, math.log(1 - error), math.log(error)).sum(1)
    return logsumexp(np.sort(agrees)[-count:]) - 15 * math.log(2)


def chains(observed, weights, stay=0.9):
    """Binary chains whose weighted sum is seen, and the log mass by a forward pass over all their
    joint states."""
    steps, count = len(observed), len(weights)
    weight = torch.tensor(weights)

    def model():
        xs = []
        with pyro.plate("chains", count):
            for t in pyro.markov(range(steps)):
                p = 1 - stay + (2 * stay - 1) * xs[-1] if t else torch.full((count,), 0.5)
                xs.append(pyro.sample(f"x{t}", dist.Bernoulli(p)))
        for t, y in enumerate(observed):
            pyro.sample(f"y{t}", dist.Normal((weight * xs[t]).sum(-1), 0.5), obs=torch.tensor(y))

    states = np.array(list(product((0, 1), repeat=count)))
    same = states[:, None] == states[None]
    step = np.where(same, stay, 1 - stay).prod(-1)
    ahead = np.full(len(states), 0.5**count)
    log_mass = 0.0
    for t, y in enumerate(observed):
        ahead = ahead @ step if t else ahead
        ahead = ahead * np.exp(-2 * (y - states @ weights) ** 2) * math.sqrt(2 / math.pi)
        log_mass += math.log(ahead.sum())
        ahead /= ahead.sum()
    return model, log_mass


def test_particles_that_miss_most_words_of_a_code_are_told_their_share():
    model, log_mass = hamming([1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0], error=0.3)
    q = fit(model, num_particles=4)
    assert float(q.log_evidence) < log_mass - math.log(2)
    assert said(float(q.log_evidence), log_mass) in q.status
    assert "pg.circuits.compile_graph" in q.status


@pytest.mark.parametrize("at", [(), (3,), (0, 7), (1, 4, 12)])
def test_the_best_words_of_a_code_are_found(at):
    # no word is one change from another, so climbing ends at any and goes nowhere from there
    received = np.isin(np.arange(15), at).astype(int)
    model, _ = hamming(received, error=0.15)
    q = fit(model, num_particles=50)
    assert float(q.log_evidence) == pytest.approx(best_words(received, 0.15, 50), abs=1e-4)


@pytest.mark.parametrize("engine", [pg.DPVI, pg.SequentialDPVI])
def test_particles_of_factorial_chains_are_told_their_share(engine):
    rng = np.random.RandomState(0)
    observed = (rng.randint(0, 2, (25, 4)) @ [1.0, 1.7, -1.2, 0.6]).round(2).tolist()
    model, log_mass = chains(observed, [1.0, 1.7, -1.2, 0.6])
    q = fit(model, engine, num_particles=100)
    assert float(q.log_evidence) < log_mass - 2
    assert said(float(q.log_evidence), log_mass) in q.status
    assert "pg.circuits.compile_graph" in q.status


@pytest.mark.parametrize("sum_out", [None, "auto"])
def test_the_mass_is_that_of_enumeration(sum_out):
    rng = np.random.RandomState(1)
    tables = torch.tensor(rng.randn(4, 3, 2, 3))
    tables[rng.rand(*tables.shape) < 0.2] = -math.inf
    edges = [(0, 4, 1), (1, 5, 2), (2, 4, 3), (3, 5, 0)]

    def model():
        with pyro.plate("three", 4):
            x = pyro.sample("x", dist.Categorical(torch.ones(3)))
        with pyro.plate("two", 2):
            y = pyro.sample("y", dist.Categorical(torch.ones(2)))
        pyro.sample("z", dist.Categorical(torch.ones(1)))  # a single state
        for k, (a, b, c) in enumerate(edges):
            pyro.factor(f"f{k}", tables[k][x[a], y[b - 4], x[c]])

    scores = [
        sum(float(tables[k][s[a], s[b], s[c]]) for k, (a, b, c) in enumerate(edges))
        for s in product(range(3), range(3), range(3), range(3), range(2), range(2))
    ]
    log_mass = logsumexp(scores) - 4 * math.log(3) - 2 * math.log(2)
    assert Network.of_graph(pg.trace_graph(model)).log_mass == pytest.approx(log_mass, abs=1e-6)
    q = fit(model, num_particles=2, sum_out=sum_out)
    if float(q.log_evidence) < log_mass - math.log(2):
        assert said(float(q.log_evidence), log_mass) in q.status
    else:
        assert "of the mass" not in q.status


def test_mass_that_is_zero_or_of_one_state():
    table = np.array([[0.0, -np.inf], [-np.inf, -np.inf]])
    assert log_mass_of([2, 2], [(0, 1)], [table]) == 0
    assert log_mass_of([2, 2], [(0, 1)], [np.full((2, 2), -np.inf)]) == -np.inf
    assert log_mass_of([1, 2], [(0,), (1,)], [np.array([3.0]), np.zeros(2)]) == pytest.approx(
        3 + math.log(2)
    )
    assert log_mass_of([3, 2], [], []) == pytest.approx(math.log(6))


def test_no_sum_is_begun_that_takes_long():
    zeros = np.zeros((2, 2))
    wide = [(i, j) for i in range(60) for j in range(i)]
    assert log_mass_of([2] * 60, wide, [zeros] * len(wide)) is None
    side = 30
    grid = [(v, v + 1) for v in range(side**2) if (v + 1) % side]
    grid += [(v, v + side) for v in range(side**2 - side)]
    assert log_mass_of([2] * side**2, grid, [zeros] * len(grid)) is None


@pytest.mark.parametrize("edges_per_node", [1, 4, 9])
def test_sums_of_large_sparse_graphs_are_given_up_at_once(edges_per_node, monkeypatch):
    # a filter that is extended asks again every time
    count = 2048
    rng = np.random.RandomState(0)
    pairs = {tuple(sorted(rng.choice(count, 2, False))) for _ in range(edges_per_node * count)}
    pairs |= {(v, v + 1) for v in range(count - 1)}
    tables = [np.zeros((2, 2))] * len(pairs)
    prices, push = [], heapq.heappush

    def priced(heap, entry):
        prices.append(entry)
        push(heap, entry)

    monkeypatch.setattr(contexts.heapq, "heappush", priced)
    assert log_mass_of([2] * count, [tuple(map(int, p)) for p in pairs], tables) is None
    assert len(prices) < 4 * count


@pytest.mark.parametrize("count", [2, 3, 6, 7])
def test_what_the_worse_half_adds_is_told(count):
    score = torch.linspace(0, -1, count, dtype=torch.float64)
    half = (count + 1) // 2  # of an odd number the middle one is with the better ones
    gain = logsumexp(score) - logsumexp(score[:half])
    expected = f"The worse {count - half} of {count} particles still add {gain:.2g} nats."
    assert warning_of_gain(score, score.logsumexp(0)) == expected
    assert warning_of_gain(40 * score, (40 * score).logsumexp(0)) is None


def test_the_mass_of_a_forest_in_single_precision_has_the_digits_of_double():
    torch.set_default_dtype(torch.float32)
    y = torch.arange(1000) % 64 / 4.0

    def model():
        z = pyro.sample("z", dist.Bernoulli(0.25))
        with pyro.plate("n", len(y)):
            pyro.sample("y", dist.Normal(z, 2.0**-7), obs=y)

    def log_joint(z):
        scaled = (y.double().numpy() - z) * 2.0**7
        constant = 7 * math.log(2) - math.log(2 * math.pi) / 2
        return math.log(0.75 - 0.5 * z) + len(y) * constant - math.fsum(scaled**2 / 2)

    truth = logsumexp([log_joint(z) for z in (0.0, 1.0)])
    assert log_mass_of_forest(pg.trace_graph(model)) == pytest.approx(truth, rel=1e-12)


def test_particles_that_find_no_more_states_do_not_call_the_posterior_diffuse():
    """72 sudokus of 4 x 4 have a given first cell; with 300 particles the worse half of these
    "still added 0.69 nats"."""
    cells = torch.arange(16).view(4, 4)
    boxes = [cells[i : i + 2, j : j + 2].reshape(-1) for i in (0, 2) for j in (0, 2)]
    pairs = torch.cat([torch.combinations(own) for own in [*cells, *cells.T, *boxes]])

    def model():
        with pyro.plate("cells", 16):
            x = pyro.sample("x", dist.Categorical(torch.ones(4) / 4))
        with pyro.plate("pairs", len(pairs)):
            is_same = x[pairs[:, 0]] == x[pairs[:, 1]]
            pyro.factor("differ", torch.where(is_same, -torch.inf, 0.0))
        pyro.factor("given", torch.where(x[0] == 0, 0.0, -torch.inf))

    pyro.set_rng_seed(0)
    posterior = pg.DPVI(model, num_particles=300, progress=False).run()
    assert float(posterior.log_evidence.exp()) * 4**16 == pytest.approx(72, rel=1e-4)
    assert "diffuse" not in posterior.status and "these 72 were met" in posterior.status
