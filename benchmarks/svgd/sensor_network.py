"""The sensor networks of Graphical SVGD, section 4.2: layouts, ranges and the Pyro program.

    r_ij = ||x_i - x_j|| + sigma e_ij,   sigma = 0.05,   for the pairs closer than a radius
    log p(x) = - sum_ij (||x_i - x_j|| - r_ij)^2 / (2 sigma^2) + sum_i box(x_i)

A node is one sensor, its two coordinates kept together. Pairs that were not measured say
nothing. Three points where the printed setting is not enough, and what is done here:

* sigma is printed as a variance; it is the standard deviation.
* Ranges alone leave an improper posterior as soon as a part of the network can slide or turn,
  so there is a prior: uniform on a box with soft walls (``box=None`` is the printed score).
* The small network cannot be a plain draw. A sensor has two coordinates, so nine of them need
  eighteen ranges and more; with radius 0.5 and anchors in three corners of [-1, 1]^2 nine
  uniform sensors do not even connect (probability 0.005). The layout is fixed instead, with
  radius 1, half the side of the square: 24 ranges, 18 of which hold seven sensors in place. The
  other two are less than 1 away from the corner without an anchor, and would be held by one.
  As it is, each has three neighbours nearly on a line and so two places, the true one and about
  its mirror image in that line, which fits worse by about one nat. The layout was found by a
  search among networks of this kind for one where plain gradient ascent from U[-1, 1]^2 reaches
  all four places equally often, so that a method that misses one loses it by itself.

Source: Wang, Zeng & Liu (2018), section 4.2, figures 4 and 5.
"""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pyrograph.datasets import RangingNetwork

SIGMA = 0.05
BOX = 1.5
WALL = 0.02
SMALL_RADIUS = 1.0
SMALL_ANCHORS = ((-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0))
#: Seven sensors that the ranges hold in place, then the two near the corner without an anchor.
SMALL_LAYOUT = (
    (-0.19, 0.18),
    (-0.58, 0.72),
    (0.77, -0.64),
    (-0.38, 0.49),
    (0.59, -0.41),
    (-0.13, -0.55),
    (-0.88, -0.21),
    (0.03, 0.87),
    (0.70, 0.07),
)
AMBIGUOUS = (7, 8)


def soft_box(x: Tensor, box: float = BOX, wall: float = WALL) -> Tensor:
    """Log density, up to a constant, of U[-box, box] plus logistic noise of scale ``wall``."""
    return logsigmoid((x + box) / wall) + logsigmoid((box - x) / wall)


def model(net: RangingNetwork, box: float | None = BOX) -> None:
    """One node per sensor, one factor per range."""
    with pyro.plate("sensors", net.num_sensors):
        flat = dist.Normal(net.positions.new_zeros(2), 1.0).to_event(1).mask(False)
        x = pyro.sample("x", flat)
        if box is not None:
            pyro.factor("box", soft_box(x, box).sum(-1))
    with pyro.plate("links", len(net.range)):
        distance = (x[net.src] - x[net.dst]).norm(dim=-1)
        pyro.sample("range", dist.Normal(distance, net.sigma), obs=net.range)
    with pyro.plate("anchor_links", len(net.anchor_range)):
        distance = (x[net.anchor_src] - net.anchors[net.anchor_dst]).norm(dim=-1)
        pyro.sample("anchor_range", dist.Normal(distance, net.sigma), obs=net.anchor_range)


def small_network(seed: int = 1) -> RangingNetwork:
    """The fixed nine sensors and three corner anchors; ``seed`` draws the noise of the ranges."""
    positions, anchors = np.array(SMALL_LAYOUT), np.array(SMALL_ANCHORS)
    n = len(positions)
    points = np.concatenate([positions, anchors])
    a, b = np.triu_indices(len(points), k=1)
    distance = np.linalg.norm(points[a] - points[b], axis=1)
    measured = distance + SIGMA * np.random.RandomState(seed).normal(size=len(a))
    inner = (distance < SMALL_RADIUS) & (b < n)
    outer = (distance < SMALL_RADIUS) & (a < n) & (b >= n)
    dtype = torch.get_default_dtype()
    return RangingNetwork(
        title="nine sensors",
        unit="",
        sigma=SIGMA,
        names=tuple(str(i) for i in range(n)),
        positions=torch.tensor(positions, dtype=dtype),
        anchor_names=tuple(f"A{i}" for i in range(len(anchors))),
        anchors=torch.tensor(anchors, dtype=dtype),
        src=torch.from_numpy(a[inner]),
        dst=torch.from_numpy(b[inner]),
        range=torch.tensor(measured[inner], dtype=dtype),
        anchor_src=torch.from_numpy(a[outer]),
        anchor_dst=torch.from_numpy(b[outer] - n),
        anchor_range=torch.tensor(measured[outer], dtype=dtype),
    )


def neighbors(net: RangingNetwork, sensor: int) -> Tensor:
    """Sensors that ``sensor`` has a range to."""
    return torch.cat([net.dst[net.src == sensor], net.src[net.dst == sensor]])


def line(net: RangingNetwork, sensor: int) -> tuple[int, int]:
    """The two neighbours of an ambiguous sensor that are farthest apart."""
    near = neighbors(net, sensor)
    apart = torch.cdist(net.positions[near], net.positions[near])
    first, second = divmod(int(apart.argmax()), len(near))
    return int(near[first]), int(near[second])


def mirror(x: Tensor, sensor: int, first: int, second: int) -> Tensor:
    """Places ``[..., 2]`` of a sensor, mirrored in the line through two others.

    ``x`` ``[..., n, 2]`` holds all sensors, as a tensor or a jax array. The image keeps the
    distances to the two, and as a map of the sensor's place the mirror keeps areas.
    """
    base, along = x[..., first, :], x[..., second, :] - x[..., first, :]
    arm = x[..., sensor, :] - base
    share = (arm * along).sum(-1) / (along * along).sum(-1)
    return base + 2 * share[..., None] * along - arm


def is_unfolded(net: RangingNetwork, x: Tensor, within: float = 0.4) -> Tensor:
    """Whether the sensors that the ranges hold in place are near their true places: ``[...]``.

    A folded map, a part of it turned over, is a local mode with places far off.
    """
    fixed = [i for i in range(net.num_sensors) if i not in AMBIGUOUS]
    return ((x - net.positions).norm(dim=-1)[..., fixed] < within).all(-1)


def on_true_side(net: RangingNetwork, x: Tensor, sensor: int) -> Tensor:
    """Whether an ambiguous sensor is nearer to its true place than to the mirror image of that."""
    truth = net.positions[sensor]
    image = mirror(net.positions, sensor, *line(net, sensor))
    place = x[..., sensor, :]
    return (place - truth).norm(dim=-1) < (place - image).norm(dim=-1)
