"""Programs of many kinds against truths by scipy, numpy and enumeration."""

import io
import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from numpy.testing import assert_allclose
from pyro import poutine
from scipy import integrate, special, stats
from scipy.integrate import trapezoid

import pyrograph as pg
from pyrograph.errors import ConvergenceWarning, InvalidProgram, NonFiniteDensity, ShapeMismatch
from pyrograph.infer.qbethe import rules

#: Over the truth by no more than this, with two fine rules that agree within 0.01.
SLACK = 2e-3


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def fit(model, *args, seed=0, **options):
    pyro.set_rng_seed(seed)
    return pg.fit(model, args, infer=pg.QBethe, progress=False, **options)


def quick(model, *args, **options):
    """By L-BFGS, with points enough for potentials that are smooth."""
    default = {"optimizer": "lbfgs", "num_steps": 60, "num_quadrature": 10, "num_entropy": 16}
    return fit(model, *args, **{**default, **options})


def assert_bound(q, truth, gap):
    assert q.evidence_kind == "lower bound"
    assert truth - gap < float(q.log_evidence) < truth + SLACK


# ---------------------------------------------------------------------- supports
Y = np.array([1.2, 0.4, 2.2, 1.9, -0.3])
SCALES = {
    "gamma": (dist.Gamma(2.0, 1.0), stats.gamma(2).pdf),
    "lognormal": (dist.LogNormal(0.0, 1.0), stats.lognorm(1).pdf),
    "half cauchy": (dist.HalfCauchy(1.0), stats.halfcauchy.pdf),
    "uniform": (dist.Uniform(0.1, 5.0), stats.uniform(0.1, 4.9).pdf),
}


@pytest.mark.parametrize("name", SCALES)
def test_an_unknown_scale_has_the_evidence_and_mean_of_quadrature(name):
    prior, pdf = SCALES[name]

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        s = pyro.sample("s", prior)
        with pyro.plate("data", 5):
            pyro.sample("y", dist.Normal(mu, s), obs=torch.tensor(Y))

    def joint(t):
        s = np.exp(t)
        covariance = s**2 * np.eye(5) + 4 * np.ones((5, 5))
        return np.exp(stats.multivariate_normal.logpdf(Y, np.zeros(5), covariance)) * pdf(s) * s

    z = integrate.quad(joint, -4, 6, limit=300)[0]
    mean = integrate.quad(lambda t: joint(t) * np.exp(t), -4, 6, limit=300)[0] / z
    q = quick(model, num_components=3, num_steps=20)
    assert_bound(q, np.log(z), 0.08)
    assert_allclose(float(q.marginal("s").mean), mean, rtol=0.03)


def test_a_probability_and_a_simplex_have_their_conjugate_evidence_and_moments():
    a, k = np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 5.0])

    def model():
        p = pyro.sample("p", dist.Beta(2.0, 3.0))
        pyro.sample("k", dist.Binomial(10, p), obs=torch.tensor(7.0))
        r = pyro.sample("r", dist.Dirichlet(torch.tensor(a)))
        pyro.sample("n", dist.Multinomial(10, r), obs=torch.tensor(k))

    q = quick(model, num_components=3, num_steps=20)
    log_z = stats.betabinom(10, 2, 3).logpmf(7) + stats.dirichlet_multinomial(a, 10).logpmf(k)
    assert_bound(q, log_z, 0.02)
    assert_allclose(float(q.marginal("p").mean), 9 / 15, atol=3e-3)
    assert_allclose(float(q.marginal("p").variance), stats.beta(9, 6).var(), rtol=0.03)
    assert_allclose(q.marginal("r").mean.numpy(), (a + k) / 16, atol=5e-3)


