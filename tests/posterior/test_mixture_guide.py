"""The joint mixture as a guide: its density, and what Pyro makes of it. Truth: scipy and sums."""

import io

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Importance, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from pyro.infer.importance import vectorized_importance_weights
from pyro.ops.indexing import Vindex
from pyro.optim import Adam
from scipy import optimize, special, stats
from scipy.integrate import trapezoid
from torch.distributions import biject_to
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.beliefs import Categoricals, JointMixture, Normals
from pyrograph.errors import InferenceError, OptionError, UnsupportedSite
from pyrograph.posterior.mixture_guide import MixtureGuide

PRIOR = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
MEAN = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
SD = torch.tensor([0.5, 1.0, 0.7], dtype=torch.float64)
# of each bit, by k
RATE = torch.tensor([[0.2, 0.6, 0.9], [0.5, 0.1, 0.7]], dtype=torch.float64)
NOISE, Y = 0.8, 0.7


def hybrid():
    """k, u > 0 and one-hot h given k, two bits given k in a plate, y around log u."""
    k = pyro.sample("k", dist.Categorical(PRIOR))
    u = pyro.sample("u", dist.LogNormal(MEAN[k], SD[k]))
    pyro.sample("h", dist.OneHotCategorical(torch.stack([PRIOR, PRIOR.flip(0), PRIOR])[k]))
    with pyro.plate("bits", 2):
        rate = Vindex(RATE.t())[k.unsqueeze(-1), torch.arange(2)]
        pyro.sample("b", dist.Bernoulli(rate))
    pyro.sample("y", dist.Normal(u.log(), NOISE), obs=torch.tensor(Y))


def hybrid_posterior():
    """p(latents | y) is a mixture with one component for every k; and log p(y), by scipy."""
    spread = np.sqrt(SD.numpy() ** 2 + NOISE**2)
    joint = np.log(PRIOR.numpy()) + stats.norm.logpdf(Y, MEAN.numpy(), spread)
    evidence = special.logsumexp(joint)
    precision = 1 / SD**2 + 1 / NOISE**2
    mean = (MEAN / SD**2 + Y / NOISE**2) / precision
    sites = {
        "k": Categoricals(torch.eye(3).log().unsqueeze(1)),
        "u": Normals(mean.view(3, 1, 1), precision.rsqrt().view(3, 1, 1, 1)),
        "h": Categoricals(torch.stack([PRIOR, PRIOR.flip(0), PRIOR]).log().unsqueeze(1)),
        "b": Categoricals(torch.stack([1 - RATE.t(), RATE.t()], -1).log()),
    }
    return JointMixture(torch.from_numpy(joint - evidence), sites), float(evidence)


def guide_of(model, mixture, names=None):
    sites = pg.trace_graph(model, unconstrained=True).sites
    return MixtureGuide.from_mixture([sites[n] for n in names or mixture.sites], mixture)


def random_mixture(components=3, seed=0):
    """Over the sites of `hybrid`, with no relation to its posterior."""
    g = torch.Generator().manual_seed(seed)

    def table(n, c):
        return torch.randn(components, n, c, generator=g).log_softmax(-1)

    mean = torch.randn(components, 1, 1, generator=g)
    root = 0.3 + torch.rand(components, 1, 1, 1, generator=g)
    weights = torch.randn(components, generator=g).log_softmax(0)
    sites = {
        "k": Categoricals(table(1, 3)),
        "u": Normals(mean, root),
        "h": Categoricals(table(1, 3)),
        "b": Categoricals(table(2, 2)),
    }
    return JointMixture(weights, sites)


def brute_force(mixture, values):
    """Log density of values in the program's space, by scipy."""
    total = mixture.log_weights.numpy().copy()
    for name, value in values.items():
        nodes = mixture.sites[name]
        for component in range(len(total)):
            if name == "u":
                mean, sd = nodes.mean[component].item(), nodes.root[component].item()
                total[component] += stats.lognorm.logpdf(value.item(), sd, scale=np.exp(mean))
            elif name == "h":
                total[component] += nodes.log_p[component, 0, int(value.argmax())].item()
            else:
                for node, state in enumerate(value.reshape(-1)):
                    total[component] += nodes.log_p[component, node, int(state)].item()
    return special.logsumexp(total)


