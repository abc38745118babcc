"""Correlations within factors make one Gaussian of a component on forests: its densities, draws,
conditionals and guides, against dense normals that scipy and numpy build."""

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.importance import vectorized_importance_weights
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import pyrograph as pg
from pyrograph.errors import InferenceError, OptionError
from pyrograph.infer.qbethe import joint
from pyrograph.posterior.mixture_guide import MixtureGuide
from tests.infer.gaussian_forest import (
    FROM_DRAWS,
    SITES,
    assert_covariance,
    exact_normal,
    gaussian_forest,
    packed,
)


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def fit(model, *args, seed=0, **options):
    pyro.set_rng_seed(seed)
    options = {"covariance": "full", "progress": False, **options}
    return pg.fit(model, args, infer=pg.QBethe, **options)


# ---------------------------------------------------------------------- one component
@pytest.fixture(scope="module")
def exact():
    torch.set_default_dtype(torch.float64)
    found = exact_normal()
    torch.set_default_dtype(torch.float32)
    return found


@pytest.fixture(scope="module")
def fitted():
    torch.set_default_dtype(torch.float64)
    q = fit(gaussian_forest, num_components=1, optimizer="lbfgs", num_steps=200, tol=1e-12)
    torch.set_default_dtype(torch.float32)
    return q


def test_a_gaussian_forest_is_drawn_and_scored_jointly(exact, fitted):
    mean, covariance = exact
    q = fitted
    assert q.converged
    assert "independently" not in q.status
    draws = packed(q.sample(20_000))
    assert_covariance(draws, covariance)
    assert np.abs((draws.mean(0) - mean) / np.sqrt(np.diag(covariance))).max() < FROM_DRAWS
    ours = q.guide().distribution().log_prob(torch.from_numpy(draws[:50])).detach()
    np.testing.assert_allclose(
        ours, multivariate_normal(mean, covariance).logpdf(draws[:50]), atol=0.01
    )


def test_conditionals_of_a_gaussian_forest_are_exact_at_once_and_by_turns(exact, fitted):
    mean, covariance = exact
    q = fitted
    values = {"b": torch.tensor([9.0, 0.7, -3.0]), "w": torch.tensor([0.4, -1.1])}
    mask = {"b": torch.tensor([False, True, False])}
    known, rest = [2, 6, 7], [0, 1, 3, 4, 5, 8]
    gain = covariance[np.ix_(rest, known)] @ np.linalg.inv(covariance[np.ix_(known, known)])
    expected = mean.copy()
    expected[known] = 0.7, 0.4, -1.1
    expected[rest] += gain @ (expected - mean)[known]
    left = covariance[np.ix_(rest, rest)] - gain @ covariance[np.ix_(known, rest)]
    width = np.zeros(9)
    width[rest] = np.diag(left)
    for c in (
        q.condition(values, mask),
        q.condition({"w": values["w"]}).condition({"b": values["b"]}, mask),
    ):
        marginals = [c.marginal(name) for name in SITES]
        found = np.concatenate([np.atleast_1d(m.mean) for m in marginals])
        spread = np.concatenate([np.atleast_1d(m.variance) for m in marginals])
        np.testing.assert_allclose(found, expected, atol=2e-3)
        np.testing.assert_allclose(spread, width, atol=2e-3)
        draws = packed(c.sample(20_000))
        assert_covariance(draws[:, rest], left)
        np.testing.assert_allclose(draws[:, known], np.tile(expected[known], (20_000, 1)))
        others = [name for name in SITES if name not in "bw"]
        x = torch.tensor([0.3, 0.1, -0.4, 1.2])
        ours = float(c.guide(others).distribution().log_prob(x).detach())
        of = [0, 3, 4, 5]  # a, v, u among the rest
        truth = multivariate_normal(expected[[0, 4, 5, 8]], left[np.ix_(of, of)])
        np.testing.assert_allclose(ours, truth.logpdf(x.numpy()), atol=0.01)
    with pytest.raises(InferenceError, match="leave it out"):
        c.guide()


