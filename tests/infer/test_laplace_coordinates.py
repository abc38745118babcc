"""Round coordinates at the mode, and runs in them, against posteriors in closed form."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import ShapeMismatch
from pyrograph.graph import trace_graph
from pyrograph.infer import AdaGrad, Adam, GraphicalSVGD, Langevin, RMSProp, laplace_coordinates
from pyrograph.infer.laplace import mode_and_width
from pyrograph.infer.laplace_coordinates import column_groups, coordinates_at


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
    assert coordinates.is_mixed.all()


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
    assert [own.tolist() for own in column_groups(graph)] == [[[0, 1, 2, 3]]]
    monkeypatch.setattr(laplace_coordinates, "WIDEST", 3)
    assert [own.tolist() for own in column_groups(graph)] == [[[0, 1], [2, 3]]]
    monkeypatch.setattr(laplace_coordinates, "WIDEST", 1)
    assert [own.tolist() for own in column_groups(graph)] == [[[0], [1], [2], [3]]]
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


def test_walls_that_steps_of_a_width_run_into_leave_the_widths():
    """The density is NaN from 0.5 on, half of a width away."""

    def model():
        a, b = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
        pyro.factor("wall", -a * b + 0 * torch.sqrt(0.5 - a))

    _, _, width, coordinates = of(model)
    assert_close(coordinates.outward(torch.eye(2)), width.diag())


# ---------------------------------------------------------------------- runs
@pytest.mark.parametrize("rule", [AdaGrad(), Adam(), RMSProp(lr=0.02)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_particles_fill_a_narrow_ridge(rule, dtype):
    """Without the coordinates deviations end at .05 of the posterior's for two coefficients."""
    x, y, mean, truth = raw_regression(dtype)
    pyro.set_rng_seed(0)
    options = {"init": "laplace", "optim": rule, "num_steps": 300, "progress": False}
    particles = pg.fit(regression, (x, y), **options).particles["b"].double()
    sd = truth.diagonal().sqrt()
    assert ((particles.mean(0) - mean).abs() < 0.1 * sd).all()
    assert ((particles.std(0) / sd - 1).abs() < 0.1).all()
    correlation = torch.corrcoef(particles.T) - truth / sd / sd[:, None]
    assert float(correlation.abs().max()) < 0.1


def test_chains_step_in_units_of_the_ridge():
    """Biased by the step alone: 1 / (1 - eps / 2) of the variance, in every direction."""
    x, y, mean, truth = raw_regression()
    pyro.set_rng_seed(0)
    options = {"init": "laplace", "num_particles": 2000, "step_size": 0.2, "num_steps": 60}
    posterior = pg.fit(regression, (x, y), infer=Langevin, progress=False, **options)
    particles, sd = posterior.particles["b"].double(), truth.diagonal().sqrt()
    assert ((particles.mean(0) - mean).abs() < 5 * sd / 2000**0.5).all()
    ratio = particles.var(0) / truth.diagonal() * (1 - 0.2 / 2)
    assert ((ratio - 1).abs() < 5 * (2 / 2000) ** 0.5).all()
    assert "Stein" not in posterior.status


def test_noise_beside_stein_steps_keeps_to_the_ridge():
    x, y, mean, truth = raw_regression()
    pyro.set_rng_seed(0)
    options = {"init": "laplace", "noise": 0.05, "num_steps": 300, "progress": False}
    particles = pg.fit(regression, (x, y), **options).particles["b"]
    sd = truth.diagonal().sqrt()
    assert ((particles.mean(0) - mean).abs() < 0.6 * sd).all()
    assert ((particles.std(0) / sd - 1).abs() < 0.35).all()


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
    named = engine.name_of(0)
    assert named == 'site "b"[0] (beyond its correlations)'


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


def test_a_state_of_other_groups_is_refused():
    x, y, _, _ = raw_regression()
    engine = GraphicalSVGD(regression, init="laplace", num_steps=3, progress=False)
    engine.run(x, y)
    state = engine.state_dict()
    state["memory"]["coordinates"] = state["memory"]["coordinates"][:-1]
    before = engine.state_dict()["memory"]["coordinates"]
    with pytest.raises(ShapeMismatch, match='"coordinates" with shape'):
        engine.load_state_dict(state)
    assert torch.equal(engine.state_dict()["memory"]["coordinates"], before)