@pytest.mark.parametrize("names", [["k", "u", "h", "b"], ["b"], ["u", "k"], ["u"]])
def test_its_trace_has_the_mixtures_density_with_other_sites_integrated_out(names):
    mixture = random_mixture()
    guide = guide_of(hybrid, mixture, names)
    for _ in range(5):
        trace = poutine.trace(guide).get_trace()
        values = {name: trace.nodes[name]["value"].detach() for name in names}
        assert "h" not in trace.nodes or "h" in names
        truth = brute_force(mixture, values)
        assert trace.log_prob_sum().item() == pytest.approx(truth, abs=1e-10)


def test_values_have_the_shape_and_dtype_of_the_programs():
    guide = guide_of(hybrid, random_mixture())
    expected = poutine.trace(hybrid).get_trace()
    for name, value in guide().items():
        assert value.shape == expected.nodes[name]["value"].shape
        assert value.dtype == expected.nodes[name]["value"].dtype


def test_draws_have_the_frequencies_of_the_mixture():
    mixture = random_mixture()
    guide = guide_of(hybrid, mixture)
    draws = Predictive(hybrid, guide=guide, num_samples=20000, parallel=True)()
    weights = mixture.log_weights.exp()
    joint = torch.einsum(
        "l,lk,lb->kb",
        weights,
        mixture.sites["k"].log_p[:, 0].exp(),
        mixture.sites["b"].log_p[:, 1].exp(),
    )
    found = torch.zeros(3, 2)
    k, b = draws["k"].reshape(-1), draws["b"][..., 1].reshape(-1).long()
    found.index_put_((k, b), torch.ones(20000), accumulate=True)
    assert_close(found / 20000, joint, atol=0.02, rtol=0)
    mean = weights @ mixture.sites["u"].mean[:, 0, 0]
    assert float(draws["u"].log().mean()) == pytest.approx(float(mean), abs=0.03)


def test_a_guide_that_is_the_posterior_gives_every_importance_weight_the_evidence():
    mixture, evidence = hybrid_posterior()
    guide = guide_of(hybrid, mixture)
    run = Importance(hybrid, guide, num_samples=50).run()
    log_weights = torch.stack([torch.as_tensor(w) for w in run.log_weights])
    assert_close(log_weights.detach(), torch.full((50,), evidence), rtol=0, atol=1e-9)


def vector_hybrid():
    """The same dependence of u on k, written for parallel particles."""
    k = pyro.sample("k", dist.Categorical(PRIOR))
    u = pyro.sample("u", dist.LogNormal(MEAN[k], SD[k]))
    with pyro.plate("rows", 3, dim=-1):
        pyro.sample("y", dist.Normal(u.log(), NOISE), obs=torch.tensor([0.1, 0.9, 1.4]))


def vector_evidence():
    y = np.array([0.1, 0.9, 1.4])
    parts = [
        np.log(p) + stats.multivariate_normal(m * np.ones(3), NOISE**2 * np.eye(3) + s**2).logpdf(y)
        for p, m, s in zip(PRIOR.numpy(), MEAN.numpy(), SD.numpy())
    ]
    return float(special.logsumexp(parts))


def test_importance_recovers_the_evidence_in_parallel():
    mixture = random_mixture()
    sites = {
        "k": Categoricals(torch.full((3, 1, 3), 1 / 3).log()),
        "u": Normals(mixture.sites["u"].mean + 0.5, torch.ones(3, 1, 1, 1)),
    }
    guide = guide_of(vector_hybrid, JointMixture(mixture.log_weights, sites))
    with torch.no_grad():
        log_weights, _, _ = vectorized_importance_weights(
            vector_hybrid, guide, num_samples=20000, max_plate_nesting=1
        )
    estimate = float(log_weights.logsumexp(0) - np.log(20000))
    assert estimate == pytest.approx(vector_evidence(), abs=0.05)


def two_sites():
    """x ~ N(0, 1), c ~ Bernoulli(0.3), y ~ N(x + 2 c, 0.6) = 1."""
    x = pyro.sample("x", dist.Normal(torch.tensor(0.0), 1.0))
    c = pyro.sample("c", dist.Bernoulli(torch.tensor(0.3)))
    pyro.sample("y", dist.Normal(x + 2 * c, 0.6), obs=torch.tensor(1.0))


GRID = np.linspace(-9, 9, 4001)


