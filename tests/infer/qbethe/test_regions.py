"""Regions of labels that have several sets of numbers, and labels, beside them: dense grids,
enumeration."""

import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.ops.indexing import Vindex
from scipy.special import gammaln, log_expit, logsumexp
from scipy.stats import multivariate_normal, norm

from pyrograph.infer.qbethe.entropy import PER_NUMBER
from pyrograph.infer.qbethe.regions import ties_in
from pyrograph.infer.qbethe.rules import coarse_entropies, fine, fine_entropies

from .test_free_energy import DOUBLE, engine, mixture_of
from .test_joint import fit

#: Coarse enough for three numbers together.
COARSE = np.linspace(-6.5, 6.5, 66)
STEP = COARSE[1] - COARSE[0]
SLOPES = torch.tensor([0.5, -1.0, 1.5], dtype=torch.float64)
U, A, B = np.meshgrid(COARSE, COARSE, COARSE, indexing="ij")


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def weighed():
    """Labels of which a number is the log odds, and that choose what two others are like."""
    u = pyro.sample("u", dist.Normal(0.0, 1.0))
    a = pyro.sample("a", dist.Normal(0.3, 1.0))
    b = pyro.sample("b", dist.Normal(-0.2, 1.0))
    with pyro.plate("n", 3):
        z = pyro.sample("z", dist.Bernoulli(logits=u))
        on, off = -0.5 * (a - SLOPES * b) ** 2, -0.3 * (a + b - SLOPES) ** 2
        pyro.factor("told", torch.where(z == 1, on, off))


def of_states(slope):
    """log f of a label, ``[2, G, G, G]``."""
    off = log_expit(-U) - 0.3 * (A + B - slope) ** 2
    return np.stack([off, log_expit(U) - 0.5 * (A - slope * B) ** 2])


def prior():
    return norm.logpdf(U) + norm.logpdf(A, 0.3, 1) + norm.logpdf(B, -0.2, 1)


def dense_free_energy(found):
    """Of the first restart: E log f and the entropy of b(u, a, b) prod_n b(z_n | u, a, b)."""
    m = mixture_of(found)
    numbers, labels = (
        next(n for n, k in enumerate(m.kinds) if k.is_discrete == wanted)
        for wanted in (False, True)
    )
    tie = np.zeros(m.num_components)
    if "tie_0" in found.parameters:
        tie = found.parameters["tie_0"].detach()[0, :, 0, 0].numpy()
    mean, scale = m.means[numbers][0, :, :, 0].numpy(), m.scales[numbers][0, :, :, 0].numpy()
    points, parts = np.stack([U, A, B], -1), []
    for k, weight in enumerate(m.weights[0].tolist()):
        correlation = np.eye(3)
        correlation[1, 2] = correlation[2, 1] = tie[k] / np.sqrt(1 + tie[k] ** 2)
        covariance = correlation * np.outer(scale[k], scale[k])
        parts.append(weight * multivariate_normal(mean[k], covariance).pdf(points))
    parts = np.stack(parts)  # [L, G, G, G]

    def h(density):
        return -(density * np.log(density + 1e-300)).sum() * STEP**3

    total = (parts.sum(0) * prior()).sum() * STEP**3 + h(parts.sum(0))
    for n, slope in enumerate(SLOPES.tolist()):
        p = m.log_probs[labels][0, :, n].exp().numpy()
        both = np.einsum("lc,luab->cuab", p, parts)
        total += (both * of_states(slope)).sum() * STEP**3 + h(both) - h(parts.sum(0))
    return total


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("components", [1, 3])
def test_labels_with_odds_and_numbers_beside_them_make_a_tree(components, covariance):
    options = {"num_components": components, "covariance": covariance, "spread": 0.5}
    found = engine(weighed, **options)
    with torch.no_grad():
        for name in found.network.num_ties:
            found.parameters[name].add_(0.8)
        value = found.objective(found.parameters, (fine(DOUBLE), fine_entropies(DOUBLE)))
    truth = dense_free_energy(found)
    # entropies of three numbers and a label are on scattered points
    assert abs(value[0].item() - truth) < (1e-3 if components == 1 else 0.02)
    total = prior() + sum(logsumexp(of_states(slope), 0) for slope in SLOPES.tolist())
    assert truth < logsumexp(total) + 3 * np.log(STEP)
    assert found.network.is_forest


POINTS = np.array([-2.5, -1.8, 1.6, 2.7, 3.0])


