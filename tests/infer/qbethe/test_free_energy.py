"""The free energy at given parameters, against dense integrals and enumeration."""

import itertools

import numpy as np
import pyro
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.qbethe.components import FLOOR, Components, correlation_root, num_ties
from pyrograph.infer.qbethe.rules import coarse, fine, low_discrepancy

from .programs import CELL, CYCLE, GRID, chain, spins, three_cycle

DOUBLE = torch.zeros((), dtype=torch.float64)


def engine(model, seed=0, spread=0.3, **options):
    """Set up, with parameters moved away from where they start."""
    pyro.set_rng_seed(seed)
    found = pg.QBethe(model, progress=False, dtype=torch.float64, **options)
    found.setup()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in found.parameters.values():
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            value += spread * noise
    return found


def mixture_of(found):
    return Components(found.network.kinds, {k: v.detach() for k, v in found.parameters.items()})


def exact(found):
    rules = coarse(32, DOUBLE)
    with torch.no_grad():
        return found.objective(found.parameters, (fine(DOUBLE), rules))


def entropy(density, cells):
    return -(density * np.log(density + 1e-300)).sum() * np.exp(cells * CELL)


def dense_free_energy(found, unary, pair, edges):
    """By sums over the grid, of the first restart."""
    m = mixture_of(found)
    w, mean, scale = m.weights[0].numpy(), m.means[0][0, ..., 0].numpy(), m.scales[0][0, ..., 0]
    scale, count = scale.numpy(), mean.shape[1]
    own = [
        sum(w[k] * stats.norm(mean[k, i], scale[k, i]).pdf(GRID) for k in range(len(w)))
        for i in range(count)
    ]
    total = sum((own[i] * unary(GRID)).sum() * np.exp(CELL) for i in range(count))
    degree = np.bincount(np.ravel(edges), minlength=count)
    total += sum((1 - degree[i]) * entropy(own[i], 1) for i in range(count))
    for i, j in edges:
        both = np.zeros((len(GRID), len(GRID)))
        for k in range(len(w)):
            rho = 0.0
            if "tie_0" in found.parameters:
                (shared,) = found.network.scopes[0].wiring.ties
                e = edges.index([i, j])
                tie = found.parameters[shared.name].detach()[0, k, shared.rows[e]]
                n = correlation_root(tie, [1, 1])
                rho = float(n[1, 0])
            s, t = scale[k, i], scale[k, j]
            covariance = [[s * s, rho * s * t], [rho * s * t, t * t]]
            grid = np.dstack(np.meshgrid(GRID, GRID, indexing="ij"))
            both += w[k] * stats.multivariate_normal(mean[k, [i, j]], covariance).pdf(grid)
        total += (both * pair(GRID[:, None], GRID[None])).sum() * np.exp(2 * CELL)
        total += entropy(both, 2)
    return total


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("components", [1, 3])
def test_the_free_energy_of_a_chain_is_that_of_dense_integrals(components, covariance):
    found = engine(chain, num_components=components, covariance=covariance)
    with torch.no_grad():  # inside the grid
        found.parameters["mean_0"].mul_(0.5)
        found.parameters["log_scale_0"].sub_(0.8)
    edges = [[k, k + 1] for k in range(4)]

    def unary(x):
        return -((x**2 - 4) ** 2) / 8 + 0.1 * x

    truth = dense_free_energy(found, unary, lambda a, b: -0.3 * (b - a) ** 2, edges)
    assert_close(exact(found)[0].item(), truth, rtol=1e-4, atol=1e-3)


def test_the_free_energy_of_a_cycle_counts_nodes_and_edges():
    found = engine(three_cycle, num_components=2)
    with torch.no_grad():
        found.network.kinds[0].centre.mul_(0.2)
        found.parameters["mean_0"].mul_(0.15)
        found.parameters["log_scale_0"].sub_(1.8)

    def pair(a, b):
        one, other = (a - 10) ** 2 + (b + 10) ** 2, (a + 10) ** 2 + (b - 10) ** 2
        return np.logaddexp(-0.1 * one, -0.1 * other)

    truth = dense_free_energy(found, lambda x: -0.1 * np.abs(x), pair, CYCLE.tolist())
    assert_close(exact(found)[0].item(), truth, rtol=1e-4, atol=2e-3)


