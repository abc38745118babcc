"""Gaussian models: exact on trees, exact means everywhere, mean field below the truth."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

import pyrograph as pg

from .reference import LinearGaussian

EXACT = {"rtol": 1e-9, "atol": 1e-10}


def fit(model, args=(), infer=pg.EP, **options):
    return pg.fit(model, args, infer=infer, progress=False, **options)


def random_walk(y):
    x = pyro.sample("x0", dist.Normal(1.0, 2.0))
    pyro.sample("y0", dist.Normal(x, 0.7), obs=y[0])
    for t in range(1, len(y)):
        x = pyro.sample(f"x{t}", dist.Normal(0.9 * x + 0.1, 0.5))
        pyro.sample(f"y{t}", dist.Normal(x, 0.7), obs=y[t])


def random_walk_truth(y):
    n, eye = len(y), np.eye(len(y))
    truth = LinearGaussian(n).add(eye[0], 1.0, 4.0)
    for t in range(n):
        truth.add(eye[t], y[t], 0.49)
        if t:
            truth.add(eye[t] - 0.9 * eye[t - 1], 0.1, 0.25)
    return truth


@pytest.mark.parametrize("schedule", ["parallel", "sequential", "residual"])
@pytest.mark.parametrize("preset", [pg.BP, pg.EP])
def test_a_random_walk_is_smoothed_exactly(preset, schedule):
    y = torch.randn(12).cumsum(0)
    truth = random_walk_truth(y.numpy())
    q = fit(random_walk, (y,), preset, schedule=schedule)
    assert q.converged and q.evidence_kind == "exact"
    sites = [q.marginal(f"x{t}") for t in range(12)]
    assert_close(torch.stack([s.mean for s in sites]), torch.tensor(truth.mean), **EXACT)
    variance = torch.tensor(truth.covariance.diagonal().copy())
    assert_close(torch.stack([s.variance for s in sites]), variance, **EXACT)
    assert abs(float(q.log_evidence) - truth.log_evidence) < 1e-10


TURN = torch.tensor([[1.0, 0.5, 0.0], [-0.3, 0.9, 0.2], [0.0, 0.1, 0.8]], dtype=torch.float64)


def kalman(y, turn, seen, noise):
    d = len(turn)
    x = pyro.sample("x0", dist.MultivariateNormal(torch.zeros(d), 2 * torch.eye(d)))
    for t in range(len(y)):
        if t:
            step = dist.MultivariateNormal(turn @ x, noise)
            x = pyro.sample(f"x{t}", step)
        pyro.sample(f"y{t}", dist.Normal(seen @ x, 0.6), obs=y[t])


@pytest.mark.parametrize("preset", [pg.BP, pg.EP])
@pytest.mark.parametrize("d", [2, 3])
def test_vector_states_are_smoothed_as_by_kalman(preset, d):
    turn, seen = TURN[:d, :d], torch.randn(d)
    root = torch.randn(d, d)
    noise = root @ root.T + 0.1 * torch.eye(d)
    y, n = torch.randn(8), 8
    eye = np.eye(n * d).reshape(n, d, n * d)
    truth = LinearGaussian(n * d).add(eye[0], np.zeros(d), 2 * np.eye(d))
    for t in range(n):
        truth.add(seen.numpy() @ eye[t], y[t], 0.36)
        if t:
            truth.add(eye[t] - turn.numpy() @ eye[t - 1], np.zeros(d), noise.numpy())
    q = fit(kalman, (y, turn, seen, noise), preset)
    assert q.evidence_kind == "exact"
    for t in range(n):
        part = slice(t * d, t * d + d)
        s = q.marginal(f"x{t}")
        assert_close(s.mean, torch.tensor(truth.mean[part]), **EXACT)
        assert_close(s.covariance_matrix, torch.tensor(truth.covariance[part, part]), **EXACT)
    assert abs(float(q.log_evidence) - truth.log_evidence) < 1e-9


def regression(x, y):
    w = pyro.sample("w", dist.Normal(0.5, 2.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


@pytest.mark.parametrize("preset", [pg.BP, pg.EP, pg.VMP, pg.PowerEP, pg.FractionalBP])
def test_linear_regression_on_one_node_is_exact_for_every_preset(preset):
    x, y = torch.randn(20, 6), torch.randn(20)
    truth = LinearGaussian(6).add(np.eye(6), np.full(6, 0.5), 4 * np.eye(6))
    truth.add(x.numpy(), y.numpy(), 0.09 * np.eye(20))
    q = fit(regression, (x, y), preset)
    s = q.marginal("w")
    assert q.evidence_kind == "exact"
    assert_close(s.mean, torch.tensor(truth.mean), **EXACT)
    assert_close(s.covariance_matrix, torch.tensor(truth.covariance), **EXACT)
    assert abs(float(q.log_evidence) - truth.log_evidence) < 1e-9


def hierarchy(y):
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    with pyro.plate("group", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, 2.0))
        pyro.sample("y", dist.Normal(theta, 1.5), obs=y)


def hierarchy_truth(y):
    n = len(y)
    eye = np.eye(n + 1)
    truth = LinearGaussian(n + 1).add(eye[n], 0.0, 25.0)
    for j in range(n):
        truth.add(eye[j] - eye[n], 0.0, 4.0).add(eye[j], float(y[j]), 2.25)
    return truth


def test_hierarchical_normals_and_their_pairs_are_exact():
    y = torch.randn(7) * 3
    truth, q = hierarchy_truth(y), fit(hierarchy, (y,))
    assert_close(q.marginal("theta").mean, torch.tensor(truth.mean[:7]), **EXACT)
    assert_close(q.marginal("mu").variance, torch.tensor(truth.covariance[7, 7]), **EXACT)
    assert abs(float(q.log_evidence) - truth.log_evidence) < 1e-10
    mean, covariance = q.factor_marginal("theta")
    both = torch.tensor(truth.covariance)
    assert mean.shape == (7, 2)
    order = [7, 0] if abs(float(mean[0, 0]) - truth.mean[7]) < 1e-9 else [0, 7]
    for j in range(7):
        index = [j if k == 0 else 7 for k in order]
        assert_close(mean[j], torch.tensor(truth.mean[index]), **EXACT)
        assert_close(covariance[j], both[index][:, index], **EXACT)


def collider(y):
    a = pyro.sample("a", dist.Normal(1.0, 1.0))
    b = pyro.sample("b", dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1))
    c = pyro.sample("c", dist.Normal(-1.0, 2.0))
    pyro.sample("y", dist.Normal(2 * a + b.sum() - c, 0.5), obs=y)


def test_a_node_of_three_parents_of_mixed_widths_is_exact():
    eye = np.eye(4)
    truth = LinearGaussian(4).add(eye[0], 1.0, 1.0).add(eye[1:3], np.zeros(2), np.eye(2))
    truth.add(eye[3], -1.0, 4.0).add([2.0, 1.0, 1.0, -1.0], 3.0, 0.25)
    q = fit(collider, (torch.tensor(3.0),))
    assert_close(q.marginal("a").mean, torch.tensor(truth.mean[0]), **EXACT)
    wide = torch.tensor(truth.covariance[1:3, 1:3])
    assert_close(q.marginal("b").covariance_matrix, wide, **EXACT)
    assert_close(q.marginal("c").variance, torch.tensor(truth.covariance[3, 3]), **EXACT)
    assert abs(float(q.log_evidence) - truth.log_evidence) < 1e-10


def tree(parents, widths, maps, y):
    x = []
    for k, parent in enumerate(parents):
        d = widths[k]
        loc = torch.zeros(d) if parent is None else maps[k] @ x[parent]
        x.append(pyro.sample(f"x{k}", dist.Normal(loc, 0.5 + 0.1 * k).to_event(1)))
        pyro.sample(f"y{k}", dist.Normal(x[k].sum(), 1.0), obs=y[k])


@given(st.integers(0, 10**6), st.integers(2, 7))
@settings(max_examples=6)
def test_random_trees_of_nodes_of_random_widths_are_exact(seed, n):
    rng = np.random.default_rng(seed)
    parents = [None] + [int(rng.integers(k)) for k in range(1, n)]
    widths = rng.integers(1, 4, n).tolist()
    ends = np.cumsum(widths)
    eye = np.split(np.eye(ends[-1]), ends[:-1])
    y = rng.normal(size=n)
    maps: list = [None]
    truth = LinearGaussian(int(ends[-1]))
    for k, parent in enumerate(parents):
        design = eye[k]
        if parent is not None:
            maps.append(torch.tensor(rng.normal(size=(widths[k], widths[parent]))))
            design = design - maps[k].numpy() @ eye[parent]
        truth.add(design, np.zeros(widths[k]), (0.5 + 0.1 * k) ** 2 * np.eye(widths[k]))
        truth.add(eye[k].sum(0), y[k], 1.0)
    q = fit(tree, (parents, widths, maps, torch.tensor(y)), pg.BP)
    assert q.converged and q.evidence_kind == "exact"
    for k in range(n):
        part = slice(ends[k] - widths[k], ends[k])
        s = q.marginal(f"x{k}")
        assert_close(s.mean, torch.tensor(truth.mean[part]), **EXACT)
        assert_close(s.covariance_matrix, torch.tensor(truth.covariance[part, part]), **EXACT)
    assert abs(float(q.log_evidence) - truth.log_evidence) < 1e-9


def field(h, edges, weight):
    with pyro.plate("node", len(h)):
        x = pyro.sample("x", dist.Normal(h, 1.0))
    with pyro.plate("edge", len(edges)):
        pyro.factor("pair", -weight * x[edges[:, 0]] * x[edges[:, 1]])


def loopy(n=6, scale=0.5):
    edges = torch.tensor([[i, (i + 1) % n] for i in range(n)] + [[0, n // 2]])
    weight = (torch.rand(len(edges)) - 0.5) * scale
    h = torch.randn(n)
    precision = torch.eye(n)
    for (i, j), w in zip(edges.tolist(), weight, strict=True):
        precision[i, j] += w
        precision[j, i] += w
    mean = torch.linalg.solve(precision, h)
    evidence = 0.5 * h @ mean - 0.5 * h @ h - 0.5 * torch.logdet(precision)
    return (h, edges, weight), precision, mean, evidence


@pytest.mark.parametrize(
    "preset",
    [pg.BP, pg.EP, pg.VMP, pg.PowerEP, pg.FractionalBP],
    ids=lambda p: p.__name__,
)
def test_means_are_exact_on_loopy_graphs(preset):
    args, _, mean, evidence = loopy()
    q = fit(field, args, preset)
    assert q.converged
    assert_close(q.marginal("x").mean, mean, rtol=0, atol=1e-7)
    assert q.evidence_kind == ("lower bound" if preset is pg.VMP else "estimate")
    assert abs(float(q.log_evidence - evidence)) < 0.1


def test_ep_is_gaussian_belief_propagation_on_loopy_graphs():
    args, precision, _, evidence = loopy()
    bp, ep = fit(field, args, pg.BP), fit(field, args, pg.EP)
    assert_close(bp.marginal("x").variance, ep.marginal("x").variance)
    assert_close(bp.log_evidence, ep.log_evidence)
    exact = torch.linalg.inv(precision).diagonal()
    field_error = (fit(field, args, pg.VMP).marginal("x").variance - exact).abs().max()
    assert (bp.marginal("x").variance - exact).abs().max() < field_error
    assert abs(float(bp.log_evidence - evidence)) > 1e-6  # it is an estimate, and says so


def test_mean_field_precisions_are_the_diagonal_of_the_joint_and_its_bound_holds():
    args, precision, mean, evidence = loopy(scale=1.0)
    q = fit(field, args, pg.VMP)
    assert_close(q.marginal("x").mean, mean, rtol=0, atol=1e-7)
    assert_close(q.marginal("x").variance, 1 / precision.diagonal())
    h = args[0]
    entropy = 0.5 * (len(h) * np.log(2 * np.pi * np.e) - precision.diagonal().log().sum())
    trace = 0.5 * (precision.diagonal() / precision.diagonal()).sum()
    energy = -0.5 * mean @ precision @ mean + h @ mean - trace
    energy = energy - 0.5 * h @ h - 0.5 * len(h) * np.log(2 * np.pi)
    assert_close(q.log_evidence, energy + entropy)
    assert q.log_evidence <= evidence
    assert (q.history["objective"].diff() >= -1e-10).all()


def test_sums_of_more_and_more_steps_are_one_factor_of_mean_field_too():
    torch.manual_seed(0)
    y = torch.randn(15).cumsum(0)

    def model(y):
        with pyro.plate("steps", len(y)):
            step = pyro.sample("step", dist.Normal(0.0, 0.7))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(step.cumsum(-1), 0.5), obs=y)

    sums = np.tril(np.ones((15, 15)))
    precision = np.eye(15) / 0.49 + sums.T @ sums / 0.25
    mean = np.linalg.solve(precision, sums.T @ y.numpy() / 0.25)
    truth = stats.multivariate_normal.logpdf(
        y, np.zeros(15), sums @ sums.T * 0.49 + 0.25 * np.eye(15)
    )
    gap = 0.5 * (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1])

    engine = pg.VMP(model, progress=False)
    q = engine.run(y)
    assert q.converged
    assert_close(q.marginal("step").mean, torch.tensor(mean), rtol=0, atol=1e-6)
    assert_close(
        q.marginal("step").variance, torch.tensor(1 / np.diag(precision)), rtol=1e-9, atol=0
    )
    assert abs(float(q.log_evidence) - (truth - gap)) < 1e-6
    (block,) = engine.network.blocks
    assert block.num_factors == 1


def test_mean_field_of_vector_states_keeps_blocks_of_the_joint_precision():
    y, noise, n, d = torch.randn(5), 0.4 * torch.eye(2), 5, 2
    turn, seen = TURN[:2, :2], torch.tensor([1.0, 0.3])
    eye = np.eye(n * d).reshape(n, d, n * d)
    truth = LinearGaussian(n * d).add(eye[0], np.zeros(d), 2 * np.eye(d))
    for t in range(n):
        truth.add(seen.numpy() @ eye[t], y[t], 0.36)
        if t:
            truth.add(eye[t] - turn.numpy() @ eye[t - 1], np.zeros(d), noise.numpy())
    q = fit(kalman, (y, turn, seen, noise), pg.VMP)
    for t in range(n):
        part, s = slice(t * d, t * d + d), q.marginal(f"x{t}")
        assert_close(s.mean, torch.tensor(truth.mean[part]), rtol=0, atol=1e-6)
        block = torch.tensor(truth.precision[part, part])
        assert_close(s.covariance_matrix, torch.linalg.inv(block))
    assert q.log_evidence <= truth.log_evidence


def test_flat_priors_held_by_the_rest_are_no_obstacle():
    def model():
        real = dist.constraints.real
        x = pyro.sample("x", dist.ImproperUniform(real, (), ()))
        y = pyro.sample("y", dist.Normal(x, 2.0))
        pyro.sample("z", dist.Normal(y, 1.0), obs=torch.tensor(3.0))

    q = fit(model)
    assert_close(q.marginal("x").mean, torch.tensor(3.0))
    assert_close(q.marginal("x").variance, torch.tensor(5.0))
    assert_close(q.log_evidence, torch.tensor(0.0))  # the integral over x is 1


def test_nothing_holding_a_node_is_an_error_that_names_it():
    def model():
        x = pyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        pyro.sample("y", dist.Normal(x, 1.0))

    with pytest.raises(pg.errors.InferenceError, match=r'"x"|"y"'):
        fit(model, num_steps=20, tol=None)


def test_single_precision_gives_single_precision_results():
    y = torch.randn(10).cumsum(0)
    truth = random_walk_truth(y.numpy())
    q = fit(random_walk, (y,), dtype=torch.float32)
    assert q.marginal("x3").mean.dtype == torch.float32
    assert q.converged
    got = torch.stack([q.marginal(f"x{t}").mean for t in range(10)]).double()
    assert_close(got, torch.tensor(truth.mean), rtol=0, atol=2e-3)


@pytest.mark.parametrize("preset", [pg.BP, pg.EP, pg.TRW, pg.VMP])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_walk_in_tiny_units_keeps_its_curvature(preset, dtype):
    """Gradients a unit apart differ by less than their rounding."""
    unit, y = 1e15, np.array([0.3, -1.0, 0.8, 1.9])

    def model():
        with pyro.plate("n", 3):
            x = pyro.sample("x", dist.Normal(torch.zeros((), dtype=dtype), unit))
        step = torch.stack([x[0], x[1] - x[0], x[2] - x[1], x[2]])
        with pyro.plate("steps", 4):
            seen = torch.as_tensor(unit * y, dtype=dtype)
            pyro.sample("y", dist.Normal(step, 0.5 * unit), obs=seen)

    read = np.array([[1.0, 0, 0], [-1, 1, 0], [0, -1, 1], [0, 0, 1]])
    truth = LinearGaussian(3)
    for row in np.eye(3):
        truth.add(row, 0.0, 1.0)
    for row, value in zip(read, y, strict=True):
        truth.add(row, value, 0.25)
    found = fit(model, (), preset)
    slack = 1e-7 if dtype == torch.float64 else 1e-5  # mean field stops at its tol
    tolerance = {"rtol": slack, "atol": slack}
    mean = found.marginal("x").mean.double() / unit
    assert found.converged
    assert_close(mean, torch.tensor(truth.mean), **tolerance)
    if preset is not pg.VMP:
        assert found.evidence_kind == "exact"
        evidence = float(found.log_evidence) + 4 * np.log(unit)
        assert_close(evidence, truth.log_evidence, **tolerance)
        variance = found.marginal("x").variance.double() / unit**2
        assert_close(variance, torch.tensor(truth.covariance.diagonal().copy()), **tolerance)


def test_times_in_nanoseconds_since_1970():
    now, second = 1.7e18, 1e9
    y = torch.tensor([1.0, 3.0, 2.0, 5.0], dtype=torch.float64)

    def model():
        t = pyro.sample("t", dist.Normal(torch.tensor(now, dtype=torch.float64), 3 * second))
        with pyro.plate("n", 4):
            pyro.sample("y", dist.Normal(t, 2 * second), obs=now + second * y)

    found = fit(model, (), pg.BP)
    precision = 1 / 9 + 4 / 4
    site = found.marginal("t")
    # doubles are 256 nanoseconds apart there
    assert abs((float(site.mean) - now) / second - float(y.sum()) / 4 / precision) < 1e-6
    assert_close(float(site.variance) ** 0.5 / second, precision**-0.5, rtol=1e-9, atol=0)
    covariance = 4 * np.eye(4) + 9
    evidence = stats.multivariate_normal(np.zeros(4), covariance).logpdf(y) - 4 * np.log(second)
    assert abs(float(found.log_evidence) - evidence) < 1e-6


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("now", [1e8, 1.7e9])
def test_a_walk_in_seconds_since_1970_comes_to_rest(now, seed):
    """Rounding of its means is more than tol of their widths."""
    y = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + now
    truth = LinearGaussian(8).add(np.eye(8)[0], 0.0, 1.0)
    for t in range(8):
        truth.add(np.eye(8)[t], float(y[t]) - now, 0.49)
        if t:
            truth.add(np.eye(8)[t] - np.eye(8)[t - 1], 0.0, 0.25)

    def walk():
        x = torch.tensor(now, dtype=torch.float64)
        for t in range(8):
            x = pyro.sample(f"x{t}", dist.Normal(x, 0.5 if t else 1.0))
            pyro.sample(f"y{t}", dist.Normal(x, 0.7), obs=y[t])

    found = fit(walk, (), pg.BP)
    assert found.converged and found.evidence_kind == "exact"
    assert len(found.history["residual"]) < 30
    mean = torch.stack([found.marginal(f"x{t}").mean for t in range(8)]) - now
    assert_close(mean, torch.tensor(truth.mean), rtol=0, atol=1e-5)
    assert abs(float(found.log_evidence) - truth.log_evidence) < 1e-4
