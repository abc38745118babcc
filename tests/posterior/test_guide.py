"""The guide is a proper density in every Pyro tool that takes one."""

import copy
import io
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Importance, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from pyro.infer.importance import vectorized_importance_weights
from pyro.optim import Adam
from torch.distributions import biject_to
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import OptionError, UnsupportedSite
from pyrograph.posterior import ParticleGuide, ParticlePosterior

from .models import (
    conjugate,
    conjugate_truth,
    posterior_of,
    two_sites,
    two_sites_draws,
    two_sites_evidence,
)


def conjugate_posterior(n=40):
    y = torch.tensor([0.3, 1.2, -0.4, 0.8])
    mean, variance, log_evidence = conjugate_truth(y)
    x = mean + variance.sqrt() * torch.randn(n, 1)
    return posterior_of(conjugate, (y,), x), y, log_evidence


def two_sites_posterior(n=60):
    y = torch.randn(7)
    return posterior_of(two_sites, (y,), two_sites_draws(y, n)), y


def test_its_trace_has_the_density_of_what_it_drew():
    p, y = two_sites_posterior()
    guide = p.guide()
    trace = poutine.trace(guide).get_trace(y)
    a, b = trace.nodes["a"]["value"], trace.nodes["b"]["value"]
    assert a.shape == () and b.shape == (3, 2)
    z = torch.cat([a.log().reshape(1), b.reshape(-1)])
    # density of the unconstrained point, less log |da / dz| = log a
    truth = guide.distribution().log_prob(z) - a.log()
    assert_close(trace.log_prob_sum(), truth)


def test_importance_recovers_the_closed_form_evidence():
    p, y, log_evidence = conjugate_posterior()
    guide = p.guide()
    run = Importance(conjugate, guide, num_samples=500).run(y)
    assert float(run.get_log_normalizer()) == pytest.approx(log_evidence, abs=0.05)
    assert float(run.get_ESS()) > 250


def test_importance_recovers_it_with_plates_and_jacobians():
    p, y = two_sites_posterior()
    with torch.no_grad():
        log_weights, _, _ = vectorized_importance_weights(
            two_sites, p.guide(), y, num_samples=5000, max_plate_nesting=2
        )
    estimate = float(log_weights.logsumexp(0) - torch.tensor(5000.0).log())
    assert estimate == pytest.approx(two_sites_evidence(y), abs=0.15)


@pytest.mark.parametrize("parallel", [False, True])
def test_predictive_draws_from_it(parallel):
    p, y = two_sites_posterior()
    draws = Predictive(two_sites, guide=p.guide(), num_samples=8, parallel=parallel)(y)
    assert draws["z"].shape[0] == 8 and draws["z"].shape[-2:] == (3, 2)


@pytest.mark.parametrize(("vectorize", "num_particles"), [(False, 1), (True, 4)])
def test_svi_improves_it(vectorize, num_particles):
    p, y = two_sites_posterior(n=5)
    guide = p.guide()
    before = {name: value.detach().clone() for name, value in guide.named_parameters()}
    evaluate = Trace_ELBO(num_particles=2000, vectorize_particles=True, max_plate_nesting=2)
    start = -evaluate.loss(two_sites, guide, y)
    elbo = Trace_ELBO(num_particles, vectorize_particles=vectorize, max_plate_nesting=2)
    svi = SVI(two_sites, guide, Adam({"lr": 0.03}), elbo)
    for _ in range(120):
        svi.step(y)
    end = -evaluate.loss(two_sites, guide, y)
    assert start + 0.1 < end < two_sites_evidence(y) + 0.05
    for name, value in guide.named_parameters():
        assert not torch.equal(value, before[name]), name


def test_it_stands_beside_other_guides_in_a_list():
    p, y = two_sites_posterior()
    model = two_sites
    guides = AutoGuideList(model)
    guides.append(p.guide(["a"]))
    guides.append(p.guide(["b"]))
    trace = poutine.trace(guides).get_trace(y)
    assert {"a", "b"} <= set(trace.nodes)

    mixed = AutoGuideList(model)
    mixed.append(p.guide(["a"]))
    mixed.append(AutoNormal(poutine.block(model, hide=["a"])))
    elbo = Trace_ELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=2)
    svi = SVI(model, mixed, Adam({"lr": 0.01}), elbo)
    assert torch.isfinite(torch.tensor(svi.step(y)))


