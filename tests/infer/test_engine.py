"""What every particle engine promises: options, seeds, checkpoints, stopping, errors."""

import copy
import functools
import io
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.nn import PyroModule
from scipy.special import iv
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import (
    ConvergenceWarning,
    InferenceError,
    InvalidProgram,
    NonFiniteDensity,
    OptionError,
    PyrographError,
    ShapeMismatch,
    UnsupportedSite,
    ZeroMass,
)
from pyrograph.infer import AdaGrad, Adam, GraphicalSVGD, Langevin, RMSProp, fit
from pyrograph.kernels import RandomNeighbors

from .programs import gaussian_chain, overflowing, positive_and_simplex

ENGINES = {
    "svgd": lambda model, **o: GraphicalSVGD(model, **o),
    "svgd adam": lambda model, **o: GraphicalSVGD(model, optim=Adam(), **o),
    "svgd rmsprop": lambda model, **o: GraphicalSVGD(model, optim=RMSProp(), **o),
    "svgd random": lambda model, **o: GraphicalSVGD(model, locality=RandomNeighbors(1), **o),
    "svgd rules": lambda model, **o: GraphicalSVGD(model, refresh=4, anneal=8, noise=0.01, **o),
    "langevin": lambda model, **o: Langevin(model, step_size=0.01, **o),
}
every_engine = pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES)


def run(make, seed=0, **options):
    model, y = gaussian_chain()
    pyro.set_rng_seed(seed)
    return make(model, progress=False, num_particles=7, **options).run(y)


