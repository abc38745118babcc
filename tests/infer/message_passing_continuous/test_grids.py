"""The grids of quadratures: narrow factors, and memory. Truth: dense one-dimensional sums."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.beliefs import Gaussian
from pyrograph.errors import ConvergenceWarning
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.densities import checked
from pyrograph.infer.message_passing.quadrature import grids, on_points, tilted

from .reference import plain_ep


def parabola():
    x = pyro.sample("x", dist.Normal(0.5, 1.0))
    y = pyro.sample("y", dist.Normal(0.0, 1.0))
    pyro.sample("o", dist.Normal(y + x**2, 0.1), obs=torch.tensor(2.0))


def parabola_truth():
    """log p(o), y integrated in closed form and x densely."""
    x = np.linspace(-8, 9, 20001)
    value = stats.norm.logpdf(x, 0.5, 1) + stats.norm.logpdf(2.0, x**2, np.sqrt(1.01))
    return logsumexp(value) + np.log(x[1] - x[0])


def valley(noise):
    x = pyro.sample("x", dist.Normal(torch.tensor([0.5, 0.0]), 1.0).to_event(1))
    y = pyro.sample("y", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("o", dist.Normal((y.exp() + x**2).sum(), noise), obs=torch.tensor(2.0))


@pytest.mark.parametrize("num_points", [None, 10])
def test_a_narrow_factor_of_four_numbers_that_does_not_settle_asks_for_points(num_points):
    with pytest.warns(ConvergenceWarning, match='"o".* in 4 dimensions.*raise num_points'):
        posterior = pg.fit(
            valley, (0.1,), infer=pg.EP, num_points=num_points, num_steps=1, progress=False
        )
    assert f"{num_points or 8} points each" in posterior.status


@pytest.mark.filterwarnings("ignore::pyrograph.errors.ConvergenceWarning")
@pytest.mark.parametrize("noise", [0.1, 0.02])
def test_too_few_points_in_four_dimensions_are_said_also_at_rest(noise):
    posterior = pg.fit(valley, (noise,), infer=pg.EP, num_points=10, num_steps=20, progress=False)
    assert 'too coarse for factor "o"' in posterior.status
    assert "raise num_points" in posterior.status
    assert posterior.evidence_kind == "estimate"


def test_enough_points_in_four_dimensions_raise_no_alarm():
    posterior = pg.fit(valley, (2.0,), infer=pg.EP, progress=False)
    assert posterior.converged and posterior.status == "converged"


@pytest.mark.parametrize("num_points", [None, 40])
def test_a_narrow_factor_that_is_linear_in_one_of_two_numbers_settles_on_the_truth(num_points):
    posterior = pg.fit(parabola, infer=pg.EP, num_points=num_points, progress=False)
    assert posterior.converged
    assert abs(float(posterior.log_evidence) - parabola_truth()) < 1e-3


def test_the_remedy_speaks_of_points_only_where_there_are_two_dimensions():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("n", 3):
            pyro.sample("y", dist.Bernoulli(logits=x), obs=torch.tensor([1.0, 1.0, 0.0]))

    with pytest.warns(ConvergenceWarning) as caught:
        pg.fit(model, infer=pg.EP, num_steps=1, progress=False)
    assert "num_points" not in str(caught[0].message)


def heavy_tails(y):
    x = pyro.sample("x", dist.Normal(0.0, 3.0))
    with pyro.plate("n", len(y)):
        pyro.sample("y", dist.StudentT(4.0, x, 0.3), obs=y)


def test_points_are_weighed_in_pieces_and_the_moments_are_those_of_all(monkeypatch):
    y = torch.tensor([0.3, -0.2, 0.4, 0.1, 1.5])
    whole = pg.fit(heavy_tails, (y,), infer=pg.EP, progress=False)
    evaluate, sizes = checked.CheckedDensity.__call__, []

    def recorded(self, u, *centre):
        sizes.append(u.numel())
        return evaluate(self, u, *centre)

    monkeypatch.setattr(on_points, "PIECE", 1000)
    monkeypatch.setattr(checked.CheckedDensity, "__call__", recorded)
    pieces = pg.fit(heavy_tails, (y,), infer=pg.EP, progress=False)
    assert max(sizes) <= 1000
    assert_close(pieces.log_evidence, whole.log_evidence, rtol=0, atol=1e-9)

    def log_f(a, z):
        return stats.t.logpdf(y[a].item(), 4, z, 0.3)

    mean, covariance, evidence, _ = plain_ep(0.0, 9.0, np.ones((5, 1)), log_f, points=4001)
    assert abs(float(pieces.marginal("x").mean) - mean[0]) < 1e-5
    assert abs(float(pieces.marginal("x").variance) - covariance[0, 0]) < 1e-5
    assert abs(float(pieces.log_evidence) - evidence) < 1e-4


def square_truth(noise, sd):
    """log p(o = 1), mean and variance of x ~ N(1, sd), o ~ N(x^2, noise), by a dense sum: most of
    the variance may come of a mode of little weight about -1."""
    x = np.linspace(1 - 12 * sd, 1 + 12 * sd, 400_001)
    value = stats.norm.logpdf(x, 1, sd) + stats.norm.logpdf(1.0, x**2, noise)
    evidence = logsumexp(value)
    weight = np.exp(value - evidence)
    mean = weight @ x
    return evidence + np.log(x[1] - x[0]), mean, weight @ (x - mean) ** 2


@pytest.mark.parametrize("noise, sd", [(0.1, 0.45), (0.1, 0.6), (0.05, 0.6), (0.02, 0.6)])
def test_a_small_mode_far_away_counts_for_the_variance(noise, sd):
    def model():
        x = pyro.sample("x", dist.Normal(torch.tensor(1.0, dtype=torch.float64), sd))
        pyro.sample("o", dist.Normal(x**2, noise), obs=torch.tensor(1.0, dtype=torch.float64))

    evidence, mean, variance = square_truth(noise, sd)
    posterior = pg.fit(model, infer=pg.EP, progress=False)
    found = posterior.marginal("x")
    assert posterior.converged
    assert float(found.mean) == pytest.approx(mean, rel=1e-5)
    assert float(found.variance) == pytest.approx(variance, rel=1e-4)
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=1e-6)


def test_a_small_mode_counts_in_pieces_and_in_single_precision(monkeypatch):
    def model():
        x = pyro.sample("x", dist.Normal(torch.tensor(1.0), 0.6))
        pyro.sample("o", dist.Normal(x**2, 0.1), obs=torch.tensor(1.0))

    monkeypatch.setattr(on_points, "PIECE", 500)
    _, _, variance = square_truth(0.1, 0.6)
    found = pg.fit(model, infer=pg.EP, progress=False).marginal("x")
    assert float(found.variance) == pytest.approx(variance, rel=1e-3)


def test_a_small_mode_counts_where_the_other_numbers_are_integrated_in_closed_form():
    """o ~ N(t^2 s, 0.1), quadratic in s given t. Truth: s in closed form, t densely."""

    def model():
        t = pyro.sample("t", dist.Normal(torch.tensor(1.0, dtype=torch.float64), 0.65))
        s = pyro.sample("s", dist.Normal(torch.tensor(1.0, dtype=torch.float64), 0.01))
        pyro.sample("o", dist.Normal(t**2 * s, 0.1), obs=torch.tensor(1.0, dtype=torch.float64))

    t = np.linspace(-7, 9, 400_001)
    spread = np.sqrt(0.01 + t**4 * 1e-4)
    value = stats.norm.logpdf(t, 1, 0.65) + stats.norm.logpdf(1.0, t**2, spread)
    weight = np.exp(value - logsumexp(value))
    variance = weight @ (t - weight @ t) ** 2
    found = pg.fit(model, infer=pg.EP, progress=False).marginal("t")
    assert float(found.variance) == pytest.approx(variance, rel=1e-3)


def spike_and_slab(narrow, wide, centre):
    """Half a spike and half a slab: their product with the prior N(0, 20) in closed form."""

    def model():
        x = pyro.sample("x", dist.Normal(torch.tensor(0.0, dtype=torch.float64), 20.0))
        spike, slab = dist.Normal(centre, narrow), dist.Normal(0.0, wide)
        pyro.factor("f", torch.logaddexp(spike.log_prob(x), slab.log_prob(x)) - np.log(2))

    parts = []
    for c, s in ((centre, narrow), (0.0, wide)):
        precision = 1 / s**2 + 1 / 400
        mass = 0.5 * stats.norm.pdf(c, 0, np.hypot(s, 20))
        parts.append((mass, c / s**2 / precision, 1 / precision))
    mass, mean, variance = (np.array(part) for part in zip(*parts, strict=True))
    share = mass / mass.sum()
    return model, np.log(mass.sum()), share @ (variance + mean**2) - (share @ mean) ** 2


@pytest.mark.parametrize("narrow, wide, centre", [(0.01, 10, 1.234), (0.01, 10, 0), (0.03, 3, 1.2)])
def test_a_spike_beside_a_slab_takes_more_points(narrow, wide, centre):
    model, evidence, variance = spike_and_slab(narrow, wide, centre)
    posterior = pg.fit(model, infer=pg.EP, progress=False)
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=1e-5)
    assert float(posterior.marginal("x").variance) == pytest.approx(variance, rel=1e-4)
    assert "too coarse" not in posterior.status


def test_a_spike_that_no_points_resolve_is_said():
    model, _, _ = spike_and_slab(1e-4, 10, 0.0)
    posterior = pg.fit(model, infer=pg.EP, progress=False)
    assert 'too coarse for factor "f"' in posterior.status
    assert posterior.evidence_kind == "estimate"


def evaluated(monkeypatch, model, num_factors=2):
    """Points a factor of every call of the density of so many factors, in a run that converges."""
    evaluate, calls = checked.CheckedDensity.__call__, []

    def recorded(self, u, *centre):
        if u.shape[2] == num_factors:
            calls.append(len(u))
        return evaluate(self, u, *centre)

    monkeypatch.setattr(checked.CheckedDensity, "__call__", recorded)
    monkeypatch.setattr(on_points, "PIECE", 2**20)  # all points of a scan at once
    assert pg.fit(model, infer=pg.EP, progress=False).converged
    return calls


@pytest.mark.parametrize("piece", [2**20, 256, 130])
@pytest.mark.parametrize(
    "log_f, is_concave",
    [
        (lambda x: -(x**4), True),
        (lambda x: torch.where(x > 0.001, 5.0, 0.0), False),
        (lambda x: -(1 + x**2).log(), False),
    ],
)
def test_whether_a_logarithm_is_concave_does_not_depend_on_the_pieces(
    monkeypatch, piece, log_f, is_concave
):
    """With a step at every place in a piece."""
    found = []
    for shift in torch.linspace(0, 1, 9, dtype=torch.float64).tolist():
        engine = pg.EP(hits(lambda x, s=shift: log_f(x - s)), progress=False).setup()
        (block,) = engine.network.blocks
        moments = block.tilted
        mean = torch.zeros(1, 2, 1, dtype=torch.float64)
        grid = grids.Grid(mean, torch.ones(1, 2, 1, 1, dtype=torch.float64))
        g = Gaussian(torch.ones(1, 2, 1, 1, dtype=torch.float64), mean)
        monkeypatch.setattr(on_points, "PIECE", piece)
        monkeypatch.setattr(on_points, "SHORTEST", 2)
        points = grids.evenly_spaced(257, mean)
        sums = moments._weighed(g, mean, grid, points)
        found.append(moments._is_concave(grid, points))
        monkeypatch.setattr(on_points, "PIECE", 2**20)
        whole = moments._weighed(g, mean, grid, points)
        assert_close(sums.half, whole.half)
    assert found == [is_concave] * 9


def hits(log_f):
    def model():
        x = pyro.sample("x", dist.Normal(torch.tensor(0.5, dtype=torch.float64), 1.0))
        with pyro.plate("n", 2):
            pyro.factor("f", log_f(x * torch.tensor([1.0, 0.5])))

    return model


def test_concave_logarithms_are_scanned_finely_once(monkeypatch):
    calls = evaluated(monkeypatch, hits(torch.special.log_ndtr))
    assert calls.count(tilted.MOST) == 1
    assert calls.count(tilted.COMPARED) == 2


def test_others_are_scanned_finely_again_at_rest(monkeypatch):
    calls = evaluated(monkeypatch, hits(lambda x: -(1 + x**2).log()))
    assert calls.count(tilted.MOST) == 4  # whether it is concave, and the moments, twice
    assert tilted.COMPARED not in calls


@pytest.mark.parametrize("y, scans", [(2.0, 1), (12.0, 2)])
def test_beyond_the_first_scan_nothing_is_known_to_be_concave(monkeypatch, y, scans):
    """It reached eight deviations of the prior; others then pull the node to y."""

    def model():
        x = pyro.sample("x", dist.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0))
        with pyro.plate("n", 2):
            pyro.factor("f", torch.special.log_ndtr(x - torch.tensor([0.0, 1.0])))
        with pyro.plate("m", 3):
            pyro.sample("y", dist.StudentT(30.0, x, 0.2), obs=torch.full((3,), y))

    assert evaluated(monkeypatch, model).count(tilted.MOST) == scans


def test_a_narrow_bump_on_flat_ground_is_not_concave():
    z = torch.linspace(-8, 8, 4097, dtype=torch.float64)[:, None, None]
    bump = torch.logaddexp(torch.zeros_like(z), 3 - 0.5 * ((z - 1.2345) / 0.004) ** 2)
    assert not bool(grids.is_concave(bump))
    spike = torch.zeros_like(z)
    for at in (0, 1, 2000, 4095, 4096):
        one = spike.clone()
        one[at] = 1.0
        assert not bool(grids.is_concave(one)), at
    assert bool(grids.is_concave(-(z**2)))
    assert bool(grids.is_concave(torch.special.log_ndtr(z)))


def test_a_steep_edge_that_comes_into_reach_is_scanned_finely_though_concave():
    """Few points find .06 more, and do not settle."""

    def model():
        x = pyro.sample("x", dist.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0))
        pyro.factor("f", torch.special.log_ndtr(1000 * (4 - x)))
        with pyro.plate("m", 4):
            pyro.sample("y", dist.StudentT(30.0, x, 0.8), obs=torch.full((4,), 4.3))

    def log_f(a, z):
        edge = stats.norm.logcdf(1000 * (4 - z))
        return edge if a == 0 else stats.t.logpdf(4.3, 30, z, 0.8)

    posterior = pg.fit(model, infer=pg.EP, progress=False)
    _, _, evidence, _ = plain_ep(0.0, 1.0, np.ones((5, 1)), log_f, points=40001)
    assert posterior.converged
    assert abs(float(posterior.log_evidence) - evidence) < 1e-4


def test_a_spike_between_the_points_of_a_vague_prior_is_found_once_others_hold_the_node():
    """Flat ground is concave, and the first points were .4 apart."""

    def log_f(x):
        return torch.logaddexp(torch.zeros_like(x), 6 - 0.5 * ((x - 1.0093) / 0.0015) ** 2)

    def model():
        x = pyro.sample("x", dist.Normal(torch.tensor(0.0, dtype=torch.float64), 100.0))
        pyro.factor("spike", log_f(x))
        with pyro.plate("m", 4):
            pyro.sample("y", dist.StudentT(30.0, x, 0.6), obs=torch.ones(4))

    z = torch.linspace(-2, 4, 2_000_001, dtype=torch.float64)
    y = dist.StudentT(30.0, z, 0.6).log_prob(torch.tensor(1.0, dtype=torch.float64))
    value = dist.Normal(0.0, 100.0).log_prob(z) + log_f(z) + 4 * y
    evidence = float(value.logsumexp(0) + (z[1] - z[0]).log())
    posterior = pg.fit(model, infer=pg.EP, progress=False)
    assert abs(float(posterior.log_evidence) - evidence) < 0.02


# ---------------------------------------------------------------------- giving up even points
def volatility(y):
    """Log variances that walk: under the first cavities, which are wide, 32 points are too few."""
    with pyro.plate("T", len(y)):
        h = pyro.sample("h", dist.Normal(0.0, 1.0).mask(False))
    pyro.factor("first", dist.Normal(0.0, 1.0).log_prob(h[0]))
    pyro.factor("walk", dist.Normal(0.95 * h[:-1], 0.3).log_prob(h[1:]).sum())
    with pyro.plate("obs", len(y)):
        pyro.sample("y", dist.Normal(0.0, (h / 2).exp()), obs=y)


def two_modes(y):
    """A mode far away that counts for the variance at rest too."""
    with pyro.plate("n", len(y)):
        x = pyro.sample("x", dist.Normal(0.0, 3.0))
        near, far = (dist.Normal(x, 0.1).log_prob(place) for place in (y, y + 6.0))
        pyro.factor("o", torch.logaddexp(near, far - 4.0))


def series(n):
    return 1.5 * torch.randn(n, generator=torch.Generator().manual_seed(1)) + 1


def tilted_of(engine, name):
    blocks = (block for block in engine.network.blocks if isinstance(block, QuadratureFactors))
    return next(block.tilted for block in blocks if block.local.group.name == name)


@pytest.mark.parametrize("sweeps", [10, None])
def test_evenly_spaced_points_are_given_up_where_few_ones_have_come_to_serve(monkeypatch, sweeps):
    y = series(30)
    ending = {"tol": None, "num_steps": sweeps} if sweeps else {}
    engine = pg.EP(volatility, progress=False, **ending)
    engine.step(y)
    assert tilted_of(engine, "y").is_rough
    posterior = engine.run(y)
    assert not tilted_of(engine, "y").is_rough
    monkeypatch.setattr(tilted, "RETURNS", 0)
    fine = pg.EP(volatility, progress=False, num_steps=engine.num_done, tol=None)
    expected = fine.run(y)
    assert tilted_of(fine, "y").is_rough
    assert_close(posterior.log_evidence, expected.log_evidence, rtol=0, atol=1e-6)
    for moment in ("mean", "variance"):
        ours, theirs = (getattr(p.marginal("h"), moment) for p in (posterior, expected))
        assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_they_are_kept_where_few_ones_do_not_serve():
    engine = pg.EP(two_modes, progress=False)
    y = torch.tensor([2.0, 2.5])
    posterior = engine.run(y)
    assert tilted_of(engine, "o").is_rough and tilted_of(engine, "o").returns == 0
    x = torch.linspace(-12, 12, 200001)
    density = dist.Normal(0.0, 3.0).log_prob(x) + torch.logaddexp(
        dist.Normal(x, 0.1).log_prob(y[:, None]), dist.Normal(x, 0.1).log_prob(y[:, None] + 6) - 4
    )
    evidence = (density.logsumexp(1) + np.log(24 / 200000)).sum()
    assert_close(posterior.log_evidence, evidence, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8])
def test_stepping_on_from_a_state_goes_by_the_same_points(cut):
    y = series(12)
    runs = []
    for first in (cut, 12):
        engine = pg.EP(volatility, num_steps=first, tol=None, progress=False)
        engine.run(y)
        runs.append(engine)
    half, whole = runs
    rest = pg.EP(volatility, num_steps=12, tol=None, progress=False).setup(y)
    rest.load_state_dict(half.state_dict())
    rest.run(y)
    for ours, theirs in zip(whole.messages, rest.messages, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            for name, value in a.parameters().items():
                assert torch.equal(value, b.parameters()[name])
    assert tilted_of(rest, "y").returns == tilted_of(whole, "y").returns


@pytest.mark.parametrize("edge", [35.0, 40.0])
def test_few_points_that_reach_where_there_is_no_density_do_not_serve(monkeypatch, edge):
    """Gauss-Hermite points go out ten standard deviations, evenly spaced ones eight."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 3.0))
        near, far = (dist.Normal(x, 0.1).log_prob(torch.tensor(mode)) for mode in (0.0, 10.0))
        pyro.factor("o", torch.logaddexp(near, far) + 0.01 * (edge - x).sqrt())
        pyro.sample("y", dist.StudentT(4.0, x, 2.0), obs=torch.tensor(16.0))

    found = pg.fit(model, infer=pg.EP, progress=False)
    monkeypatch.setattr(tilted, "RETURNS", 0)
    expected = pg.fit(model, infer=pg.EP, progress=False)
    assert found.converged and len(found.history["objective"]) < 30
    assert_close(found.log_evidence, expected.log_evidence, rtol=0, atol=1e-8)


