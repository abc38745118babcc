"""Posteriors of discrete beliefs and their guides. Truth: sums over all states."""

import io
import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Importance, Predictive, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from pyro.ops.indexing import Vindex
from pyro.optim import Adam
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import InferenceError, OptionError
from pyrograph.posterior.belief_guide import BeliefGuide

COLOUR = torch.tensor([2, 5, 3]).double() / 10
MOVE = torch.tensor([[8, 1, 1], [3, 4, 3], [1, 3, 6]]).double() / 10
RATE = torch.tensor([2, 5, 8]).double() / 10
Y = torch.tensor([[0.3, 1.5, -0.2], [1.1, 0.2, 0.9]]).double()


def weather(y=Y):
    """A star: c with neighbours k (categorical), h (one-hot) and bits b [2, 3] in two plates."""
    c = pyro.sample("c", dist.Categorical(COLOUR))
    pyro.sample("k", dist.Categorical(Vindex(MOVE)[c]))
    pyro.sample("h", dist.OneHotCategorical(Vindex(MOVE)[c]))
    with pyro.plate("rows", 2, dim=-2), pyro.plate("columns", 3, dim=-1):
        b = pyro.sample("b", dist.Bernoulli(Vindex(RATE)[c]))
        pyro.sample("y", dist.Normal(b, 1.0), obs=y)


def truth():
    """p(c | y), p(k | y), p(h | y), p(b = 1 | y) and log p(y)."""
    like = torch.stack([dist.Normal(b, 1.0).log_prob(Y).exp() for b in (0.0, 1.0)])
    both = torch.stack([(1 - RATE)[:, None, None] * like[0], RATE[:, None, None] * like[1]])
    log_c = COLOUR.log() + both.sum(0).log().sum((1, 2))
    p = log_c.softmax(0)
    bit = torch.einsum("c,crk->rk", p, both[1] / both.sum(0))
    return p, p @ MOVE, p @ MOVE, bit, log_c.logsumexp(0)


@pytest.fixture
def posterior():
    return pg.fit(weather, infer=pg.BP, progress=False)


def test_marginals_have_the_shape_of_their_sites_and_are_right(posterior):
    c, k, h, b, log_z = truth()
    for site, expected in (("c", c), ("k", k), ("h", h)):
        assert_close(posterior.marginal(site).probs, expected, rtol=0, atol=1e-12)
    found = posterior.marginal("b")
    assert found.batch_shape == (2, 3)
    assert_close(found.probs[..., 1], b, rtol=0, atol=1e-12)
    assert_close(posterior.log_evidence, log_z, rtol=0, atol=1e-12)


def test_samples_have_the_shape_dtype_and_frequencies_of_their_sites(posterior):
    c, _, h, b, _ = truth()
    draws = posterior.sample(20000)
    trace = poutine.trace(weather).get_trace()
    for name in ("c", "k", "h", "b"):
        value = trace.nodes[name]["value"]
        assert draws[name].shape == (20000, *value.shape) and draws[name].dtype == value.dtype
    assert_close(draws["b"].mean(0), b, rtol=0, atol=0.02)
    assert_close(draws["h"].mean(0), h, rtol=0, atol=0.02)
    share = torch.bincount(draws["c"], minlength=3) / 20000.0
    assert_close(share, c, rtol=0, atol=0.02)


def test_a_single_sample_has_a_leading_dimension(posterior):
    assert posterior.sample(1)["h"].shape == (1, 3)


def test_factor_marginals_are_joint_and_in_node_order(posterior):
    c, *_ = truth()
    assert_close(posterior.factor_marginal("k")[0], c[:, None] * MOVE, rtol=0, atol=1e-12)
    found = posterior.factor_marginal("b")
    assert found.shape == (6, 3, 2)
    assert_close(found.sum((1, 2)), torch.ones(6))
    assert_close(found.sum(1)[:, 1].view(2, 3), truth()[3], rtol=0, atol=1e-12)


