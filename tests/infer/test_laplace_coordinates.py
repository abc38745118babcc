"""Round coordinates at the mode, and runs in them, against posteriors in closed form."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import NonFiniteDensity, ShapeMismatch
from pyrograph.graph import trace_graph
from pyrograph.infer import AdaGrad, Adam, GraphicalSVGD, Langevin, RMSProp, laplace_coordinates
from pyrograph.infer.laplace import mode_and_width
from pyrograph.infer.laplace_coordinates import (
    column_groups,
    coordinates_at,
    node_groups,
)


def of(model, *args):
    graph = trace_graph(model, args, unconstrained=True)
    mode, width = mode_and_width(graph)
    return graph, mode, width, coordinates_at(graph, mode, width)


def covariance(coordinates, dim):
    """R R^T."""
    root = coordinates.outward(torch.eye(dim, dtype=torch.float64)).T
    return root @ root.T


def raw_regression(dtype=torch.float64):
    """Least squares on covariates far from zero and nearly alike, whose coefficients are
    correlated by .999 and more: rows, data, and the posterior under a flat prior."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 4, generator=generator, dtype=torch.float64)
    year = 100 + 5 * noise[:, 0]
    x = torch.stack([torch.ones(200, dtype=torch.float64), year, noise[:, 1]], 1)
    x = torch.cat([x, (year + 0.5 * noise[:, 2]).unsqueeze(1)], 1)
    y = x @ torch.tensor([1.0, 0.3, 2.0, -0.2], dtype=torch.float64) + 0.5 * noise[:, 3]
    inverse = (x.T @ x).inverse()
    mean = inverse @ x.T @ y
    return x.to(dtype), y.to(dtype), mean, 0.25 * inverse


def regression(x, y):
    """One node a coefficient, of known noise."""
    with pyro.plate("weights", x.shape[1]):
        b = pyro.sample("b", dist.Normal(torch.zeros((), dtype=x.dtype), 1e3))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal((x * b).sum(-1), 0.5), obs=y)


# ---------------------------------------------------------------------- coordinates
def test_a_regression_is_round_in_them():
    x, y, _, truth = raw_regression()
    graph, _, _, coordinates = of(regression, x, y)
    assert_close(covariance(coordinates, graph.dim), truth, rtol=2e-3, atol=1e-9)
    assert coordinates.is_mixed.tolist() == [True, True, True, False]


def test_columns_of_a_node_are_mixed_and_nodes_of_a_chain_are_not():
    """Positions in a plane, whose steps are correlated: a block of the precision is inverted."""
    inner = torch.tensor([[2.0, 1.8], [1.8, 2.0]], dtype=torch.float64)
    root = torch.linalg.cholesky(inner)

    def walk():
        at = torch.zeros(2, dtype=torch.float64)
        for t in pyro.markov(range(4)):
            at = pyro.sample(f"x{t}", dist.MultivariateNormal(at, scale_tril=root))

    _, _, _, coordinates = of(walk)
    steps = inner.inverse()
    expected = torch.block_diag(*[(2 * steps).inverse()] * 3, inner)
    # the chain's ends, of one blanket with their neighbours, are none of its inner nodes
    assert_close(covariance(coordinates, 8), expected, rtol=1e-4, atol=1e-6)


def test_groups_of_one_colour_are_measured_at_once(monkeypatch):
    """Fifty regressions side by side share nothing: two columns, two evaluations."""
    x = torch.stack([torch.ones(20), torch.arange(20.0) + 50], 1).double()

    def many():
        with pyro.plate("sets", 50):
            a = pyro.sample("a", dist.Normal(torch.zeros((), dtype=torch.float64), 10.0))
            b = pyro.sample("b", dist.Normal(torch.zeros((), dtype=torch.float64), 10.0))
            for k, row in enumerate(x):
                pyro.sample(f"y{k}", dist.Normal(row[0] * a + row[1] * b, 1.0), obs=row[1])

    graph = trace_graph(many, unconstrained=True)
    mode, width = mode_and_width(graph)
    calls, plain = [], laplace_coordinates.value_and_score
    monkeypatch.setattr(
        laplace_coordinates, "value_and_score", lambda *a: (calls.append(a), plain(*a))[1]
    )
    coordinates = coordinates_at(graph, mode, width)
    assert len(calls) == 2
    block = (x.T @ x + torch.eye(2) / 100).inverse()
    found = covariance(coordinates, 100)
    assert_close(
        found[:50, :50], block[0, 0] * torch.eye(50, dtype=torch.float64), rtol=1e-4, atol=0
    )
    assert_close(
        found[:50, 50:], block[0, 1] * torch.eye(50, dtype=torch.float64), rtol=1e-4, atol=0
    )


