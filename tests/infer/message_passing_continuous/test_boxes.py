"""Factors that are thin shells in the numbers they read. Truth: dense sums, and the densities of
distances, which are chi or non-central chi ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.special import logsumexp
from torch import Tensor
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.beliefs import Gaussian
from pyrograph.errors import NonFiniteDensity
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.densities.checked import NOTHING
from pyrograph.infer.message_passing.quadrature import tilted
from pyrograph.infer.message_passing.quadrature.boxes import Boxes, LastBoxes, lay, spanning
from pyrograph.infer.message_passing.quadrature.grids import Grid
from pyrograph.infer.message_passing.quadrature.sums import Weighed, summed, together
from tutorials.sensor_localization import model as room


@pytest.fixture(autouse=True)
def double() -> None:
    torch.set_default_dtype(torch.float64)  # put back by the fixture of all tests


def to_anchor(x: Tensor, y: Tensor) -> Tensor:
    return ((x - 1) ** 2 + (y + 0.5) ** 2) ** 0.5


def ring(x: Tensor, y: Tensor) -> Tensor:
    return x**2 + y**2


def valley(x: Tensor, y: Tensor) -> Tensor:
    return x.exp() + y.exp()


def of_two(read: Callable, noise: float, seen: float = 1.3):
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        y = pyro.sample("y", dist.Normal(0.0, 1.0))
        pyro.sample("o", dist.Normal(read(x, y), noise), obs=torch.tensor(seen))

    return model


def truth(read: Callable, noise: float, seen: float = 1.3):
    """Log evidence, means and variances by a dense sum over the shell."""
    axis = np.linspace(-6.5, 6.5, 1 + round(13 / min(0.02, 0.4 * noise)))
    x, y = torch.from_numpy(axis)[:, None], torch.from_numpy(axis)
    there = read(x, y)
    i, j = ((there - seen).abs() < 9 * noise).nonzero().numpy().T
    x, y, there = axis[i], axis[j], there.numpy()[i, j]
    value = -(x**2 + y**2) / 2 - math.log(2 * math.pi) + stats.norm.logpdf(seen, there, noise)
    whole = logsumexp(value)
    weight = np.exp(value - whole)
    mean = [(weight * part).sum() for part in (x, y)]
    variance = [(weight * (part - m) ** 2).sum() for part, m in zip((x, y), mean, strict=True)]
    return whole + 2 * math.log(axis[1] - axis[0]), mean, variance


def blocks(engine: pg.EP) -> list[QuadratureFactors]:
    return [block for block in engine.network.blocks if isinstance(block, QuadratureFactors)]


BETWEEN = [pytest.param(noise, marks=pytest.mark.slow) for noise in (0.1, 0.03)]


@pytest.mark.parametrize("noise", [0.3, 0.01, *BETWEEN])
@pytest.mark.parametrize("read", [to_anchor, ring, valley])
def test_shells_of_two_numbers(read: Callable, noise: float):
    posterior = pg.fit(of_two(read, noise), infer=pg.EP, progress=False)
    evidence, mean, variance = truth(read, noise)
    assert posterior.converged and posterior.status == "converged"
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=2e-5)
    for site, m, v in zip("xy", mean, variance, strict=True):
        found = posterior.marginal(site)
        assert float(found.mean) == pytest.approx(m, abs=1e-4)
        assert float(found.variance) == pytest.approx(v, rel=1e-4)


def test_a_shell_in_single_precision():
    torch.set_default_dtype(torch.float32)
    posterior = pg.fit(of_two(to_anchor, 0.03), infer=pg.EP, progress=False)
    evidence, _, variance = truth(to_anchor, 0.03)
    assert posterior.converged
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=1e-3)
    assert float(posterior.marginal("y").variance) == pytest.approx(variance[1], rel=1e-3)


def log_evidence_of_distance(seen: float, noise: float, anchor: float, width: int) -> float:
    """Of a distance to a point at ``anchor`` from the origin, x ~ N(0, I)."""

    def of_distance(d: float) -> float:
        density = 2 * d * stats.ncx2.pdf(d * d, width, anchor**2)
        return density * stats.norm.pdf(seen, d, noise)

    low, high = max(0.0, seen - 9 * noise), seen + 9 * noise
    return math.log(quad(of_distance, low, high, epsabs=0, epsrel=1e-10)[0])


@pytest.mark.parametrize("seen, noise, anchor, width", [(1.5, 0.1, 1.0, 3), (12.0, 0.1, 2.0, 2)])
def test_distances_in_space_and_far_from_the_prior(
    seen: float, noise: float, anchor: float, width: int
):
    place = torch.zeros(width)
    place[0] = anchor

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(width), 1.0).to_event(1))
        pyro.sample("d", dist.Normal((x - place).norm(), noise), obs=torch.tensor(seen))

    posterior = pg.fit(model, infer=pg.EP, progress=False)
    expected = log_evidence_of_distance(seen, noise, anchor, width)
    assert posterior.converged
    assert float(posterior.log_evidence) == pytest.approx(expected, abs=1e-4)
    across = posterior.marginal("x").variance[1:]  # alike in all directions but the anchor's
    assert_close(across, across[:1].expand_as(across), rtol=1e-3, atol=0)


def triangle():
    """Three sensors, some of their distances to three anchors and to each other."""
    with pyro.plate("sensors", 3):
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    anchors = torch.tensor([[1.0, 0.0], [-1.0, 0.5], [0.0, -1.0]])
    for k, seen in enumerate([[0.8, 1.3, 1.2], [1.9, 0.7, 1.5], [1.1, 1.6, 0.4]]):
        with pyro.plate(f"anchors_{k}", 3):
            away = (x[k] - anchors).norm(dim=-1)
            pyro.sample(f"a_{k}", dist.Normal(away, 0.1), obs=torch.tensor(seen))
    pyro.sample("b", dist.Normal((x[0] - x[1]).norm(), 0.1), obs=torch.tensor(1.5))
    pyro.sample("c", dist.Normal((x[1] - x[2]).norm(), 0.1), obs=torch.tensor(1.6))


def test_a_network_of_distances_settles_near_the_truth():
    """Truth: importance sampling from what the anchors say of each sensor, on dense grids."""
    posterior = pg.fit(triangle, infer=pg.EP, progress=False)
    assert posterior.converged
    generator = torch.Generator().manual_seed(0)
    axis = torch.linspace(-3, 3, 601)
    points = torch.cartesian_prod(axis, axis)
    anchors = torch.tensor([[1.0, 0.0], [-1.0, 0.5], [0.0, -1.0]])
    log_mass, draws = torch.zeros(()), []
    for seen in ([0.8, 1.3, 1.2], [1.9, 0.7, 1.5], [1.1, 1.6, 0.4]):
        away = torch.cdist(points, anchors)
        value = dist.Normal(away, 0.1).log_prob(torch.tensor(seen)).sum(1)
        value = value + dist.Normal(0.0, 1.0).log_prob(points).sum(1)
        log_mass = log_mass + value.logsumexp(0) + 2 * math.log(0.01)
        at = torch.multinomial(value.softmax(0), 100_000, replacement=True, generator=generator)
        draws.append(points[at])
    log_w = dist.Normal((draws[0] - draws[1]).norm(dim=-1), 0.1).log_prob(torch.tensor(1.5))
    log_w = log_w + dist.Normal((draws[1] - draws[2]).norm(dim=-1), 0.1).log_prob(torch.tensor(1.6))
    share = log_w.softmax(0)[:, None]
    found = posterior.marginal("x")
    evidence = log_mass + log_w.logsumexp(0) - math.log(len(log_w))
    assert float(posterior.log_evidence) == pytest.approx(float(evidence), abs=0.05)
    for k, part in enumerate(draws):
        mean = (share * part).sum(0)
        sd = (share * (part - mean) ** 2).sum(0).sqrt()
        assert bool(((found.mean[k] - mean).abs() < 0.15 * sd).all())
        assert bool(((found.variance[k].sqrt() / sd - 1).abs() < 0.1).all())


def test_radios_in_a_room(data_root):
    """Truth: importance sampling of the density by hand, from heavy tails about EP's beliefs."""
    net = pg.datasets.uwb_network()
    posterior = pg.fit(room, (net,), infer=pg.EP, progress=False)
    assert posterior.converged
    found = posterior.marginal("x")
    sd = found.variance.sqrt()
    pyro.set_rng_seed(0)
    tails = torch.distributions.StudentT(torch.tensor(6.0))
    z = tails.sample((100_000, *sd.shape))
    x = found.mean + 1.3 * sd * z
    prior = dist.Normal(net.anchors.mean(0), 2 * net.anchors.std(0))
    log_w = prior.log_prob(x).sum((-1, -2)) - (tails.log_prob(z) - (1.3 * sd).log()).sum((-1, -2))
    for from_, to, seen in (
        (x[:, net.src], x[:, net.dst], net.range),
        (x[:, net.anchor_src], net.anchors[net.anchor_dst], net.anchor_range),
    ):
        away = (from_ - to).norm(dim=-1)
        log_w = log_w + dist.Normal(away, net.sigma).log_prob(seen).sum(-1)
    share = log_w.softmax(0)[:, None, None]
    assert 1 / share.square().sum() > 5000
    mean = (share * x).sum(0)
    spread = (share * (x - mean) ** 2).sum(0).sqrt()
    evidence = float(log_w.logsumexp(0)) - math.log(len(log_w))
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=0.1)  # measured: .06
    assert float(((found.mean - mean) / spread).abs().max()) < 0.06  # .02
    assert float((sd / spread - 1).abs().max()) < 0.1  # .06