def test_two_guides_share_nothing():
    p, y = two_sites_posterior()
    q, _ = two_sites_posterior(n=9)
    first, second = p.guide(), q.guide()
    first(y), second(y)  # both registered in Pyro's global store
    assert len(second.locs) == 10
    assert len(first.locs) == 61


@pytest.mark.parametrize("infer", [pg.GraphicalSVGD, pg.EP, pg.QBethe], ids=lambda e: e.__name__)
def test_a_guide_has_nothing_of_one_of_an_earlier_process(tmp_path, infer):
    posterior = pg.fit(conjugate, (torch.ones(2),), infer=infer, num_steps=2, progress=False)
    earlier = posterior.guide()
    kind, _, serial = earlier._pyro_name.rpartition("_")
    earlier._pyro_name = f"{kind}_{int(serial) + 1}"  # as of a process that made other guides
    with torch.no_grad():
        for parameter in earlier.parameters():
            parameter.fill_(100.0)
    earlier()
    pyro.get_param_store().save(tmp_path / "store")
    pyro.clear_param_store()
    pyro.get_param_store().load(tmp_path / "store")
    guide = posterior.guide()
    before = guide.median()
    guide()
    assert_close(guide.median(), before)


def by_pickle(guide):
    return pickle.loads(pickle.dumps(guide))


