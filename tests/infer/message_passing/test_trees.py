"""Belief propagation is exact on trees. Truth: sums over all states; pgmpy."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.ops.indexing import Vindex
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.datasets import bayesian_network

from .builders import TREES, Tables, random_model, run

TIGHT = {"rtol": 0, "atol": 1e-10}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", TREES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("engine", [pg.BP, pg.EP])
def test_marginals_and_evidence_of_trees_are_exact(make, seed, engine):
    model = make(seed)
    posterior = run(model, engine)
    assert posterior.converged and posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, model.log_z, **TIGHT)
    for i, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief, model.marginal(i), **TIGHT)
    for k, belief in model.factor_beliefs(posterior).items():
        assert_close(belief, model.marginal(*model.scopes[k]), **TIGHT)


@pytest.mark.parametrize("schedule", ["sequential", "residual"])
@pytest.mark.parametrize("make", TREES, ids=lambda f: f.__name__)
def test_every_schedule_is_exact_on_trees(make, schedule):
    model = make(5)
    posterior = run(model, schedule=schedule, damping=0.2)
    assert posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, model.log_z, rtol=0, atol=1e-7)
    for i, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief, model.marginal(i), rtol=0, atol=1e-7)


@pytest.mark.parametrize("seed", range(8))
def test_random_trees_with_random_messages_to_start_from_are_exact(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    cards = tuple(int(c) for c in rng.integers(2, 4, n))
    scopes = [(int(rng.integers(i)), i) for i in range(1, n)]
    model = random_model(cards, scopes, seed, 3.0)
    engine = pg.BP(model, progress=False).setup()
    start = {k: 5 * torch.randn_like(m) for k, m in engine.state_dict()["messages"].items()}
    posterior = run(model, init=start)
    assert_close(posterior.log_evidence, model.log_z, **TIGHT)
    for i, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief, model.marginal(i), **TIGHT)


@pytest.mark.parametrize("plated", [False, True])
def test_tables_on_one_pair_are_one(plated):
    model = random_model((3, 3, 3), [(0, 1), (0, 1), (1, 2), (0, 1)], 0, plated=plated)
    posterior = run(model)
    assert posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, model.log_z, **TIGHT)
    for k, belief in model.factor_beliefs(posterior).items():
        assert_close(belief, model.marginal(*model.scopes[k]), **TIGHT)


def test_of_other_alphas_they_are_a_cycle_and_no_exact_evidence_is_claimed():
    model = random_model((2, 3), [(0, 1), (0, 1)], 0)
    posterior = run(model, pg.FractionalBP, alpha=0.9)
    assert posterior.evidence_kind == "estimate"
    assert abs(float(posterior.log_evidence - model.log_z)) > 1e-6


def test_nodes_without_factors_between_them_need_no_iteration():
    model = random_model((2, 4, 3), [], 1)
    posterior = run(model)
    assert posterior.converged and posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, model.log_z, **TIGHT)


def test_labels_of_nodes_are_not_made_for_a_fit():
    """There may be millions."""

    def chain():
        with pyro.plate("nodes", 50):
            x = pyro.sample("x", dist.Bernoulli(torch.full((50,), 0.3)))
        with pyro.plate("steps", 49):
            pyro.factor("pair", (x[1:] == x[:-1]).double())

    engine = pg.BP(chain, progress=False)
    assert engine.run().evidence_kind == "exact"
    assert "nodes" not in vars(engine.graph)


# ---------------------------------------------------------------------- Pyro programs
def forward(start, move, observe):
    """Filtered sums of a hidden Markov chain: log p(y) and smoothed marginals, by recursion."""
    alphas = [start * observe[0]]
    for o in observe[1:]:
        alphas.append((alphas[-1] @ move) * o)
    betas = [torch.ones_like(start)]
    for o in reversed(observe[1:]):
        betas.insert(0, move @ (o * betas[0]))
    z = alphas[-1].sum()
    return z.log(), torch.stack([a * b / z for a, b in zip(alphas, betas)])


@pytest.mark.parametrize("loop", ["markov", "sequential plate", "range"])
def test_a_hidden_markov_program_has_the_forward_backward_answer(loop):
    start, move = torch.tensor([0.2, 0.5, 0.3]), torch.rand(3, 3).softmax(1)
    rate, y = torch.tensor([0.2, 0.5, 0.9]), (torch.rand(12) < 0.5).double()

    def model():
        steps = {"markov": pyro.markov, "sequential plate": lambda r: pyro.plate("t", len(r))}
        x = None
        for t in steps.get(loop, lambda r: r)(range(12)):
            probs = start if x is None or loop == "sequential plate" else Vindex(move)[x]
            x = pyro.sample(f"x{t}", dist.Categorical(probs))
            pyro.sample(f"y{t}", dist.Bernoulli(Vindex(rate)[x]), obs=y[t])

    posterior = run(model)
    observe = [torch.where(v > 0, rate, 1 - rate) for v in y]
    rows = start.expand(3, 3) if loop == "sequential plate" else move
    log_z, smoothed = forward(start, rows, observe)
    assert posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, log_z, **TIGHT)
    for t in range(12):
        assert_close(posterior.marginal(f"x{t}").probs, smoothed[t], **TIGHT)


def test_bernoulli_and_categorical_sites_in_plates_mix():
    """Truth by a sum over (w, z, b) by hand."""
    y = torch.tensor([[0.3, -1.2, 2.0], [0.1, 0.7, -0.4]])

    def model():
        w = pyro.sample("w", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
        with pyro.plate("rows", 2, dim=-2):
            z = pyro.sample("z", dist.Bernoulli(0.1 + 0.25 * w))
            with pyro.plate("columns", 3, dim=-1):
                b = pyro.sample("b", dist.Bernoulli(torch.where(z > 0, 0.7, 0.2)))
                pyro.sample("y", dist.Normal(b, 1.0), obs=y)

    posterior = run(model)
    log_w = torch.tensor([0.2, 0.3, 0.5]).log()
    weights, p_z, p_b = [], [], []
    for w in range(3):
        total, zs, bs = log_w[w], [], []
        pz = torch.tensor([0.9 - 0.25 * w, 0.1 + 0.25 * w])
        for row in y:
            per_z, given = [], []
            for z in (0, 1):
                pb = torch.tensor([0.3, 0.7] if z else [0.8, 0.2])
                like = dist.Normal(torch.tensor([0.0, 1.0]), 1.0).log_prob(row[:, None]).exp() * pb
                per_z.append(pz[z] * like.sum(1).prod())
                given.append(like[:, 1] / like.sum(1))
            per_z = torch.stack(per_z)
            total = total + per_z.sum().log()
            zs.append(per_z[1] / per_z.sum())
            bs.append((per_z[:, None] * torch.stack(given)).sum(0) / per_z.sum())
        weights.append(total), p_z.append(torch.stack(zs)), p_b.append(torch.stack(bs))
    weights = torch.stack(weights)
    share = weights.softmax(0)
    assert_close(posterior.log_evidence, weights.logsumexp(0), **TIGHT)
    assert_close(posterior.marginal("w").probs, share, **TIGHT)
    truth = torch.einsum("w,wr->r", share, torch.stack(p_z))
    assert_close(posterior.marginal("z").probs[:, 0, 1], truth, **TIGHT)
    truth = torch.einsum("w,wrc->rc", share, torch.stack(p_b))
    assert_close(posterior.marginal("b").probs[..., 1], truth, **TIGHT)


def test_states_of_one_hot_sites_are_their_rows():
    table = torch.randn(3, 2)

    def model():
        h = pyro.sample("h", dist.OneHotCategorical(torch.tensor([0.2, 0.5, 0.3])))
        b = pyro.sample("b", dist.Bernoulli(0.4))
        pyro.factor("f", ((h @ table) * torch.stack([1 - b, b], -1)).sum(-1))

    posterior = run(model)
    joint = torch.tensor([0.2, 0.5, 0.3]).log()[:, None] + torch.tensor([0.6, 0.4]).log() + table
    assert_close(posterior.log_evidence, joint.logsumexp((0, 1)), **TIGHT)
    truth = joint.flatten().softmax(0).view(3, 2)
    assert_close(posterior.marginal("h").probs, truth.sum(1), **TIGHT)
    assert_close(posterior.marginal("b").probs, truth.sum(0), **TIGHT)


# ---------------------------------------------------------------------- Bayesian networks
def junction(network, evidence):
    """Log p(evidence) and marginals by a product of all tables."""
    names = network.names
    operands = []
    for name in names:
        operands += [network.tables[name], [names.index(v) for v in (*network.parents[name], name)]]
    joint = torch.einsum(*operands, list(range(len(names))))
    for name, state in evidence.items():
        k = network.states[name].index(state)
        only = torch.zeros(len(network.states[name]))
        only[k] = 1
        joint = joint * only.view([-1 if v == name else 1 for v in names])
    z = joint.sum()
    marginals = {}
    for i, name in enumerate(names):
        marginals[name] = joint.sum([j for j in range(len(names)) if j != i]) / z
    return z.log(), marginals


# without cycles: asia only where smoking, or the gate and what it closes, is observed
NETWORKS = [
    ("cancer", {}),
    ("cancer", {"Cancer": "True", "Dyspnoea": "False"}),
    ("cancer", {"Xray": "positive"}),
    ("asia", {"smoke": "yes"}),
    ("asia", {"smoke": "no", "dysp": "yes"}),
    ("asia", {"smoke": "yes", "either": "yes"}),
    ("earthquake", {"JohnCalls": "True", "MaryCalls": "True"}),
]


@pytest.mark.parametrize("form", ["program", "tables"])
@pytest.mark.parametrize("name, evidence", NETWORKS)
def test_networks_without_cycles_are_exact(name, evidence, form, data_root):
    network = bayesian_network(name)
    log_z, truth = junction(network, evidence)
    if form == "program":
        posterior = run(network, pg.BP, evidence)
        found = {v: posterior.marginal(v).probs for v in network.names if v not in evidence}
    else:
        model = network.tabulated(evidence)
        posterior = run(model)
        found = dict(zip(network.names, model.marginals(posterior)))
    assert posterior.converged and posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, log_z, **TIGHT)
    for variable, belief in found.items():
        assert_close(belief, truth[variable], **TIGHT)


@pytest.mark.peers
@pytest.mark.parametrize("name, evidence", [n for n in NETWORKS if n[0] != "asia"])
def test_marginals_are_those_of_pgmpy(name, evidence, data_root):
    readwrite = pytest.importorskip("pgmpy.readwrite")
    inference = pytest.importorskip("pgmpy.inference")
    network = bayesian_network(name)
    posterior = run(network, pg.BP, evidence)
    theirs = readwrite.BIFReader(str(data_root / "bayesnets" / f"{name}.bif")).get_model()
    propagation = inference.BeliefPropagation(theirs)
    for variable in network.names:
        if variable in evidence:
            continue
        query = propagation.query([variable], evidence=evidence, show_progress=False)
        states = [query.get_value(**{variable: s}) for s in network.states[variable]]
        assert_close(posterior.marginal(variable).probs, torch.tensor(states), **TIGHT)


# ---------------------------------------------------------------------- numbers
def leaves_to_root(model: Tables) -> float:
    """Log Z of a tree of pairs (parent, child), children of higher number than their parents."""
    size = len(model.cards)
    up = [np.zeros(c) for c in model.cards]
    pairs = {}
    for scope, table in zip(model.scopes, model.tables):
        if len(scope) == 1:
            up[scope[0]] = up[scope[0]] + table.numpy()
        else:
            pairs[scope[1]] = (scope[0], table.numpy())
    for child in reversed(range(1, size)):
        parent, table = pairs[child]
        up[parent] = up[parent] + np.logaddexp.reduce(table + up[child], axis=1)
    return float(np.logaddexp.reduce(up[0]))


@pytest.mark.parametrize("zeros", [0.0, 0.3])
@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
@pytest.mark.parametrize("shape", ["bushy", "deep"])
def test_trees_of_hundreds_of_nodes_are_exact(shape, schedule, zeros):
    rng = np.random.default_rng(0)
    n, reach = (400, 400) if shape == "bushy" else (200, 2)
    scopes = [(int(rng.integers(max(0, i - reach), i)), i) for i in range(1, n)]
    model = random_model((3,) * n, scopes, 0, 2.0, zeros=zeros, plated=True)
    posterior = run(model, schedule=schedule, num_steps=3000)
    assert posterior.converged and posterior.evidence_kind == "exact"
    truth = leaves_to_root(model)
    assert_close(float(posterior.log_evidence), truth, rtol=1e-11, atol=0)
    # a marginal is a ratio of two sums: with node 7 held in state 0 and without
    hold = Tables(
        model.cards,
        (*model.scopes, (7,)),
        (*model.tables, torch.tensor([0.0, -math.inf, -math.inf])),
    )
    share = math.exp(leaves_to_root(hold) - truth)
    assert_close(float(model.beliefs(posterior)[7][0]), share, rtol=0, atol=1e-9)


def test_a_chain_of_five_thousand_nodes_has_the_transfer_matrix_evidence():
    """Sum over states of a homogeneous Ising chain, free ends: 2 (2 cosh J)^(n - 1)."""
    n, coupling = 5000, 0.3
    pair = coupling * torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    scopes = tuple((i, i + 1) for i in range(n - 1))
    model = Tables((2,) * n, scopes, (pair,) * (n - 1), plated=True)
    posterior = run(model)
    truth = math.log(2) + (n - 1) * math.log(2 * math.cosh(coupling))
    assert_close(float(posterior.log_evidence), truth, rtol=1e-12, atol=0)


def test_strong_couplings_neither_overflow_nor_lose_digits():
    """Log tables of size 600, with closed form for a pair: log sum exp."""
    for size in (30.0, 600.0, 5000.0):
        table = size * torch.tensor([[1.0, -1.0], [-1.0, 0.99999]])
        model = Tables((2, 2), ((0, 1),), (table,))
        posterior = run(model)
        assert_close(posterior.log_evidence, model.log_z, rtol=1e-13, atol=1e-10)
        assert_close(model.beliefs(posterior)[0], model.marginal(0), **TIGHT)


@pytest.mark.parametrize("make", TREES, ids=lambda f: f.__name__)
def test_single_precision_gives_single_precision_answers(make):
    model = make(1)
    posterior = run(model, dtype=torch.float32)
    assert posterior.converged
    assert posterior.log_evidence.dtype == torch.float32
    assert_close(posterior.log_evidence.double(), model.log_z, rtol=1e-5, atol=1e-4)
    for i, belief in enumerate(model.beliefs(posterior)):
        assert belief.dtype == torch.float32
        assert_close(belief.double(), model.marginal(i), rtol=0, atol=1e-4)