def two_sites_elbo(parameters):
    """E_q log p - log q of `two_sites` by quadrature and a sum, in the guide's raw numbers."""
    logits, loc, log_scale, table = np.split(parameters, [2, 4, 6])
    weights = special.log_softmax(logits)
    table = special.log_softmax(table.reshape(2, 2), -1)
    total = 0.0
    for c in (0, 1):
        log_p = stats.norm.logpdf(GRID) + np.log(0.3 if c else 0.7)
        log_p = log_p + stats.norm.logpdf(1.0, GRID + 2 * c, 0.6)
        parts = [
            weights[k] + table[k, c] + stats.norm.logpdf(GRID, loc[k], np.exp(log_scale[k]))
            for k in (0, 1)
        ]
        log_q = special.logsumexp(parts, axis=0)
        total += trapezoid(np.exp(log_q) * (log_p - log_q), GRID)
    return total


def two_sites_guide(parameters):
    logits, loc, log_scale, table = (
        torch.from_numpy(part) for part in np.split(parameters, [2, 4, 6])
    )
    sites = {
        "x": Normals(loc.view(2, 1, 1), log_scale.exp().view(2, 1, 1, 1)),
        "c": Categoricals(table.view(2, 1, 2).log_softmax(-1)),
    }
    return guide_of(two_sites, JointMixture(logits.log_softmax(0), sites))


@pytest.mark.parametrize(("vectorize", "particles", "steps"), [(True, 20, 150), (False, 1, 700)])
def test_svi_sees_the_gradient_of_the_bound_in_every_parameter(vectorize, particles, steps):
    start = np.array([0.3, -0.4, -0.8, 1.2, np.log(0.7), np.log(0.5), 0.2, -0.6, -0.5, 0.9])
    guide = two_sites_guide(start)
    elbo = Trace_ELBO(particles, vectorize_particles=vectorize, max_plate_nesting=0)
    rows = []
    for _ in range(steps):
        guide.zero_grad()
        (-elbo.differentiable_loss(two_sites, guide)).backward()
        rows.append(torch.cat([p.grad.flatten() for _, p in sorted(guide.named_parameters())]))
    found = torch.stack(rows)
    names = [name for name, _ in sorted(guide.named_parameters())]
    assert [name.removesuffix("_unconstrained") for name in names] == [
        "loc_0",
        "logits_1",
        "logits",
        "scale_tril_0",
    ]
    gradient = optimize.approx_fprime(start, two_sites_elbo, 1e-6)
    truth = torch.from_numpy(
        np.concatenate([gradient[i] for i in (range(2, 4), range(6, 10), range(0, 2), range(4, 6))])
    )
    error = found.std(0) / steps**0.5
    assert ((found.mean(0) - truth).abs() < 4 * error + 1e-4).all()
    assert (error < 0.15).all()


def test_at_the_posterior_the_gradient_has_no_noise():
    """With the exact posterior log p - log q is a constant, and nothing is left to average."""
    guide = guide_of(vector_hybrid, vector_posterior())
    elbo = Trace_ELBO(5, vectorize_particles=True, max_plate_nesting=1)
    elbo.differentiable_loss(vector_hybrid, guide).backward()
    for name, value in guide.named_parameters():
        assert float(value.grad.abs().max()) < 1e-9, name


def vector_posterior():
    y = torch.tensor([0.1, 0.9, 1.4])
    precision = 1 / SD**2 + 3 / NOISE**2
    mean = (MEAN / SD**2 + y.sum() / NOISE**2) / precision
    spread = NOISE**2 * torch.eye(3) + (SD**2)[:, None, None]
    log_like = dist.MultivariateNormal(MEAN[:, None].expand(3, 3), spread).log_prob(y)
    sites = {
        "k": Categoricals(torch.eye(3).log().unsqueeze(1)),
        "u": Normals(mean.view(3, 1, 1), precision.rsqrt().view(3, 1, 1, 1)),
    }
    return JointMixture((PRIOR.log() + log_like).log_softmax(0), sites)