def test_axes_of_a_factor_marginal_follow_the_nodes_and_not_the_text():
    table = torch.randn(3, 2)

    def model():
        a = pyro.sample("a", dist.Bernoulli(0.3))
        b = pyro.sample("b", dist.Categorical(COLOUR))
        pyro.factor("f", Vindex(table)[b, a.long()])

    found = pg.fit(model, infer=pg.BP, progress=False).factor_marginal("f")
    joint = torch.tensor([0.7, 0.3])[:, None] * COLOUR * table.t().exp()
    assert_close(found[0], joint / joint.sum(), rtol=0, atol=1e-12)


def test_factors_of_a_loop_are_told_apart():
    tables = torch.randn(4, 2, 2)

    def model():
        x = pyro.sample("x0", dist.Bernoulli(0.5))
        for t in range(1, 5):
            y = pyro.sample(f"x{t}", dist.Bernoulli(0.5))
            pyro.factor(f"f{t}", Vindex(tables[t - 1])[x.long(), y.long()])
            x = y

    posterior = pg.fit(model, infer=pg.BP, progress=False)
    states = torch.tensor(list(itertools.product([0, 1], repeat=5)))
    weight = sum(tables[t][states[:, t], states[:, t + 1]] for t in range(4)).softmax(0)
    for t in range(4):
        joint = torch.zeros(4).index_add_(0, 2 * states[:, t] + states[:, t + 1], weight)
        found = posterior.factor_marginal(f"f{t + 1}")
        assert_close(found, joint.view(1, 2, 2), rtol=0, atol=1e-12)


def test_questions_about_what_is_not_there_are_answered_in_words(posterior):
    with pytest.raises(OptionError, match='no latent site "z"; the latent sites are: c, k, h, b'):
        posterior.marginal("z")
    with pytest.raises(OptionError, match=r'"z" has no factor beliefs; .* b, c, h, k'):
        posterior.factor_marginal("z")
    with pytest.raises(OptionError, match="no site to draw"):
        posterior.guide(sites=[])
    with pytest.raises(OptionError, match=r"guide\(sites=3\) needs a list of names"):
        posterior.guide(sites=3)
    with pytest.raises(OptionError, match=r"no latent site .*\['c'\]"):
        posterior.guide(sites=[["c"]])
    with pytest.raises(OptionError, match=r"no latent site .*\['c'\]"):
        posterior.marginal(["c"])
    with pytest.raises(OptionError, match='no latent site "y"'):
        posterior.guide(sites=["y"])


def test_factors_of_one_node_have_its_marginal():
    def model():
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Bernoulli(torch.tensor([0.2, 0.5, 0.9])))
            pyro.factor("tilt", 0.3 * x)
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(m, 2.0), obs=torch.tensor(1.0))

    posterior = pg.fit(model, infer=pg.BP, progress=False)
    assert_close(posterior.factor_marginal("tilt"), posterior.marginal("x").probs)
    mean, covariance = posterior.factor_marginal("y")
    assert_close(mean, torch.full((1, 1), 0.2))
    assert_close(covariance, torch.full((1, 1, 1), 0.8))


def test_excluded_states_have_no_probability_and_are_never_drawn():
    def model():
        a = pyro.sample("a", dist.Categorical(torch.ones(3) / 3))
        pyro.factor("out", torch.where(a == 1, -torch.inf, 0.0))

    posterior = pg.fit(model, infer=pg.BP, progress=False)
    assert posterior.marginal("a").probs.tolist() == [0.5, 0.0, 0.5]
    assert not bool((posterior.sample(500)["a"] == 1).any())
    guide = posterior.guide()
    assert not any(int(guide()["a"]) == 1 for _ in range(50))
    log_prob = poutine.condition(guide, {"a": torch.tensor(1)})
    assert poutine.trace(log_prob).get_trace().log_prob_sum() < -1e300