@every_engine
def test_runs_follow_the_seed(make):
    first, second, other = (run(make, seed, num_steps=5).x for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def saved_and_loaded(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("set_up_first", [False, True])
@every_engine
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(make, set_up_first, dtype):
    options = {"dtype": dtype, "progress": False, "num_particles": 7}
    model, y = gaussian_chain()
    pyro.set_rng_seed(1)
    unbroken = make(model, num_steps=12, **options).run(y)
    pyro.set_rng_seed(1)
    half = make(model, num_steps=5, **options)
    half.run(y)
    state = saved_and_loaded(half.state_dict())
    pyro.set_rng_seed(99)
    rest = make(model, num_steps=12, **options)
    if set_up_first:
        rest.setup(y)
    rest.load_state_dict(state)
    resumed = rest.run(y)
    assert resumed.x.dtype == dtype
    assert torch.equal(resumed.x, unbroken.x)
    for name in unbroken.history:
        assert torch.equal(resumed.history[name], unbroken.history[name]), name


@every_engine
def test_a_loaded_engine_stands_where_the_saved_one_stood(make):
    model, y = gaussian_chain()
    engine = make(model, progress=False, num_particles=7, num_steps=3)
    engine.run(y)
    other = make(model, progress=False, num_particles=7).setup(y)
    other.load_state_dict(engine.state_dict())
    assert torch.equal(other.x, engine.x)
    assert other.num_done == 3
    if isinstance(engine, GraphicalSVGD):
        probe = torch.randn(4, 5)
        assert torch.equal(other.direction(probe), engine.direction(probe))


def test_a_state_is_not_changed_by_going_on():
    model, y = gaussian_chain()
    engine = GraphicalSVGD(model, progress=False).setup(y)
    engine.step()
    state = engine.state_dict()
    kept = state["particles"].clone()
    engine.step()
    assert torch.equal(state["particles"], kept)


def test_a_state_of_another_graph_or_of_other_options_is_refused():
    model, y = gaussian_chain()
    state = GraphicalSVGD(model, progress=False, num_particles=7).setup(y).state_dict()

    def load(program, args, **options):
        engine = GraphicalSVGD(program, progress=False, **options)
        engine.load_state_dict(state)
        engine.setup(*args)

    with pytest.raises(ShapeMismatch, match='another graph: site "x5"'):
        load(gaussian_chain(6)[0], (torch.zeros(6),), num_particles=7)
    with pytest.raises(ShapeMismatch, match="num_particles="):
        load(model, (y,), num_particles=8)
    with pytest.raises(ShapeMismatch, match="dtype="):
        load(model, (y,), num_particles=7, dtype=torch.float32)
    with pytest.raises(ShapeMismatch, match="optim="):
        load(model, (y,), num_particles=7, optim=Adam())


def test_a_state_waits_until_a_setup_takes_it():
    model, y = gaussian_chain()
    saved = GraphicalSVGD(model, progress=False, num_particles=7, num_steps=5)
    saved.run(y)
    engine = GraphicalSVGD(model, progress=False, num_particles=7, num_steps=8)
    engine.load_state_dict(saved.state_dict())
    with pytest.raises(IndexError):
        engine.run(y[:2])
    other = GraphicalSVGD(lambda y: None, progress=False, num_particles=7)
    other.load_state_dict(saved.state_dict())
    with pytest.raises(ShapeMismatch, match="another graph"):
        other.model = gaussian_chain(6)[0]
        other.setup(torch.zeros(6))
    other.model = model
    for loaded in (engine, other):
        loaded.setup(y)
        assert loaded.num_done == 5
        assert torch.equal(loaded.x, saved.x)
        assert loaded.setup(y).num_done == 0  # once


def test_run_goes_on_to_num_steps_in_total():
    model, y = gaussian_chain()
    engine = GraphicalSVGD(model, num_steps=4, progress=False)
    for _ in range(3):
        engine.step(y)
    assert len(engine.run(y).history["objective"]) == 4
    assert len(engine.run().history["objective"]) == 4


def test_two_engines_on_one_model_share_nothing():
    model, y = gaussian_chain()
    pyro.set_rng_seed(1)
    alone = GraphicalSVGD(model, num_steps=6, progress=False).run(y).x
    pyro.set_rng_seed(1)
    first = GraphicalSVGD(model, num_steps=6, progress=False).setup(y)
    second = GraphicalSVGD(model, num_steps=6, progress=False).setup(y)
    for _ in range(6):
        second.step()
        first.step()
    assert torch.equal(first.x, alone)
    assert not torch.equal(first.x, second.x)


def test_new_arguments_need_a_new_setup():
    model, y = gaussian_chain()
    engine = GraphicalSVGD(model, num_steps=1, progress=False)
    engine.run(y)
    engine.run(y.clone())  # equal values are the same arguments
    with pytest.raises(InferenceError, match="other model arguments"):
        engine.step(y + 1)
    engine.setup(y + 1)
    assert engine.num_done == 0


@pytest.mark.parametrize("keyword_first", [True, False])
def test_arguments_by_keyword_are_those_by_position(keyword_first):
    model, y = gaussian_chain()
    engine = GraphicalSVGD(model, num_steps=1, progress=False)
    calls = [lambda y: engine.step(y=y), engine.step]
    first, second = calls if keyword_first else calls[::-1]
    first(y)
    second(y.clone())
    with pytest.raises(InferenceError, match="other model arguments"):
        second(y + 1)


def chain_with_options(y, flag=True, *, scale=1.0):
    x = pyro.sample("x", dist.Normal(0.0, scale if flag else 2.0))
    with pyro.plate("p", len(y)):
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)


class ChainModule(PyroModule):
    def forward(self, y, flag=True, *, scale=1.0):
        chain_with_options(y, flag, scale=scale)


SIGNATURES = {
    "function": lambda: chain_with_options,
    "handled": lambda: poutine.scale(scale=2.0)(chain_with_options),
    "handled twice": lambda: poutine.mask(mask=True)(poutine.scale(scale=2.0)(chain_with_options)),
    "module": ChainModule,
    "handled module": lambda: poutine.scale(scale=2.0)(ChainModule()),
}


@pytest.mark.parametrize("make", SIGNATURES.values(), ids=SIGNATURES)
def test_one_call_written_in_several_ways_is_one_set_of_arguments(make):
    y = torch.tensor([0.5, 1.0])
    engine = GraphicalSVGD(make(), num_particles=5, progress=False).setup(y)
    engine.step(y=y)
    engine.step(y, True)
    engine.step(flag=True, y=y.clone(), scale=1.0)
    assert engine.num_done == 3
    for other in ({"flag": False}, {"scale": 2.0}):
        with pytest.raises(InferenceError, match="other model arguments"):
            engine.step(y, **other)


def test_arguments_that_changed_in_place_need_a_new_setup():
    model, y = gaussian_chain()
    y = y.clone()
    engine = GraphicalSVGD(model, num_steps=2, progress=False)
    engine.step(y)
    y += 1
    with pytest.raises(InferenceError, match="changed in place"):
        engine.run(y)
    engine.run()  # goes on with what it was set up for


@pytest.mark.parametrize(
    "observed, error, text",
    [
        (2.0, ZeroMass, r"reads? no latent"),
        (math.nan, NonFiniteDensity, '"y" is observed to be nan'),
    ],
    ids=["zero", "nan"],
)
@pytest.mark.parametrize("infer", [Langevin, pg.BP, pg.VMP, pg.QBethe, pg.DPVI])
@pytest.mark.filterwarnings("ignore:Encountered NaN")  # Pyro saw it too
def test_an_impossible_observation_that_reads_no_latent_is_refused(infer, observed, error, text):
    def model():
        if infer is pg.DPVI:
            pyro.sample("x", dist.Bernoulli(0.3))
        else:
            pyro.sample("x", dist.Normal(0.0, 1.0))
        y = dist.Uniform(0.0, 1.0) if observed == 2.0 else dist.Normal(0.0, 1.0)
        y._validate_args = False
        pyro.sample("y", y, obs=torch.tensor(observed))

    with pytest.raises(error, match=text):
        fit(model, infer=infer, num_steps=2, progress=False)


def test_fit_is_the_engines_run():
    model, y = gaussian_chain()
    pyro.set_rng_seed(1)
    ours = fit(model, (y,), num_steps=5, progress=False)
    pyro.set_rng_seed(1)
    theirs = GraphicalSVGD(model, num_steps=5, progress=False).run(y)
    assert torch.equal(ours.x, theirs.x)
    chains = fit(model, model_kwargs={"y": y}, infer=Langevin, num_steps=2, progress=False)
    assert set(chains.history) == {"objective"}


def test_fit_takes_anything_with_run():
    class Recorder:
        def __init__(self, model, **options):
            self.model, self.options = model, options

        def run(self, *args, **kwargs):
            return self.model, self.options, args, kwargs

    result = fit("model", (1,), {"k": 2}, infer=Recorder, depth=3)
    assert result == ("model", {"depth": 3}, (1,), {"k": 2})


# Stopping.


def test_a_met_criterion_stops_the_run():
    model, y = gaussian_chain()
    posterior = GraphicalSVGD(model, tol=0.05, progress=False).run(y)
    assert posterior.converged is True
    assert posterior.status == "converged"
    assert float(posterior.history["ksd"][-1]) <= 0.05
    assert (posterior.history["ksd"][:-1] > 0.05).all()


def test_an_unmet_criterion_warns_and_says_what_to_do():
    model, y = gaussian_chain()
    engine = GraphicalSVGD(model, tol=1e-9, num_steps=5, progress=False)
    with pytest.warns(ConvergenceWarning, match="num_steps"):
        posterior = engine.run(y)
    assert posterior.converged is False
    assert "tol=1e-09" in posterior.status and "num_particles" in posterior.status


def test_without_a_criterion_all_steps_are_run_and_the_status_says_so():
    posterior = run(GraphicalSVGD, num_steps=5)
    assert posterior.converged is False
    assert "not tested" in posterior.status and "tol=" in posterior.status


# Errors.


@pytest.mark.parametrize("engine", [GraphicalSVGD, Langevin])
def test_a_discrete_site_is_refused_with_two_ways_out(engine):
    def model():
        p = pyro.sample("p", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("data", 4):
            pyro.sample("z", dist.Categorical(p), infer={"enumerate": "parallel"})

    text = (
        rf'site "z" \(Categorical, 3 states\) is discrete; {engine.__name__} moves particles along '
        r"gradients and needs continuous sites\. Use an engine for discrete and mixed programs "
        r'\(pg\.BP, pg\.EP, pg\.VMP\), or sum "z" out in the model\.'
    )
    with pytest.raises(UnsupportedSite, match=text):
        fit(model, infer=engine)


def test_the_discrete_site_is_found_before_the_program_is_traced(monkeypatch):
    def model():
        pyro.sample("k", dist.Poisson(3.0))

    monkeypatch.setattr("pyrograph.infer.base.trace_graph", None)
    with pytest.raises(UnsupportedSite, match=r'site "k" \(Poisson\) is discrete'):
        fit(model)


def test_observed_discrete_sites_and_subsample_indices_are_fine():
    def model():
        p = pyro.sample("p", dist.Beta(1.0, 1.0))
        with pyro.plate("data", 3):
            pyro.sample("y", dist.Bernoulli(p), obs=torch.tensor([0.0, 1.0, 1.0]))

    assert fit(model, num_steps=2, progress=False).particles["p"].shape == (50,)


def test_a_site_whose_bounds_depend_on_another_is_sampled_within_them():
    def model():
        top = pyro.sample("top", dist.Uniform(1.0, 2.0))
        pyro.sample("x", dist.Uniform(0.0, top))

    particles = fit(model, num_steps=50, progress=False).particles
    assert (particles["x"] > 0).all() and (particles["x"] < particles["top"]).all()


def test_a_program_without_latents_is_refused():
    with pytest.raises(InferenceError, match="no latent site"):
        fit(lambda: pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0)))