def test_sums_over_many_pieces_are_put_together_as_they_come(monkeypatch):
    """Of thousands of factors a piece has few points: kept apart, its sums would take more than
    they do."""
    lengths, together = [], on_points.together

    def noted(pieces):
        lengths.append(len(pieces))
        return together(pieces)

    def model(y):
        with pyro.plate("n", len(y)):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.StudentT(3.0, x, 0.5), obs=y)

    y = torch.linspace(-6.0, 6.0, 3000)
    monkeypatch.setattr(on_points, "together", noted)
    some = pg.fit(model, (y,), infer=pg.EP, progress=False)
    assert max(lengths) == on_points.KEPT
    monkeypatch.setattr(on_points, "KEPT", 10**6)
    every = pg.fit(model, (y,), infer=pg.EP, progress=False)
    assert max(lengths) > 3 * 16
    assert_close(some.log_evidence, every.log_evidence, rtol=1e-12, atol=0)
    for law in ("mean", "variance"):
        found, expected = (getattr(p.marginal("x"), law) for p in (some, every))
        assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("y", [(1.0, 0.0), (1.0, 0.0, 0.5), (0.0, 0.0)])
def test_a_return_of_zero_in_a_stochastic_volatility(y):
    """Its likelihood grows for ever as the volatility falls: the first grid, over a flat cavity,
    reaches where the scale is none any more, and the next one is not to be laid there."""

    def program():
        mean, sd = 0.0, 1.0
        for t, value in enumerate(y):
            h = pyro.sample(f"h{t}", dist.Normal(mean, sd))
            scale = torch.exp(h.double() / 2)
            pyro.sample(f"y{t}", dist.Normal(0.0, scale), obs=torch.tensor(value).double())
            mean, sd = 0.9 * h, 0.3

    h = torch.linspace(-8, 8, 1601, dtype=torch.float64)
    step = dist.Normal(0.9 * h, 0.3).log_prob(h[:, None])  # to, from
    log_p = dist.Normal(0.0, 1.0).log_prob(h)
    for t, value in enumerate(y):
        log_p = (step + log_p).logsumexp(1) + math.log(0.01) if t else log_p
        log_p = log_p + dist.Normal(0.0, torch.exp(h / 2)).log_prob(torch.tensor(value).double())
    truth = float(log_p.logsumexp(0)) + math.log(0.01)
    found = pg.fit(program, infer=pg.EP, progress=False)
    assert found.converged
    assert abs(float(found.log_evidence) - truth) < 0.01
