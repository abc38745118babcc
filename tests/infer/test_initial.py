"""Every way to start the particles, and what is refused."""

import functools

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import (
    AutoNormal,
    init_to_median,
    init_to_sample,
    init_to_uniform,
    init_to_value,
)
from torch.testing import assert_close

from pyrograph.errors import OptionError, ShapeMismatch, UnsupportedSite
from pyrograph.infer import GraphicalSVGD, Langevin

from .programs import gaussian_chain, positive_and_simplex

N = 6


def start(init, model=positive_and_simplex, args=(), n=N):
    engine = GraphicalSVGD(model, init=init, num_particles=n, num_steps=0, progress=False)
    return engine.setup(*args)


def particles(n=N):
    w = torch.distributions.Dirichlet(torch.ones(3)).sample((n,))
    return {"s": torch.rand(n) + 0.1, "w": w, "u": 2 * torch.rand(n, 2) - 1}


def check(engine, expected):
    held = engine.posterior().particles
    for name, value in expected.items():
        assert_close(held[name], value.to(held[name]))


def test_the_default_is_standard_normal_in_unconstrained_space():
    engine = start(None, n=3000)
    assert_close(engine.x.mean(0), torch.zeros(engine.graph.dim), rtol=0, atol=0.1)
    assert_close(engine.x.var(0), torch.ones(engine.graph.dim), rtol=0, atol=0.12)


def test_a_dict_of_particles_in_the_programs_space():
    values = particles()
    check(start(values), values)
    check(start({k: v.float() for k, v in values.items()}), {"s": values["s"].float()})
    check(start({k: v.numpy() for k, v in values.items()}), values)


def test_a_flat_tensor():
    x = torch.randn(N, 5)
    assert_close(start(x).x, x)


def test_a_posterior_and_one_of_another_size():
    first = start(particles()).posterior()
    check(start(first), first.particles)
    more = start(first, n=15).posterior().particles["s"]
    assert len(more) == 15
    distance = (more[:, None] - first.particles["s"]).abs()
    assert (distance.amin(1) < 1e-12).all()  # every one is a particle of the first
    assert (distance.amin(0) < 1e-12).all()  # and every particle is used