@pytest.mark.parametrize("infer", [pg.GraphicalSVGD, pg.EP, pg.QBethe], ids=lambda e: e.__name__)
@pytest.mark.parametrize("copied", [copy.deepcopy, by_pickle])
def test_training_a_copy_leaves_the_original_as_it_is(infer, copied):
    y = torch.tensor([5.0, 6.0])
    guide = pg.fit(conjugate, (y,), infer=infer, num_steps=2, progress=False).guide()
    guide()  # its parameters are in Pyro's store
    before = guide.median()
    twin = copied(guide)
    assert_close(twin.median(), before)
    svi = SVI(conjugate, twin, Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(5):
        svi.step(y)
    guide()
    assert_close(guide.median(), before)
    assert not torch.allclose(twin.median()["mu"], before["mu"])


def test_copies_of_a_list_share_nothing_either():
    guide = AutoGuideList(two_sites)
    guide.append(two_sites_posterior()[0].guide(["a"]))
    guide.append(AutoNormal(poutine.block(two_sites, hide=["a"])))
    y = torch.randn(7)
    guide(y)
    before = guide[0].median()
    twin = copy.deepcopy(guide)
    svi = SVI(two_sites, twin, Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(3):
        svi.step(y)
    guide(y)
    assert_close(guide[0].median(), before)


def test_a_marginal_guide_draws_only_its_sites():
    p, _ = two_sites_posterior()
    guide = p.guide(["b"])
    assert set(guide()) == {"b"}
    q = guide.distribution()
    assert_close(q.mean, p.x[:, 1:].mean(0))
    assert_close(q.variance, p.x[:, 1:].var(0, unbiased=False))


def test_median_and_quantiles_are_in_the_programs_space():
    p, _ = two_sites_posterior(n=400)
    guide = p.guide()
    median, quantiles = guide.median(), guide.quantiles([0.1, 0.5, 0.9])
    assert median["a"].shape == () and quantiles["b"].shape == (3, 3, 2)
    assert_close(quantiles["a"][1], median["a"])
    assert float(median["a"]) == pytest.approx(float(p.particles["a"].median()), rel=0.1)
    assert (quantiles["b"].diff(dim=0) > 0).all()


@pytest.mark.parametrize("quantiles", [[1.5], [-0.3], [float("nan")], 0.5, [], ["a"], None])
def test_quantiles_are_of_probabilities(quantiles):
    with pytest.raises(OptionError, match="quantiles="):
        conjugate_posterior()[0].guide().quantiles(quantiles)


def test_the_outermost_quantiles_hold_all_other_ones():
    guide = two_sites_posterior(n=20)[0].guide()
    for value in guide.quantiles([0.0, 0.001, 0.999, 1.0]).values():
        assert (value.diff(dim=0) >= 0).all()


def reload(guide):
    buffer = io.BytesIO()
    torch.save(guide.state_dict(), buffer)
    buffer.seek(0)
    return ParticleGuide.from_state_dict(torch.load(buffer, weights_only=True))


def test_a_saved_guide_comes_back_without_data_or_model():
    p, _ = two_sites_posterior()
    guide = p.guide()
    again = reload(guide)
    value = torch.randn(4, 7)
    assert_close(again.distribution().log_prob(value), guide.distribution().log_prob(value))
    pyro.set_rng_seed(1)
    first = guide()
    pyro.set_rng_seed(1)
    second = again()
    assert_close(first["b"], second["b"])
    assert_close(first["a"], second["a"])


def test_a_trained_guide_keeps_its_training_when_saved():
    p, y = two_sites_posterior(n=5)
    guide = p.guide()
    svi = SVI(two_sites, guide, Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(3):
        svi.step(y)
    again = reload(guide)
    assert_close(again.locs, guide.locs)
    assert_close(again.scales, guide.scales)
    assert not torch.equal(again.locs, p.guide().locs)


def test_state_loads_into_a_fresh_guide_of_another_posterior():
    p, _ = two_sites_posterior()
    q, _ = two_sites_posterior()
    guide, other = p.guide(), q.guide()
    other.load_state_dict(guide.state_dict())
    assert_close(other.locs, guide.locs)


SUPPORTS = {
    "simplex": lambda: dist.Dirichlet(torch.ones(4)),
    "vectors": lambda: dist.MultivariateNormal(torch.zeros(2), torch.eye(2)),
    "interval": lambda: dist.Uniform(torch.tensor([-1.0, 0.0]), torch.tensor([2.0, 5.0])).to_event(
        1
    ),
    "correlations": lambda: dist.LKJCholesky(3, 1.0),
    "scale": lambda: dist.HalfCauchy(1.0),
    "half line": lambda: dist.Pareto(2.0, 3.0),
}


@pytest.mark.parametrize("name", SUPPORTS)
def test_every_support_is_drawn_scored_and_reloaded(name):
    def model():
        with pyro.plate("p", 3):
            pyro.sample("x", SUPPORTS[name]().expand([3]))

    graph = pg.trace_graph(model, unconstrained=True)
    x = torch.randn(30, graph.dim)
    p = ParticlePosterior(graph, x, converged=True, status="converged", history={})
    for guide in (p.guide(), reload(p.guide())):
        trace = poutine.trace(guide).get_trace()
        value, fn = trace.nodes["x"]["value"], SUPPORTS[name]()
        assert fn.support.check(value).all()
        transform = biject_to(fn.support)
        free = transform.inv(value)
        jacobian = transform.log_abs_det_jacobian(free, value).sum()
        truth = guide.distribution().log_prob(free.reshape(-1)) - jacobian
        assert_close(trace.log_prob_sum(), truth)
        # the model scores it under its own plate: shapes fit
        replayed = poutine.trace(poutine.replay(model, trace=trace)).get_trace()
        assert torch.isfinite(replayed.log_prob_sum())


def test_a_support_that_depends_on_latents_is_refused_by_name():
    def model():
        top = pyro.sample("top", dist.Uniform(1.0, 2.0))
        pyro.sample("x", dist.Uniform(0.0, top))

    graph = pg.trace_graph(model, unconstrained=True)
    x = torch.randn(5, 2)
    p = ParticlePosterior(graph, x, converged=True, status="converged", history={})
    with pytest.raises(UnsupportedSite, match='site "x"'):
        p.guide()
    assert set(p.guide(["top"])()) == {"top"}


@pytest.mark.parametrize(
    "infer", [pg.GraphicalSVGD, pg.EP, pg.QBethe, pg.DPVI, pg.BBIS, pg.CollapsedBBIS]
)
def test_a_site_named_twice_is_one_site_and_none_is_refused(infer):
    def continuous():
        s = pyro.sample("s", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(s, 1.0), obs=torch.tensor(0.5))

    def discrete():
        s = pyro.sample("s", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(s, 1.0), obs=torch.tensor(0.5))

    is_discrete = infer in (pg.DPVI, pg.BBIS, pg.CollapsedBBIS)
    model, options = discrete if is_discrete else continuous, {"num_steps": 5, "progress": False}
    posterior = pg.fit(model, infer=infer, **options)
    densities = []
    for sites in ("s", ["s"], ["s", "s"]):
        pyro.set_rng_seed(0)
        densities.append(poutine.trace(posterior.guide(sites=sites)).get_trace().log_prob_sum())
    assert_close(densities[1], densities[0])
    assert_close(densities[2], densities[0])
    with pytest.raises(OptionError, match=r"no site to draw|over all sites only"):
        posterior.guide(sites=[])