def test_a_start_where_the_density_breaks_down_names_factor_and_particle():
    start = torch.zeros(4, 3)
    start[2, 1] = 8.0  # beyond the wall of node 1
    engine = Langevin(overflowing, init=start, num_particles=4, progress=False)
    with pytest.raises(NonFiniteDensity, match=r'factor "wall".*x\[1\].*at particle 2'):
        engine.setup()
    with pytest.raises(InferenceError, match="not set up"):
        engine.posterior()


def test_a_run_that_breaks_down_keeps_the_last_good_state():
    # steps of noise 2 wide, until a chain hits the wall
    pyro.set_rng_seed(0)
    engine = Langevin(overflowing, num_particles=50, step_size=2.0, progress=False)
    with pytest.raises(NonFiniteDensity, match=r'factor "(wall|x)"\[1\].*at particle \d+'):
        engine.run()
    posterior = engine.posterior()
    assert torch.isfinite(engine.graph.density(posterior.x)).all()
    assert len(posterior.history["objective"]) == engine.num_done
    assert torch.isfinite(posterior.history["objective"]).all()


@pytest.mark.parametrize("make", [ENGINES["svgd adam"], ENGINES["langevin"]])
def test_a_broken_step_is_undone(make, monkeypatch):
    model, y = gaussian_chain()
    engine = make(model, num_particles=4, num_steps=10, progress=False).setup(y)
    for _ in range(3):
        engine.step()
    before = saved_and_loaded(engine.state_dict())
    posterior = engine.posterior()
    move = type(engine).move

    def leap(self, x, score):
        x = move(self, x, score)
        return x * torch.tensor([1.0, 1.0, torch.nan, 1.0, 1.0])

    with monkeypatch.context() as patch:
        patch.setattr(type(engine), "move", leap)
        with pytest.raises(NonFiniteDensity, match=r"x2.* at particle 0"):
            engine.run()
    after = engine.state_dict()
    assert torch.equal(engine.posterior().x, posterior.x)
    assert engine.num_done == 3
    assert torch.equal(after["generator"], before["generator"])
    for name, value in before["memory"].items():
        assert torch.equal(after["memory"][name], value)
    # and goes on as if nothing had happened
    assert len(engine.run().history["objective"]) == 10


