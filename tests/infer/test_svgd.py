"""GraphicalSVGD: its direction, its results, the paper's options."""

import itertools
from shutil import which

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyrograph.diagnostics import graphical_ksd, variance_ratio
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch
from pyrograph.infer import AdaGrad, Adam, GraphicalSVGD, RMSProp
from pyrograph.kernels import IMQ, RBF, Global, Linear, Mixed, Own, RandomNeighbors
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
    posterior = engine_of(positive_and_simplex, num_steps=250).run()
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
    ksd = graphical_ksd(engine.graph, engine.posterior(), engine.kernel)
    assert_close(history["ksd"][-1], ksd, rtol=1e-10, atol=0)


def test_the_default_kernel_is_additive_except_for_the_textbooks_and_the_papers():
    model, y = gaussian_chain()
    default = "0.7 * RBF(bandwidth='median') + 0.3 * Linear()"
    assert repr(engine_of(model, y).kernel) == default
    assert repr(engine_of(model, y, locality="global").kernel) == "RBF(bandwidth='median')"
    assert repr(engine_of(model, y, paper=True).kernel) == "RBF(bandwidth='median')"


def test_bandwidths_are_measured_at_first_and_then_now_and_then():
    model, y = gaussian_chain()
    engine = engine_of(model, y, refresh=4)
    seen = []
    for _ in range(13):
        engine.step()
        seen.append(torch.cat(engine.state_dict()["bandwidths"]["0"].unbind()))
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    assert changed == [True] * 4 + [False] * 3 + [True] + [False] * 3 + [True]


def test_a_direction_in_between_leaves_the_run_as_it_is():
    model, y = gaussian_chain()
    pyro.set_rng_seed(0)
    plain = engine_of(model, y, refresh=4)
    pyro.set_rng_seed(0)
    asked = engine_of(model, y, refresh=4)
    for _ in range(7):
        plain.step()
        asked.step()
        asked.direction(torch.randn(6, 5))
    assert torch.equal(plain.x, asked.x)


def test_decay_takes_each_step_in_part():
    model, y = gaussian_chain()
    engine = engine_of(model, y, decay="cosine", num_steps=4, optim=AdaGrad(lr=0.5))
    whole = AdaGrad(lr=0.5)
    memory = whole.start(engine.x)
    for share in (1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0.0):
        x, phi = engine.x, engine._direction
        there, memory = whole.step(x, phi, memory)
        engine.step()
        assert_close(engine.x, x + share * (there - x), rtol=1e-12, atol=1e-12)


def test_a_resumed_decay_equals_an_unbroken_one():
    model, y = gaussian_chain()
    options = {"decay": "cosine", "num_steps": 9, "optim": Adam(0.2)}
    pyro.set_rng_seed(0)
    unbroken = engine_of(model, y, **options).run()
    pyro.set_rng_seed(0)
    half = engine_of(model, y, **options)
    for _ in range(4):
        half.step()
    rest = engine_of(model, y, **options)
    rest.load_state_dict(half.state_dict())
    assert torch.equal(rest.run().x, unbroken.x)


def test_annealing_starts_along_the_tempered_density():
    model, y = gaussian_chain()
    engine = engine_of(model, y, anneal=4, optim=AdaGrad(lr=0.5), kernel=RBF())
    x, score = engine.x, engine.score
    tempered = engine.stein(x, 0.25 * score).direction
    first = AdaGrad(lr=0.5).step(x, tempered, AdaGrad().start(x))[0]
    ksd = graphical_ksd(engine.graph, x)
    engine.step()
    assert_close(engine.x, first)
    assert_close(engine.stein(x, score).discrepancy(), ksd)  # the history is that of p itself


def test_noise_leaves_a_gaussian_as_it_is():
    """Stein steps from draws of the target move little; Langevin's keep mean and variance."""

    def model():
        with pyro.plate("p", 200):
            pyro.sample("x", dist.Normal(1.0, 2.0))

    start = 1 + 2 * torch.randn(100, 200, generator=torch.Generator().manual_seed(0))
    pyro.set_rng_seed(0)
    quiet = AdaGrad(lr=1e-12)
    engine = engine_of(model, noise=0.2, optim=quiet, init=start, num_steps=50)
    x = engine.run().x
    assert float((x - start).square().mean()) > 1  # it did move
    assert float(x.mean()) == pytest.approx(1, abs=0.06)  # sd of the mean of 20000: 0.014
    assert float(x.var()) == pytest.approx(4, abs=0.25)  # sd 0.04; bias of eps: a factor 1.026