def clusters():
    share = pyro.sample("share", dist.Dirichlet(0.5 * torch.ones(2)))
    with pyro.plate("clusters", 2):
        mean = pyro.sample("mean", dist.Normal(0.0, 3.0))
    with pyro.plate("rows", len(POINTS)):
        z = pyro.sample("z", dist.Categorical(share))
        pyro.sample("y", dist.Normal(mean[z], 1.0), obs=torch.from_numpy(POINTS))


def log_evidence(points, num_clusters, concentration, spread):
    """By enumeration of the labels: shares and means are integrated in closed form."""
    total, n = [], len(points)
    for states in itertools.product(range(num_clusters), repeat=n):
        own = [points[np.array(states) == k] for k in range(num_clusters)]
        counts = np.array([len(x) for x in own])
        a, k = concentration, num_clusters
        value = gammaln(k * a) - gammaln(k * a + n) + (gammaln(a + counts) - gammaln(a)).sum()
        for x in own:
            if len(x):
                covariance = np.eye(len(x)) + spread**2
                value += multivariate_normal(np.zeros(len(x)), covariance).logpdf(x)
        total.append(value)
    return logsumexp(total)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_unknown_weights_leave_a_lower_bound_and_both_orders(covariance):
    """Counted apart, weights and means closed cycles through the labels."""
    q = fit(clusters, num_components=2, covariance=covariance, num_steps=150, lr=0.1)
    log_z = log_evidence(POINTS, 2, 0.5, 3.0)
    assert q.evidence_kind == "lower bound"
    assert log_z - 0.15 < float(q.log_evidence) < log_z  # one order alone is .69 below
    draws = q.sample(2000)
    assert abs(float((draws["mean"][:, 0] > 0).double().mean()) - 0.5) < 0.1
    of_first = draws["share"][:, 0]  # the larger share goes with the cluster on the right
    is_right = draws["mean"][:, 0] > 0
    assert float(of_first[is_right].mean()) > 0.52 > 0.48 > float(of_first[~is_right].mean())


# ---------------------------------------------------------------------- labels that read each other
OFFSETS = torch.tensor([0.4, -0.8, 1.2], dtype=torch.float64)
FINE = np.linspace(-6.5, 6.5, 261)
FINE_U, FINE_A = np.meshgrid(FINE, FINE, indexing="ij")


def chain():
    """States of which a number is the log odds, and that choose what another is like."""
    u = pyro.sample("u", dist.Normal(0.0, 1.0))
    a = pyro.sample("a", dist.Normal(0.3, 1.0))
    z = torch.zeros(())
    for t in range(3):
        z = pyro.sample(f"z{t}", dist.Bernoulli(logits=u + 1.5 * z))
        pyro.factor(f"told{t}", -0.5 * (a - OFFSETS[t] * (1 + z)) ** 2)


def of_chain():
    """log f of the first state, of the steps ``[2, 2, G, G]``, and of what is told ``[2, G, G]``;
    these have the prior nowhere."""
    odds = [log_expit(-FINE_U), log_expit(FINE_U)]
    after = [log_expit(-FINE_U - 1.5), log_expit(FINE_U + 1.5)]
    told = [np.stack([-0.5 * (FINE_A - c * (1 + z)) ** 2 for z in (0, 1)]) for c in OFFSETS.numpy()]
    return np.stack(odds), np.stack([np.stack(odds), np.stack(after)]), told


def prior_of_chain():
    return norm.logpdf(FINE_U) + norm.logpdf(FINE_A, 0.3, 1)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("components", [1, 3])
def test_a_chain_of_labels_beside_numbers_is_a_tree(components, covariance):
    """F is that of b(u, a) b(z_0 | u, a) prod_t b(z_t+1 | z_t, u, a)."""
    found = engine(chain, num_components=components, covariance=covariance, spread=0.5)
    assert found.network.is_forest
    m = mixture_of(found)
    numbers, labels = (
        next(n for n, k in enumerate(m.kinds) if k.is_discrete == wanted)
        for wanted in (False, True)
    )
    mean, scale = m.means[numbers][0, :, :, 0].numpy(), m.scales[numbers][0, :, :, 0].numpy()
    parts = []
    for k, weight in enumerate(m.weights[0].tolist()):
        of_u, of_a = (norm.pdf(x, mean[k, n], scale[k, n]) for n, x in enumerate((FINE_U, FINE_A)))
        parts.append(weight * of_u * of_a)
    parts = np.stack(parts)
    cell = (FINE[1] - FINE[0]) ** 2
    p = m.log_probs[labels][0].exp().numpy()  # [L, 3, 2]
    first, step, told = of_chain()

    def h(density):
        return -(density * np.log(density + 1e-300)).sum() * cell

    ones = [np.einsum("lc,lua->cua", p[:, t], parts) for t in range(3)]
    twos = [np.einsum("lc,ld,lua->cdua", p[:, t], p[:, t + 1], parts) for t in range(2)]
    truth = (parts.sum(0) * prior_of_chain()).sum() * cell + (ones[0] * first).sum() * cell
    truth += sum((one * f).sum() * cell for one, f in zip(ones, told, strict=True))
    truth += sum((two * step).sum() * cell + h(two) for two in twos) - h(ones[1])
    with torch.no_grad():
        value = found.objective(found.parameters, (fine(DOUBLE), fine_entropies(DOUBLE)))
    assert abs(value[0].item() - truth) < (1e-3 if components == 1 else 0.01)
    total = first + told[0]
    for f in told[1:]:
        total = logsumexp(total[:, None] + step, 0) + f
    assert truth < logsumexp(logsumexp(total, 0) + prior_of_chain()) + np.log(cell)


