"""Particle posteriors: moments, weights, samples, export."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import OptionError
from pyrograph.posterior import ParticlePosterior, Posterior
from pyrograph.posterior.export import dimension_names
from pyrograph.posterior.posterior import draw_indices

from .models import posterior_of, two_sites


def posterior(n=6, weights=None):
    y = torch.randn(7)
    return posterior_of(two_sites, (y,), torch.randn(n, 7), weights), y


def test_marginals_have_the_weighted_moments_in_the_sites_shape():
    weights = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.15, 0.05])
    p, _ = posterior(weights=weights)
    for site, shape in (("a", ()), ("b", (3, 2))):
        value = p.particles[site]
        assert value.shape == (6, *shape)
        w = weights.reshape(-1, *[1] * len(shape))
        mean = (w * value).sum(0)
        marginal = p.marginal(site)
        assert_close(marginal.mean, mean)
        assert_close(marginal.variance, (w * (value - mean).square()).sum(0))
        assert marginal.mean.shape == marginal.variance.shape == shape


def test_particles_are_in_the_programs_space():
    p, _ = posterior()
    assert_close(p.particles["a"], p.x[:, 0].exp())
    assert_close(p.particles["b"], p.x[:, 1:].reshape(-1, 3, 2))


def test_default_weights_are_equal():
    p, _ = posterior()
    assert_close(p.weights, torch.full((6,), 1 / 6))


def test_as_many_samples_as_particles_give_each_once_and_sites_stay_together():
    p, _ = posterior()
    draws = p.sample(6)
    order = draws["a"].argsort()
    truth = p.particles["a"].argsort()
    assert_close(draws["a"][order], p.particles["a"][truth])
    assert_close(draws["b"][order], p.particles["b"][truth])


def test_resampling_follows_the_weights():
    weights = torch.tensor([0.05, 0.45, 0.0, 0.5])
    counts = torch.bincount(draw_indices(weights, 1000), minlength=4)
    assert ((counts - 1000 * weights).abs() <= 1).all()
    single = torch.stack([draw_indices(weights, 1)[0] for _ in range(2000)])
    share = torch.bincount(single, minlength=4) / 2000
    assert_close(share, weights, rtol=0, atol=0.05)  # 4.5 sd


def test_samples_feed_predictive():
    p, y = posterior()
    draws = Predictive(two_sites, posterior_samples=p.sample(9), return_sites=("y", "z"))(y)
    assert draws["z"].shape == (9, 3, 2)


def test_samples_follow_the_global_seed():
    p, _ = posterior()
    draws = []
    for _ in range(2):
        pyro.set_rng_seed(5)
        draws.append(p.sample(20)["a"])
    assert torch.equal(*draws)


def test_unknown_sites_are_named():
    p, _ = posterior()
    for call in (lambda: p.marginal("c"), lambda: p.guide(["a", "c"])):
        with pytest.raises(OptionError, match=r'"c".*a, b'):
            call()
    with pytest.raises(OptionError, match="no site"):
        p.guide([])


def test_a_site_named_twice_is_drawn_once_with_the_density_of_once():
    p, _ = posterior()
    densities = []
    for sites in (["a", "b"], ["a", "b", "a"]):
        pyro.set_rng_seed(1)
        trace = pyro.poutine.trace(p.guide(sites)).get_trace()
        densities.append(trace.log_prob_sum())
    assert_close(*densities)


def test_contract_attributes():
    p, _ = posterior()
    assert isinstance(p, Posterior)
    assert p.converged is True
    assert p.status == "converged"
    assert p.log_evidence is None and p.evidence_kind is None
    assert "a" in repr(p)


def test_without_arviz_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    p, _ = posterior()
    with pytest.raises(ImportError, match=r"pip install pyrograph\[arviz\]"):
        p.to_arviz()


def fake_arviz(monkeypatch, **attributes):
    """Records what ``from_dict`` is called with."""
    calls = []
    fake = ModuleType("arviz")
    fake.from_dict = lambda *args, **kwargs: calls.append((args, kwargs))
    vars(fake).update(attributes)
    monkeypatch.setitem(sys.modules, "arviz", fake)
    return calls


def test_what_arviz_is_given(monkeypatch):
    calls = fake_arviz(monkeypatch, InferenceData=object)
    p, _ = posterior()
    p.to_arviz()
    p.to_arviz(num_samples=4)
    (_, whole), (_, drawn) = calls
    assert whole["posterior"]["b"].shape == (1, 6, 3, 2)
    assert whole["sample_stats"]["weights"].shape == (1, 6)
    assert whole["dims"] == {"a": [], "b": ["inner", "outer"]}
    assert drawn["posterior"]["a"].shape == (1, 4)
    assert drawn["sample_stats"] is None


def test_what_arviz_1_is_given(monkeypatch):
    calls = fake_arviz(monkeypatch)  # has no InferenceData; groups come in one mapping
    p, _ = posterior()
    p.to_arviz()
    p.to_arviz(num_samples=4)
    ((whole,), options), ((drawn,), _) = calls
    assert set(whole) == {"posterior", "sample_stats"} and set(drawn) == {"posterior"}
    assert options["dims"]["b"] == ["inner", "outer"]


def test_dimension_names_of_plates_events_and_clashes():
    site = SimpleNamespace(name="x", batch_shape=(4, 2), shape=(4, 2, 3), plates=(("p", -1, 2),))
    assert dimension_names(site, {"x"}) == ["x_dim_0", "p", "x_dim_2"]
    assert dimension_names(site, {"x", "p"}) == ["x_dim_0", "p_dim", "x_dim_2"]
    assert dimension_names(site, {"x", "p", "p_dim"})[1] == "p_dim_dim"
    plates = {"p", "p_dim", "x_dim_0"}
    assert dimension_names(site, {"x", "p"}, plates) == ["x_dim_0_dim", "p_dim_dim", "x_dim_2"]


@pytest.mark.skipif(importlib.util.find_spec("arviz") is None, reason="needs arviz")
@pytest.mark.filterwarnings("ignore")
def test_arviz_reads_it():
    p, _ = posterior()
    data = p.to_arviz()
    assert dict(data.posterior["b"].sizes) == {"chain": 1, "draw": 6, "inner": 3, "outer": 2}
    assert_close(torch.tensor(data.sample_stats["weights"].values[0]), p.weights)


@pytest.mark.gpu
def test_a_posterior_on_a_gpu():
    def model():
        pyro.sample("a", dist.Gamma(2.0, 1.0))

    graph = pg.trace_graph(model, unconstrained=True).to("cuda")
    x = torch.randn(5, 1, device="cuda")
    p = ParticlePosterior(graph, x, converged=True, status="converged", history={})
    assert p.sample(3)["a"].device.type == "cuda"
    assert p.guide()()["a"].device.type == "cuda"


def test_moments_of_narrow_particles_far_from_zero_are_theirs():
    """1e6 +- .1, in numbers that are .06 apart."""

    def model():
        one = torch.ones((), dtype=torch.float32)
        pyro.sample("x", dist.Normal(1e6 * one, one))

    graph = pg.trace_graph(model, unconstrained=True)
    generator = torch.Generator().manual_seed(0)
    x = (1e6 + 0.1 * torch.randn(1000, 1, generator=generator)).float()
    weights = torch.rand(1000, generator=generator).float()
    run = {"converged": True, "status": "converged", "history": {}}
    found = ParticlePosterior(graph, x, weights / weights.sum(), **run).marginal("x")
    truth = np.average(x[:, 0].double(), weights=weights.double())
    spread = np.average((x[:, 0].double() - truth) ** 2, weights=weights.double())
    assert found.mean.dtype == found.variance.dtype == torch.float32
    assert abs(float(found.mean) - truth) <= 0.04  # half of what such numbers are apart
    assert float(found.variance) == pytest.approx(spread, rel=1e-5)