def test_a_constraint_on_the_product_of_two_numbers():
    """P(x y > 1) of standard normal numbers, whose product has the density K_0(|p|) / pi."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        y = pyro.sample("y", dist.Normal(0.0, 1.0))
        pyro.factor("above", torch.where(x * y > 1, 0.0, -torch.inf))

    x = np.linspace(0, 9, 900_001)[1:]
    above = 2 * (stats.norm.pdf(x) * stats.norm.sf(1 / x)).sum() * 1e-5
    posterior = pg.fit(model, infer=pg.EP, progress=False)
    assert float(posterior.log_evidence) == pytest.approx(math.log(above), abs=2e-3)


@pytest.mark.parametrize("within, mean, mass", [(0.3, 0.463754, -2.314244), (0.05, None, None)])
def test_a_disc_of_which_few_points_find_a_part_or_nothing(within, mean, mass):
    """P((x - .5)^2 + (y - .7)^2 < r^2): a non-central chi-squared distribution."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        y = pyro.sample("y", dist.Normal(0.0, 1.0))
        pyro.factor("disc", torch.where((x - 0.5) ** 2 + (y - 0.7) ** 2 < within, 0.0, -torch.inf))

    posterior = pg.fit(model, infer=pg.EP, progress=False)
    inside = math.log(stats.ncx2.cdf(within, 2, 0.5**2 + 0.7**2))
    assert float(posterior.log_evidence) == pytest.approx(inside, abs=2e-3)
    assert mass is None or inside == pytest.approx(mass, abs=1e-5)
    assert mean is None or float(posterior.marginal("x").mean) == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("prior", [1e2, 1e4])