def enumerated_free_energy(found):
    m = mixture_of(found)
    w, p = m.weights[0].numpy(), m.log_probs[0][0].exp().numpy()  # [L, V, 2]
    own = np.einsum("l,lvc->vc", w, p)
    fields = np.log(np.array([[0.7, 0.3], [0.4, 0.6], [0.5, 0.5], [0.8, 0.2]]))
    total = (own * fields).sum() + (own * np.log(own)).sum()  # 1 - d = -1
    for e, j in enumerate([0.7, -0.4, 0.9, 0.5]):
        a, b = e, (e + 1) % 4
        both = np.einsum("l,lc,ld->cd", w, p[:, a], p[:, b])
        s = np.array([-1.0, 1.0])
        total += (both * j * np.outer(s, s)).sum() - (both * np.log(both)).sum()
    return total


@pytest.mark.parametrize("components", [1, 4])
def test_the_free_energy_of_spins_is_that_of_enumeration(components):
    found = engine(spins, num_components=components, spread=1.0)
    assert_close(exact(found)[0].item(), enumerated_free_energy(found), rtol=0, atol=1e-6)


def test_restarts_side_by_side_are_runs_of_their_own():
    several = engine(chain, num_components=2, num_restarts=3)
    values = exact(several)
    for k in range(3):
        alone = {name: value[k : k + 1] for name, value in several.parameters.items()}
        rules = (fine(DOUBLE), coarse(32, DOUBLE))
        assert_close(several.objective(alone, rules)[0], values[k], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("widths", [[1, 1], [1, 1, 1, 1], [2, 2], [1, 3, 2]])
def test_correlations_leave_the_nodes_uncorrelated_within(widths):
    tie = 2 * torch.randn(5, num_ties(widths), dtype=torch.float64)
    root = correlation_root(tie, widths)
    matrix = root @ root.mT
    start = 0
    for width in widths:
        block = matrix[:, start : start + width, start : start + width]
        assert_close(block, torch.eye(width).double().expand_as(block))
        start += width
    assert bool((torch.linalg.eigvalsh(matrix) > 0).all())
    assert_close(root, root.tril())


def test_entropies_of_wide_scopes_by_samples_are_near_those_of_a_grid():
    def quartet():
        with pyro.plate("nodes", 4):
            x = pyro.sample("x", pyro.distributions.Normal(0.0, 1.0))
        pyro.factor("all", -(x.prod() ** 2))

    found = engine(quartet, num_components=3, num_entropy=4)
    with torch.no_grad():
        grid = found.objective(found.parameters, (coarse(4, DOUBLE), coarse(5, DOUBLE)))
        sampled = found.objective(found.parameters, (coarse(4, DOUBLE), coarse(9, DOUBLE)))
    assert 5**4 <= 1024 < 9**4
    assert_close(grid, sampled, rtol=0, atol=0.05)


def hybrid():
    first = pyro.sample("first", pyro.distributions.Categorical(torch.ones(3).double()))
    with pyro.plate("nodes", 2):
        x = pyro.sample("x", pyro.distributions.Normal(torch.zeros(2).double(), 1.0))
    second = pyro.sample("second", pyro.distributions.Bernoulli(torch.tensor(0.5).double()))
    pyro.factor("all", -((x.prod() + first * second) ** 2))


STEP = 0.1
LINE = torch.arange(-9.0, 9.0, STEP, dtype=torch.float64)


def masses(found):
    """Log masses of the first restart's components in states and in the cells of a grid, per kind
    ``[nodes, L, cells]``; log weights ``[L]``."""
    m = Components(found.network.kinds, found.parameters)
    nodes = []
    for n, kind in enumerate(m.kinds):
        if kind.is_discrete:
            nodes.append(m.log_probs[n][0].transpose(0, 1))
            continue
        mean, scale = m.means[n][0, ..., 0], m.scales[n][0, ..., 0]
        normal = torch.distributions.Normal(mean.t()[..., None], scale.t()[..., None])
        nodes.append(normal.log_prob(LINE) + np.log(STEP))
    return nodes, m.log_weights[0]


def entropy_by_sums(log_weights, nodes):
    """Of a mixture over some nodes, of which ``[L, cells]`` is given."""
    log_p = log_weights.view(-1, 1)
    for node in nodes:
        log_p = (log_p[:, :, None] + node[:, None, :]).flatten(1)
    total = log_p.logsumexp(0)
    numbers = sum(node.shape[1] == len(LINE) for node in nodes)  # density, not mass, of these
    return -(total.exp() * total).sum() + numbers * np.log(STEP)


def entropy_of_hybrid(found):
    """Over all four nodes."""
    nodes, log_weights = masses(found)
    return entropy_by_sums(log_weights, [node for kind in nodes for node in kind])


def labelled():
    with pyro.plate("components", 2):
        x = pyro.sample("x", pyro.distributions.Normal(torch.zeros(2).double(), 1.0))
    with pyro.plate("rows", 3):
        z = pyro.sample("z", pyro.distributions.Bernoulli(torch.full((3,), 0.5).double()))
        pyro.sample("y", pyro.distributions.Normal(x[z.long()], 1.0), obs=torch.zeros(3).double())


def entropy_of_labelled(found):
    """Three scopes of both components and a label, but the pair of components counts once."""
    (x, z), log_weights = masses(found)
    scopes = sum(entropy_by_sums(log_weights, [*x, label]) for label in z)
    return scopes - 2 * entropy_by_sums(log_weights, [*x])


@pytest.mark.parametrize(
    ("points", "tolerance"), [(12, 1e-3), (40, 0.01)], ids=["on a grid", "by samples"]
)
@pytest.mark.parametrize(
    ("program", "truth"),
    [(hybrid, entropy_of_hybrid), (labelled, entropy_of_labelled)],
    ids=["one scope", "a shared pair"],
)
@pytest.mark.parametrize("seed", range(3))
def test_entropies_of_scopes_with_states_and_numbers_are_those_of_sums(
    program, truth, points, tolerance, seed
):
    """And so are their derivatives; errors of scopes add up."""
    found = engine(program, seed, num_components=2)
    expected, tolerance = truth(found), tolerance * sum(s.num_scopes for s in found.network.scopes)
    ours = found.objective.entropy(
        Components(found.network.kinds, found.parameters), coarse(points, DOUBLE)
    )
    assert_close(ours[0], expected, rtol=0, atol=tolerance)
    leaves = list(found.parameters.values())
    slopes = zip(
        torch.autograd.grad(ours.sum(), leaves), torch.autograd.grad(expected, leaves), strict=True
    )
    for own, true in slopes:
        assert_close(own, true, rtol=0, atol=tolerance)


def test_low_discrepancy_sets_have_the_moments_of_normal_numbers():
    rule = low_discrepancy(6, 256, DOUBLE)
    assert_close(rule.points.mean(0), torch.zeros(6).double(), rtol=0, atol=1e-9)
    covariance = rule.points.mT @ (rule.weights[:, None] * rule.points)
    assert_close(covariance, torch.eye(6).double(), rtol=0, atol=0.06)


def test_one_component_is_mean_field():
    """F = E log p - E log q for independent nodes, on any graph."""
    found = engine(spins, num_components=1, spread=1.0)
    p = mixture_of(found).log_probs[0][0, 0].exp().numpy()
    fields = np.array([[0.7, 0.3], [0.4, 0.6], [0.5, 0.5], [0.8, 0.2]])
    total = 0.0
    for state in itertools.product((0, 1), repeat=4):
        q = np.prod([p[i, s] for i, s in enumerate(state)])
        log_p = sum(np.log(fields[i, s]) for i, s in enumerate(state))
        spin = [2 * s - 1 for s in state]
        for e, j in enumerate([0.7, -0.4, 0.9, 0.5]):
            log_p += j * spin[e] * spin[(e + 1) % 4]
        total += q * (log_p - np.log(q))
    assert_close(exact(found)[0].item(), total, rtol=0, atol=1e-9)


def test_a_component_without_weight_changes_nothing():
    found = engine(three_cycle, num_components=3)
    with torch.no_grad():
        found.parameters["weights"][:] = torch.tensor([0.0, -2000.0, -3000.0])
        found.parameters["log_scale_0"][:] = 0.0  # scales of siblings are a floor to each other
    alone = engine(three_cycle, num_components=1)
    with torch.no_grad():
        for name in ("mean_0", "log_scale_0"):
            alone.parameters[name][:] = found.parameters[name][:, :1]
        # the root mean square of equal scales and their floor
        alone.parameters["log_scale_0"] += 0.5 * np.log(1 + FLOOR**2)
    rules = coarse(12, DOUBLE), coarse(12, DOUBLE)
    value, expected = (e.objective(e.parameters, rules) for e in (found, alone))
    value.sum().backward()
    assert_close(value, expected)
    assert all(v.grad.isfinite().all() for v in found.parameters.values())