# ---------------------------------------------------------------------- nodes of several numbers
def regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    y = (rng.random(30) < special.expit(x @ [1.0, -1.5])).astype(float)
    grid = np.linspace(-8, 8, 401)
    w = np.stack([g.ravel() for g in np.meshgrid(grid, grid, indexing="ij")])
    logits = x @ w
    log_p = (y[:, None] * logits - np.logaddexp(0, logits)).sum(0) + stats.norm(0, 2).logpdf(w).sum(
        0
    )
    log_z = special.logsumexp(log_p) + 2 * np.log(grid[1] - grid[0])

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 2.0).to_event(1))
        with pyro.plate("data", 30):
            pyro.sample("y", dist.Bernoulli(logits=torch.tensor(x) @ w), obs=torch.tensor(y))

    return model, log_z, w @ np.exp(log_p - special.logsumexp(log_p))


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_logistic_regression_on_a_vector_of_weights_is_below_its_evidence(covariance):
    model, log_z, mean = regression()
    q = quick(model, num_components=2, covariance=covariance, num_steps=20)
    assert_bound(q, log_z, 0.2)
    assert_allclose(q.marginal("w").mean.numpy(), mean, atol=0.1)


def test_a_factor_that_reads_two_directions_of_three_is_integrated_in_these():
    x = np.array([[1.0, 0.5, -0.2], [0.3, -1.0, 0.8]])

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        u = torch.tensor(x) @ w
        pyro.factor("f", -torch.sqrt(1 + u[0] ** 2 + u[1] ** 2 + u[0] * u[1]))

    grid = np.linspace(-8, 8, 401)
    a, b = np.meshgrid(grid, grid, indexing="ij")
    log_p = stats.multivariate_normal([0, 0], x @ x.T).logpdf(np.stack([a, b], -1))
    log_p = log_p - np.sqrt(1 + a**2 + b**2 + a * b)
    log_z = special.logsumexp(log_p) + 2 * np.log(grid[1] - grid[0])
    assert_bound(quick(model, num_components=1, covariance="full", num_steps=20), log_z, 0.01)


def triples(count):
    """Neighbouring factors of three nodes share one: a tree."""
    precision = np.eye(2 * count + 1)
    for k in range(count):
        precision[2 * k : 2 * k + 3, 2 * k : 2 * k + 3] += 4

    def model():
        with pyro.plate("nodes", 2 * count + 1):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("factors", count):
            pyro.factor("sum", -2 * (x[:-2:2] + x[1:-1:2] + x[2::2]) ** 2)

    return model, -0.5 * np.linalg.slogdet(precision)[1]


def test_entropies_of_wide_scopes_are_certified_by_points_the_optimiser_never_saw():
    model, log_z = triples(2)
    pyro.set_rng_seed(0)
    run = pg.QBethe(model, num_components=4, covariance="full", num_steps=60, progress=False)
    q = run.run()
    with torch.no_grad():
        optimised = float(run.objective(run.parameters, run._rules))
    assert abs(float(q.log_evidence) - optimised) > 1e-6
    assert float(q.log_evidence) < log_z + SLACK


@pytest.mark.parametrize("dim", [3, 4, 6])
def test_certifying_points_are_none_of_the_optimisers(dim):
    like = torch.zeros(())
    ours = [
        rules.coarse(12, like),
        rules.fine_entropies(like),
        rules.fine_entropies(like, second=True),
    ]
    points = [{tuple(z) for z in rule(dim, 1).points.round(decimals=2).tolist()} for rule in ours]
    for one, other in itertools.combinations(points, 2):
        assert len(one & other) < 0.01 * len(one)


# ---------------------------------------------------------------------- discrete and hybrid
def test_assignments_and_a_mean_are_a_tree_and_never_claim_more_than_their_evidence():
    y = np.array([-2.1, -1.8, 2.4, 2.0, 1.7])

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 5):
            z = pyro.sample("z", dist.Categorical(torch.tensor([0.4, 0.6])))
            pyro.sample(
                "y", dist.Normal(torch.tensor([-2.0, 2.0])[z] + mu, 0.5), obs=torch.tensor(y)
            )

    def joint(mu):
        parts = [np.log(p) + stats.norm(m + mu, 0.5).logpdf(y) for p, m in ((0.4, -2), (0.6, 2))]
        return stats.norm.pdf(mu) * np.exp(np.logaddexp(*parts).sum())

    log_z = np.log(integrate.quad(joint, -6, 6, limit=200)[0])
    assert_bound(quick(model, num_components=5, num_steps=25), log_z, 0.45)