def test_a_factor_far_narrower_than_the_cavity(prior: float, scale: float):
    """Student's t in two numbers under a vague prior: a mixture over its scale, by a dense sum."""
    place = torch.tensor([3.0, -2.0])

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), prior).to_event(1))
        pyro.factor("t", -3 * (1 + ((x - place) / scale).square().sum() / 4).log())

    posterior = pg.fit(model, infer=pg.EP, progress=False)
    s = stats.invgamma.ppf((np.arange(20_000) + 0.5) / 20_000, 2, scale=2)  # variances, in scale^2
    values = stats.norm.logpdf(3, 0, np.hypot(prior, scale * np.sqrt(s)))
    values = values + stats.norm.logpdf(-2, 0, np.hypot(prior, scale * np.sqrt(s)))
    expected = logsumexp(values) - math.log(len(s)) + math.log(2 * math.pi * scale**2)
    assert posterior.converged and posterior.status == "converged"
    assert float(posterior.log_evidence) == pytest.approx(expected, abs=1e-4)
    assert_close(posterior.marginal("x").mean, place, rtol=0, atol=2e-3 * scale + 1e-3)


def test_many_factors_that_leave_no_room_for_boxes_stay_on_few_points(monkeypatch):
    """Each with a smooth cone; truth: a dense sum of one."""
    count = 400
    for name in ("GROSS", "FINE"):
        usual = getattr(tilted, name)
        monkeypatch.setattr(tilted, name, replace(usual, numbers=usual.numbers // 10))

    def model():
        with pyro.plate("n", count):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            y = pyro.sample("y", dist.Normal(0.0, 1.0))
            pyro.factor("cone", -2 * (1 + (x - 0.5) ** 2 + y**2).sqrt())

    posterior = pg.fit(model, infer=pg.EP, progress=False)
    axis = np.linspace(-9, 9, 181)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    value = stats.norm.logpdf(x) + stats.norm.logpdf(y) - 2 * np.sqrt(1 + (x - 0.5) ** 2 + y**2)
    expected = logsumexp(value) + 2 * math.log(0.1)
    assert posterior.converged
    assert float(posterior.log_evidence) / count == pytest.approx(expected, abs=1e-5)


@functools.cache
def messages_after_four_steps(model: Callable) -> list:
    engine = pg.EP(model, num_steps=4, tol=None, progress=False)
    engine.run()
    return engine.messages


def test_reading_results_between_steps_changes_nothing():
    read = pg.EP(triangle, num_steps=4, tol=None, progress=False).setup()
    for _ in range(4):
        read.step()
        read.posterior()
    for ours, theirs in zip(messages_after_four_steps(triangle), read.messages, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.precision, b.precision) and torch.equal(a.shift, b.shift)


def test_boxes_serve_functions_near_theirs():
    """A Gaussian function about another place, on boxes laid for the first."""
    eye = torch.eye(2).expand(1, 3, 2, 2)
    first = Grid(torch.zeros(1, 3, 2), eye)
    scale = torch.tensor([1.0, 0.1, 0.01])  # of each factor, along one axis
    moved = torch.tensor([0.0, 0.3])

    def log_weight(shift: Tensor) -> Callable[[Grid, Tensor], Tensor]:
        def at(grid: Grid, z: Tensor) -> Tensor:
            u = grid.mean + (grid.root @ z.unsqueeze(-1)).squeeze(-1)
            u = u - shift
            return -0.5 * (u[..., 0] / scale) ** 2 - 0.5 * u[..., 1] ** 2

        return at

    boxes = lay(log_weight(torch.zeros(2)), first, first, room=10**6)
    assert not bool(boxes.missed.any())
    z, volume = (torch.cat(parts) for parts in zip(*boxes.pieces(1000), strict=True))
    for shift in (torch.zeros(2), moved):
        value = log_weight(shift)(boxes.frame, z) + volume
        assert_close(value.logsumexp(0)[0], (2 * math.pi * scale).log(), rtol=0, atol=1e-5)
    assert boxes.laid_for.is_near(Grid(first.mean + moved, eye))
    assert not boxes.laid_for.is_near(Grid(first.mean + 2 * moved, eye))
    assert not boxes.laid_for.is_near(Grid(first.mean, 2 * eye))


@pytest.mark.parametrize(
    "scale, room, is_sure",
    [(1, 600, False), (1, 1200, True), (1, 2400, True), (0.5, 1200, True), (0.25, 1200, False)],
)
def test_without_room_for_more_boxes_as_much_is_missed_as_halving_changed(scale, room, is_sure):
    """Of boxes that were never halved nothing is known. The mass of a Gaussian function."""
    first = Grid(torch.zeros(1, 1, 2), torch.eye(2).expand(1, 1, 2, 2))

    def log_weight(grid: Grid, z: Tensor) -> Tensor:
        u = grid.mean + (grid.root @ z.unsqueeze(-1)).squeeze(-1)
        return -0.5 * (u[..., 0] ** 2 + (u[..., 1] / scale) ** 2)

    boxes = lay(log_weight, first, first, room=room)
    z, volume = (torch.cat(parts) for parts in zip(*boxes.pieces(10_000), strict=True))
    found = float((log_weight(boxes.frame, z) + volume).logsumexp(0) + boxes.frame.log_volume)
    off = abs(math.expm1(found - math.log(2 * math.pi * scale)))
    assert_close(boxes.frame.root, first.root)
    assert boxes.are_sure == is_sure
    assert off < float(boxes.missed) <= 1 + 1e-9


def test_beyond_a_wall_few_boxes_are_looked_at():
    """log f = t - exp(t), t = 4 (x + y / 2 - 0.3): from t = 10 on nothing is left, by numbers that
    vary the more the less they count."""
    first, looked_at = Grid(torch.zeros(1, 1, 2), torch.eye(2).expand(1, 1, 2, 2)), []

    def log_weight(grid: Grid, z: Tensor) -> Tensor:
        looked_at.append(len(z))
        u = grid.mean + (grid.root @ z.unsqueeze(-1)).squeeze(-1)
        t = 4 * (u[..., 0] + u[..., 1] / 2 - 0.3)
        return t - t.exp() - u.square().sum(-1) / 2

    boxes = lay(log_weight, first, first, room=2**21)
    assert sum(looked_at) < 120_000  # 105,000; 298,000 where all that varies may hold mass
    z, volume = (torch.cat(parts) for parts in zip(*boxes.pieces(10_000), strict=True))
    found = (log_weight(boxes.frame, z) + volume).logsumexp(0) + boxes.frame.log_volume
    across = math.hypot(1, 0.5)

    def along(x: float) -> float:
        t = 4 * (across * x - 0.3)
        return math.exp(t - math.exp(min(t, 30)) - x * x / 2)

    expected = quad(along, -9, 4, epsabs=1e-14, points=[0.0, 0.3])[0] * math.sqrt(2 * math.pi)
    assert float(found) == pytest.approx(math.log(expected), abs=1e-6)


def test_the_foot_of_a_ridge_may_be_under_a_hill():
    """Beside the ridge points see the slope of the hill, and nothing else."""
    first = Grid(torch.zeros(1, 1, 2), torch.eye(2).expand(1, 1, 2, 2))
    place, width, lean = -3.54, 0.018, torch.tensor([-1.85, -3.03])
    centre, spread, lower = torch.tensor([3.6, 2.9]), 0.757, 6.24

    def log_weight(grid: Grid, z: Tensor) -> Tensor:
        u = grid.mean + (grid.root @ z.unsqueeze(-1)).squeeze(-1)
        ridge = u @ lean - u.square().sum(-1) / 2 - ((u[..., 0] - place) / width) ** 2 / 2
        return torch.logaddexp(ridge, -((u - centre) / spread).square().sum(-1) / 2 - lower)

    boxes = lay(log_weight, first, first, room=2**17)
    z, volume = (torch.cat(parts) for parts in zip(*boxes.pieces(10_000), strict=True))
    found = (log_weight(boxes.frame, z) + volume).logsumexp(0) + boxes.frame.log_volume
    # both are Gaussians: across, of precisions 1 and 1 / width^2; along, of precision 1
    precision = 1 + width**-2
    shift = float(lean[0]) + place / width**2
    ridge = (shift**2 / precision - (place / width) ** 2 + float(lean[1]) ** 2) / 2
    ridge += math.log(2 * math.pi) - math.log(precision) / 2
    hill = math.log(2 * math.pi * spread**2) - lower
    assert boxes.are_sure
    assert float(found) == pytest.approx(np.logaddexp(ridge, hill), abs=1e-5)


def test_a_frame_spans_both_grids():
    first = Grid(torch.zeros(1, 1, 2), torch.eye(2).expand(1, 1, 2, 2))
    peak = Grid(torch.tensor([[[20.0, 0.0]]]), 0.1 * torch.eye(2).expand(1, 1, 2, 2))
    frame = spanning(first, peak)
    corners = frame.mean + 8 * frame.root.diagonal(dim1=-2, dim2=-1) * torch.tensor([[-1.0], [1.0]])
    assert_close(corners, torch.tensor([[[-8.0, -8.0], [20.8, 8.0]]]))


def test_few_points_take_over_where_they_serve():
    """A location and a log scale of many numbers: the first cavities are wide, later ones are not.
    Truth: a dense sum."""
    y = torch.randn(200, generator=torch.Generator().manual_seed(0)) * 0.7 + 0.3

    def model():
        m = pyro.sample("m", dist.Normal(0.0, 3.0))
        s = pyro.sample("s", dist.Normal(0.0, 1.0))
        with pyro.plate("n", len(y)):
            pyro.sample("y", dist.StudentT(4.0, m, s.exp()), obs=y)

    engine = pg.EP(model, progress=False)
    posterior = engine.run()
    assert posterior.converged
    assert not blocks(engine)[0].tilted.is_rough and blocks(engine)[0].tilted.boxes is None
    axes = torch.linspace(-0.2, 0.8, 101), torch.linspace(-1, 0.3, 101)
    m, s = torch.meshgrid(*axes, indexing="ij")
    value = dist.Normal(0.0, 3.0).log_prob(m) + dist.Normal(0.0, 1.0).log_prob(s)
    value = value + sum(dist.StudentT(4.0, m, s.exp()).log_prob(one) for one in y)
    evidence = value.flatten().logsumexp(0) + math.log(0.01 * 0.013)
    assert float(posterior.log_evidence) == pytest.approx(float(evidence), abs=0.01)


@pytest.mark.parametrize("model, cut", [(of_two(ring, 0.1), 3), (triangle, 1), (triangle, 2)])
def test_stepping_on_from_a_state_with_boxes_is_bit_for_bit_the_unbroken_run(model, cut):
    half, rest = (pg.EP(model, num_steps=n, tol=None, progress=False) for n in (cut, 4))
    half.run()
    assert any(block.tilted.is_rough for block in blocks(half))
    rest.load_state_dict(half.state_dict())
    rest.run()
    for ours, theirs in zip(messages_after_four_steps(model), rest.messages, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.precision, b.precision) and torch.equal(a.shift, b.shift)


def test_shells_that_no_boxes_resolve_are_said(monkeypatch: pytest.MonkeyPatch):
    few = tilted.Agreement(1e-4, 0.01, 1e-6, 2**14)
    monkeypatch.setattr(tilted, "FINE", few)
    monkeypatch.setattr(tilted, "GROSS", few)
    posterior = pg.fit(of_two(ring, 0.003), infer=pg.EP, progress=False, num_steps=5, tol=None)
    assert 'too coarse for factor "o"' in posterior.status


def wave_of_unknown_period() -> Callable[[], None]:
    """A program with about twenty modes, of widths from .1 to .005 of the prior's."""
    torch.manual_seed(0)
    x = torch.linspace(0, 10, 20)
    y = torch.sin(2 * math.pi * x / 1.3) + 0.4 * torch.randn(20)

    def model():
        period = pyro.sample("log_period", dist.Normal(0.0, 0.7)).exp()
        size = pyro.sample("log_size", dist.Normal(0.0, 0.5)).exp()
        phase = 2 * math.pi * x / period
        waves = torch.stack([phase.sin(), phase.cos()], -1) * size
        noise = torch.full((20,), 0.16)
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(20), waves, noise), obs=y)

    return model


