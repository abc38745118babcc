"""Posteriors that are flat along a line are refused by name; whatever bends is let through."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import constraints

import pyrograph as pg
from pyrograph.errors import InferenceError
from pyrograph.graph.adrift import refuse_adrift


def flat(name, *shape):
    return pyro.sample(name, dist.ImproperUniform(constraints.real, shape, ()))


def difference():
    x, y = flat("x"), flat("y")
    pyro.factor("f", -0.5 * (x - y - 1) ** 2)


def kinked():
    x, y = flat("x"), flat("y")
    pyro.factor("f", -(x - y - 1).abs())


def chain():
    x = [flat(f"x{i}") for i in range(5)]
    for i in range(4):
        pyro.factor(f"f{i}", -0.5 * (x[i] - x[i + 1]) ** 2)


def effects():
    y = torch.arange(12.0, dtype=torch.float64).reshape(4, 3).sin()
    with pyro.plate("I", 4):
        a = flat("a")
    with pyro.plate("J", 3):
        b = flat("b")
    with pyro.plate("rows", 4, dim=-2), pyro.plate("columns", 3, dim=-1):
        pyro.sample("y", dist.Normal(a[:, None] + b, 0.5), obs=y)


def regression(extra=0.0):
    """The third column is the sum of the others, but for ``extra``."""
    X = torch.linspace(-1, 1, 20, dtype=torch.float64)
    X = torch.stack([X, X.sin() + 1, X + X.sin() + 1 + extra * (3 * X).cos()], 1)
    prior = dist.ImproperUniform(constraints.real_vector, (), (3,))
    w = pyro.sample("w", prior)
    with pyro.plate("n", 20):
        pyro.sample("y", dist.Normal(X @ w, 1.0), obs=X[:, 0].cos())


def sensors(anchored=False):
    """Ranges between four of them, in the plane."""
    with pyro.plate("I", 4):
        x = pyro.sample("x", dist.ImproperUniform(constraints.real_vector, (), (2,)))
    for i in range(4):
        for j in range(i):
            pyro.factor(f"f{i}{j}", -0.5 * ((x[i] - x[j]).square().sum().sqrt() - 1) ** 2)
    if anchored:
        pyro.factor("anchor", -0.5 * (x[0] / 1e6).square().sum())


def masked():
    x = pyro.sample("x", dist.Normal(0.0, 1.0).mask(False))
    with pyro.plate("n", 3):
        y = pyro.sample("y", dist.Normal(x, 1.0))
    pyro.factor("f", -((y - x) ** 4).sum())


def switched():
    z = pyro.sample("z", dist.Bernoulli(0.5))
    x, y = flat("x"), flat("y")
    pyro.factor("f", -0.5 * (x - y - z) ** 2)


def common_intercept():
    """Of all choices: its gradient is rounding."""
    a, b = flat("a"), flat("b")
    X = torch.arange(12.0, dtype=torch.float64).reshape(4, 3).sin()
    with pyro.plate("n", 4):
        pyro.sample("o", dist.Categorical(logits=a + b * X), obs=torch.tensor([0, 1, 2, 0]))


def centred():
    a, b, t = flat("a"), flat("b"), torch.arange(5.0, dtype=torch.float64)
    mean = a + b * t
    pyro.sample("y", dist.Normal(mean - mean.mean(), 1.0).to_event(1), obs=t.sin())


def stiff():
    x, y = flat("x"), flat("y")
    pyro.factor("f", -0.5 * ((x - y) / 1e-6) ** 2)


def stiff_sum():
    """No shift of all, and exact along whole numbers alone."""
    x, y, z = flat("x"), flat("y"), flat("z")
    pyro.factor("f", -0.5 * ((x + y) / 1e-6) ** 2 - 0.5 * ((z - y) / 1e-6) ** 2)


IMPROPER = {
    difference: '"x" by +1; "y" by +1',
    kinked: '"x" by +1; "y" by +1',
    chain: '"x0" by +1; "x1" by +1; "x2" by +1; "x3" by +1; "x4" by +1',
    effects: r'"a"\[0\] by \+1; .*"b"\[1\] by -1',
    regression: r'"w" by \(\+1, \+1, -1\)',
    sensors: r'"x"\[0\] by \(.*"x"\[3\] by ',
    masked: r'"x" by \+1; "y"\[0\] by \+1; "y"\[1\] by \+1; "y"\[2\] by \+1',
    switched: '"x" by +1; "y" by +1',
    common_intercept: r'"a" by \+1\.',
    centred: r'"a" by \+1\.',
    stiff: '"x" by +1; "y" by +1',
    stiff_sum: '"x" by +1; "y" by -1; "z" by -1',
}


def pattern(said):
    return said.replace("+", r"\+") if "\\" not in said else said


@pytest.mark.parametrize("model", IMPROPER, ids=lambda m: m.__name__)
def test_a_line_that_no_factor_notices_is_named(model):
    with pytest.raises(InferenceError, match=pattern(IMPROPER[model])):
        refuse_adrift(pg.trace_graph(model, unconstrained=True))


@pytest.mark.parametrize("infer", [pg.EP, pg.VMP, pg.PowerEP, pg.QBethe], ids=lambda e: e.__name__)
def test_engines_refuse_it_before_they_start(infer):
    engine = infer(kinked, progress=False)
    with pytest.raises(InferenceError, match="posterior is improper"):
        engine.run()


def test_bp_refuses_it():
    with pytest.raises(InferenceError, match="posterior is improper"):
        pg.BP(chain, progress=False).run()


def weakly_held():
    x = [flat(f"x{i}") for i in range(3)]
    pyro.factor("f", -0.5 * (x[0] - x[1]) ** 2 - 0.5 * (x[1] - x[2]) ** 2)
    pyro.factor("far", -0.5 * (x[2] / 1e10) ** 2)


def walled():
    x, y = flat("x"), flat("y")
    pyro.factor("f", -((x - y) ** 2))
    pyro.factor("wall", -torch.relu(x.abs() - 100.0))


def seen_in_a_corner():
    with pyro.plate("I", 50):
        x = flat("x")
    pyro.factor("p", -0.5 * (x[1:] - x[:-1]).square().sum())
    pyro.sample("y", dist.Poisson(x[0].exp()), obs=torch.tensor(2.0))


def positive():
    x = pyro.sample("x", dist.ImproperUniform(constraints.positive, (), ()))
    pyro.sample("y", dist.Poisson(x), obs=torch.tensor(2.0))


def drawn():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    y = pyro.sample("y", dist.Normal(x, 1.0))
    pyro.factor("f", -0.5 * (x - y) ** 2)


def uneven():
    regression(1e-4)


def anchored():
    sensors(True)


def boxed():
    x, y = flat("x"), flat("y")
    pyro.factor("f", -0.5 * (x - y) ** 2)
    pyro.sample("o", dist.Uniform(x - 100.0, x + 100.0), obs=torch.tensor(0.3))


def ruled_out():
    x = flat("x")
    pyro.factor("f", torch.where(x.abs() < 100, 0.0, -torch.inf))


def censored():
    """Its log underflows to minus infinity far out."""
    x, y = flat("x"), flat("y")
    pyro.factor("tie", -0.5 * (x - y) ** 2)
    pyro.factor("high", torch.sigmoid(200 - x).log())
    pyro.factor("low", torch.sigmoid(200 + y).log())


def far_walls():
    x, y = flat("x"), flat("y")
    pyro.factor("f", -0.5 * (x - y) ** 2 - torch.relu(x.abs() - 1e8))
    z = flat("z")
    pyro.factor("g", -torch.relu(z.abs() - 1e20))


def held_by_its_tie(scale, wall):
    """A steep factor says of one line only where it ends."""

    def model():
        x, y = flat("x"), flat("y")
        pyro.factor("f", -0.5 * ((x - y) / scale) ** 2 - torch.relu(x.abs() / wall - 1))

    return model


def wide_beside_narrow():
    x = pyro.sample("x", dist.ImproperUniform(constraints.real_vector, (), (2,)))
    sds = torch.tensor([1e-8, 1e5], dtype=torch.float64)
    mean = torch.stack([x[0] - x[1], x[0] + x[1]])
    pyro.sample("y", dist.Normal(mean, sds).to_event(1), obs=torch.zeros(2, dtype=torch.float64))


def told_by_one_state():
    """The other one has no mass to speak of."""
    x, z = flat("x"), pyro.sample("z", dist.Bernoulli(0.5))
    pyro.factor("h", torch.where(z == 0, -3.4e38, 0.0))
    pyro.factor("f", -0.5 * (x * z) ** 2)


def looked_up():
    """No value far out: the table ends."""
    x, y = flat("x"), flat("y")
    table = torch.tensor([0.0, -1.0, -5.0, -9.0, -9.0, -9.0])
    pyro.factor("f", table[x.abs().long()] - (x - y) ** 2)


def wide(variances):
    def model():
        real = constraints.real_vector
        x = pyro.sample("x", dist.ImproperUniform(real, (), (len(variances),)))
        covariance = torch.diag(torch.tensor(variances, dtype=torch.float64))
        y = torch.full((len(variances),), 0.3, dtype=torch.float64)
        pyro.sample("y", dist.MultivariateNormal(x, covariance), obs=y)

    return model


PROPER = {
    model.__name__: model
    for model in (
        weakly_held,
        walled,
        seen_in_a_corner,
        positive,
        drawn,
        uneven,
        anchored,
        boxed,
        ruled_out,
        censored,
        far_walls,
        wide_beside_narrow,
        told_by_one_state,
        looked_up,
    )
}
PROPER |= {"steep": held_by_its_tie(1e-5, 1e4), "steeper": held_by_its_tie(1e-7, 100.0)}
PROPER |= {"very wide": wide([1e24] * 5), "uneven scales": wide([1e-12, *[1e14] * 4])}
PROPER |= {"many numbers": wide([1.0] * 30)}


@pytest.mark.parametrize("model", PROPER.values(), ids=PROPER)
def test_what_some_factor_notices_is_let_through(model):
    refuse_adrift(pg.trace_graph(model, unconstrained=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(0, 9), st.integers(1, 6))
def test_linear_models_are_refused_where_the_design_lacks_rank(dtype, seed, size, rows, rank):
    rng = np.random.default_rng(seed)
    design = rng.integers(-2, 3, (rows, rank)) @ rng.integers(-2, 3, (rank, size))
    scale = 2.0 ** rng.integers(-12, 1, (rows, 1))  # keeps products exact
    X = torch.tensor(scale * design, dtype=dtype)
    y = torch.tensor(rng.normal(size=rows), dtype=dtype)

    def model():
        w = torch.stack([flat(f"w{i}") for i in range(size)])
        for e in range(rows):
            pyro.factor(f"f{e}", -0.5 * (X[e] @ w.to(dtype) - y[e]) ** 2)

    graph = pg.trace_graph(model)
    seen = design[:, (design != 0).any(0)]
    is_proper = np.linalg.matrix_rank(seen) == seen.shape[1] if seen.size else True
    if is_proper:
        refuse_adrift(graph)
    else:
        with pytest.raises(InferenceError, match="posterior is improper"):
            refuse_adrift(graph)


@pytest.mark.parametrize("length", [100, 5000])
def test_steps_of_a_walk_without_a_place_are_refused(length):
    def model():
        with pyro.plate("places", length):
            x = flat("x")
        with pyro.plate("steps", length - 1):
            pyro.sample("d", dist.Normal(x[1:] - x[:-1], 1.0), obs=torch.zeros(length - 1))

    with pytest.raises(InferenceError, match=rf"and {length - 6} more nodes"):
        refuse_adrift(pg.trace_graph(model))


def test_looking_draws_no_random_numbers():
    graph = pg.trace_graph(anchored)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    refuse_adrift(graph)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()


def test_of_two_components_the_one_that_drifts_is_named():
    def model():
        anchored()
        x, y = flat("u"), flat("v")
        pyro.factor("g", -((x - y) ** 2))

    with pytest.raises(InferenceError, match=r'"u" by \+1; "v" by \+1\. Give'):
        refuse_adrift(pg.trace_graph(model))