def test_a_hybrid_tree_has_the_states_probability_and_conditions_on_it():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.5))
        z = pyro.sample("z", dist.Bernoulli(logits=2 * a))
        b = pyro.sample("b", dist.Normal(3 * z - 1.0, 0.7))
        pyro.sample("y", dist.StudentT(3.0, b, 0.5), obs=torch.tensor(0.6))

    def prior(a):
        return stats.norm(0, 1.5).pdf(a) * special.expit(2 * a)

    def likelihood(b, z):
        return stats.norm(3 * z - 1, 0.7).pdf(b) * stats.t(3, b, 0.5).pdf(0.6)

    on = integrate.quad(prior, -12, 12)[0]
    parts = [integrate.quad(likelihood, -8, 8, args=(z,))[0] for z in (0, 1)]
    z = (1 - on) * parts[0] + on * parts[1]
    q = fit(model, num_components=5, num_quadrature=12, num_entropy=16, num_steps=120, lr=0.15)
    assert_bound(q, np.log(z), 0.1)
    assert_allclose(float(q.marginal("z").probs[..., 1]), on * parts[1] / z, atol=0.06)
    mean = integrate.quad(lambda a: a * prior(a), -12, 12)[0] / on
    given = q.condition({"z": torch.tensor(1.0)})
    assert_allclose(float(given.marginal("a").mean), mean, atol=0.12)
    assert given.log_evidence is None


def test_one_component_of_an_ising_grid_is_its_best_mean_field_and_more_are_an_estimate():
    rng = np.random.default_rng(1)
    edges = [(3 * i + j, 3 * i + j + 1) for i in range(3) for j in range(2)]
    edges += [(k, k + 3) for k in range(6)]
    coupling, field, ends = rng.normal(size=12) * 0.8, rng.normal(size=9) * 0.3, torch.tensor(edges)

    def model():
        with pyro.plate("nodes", 9):
            s = 2 * pyro.sample("x", dist.Bernoulli(torch.full((9,), 0.5)).mask(False)) - 1
            pyro.factor("field", torch.tensor(field) * s)
        with pyro.plate("edges", 12):
            pyro.factor("pair", torch.tensor(coupling) * s[ends[:, 0]] * s[ends[:, 1]])

    dense = np.zeros((9, 9))
    for (i, j), value in zip(edges, coupling, strict=True):
        dense[i, j] = dense[j, i] = value
    best = -np.inf
    for _ in range(30):
        mu = rng.uniform(-1, 1, 9)
        for _ in range(100):
            for i in range(9):
                mu[i] = np.tanh(field[i] + dense[i] @ mu)
        p = np.clip((1 + mu) / 2, 1e-12, 1 - 1e-12)
        best = max(best, field @ mu + mu @ dense @ mu / 2 + special.entr([p, 1 - p]).sum())
    spins = np.array(list(itertools.product([-1, 1], repeat=9)))
    energy = spins @ field + ((spins @ dense) * spins).sum(1) / 2
    truth = np.exp(energy - special.logsumexp(energy)) @ (spins > 0)
    one = fit(model, num_components=1, num_restarts=8, num_steps=300)
    assert_bound(one, special.logsumexp(energy), np.inf)
    assert_allclose(float(one.log_evidence), best, atol=1e-4)
    many = fit(model, num_components=8, num_steps=200)
    assert many.evidence_kind == "estimate"
    error = [abs(q.marginal("x").probs[:, 1].numpy() - truth).max() for q in (one, many)]
    assert error[1] < 0.05 < error[0]


