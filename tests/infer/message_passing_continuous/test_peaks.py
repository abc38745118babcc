"""Peaks that points of boxes fall between, and boxes that follow them and narrow ridges."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy.integrate import quad
from scipy.special import ive
from torch import Tensor
from torch.testing import assert_close

from pyrograph.errors import NonFiniteDensity
from pyrograph.infer.message_passing.densities.checked import NOTHING
from pyrograph.infer.message_passing.quadrature.boxes import lay
from pyrograph.infer.message_passing.quadrature.grids import REACH, Grid
from pyrograph.infer.message_passing.quadrature.peaks import Peaks, climbed

ROOM = 2**18


def standard(dim: int) -> Grid:
    return Grid(torch.zeros(1, 1, dim), torch.eye(dim).expand(1, 1, dim, dim))


def of_standard(log_f: Callable[[Tensor], Tensor], dim: int, room: int = ROOM) -> tuple:
    """Boxes laid for f N(0, I), and the log of its mass on them."""

    def log_weight(grid: Grid, z: Tensor) -> Tensor:
        u = grid.mean + (grid.root @ z.unsqueeze(-1)).squeeze(-1)
        normal = -0.5 * u.square().sum(-1) - 0.5 * dim * math.log(2 * math.pi)
        return log_f(u) + normal + grid.log_volume

    first = standard(dim)
    boxes = lay(log_weight, first, first, room)
    parts = [(log_weight(boxes.frame, z) + v).logsumexp(0) for z, v in boxes.pieces(2**16)]
    return boxes, float(torch.stack(parts).logsumexp(0))


@pytest.mark.parametrize("dim", [2, 3])
def test_the_narrow_peaks_of_a_mixture_are_found(dim: int):
    torch.manual_seed(0)
    places = torch.randn(6, dim)
    width = 1e-3

    def log_value(z: Tensor) -> Tensor:
        off = (z[..., None, :] - places).square().sum(-1)
        return torch.maximum(-0.5 * off / width**2, -10 * off.sqrt() - 30).amax(-1)

    peaks = climbed(log_value, torch.Size([1, 1, dim]), torch.zeros(()), ROOM)
    nearest = (peaks.z[:, 0, 0] - places[:, None]).norm(dim=-1).amin(1)
    assert bool((nearest < width).all())
    assert_close(log_value(peaks.z), peaks.value)


def test_peaks_at_the_edge_stay_inside():
    peaks = climbed(lambda z: z.sum(-1), torch.Size([1, 2, 2]), torch.zeros(()), ROOM)
    assert peaks.z.shape[1:] == (1, 2, 2)
    assert_close(peaks.z, torch.full_like(peaks.z, REACH))


def test_every_factor_climbs_its_own():
    places = torch.tensor([[-1.0, 0.5], [2.0, 0.0], [0.3, 3.0]])
    peaks = climbed(
        lambda z: -(z - places).square().sum(-1), torch.Size([2, 3, 2]), torch.zeros(()), ROOM
    )
    assert_close(peaks.z, places.expand_as(peaks.z), rtol=0, atol=0.03)


def test_without_room_nothing_is_searched():
    def refused(z: Tensor) -> Tensor:
        raise AssertionError

    assert climbed(refused, torch.Size([1, 1, 2]), torch.zeros(()), 1000) is None


def test_boxes_know_the_highest_peak_in_them():
    z = torch.tensor([[0.5, 0.5], [0.6, 0.6], [3.0, 3.0]])[:, None, None]
    peaks = Peaks(z, torch.tensor([1.0, 2.0, 5.0])[:, None, None])
    low = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])[:, None, None]
    edge = torch.tensor([[1.0, 1.0], [2.0, 2.0], [1.0, 9.0]])[:, None, None]
    assert peaks.highest_in(low, edge).flatten().tolist() == [2.0, 5.0, NOTHING]


@pytest.mark.parametrize("place", [0.3, -2.1])
def test_a_spike_on_a_plain_is_not_missed(place: float):
    """A spike of width .003 whose tails sink into the plain at .13: the first boxes' points are
    further apart."""
    width, height = 3e-3, 15.0

    def log_f(u: Tensor) -> Tensor:
        off = (u - place).norm(dim=-1) / width
        return torch.logaddexp(torch.zeros_like(off), height - 2 * off.square().log1p())

    boxes, mass = of_standard(log_f, 2)
    assert boxes.are_sure

    def ring(r: float) -> float:
        """The spike times N(0, I), on a circle about it."""
        away = math.sqrt(2) * abs(place)
        normal = ive(0, r * away) * math.exp(-0.5 * (r - away) ** 2)
        return r * normal * math.exp(height) / (1 + (r / width) ** 2) ** 2

    spike = quad(ring, 0, 12, points=[width, 0.1, 1], limit=500)[0]
    assert mass == pytest.approx(math.log1p(spike), abs=1e-4)


def test_a_ridge_along_an_axis_takes_as_many_boxes_as_it_is_long():
    """Halved along every axis it took 3,000."""
    width = 0.005

    def log_f(u: Tensor) -> Tensor:
        return -0.5 * ((u[..., 0] - 0.7) / width) ** 2

    boxes, mass = of_standard(log_f, 2)
    assert boxes.are_sure and len(boxes.low) < 300
    total = 1 + width**2
    expected = -0.5 * 0.49 / total + math.log(width / math.sqrt(total))
    assert mass == pytest.approx(expected, abs=1e-5)


def test_a_corner_between_two_edges_is_resolved():
    """1 where both numbers are above 1/3: log f varies alike along both axes."""

    def log_f(u: Tensor) -> Tensor:
        return torch.where((u > 1 / 3).all(-1), 0.0, NOTHING)

    _, mass = of_standard(log_f, 2, room=2**19)
    tail = quad(lambda x: math.exp(-x * x / 2) / math.sqrt(2 * math.pi), 1 / 3, 10)[0]
    assert mass == pytest.approx(2 * math.log(tail), abs=1e-5)


def test_where_f_is_no_number_far_out_boxes_are_laid_without_a_search():
    calls = []

    def log_weight(grid: Grid, z: Tensor) -> Tensor:
        calls.append(len(z))
        if len(calls) == 1:
            raise NonFiniteDensity("far out")
        u = grid.mean + (grid.root @ z.unsqueeze(-1)).squeeze(-1)
        return -0.5 * u.square().sum(-1)

    boxes = lay(log_weight, standard(2), standard(2), ROOM)
    assert boxes.are_sure and len(calls) > 1