# ---------------------------------------------------------------------- mixtures
def walk(n=5):
    """Two wells at either end of a chain, and a positive site."""
    x = [pyro.sample("x0", dist.Normal(0.0, 2.0))]
    for k in range(1, n):
        x.append(pyro.sample(f"x{k}", dist.Normal(0.9 * x[-1], 0.5)))
    s = pyro.sample("s", dist.LogNormal(0.3 * x[2], 0.4))
    pyro.factor("well", torch.logaddexp(-4 * (x[-1] - 1) ** 2, -4 * (x[-1] + 1.2) ** 2 - 0.3))
    pyro.sample("y", dist.Normal(s, 0.5), obs=torch.tensor(1.4))


WALKED = {"num_steps": 300, "num_quadrature": 12}


@pytest.fixture(scope="module")
def mixed():
    torch.set_default_dtype(torch.float64)
    q = fit(walk, num_components=3, **WALKED)
    torch.set_default_dtype(torch.float32)
    return q


def components(q):
    """Weights, means and covariances ``[L, 6]`` and ``[L, 6, 6]``, in the order of sites."""
    names = list(q.graph.sites)
    mean = np.concatenate([q.mixture.sites[name].mean[:, 0] for name in names], 1)
    rows = np.concatenate([q.mixture.sites[name].factor[:, 0] for name in names], 1)
    return q.mixture.log_weights.exp().numpy(), mean, rows @ rows.transpose(0, 2, 1)


def log_density(q, x, of=slice(None)):
    """Of numbers ``[S, k]``, the unconstrained ones of sites."""
    parts = [
        np.log(w) + multivariate_normal(m[of], c[of][:, of]).logpdf(x)
        for w, m, c in zip(*components(q), strict=True)
    ]
    return logsumexp(parts, axis=0)


def test_the_joint_mixture_has_the_beliefs_of_all_factors_as_its_marginals(mixed):
    weights, mean, inner = components(mixed)
    centre = weights @ mean
    off = mean - centre
    covariance = np.einsum("l,lij->ij", weights, inner + off[:, :, None] * off[:, None])
    correlation = inner[:, 0, 1] / np.sqrt(inner[:, 0, 0] * inner[:, 1, 1])
    assert (correlation > 0.3).all()  # there is something to be lost
    for statement in ("x1", "x2", "x3", "x4", "s"):
        (scope,) = mixed.graph.scopes(statement)
        nodes = [list(mixed.graph.sites).index(name) for name, *_ in scope]
        belief = mixed.factor_marginal(statement)
        np.testing.assert_allclose(belief[0][0], centre[nodes], atol=1e-9)
        np.testing.assert_allclose(belief[1][0], covariance[np.ix_(nodes, nodes)], atol=1e-9)


def test_given_far_nodes_the_others_are_what_bayes_rule_says(mixed):
    """q(x_rest | x_known) = q(x) / q(x_known) at any point, through both wells."""
    names = list(mixed.graph.sites)
    x = np.random.default_rng(0).normal(size=(20, 6))
    whole = log_density(mixed, x)
    for known in ([0], [4], [0, 5], [1, 2, 4]):
        rest = [k for k in range(6) if k not in known]
        for row, log_p in zip(x[:5], whole, strict=False):
            values = {names[k]: torch.tensor(row[k]) for k in known}
            if 5 in known:
                values["s"] = values["s"].exp()
            c = mixed.condition(values)
            expected = log_p - log_density(mixed, row[known], known)
            guide = c.guide([names[k] for k in rest])
            ours = guide.distribution().log_prob(torch.from_numpy(row[rest]))
            np.testing.assert_allclose(float(ours.detach()), expected, atol=1e-8)


def test_given_a_node_of_a_tree_it_is_as_if_inference_had_been_run_with_it(mixed):
    value = {"x4": torch.tensor(0.4)}
    held = fit(poutine.condition(walk, value), num_components=3, **WALKED)
    c = mixed.condition(value)
    # log s is no Gaussian, and its tail is another share of a mixture of wells than of one well
    for name, atol, rtol in (("x0", 0.03, 0.03), ("x3", 0.02, 0.02), ("s", 0.1, 0.15)):
        ours, again = c.marginal(name), held.marginal(name)
        np.testing.assert_allclose(ours.mean, again.mean, atol=atol)
        np.testing.assert_allclose(ours.stddev, again.stddev, rtol=rtol)