@pytest.mark.parametrize("name", ["VMP", "QBethe", "DPVI", "SequentialDPVI", "GraphicalSVGD"])
def test_a_setup_that_fails_leaves_the_engine_as_it_was(name):
    labels = pg.distributions.ChineseRestaurant

    def model(y, prior, broken=False):
        z = pyro.sample("z", prior)
        if isinstance(prior, labels):
            component = pg.distributions.DirichletCategorical(1.0, 2)
            pyro.sample("y", pg.distributions.CollapsedMixture(z, component), obs=y)
        else:
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)
        if broken:
            pyro.sample("w", dist.Poisson(2.0).mask(False))

    first = {"GraphicalSVGD": dist.Normal(0.0, 1.0)}.get(name, dist.Bernoulli(0.3))
    runs = [(torch.tensor(0.7), first)]
    if "DPVI" in name:
        runs.append((torch.tensor([0, 1, 1]), labels(torch.tensor(1.0), 3)))
    for args in runs:
        engine = getattr(pg, name)(model, num_steps=5, progress=False)
        engine.run(*args)
        before, tol = engine.posterior(), engine.tol
        for wrong in [(torch.tensor(0.7), first, True), (torch.tensor(math.nan), first)]:
            with pytest.raises(PyrographError):
                engine.setup(*wrong)
            now = engine.posterior()
            assert engine.num_done and engine.tol == tol and now.status == before.status
            for site, value in now.sample(0).items():
                assert value.shape == before.sample(0)[site].shape
            engine.load_state_dict(engine.state_dict())
        engine.run(*args)  # these are still its arguments


def test_an_engine_that_is_not_set_up_says_so():
    engine = GraphicalSVGD(positive_and_simplex)
    for call in (lambda: engine.graph, engine.posterior, engine.state_dict):
        with pytest.raises(InferenceError, match="not set up"):
            call()