def scaled(shape=3.0):
    """A site that starts where another ends."""
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("b", dist.Pareto(a.exp(), shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [GraphicalSVGD, Langevin])
def test_a_posterior_whose_supports_depend_on_latents(make, dtype):
    x = torch.randn(N, 2)
    first = start(x, scaled).posterior()
    values = {"a": x[:, 0], "b": x[:, 0].exp() + x[:, 1].exp()}
    check(start(x, scaled), values)
    options = {"num_steps": 0, "dtype": dtype, "progress": False}
    held = make(scaled, init=first, **options).setup(4.0).posterior()  # of other arguments too
    assert held.x.dtype == dtype
    assert_close(held.x, x.to(dtype))
    assert_close(held.particles["b"], values["b"].to(dtype))
    more = make(scaled, init=first, num_particles=15, **options).setup().posterior().x
    same = (more[:, None] == x.to(dtype)).all(2)
    assert same.any(1).all() and same.any(0).all()


def test_values_where_a_support_depends_on_latents_are_refused_unless_they_are_its_own():
    def wider():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("b", dist.Pareto(2 * a.exp(), 3.0))

    first = start(torch.randn(N, 2), scaled).posterior()
    for model, init in ((scaled, first.particles), (wider, first)):
        with pytest.raises(UnsupportedSite, match=r'"b".*depends on other latents'):
            start(init, model)


@pytest.mark.parametrize("kind", ["tensor", "array", "flat", "function"])
def test_complex_starts_are_refused(kind):
    def model():
        with pyro.plate("p", 2):
            pyro.sample("x", dist.Normal(0.0, 1.0))

    values = torch.full((3, 2), 1 + 5j)
    init = {
        "tensor": {"x": values},
        "array": {"x": values.numpy()},
        "flat": values,
        "function": lambda: {"x": values},
    }[kind]
    with pytest.raises(OptionError, match="must be real numbers"):
        start(init, model, n=3)


def test_a_guide_function_and_an_autoguide():
    def guide():
        pyro.sample("s", dist.Delta(torch.tensor(0.7)))
        pyro.sample("w", dist.Dirichlet(torch.ones(3)))
        with pyro.plate("p", 2):
            pyro.sample("u", dist.Uniform(-0.1, 0.1))

    engine = start(guide)
    held = engine.posterior().particles
    assert_close(held["s"], torch.full((N,), 0.7))
    assert (held["u"].abs() < 0.1).all() and held["u"].unique().numel() == 2 * N

    auto = AutoNormal(positive_and_simplex)
    auto()
    assert start(auto).posterior().particles["w"].shape == (N, 3)


def test_a_guide_is_called_with_the_models_arguments():
    model, y = gaussian_chain(3)

    def guide(data):
        for t in range(3):
            pyro.sample(f"x{t}", dist.Delta(data[t]))

    assert_close(start(guide, model, (y,)).x, y.expand(N, 3))


def test_the_number_of_particles_is_that_of_the_start_unless_given():
    values = particles()
    posterior = start(values).posterior()
    for init in (values, posterior, posterior.x):
        engine = GraphicalSVGD(positive_and_simplex, init=init, progress=False)
        assert engine.num_particles == N
    assert GraphicalSVGD(positive_and_simplex).num_particles == 50
    assert GraphicalSVGD(positive_and_simplex, init=lambda graph: None).num_particles == 50


@pytest.mark.parametrize("returns", ["dict", "flat"])
def test_functions_that_return_particles(returns):
    values = particles()
    engine = start(values)
    result = values if returns == "dict" else engine.x

    def of_nothing():
        return result

    def of_number(num_particles):
        assert num_particles == N
        return result

    def of_both(num_particles, graph):
        assert graph.dim == 5
        return result

    for init in (of_nothing, of_number, of_both):
        check(start(init), values)


def test_a_function_may_have_other_arguments_with_defaults():
    model, y = gaussian_chain(3)
    engine = start(lambda graph, scale=2.0: torch.full((N, graph.dim), scale), model, (y,))
    assert_close(engine.x, torch.full((N, 3), 2.0))

    def of_both(num_particles, graph, scale=3.0):
        return torch.full((num_particles, graph.dim), scale)

    assert_close(start(of_both).x, torch.full((N, 5), 3.0))
    assert_close(start(functools.partial(of_both, scale=4.0)).x, torch.full((N, 5), 4.0))


def test_a_function_that_needs_more_is_told_what_it_may_take():
    with pytest.raises(OptionError, match=r"num_particles and/or graph \(by these names\)"):
        start(lambda graph, scale: torch.full((N, graph.dim), scale))


STRATEGIES = {
    "function": init_to_median,
    "called": init_to_uniform(radius=1.0),
    "sample": init_to_sample,
    "values": init_to_value(values={"x": torch.tensor(2.0)}),
}


@pytest.mark.parametrize("init", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("args", [(), (torch.tensor(0.5),)], ids=["no arguments", "one"])
def test_a_strategy_of_pyros_guides_is_refused_and_a_guide_with_it_is_taken(init, args):
    def model(y=None):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(0.3) if y is None else y)

    with pytest.raises(OptionError, match=r"one site at a time.*AutoNormal\(model, init_loc_fn="):
        start(init, model, args)
    guide = AutoNormal(model, init_loc_fn=init, init_scale=1e-6)
    x = start(guide, model, args).x
    assert x.shape == (N, 1) and bool(x.isfinite().all())
    if init is STRATEGIES["values"]:
        assert_close(x, torch.full((N, 1), 2.0), rtol=0, atol=1e-4)


def test_particles_on_an_edge_and_those_of_a_float32_posterior_are_taken():
    def model():
        pyro.sample("p", dist.Beta(2.0, 2.0))
        pyro.sample("w", dist.Dirichlet(torch.ones(300)))

    options = {"num_steps": 0, "progress": False}
    x = torch.randn(N, 300)
    x[:, 0] = torch.linspace(-12.0, 12.0, N)
    first = GraphicalSVGD(model, init=x, dtype=torch.float32, **options).run().particles
    edge = first | {"p": torch.linspace(0.0, 1.0, N, dtype=torch.float32)}
    for values in (first, edge, {k: v.double() for k, v in edge.items()}):
        held = GraphicalSVGD(model, init=values, **options).run().particles
        for name, value in values.items():
            assert_close(held[name], value.double(), rtol=1e-4, atol=1e-6)
    GraphicalSVGD(model, init=first, dtype=torch.float32, **options).run()


def test_a_guides_draws_follow_the_seed():
    def guide():
        pyro.sample("s", dist.Gamma(1.0, 1.0))
        pyro.sample("w", dist.Dirichlet(torch.ones(3)))
        pyro.sample("u", dist.Uniform(-1.0, 1.0).expand([2]))

    runs = []
    for _ in range(2):
        pyro.set_rng_seed(3)
        runs.append(start(guide).x)
    assert torch.equal(*runs)


BAD = {
    "shape of s": (lambda v: v | {"s": torch.rand(N, 1)}, ShapeMismatch, 'site "s".*[6, 1]'),
    "number of u": (lambda v: v | {"u": torch.rand(N + 1, 2)}, ShapeMismatch, 'site "u"'),
    "missing w": (lambda v: {k: v[k] for k in "su"}, ShapeMismatch, 'misses site "w"'),
    "words of s": (lambda v: {"s": "warm"} | {k: v[k] for k in "uw"}, OptionError, 'site "s"'),
    "words of w": (lambda v: v | {"w": "warm"}, OptionError, 'site "w" is .warm., no tensor'),
    "unknown z": (lambda v: v | {"z": torch.rand(N)}, ShapeMismatch, '"z", which is not'),
    "negative s": (lambda v: v | {"s": -v["s"]}, OptionError, 'site "s" is outside.*particle 0'),
    "u beyond its interval": (
        lambda v: v | {"u": v["u"] + 2 * (torch.arange(N) == 4)[:, None]},
        OptionError,
        r'site "u" is outside.*particle 4 \(support: Interval',
    ),
    "u a little beyond": (lambda v: v | {"u": torch.full((N, 2), 1.001)}, OptionError, 'site "u"'),
    "infinite u": (lambda v: v | {"u": torch.full((N, 2), torch.inf)}, OptionError, 'site "u"'),
    "w of sum three": (lambda v: v | {"w": torch.ones(N, 3)}, OptionError, 'site "w" is outside'),
    "w negative": (
        lambda v: v | {"w": torch.tensor([[1.5, -0.3, -0.2]]).expand(N, 3)},
        OptionError,
        'site "w" is outside',
    ),
    "nan in u": (lambda v: v | {"u": v["u"] * torch.nan}, OptionError, 'site "u"'),
    "flat": (lambda v: torch.randn(N, 4), ShapeMismatch, r"\[num_particles, dim\] = \[6, 5\]"),
    "nonsense": (lambda v: "warm", OptionError, "init='warm'"),
    "guide without w": (
        lambda v: lambda: pyro.sample("s", dist.Gamma(1.0, 1.0)),
        ShapeMismatch,
        'does not draw site "w"',
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_starts_name_the_site(name):
    make, error, text = BAD[name]
    with pytest.raises(error, match=text):
        start(make(particles()))