def test_nothing_given_changes_nothing_and_everything_given_is_there(mixed):
    same = mixed.condition({"x0": torch.tensor(0.3)}, {"x0": torch.tensor(False)})
    np.testing.assert_allclose(same.mixture.log_weights, mixed.mixture.log_weights)
    np.testing.assert_allclose(same.marginal("x3").stddev, mixed.marginal("x3").stddev)
    values = {name: torch.tensor(0.2 + k) for k, name in enumerate(mixed.graph.sites)}
    drawn = mixed.condition(values).sample(2)
    for name, value in values.items():
        np.testing.assert_allclose(drawn[name], value.expand(2), rtol=1e-12)


def test_guides_have_the_density_of_all_sites_of_some_and_in_any_order(mixed):
    x = np.random.default_rng(1).normal(size=(20, 6))
    names = list(mixed.graph.sites)
    for of in (list(range(6)), [1, 3], [4, 0, 5]):
        ours = mixed.guide([names[k] for k in of]).distribution()
        found = ours.log_prob(torch.from_numpy(x[:, of])).detach()
        np.testing.assert_allclose(found, log_density(mixed, x[:, of], of), atol=1e-9)


def test_draws_importance_and_predictive_see_the_correlations(mixed):
    pyro.set_rng_seed(3)
    weights, mean, inner = components(mixed)
    off = mean - weights @ mean
    covariance = np.einsum("l,lij->ij", weights, inner + off[:, :, None] * off[:, None])
    drawn = mixed.sample(20_000)
    drawn["s"] = drawn["s"].log()
    assert_covariance(torch.stack([drawn[n] for n in mixed.graph.sites], 1).numpy(), covariance)
    drawn = Predictive(walk, guide=mixed.guide(), num_samples=1_000, parallel=True)()
    assert abs(np.corrcoef(drawn["x0"], drawn["x1"])[0, 1] - correlation(covariance, 0, 1)) < 0.1
    # the guide is next to the posterior: nearly all particles count
    share = []
    short = {**WALKED, "num_steps": 60, "lr": 0.2}
    for q in (mixed, fit(walk, num_components=3, covariance="diagonal", **short)):
        options = {"num_samples": 1_000, "max_plate_nesting": 0}
        with torch.no_grad():
            log_w, *_ = vectorized_importance_weights(walk, q.guide(), **options)
        share.append(float(torch.exp(2 * log_w.logsumexp(0) - (2 * log_w).logsumexp(0))) / 1_000)
    assert share[0] > 0.9
    assert share[0] > share[1] + 0.1


def correlation(covariance, i, j):
    return covariance[i, j] / np.sqrt(covariance[i, i] * covariance[j, j])


def test_guides_are_saved_and_trained(mixed):
    pyro.clear_param_store()
    guide = mixed.guide()
    again = MixtureGuide.from_state_dict(guide.state_dict())
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(7, 6)))
    assert torch.equal(guide.distribution().log_prob(x), again.distribution().log_prob(x))
    for name, value in guide.quantiles([0.5]).items():
        np.testing.assert_allclose(value[0].detach(), guide.median()[name].detach())
    with torch.no_grad():
        for site in range(6):
            getattr(guide, f"loc_{site}_unconstrained").add_(0.5)
    svi = SVI(
        walk,
        guide,
        pyro.optim.Adam({"lr": 0.02}),
        Trace_ELBO(num_particles=10, vectorize_particles=True),
    )
    pyro.set_rng_seed(0)
    losses = [svi.step() for _ in range(150)]
    # half a standard deviation of shift at every site costs nats, and is taken back
    assert np.mean(losses[-20:]) < np.mean(losses[:5]) - 0.3
    assert np.mean(losses[-20:]) < -float(mixed.log_evidence) + 0.15


def hybrid():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.7])))
    y = pyro.sample("y", dist.Normal(0.8 * x, 0.4))
    pyro.sample("m", dist.Normal(torch.tensor([-1.0, 1.0])[z], 0.7), obs=torch.tensor(0.4))
    t = pyro.sample("t", dist.Normal(y + torch.tensor([0.5, -0.5])[z], 0.6))
    pyro.sample("o", dist.Normal(t, 0.5), obs=torch.tensor(0.2))