BAD_OPTIONS = {
    "unknown": ({"num_particle": 3}, "Did you mean 'num_particles'.*num_steps.*tol"),
    "steps": ({"num_steps": 2.5}, "num_steps=2.5"),
    "negative steps": ({"num_steps": -1}, "num_steps=-1"),
    "no particles": ({"num_particles": 0}, "num_particles=0"),
    "tol": ({"tol": 0.0}, "tol=0.0"),
    "dtype": ({"dtype": torch.int64}, "dtype=torch.int64"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
@pytest.mark.parametrize("engine", [GraphicalSVGD, Langevin])
def test_options_are_checked(engine, name):
    options, text = BAD_OPTIONS[name]
    with pytest.raises(OptionError, match=text):
        engine(positive_and_simplex, **options)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_numbers_of_numpy_are_numbers(kind):
    model, y = gaussian_chain()
    posterior = fit(model, (y,), num_steps=kind(3), num_particles=kind(5), progress=False)
    assert posterior.x.shape == (5, 5) and len(posterior.history["objective"]) == 3
    assert Langevin(model, step_size=np.float32(0.5)).step_size == 0.5
    for wrong in (True, np.float64(2.0), np.int64(-1)):
        with pytest.raises(OptionError, match="num_steps="):
            GraphicalSVGD(model, num_steps=wrong)


# Angles.

PERIODIC = {
    "plain": lambda: dist.VonMises(3.0, 2.0),
    "event": lambda: dist.VonMises(torch.zeros(2), 2.0).to_event(1),
    "moved": lambda: dist.TransformedDistribution(
        dist.VonMises(3.0, 2.0), dist.transforms.AffineTransform(1.0, 2.0)
    ),
    "mixture": lambda: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)), dist.VonMises(torch.tensor([0.0, 3.0]), 2.0)
    ),
    "derived": lambda: type("ShiftedVonMises", (dist.VonMises,), {})(3.0, 2.0),
    "pair": lambda: dist.SineBivariateVonMises(0.0, 0.0, 1.0, 1.0, 0.1),
}


@pytest.mark.parametrize("infer", [GraphicalSVGD, Langevin, pg.EP, pg.BP, pg.VMP, pg.QBethe])
@pytest.mark.parametrize("prior", PERIODIC.values(), ids=PERIODIC)
def test_an_angle_is_refused_by_name(infer, prior):
    text = rf'site "t" .*VonMises.*periodic, and {infer.__name__} needs.*atan2'
    with pytest.raises(UnsupportedSite, match=text):
        fit(lambda: pyro.sample("t", prior()), infer=infer, progress=False)


def test_an_angle_of_a_point_of_the_plane_has_the_moments_of_its_distribution():
    # what the message says to write; E cos(t - mu) = I_1(k) / I_0(k), E sin(t - mu) = 0
    def model():
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        t = torch.atan2(z[..., 1], z[..., 0])
        pyro.factor("t", dist.VonMises(3.0, 2.0).log_prob(t))

    z = fit(model, num_particles=100, num_steps=500, progress=False).particles["z"]
    t = torch.atan2(z[:, 1], z[:, 0])
    assert float((t - 3).cos().mean()) == pytest.approx(iv(1, 2.0) / iv(0, 2.0), abs=0.03)
    assert float((t - 3).sin().mean()) == pytest.approx(0, abs=0.03)


# Inference mode.

SLOPE = torch.tensor(2.0, dtype=torch.float64)


def line(y):
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(SLOPE * x, 1.0), obs=y)


def coin(y):
    x = pyro.sample("x", dist.Bernoulli(0.3))
    pyro.sample("y", dist.Normal(SLOPE * x, 1.0), obs=y)