RING = [(0, 1), (1, 2), (2, 3), (3, 0)]


def ring():
    """Spins whose coupling is not known."""
    j = pyro.sample("j", dist.Normal(0.3, 1.0))
    z = [pyro.sample(f"z{k}", dist.Bernoulli(0.5)) for k in range(4)]
    for n, (a, b) in enumerate(RING):
        pyro.factor(f"f{n}", j * (2 * z[a] - 1) * (2 * z[b] - 1))


def test_the_coupling_of_a_ring_counts_once():
    """Beside as many pairs as spins, by itself: torch's error about a product of nothing."""
    found = engine(ring, num_components=3, spread=0.5)
    assert not found.network.is_forest
    m = mixture_of(found)
    numbers, labels = (
        next(n for n, k in enumerate(m.kinds) if k.is_discrete == wanted)
        for wanted in (False, True)
    )
    x = np.linspace(-12, 12, 4801)
    mean, scale = m.means[numbers][0, :, 0, 0].numpy(), m.scales[numbers][0, :, 0, 0].numpy()
    parts = m.weights[0].numpy()[:, None] * norm.pdf(x, mean[:, None], scale[:, None])
    p = m.log_probs[labels][0].exp().numpy()  # [L, 4, 2]

    def total(values):
        return values.sum() * (x[1] - x[0])

    def h(density):
        return -total(density * np.log(density + 1e-300))

    aligned = np.array([[1.0, -1.0], [-1.0, 1.0]])
    truth = total(parts.sum(0) * norm.logpdf(x, 0.3, 1)) - 4 * np.log(2) + h(parts.sum(0))
    for a, b in RING:
        both = np.einsum("lc,ld,lx->cdx", p[:, a], p[:, b], parts)
        truth += total(both * aligned[:, :, None] * x) + h(both)
    truth -= sum(h(np.einsum("lc,lx->cx", p[:, k], parts)) for k in range(4))
    with torch.no_grad():
        value = found.objective(found.parameters, (fine(DOUBLE), fine_entropies(DOUBLE)))
    assert abs(value[0].item() - truth) < 1e-3
    assert fit(ring, num_components=3, num_steps=10).evidence_kind == "estimate"


SYMBOLS = (0, 0, 1, 1, 1, 0)


def unknown_chain():
    """A hidden Markov model of which neither transitions nor emissions are known."""
    with pyro.plate("states", 2):
        move = pyro.sample("move", dist.Dirichlet(torch.ones(2)))
        emit = pyro.sample("emit", dist.Dirichlet(torch.ones(2)))
    z = torch.tensor(0)
    for t, symbol in enumerate(SYMBOLS):
        z = pyro.sample(f"z{t}", dist.Categorical(Vindex(move)[z]))
        pyro.sample(f"y{t}", dist.Categorical(Vindex(emit)[z]), obs=torch.tensor(symbol))


def of_counts(counts):
    """log of the integral of the product of p^n under Dirichlet(1, ..., 1)."""
    counts = np.asarray(counts)
    return gammaln(len(counts)) - gammaln(len(counts) + counts.sum()) + gammaln(1 + counts).sum()


def log_evidence_of_chain():
    total = []
    for states in itertools.product(range(2), repeat=len(SYMBOLS)):
        move, emit = np.zeros((2, 2)), np.zeros((2, 2))
        np.add.at(move, ((0, *states[:-1]), states), 1)
        np.add.at(emit, (states, SYMBOLS), 1)
        total.append(sum(map(of_counts, (*move, *emit))))
    return logsumexp(total)


