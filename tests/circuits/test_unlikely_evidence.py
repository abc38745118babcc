"""Evidence whose probability is far below the smallest float: conditionals stay exact.

Truths are closed forms, and sums over all states in log space.
"""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.circuits import (
    RBF,
    Circuit,
    Delta,
    ExpectedSVR,
    Hamming,
    compile_graph,
    expected_kernel,
    fit_parameters,
    kdsd,
    mixture,
    squared_mmd,
    stein_gram,
    tree_network,
)
from pyrograph.circuits.expectations.positivity import refuse_zeros
from pyrograph.errors import InvalidCircuit, ZeroMass
from tests.circuits.random_circuits import (
    deterministic_circuit,
    random_circuit,
    random_vtree,
    states,
)
from tests.circuits.test_stein import stein_kernel

PRECISE = {torch.float64: 1e-9, torch.float32: 2e-5}
dtypes = pytest.mark.parametrize("dtype", PRECISE, ids=str)


def gaussian_mixture(means, scales, dtype=torch.float64):
    nodes, products = [], []
    for row, scale in zip(means, scales, strict=True):
        first = len(nodes)
        nodes += [
            {"type": "input", "var": v, "loc": float(m), "scale": scale} for v, m in enumerate(row)
        ]
        nodes.append({"type": "product", "children": list(range(first, len(nodes)))})
        products.append(len(nodes) - 1)
    weights = [1 / len(products)] * len(products)
    nodes.append({"type": "sum", "children": products, "weights": weights})
    return Circuit.from_nodes(nodes).to(dtype)


def latent_class(d, p=0.99, dtype=torch.float64):
    """Two classes of coins, of chances p and 1 - p."""
    classes = [pg.circuits.fully_factorised([torch.tensor([1 - c, c])] * d) for c in (p, 1 - p)]
    return mixture(classes, [0.5, 0.5]).to(dtype)


@dtypes
@pytest.mark.parametrize("z", [0.0, 13.5, 15.0, 38.0, 39.0, 400.0])
def test_a_row_many_standard_deviations_away_gets_the_closed_form(z, dtype):
    model = ExpectedSVR(
        np.zeros((1, 2)), np.ones(1), 0.0, RBF(1e4), gaussian_mixture([[0, 0]], [1.0], dtype)
    )
    truth = math.sqrt(1e4 / (1e4 + 2)) * math.exp(-(z**2) / 1e4)
    assert model.predict(np.array([[z, np.nan]])) == pytest.approx(truth, rel=PRECISE[dtype])


@dtypes
def test_the_component_that_wins_in_the_whole_counts_though_it_loses_in_a_part(dtype):
    """Log likelihoods -800 - c and -900 - c; under the first feature alone, -800 and -450."""
    circuit = gaussian_mixture([[40, 0, -1], [30, 30, 1]], [1.0, 1.0], dtype)
    model = ExpectedSVR(np.array([[0.0, 0.0, 1.0]]), np.ones(1), 0.0, RBF(1.0), circuit)
    truth = math.sqrt(1 / 3) * math.exp(-4 / 3)
    found = model.predict(np.array([[0.0, 0.0, np.nan]]))
    assert found == pytest.approx(truth, rel=PRECISE[dtype])


def test_a_point_between_narrow_fitted_clusters_is_predicted():
    generator = torch.Generator().manual_seed(0)
    noise = 0.01 * torch.randn(400, 2, generator=generator)
    x = noise + (torch.arange(400) % 2).unsqueeze(1)
    circuit = fit_parameters(gaussian_mixture([[0, 0], [1, 1]], [0.3, 0.3]), x, progress=False)
    support = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.5, 0.1]])
    coef = torch.tensor([1.0, -2.0, 0.5])
    model = ExpectedSVR(support, coef, 0.1, RBF(2.0), circuit)
    nodes = circuit.to_nodes()
    weights = np.array(nodes[-1]["weights"])
    mean, scale = (
        np.array([[nodes[k][key] for k in nodes[c]["children"]] for c in nodes[-1]["children"]])
        for key in ("loc", "scale")
    )
    for at in (0.1, 0.38, 0.45, 0.8):
        logs = np.log(weights) - np.log(scale[:, 0]) - 0.5 * ((at - mean[:, 0]) / scale[:, 0]) ** 2
        share = np.exp(logs - logs.max())
        share /= share.sum()
        width = 2 + 2 * scale[:, 1:] ** 2
        s, a = support.numpy(), coef.numpy()
        smoothed = np.sqrt(2 / width) * np.exp(-((mean[:, 1:] - s[:, 1]) ** 2) / width)
        truth = share @ (smoothed * np.exp(-((at - s[:, 0]) ** 2) / 2)) @ a + 0.1
        found = model.predict(torch.tensor([[at, torch.nan]]))
        assert float(found) == pytest.approx(truth, rel=1e-8)


