"""GraphicalSVGD: its direction, its results, the paper's options."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyrograph.diagnostics import graphical_ksd
from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.infer import AdaGrad, GraphicalSVGD, RMSProp
from pyrograph.kernels import IMQ, RBF, Mixed, RandomNeighbors
from tests.kernels.reference import blankets, column_scopes, double_loop, drawn_scopes

from .programs import chain_truth, gaussian_chain, positive_and_simplex, sensors


def engine_of(model, *args, **options):
    return GraphicalSVGD(model, progress=False, **options).setup(*args)


def score_by_pyro(engine, x, args):
    """Scores from Pyro's own log density (all sites real, so no Jacobians)."""
    out = []
    for row in x:
        row = row.clone().requires_grad_()
        values = {k: v[0] for k, v in engine.graph.unflatten(row[None]).items()}
        conditioned = pyro.poutine.condition(engine.model, values)
        log_p = pyro.poutine.trace(conditioned).get_trace(*args).log_prob_sum()
        out.append(torch.autograd.grad(log_p, row)[0])
    return torch.stack(out)


@pytest.mark.parametrize("kernel", [RBF(), IMQ(), RBF(1.3)], ids=repr)
@pytest.mark.parametrize(
    "locality",
    ["blanket", "global", RandomNeighbors(1), Mixed("blanket", "global", weight=0.3)],
    ids=repr,
)
@pytest.mark.parametrize("problem", ["chain", "plane"])
def test_direction_equals_a_double_loop_on_the_program(problem, locality, kernel):
    model, args = sensors() if problem == "plane" else gaussian_chain()
    args = args if isinstance(args, tuple) else (args,)
    engine = engine_of(model, *args, kernel=kernel, locality=locality)
    x = torch.randn(4, engine.graph.dim)
    truth = double_loop(x, score_by_pyro(engine, x, args), kernel, drawn_scopes(engine.stein))
    assert_close(engine.direction(x), truth.direction, rtol=0, atol=1e-10)


def test_the_scopes_are_the_graphs_closed_blankets():
    model, args = sensors()
    engine = engine_of(model, *args)
    ((_, scopes),) = drawn_scopes(engine.stein)
    path = [{0, 1}, {0, 1, 2}, {1, 2, 3}, {2, 3}]
    assert blankets(engine.stein.layout) == path
    assert scopes == column_scopes(engine.stein.layout, path)


def test_one_particle_climbs_the_density():
    model, y = gaussian_chain()
    engine = engine_of(model, y, num_particles=1, optim=AdaGrad(lr=0.5), num_steps=400)
    x = torch.randn(1, 5)
    assert_close(engine.direction(x), score_by_pyro(engine, x, (y,)))
    posterior = engine.run()
    assert_close(posterior.x[0], chain_truth(y)[0], rtol=0, atol=1e-6)


def test_the_default_optimiser_reaches_means_from_the_default_start():
    # unit-scale model whose means are up to eight standard deviations from the start
    target = torch.tensor([8.0, -5.0, 0.5])

    def model():
        with pyro.plate("p", 3):
            pyro.sample("x", dist.Normal(target, 1.0))

    posterior = engine_of(model, num_particles=20).run()
    marginal = posterior.marginal("x")
    assert_close(marginal.mean, target, rtol=0, atol=0.02)
    assert_close(marginal.variance, torch.ones(3), rtol=0.15, atol=0)


def test_means_and_variances_of_a_chain():
    model, y = gaussian_chain()
    mean, covariance = chain_truth(y)
    posterior = engine_of(model, y, num_steps=500).run()
    x = posterior.x
    assert_close(x.mean(0), mean, rtol=0, atol=0.05)
    # n = 50 particles of a finite system are somewhat narrow: measured .87 to .93
    ratio = x.var(0, unbiased=False) / covariance.diagonal()
    assert ((ratio > 0.8) & (ratio < 1.0)).all()


def test_constrained_sites_come_out_in_their_supports():
    posterior = engine_of(positive_and_simplex, num_steps=500).run()
    s, w, u = (posterior.particles[name] for name in "swu")
    assert (s > 0).all() and (u.abs() < 1).all()
    assert_close(w.sum(-1), torch.ones(50))
    assert float(s.mean()) == pytest.approx(1.5, abs=0.1)  # Gamma(3, 2)
    assert_close(w.mean(0), torch.tensor([2.0, 3.0, 4.0]) / 9, rtol=0, atol=0.03)
    assert posterior.marginal("u").mean.shape == (2,)


def test_the_history_is_that_of_the_particles_held():
    model, y = gaussian_chain()
    engine = engine_of(model, y)
    for _ in range(3):
        objective = engine.step()
    history = engine.posterior().history
    assert set(history) == {"objective", "ksd"}
    assert history["objective"].shape == history["ksd"].shape == (3,)
    log_p = engine.graph.density(engine.x).mean()
    assert objective == pytest.approx(float(log_p))
    assert float(history["objective"][-1]) == objective
    ksd = graphical_ksd(engine.graph, engine.posterior())
    assert_close(history["ksd"][-1], ksd, rtol=1e-10, atol=0)


def test_the_discrepancy_falls():
    model, y = gaussian_chain()
    ksd = engine_of(model, y, num_steps=200).run().history["ksd"]
    assert float(ksd[-1]) < 0.01 * float(ksd[0])


def test_paper_options():
    model, y = gaussian_chain()
    engine = engine_of(model, y, paper=True)
    assert engine.num_steps == 5000
    assert engine.optim == RMSProp(lr=5e-3, decay=0.9, eps=1e-6)
    assert isinstance(engine.kernel, RBF) and engine.kernel.bandwidth == "median"
    assert 4 < float(engine.x.abs().max()) < 5
    assert engine_of(model, y, paper=True, num_steps=7).num_steps == 7
    for clash in ({"kernel": IMQ()}, {"optim": AdaGrad()}):
        with pytest.raises(OptionError, match="paper=True"):
            GraphicalSVGD(model, paper=True, **clash)


def test_random_scopes_are_redrawn_every_step():
    model, y = gaussian_chain(12)
    engine = engine_of(model, y, locality=RandomNeighbors(1))
    seen = []
    for _ in range(3):
        seen.append(drawn_scopes(engine.stein))
        engine.step()
    assert seen[0] != seen[1] and seen[1] != seen[2]


def test_misuse_is_refused():
    model, y = gaussian_chain()
    engine = engine_of(model, y)
    with pytest.raises(ShapeMismatch, match=r"expected \[n, 5\]"):
        engine.direction(torch.zeros(3, 4))
    with pytest.raises(OptionError, match="locality"):
        GraphicalSVGD(model, locality="nearby")
    with pytest.raises(OptionError, match="step rule"):
        GraphicalSVGD(model, optim=torch.optim.Adam)