def test_an_unknown_hidden_markov_model_has_a_lower_bound_that_grows():
    """Counted apart, transitions and emissions closed cycles through all states: an estimate."""
    found = [fit(unknown_chain, num_components=n, num_steps=150, lr=0.1) for n in (1, 2)]
    assert all(q.evidence_kind == "lower bound" for q in found)
    one, two = (float(q.log_evidence) for q in found)
    assert one + 0.4 < two < log_evidence_of_chain()


def documents():
    """Topics are shared by all documents, shares are a document's."""
    with pyro.plate("topics", 2):
        level = pyro.sample("level", dist.Normal(0.0, 3.0))
    for d in range(2):
        share = pyro.sample(f"share{d}", dist.Dirichlet(torch.ones(2)))
        with pyro.plate(f"words{d}", 2):
            z = pyro.sample(f"z{d}", dist.Categorical(share))
            pyro.sample(f"y{d}", dist.Normal(level[z], 1.0), obs=torch.tensor([-1.0, 2.0]))


def test_documents_of_shared_topics_have_a_lower_bound():
    q = fit(documents, num_components=2, num_steps=150, lr=0.1)
    total, y = [], np.array([-1.0, 2.0, -1.0, 2.0])
    for states in itertools.product(range(2), repeat=4):
        states = np.array(states)
        value = sum(of_counts(np.bincount(own, minlength=2)) for own in (states[:2], states[2:]))
        for k in range(2):
            own = y[states == k]
            if len(own):
                covariance = np.eye(len(own)) + 9.0
                value += multivariate_normal(np.zeros(len(own)), covariance).logpdf(own)
        total.append(value)
    assert q.evidence_kind == "lower bound"
    assert logsumexp(total) - 1.0 < float(q.log_evidence) < logsumexp(total)


def test_a_core_has_points_for_all_of_its_numbers():
    rules = coarse_entropies(20, DOUBLE)
    assert len(rules(60, 1).weights) == 400
    assert len(rules(60, 1, least=PER_NUMBER * 60).weights) == PER_NUMBER * 60


# ---------------------------------------------------------------------- what stays as it is
def regressions():
    """A row at 0 reads the intercepts alone."""
    x = torch.tensor([-1.0, 0.0, 2.0])
    with pyro.plate("lines", 2):
        a = pyro.sample("a", dist.Normal(0.0, 1.5))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 3):
        z = pyro.sample("z", dist.Bernoulli(0.4)).long()
        pyro.sample("y", dist.Normal(a[z] + b[z] * x, 1.0), obs=torch.tensor([-1.0, 0.5, 2.0]))


def test_correlated_sets_within_others_count_by_themselves():
    """Two ties of the same numbers were one of more: torch's error about sizes."""
    q = fit(regressions, num_components=2, num_steps=60, lr=0.1)
    assert q.evidence_kind == "estimate"
    draws, total = torch.randn(100_000, 2, 2, generator=torch.Generator().manual_seed(0)), 0.0
    for x, y in ((-1.0, -1.0), (0.0, 0.5), (2.0, 2.0)):
        of_lines = dist.Normal(1.5 * draws[:, 0] + draws[:, 1] * x, 1.0).log_prob(torch.tensor(y))
        total = total + (of_lines + torch.tensor([0.6, 0.4]).log()).logsumexp(1)
    log_z = float(total.logsumexp(0) - np.log(100_000))
    assert log_z - 1.5 < float(q.log_evidence) < log_z + 0.5


def test_ties_stand_in_the_order_of_their_numbers():
    nodes = torch.arange(6)[None]
    pairs, between = torch.tensor([[0, 1], [4, 5]]), torch.tensor([[2, 3]])
    found = ties_in(nodes, [("pairs", pairs), ("between", between)])
    assert [(tie.name, tie.slots.start) for tie in found] == [
        ("pairs", 0),
        ("between", 2),
        ("pairs", 4),
    ]


def one_label():
    """A tree as it stands."""
    u, x = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ux")
    z = pyro.sample("z", dist.Bernoulli(logits=u))
    pyro.sample("y", dist.Normal(x, 1.0 + z), obs=torch.tensor(1.5))


def local():
    """What a label reads by itself is no part of a core."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("n", 2):
        z = pyro.sample("z", dist.Bernoulli(logits=w))
        x = pyro.sample("x", dist.Normal(m * z, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor([0.5, 2.0]))


@pytest.mark.parametrize("model, is_forest", [(local, False), (one_label, True)])
def test_other_labels_keep_their_scopes(model, is_forest):
    q = fit(model, num_components=2, num_steps=10)
    found = engine(model)
    widest = max(scope.nodes.shape[1] for scope in found.network.scopes if scope.core is None)
    assert widest <= 3
    assert found.network.is_forest == is_forest
    assert q.evidence_kind == ("lower bound" if is_forest else "estimate")