@dtypes
@pytest.mark.parametrize("d", [60, 320, 330])
def test_half_of_many_features_on_is_the_mean_over_both_classes(d, dtype):
    """The last feature is missing; without it one class is ahead by a feature."""
    row = torch.zeros(1, d)
    row[0, : d // 2] = 1
    row[0, -1] = torch.nan
    support = torch.stack([torch.zeros(d), torch.ones(d)])
    model = ExpectedSVR(
        support, torch.tensor([1.0, 2.0]), 0.5, RBF(float(d)), latent_class(d, dtype=dtype)
    )
    on = d // 2
    log_odds = (on - (d - 1 - on)) * math.log(99)
    chance = 1 / (1 + math.exp(-log_odds))
    last = chance * 0.99 + (1 - chance) * 0.01
    one = math.exp(-1 / d)
    to_zeros = math.exp(-on / d) * (1 - last + last * one)
    to_ones = math.exp(-(d - 1 - on) / d) * (last + (1 - last) * one)
    truth = to_zeros + 2 * to_ones + 0.5
    assert float(model.predict(row)) == pytest.approx(truth, rel=PRECISE[dtype])


def latent_class_stein(x, y, p=0.99):
    """The Stein kernel (Hamming, weights 1/D) of states x and y, their class summed out.

    sum_i A_i^x A_i^y k with ratios of log probabilities; the class is not held, and independent of
    the kernel.
    """
    d = len(x)

    def log_prob(on):
        return np.logaddexp(
            on * math.log(p) + (d - on) * math.log1p(-p),
            on * math.log1p(-p) + (d - on) * math.log(p),
        )

    def ratios(at):
        on = at.sum()
        return np.exp(log_prob(on + 1 - 2 * at) - log_prob(on))

    apart = x != y
    k = math.exp(-apart.sum() / d)
    crossed = k * np.exp(np.where(apart, 1.0, -1.0) / d)  # one of both moved
    a, b = ratios(x), ratios(y)
    return float((k * (1 + a * b) - crossed * (a + b)).sum())


@dtypes
@pytest.mark.parametrize("d", [50, 200, 300])
def test_stein_kernels_of_unlikely_samples_are_the_closed_form(d, dtype):
    generator = np.random.default_rng(0)
    x = np.zeros((4, d), int)
    x[:, : d // 2] = 1
    x[1:] = generator.permuted(x[1:], axis=1)
    x[3, 0] = 1 - x[3, 0]
    truth = torch.tensor([[latent_class_stein(a, b) for b in x] for a in x])
    gram = stein_gram(latent_class(d, dtype=dtype), torch.tensor(x))
    assert gram.dtype == dtype
    scale = float(truth.abs().max())
    assert_close(gram.double(), truth, rtol=0, atol=scale * PRECISE[dtype])


def test_collapsed_samples_of_an_unlikely_class_have_weights():
    """D = 200 of the coins above, held at halves; the class is exact given them."""
    d, p = 200, 0.99

    def model():
        z = pyro.sample("z", dist.Bernoulli(torch.tensor(0.5).double()))
        chance = torch.tensor([1 - p, p]).double()[z.long()]
        with pyro.plate("coins", d):
            pyro.sample("x", dist.Bernoulli(chance))

    x = torch.zeros(4, d)
    x[:, : d // 2] = 1
    x[1, 0], x[2, -1] = 0, 1
    engine = pg.CollapsedBBIS(
        model, collapse=[("z", ())], samples={"z": torch.zeros(4), "x": x}, progress=False
    )
    posterior = engine.run()
    on = x.sum(1).double()
    truth = (engine.weights * torch.sigmoid((2 * on - d) * math.log(99))).sum()
    assert_close(posterior.marginal("z").probs[1].double(), truth, rtol=1e-9, atol=0)


def spread_out(circuit, generator, lowest=-800.0):
    """With weights and probabilities between exp(lowest) and 1, as they stand."""

    def spread(logs):
        low = lowest * torch.rand(logs.shape, generator=generator)
        far = torch.rand(logs.shape, generator=generator) < 0.6
        return torch.where(logs > -torch.inf, torch.where(far, low, logs), logs)

    log_weights, log_table = spread(circuit.log_weights), spread(circuit.log_table)
    parts = (circuit.units, circuit.domain, log_weights, log_table, circuit.loc, circuit.scale)
    return Circuit(*parts)


seeds = st.integers(0, 10_000)


@given(seed=seeds)
@settings(max_examples=40)
def test_predictions_of_circuits_with_far_apart_weights_are_means_over_completions(seed):
    generator = torch.Generator().manual_seed(seed)
    cards = (2 + torch.randint(2, (4,), generator=generator)).tolist()
    vtree = random_vtree([0, 1, 2, 3], generator)
    p = spread_out(random_circuit(cards, vtree, generator, sparse=0.3), generator)
    x = states(cards)
    support = x[torch.randint(len(x), (5,), generator=generator)]
    coef = torch.randn(5, generator=generator)
    rows = x[torch.randint(len(x), (12,), generator=generator)].double()
    rows[torch.rand(rows.shape, generator=generator) < 0.4] = torch.nan
    logs = torch.where(
        ((rows.unsqueeze(1) == x) | rows.isnan().unsqueeze(1)).all(2), p.log_prob(x), -torch.inf
    )
    possible = logs.amax(1) > -torch.inf
    truth = logs[possible].softmax(1) @ (RBF(2.0).gram(x, support, cards) @ coef)
    model = ExpectedSVR(support, coef, 0.0, RBF(2.0), p)
    assert_close(model.predict(rows[possible]), truth, rtol=1e-9, atol=1e-9)
    for row in rows[~possible]:
        with pytest.raises(ZeroMass):
            model.predict(row.unsqueeze(0))


@given(seed=seeds)
@settings(max_examples=40)
def test_stein_kernels_of_targets_with_far_apart_weights_are_those_of_the_states(seed):
    """Samples around the most probable state, where ratios are finite."""
    generator = torch.Generator().manual_seed(seed)
    count = 2 + int(torch.randint(3, (), generator=generator))
    cards = (2 + torch.randint(2, (count,), generator=generator)).tolist()
    p = spread_out(deterministic_circuit(cards, generator), generator, -300.0)
    try:
        refuse_zeros(p)
    except InvalidCircuit:
        return
    x = states(cards)
    points = x[torch.randint(len(x), (6,), generator=generator)]
    points[torch.rand(points.shape, generator=generator) < 0.5] = -1
    agrees = ((points.unsqueeze(1) == x) | (points == -1).unsqueeze(1)).all(2)
    logs = p.log_prob(x)
    log_mass = torch.where(agrees, logs, -torch.inf).logsumexp(1)
    # measures mu_i of every sample, in log space as far as ratios to its mass
    kernel = Hamming(torch.linspace(0.2, 1.0, count))
    smooth = kernel.gram(x, x, cards)
    truth = 0
    share = torch.where(agrees, logs - log_mass.unsqueeze(1), -torch.inf).exp()
    place = torch.tensor([math.prod(cards[i + 1 :]) for i in range(count)])
    sizes = []
    for i in range(count):
        held = (points[:, i] != -1).unsqueeze(1)
        after = x.clone()
        after[:, i] = (x[:, i] + 1) % cards[i]
        number = (after * place).sum(1)
        off = torch.where(agrees, logs[number] - log_mass.unsqueeze(1), -torch.inf).exp()
        mu = torch.where(held, share[:, number] - off, 0.0)
        sizes.append(mu.abs().sum(1))
        truth = truth + mu @ smooth @ mu.t()
    size = torch.stack(sizes).sum(0)
    keep = size < 1e100
    scale = (size.unsqueeze(1) * size)[keep][:, keep] + 1
    found = stein_gram(p, points[keep], kernel)
    assert_close(found / scale, truth[keep][:, keep] / scale, rtol=0, atol=1e-9)


@given(seed=seeds)
@settings(max_examples=20)
def test_kernels_and_discrepancies_of_circuits_with_far_apart_weights_are_those_of_the_states(seed):
    generator = torch.Generator().manual_seed(seed)
    cards = [2, 3, 2]
    p = deterministic_circuit(cards, generator)
    q = spread_out(random_circuit(cards, (0, (1, 2)), generator), generator)
    x, kernel = states(cards), Hamming()
    weights = q.log_prob(x).softmax(0)
    gram = kernel.gram(x, x, cards)
    assert_close(
        expected_kernel(q.normalized(), q.normalized(), kernel),
        weights @ gram @ weights,
        rtol=1e-9,
        atol=0,
    )
    truth = weights @ stein_kernel(p, kernel, cards) @ weights
    assert_close(kdsd(q, p, kernel), truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 150.0, 600.0])
def test_discrepancies_of_chains_of_sparse_far_apart_tables_are_those_of_the_states(scale):
    count = 50  # so that sums have few of many children, and are no matrices
    state = torch.arange(count)
    is_near = (state.unsqueeze(1) - state).abs() <= 1

    def compiled(seed):
        logs = scale * torch.randn(2, count, count, generator=torch.manual_seed(seed)).double()
        first, second = torch.where(is_near, logs, -torch.inf)

        def model():
            x, y, z = (
                pyro.sample(name, dist.Categorical(torch.ones(count).double())) for name in "xyz"
            )
            pyro.factor("f", first[x, y])
            pyro.factor("g", second[y, z])

        joint = first.unsqueeze(2) + second
        return compile_graph(pg.trace_graph(model)), joint.flatten().softmax(0).view_as(joint)

    (p, of_p), (q, of_q) = compiled(1), compiled(2)
    off = of_p - of_q
    assert_close(squared_mmd(p, q, Delta()), off.square().sum(), rtol=1e-9, atol=0)
    smooth = torch.eye(count).double().masked_fill(state.unsqueeze(1) != state, math.exp(-1 / 3))
    truth = torch.einsum("abc,ai,bj,ck,ijk", off, smooth, smooth, smooth, off)
    assert_close(squared_mmd(p, q, Hamming()), truth, rtol=1e-9, atol=0)


def test_predictions_along_a_long_chain_that_flips_all_the_time_are_exact():
    """Every flip has chance 1e-6: 400 of them. The filled-in state is that of its neighbours."""
    t = 401
    step = torch.tensor([[1 - 1e-6, 1e-6], [1e-6, 1 - 1e-6]])
    tables = [torch.tensor([0.5, 0.5]), *[step] * (t - 1)]
    circuit = tree_network([None, *range(t - 1)], tables)
    row = (torch.arange(t) % 2).double().unsqueeze(0)
    row[0, -1] = torch.nan
    model = ExpectedSVR(torch.zeros(1, t), torch.ones(1), 0.0, RBF(float(t)), circuit)
    last = math.exp(-1 / t)
    truth = math.exp(-200 / t) * (1e-6 + (1 - 1e-6) * last)  # the one before is on
    assert float(model.predict(row)) == pytest.approx(truth, rel=1e-9)


def test_stein_kernels_of_unlikely_samples_are_differentiable():
    p = latent_class(200)
    x = torch.zeros(1, 200)
    x[0, :100] = 1
    p.log_table.requires_grad_()
    stein_gram(p, x).sum().backward()
    step = 1e-3
    with torch.no_grad():
        p.log_table[3, 1] += step
        up = stein_gram(p, x).sum()
        p.log_table[3, 1] -= 2 * step
        down = stein_gram(p, x).sum()
    assert_close(p.log_table.grad[3, 1], (up - down) / (2 * step), rtol=1e-4, atol=1e-3)