@pytest.mark.parametrize(
    ("vectorize", "particles", "steps", "lr", "gap"),
    [(True, 10, 200, 0.1, 0.03), (False, 1, 1200, 0.03, 0.06)],
)
def test_svi_climbs_to_the_evidence_of_a_hybrid_program(vectorize, particles, steps, lr, gap):
    start = np.array([0.0, 0.0, -0.5, 0.5, 0.0, 0.0, 0.3, -0.3, -0.3, 0.3])
    guide = two_sites_guide(start)
    before = {name: value.detach().clone() for name, value in guide.named_parameters()}
    elbo = Trace_ELBO(particles, vectorize_particles=vectorize, max_plate_nesting=0)
    svi = SVI(two_sites, guide, Adam({"lr": lr}), elbo)
    for _ in range(steps):
        svi.step()
    parts = (guide.logits, guide.loc_0, guide.scale_tril_0.log(), guide.logits_1)
    raw = torch.cat([part.detach().flatten() for part in parts])
    evidence = special.logsumexp(
        [np.log(p) + stats.norm.logpdf(1.0, 2 * c, np.sqrt(1.36)) for c, p in ((0, 0.7), (1, 0.3))]
    )
    end = two_sites_elbo(raw.numpy())
    assert two_sites_elbo(start) < evidence - 0.3
    assert evidence - gap < end < evidence + 1e-6
    for name, value in guide.named_parameters():
        assert not torch.equal(value, before[name]), name