# ---------------------------------------------------------------------- guides
def test_the_guide_draws_every_site_with_the_log_probability_of_its_belief(posterior):
    c, k, h, b, _ = truth()
    trace = poutine.trace(posterior.guide(joint=False)).get_trace()
    trace.compute_log_prob()
    value = {name: trace.nodes[name]["value"] for name in ("c", "k", "h", "b")}
    assert trace.nodes["b"]["log_prob"].shape == (2, 3)
    expected = c[value["c"]].log() + k[value["k"]].log() + (h * value["h"]).sum().log()
    expected = expected + dist.Bernoulli(b).log_prob(value["b"]).sum()
    assert_close(trace.log_prob_sum(), expected, rtol=0, atol=1e-10)


def test_importance_sampling_from_the_guide_gives_the_evidence(posterior):
    run = Importance(weather, posterior.guide(), num_samples=50).run()
    found = torch.stack(run.log_weights).logsumexp(0) - torch.tensor(50.0).log()
    assert_close(found, truth()[4], rtol=0, atol=0.3)


@pytest.mark.parametrize("parallel", [False, True])
def test_predictive_draws_through_the_guide(posterior, parallel):
    def free():
        return weather(y=None)

    draws = Predictive(free, guide=posterior.guide(), num_samples=400, parallel=parallel)()
    assert draws["b"].shape == (400, 2, 3) and draws["y"].shape == (400, 2, 3)
    assert_close(draws["b"].mean(0), truth()[3], rtol=0, atol=0.12)


def test_predictive_takes_samples_of_the_posterior(posterior):
    draws = Predictive(lambda: weather(y=None), posterior_samples=posterior.sample(50))()
    assert draws["y"].shape == (50, 2, 3)


def plated_bits():
    with pyro.plate("n", 4):
        b = pyro.sample("b", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(b, 1.0), obs=torch.tensor([0.0, 1.0, 2.0, -1.0]))


def test_the_bound_of_an_exact_guide_is_the_evidence_at_every_draw_and_svi_trains_it():
    posterior = pg.fit(plated_bits, infer=pg.BP, progress=False)
    guide = posterior.guide()
    svi = SVI(plated_bits, guide, Adam({"lr": 0.01}), Trace_ELBO())
    log_z = float(posterior.log_evidence)
    for _ in range(5):
        assert_close(-svi.evaluate_loss(), log_z, rtol=0, atol=1e-10)
    before = guide.distribution("b").logits.detach().clone()
    svi.step()
    assert not torch.equal(guide.distribution("b").logits, before)


def test_a_guide_can_be_enumerated_in_svi():
    posterior = pg.fit(plated_bits, infer=pg.BP, progress=False)
    guide = config_enumerate(posterior.guide(), "parallel")
    loss = TraceEnum_ELBO(max_plate_nesting=1).loss(plated_bits, guide)
    assert_close(-loss, float(posterior.log_evidence), rtol=0, atol=1e-9)


def test_a_guide_of_some_sites_joins_guides_of_others():
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.4))
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(m + z, 1.0), obs=torch.tensor(1.0))

    def discrete():
        z = pyro.sample("z", dist.Bernoulli(0.4))
        pyro.sample("y", dist.Normal(z, 1.4), obs=torch.tensor(1.0))

    guide = AutoGuideList(model)
    guide.append(pg.fit(discrete, infer=pg.BP, progress=False).guide(sites=["z"]))
    guide.append(AutoNormal(poutine.block(model, hide=["z"])))
    assert torch.isfinite(torch.tensor(SVI(model, guide, Adam({}), Trace_ELBO()).step()))
    assert set(guide()) == {"z", "m"}


def test_a_guide_is_rebuilt_from_its_saved_state_alone(posterior):
    guide = posterior.guide(sites=["b", "h"])
    file = io.BytesIO()
    torch.save(guide.state_dict(), file)
    file.seek(0)
    again = BeliefGuide.from_state_dict(torch.load(file, weights_only=True))
    assert list(again.sites) == ["b", "h"]
    for name in again.sites:
        assert_close(again.distribution(name).logits, guide.distribution(name).logits)
    pyro.set_rng_seed(3)
    one = guide()
    pyro.set_rng_seed(3)
    other = again()
    for name in ("b", "h"):
        assert torch.equal(one[name], other[name])