# ---------------------------------------------------------------------- plates, chains, parts
def test_nested_plates_masks_and_scales_count_as_pyro_counts_them():
    y = np.random.default_rng(0).normal(size=(4, 3)) + np.arange(4)[:, None]
    seen = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 1]], bool)

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        with pyro.plate("groups", 4, dim=-2):
            theta = pyro.sample("theta", dist.Normal(mu, 1.0))
            part = poutine.mask(mask=torch.tensor(seen))
            with pyro.plate("items", 3, dim=-1), part, poutine.scale(scale=2.0):
                pyro.sample("y", dist.Normal(theta, 0.5), obs=torch.tensor(y))

    precision, shift = np.diag([4.25, 1, 1, 1, 1]), np.zeros(5)
    precision[0, 1:] = precision[1:, 0] = -1
    precision[np.arange(1, 5), np.arange(1, 5)] += 8 * seen.sum(1)
    shift[1:] = 8 * (y * seen).sum(1)
    constant = 2 * stats.norm(0, 0.5).logpdf(y)[seen].sum() - np.log(2)
    mean = np.linalg.solve(precision, shift)
    log_z = constant + shift @ mean / 2 - np.linalg.slogdet(precision)[1] / 2
    q = quick(model, num_components=1, covariance="full")
    assert_bound(q, log_z, 1e-4)
    assert_allclose(q.marginal("theta").mean.numpy()[:, 0], mean[1:], atol=1e-4)
    assert_allclose(
        q.marginal("theta").variance.numpy()[:, 0], np.diag(np.linalg.inv(precision))[1:], rtol=1e-3
    )


@pytest.mark.parametrize(
    "options", [{"num_components": 4}, {"num_components": 1, "covariance": "full"}]
)
def test_a_markov_chain_with_kinks_stays_below_its_evidence(options):
    y = [0.3, 0.9, 1.5, 0.2, -0.5, -1.0]

    def model():
        x = torch.tensor(0.0)
        for t in pyro.markov(range(6)):
            x = pyro.sample(f"x{t}", dist.Normal(0.9 * x, 0.6))
            pyro.sample(f"y{t}", dist.Laplace(x, 0.5), obs=torch.tensor(y[t]))

    grid = np.linspace(-6, 6, 601)
    cell = np.log(grid[1] - grid[0])
    move = stats.norm(0.9 * grid[:, None], 0.6).logpdf(grid)
    alpha = stats.norm(0, 0.6).logpdf(grid)
    for t in range(6):
        alpha = alpha + stats.laplace(grid, 0.5).logpdf(y[t])
        if t < 5:
            alpha = special.logsumexp(alpha[:, None] + move, axis=0) + cell
    q = fit(model, num_steps=60, lr=0.1, **options)
    assert_bound(q, special.logsumexp(alpha) + cell, 0.6)


def test_parts_that_do_not_touch_add_their_evidence():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Gamma(2.0, 1.0))
        pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
        pyro.sample("k", dist.Poisson(b), obs=torch.tensor(3.0))
        pyro.sample("w", dist.Normal(a, 1.0), obs=torch.tensor(1.0))

    q = quick(model, num_components=1)
    assert_bound(q, stats.nbinom(2, 0.5).logpmf(3) + stats.norm(0, 2**0.5).logpdf(1), 0.03)
    assert_allclose(q.marginal("z").probs.numpy().ravel(), [0.2, 0.3, 0.5], atol=1e-3)


def test_cauchy_sites_are_reached_although_their_draws_lie_far_out():
    y = np.linspace(-3, 3, 40)

    def model():
        with pyro.plate("nodes", 40):
            x = pyro.sample("x", dist.Cauchy(0.0, 1.0))
            pyro.sample("y", dist.Normal(x, 0.5), obs=torch.tensor(y))

    x = np.linspace(-12, 12, 4001)
    joint = stats.cauchy.pdf(x) * stats.norm.pdf(y[:, None], x, 0.5)
    log_z = np.log(trapezoid(joint, x)).sum()
    assert_bound(fit(model, num_components=1, num_steps=800, lr=0.1), log_z, 0.2)


