"""Joint draws and guides of beliefs on forests, against enumeration and dense normals."""

import itertools
import math
import resource

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import SVI, Importance, Predictive, Trace_ELBO
from pyro.infer.importance import vectorized_importance_weights
from scipy.stats import multivariate_normal

import pyrograph as pg
from pyrograph.beliefs import forest
from pyrograph.errors import OptionError
from pyrograph.posterior.belief_guide import BeliefGuide
from pyrograph.posterior.forest_guide import ForestGuide
from tests.beliefs.test_joint_mixture import Largest
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


def bp(model, *args, infer=pg.BP, **options):
    return pg.fit(model, args, infer=infer, progress=False, **options)


# ---------------------------------------------------------------------- discrete
def tree_program(seed, zeros=False):
    """A random tree: pairs, factors of three nodes, a node by itself, 2 to 4 states."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 5, size=7).tolist()
    unary = [torch.tensor(rng.dirichlet(np.ones(c))) for c in sizes]
    factors, joined = [], [0]
    while len(joined) < 6:
        count = min(int(rng.integers(1, 3)), 6 - len(joined))
        new = list(range(len(joined), len(joined) + count))
        scope = [int(rng.choice(joined)), *new]
        rng.shuffle(scope)
        table = rng.normal(size=[sizes[v] for v in scope])
        if zeros:
            table[rng.random(table.shape) < 0.3] = -np.inf
            table.flat[0] = 0.0
        factors.append((scope, torch.tensor(table)))
        joined += new

    def model():
        x = [pyro.sample(f"x{v}", dist.Categorical(p)) for v, p in enumerate(unary)]
        for k, (scope, table) in enumerate(factors):
            pyro.factor(f"f{k}", table[tuple(x[v] for v in scope)])

    return model, sizes


def enumerated(model, sizes):
    """Log probabilities of all joint states."""
    states = torch.tensor(list(itertools.product(*map(range, sizes))))
    values = {f"x{v}": column for v, column in enumerate(states.unbind(1))}
    trace = poutine.trace(poutine.condition(model, values)).get_trace()
    trace.compute_log_prob()
    log_p = sum(site["log_prob"] for site in trace.nodes.values() if "log_prob" in site).numpy()
    assert log_p.shape == (len(states),)
    return log_p - np.logaddexp.reduce(log_p)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_the_guide_of_a_discrete_tree_is_the_posterior_itself(seed, zeros):
    model, sizes = tree_program(seed, zeros)
    try:
        q = bp(model)
    except pg.errors.PyrographError:
        assert zeros  # no state has any mass
        return
    states = torch.stack([torch.randint(c, (100,)) for c in sizes], 1)
    guide = q.guide()
    assert isinstance(guide, ForestGuide)
    ours = guide.distribution().log_prob(states.double()).detach().numpy()
    truth = q.graph.log_prob({f"x{v}": state for v, state in enumerate(states.unbind(1))})
    truth = (truth - q.log_evidence).numpy()
    possible = truth > -np.inf
    np.testing.assert_allclose(ours[possible], truth[possible], atol=1e-9)
    assert (ours[~possible] < -1e30).all()
    assert q.graph.log_prob(q.sample(300)).isfinite().all()


def test_draws_have_the_frequencies_of_joint_states():
    model, sizes = tree_program(3)
    log_p = enumerated(model, sizes)
    q = bp(model)
    misfits = []
    for seed in range(4):
        pyro.set_rng_seed(seed)
        draws = q.sample(20_000)
        number = np.ravel_multi_index([draws[f"x{v}"].numpy() for v in range(7)], sizes)
        counts, expected = np.bincount(number, minlength=len(log_p)), np.exp(log_p) * 20_000
        common = expected > 5
        chi = ((counts - expected)[common] ** 2 / expected[common]).sum()
        misfits.append((chi - common.sum()) / np.sqrt(2 * common.sum()))
    assert np.abs(misfits).max() < 4  # standard normal, nearly


def test_a_proposal_from_belief_propagation_on_a_chain_loses_nothing():
    """A hidden Markov chain of 30 steps: importance weights are all the evidence."""
    stay = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    seen = torch.tensor(np.random.default_rng(0).integers(0, 3, size=30))
    emit = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])

    def model():
        z = pyro.sample("z0", dist.Categorical(torch.tensor([0.5, 0.5])))
        for t in range(30):
            if t:
                z = pyro.sample(f"z{t}", dist.Categorical(stay[z]))
            pyro.sample(f"y{t}", dist.Categorical(emit[z]), obs=seen[t])

    q = bp(model)
    run = Importance(model, guide=q.guide(), num_samples=20).run()
    weights = torch.stack(run.log_weights)
    np.testing.assert_allclose(weights, float(q.log_evidence), atol=1e-8)
    drawn = q.sample(4_000)
    same = (drawn["z15"] == drawn["z16"]).double().mean()
    table = q.factor_marginal("z16")[0]
    assert abs(float(same) - float(table.diagonal().sum())) < 0.03
    alone = Importance(model, guide=q.guide(joint=False), num_samples=20).run()
    assert torch.stack(alone.log_weights).std() > 1  # what independent nodes would lose


# ---------------------------------------------------------------------- continuous
def test_the_guide_of_a_gaussian_forest_is_the_posterior_itself():
    mean, covariance = exact_normal()
    q = bp(gaussian_forest)
    exact = multivariate_normal(mean, covariance)
    pyro.set_rng_seed(0)
    draws = packed(q.sample(20_000))
    assert_covariance(draws, covariance)
    assert np.abs((draws.mean(0) - mean) / np.sqrt(np.diag(covariance))).max() < FROM_DRAWS
    ours = q.guide().distribution().log_prob(torch.from_numpy(draws[:50])).detach()
    np.testing.assert_allclose(ours, exact.logpdf(draws[:50]), atol=1e-6)
    run = Importance(gaussian_forest, guide=q.guide(), num_samples=20).run()
    np.testing.assert_allclose(torch.stack(run.log_weights), float(q.log_evidence), atol=1e-6)


def test_marginals_of_the_guide_are_those_of_the_posterior():
    q = bp(gaussian_forest)
    sites = q.guide().mixture().sites
    for name in SITES:
        own, nodes = q.marginal(name), sites[name]
        np.testing.assert_allclose(nodes.mean.detach().flatten(), own.mean.flatten(), atol=1e-9)
        scale = nodes.scale.detach().flatten()
        np.testing.assert_allclose(scale, own.stddev.flatten(), rtol=1e-7)
    model, _ = tree_program(5)
    q = bp(model)
    for name, nodes in q.guide().mixture().sites.items():
        np.testing.assert_allclose(
            nodes.log_p.detach().exp()[0, 0], q.marginal(name).probs, atol=1e-10
        )


def counts():
    """A random walk seen through Poisson counts, and a positive site."""
    x = [pyro.sample("x0", dist.Normal(0.0, 1.0))]
    for t in range(1, 6):
        x.append(pyro.sample(f"x{t}", dist.Normal(x[-1], 0.3)))
    for t, y in enumerate([1.0, 0.0, 2.0, 3.0, 5.0, 4.0]):
        pyro.sample(f"y{t}", dist.Poisson(x[t].exp()), obs=torch.tensor(y))
    s = pyro.sample("s", dist.LogNormal(x[2], 0.3))
    pyro.sample("o", dist.Normal(s, 0.5), obs=torch.tensor(2.0))


def test_expectation_propagation_proposes_jointly_on_a_chain_that_is_not_gaussian():
    q = bp(counts, infer=pg.EP)
    pyro.set_rng_seed(0)
    for guide in (q.guide(), q.guide(sites=["x0", "x1", "x2", "x3", "x4", "x5", "s"][::-1])):
        options = {"num_samples": 1_000, "max_plate_nesting": 0}
        with torch.no_grad():
            log_w, *_ = vectorized_importance_weights(counts, guide, **options)
        assert float(2 * log_w.logsumexp(0) - (2 * log_w).logsumexp(0)) > np.log(0.85 * 1_000)
    drawn = Predictive(counts, guide=q.guide(), num_samples=1_000, parallel=True)()
    covariance = q.factor_marginal("x4")[1][0]
    found = np.corrcoef(drawn["x3"], drawn["x4"])[0, 1]
    told = covariance[0, 1] / (covariance[0, 0] * covariance[1, 1]).sqrt()
    assert abs(found - float(told)) < 0.1
    assert float(drawn["s"].min()) > 0
    draws = q.sample(4_000)
    np.testing.assert_allclose(np.cov(draws["x3"], draws["x4"]), covariance, rtol=0.1)
    assert np.corrcoef(draws["x2"], draws["s"].log())[0, 1] > 0.3


# ---------------------------------------------------------------------- guides
def mixed():
    """A discrete chain and a continuous one, apart."""
    z = pyro.sample("z0", dist.Categorical(torch.tensor([0.3, 0.7])))
    x = pyro.sample("x0", dist.Normal(0.0, 1.0))
    z = pyro.sample("z1", dist.Categorical(torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.2, 0.6]])[z]))
    x = pyro.sample("x1", dist.Normal(0.9 * x, 0.3))
    pyro.sample("o", dist.Normal(x, 0.5), obs=torch.tensor(1.0))
    pyro.sample("c", dist.Bernoulli(torch.tensor([0.2, 0.5, 0.9])[z]), obs=torch.tensor(1.0))


def test_guides_are_saved_and_trained():
    q = bp(mixed)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    guide = q.guide()
    trace = poutine.trace(guide).get_trace()
    replayed = poutine.trace(poutine.replay(mixed, trace)).get_trace()
    gain = (replayed.log_prob_sum() - trace.log_prob_sum()).detach()
    np.testing.assert_allclose(gain, q.log_evidence, atol=1e-8)
    again = ForestGuide.from_state_dict(guide.state_dict())
    x = guide.distribution().sample((5,))
    assert torch.equal(guide.distribution().log_prob(x), again.distribution().log_prob(x))
    assert {k: float(v) for k, v in guide.median().items()} == pytest.approx(
        {name: float(value[0]) for name, value in guide.quantiles([0.5]).items()}
    )
    with torch.no_grad():
        for value in guide.parameters():
            value.add_(0.4 * torch.randn(value.shape))
    elbo = Trace_ELBO(num_particles=6, vectorize_particles=True, max_plate_nesting=0)
    svi = SVI(mixed, guide, pyro.optim.Adam({"lr": 0.05}), elbo)
    losses = [svi.step() for _ in range(90)]
    gap = np.array(losses) + float(q.log_evidence)
    assert gap[:5].mean() > 0.1
    assert abs(gap[-30:].mean()) < 0.02


def test_levels_and_jumps_draw_the_same_states(monkeypatch):
    model, _ = tree_program(8)
    tree = bp(model).joint.states
    drawn = []
    for cost in (0, math.inf):
        monkeypatch.setattr(forest, "LEVEL_COST", cost)
        pyro.set_rng_seed(2)
        drawn.append(tree.sample(500))
    assert torch.equal(*drawn)
    monkeypatch.setattr(forest, "CHUNK", 700)  # in parts
    for cost in (0, math.inf):
        monkeypatch.setattr(forest, "LEVEL_COST", cost)
        pyro.set_rng_seed(2)
        assert torch.equal(tree.sample(500), drawn[0])
    by_levels = tree.log_marginals()
    monkeypatch.undo()
    np.testing.assert_allclose(by_levels, tree.log_marginals(), atol=1e-12)


def test_a_hub_of_many_numbers_or_states_takes_no_more_than_its_draws():
    """60 numbers and 300 states, read 1000 times: a matrix, or a function of all states,
    for every draw would be gigabytes."""

    def weights():
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([60]).to_event(1))
        with pyro.plate("rows", 1000):
            pyro.sample("u", dist.Normal(torch.ones(1000, 60) @ w / 60, 0.1))

    def topic():
        z = pyro.sample("z", dist.Categorical(torch.ones(300)))
        with pyro.plate("words", 1000):
            pyro.sample("x", dist.Bernoulli(torch.linspace(0.1, 0.9, 300)[z]))

    for model, name in ((weights, "u"), (topic, "x")):
        q = bp(model)
        before = peak_gb()
        drawn = q.sample(300)[name]
        assert peak_gb() - before < 0.6
        rows = drawn - drawn.mean(0)
        share = float(rows.mean(1).var() / rows.var())  # of what all rows have in common
        assert share > 0.1


def test_leaves_of_many_states_are_drawn_without_their_distributions_for_every_draw(monkeypatch):
    """A root of 3 states, 50 leaves of 30: going down level by level, a leaf's distribution given
    its parent is looked up for every draw."""
    chunk, leaves, draws = 30_000, 50, 2000
    monkeypatch.setattr(forest, "CHUNK", chunk)
    monkeypatch.setattr(forest, "LEVEL_COST", 0)
    root = torch.tensor([[[0.2, 0.3, 0.5]]]).log()
    given = torch.zeros(leaves, 3, 30)
    given[:, torch.arange(3), 10 * torch.arange(3)] = 12.0  # nearly always 10 times the root's
    tree = forest.StateTree(
        [
            forest.StateBranches(None, torch.zeros(1, 1, dtype=torch.int64), root),
            forest.StateBranches(
                torch.zeros(leaves, dtype=torch.int64),
                torch.arange(1, leaves + 1).unsqueeze(1),
                given.log_softmax(2),
            ),
        ],
        leaves + 1,
    )
    pyro.set_rng_seed(0)
    with Largest() as largest:
        state = tree.sample(draws)
    assert largest.numel <= max(chunk, state.numel())
    share = (state[:, :1] == torch.arange(3)).double().mean(0)
    assert (share - torch.tensor([0.2, 0.3, 0.5])).abs().max() < 0.04
    assert (state[:, 1:] == 10 * state[:, :1]).double().mean() > 0.999


def peak_gb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def test_states_of_guides_of_another_class_are_refused():
    q = bp(mixed)
    with pytest.raises(OptionError, match="BeliefGuide"):
        ForestGuide.from_state_dict(q.guide(joint=False).state_dict())
    with pytest.raises(OptionError, match="ForestGuide"):
        BeliefGuide.from_state_dict(q.guide().state_dict())


def test_draws_in_inference_mode_leave_a_guide_that_can_be_trained():
    q = bp(mixed)
    with torch.inference_mode():
        q.sample(3)
    pyro.clear_param_store()
    SVI(mixed, q.guide(), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step()


def test_loops_and_some_of_the_sites_have_products_of_marginals():
    def loop():
        x = [pyro.sample(f"x{v}", dist.Bernoulli(0.5)) for v in range(3)]
        for i, j in [(0, 1), (1, 2), (2, 0)]:
            pyro.factor(f"f{i}{j}", 1.5 * (x[i] == x[j]).double())

    q = bp(loop)
    assert q.joint is None
    assert isinstance(q.guide(), BeliefGuide)
    pyro.set_rng_seed(0)
    drawn = q.sample(4_000)
    assert abs(float((drawn["x0"] == drawn["x1"]).double().mean()) - 0.5) < 0.04
    q = bp(mixed)
    assert isinstance(q.guide(sites=["z0"]), BeliefGuide)
    assert isinstance(q.guide(joint=False), BeliefGuide)
    assert isinstance(q.guide(sites=["x1", "z0", "z1", "x0"]), ForestGuide)
    assert q.sample(0)["z1"].shape == (0,)
    assert bp(mixed, infer=pg.VMP).joint is None


def test_what_discrete_and_continuous_nodes_tell_about_each_other_is_left_out():
    def hybrid():
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.4, 0.6])))
        x = pyro.sample("x", dist.Normal(torch.tensor([-1.0, 1.0])[z], 1.0))
        y = pyro.sample("y", dist.Normal(x, 0.2))
        pyro.sample("o", dist.Normal(y, 1.0), obs=torch.tensor(0.3))

    q = bp(hybrid, infer=pg.EP)
    pyro.set_rng_seed(0)
    drawn = q.sample(4_000)
    assert np.corrcoef(drawn["x"], drawn["y"])[0, 1] > 0.8
    assert abs(np.corrcoef(drawn["x"], drawn["z"])[0, 1]) < 0.06


def test_vectorised_chains_keep_their_shapes_and_precision():
    torch.set_default_dtype(torch.float32)

    def chains():
        with pyro.plate("chains", 3, dim=-2), pyro.plate("steps", 40, dim=-1):
            z = pyro.sample("z", dist.Categorical(torch.ones(4)))
        agree = (z[:, 1:] == z[:, :-1]).float()
        with pyro.plate("c", 3, dim=-2), pyro.plate("links", 39, dim=-1):
            pyro.factor("stay", 1.2 * agree)

    q = bp(chains)
    pyro.set_rng_seed(1)
    drawn = q.sample(500)["z"]
    assert drawn.shape == (500, 3, 40)
    assert drawn.dtype == poutine.trace(chains).get_trace().nodes["z"]["value"].dtype
    share = (drawn[:, :, 1:] == drawn[:, :, :-1]).float().mean()
    assert abs(float(share) - np.exp(1.2) / (np.exp(1.2) + 3)) < 0.01
    value = q.guide()()["z"]
    assert value.shape == (3, 40)
    with pyro.plate("particles", 5, dim=-3):
        assert q.guide()()["z"].shape == (5, 3, 40)
