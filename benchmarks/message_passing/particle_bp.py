"""Particle belief propagation: messages as importance-weighted sums over particles of the sender.

    m_{j -> i}(x_i) = (1 / N) sum_n f_ij(x_i, x_n) / m_{i -> j}(x_n),    x_n ~ b_j

since the cavity of a message out of j is b_j / m_{i -> j}. After every sweep the particles of each
node are moved by random-walk Metropolis steps whose target is its belief as it stands; a step
evaluates all messages at the proposed values, so that a sweep costs O(steps E N^2).

Source: Ihler & McAllester (2009), "Particle belief propagation", sections 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from grid_bp import PairwiseModel
from torch import Tensor

#: Random-walk steps, in standard deviations of the node's particles.
STEP = 1.0


@dataclass(frozen=True)
class ParticleMessages:
    """m_e(x) = sum_n exp(log_weight_en) f_e(x, x_n), x_n the particles of the sender.

    Shapes:
        particles: ``[V, N]``.
        log_weight: ``[2 E, N]``.
    """

    model: PairwiseModel
    particles: Tensor
    log_weight: Tensor

    def at(self, x: Tensor) -> Tensor:
        """Log messages at points ``[V, m]`` of their receivers: ``[2 E, m]``."""
        factors = self.model.log_factors(x, self.particles)
        return (factors + self.log_weight[:, None, :]).logsumexp(2)

    def log_belief(self, x: Tensor) -> Tensor:
        """Not normalised, ``[V, m]``, at any points ``[V, m]``."""
        return self.model.log_belief(x, self.at(x))

    def probability(self, points: Tensor) -> Tensor:
        """Beliefs on a grid ``[G]`` that all nodes share: ``[V, G]``, rows summing to one."""
        return self.log_belief(points.expand(self.model.num_nodes, -1)).softmax(1)


def spread_out(
    model: PairwiseModel, num_particles: int, generator: torch.Generator
) -> ParticleMessages:
    """Uniform particles on the support, all of the same weight."""
    low, high = model.support
    shape = model.num_nodes, num_particles
    x = low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
    return ParticleMessages(model, x, torch.zeros(len(model.into), num_particles).to(x))


def particle_bp(
    model: PairwiseModel,
    num_particles: int,
    *,
    num_steps: int = 10,
    num_moves: int = 20,
    seed: int = 0,
) -> ParticleMessages:
    """Sweeps of Metropolis moves and new messages, all nodes at once.

    Args:
        num_moves: Metropolis steps of every particle in a sweep.
    """
    generator = torch.Generator().manual_seed(seed)
    messages = spread_out(model, num_particles, generator)
    for _ in range(num_steps):
        x = moved(messages, num_moves, generator)
        back = messages.at(x).roll(len(model.edges), 0)  # m_{i -> j} at the particles of j
        messages = ParticleMessages(model, x, -back - (-back).logsumexp(1, keepdim=True))
    return messages


def moved(messages: ParticleMessages, num_moves: int, generator: torch.Generator) -> Tensor:
    """Particles ``[V, N]`` after random-walk Metropolis steps on the beliefs."""
    low, high = messages.model.support
    x = messages.particles
    value = messages.log_belief(x)
    for _ in range(num_moves):
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        there = x + STEP * x.std(1, keepdim=True) * noise
        proposed = messages.log_belief(there)
        proposed = torch.where((there > low) & (there < high), proposed, -torch.inf)
        threshold = torch.rand(x.shape, generator=generator, dtype=x.dtype).log()
        taken = proposed - value > threshold
        x, value = torch.where(taken, there, x), torch.where(taken, proposed, value)
    return x