# ---------------------------------------------------------------------- what is said is true
def gamma():
    pyro.sample("x", dist.Gamma(3.0, 2.0))


def test_the_certified_value_is_the_free_energy_of_the_marginal_it_comes_with():
    u = np.linspace(-12, 4, 200001)
    log_p = stats.gamma(3, scale=0.5).logpdf(np.exp(u)) + u
    for components in (1, 5):
        q = fit(gamma, num_components=components, num_steps=150, lr=0.1)
        log_b = q.marginal("x").log_prob(torch.tensor(np.exp(u))).numpy() + u
        dense = trapezoid(np.exp(log_b) * (log_p - log_b), u)
        assert_allclose(float(q.log_evidence), dense, atol=5e-3)
        assert float(q.log_evidence) < SLACK


def test_default_options_leave_the_optimiser_of_one_node_nothing_to_live_on():
    q = fit(gamma, num_components=5, num_steps=300, seed=1)
    assert float(q.history["objective"][-1]) < 0.02


def two_peaks():
    x = pyro.sample("x", dist.Normal(0.0, 3.0))
    pyro.factor("peaks", torch.logaddexp(-2 * (x - 3) ** 2, -2 * (x + 3) ** 2 - 2.0))


def test_a_run_has_not_converged_while_its_weights_are_held():
    """Peaks of equal width whose masses are as 1 to exp(-2)."""
    q = fit(two_peaks, num_components=2, num_quadrature=10, tol=1e-4)
    assert q.converged and q.status == "converged"
    assert_allclose(float(q.mixture.log_weights.exp().max()), 1 / (1 + np.exp(-2)), atol=0.01)
    with pytest.warns(ConvergenceWarning):
        q = fit(two_peaks, num_components=2, num_steps=100, hold_weights=99, tol=1.0)
    assert not q.converged