# of x ~ N(0, 1), y ~ N(2 x, 1) at y = 4: precision 5, mean 8 / 5; of the coin by Bayes' rule
LINE = (1.6, 0.2)
ODDS = 0.3 / 0.7 * math.exp((4.0**2 - (4.0 - 2.0) ** 2) / 2)
COIN = (ODDS / (1 + ODDS), ODDS / (1 + ODDS) ** 2)
ADAM = {"num_steps": 250, "lr": 0.1}
LBFGS = {"optimizer": "lbfgs", "num_steps": 40, "hold_weights": 10, "tol": 1e-6}
INSIDE = {
    "GraphicalSVGD": (GraphicalSVGD, line, LINE, {"num_steps": 400}),
    "laplace": (GraphicalSVGD, line, LINE, {"num_steps": 200, "init": "laplace"}),
    "Langevin": (Langevin, line, None, {"num_steps": 5}),
    "BP": (pg.BP, line, LINE, {}),
    "EP": (pg.EP, line, LINE, {}),
    "VMP": (pg.VMP, line, LINE, {}),
    "QBethe": (pg.QBethe, line, LINE, {"num_components": 2, **ADAM}),
    "QBethe L-BFGS": (pg.QBethe, line, LINE, {"num_components": 2, **LBFGS}),
    "QBethe coin": (pg.QBethe, coin, COIN, {"num_components": 2, **ADAM}),
    "DPVI": (pg.DPVI, coin, COIN, {}),
    "BBIS": (pg.BBIS, coin, COIN, {"samples": {"x": torch.tensor([0.0, 1.0])}}),
    "BBIS line": (pg.BBIS, line, LINE, {"samples": {"x": torch.linspace(-1.0, 4.0, 60).double()}}),
}


@functools.cache
def moments_outside(name):
    infer, model, _, options = INSIDE[name]
    pyro.set_rng_seed(0)
    y = torch.tensor(4.0)
    outside = fit(model, (y,), infer=infer, progress=False, **options).marginal("x")
    return float(outside.mean), float(outside.variance)


