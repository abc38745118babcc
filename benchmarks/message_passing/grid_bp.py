"""Belief propagation on dense grids: the truth that particle methods are measured against.

    m_{j -> i}(x_i) = sum_n w f_ij(x_i, x_n) phi_j(x_n) prod_{k != i} m_{k -> j}(x_n)

over G equally spaced points x_n, w apart. Exact belief propagation as the grid becomes dense; one
sweep costs O(E G^2). With points x_n drawn from q_j and weights 1 / (N q_j(x_n)) the same sums are
those of particle belief propagation, so the model and its evidence

    log Z = sum_i log Z_i + sum_ij (log Z_ij - log Z_i - log Z_j)

serve all three methods; Z_i and Z_ij are the masses of phi_i prod m and of f_ij times cavities.

Source: Pearl (1988); Yedidia, Freeman & Weiss (2005) for the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PairwiseModel:
    """Nodes of one number each, and factors on pairs of them.

    Messages are numbered 0 .. 2 E - 1: into the first nodes of the edges, then into the second.

    Args:
        edges: ``[E, 2]``.
        log_unary: of values ``[V, n]``, one row per node: ``[V, n]``.
        log_pair: of values ``[E, n]`` of the first and ``[E, m]`` of the second nodes, one row per
            edge: ``[E, n, m]``.
        support: an interval outside which beliefs are taken to vanish.
    """

    edges: Tensor
    log_unary: Callable[[Tensor], Tensor]
    log_pair: Callable[[Tensor, Tensor], Tensor]
    support: tuple[float, float]

    @property
    def num_nodes(self) -> int:
        return int(self.edges.max()) + 1

    @property
    def into(self) -> Tensor:
        """``[2 E]``: the node that each message goes to."""
        return self.edges.T.flatten()

    @property
    def out_of(self) -> Tensor:
        """``[2 E]``: the node that each message comes from."""
        return self.edges.flip(1).T.flatten()

    def log_factors(self, to: Tensor, source: Tensor) -> Tensor:
        """log f of values ``[V, m]`` of the receivers and ``[V, n]`` of the senders, for every
        message: ``[2 E, m, n]``."""
        first, second = self.edges.unbind(1)
        backward = self.log_pair(source[first], to[second]).mT
        return torch.cat([self.log_pair(to[first], source[second]), backward])

    def log_belief(self, x: Tensor, messages: Tensor) -> Tensor:
        """Not normalised, ``[V, n]``, at points ``[V, n]`` from log messages ``[2 E, n]`` there."""
        return self.log_unary(x).index_add(0, self.into, messages)

    def log_evidence(self, x: Tensor, log_weight: Tensor, messages: Tensor) -> Tensor:
        """The equation above, ``[]``.

        Args:
            x: points ``[V, n]``.
            log_weight: ``[V, n]``: sums of exp(log_weight + g(x)) stand for integrals of exp g.
            messages: ``[2 E, n]`` log values at the points.
        """
        belief = self.log_belief(x, messages) + log_weight
        mass = belief.logsumexp(1)
        first, second = self.edges.unbind(1)
        left, right = messages.chunk(2)
        joint = self.log_pair(x[first], x[second])
        joint = joint + (belief[first] - left)[:, :, None] + (belief[second] - right)[:, None, :]
        pairs = joint.flatten(1).logsumexp(1)
        return mass.sum() + (pairs - mass[first] - mass[second]).sum()


@dataclass(frozen=True)
class GridBeliefs:
    """What grid belief propagation ends with.

    Attributes:
        points: ``[G]``.
        probability: ``[V, G]``, rows summing to one.
        log_evidence: ``[]``.
        residual: largest change of a log message in the last sweep.
    """

    points: Tensor
    probability: Tensor
    log_evidence: Tensor
    residual: float

    @property
    def mean(self) -> Tensor:
        """``[V]``"""
        return self.probability @ self.points

    @property
    def sd(self) -> Tensor:
        """``[V]``"""
        return (self.probability @ self.points.square() - self.mean.square()).sqrt()


def grid_bp(
    model: PairwiseModel,
    num_points: int = 400,
    *,
    damping: float = 0.0,
    num_steps: int = 200,
    tol: float = 1e-10,
) -> GridBeliefs:
    """All messages at once, until none changes by more than ``tol``.

    Args:
        damping: share of the old log message that is kept.
    """
    low, high = model.support
    points = torch.linspace(low, high, num_points, dtype=torch.float64)
    x = points.expand(model.num_nodes, -1)
    log_weight = torch.full_like(x, math.log((high - low) / (num_points - 1)))
    factors = model.log_factors(x, x)
    peak = factors.amax(2, keepdim=True)
    kernel = (factors - peak).exp()
    messages = torch.zeros(len(model.into), num_points, dtype=torch.float64)
    residual = math.inf
    for _ in range(num_steps):
        belief = model.log_belief(x, messages)[model.out_of]
        cavity = belief - messages.roll(len(model.edges), 0)
        scaled = (cavity - cavity.amax(1, keepdim=True)).exp()
        new = (kernel @ scaled[:, :, None]).log().squeeze(2) + peak.squeeze(2)
        new = torch.lerp(new - new.amax(1, keepdim=True), messages, damping)
        residual = float((new - messages).abs().max())
        messages = new
        if residual <= tol:
            break
    return GridBeliefs(
        points,
        model.log_belief(x, messages).softmax(1),
        model.log_evidence(x, log_weight, messages),
        residual,
    )