def test_two_guides_share_no_parameters(posterior):
    one, other = (posterior.guide(joint=False) for _ in range(2))
    with torch.no_grad():
        one.logits_0_unconstrained.add_(torch.tensor([5.0, 0.0, 0.0]))
    c, *_ = truth()
    assert_close(other.distribution("c").logits.softmax(-1), c, rtol=0, atol=1e-12)
    assert_close(posterior.marginal("c").probs, c, rtol=0, atol=1e-12)


def test_the_median_of_discrete_sites_is_their_likeliest_state(posterior):
    c, _, h, b, _ = truth()
    for joint in (True, False):
        found = posterior.guide(joint=joint).median()
        assert int(found["c"]) == int(c.argmax())
        assert_close(found["h"], torch.eye(3)[h.argmax()])
        assert_close(found["b"], (b > 0.5).double())


def test_draws_become_inference_data(posterior):
    pytest.importorskip("arviz")
    data = posterior.to_arviz(30)
    assert data.posterior["b"].shape == (1, 30, 2, 3)
    assert data.posterior["b"].dims == ("chain", "draw", "rows", "columns")


def test_names_of_the_dimensions_of_draws_are_told_apart_or_refused():
    pytest.importorskip("arviz")

    def plated():
        with pyro.plate("chain", 3):
            pyro.sample("x", dist.Bernoulli(torch.full((3,), 0.3)))

    def named():
        pyro.sample("draw", dist.Bernoulli(0.3))

    data = pg.fit(plated, infer=pg.BP, progress=False).to_arviz(5)
    assert data.posterior["x"].dims == ("chain", "draw", "chain_dim")
    with pytest.raises(pg.errors.UnsupportedSite, match=r'site "draw".*Rename the site'):
        pg.fit(named, infer=pg.BP, progress=False).to_arviz(5)


def test_repr_names_the_sites_and_the_status(posterior):
    assert repr(posterior) == "BeliefPosterior(sites=['c', 'k', 'h', 'b'], status='converged')"


@pytest.mark.parametrize("loop", ["sequential plate", "markov"])
def test_guides_of_loops_draw_every_step(loop):
    def model():
        steps = pyro.plate("t", 4) if loop == "sequential plate" else pyro.markov(range(4))
        for t in steps:
            z = pyro.sample(f"z{t}", dist.Bernoulli(0.3))
            pyro.sample(f"y{t}", dist.Normal(z, 1.0), obs=torch.tensor(0.5))

    posterior = pg.fit(model, infer=pg.BP, progress=False)
    assert set(posterior.guide()()) == {f"z{t}" for t in range(4)}
    assert set(posterior.sample(3)) == {f"z{t}" for t in range(4)}
    loss = Trace_ELBO().loss(model, posterior.guide())
    assert_close(torch.tensor(-loss), posterior.log_evidence, rtol=0, atol=1e-9)


def test_no_draws_of_discrete_sites_are_empty(posterior):
    draws = posterior.sample(0)
    assert {name: tuple(v.shape) for name, v in draws.items()} == {
        name: (0, *v.shape[1:]) for name, v in posterior.sample(1).items()
    }
    assert posterior.guide(sites=["h"]).distribution("h").sample((0,)).shape[0] == 0


def test_draws_of_a_marginal_are_numbers_of_states_and_its_moments_those_of_values():
    def program():
        k = pyro.sample("k", dist.OneHotCategorical(torch.tensor([0.2, 0.8])))
        pyro.sample("y", dist.Normal(k.sum(), 1.0), obs=torch.tensor(0.0))

    posterior = pg.fit(program, infer=pg.BP, progress=False)
    marginal = posterior.marginal("k")
    assert_close(marginal.mean, torch.tensor([0.2, 0.8]))
    numbers = marginal.sample((50,))
    assert set(numbers.tolist()) == {0, 1}
    values = marginal.values[numbers]
    assert values.shape == posterior.sample(50)["k"].shape == (50, 2)