def test_it_stands_beside_other_guides_in_a_list():
    mixture = random_mixture()
    guides = AutoGuideList(vector_hybrid)
    guides.append(guide_of(vector_hybrid, mixture, ["k"]))
    guides.append(AutoNormal(poutine.block(vector_hybrid, hide=["k"])))
    elbo = Trace_ELBO(4, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(vector_hybrid, guides, Adam({"lr": 0.01}), elbo)
    for _ in range(3):
        assert np.isfinite(svi.step())
    assert set(guides()) == {"k", "u"} and set(guides.median()) == {"k", "u"}
    assert set(guides.quantiles([0.2, 0.7])) == {"k", "u"}


def test_medians_and_quantiles_are_those_of_the_marginals():
    mixture = random_mixture()
    guide = guide_of(hybrid, mixture)
    weights = mixture.log_weights.exp().numpy()
    mean, sd = (t.reshape(-1).numpy() for t in (mixture.sites["u"].mean, mixture.sites["u"].root))
    found = guide.quantiles([0.1, 0.5, 0.9])
    for q, value in zip([0.1, 0.5, 0.9], found["u"]):
        root = optimize.brentq(lambda x, q=q: weights @ stats.norm.cdf(x, mean, sd) - q, -20, 20)
        assert float(value.log()) == pytest.approx(root, abs=1e-8)
    median = guide.median()
    assert_close(median["u"], found["u"][1])
    k = np.einsum("l,lc->c", weights, mixture.sites["k"].log_p[:, 0].exp().numpy())
    assert int(median["k"]) == k.argmax()
    assert found["k"].tolist() == [int((k.cumsum() < q).sum()) for q in (0.1, 0.5, 0.9)]
    assert median["h"].shape == (3,) and "h" not in found
    assert median["b"].shape == (2,) and found["b"].shape == (3, 2)


@pytest.mark.parametrize(
    "quantiles, words",
    [
        ([0.5, 1.5], "from 0 to 1"),
        ([-0.2], "from 0 to 1"),
        ([float("nan")], "from 0 to 1"),
        (["a"], "sequence of numbers"),
        (0.5, "sequence of numbers"),
        ([], "no number"),
    ],
)
def test_quantiles_are_of_probabilities(quantiles, words):
    with pytest.raises(OptionError, match=words):
        guide_of(hybrid, random_mixture()).quantiles(quantiles)


def reload(guide):
    buffer = io.BytesIO()
    torch.save(guide.state_dict(), buffer)
    buffer.seek(0)
    return MixtureGuide.from_state_dict(torch.load(buffer, weights_only=True))


def test_a_saved_guide_comes_back_without_data_or_model():
    guide = guide_of(hybrid, random_mixture())
    again = reload(guide)
    pyro.set_rng_seed(1)
    first = poutine.trace(guide).get_trace()
    pyro.set_rng_seed(1)
    second = poutine.trace(again).get_trace()
    for name in guide.sites:
        assert_close(first.nodes[name]["value"], second.nodes[name]["value"])
    assert_close(first.log_prob_sum(), second.log_prob_sum())


def test_a_trained_guide_keeps_its_training_when_saved():
    guide = guide_of(vector_hybrid, random_mixture(), ["k", "u"])
    svi = SVI(vector_hybrid, guide, Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(3):
        svi.step()
    again = reload(guide)
    for (name, a), (_, b) in zip(guide.named_parameters(), again.named_parameters()):
        assert_close(a, b, msg=name)
    assert not torch.equal(again.loc_1, random_mixture().sites["u"].mean)


def test_two_guides_share_nothing():
    first = guide_of(hybrid, random_mixture(seed=0))
    second = guide_of(hybrid, random_mixture(components=4, seed=1))
    first(), second()  # both registered in Pyro's global store
    assert len(first.logits) == 3 and len(second.logits) == 4


SUPPORTS = {
    "simplex": lambda: dist.Dirichlet(torch.ones(4)),
    "vectors": lambda: dist.MultivariateNormal(torch.zeros(2), torch.eye(2)),
    "interval": lambda: dist.Uniform(torch.tensor([-1.0, 0.0]), torch.tensor([2.0, 5.0])).to_event(
        1
    ),
    "correlations": lambda: dist.LKJCholesky(3, torch.tensor(1.0)),
}


@pytest.mark.parametrize("name", SUPPORTS)
def test_every_support_is_drawn_scored_and_reloaded(name):
    fn = SUPPORTS[name]()

    def model():
        with pyro.plate("p", 3):
            pyro.sample("x", fn.expand([3]))

    width = pg.trace_graph(model, unconstrained=True).sites["x"].width
    mean = torch.randn(2, 3, width)
    root = 0.4 * torch.randn(2, 3, width, width).tril() + torch.eye(width)
    root = root * root.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # positive diagonal
    weights = torch.tensor([0.3, 0.7])
    guide = guide_of(model, JointMixture(weights.log(), {"x": Normals(mean, root)}))
    for made in (guide, reload(guide)):
        trace = poutine.trace(made).get_trace()
        value = trace.nodes["x"]["value"].detach()
        assert fn.support.check(value).all()
        transform = biject_to(fn.support)
        free = transform.inv(value)
        jacobian = float(transform.log_abs_det_jacobian(free, value).sum())
        parts = [
            np.log(float(weights[k]))
            + sum(
                stats.multivariate_normal(mean[k, i], (root[k, i] @ root[k, i].t())).logpdf(
                    free[i].reshape(-1)
                )
                for i in range(3)
            )
            for k in (0, 1)
        ]
        truth = special.logsumexp(parts) - jacobian
        assert trace.log_prob_sum().item() == pytest.approx(float(truth), abs=1e-8)
        replayed = poutine.trace(poutine.replay(model, trace=trace)).get_trace()
        assert torch.isfinite(replayed.log_prob_sum())


def test_components_without_weight_are_never_drawn_and_harm_nothing():
    mixture = random_mixture()
    log_weights = torch.tensor([0.0, -torch.inf, -torch.inf])
    guide = guide_of(hybrid, JointMixture(log_weights, mixture.sites))
    trace = poutine.trace(guide).get_trace()
    values = {name: trace.nodes[name]["value"].detach() for name in mixture.sites}
    alone = JointMixture(log_weights, mixture.sites)
    assert trace.log_prob_sum().item() == pytest.approx(brute_force(alone, values), abs=1e-10)
    trace.log_prob_sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in guide.parameters() if p.grad is not None)


def test_nodes_that_were_conditioned_on_are_refused_by_name():
    mask, value = torch.ones(1, dtype=torch.bool), torch.zeros(1, 1)
    conditioned = random_mixture().condition({"u": (mask, value)})
    with pytest.raises(InferenceError, match='site "u" has nodes of no width'):
        guide_of(hybrid, conditioned)
    assert set(guide_of(hybrid, conditioned, ["k", "b"])()) == {"k", "b"}


def test_a_support_that_depends_on_latents_is_refused_by_name():
    def model():
        top = pyro.sample("top", dist.Uniform(1.0, 2.0))
        pyro.sample("x", dist.Uniform(0.0, top))

    nodes = Normals(torch.zeros(2, 1, 1), torch.ones(2, 1, 1, 1))
    mixture = JointMixture(torch.zeros(2).log_softmax(0), {"top": nodes, "x": nodes})
    with pytest.raises(UnsupportedSite, match='site "x"'):
        guide_of(model, mixture)
    assert set(guide_of(model, mixture, ["top"])()) == {"top"}