def test_noise_walks_along_the_tempered_density_while_it_is_tempered():
    """The mean of Langevin steps on N(0, 1)^b is (1 - step b) times what it was."""

    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    n, step, quiet = 1000, 0.1, AdaGrad(lr=1e-12)
    options = {"noise": step, "anneal": 4, "optim": quiet, "kernel": RBF()}
    start = 100 + torch.randn(n, 1, generator=torch.Generator().manual_seed(0))
    engine = engine_of(model, init=start, num_steps=6, **options)
    expected, error = float(start.mean()), 0.0
    for share in (0.25, 0.5, 0.75, 1.0, 1.0, 1.0):
        engine.step()
        expected *= 1 - step * share
        error += 2 * step / n
        assert float(engine.x.mean()) == pytest.approx(expected, abs=4 * error**0.5)


def test_few_particles_on_wide_blankets_are_told_of():
    """Variance of SVGD with a kernel on all of N(0, I_d): a known defect of that kernel."""

    def model():
        with pyro.plate("p", 40):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("all", 1e-6 * torch.tanh(x.sum()))  # everyone is in every blanket

    engine = engine_of(model, kernel=RBF(), num_particles=10, num_steps=300)
    posterior = engine.run()
    truth = float(posterior.x.var(0, correction=0).mean())
    assert truth < 0.4
    said = float(variance_ratio(engine.x, engine.score).mean())
    assert said == pytest.approx(truth, rel=0.05)
    assert "10 particles are too few for kernels on up to 40 numbers" in posterior.status
    assert "leave out kernel=" in posterior.status
    default = engine_of(model, num_particles=10, num_steps=300).run()
    assert float(default.x.var(0, correction=0).mean()) > 1.2 * truth
    assert "leave out kernel=" not in default.status
    travelling = engine_of(model, num_particles=10, num_steps=1, optim=AdaGrad(lr=5.0)).run()
    assert "have not settled" in travelling.status


def test_thinned_and_weighted_particles():
    model, y = gaussian_chain()
    options = {"num_particles": 30, "num_steps": 20}
    pyro.set_rng_seed(0)
    plain = engine_of(model, y, **options).run()
    pyro.set_rng_seed(0)
    thin = engine_of(model, y, thin=8, **options).run()
    pyro.set_rng_seed(0)
    weighted = engine_of(model, y, reweight=True, **options).run()
    assert thin.x.shape == (8, 5)
    assert all((row == plain.x).all(1).any() for row in thin.x)
    assert torch.equal(weighted.x, plain.x)
    assert float(weighted.weights.min()) >= 0
    assert float(weighted.weights.sum()) == pytest.approx(1)
    assert float(weighted.weights.max()) > 1 / 30 + 1e-3


def test_a_laplace_start_is_the_mode_with_conditional_widths():
    model, y = gaussian_chain()
    mean, covariance = chain_truth(y)
    pyro.set_rng_seed(0)
    x = engine_of(model, y, init="laplace", num_particles=4000).x
    assert x.shape == (4000, 5)
    assert_close(x.mean(0), mean, rtol=0, atol=0.05)
    width = covariance.inverse().diagonal().rsqrt()
    assert_close(x.std(0), width, rtol=0.06, atol=0)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"decay": "linear"}, "decay="),
        ({"refresh": 0}, "refresh"),
        ({"anneal": -1}, "anneal"),
        ({"noise": -1.0}, "noise"),
        ({"noise": torch.tensor([0.1, 0.2])}, "noise"),
        ({"thin": 0}, "thin"),
        ({"init": "map"}, "laplace"),
        ({"paper": True, "refresh": 3}, "paper=True"),
        ({"kernel": "rbf"}, "kernel"),
        ({"kernel": 0}, "kernel"),
        ({"kernel": RBF}, "kernel"),
        ({"locality": Global}, "locality"),
        ({"optim": AdaGrad}, "step rule"),
    ],
)
def test_options_out_of_range_are_refused(option, text):
    with pytest.raises(OptionError, match=text):
        GraphicalSVGD(positive_and_simplex, **option)