def test_at_low_temperature_the_restart_in_the_highest_mode_is_kept():
    """A narrow peak at 3, of less mass than a wide one at -3 but higher."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 3.0).mask(False))
        pyro.factor("f", torch.logaddexp(1 - 20 * (x - 3) ** 2, -0.2 * (x + 3) ** 2))

    hot = fit(model, num_components=1, num_restarts=12, num_steps=250, num_quadrature=12)
    cold = fit(
        model, num_components=1, num_restarts=12, num_steps=250, num_quadrature=12, temperature=0.0
    )
    assert float(hot.marginal("x").mean) < -2.5
    assert_allclose(float(cold.marginal("x").mean), 3, atol=0.02)


def test_the_mean_importance_weight_of_the_guide_is_the_evidence_of_one_component():
    def model():
        s = pyro.sample("s", dist.Gamma(4.0, 2.0))
        with pyro.plate("data", 3):
            x = pyro.sample("x", dist.Normal(0.0, s))
            pyro.sample("y", dist.Normal(x, 0.5), obs=torch.tensor([0.1, 1.2, 1.9]))

    q = quick(model, num_components=1, num_steps=25)
    guide, gains = q.guide(), []
    for _ in range(200):
        trace = poutine.trace(guide).get_trace()
        scored = poutine.trace(poutine.replay(model, trace)).get_trace()
        gains.append((scored.log_prob_sum() - trace.log_prob_sum()).item())
    error = np.std(gains) / 200**0.5
    assert abs(np.mean(gains) - float(q.log_evidence)) < 4 * error
    assert error < 0.05


def test_single_precision_far_from_the_origin_agrees_with_double():
    def model():
        mu = pyro.sample("mu", dist.Normal(torch.tensor(1000.0), 1.0))
        s = pyro.sample("s", dist.Gamma(2.0, 1.0))
        with pyro.plate("data", 3):
            pyro.sample("y", dist.Normal(mu, s), obs=torch.tensor([999.0, 1001.0, 1002.0]))

    one, two = (
        fit(model, num_components=2, num_steps=100, lr=0.1, dtype=dtype)
        for dtype in (torch.float32, torch.float64)
    )
    assert one.log_evidence.dtype == torch.float32
    assert_allclose(float(one.log_evidence), float(two.log_evidence), atol=2e-3)
    assert_allclose(float(one.marginal("mu").mean), float(two.marginal("mu").mean), atol=5e-3)


# ---------------------------------------------------------------------- states and errors
def kinks():
    with pyro.plate("nodes", 3):
        x = pyro.sample("x", dist.Normal(0.0, 3.0))
    with pyro.plate("edges", 2):
        pyro.factor("pull", -(x[1:] - x[:-1]).abs())


def engine(**options):
    return pg.QBethe(kinks, progress=False, **{"num_components": 3, "num_steps": 12, **options})


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_a_state_stays_as_it_was_and_the_run_goes_on_bit_for_bit(optimizer):
    pyro.set_rng_seed(0)
    first = engine(optimizer=optimizer)
    for _ in range(5):
        first.step()
    state, file = first.state_dict(), io.BytesIO()
    torch.save(state, file)
    whole = first.run()
    file.seek(0)
    for saved in (state, torch.load(file, weights_only=True)):
        pyro.set_rng_seed(9)
        second = engine(optimizer=optimizer)
        second.load_state_dict(saved)
        again = second.run()
        assert torch.equal(again.history["objective"], whole.history["objective"])
        assert torch.equal(again.mixture.sites["x"].mean, whole.mixture.sites["x"].mean)
        assert torch.equal(again.log_evidence, whole.log_evidence)


@pytest.mark.parametrize(
    "options",
    [
        {"num_components": 1},
        {"num_restarts": 4},
        {"covariance": "full"},
        {"optimizer": "lbfgs"},
    ],
)
def test_a_state_of_other_options_is_refused(options):
    state = engine().setup().state_dict()
    other = engine(**options).setup()
    before = other.state_dict()["parameters"]
    with pytest.raises(ShapeMismatch, match=r"other options|optimizer"):
        other.load_state_dict(state)
    after = other.state_dict()["parameters"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_gradient_that_is_nan_is_told_and_leaves_the_run_as_it_was():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", torch.where(x > 0, torch.sqrt(x), -x))

    pyro.set_rng_seed(0)
    run = pg.QBethe(model, num_components=2, progress=False).setup()
    with pytest.raises(NonFiniteDensity, match=r"torch\.where"):
        run.step()
    assert run.posterior().log_evidence.isfinite()


def test_data_that_are_nan_name_their_statement():
    def model(y):
        with pyro.plate("data", 3):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(x, 1.0), obs=y)

    with pytest.raises(InvalidProgram, match='"y"'):
        fit(model, torch.tensor([1.0, float("nan"), 2.0]))


def test_a_gradient_that_is_no_number_is_that_of_a_named_factor():
    """The logarithm of a normal probability that underflows."""
    won, lost = torch.tensor([0, 1, 2, 0, 3]), torch.tensor([1, 2, 0, 3, 2])

    def model(log_ndtr):
        with pyro.plate("players", 4):
            skill = pyro.sample("skill", dist.Normal(0.0, 1.0))
        with pyro.plate("games", 5):
            pyro.factor("win", log_ndtr((skill[won] - skill[lost]) * 2**0.5))

    pyro.set_rng_seed(1)
    options = {"infer": pg.QBethe, "num_steps": 20, "progress": False}
    with pytest.raises(NonFiniteDensity, match=r'gradient of factor "win"\[\d\] .*log_ndtr'):
        pg.fit(model, (lambda x: torch.special.ndtr(x).log(),), **options)
    q = pg.fit(model, (torch.special.log_ndtr,), **options)
    assert bool(q.history["objective"].isfinite().all())