#: Log evidence of :func:`wave_of_unknown_period`, on 3,001 x 31 points.
OF_WAVE = -15.087


def test_modes_far_narrower_than_the_prior_are_found():
    """Few points hold one of them, and boxes that are halved where log f varies two or three."""
    posterior = pg.fit(wave_of_unknown_period(), infer=pg.EP, progress=False, num_steps=12)
    assert posterior.converged
    assert abs(float(posterior.log_evidence) - OF_WAVE) < 0.03


def test_modes_that_boxes_see_beside_few_points_leave_a_doubt(monkeypatch: pytest.MonkeyPatch):
    """Where there is no room for boxes that are sure."""
    for name in ("GROSS", "FINE"):
        few = replace(getattr(tilted, name), numbers=2**14)
        monkeypatch.setattr(tilted, name, few)
    posterior = pg.fit(wave_of_unknown_period(), infer=pg.EP, progress=False, num_steps=12)
    assert abs(float(posterior.log_evidence) - OF_WAVE) > 0.5
    assert 'too coarse for factor "y"' in posterior.status


def test_where_boxes_cannot_be_laid_anew_few_points_go_on(monkeypatch: pytest.MonkeyPatch):
    """The first cavities take boxes; the next ones reach where the factor is no number."""
    laid = []

    def once(*args):
        laid.append(lay(*args))
        if len(laid) > 1:
            raise NonFiniteDensity("far out")
        return laid[0]

    monkeypatch.setattr(tilted, "lay", once)
    engine = pg.EP(of_two(to_anchor, 0.03), num_steps=5, tol=None, progress=False)
    posterior = engine.run()
    assert len(laid) > 1
    assert not blocks(engine)[0].tilted.is_rough
    assert 'too coarse for factor "o"' in posterior.status