@pytest.mark.slow
@pytest.mark.skipif(which("c++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_a_compiled_run_is_the_same_run():
    model, y = gaussian_chain()
    pyro.set_rng_seed(0)
    plain = engine_of(model, y, num_steps=30).run()
    pyro.set_rng_seed(0)
    compiled = engine_of(model, y, num_steps=30, compile=True).run()
    assert_close(compiled.x, plain.x, rtol=1e-8, atol=1e-8)
    assert_close(compiled.history["ksd"], plain.history["ksd"], rtol=1e-7, atol=0)


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


def everything(engine):
    """What a run goes on from, as it stands."""
    state = engine.state_dict()
    return {
        "particles": engine.x,
        "score": engine.score,
        "stream": engine.generator.get_state(),
        "history": torch.stack(list(state["history"].values())),
        **state["memory"],
        **state["bandwidths"],
    }


def shortened(state):
    memory = {name: value[:2] for name, value in state["memory"].items()}
    return {**state, "memory": memory}


def breaking(state):
    return {**state, "particles": torch.full_like(state["particles"], torch.nan)}


@pytest.mark.parametrize(
    ("theirs", "spoil", "error", "text"),
    [
        ({"kernel": RBF() + IMQ()}, None, ShapeMismatch, "kernel= and locality="),
        ({"kernel": RBF() + Own(RBF())}, None, ShapeMismatch, "kernel= and locality="),
        ({"kernel": Linear()}, None, ShapeMismatch, "kernel= and locality="),
        ({"locality": "global"}, None, ShapeMismatch, "kernel= and locality="),
        ({"locality": Mixed("blanket", "global")}, None, ShapeMismatch, "kernel= and locality="),
        ({"optim": Adam()}, None, ShapeMismatch, "optim="),
        ({}, shortened, ShapeMismatch, r'"accumulated" with shape \[2, 5\].*optim='),
        ({}, breaking, NonFiniteDensity, "nan"),
    ],
)
def test_a_state_that_does_not_fit_leaves_the_engine_as_it_was(theirs, spoil, error, text):
    model, y = gaussian_chain()
    options = {"num_particles": 6, "noise": 0.1}
    other = engine_of(model, y, **options, **({"kernel": RBF()} | theirs))
    engine = engine_of(model, y, **options, kernel=RBF())
    for _ in range(3):
        other.step()
        engine.step()
    state = other.state_dict() if spoil is None else spoil(other.state_dict())
    before = {name: value.clone() for name, value in everything(engine).items()}
    with pytest.raises(error, match=text):
        engine.load_state_dict(state)
    for name, value in everything(engine).items():
        assert torch.equal(value, before[name]), name


def test_a_state_of_random_scopes_goes_on():
    """Their bandwidths have other shapes at each draw: nodes that see the whole graph are one."""
    model, y = gaussian_chain(3)
    options = {"num_particles": 6, "locality": RandomNeighbors(2)}
    first = engine_of(model, y, **options)
    first.step()
    state = first.state_dict()
    resumed = engine_of(model, y, **options)
    resumed.load_state_dict(state)
    first.step()
    resumed.step()
    assert torch.equal(resumed.x, first.x)


def test_misuse_is_refused():
    model, y = gaussian_chain()
    engine = engine_of(model, y)
    with pytest.raises(ShapeMismatch, match=r"expected \[n, 5\]"):
        engine.direction(torch.zeros(3, 4))
    with pytest.raises(ShapeMismatch, match=r"shape \[0, 5\]"):
        engine.direction(torch.zeros(0, 5))
    with pytest.raises(ShapeMismatch, match="particles are a list"):
        engine.direction([[0.0] * 5])
    with pytest.raises(OptionError, match="locality"):
        GraphicalSVGD(model, locality="nearby")
    with pytest.raises(OptionError, match="step rule"):
        GraphicalSVGD(model, optim=torch.optim.Adam)


@pytest.mark.gpu
def test_a_gpu_starts_thins_and_weights_alike():
    model, y = gaussian_chain()
    options = {"init": "laplace", "num_particles": 12, "num_steps": 3, "dtype": torch.float64}
    for extra in ({"thin": 4}, {"reweight": True}):
        pyro.set_rng_seed(0)
        here = engine_of(model, y, **options, **extra).run()
        pyro.set_rng_seed(0)
        there = engine_of(model, y, device="cuda", **options, **extra).run()
        assert_close(there.x.cpu(), here.x, rtol=0, atol=1e-6)
        assert_close(there.weights.cpu(), here.weights, rtol=0, atol=1e-6)