# ---------------------------------------------------------------------- matrices
def matrix(y):
    """Posterior covariance of the six numbers, y being their sum with unit noise: I - 11' / 7."""
    with pyro.plate("two", 2):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 2, 3]).to_event(2))
        pyro.sample("y", dist.Normal(w.sum((-1, -2)), 1.0), obs=y)


@pytest.fixture
def of_matrix():
    return pg.fit(matrix, (torch.tensor([3.0, -1.0]),), infer=pg.EP, progress=False)


def test_the_numbers_of_a_matrix_site_keep_their_covariance(of_matrix):
    covariance = torch.eye(6) - torch.ones(6, 6) / 7
    mean = torch.tensor([[3.0], [-1.0]]).expand(2, 6) / 7
    true = torch.distributions.MultivariateNormal(mean, covariance)
    w = torch.randn(5, 2, 2, 3, generator=torch.Generator().manual_seed(0))
    marginal, guide = of_matrix.marginal("w"), of_matrix.guide()
    assert marginal.batch_shape == (2,) and marginal.event_shape == (2, 3)
    assert_close(marginal.mean, mean.reshape(2, 2, 3))
    assert_close(marginal.variance, torch.full((2, 2, 3), 6 / 7))
    assert_close(marginal.entropy(), true.entropy())
    for found in (marginal, marginal.expand((5, 2)), guide.distribution("w")):
        assert_close(found.log_prob(w), true.log_prob(w.reshape(5, 2, 6)))
    assert_close(guide.median()["w"], mean.reshape(2, 2, 3))
    pyro.set_rng_seed(0)
    draws = of_matrix.sample(20_000)["w"].reshape(-1, 2, 6)
    assert_close(torch.cov(draws[:, 0].T), covariance, rtol=0, atol=0.05)


def test_a_guide_of_a_matrix_site_is_exact_and_rebuilt_from_its_state(of_matrix):
    guide = of_matrix.guide()
    loss = Trace_ELBO().loss(matrix, guide, torch.tensor([3.0, -1.0]))
    assert_close(torch.tensor(-loss), of_matrix.log_evidence, rtol=0, atol=1e-9)
    again = BeliefGuide.from_state_dict(guide.state_dict())
    w = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(1))
    one, other = again.distribution("w"), guide.distribution("w")
    assert_close(one.log_prob(w), other.log_prob(w), rtol=0, atol=0)


def test_a_matrix_of_positive_numbers_has_the_moments_of_its_draws():
    def program():
        w = pyro.sample("w", dist.LogNormal(0.0, 0.4).expand([2, 2]).to_event(2))
        pyro.sample("y", dist.Normal(w.log().sum(), 0.5), obs=torch.tensor(1.0))

    posterior = pg.fit(program, infer=pg.EP, progress=False)
    marginal = posterior.marginal("w")
    variance = 0.16 - 0.16**2 / (0.25 + 4 * 0.16)  # of log w, jointly normal
    mean = 0.16 / (0.25 + 4 * 0.16)
    expected = torch.tensor(mean + variance / 2).exp()
    assert_close(marginal.mean, expected.expand(2, 2), rtol=0, atol=1e-5)
    assert marginal.sample((3,)).shape == (3, 2, 2)
    value = posterior.guide().distribution("w").sample()
    assert_close(marginal.log_prob(value), posterior.guide().distribution("w").log_prob(value))


def test_a_posterior_without_conditionals_says_who_has_them():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    posterior = pg.fit(model, infer=pg.BP, progress=False)
    with pytest.raises(InferenceError, match=r"pg\.QBethe does.*poutine\.condition"):
        posterior.condition({"x": torch.tensor(1.0)})