def test_wide_groups_are_taken_node_by_node_and_wide_nodes_by_column(monkeypatch):
    def model():
        a = pyro.sample("a", dist.MultivariateNormal(torch.zeros(2), torch.eye(2) + 1))
        b = pyro.sample("b", dist.MultivariateNormal(torch.zeros(2), torch.eye(2) + 1))
        pyro.factor("tie", -((a - b) ** 2).sum())

    graph = trace_graph(model, unconstrained=True)
    assert [own.tolist() for own in column_groups(graph, node_groups(graph))] == [[[0, 1, 2, 3]]]
    monkeypatch.setattr(laplace_coordinates, "WIDEST", 3)
    assert [own.tolist() for own in column_groups(graph, node_groups(graph))] == [[[0, 1], [2, 3]]]
    monkeypatch.setattr(laplace_coordinates, "WIDEST", 1)
    assert [own.tolist() for own in column_groups(graph, node_groups(graph))] == [
        [[0], [1], [2], [3]]
    ]
    _, _, width, coordinates = of(model)
    assert_close(coordinates.outward(torch.eye(4)), width.diag(), rtol=1e-5, atol=0)


def test_a_ridge_keeps_its_widths():
    """Of a + b alone something is known: there is no width along a - b."""

    def model():
        flat = dist.ImproperUniform(dist.constraints.real, (), ())
        a, b = (pyro.sample(name, flat) for name in "ab")
        pyro.factor("sum", -0.5 * (a + b - 1) ** 2)

    _, _, width, coordinates = of(model)
    assert_close(coordinates.outward(torch.eye(2)), width.diag())


def walled(is_walled, *, apart=False):
    """Two correlated numbers, whose density is NaN from 0.5 on, half of a width away; or these are
    two others."""

    def model():
        a, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
        pyro.factor("tie", -0.5 * a * b)
        if apart:
            a, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "uv")
            pyro.factor("further", -0.5 * a * b)
        if is_walled:
            pyro.factor("wall", 1e-9 * torch.sqrt(0.5 - a))

    return model


@pytest.mark.parametrize("apart", [False, True])
def test_walls_within_a_width_are_seen_over_shorter_steps(apart):
    expected = of(walled(False, apart=apart))[3]
    found = of(walled(True, apart=apart))[3]
    assert bool(expected.blocks[0][1][:, 0, 1].all())
    assert_close(found.roots, expected.roots, rtol=1e-3, atol=1e-3)


def test_walls_that_even_these_run_into_leave_the_widths_of_their_groups(monkeypatch):
    _, _, width, _ = of(walled(False, apart=True))
    plain = laplace_coordinates.value_and_score

    def value_and_score(graph, x):
        if bool((x[:, 2:] != 0).any()):
            raise NonFiniteDensity("a wall at u or v")
        return plain(graph, x)

    monkeypatch.setattr(laplace_coordinates, "value_and_score", value_and_score)
    graph = trace_graph(walled(False, apart=True), unconstrained=True)
    # one colour: both groups are moved by one probe, and both keep their widths
    coordinates = coordinates_at(graph, torch.zeros(4), width)
    assert_close(coordinates.outward(torch.eye(4)), width.diag())


def horseshoe():
    """a * b is known, to a hundredth: the Hessian sees its tangent alone."""
    a, b = (pyro.sample(name, dist.Normal(1.0, 2.0)) for name in "ab")
    pyro.sample("y", dist.Normal(a * b, 0.02), obs=torch.tensor(1.0))


def wall_of_exponentials():
    """In single precision exp overflows where the tangent leads."""
    a, b = (pyro.sample(name, dist.Normal(0.0, 50.0)) for name in "ab")
    pyro.sample("y", dist.Poisson(torch.exp(a) * torch.exp(b)), obs=torch.tensor(1.0))


