"""Particle max-product on a sensor network: the baselines D-PMP and T-PMP of the paper's figure 4.

Every sensor t carries candidate places, and messages say how well a place of s can be explained:

    m_ts(x_s) = max_{x_t} [ psi_st(x_s, x_t) + phi_t(x_t) + sum_{u in N(t) \\ s} m_ut(x_t) ]

in logarithms, the maximum running over the candidates. An iteration doubles the candidates by
proposals, passes messages on the doubled sets and cuts each back to n:

    T-PMP   the n best by max-marginal phi_t + sum_u m_ut
    D-PMP   a greedy choice of columns that keeps sum_{s, x_s} max_{x_t in chosen} exp(...) of the
            messages a sensor sends as large as possible: monotone and submodular, so greedy
            comes within 1 - 1/e. Places that explain nothing new are not chosen; once nothing is
            left to gain, the best by max-marginal fill up.

Proposals: three in four on a circle, x_j + r_ij (cos a, sin a) about a place of a random
neighbour j at a random angle; the others a random walk of standard deviation 0.05 (the paper
calls it a variance, as it does for the ranges). The candidates are sets per sensor, not joint
draws: they have marginals only. O(links n^2) an iteration, D-PMP O(links n^3).

Source: Pacheco & Sudderth (2015), sections 3 and 4; Wang, Zeng & Liu (2018), section 4.2.
"""

from __future__ import annotations

import torch
from sensor_network import BOX, soft_box
from torch import Tensor

from pyrograph.datasets import RangingNetwork

WALK = 0.05
ON_CIRCLE = 0.75


class ParticleMaxProduct:
    """D-PMP or T-PMP on one network.

    Args:
        net: the network.
        num_particles: n.
        diverse: D-PMP, else T-PMP.
        seed: of the start and the proposals.
        num_sweeps: parallel message updates in an iteration.

    Shapes:
        x: ``[n, num_sensors, 2]`` candidates, from U[-1, 1]^2; independent between sensors.
    """

    def __init__(
        self,
        net: RangingNetwork,
        *,
        num_particles: int = 50,
        diverse: bool = True,
        seed: int = 0,
        num_sweeps: int = 10,
    ):
        self.net, self.n, self.diverse, self.num_sweeps = net, num_particles, diverse, num_sweeps
        self.generator = torch.Generator().manual_seed(seed)
        # both directions of every link: a message runs from source to target
        self.source = torch.cat([net.src, net.dst])
        self.target = torch.cat([net.dst, net.src])
        self.length = torch.cat([net.range, net.range])
        self.back = torch.arange(len(self.source)).roll(len(net.src))
        self.x = 2 * self._uniform(num_particles, net.num_sensors, 2) - 1

    def run(self, num_iterations: int = 100) -> Tensor:
        """Candidates after so many iterations, ``[n, num_sensors, 2]``."""
        for _ in range(num_iterations):
            self._iterate()
        return self.x

    def _iterate(self) -> None:
        x = torch.cat([self.x, self._propose()])
        places = x.transpose(0, 1)  # [sensors, 2 n, 2]
        unary, pair = self._unary(places), self._pair(places)
        messages = torch.zeros(len(self.source), x.shape[0], dtype=x.dtype)
        for _ in range(self.num_sweeps):
            marginal = unary.index_add(0, self.target, messages)
            outgoing = self._outgoing(pair, marginal, messages)
            messages = outgoing.amax(-1)
            messages = messages - messages.amax(-1, keepdim=True)
        marginal = unary.index_add(0, self.target, messages)
        if self.diverse:
            foundation = self._outgoing(pair, marginal, messages)
            foundation = (foundation - foundation.amax((1, 2), keepdim=True)).exp()
            kept = torch.stack(
                [
                    _cover(foundation[self.source == t].flatten(0, 1), marginal[t], self.n)
                    for t in range(len(places))
                ]
            )
        else:
            kept = marginal.topk(self.n, dim=1).indices
        self.x = places.gather(1, kept[..., None].expand(-1, -1, 2)).transpose(0, 1)

    def _outgoing(self, pair: Tensor, marginal: Tensor, messages: Tensor) -> Tensor:
        """What each message maximises over its last dimension, ``[links, 2 n, 2 n]``."""
        cavity = marginal[self.source] - messages[self.back]
        return pair + cavity[:, None, :]

    def _unary(self, places: Tensor) -> Tensor:
        """Box and ranges to anchors: ``[sensors, 2 n]``."""
        net = self.net
        gap = (places[net.anchor_src] - net.anchors[net.anchor_dst][:, None]).norm(dim=-1)
        fit = -(gap - net.anchor_range[:, None]).square() / (2 * net.sigma**2)
        return soft_box(places, BOX).sum(-1).index_add(0, net.anchor_src, fit)

    def _pair(self, places: Tensor) -> Tensor:
        """Log potential of target place (rows) and source place (columns) of every message."""
        gap = torch.cdist(places[self.target], places[self.source])
        return -(gap - self.length[:, None, None]).square() / (2 * self.net.sigma**2)

    def _propose(self) -> Tensor:
        """n new places per sensor, ``[n, sensors, 2]``."""
        proposals = self.x + WALK * torch.randn(
            self.x.shape, generator=self.generator, dtype=self.x.dtype
        )
        count = round(ON_CIRCLE * self.n)
        for t in range(self.net.num_sensors):
            centers, radii = self._circles(t)
            which = self._integers(len(radii), count)
            member = self._integers(self.n, count)
            angle = 2 * torch.pi * self._uniform(count)
            direction = torch.stack([angle.cos(), angle.sin()], 1)
            proposals[:count, t] = centers[member, which] + radii[which, None] * direction
        return proposals

    def _circles(self, t: int) -> tuple[Tensor, Tensor]:
        """Centers ``[n, degree, 2]`` and radii ``[degree]`` of what sensor t has ranges to."""
        net = self.net
        links = self.target == t
        anchored = net.anchor_src == t
        fixed = net.anchors[net.anchor_dst[anchored]].expand(self.n, -1, 2)
        centers = torch.cat([self.x[:, self.source[links]], fixed], 1)
        return centers, torch.cat([self.length[links], net.anchor_range[anchored]])

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator, dtype=self.net.range.dtype)

    def _integers(self, below: int, count: int) -> Tensor:
        return torch.randint(below, (count,), generator=self.generator)


def _cover(foundation: Tensor, marginal: Tensor, n: int) -> Tensor:
    """Columns that greedily maximise sum_rows max_{chosen} foundation, best first: ``[n]``."""
    covered = torch.zeros(len(foundation), dtype=foundation.dtype)
    chosen: list[int] = []
    while len(chosen) < n:
        gain = (foundation - covered[:, None]).clamp_min_(0).sum(0)
        best = int(gain.argmax())
        if gain[best] <= 1e-9:
            break
        chosen.append(best)
        covered = covered.maximum(foundation[:, best])
    rest = marginal.clone()
    rest[chosen] = -torch.inf
    best = rest.topk(n - len(chosen)).indices
    return torch.cat([torch.tensor(chosen, dtype=torch.long), best])