def test_a_discrete_node_beside_correlated_numbers():
    q = fit(hybrid, num_components=3, num_steps=40, lr=0.1)
    assert "independently" not in q.status
    mixture = q.mixture
    point = {"x": 0.3, "y": -0.1, "t": 0.8}
    parts = []
    for k, log_w in enumerate(mixture.log_weights.tolist()):
        rows = np.concatenate([mixture.sites[n].factor[k, 0] for n in "xyt"])
        mean = np.concatenate([mixture.sites[n].mean[k, 0] for n in "xyt"])
        numbers = multivariate_normal(mean, rows @ rows.T).logpdf(list(point.values()))
        parts.append(log_w + numbers + mixture.sites["z"].log_p[k, 0].numpy())
    whole = logsumexp(parts, axis=0)
    c = q.condition({name: torch.tensor(value) for name, value in point.items()})
    np.testing.assert_allclose(c.marginal("z").probs, np.exp(whole - logsumexp(whole)), atol=1e-9)
    packed = torch.tensor([[0.3, 1.0, -0.1, 0.8]])  # x, z, y, t
    ours = q.guide().distribution().log_prob(packed).detach()
    np.testing.assert_allclose(float(ours), whole[1], atol=1e-9)
    given = q.condition({"z": torch.tensor(1), "x": torch.tensor(0.3)})
    draws = given.sample(500)
    assert (draws["z"] == 1).all() and (draws["x"] == 0.3).all()
    assert 0 < float(draws["y"].std()) < float(q.marginal("y").stddev)


# ---------------------------------------------------------------------- where there is no joint
def loop():
    with pyro.plate("nodes", 3):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.factor("ties", -sum((x[i] - x[j]).square() for i, j in [(0, 1), (1, 2), (2, 0)]))


def test_on_a_loop_draws_are_independent_and_the_status_says_so():
    q = fit(loop, num_components=1, num_steps=50)
    assert "cycles" in q.status and "independently" in q.status
    with pytest.raises(InferenceError, match="joint mixture"):
        q.condition({"x": torch.zeros(3)})
    drawn = q.sample(4_000)["x"]
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.06


def loop_beside_a_state():
    z = pyro.sample("z", dist.Bernoulli(0.4))
    with pyro.plate("nodes", 3):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.factor("one", -(x[0] - x[1]).square())
    pyro.factor("other", -(x[1] - x[2]).square())
    pyro.factor("mixed", -(x[2] - x[0] - z).square())


def test_what_is_said_of_factors_that_read_states_is_true():
    q = fit(loop_beside_a_state, num_components=1, num_steps=50)
    assert "factor_marginal() has of factors without discrete nodes" in q.status
    for name in ("one", "other"):
        (covariance,) = q.factor_marginal(name)[1].numpy()
        assert correlation(covariance, 0, 1) > 0.1
    with pytest.raises(OptionError, match="discrete and continuous"):
        q.factor_marginal("mixed")


def test_a_covariance_too_large_to_hold_is_spoken_of(monkeypatch):
    monkeypatch.setattr(joint, "MOST_ENTRIES", 3 * 36 - 1)
    q = fit(walk, num_components=3, num_steps=5)
    assert "108 entries" in q.status
    monkeypatch.setattr(joint, "MOST_ENTRIES", 3 * 36)
    assert "independently" not in fit(walk, num_components=3, num_steps=5).status


def test_long_chains_of_close_neighbours_keep_their_scales_in_single_precision():
    torch.set_default_dtype(torch.float32)

    def chain(n=400):
        with pyro.plate("nodes", n):
            x = pyro.sample("x", dist.Normal(0.0, 3.0))
        with pyro.plate("edges", n - 1):
            pyro.factor("tie", -0.5 * ((x[1:] - x[:-1]) / 0.05).square())

    run = pg.QBethe(chain, num_components=1, covariance="full", num_steps=1, progress=False)
    run.run()
    with torch.no_grad():
        (name,) = (name for name in run.parameters if name.startswith("tie"))
        run.parameters[name].fill_(70.0)  # correlations of .9999
    q = run.posterior()
    inner = q.factor_marginal("tie")[1].double()
    steps = inner[:, 0, 0] + inner[:, 1, 1] - 2 * inner[:, 0, 1]
    rows = q.mixture.sites["x"].factor[0, :, 0].double()
    np.testing.assert_allclose((rows[1:] - rows[:-1]).square().sum(1), steps, rtol=0.01)
    np.testing.assert_allclose(rows.norm(dim=1), q.marginal("x").stddev, rtol=1e-5)