@pytest.mark.parametrize("model", [horseshoe, wall_of_exponentials])
@pytest.mark.parametrize("seed", [0, 1])
def test_draws_stay_where_the_density_is(model, seed):
    pyro.set_rng_seed(seed)
    engine = GraphicalSVGD(model, init="laplace", num_particles=100, progress=False).setup()
    log_p = engine.graph.density(engine.x)
    mode, _ = mode_and_width(engine.graph)
    # a draw of two numbers has |z|^2 < 30 but once in a million
    assert bool((log_p > engine.graph.density(mode[None]) - 4 * 30 / 2 - 1).all())
    spread = engine.x.std(0)
    assert ((spread > 0.02) & (spread < 100)).all()


# ---------------------------------------------------------------------- runs
RULES = [
    (AdaGrad(), torch.float32),
    (Adam(), torch.float64),
    (RMSProp(lr=0.02), torch.float64),
]


@pytest.mark.parametrize(("rule", "dtype"), RULES, ids=repr)
def test_particles_find_and_fill_a_narrow_ridge(rule, dtype):
    """From a start a third as wide and two deviations off, all along the ridge. Without the
    coordinates deviations end at .05 of the posterior's for two coefficients."""
    x, y, mean, truth = raw_regression(dtype)
    pyro.set_rng_seed(0)
    options = {"init": "laplace", "optim": rule, "num_steps": 600, "progress": False}
    engine = GraphicalSVGD(regression, **options).setup(x, y)
    z = torch.randn(50, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    state = engine.state_dict()
    away = engine.coordinates.outward((0.3 * z + 2).to(dtype))
    state["particles"] = (mean.to(dtype) + away).t().contiguous().t()
    engine.load_state_dict(state)
    engine.run(x, y)
    particles, sd = engine.x.double(), truth.diagonal().sqrt()
    assert ((particles.mean(0) - mean).abs() < 0.15 * sd).all()
    assert ((particles.std(0) / sd - 1).abs() < 0.15).all()
    correlation = torch.corrcoef(particles.T) - truth / sd / sd[:, None]
    assert float(correlation.abs().max()) < 0.1


def test_a_langevin_step_is_one_in_the_coordinates():
    """x' - x has mean l R R^T s and covariance 2 l R R^T."""
    x, y, _, truth = raw_regression()
    pyro.set_rng_seed(0)
    options = {"init": "laplace", "num_particles": 20_000, "progress": False}
    engine = Langevin(regression, **options).setup(x, y)
    score = torch.tensor([3.0, -200.0, 10.0, 100.0], dtype=torch.float64).expand(20_000, 4)
    moved = engine.diffused(engine.x, score, 0.3) - engine.x
    sd = (0.6 * truth.diagonal()).sqrt()
    assert ((moved.mean(0) - 0.3 * truth @ score[0]).abs() < 5 * sd / 20_000**0.5).all()
    found = moved.T.cov() / (sd * sd[:, None])
    assert_close(found, 0.6 * truth / (sd * sd[:, None]), rtol=0, atol=5 * (2 / 20_000) ** 0.5)


def test_chains_step_in_units_of_the_ridge():
    """Biased by the step alone: 1 / (1 - eps / 2) of the variance, in every direction."""
    x, y, mean, truth = raw_regression()
    pyro.set_rng_seed(0)
    options = {"init": "laplace", "num_particles": 2000, "step_size": 0.8, "num_steps": 60}
    posterior = pg.fit(regression, (x, y), infer=Langevin, progress=False, **options)
    particles, sd = posterior.particles["b"].double(), (truth.diagonal() / 0.6).sqrt()
    assert ((particles.mean(0) - mean).abs() < 5 * sd / 2000**0.5).all()
    assert ((particles.var(0) / sd**2 - 1).abs() < 5 * (2 / 2000) ** 0.5).all()


def test_the_checks_look_along_the_ridge():
    """A shift along it, by a posterior deviation of each coefficient, is one of one deviation; by
    columns of their own it would be hundreds of their conditional widths."""
    x, y, _, truth = raw_regression()
    engine = GraphicalSVGD(regression, init="laplace", num_particles=2000, progress=False)
    engine.setup(x, y)
    assert engine.checks().passed
    values, vectors = torch.linalg.eigh(truth)
    along = values[-1].sqrt() * vectors[:, -1]
    engine.x = engine.x + along
    engine.score = engine.score - torch.linalg.solve(truth, along)
    assert 0.9 < float(engine.checks().shift.norm()) < 1.1
    assert engine.name_of(0) == 'site "b"[0] (less what later ones tell of it)'
    assert engine.name_of(3) == 'site "b"[3]'


def test_the_discrepancy_has_no_units():
    """The same regression in hundredths of its units."""
    x, y, _, _ = raw_regression()
    ksd = []
    for unit in (1.0, 100.0):
        pyro.set_rng_seed(0)
        options = {"init": "laplace", "num_steps": 100, "progress": False}
        ksd.append(float(pg.fit(regression, (x * unit, y), **options).history["ksd"][-1]))
    assert ksd[0] == pytest.approx(ksd[1], rel=0.05)


def test_thinned_and_reweighted_particles_are_chosen_in_them():
    x, y, mean, truth = raw_regression()
    pyro.set_rng_seed(0)
    options = {"init": "laplace", "num_steps": 50, "thin": 20, "reweight": True}
    posterior = pg.fit(regression, (x, y), progress=False, **options)
    found, sd = posterior.marginal("b"), truth.diagonal().sqrt()
    assert ((found.mean - mean).abs() < 0.3 * sd).all()
    assert ((found.variance.sqrt() / sd - 1).abs() < 0.3).all()


def pairs(of):
    """Two pairs of correlated numbers: which are together is the model's."""

    def model():
        site = {name: pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "abcd"}
        for a, b in of:
            pyro.factor(a + b, -0.5 * site[a] * site[b] - site[b] ** 2)

    return model


@pytest.mark.parametrize("damage", ["fewer", "zero", "nan", "other groups"])
def test_a_state_of_other_coordinates_is_refused(damage):
    options = {"init": "laplace", "num_steps": 3, "progress": False}
    engine = GraphicalSVGD(pairs(["ab", "cd"]), **options)
    engine.run()
    state = GraphicalSVGD(
        pairs(["ac", "bd"] if damage == "other groups" else ["ab", "cd"]), **options
    )
    state.run()
    state = state.state_dict()
    roots = state["memory"]["laplace_roots"]
    if damage == "fewer":
        state["memory"]["laplace_roots"] = roots[:-1]
    if damage in ("zero", "nan"):
        roots[0] = 0.0 if damage == "zero" else torch.nan
    before = engine.state_dict()
    with pytest.raises(ShapeMismatch, match=r"laplace_roots|coordinates"):
        engine.load_state_dict(state)
    after = engine.state_dict()
    assert torch.equal(after["particles"], before["particles"])
    assert torch.equal(after["memory"]["laplace_roots"], before["memory"]["laplace_roots"])
    engine.num_steps = 5
    engine.run()


@pytest.mark.parametrize("init", ["laplace", None])
@pytest.mark.parametrize("infer", [GraphicalSVGD, Langevin])
def test_a_resumed_run_keeps_its_coordinates(infer, init):
    x, y, _, _ = raw_regression()
    options = {"num_particles": 6, "num_steps": 8, "progress": False}
    pyro.set_rng_seed(0)
    unbroken = infer(regression, init="laplace", **options).run(x, y).x
    pyro.set_rng_seed(0)
    half = infer(regression, init="laplace", **options)
    for _ in range(3):
        half.step(x, y)
    rest = infer(regression, init=init, **options)
    rest.load_state_dict(half.state_dict())
    assert torch.equal(rest.run(x, y).x, unbroken)


def test_nodes_without_density_stay_beside_mixed_ones():
    def model():
        a, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
        pyro.factor("tie", -0.45 * (a + b) ** 2)
        with pyro.poutine.mask(mask=False):
            pyro.sample("c", dist.Normal(0.0, 1.0))

    engine = GraphicalSVGD(model, init="laplace", num_steps=20, progress=False).setup()
    start = engine.x
    engine.run()
    assert torch.equal(engine.x[:, 2], start[:, 2])
    assert not torch.equal(engine.x[:, :2], start[:, :2])