@pytest.mark.parametrize("made_inside", [False, True])
@pytest.mark.parametrize("name", INSIDE)
def test_inference_mode_changes_nothing(name, made_inside):
    infer, model, truth, options = INSIDE[name]
    y = torch.tensor(4.0)
    pyro.set_rng_seed(0)
    with torch.inference_mode():
        y = y.clone() if made_inside else y
        posterior = fit(model, (y,), infer=infer, progress=False, **options)
        inside = posterior.marginal("x")
        moments = float(inside.mean), float(inside.variance)
        guide = posterior.guide()
        guide()
    assert moments == pytest.approx(moments_outside(name))
    if truth is not None:
        assert moments == pytest.approx(truth, rel=0.05)
    # what was made there can be trained here, as its parameters can be differentiated
    SVI(lambda: model(y), guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step()


@pytest.mark.parametrize("infer", [GraphicalSVGD, Langevin, pg.EP, pg.VMP, pg.QBethe])
def test_a_state_loaded_in_inference_mode_is_gone_on_from(infer):
    y = torch.tensor(4.0)
    half = infer(line, num_steps=3, progress=False)
    half.run(y)
    state = half.state_dict()
    means = []
    for inside in (False, True):
        rest = infer(line, num_steps=6, progress=False)
        with torch.inference_mode(inside):
            rest.load_state_dict(saved_and_loaded(state))
        means.append(rest.run(y).marginal("x").mean)
    assert_close(*means)


# dtype and device.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_follows_the_model_unless_given(dtype):
    model, y = gaussian_chain()
    y = y.to(dtype)
    options = {"num_steps": 2, "progress": False}
    assert GraphicalSVGD(model, **options).run(y).x.dtype == dtype
    other = torch.float32 if dtype == torch.float64 else torch.float64
    posterior = GraphicalSVGD(model, dtype=other, **options).run(y)
    assert posterior.x.dtype == posterior.particles["x0"].dtype == other


def test_float32_and_float64_start_alike_and_stay_close():
    runs = [run(ENGINES["svgd"], num_steps=10, dtype=d).x for d in (torch.float32, torch.float64)]
    assert_close(runs[0].double(), runs[1], rtol=0, atol=1e-3)


@pytest.mark.gpu
@every_engine
def test_a_gpu_gives_the_same_run_from_the_same_start(make):
    """A program on a GPU draws other numbers than on the CPU, so the start is handed over."""
    model, y = gaussian_chain()
    options = {"progress": False, "num_particles": 7, "num_steps": 5, "dtype": torch.float64}
    engine = make(model, **options).setup(y)
    start = engine.state_dict()
    here = engine.run(y)
    for args, device in (((y,), "cuda"), ((y.cuda(),), None), ((y.cuda(),), "cpu")):
        other = make(model, device=device, **options)
        other.load_state_dict(start)
        there = other.run(*args)
        assert there.x.device.type == ("cpu" if device == "cpu" else "cuda")
        assert_close(there.x.cpu(), here.x, rtol=0, atol=1e-9)


@pytest.mark.gpu
def test_a_state_of_the_cpu_goes_on_on_a_gpu():
    model, y = gaussian_chain()
    engine = GraphicalSVGD(model, num_steps=3, progress=False)
    engine.run(y)
    other = GraphicalSVGD(model, num_steps=6, progress=False, device="cuda")
    other.load_state_dict(engine.state_dict())
    assert len(other.run(y).history["ksd"]) == 6


def test_the_progress_bar_can_be_shown(capsys):
    model, y = gaussian_chain()
    GraphicalSVGD(model, num_steps=3, optim=AdaGrad(0.1)).run(y)
    shown = capsys.readouterr().err
    assert "GraphicalSVGD" in shown and "3/3" in shown
    GraphicalSVGD(model, num_steps=3, progress=False).run(y)
    assert capsys.readouterr().err == ""


def test_the_public_names_are_exported():
    for name in ("GraphicalSVGD", "Langevin", "fit"):
        assert hasattr(pg, name)


def noisy(y):
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    y = torch.as_tensor(y, dtype=torch.get_default_dtype())
    pyro.sample("y", dist.Normal(x, 1.0).expand(y.shape), obs=y)


@pytest.mark.parametrize("kind", ["array", "list", "dict"])
def test_arrays_and_containers_count_by_their_values(kind):
    def model(y):
        noisy(y["y"] if kind == "dict" else y)

    def given(first):
        y = [first, 2.0]
        return {"array": np.array(y), "list": y, "dict": {"y": y}}[kind]

    y = given(1.0)
    engine = pg.EP(model, progress=False)
    once = engine.run(y).marginal("x").mean
    assert_close(engine.run(given(1.0)).marginal("x").mean, once)
    if kind == "dict":
        y["y"][0] = 5.0
    else:
        y[0] = 5.0
    with pytest.raises(InferenceError, match="changed in place"):
        engine.run(y)


def test_equal_data_with_missing_values_are_the_same():
    def model(y):
        noisy(y[~torch.as_tensor(y).isnan()])

    y = torch.tensor([1.0, torch.nan])
    for one, other in ((y, y.clone()), (y.numpy(), y.numpy().copy())):
        engine = pg.EP(model, progress=False)
        engine.run(one)
        engine.run(other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(OptionError, match="no CUDA device"):
        pg.EP(noisy, device="cuda")


@pytest.mark.parametrize("device", ["mps", "meta"])
def test_a_device_that_holds_no_tensors_is_refused(device):
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("there is one")
    with pytest.raises(OptionError, match=f"device='{device}': no tensor"):
        pg.EP(noisy, device=device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, "float64"])
def test_a_precision_other_than_single_and_double_is_refused(dtype):
    with pytest.raises(OptionError, match=r"torch\.float32 or torch\.float64"):
        pg.EP(noisy, dtype=dtype)


def test_arguments_are_a_tuple_and_a_dict():
    with pytest.raises(OptionError, match=r"model_args is a Tensor.*write \(value,\)"):
        fit(noisy, torch.tensor(1.0))
    with pytest.raises(OptionError, match="model_kwargs is a list"):
        fit(noisy, (), [1])


def test_a_start_is_the_messages_of_an_earlier_engine():
    model, y = gaussian_chain()
    state = pg.EP(model, progress=False).setup(y).state_dict()
    for wrong in (3, state):
        with pytest.raises(OptionError, match=r'init is .*state_dict\(\)\["messages"\]'):
            pg.EP(noisy, init=wrong)


@every_engine
def test_a_state_without_its_parts_is_refused_and_nothing_is_taken_over(make):
    model, y = gaussian_chain()
    options = {"progress": False, "num_particles": 7, "num_steps": 3}
    engine = make(model, **options)
    engine.run(y)
    other = make(model, **options)
    other.run(y)
    state, before = other.state_dict(), engine.state_dict()
    damaged = [None, 3, "state", *({**state, name: None} for name in state)]
    damaged += [
        {**state, name: dict.fromkeys(part)}
        for name, part in state.items()
        if isinstance(part, dict) and part
    ]
    damaged += [{**state, "history": {"objective": [1.0]}}, {**state, "generator": "cpu"}]
    for given in damaged:
        with pytest.raises(ShapeMismatch, match="state"):
            engine.load_state_dict(given)
    for name, value in before.items():
        assert_close(engine.state_dict()[name], value, rtol=0, atol=0)
    for given in (None, 3):
        with pytest.raises(ShapeMismatch, match="state"):  # before it is set up, too
            make(model, **options).load_state_dict(given)
    engine.load_state_dict(state)
    assert torch.equal(engine.x, other.x)


@pytest.mark.parametrize("name", ["BP", "EP", "VMP", "TRW", "QBethe", "DPVI", "SequentialDPVI"])
def test_engines_of_other_kinds_that_are_not_set_up_say_so(name):
    def model(y=None):
        x = pyro.sample("x", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)

    engine = getattr(pg, name)(model, progress=False)
    assert not engine.converged and not engine.history
    assert "0 steps" in engine.status
    assert "0 steps" in getattr(pg, name)(model, tol=1e-3, progress=False).status
    with pytest.raises(InferenceError, match="is not set up"):
        engine.posterior()
    for what in ("log_evidence", "evidence_kind"):
        if hasattr(type(engine), what):
            with pytest.raises(InferenceError, match="is not set up"):
                found = getattr(engine, what)
                found()
    with pytest.raises(InvalidProgram):
        engine.run(torch.tensor(math.nan))
    assert "0 steps" in engine.status


@pytest.mark.parametrize("infer", [pg.BBIS, pg.CollapsedBBIS])
def test_weights_of_an_engine_that_is_not_set_up_are_not_claimed(infer):
    engine = infer(lambda: pyro.sample("x", dist.Bernoulli(0.3)), progress=False)
    assert not engine.converged and "0 steps" in engine.status


class Weighted(pyro.nn.PyroModule):
    """A parameter of a module."""

    def __init__(self):
        super().__init__()
        self.centre = pyro.nn.PyroParam(torch.tensor(1.0))

    def forward(self):
        pyro.sample("x", dist.Normal(self.centre, 1.0))


def centred():
    centre = pyro.param("centre", torch.tensor(1.0))
    scale = pyro.param("scale", torch.tensor(1.0), constraint=dist.constraints.positive)
    pyro.sample("x", dist.Normal(centre, scale))


@pytest.mark.parametrize("name", ["centre", "scale"])
@pytest.mark.parametrize("infer", [pg.GraphicalSVGD, pg.BP, pg.QBethe])
def test_parameters_that_change_under_a_run_are_told(infer, name):
    engine = infer(centred, num_steps=2, tol=None, progress=False)
    engine.run()
    pyro.param("another", torch.tensor(0.0))
    held = dict(pyro.get_param_store().named_parameters())
    with torch.no_grad():
        held["another"] += 1.0
        held[name] += 0.0  # the same value
    engine.step()
    engines = [engine]
    if infer is not pg.BP:  # whose numbers carry derivatives, and torch copies none of these
        engines.append(copy.deepcopy(engine))
    with torch.no_grad():
        held[name] += 1.0
    for one in engines:
        for going_on in (one.step, one.run):
            with pytest.raises(InferenceError, match=f'pyro.param "{name}" has changed'):
                going_on()
    engine.setup()
    engine.step()
    held[name].data += 1.0  # which torch does not count
    with pytest.raises(InferenceError, match=f'pyro.param "{name}" has changed'):
        engine.run()


def labelled(y):
    alpha = pyro.param("alpha", torch.tensor(1.0), constraint=dist.constraints.positive)
    z = pyro.sample("z", pg.distributions.ChineseRestaurant(alpha, len(y)))
    loc = pyro.param("loc", torch.tensor(0.0))
    component = pg.distributions.NormalInverseGamma(0.2, 1.0, 1.0, loc)
    pyro.sample("y", pg.distributions.CollapsedMixture(z, component), obs=y)


@pytest.mark.parametrize("name", ["alpha", "loc"])
@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
def test_parameters_of_a_program_of_labels_that_change_are_told(infer, name):
    y = torch.tensor([0.4, 1.9, -0.3])
    engine = infer(labelled, progress=False)
    engine.run(y)
    with torch.no_grad():
        dict(pyro.get_param_store().named_parameters())[name].add_(1.0)
    with pytest.raises(ShapeMismatch):  # which leaves the engine as it was
        engine.setup(y.reshape(3, 1, 1))
    for going_on in (engine.step, engine.run):
        with pytest.raises(InferenceError, match=f'pyro.param "{name}" has changed'):
            going_on(y)


def test_parameters_of_a_module_that_change_are_told():
    model = Weighted()
    engine = pg.GraphicalSVGD(model, num_steps=2, progress=False)
    engine.run()
    with torch.no_grad():
        model.centre_unconstrained += 1.0
    with pytest.raises(InferenceError, match=r'pyro.param "centre" has changed'):
        engine.step()
