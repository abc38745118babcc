"""Quadrature rules against standard normal densities of some dimensions, for optimising and for
holding its results to account.

Gauss-Hermite points on tensor grids as long as they are few, a fixed low-discrepancy set beyond,
whose number does not depend on the dimension. Results are certified by finer rules, which the
optimiser never saw: many evenly spaced points in one dimension, where kinks of a potential cost
Gauss-Hermite rules their accuracy. In two to four dimensions grids are exact for what is smooth and
blind to ridges that their points straddle or line up with; scattered points see ridges and miss
steep tails. So both are asked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from pyrograph.quadrature import gauss_hermite

#: Most points per dimension where dimensions stand for several numbers.
MOST_POINTS = 16
#: Largest tensor grid.
MAX_POINTS = 1024
#: Points of the low-discrepancy sets.
SAMPLES, FINE_SAMPLES = 256, 4096
#: Points per dimension by which entropies are certified, fewest and most, and a second choice.
HELD_OUT, MOST_HELD_OUT = (24, 17), (128, 96)
#: Points per dimension for entropies, with how many numbers they may make; fewest beyond, and most
#: in more dimensions than one.
ENTROPY_POINTS, FEWEST_ENTROPY_POINTS = ((40, 2**22), (20, 2**23)), 12
MOST_ENTROPY_POINTS = 20
#: Finer points per dimension, by dimension, and a second choice to compare with.
FINE = ({2: 20, 3: 10, 4: 6}, {2: 15, 3: 8, 4: 5})
#: The second choice is turned by this angle against the axes: no grid's diagonals, where two nodes
#: are equal, are the other's.
TURN = math.pi / 8
#: Fewest scattered points, and numbers they may make altogether.
FEWEST_SCATTERED, SCATTERED_NUMBERS = 512, 2**22
#: Evenly spaced points, most and fewest, their reach, and numbers they may make altogether.
EVEN, FEWEST_EVEN, REACH, NUMBERS = (801, 401), 65, 8.0, 2**26


@dataclass(frozen=True)
class Rule:
    """Points ``[N, r]`` and weights ``[N]`` that add up to 1."""

    points: Tensor
    weights: Tensor


#: From dimension and number of integrals to a rule; and how many numbers of nodes the dimensions
#: stand for, and, of rules for entropies, how many scattered points there are at least.
Rules = Callable[..., Rule]


def coarse(num_points: int, like: Tensor, samples: int = SAMPLES, seed: int = 0) -> Rules:
    """Rules to optimise by, of ``num_points`` per number of the nodes.

    A difference of two nodes would meet K^2 points of their grid: a rule in the difference alone
    has as many, up to :data:`MOST_POINTS`. With K of them kinks would be missed more often.

    Args:
        samples: points, at least, where a grid would be too large; ``num_points ** 2`` if that is
            more.
        seed: of these points.
    """
    # no closures, here and below: engines that hold rules are pickled
    return partial(_coarse, num_points, like, samples, seed)


def _coarse(
    num_points: int,
    like: Tensor,
    samples: int,
    seed: int,
    dim: int,
    integrals: int,
    numbers: int | None = None,
    least: int = 0,
) -> Rule:
    count = min(num_points ** ((numbers or dim) // dim), max(num_points, MOST_POINTS))
    if count**dim > MAX_POINTS:
        count = num_points
    if count**dim > MAX_POINTS:
        return low_discrepancy(dim, max(samples, num_points**2, least), like, seed)
    return Rule(*gauss_hermite(count, dim, like.dtype, like.device))


def coarse_entropies(num_points: int, like: Tensor) -> Rules:
    """The same for entropies of mixtures, by default: grids of fewer points in more dimensions."""
    more = coarse(min(num_points, MOST_ENTROPY_POINTS), like)
    return partial(_by_dimension, coarse(num_points, like), more)


def _by_dimension(
    one: Rules, more: Rules, dim: int, integrals: int, numbers: int | None = None, least: int = 0
) -> Rule:
    return (one if dim == 1 else more)(dim, integrals, numbers, least)


def fine(like: Tensor, second: bool = False) -> Rules:
    """Rules to certify by; the second choice tells how good the first is."""

    def rule(dim: int, integrals: int, numbers: int | None = None) -> Rule:
        if dim == 1:
            most = min(EVEN[second], NUMBERS // (1 + second) // max(1, integrals))
            return evenly_spaced(max(FEWEST_EVEN - 16 * second, most), like)
        if dim in FINE[second]:
            grid = Rule(*gauss_hermite(FINE[second][dim], dim, like.dtype, like.device))
            return turned(grid) if second else grid
        return low_discrepancy(dim, FINE_SAMPLES >> second, like, 1 + second)

    return rule


def is_on_grids(dim: int) -> bool:
    """Whether fine rules of so many dimensions are tensor grids."""
    return dim in FINE[0]


def scattered(integrals: int, like: Tensor, second: bool = False) -> Rules:
    """Rules whose points line up with nothing, to hold grids to account.

    Args:
        integrals: of one kind, at most.
    """
    count = max(FEWEST_SCATTERED, min(FINE_SAMPLES, SCATTERED_NUMBERS // max(1, integrals)))

    def rule(dim: int, integrals: int, numbers: int | None = None) -> Rule:
        return low_discrepancy(dim, count >> second, like, 3 + second)

    return rule


def fine_entropies(like: Tensor, second: bool = False) -> Rules:
    """The same for entropies of mixtures: as many points as a pair of nodes can have in time."""
    other = coarse(HELD_OUT[second], like, FINE_SAMPLES >> second, 1 + second)

    def rule(dim: int, integrals: int, numbers: int | None = None, least: int = 0) -> Rule:
        if dim > 1:
            return other(dim, integrals, numbers, least)
        most = math.isqrt(NUMBERS // max(1, integrals))
        count = min(MOST_HELD_OUT[second], most * MOST_HELD_OUT[second] // MOST_HELD_OUT[0])
        return Rule(*gauss_hermite(max(HELD_OUT[second], count), 1, like.dtype, like.device))

    return rule


def entropy_points(num_nodes: int, num_components: int) -> int:
    """The default number of points for entropies."""
    pairs = num_nodes * num_components**2
    affordable = (points for points, most in ENTROPY_POINTS if pairs * points**2 <= most)
    return next(affordable, FEWEST_ENTROPY_POINTS)


def evenly_spaced(count: int, like: Tensor) -> Rule:
    """Trapezoids under the normal density."""
    z = torch.linspace(-REACH, REACH, count, dtype=like.dtype, device=like.device)
    weights = torch.exp(-0.5 * z.square())
    return Rule(z.unsqueeze(1), weights / weights.sum())


def turned(rule: Rule) -> Rule:
    """The rule turned by :data:`TURN` in the plane of every two axes: as exact for polynomials."""
    z = rule.points
    for i, j in itertools.combinations(range(z.shape[1]), 2):
        turn = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
        turn[i, i] = turn[j, j] = math.cos(TURN)
        turn[i, j], turn[j, i] = -math.sin(TURN), math.sin(TURN)
        z = z @ turn.mT
    return Rule(z, rule.weights)


def low_discrepancy(dim: int, count: int, like: Tensor, seed: int = 0) -> Rule:
    """A Sobol set and its mirror image, mapped to normal numbers and scaled to variance 1.

    Sets of one seed are parts of each other: what holds another to account has its own.
    """
    inside = SobolEngine(dim, scramble=True, seed=seed).draw(count // 2, dtype=torch.float64)
    z = torch.special.ndtri(inside.clamp(1e-12, 1 - 1e-12))
    z = torch.cat([z, -z])
    z = (z / z.square().mean(0).sqrt()).to(like)
    return Rule(z, like.new_full((len(z),), 1 / len(z)))
