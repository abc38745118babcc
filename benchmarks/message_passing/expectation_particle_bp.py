"""Expectation particle belief propagation: particles from Gaussians that expectation propagation
fits to the messages.

    x_n ~ q_j = eta_j prod_k eta_{k -> j}
    m_{j -> i}(x_i) = (1 / N) sum_n f_ij(x_i, x_n) b_j(x_n) / (q_j(x_n) m_{i -> j}(x_n))
    eta_{j -> i} <- proj[ m_{j -> i} q_i / eta_{j -> i} ] / (q_i / eta_{j -> i})

and eta_j likewise from the own factor. No Markov chains: a sweep costs O(E N^2), and O(E N G)
for the projections, which take moments on G points of the support. A projection whose cavity or
result is improper is skipped.

Source: Lienart, Teh & Doucet (2015), "Expectation particle belief propagation", algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from grid_bp import PairwiseModel
from particle_bp import ParticleMessages, spread_out
from torch import Tensor

#: Least standard deviation of a proposal, as a share of the support's width.
NARROWEST = 1e-3


@dataclass(frozen=True)
class ExpectationParticles:
    """What expectation particle belief propagation ends with.

    Attributes:
        messages: as functions.
        mean, sd: ``[V]`` of the Gaussian proposals.
        log_evidence: ``[]``.
    """

    messages: ParticleMessages
    mean: Tensor
    sd: Tensor
    log_evidence: Tensor


def expectation_particle_bp(
    model: PairwiseModel,
    num_particles: int,
    *,
    num_steps: int = 10,
    num_points: int = 64,
    damping: float = 0.5,
    seed: int = 0,
) -> ExpectationParticles:
    """Sweeps of new particles, messages and proposals, all nodes at once.

    Args:
        num_points: of the projections, on the support.
        damping: share of the old eta's natural parameters that is kept.
    """
    generator = torch.Generator().manual_seed(seed)
    low, high = model.support
    narrowest = NARROWEST * (high - low)
    grid = torch.linspace(low, high, num_points, dtype=torch.float64).expand(model.num_nodes, -1)
    messages = spread_out(model, num_particles, generator)
    # natural parameters (precision, precision * mean) of eta: the nodes' own, those of messages
    nodes, count = torch.arange(model.num_nodes), len(model.into)
    at = torch.cat([nodes, model.into])
    own = _natural(model.log_unary(grid), grid)
    eta = torch.cat([own, own.new_zeros(count, 2)])
    for _ in range(num_steps):
        q = _product(eta, at, own)
        mean, sd = q[:, 1] / q[:, 0], q[:, 0].rsqrt().clamp_min(narrowest)
        noise = torch.randn(model.num_nodes, num_particles, generator=generator, dtype=sd.dtype)
        x = mean[:, None] + sd[:, None] * noise
        log_q = -0.5 * noise.square() - (sd * math.sqrt(2 * math.pi)).log()[:, None]
        log_weight = -log_q - math.log(num_particles)
        log_weight = torch.where((x > low) & (x < high), log_weight, -torch.inf)
        there = messages.at(x)
        weighted = (model.log_belief(x, there) + log_weight)[model.out_of]
        weighted = weighted - there.roll(len(model.edges), 0)
        log_evidence = model.log_evidence(x, log_weight, there)
        weighted = weighted - weighted.logsumexp(1, keepdim=True)
        messages = ParticleMessages(model, x, weighted)
        log_f = torch.cat([model.log_unary(grid), messages.at(grid)])
        new = torch.lerp(_projected(log_f, q[at], eta, grid[at]), eta, damping)
        is_proper = _product(new, at, own)[:, :1] > 0
        eta = torch.where(is_proper[at], new, eta)
    return ExpectationParticles(messages, mean, sd, log_evidence)


def _natural(log_density: Tensor, points: Tensor) -> Tensor:
    """(1 / variance, mean / variance) of densities ``[R, G]`` at points ``[R, G]``: ``[R, 2]``."""
    share = log_density.softmax(1)
    mean = (share * points).sum(1)
    variance = (share * (points - mean[:, None]).square()).sum(1)
    return torch.stack([1 / variance, mean / variance], 1)


def _product(eta: Tensor, at: Tensor, like: Tensor) -> Tensor:
    """Natural parameters of the nodes, ``[V, 2]``, from those of their factors ``[R, 2]``."""
    return torch.zeros_like(like).index_add(0, at, eta)


def _projected(log_f: Tensor, q: Tensor, eta: Tensor, points: Tensor) -> Tensor:
    """New eta ``[R, 2]`` of factors ``[R, G]``; the old one where cavity or result is improper."""
    cavity = q - eta
    log_cavity = cavity[:, 1:] * points - 0.5 * cavity[:, :1] * points.square()
    new = _natural(log_f + log_cavity, points) - cavity
    usable = (cavity[:, 0] > 0) & new.isfinite().all(1)
    return torch.where(usable[:, None], new, eta)