def test_points_of_boxes_come_in_pieces():
    low, edge = torch.zeros(5, 1, 1, 2), torch.full((5, 1, 1, 2), 0.5)
    grid = Grid(torch.zeros(1, 1, 2), torch.eye(2).expand(1, 1, 2, 2))
    boxes = Boxes(low, edge, torch.zeros(1, 1), grid, grid)
    pieces = list(boxes.pieces(80))
    assert [len(z) for z, _ in pieces] == [72, 72, 36]
    assert float(sum(volume.exp().sum() for _, volume in pieces)) == pytest.approx(5 * 0.25)


# ---------------------------------------------------------------------- the last ones
def test_a_piece_of_boxes_that_stand_in_where_nothing_is_left_changes_no_moments():
    """Their volumes are nothing, and so is the factor there: together less than nothing."""
    u, eye = torch.randn(36, 1, 1, 2), torch.eye(2).expand(1, 1, 2, 2)
    g = Gaussian(eye, torch.zeros(1, 1, 2))
    there = Weighed(u, torch.zeros(36, 1, 1), torch.zeros(36, 1, 1))
    nothing = torch.full((36, 1, 1), NOTHING)
    beyond = Weighed(u, torch.full((36, 1, 1), -3e16), torch.full((36, 1, 1), -3e16))
    seen, stands_in = (
        summed(points, g, u, volume, even=False)
        for points, volume in ((there, torch.zeros(36, 1, 1)), (beyond, nothing))
    )
    whole = together([seen, stands_in])
    for name in ("log_mass", "mean", "covariance", "squares"):
        assert torch.equal(getattr(whole, name), getattr(seen, name))


def test_the_last_boxes_serve_those_who_ask_for_the_same():
    last, laid = LastBoxes(), []

    def get(*asked: Tensor) -> int:
        return last(asked, lambda: laid.append(asked) or len(laid))

    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 1e-15])
    assert [get(one, one), get(one, one.clone())] == [1, 1]
    assert [get(one, other), get(one, one), get(one, one)] == [2, 3, 3]


def test_a_look_at_the_evidence_and_the_sweep_after_it_lay_boxes_once(monkeypatch):
    runs = []
    for remembers in (True, False):
        count = []

        def counted(*args, count=count, **options):
            count.append(1)
            return lay(*args, **options)

        monkeypatch.setattr(tilted, "lay", counted)
        if not remembers:
            monkeypatch.setattr(LastBoxes, "__call__", lambda self, asked, lay: lay())
        engine = pg.EP(of_two(ring, 0.01), progress=False)
        runs.append((engine.run().marginal("x").variance, len(count)))
    (variance, once), (same, twice) = runs
    assert once < twice
    assert torch.equal(variance, same)
