"""Particle baselines on the models of this folder, and what they say of log Z.

A Metropolis chain does not know the mass of the belief it walks on; it is taken here from a grid,
so that the particles of particle belief propagation have weights 1 / (N b(x)) and the Bethe
evidence can be summed over them as over any importance sample.
"""

from __future__ import annotations

import math

import criteria  # noqa: F401  (the path of the baselines)
import programs
import torch
from expectation_particle_bp import expectation_particle_bp
from grid_bp import PairwiseModel
from particle_bp import ParticleMessages, particle_bp
from torch import Tensor

from pyrograph.models import ChowLiuTree

METHODS = ("PBP", "EPBP")


def run(
    method: str, model: PairwiseModel, num_particles: int, num_steps: int, seed: int
) -> tuple[ParticleMessages, float]:
    """Messages and log Z of particle or expectation particle belief propagation."""
    if method == "PBP":
        messages = particle_bp(model, num_particles, num_steps=num_steps, seed=seed)
        return messages, float(log_evidence(messages))
    found = expectation_particle_bp(model, num_particles, num_steps=num_steps, seed=seed)
    return found.messages, float(found.log_evidence)


def log_evidence(messages: ParticleMessages, num_points: int = 400) -> Tensor:
    """The Bethe evidence over particles that are draws from the beliefs, ``[]``."""
    model, x = messages.model, messages.particles
    low, high = model.support
    points = torch.linspace(low, high, num_points, dtype=x.dtype)
    width = math.log((high - low) / (num_points - 1))
    mass = messages.log_belief(points.expand(model.num_nodes, -1)).logsumexp(1) + width
    at = messages.at(x)
    log_weight = mass[:, None] - model.log_belief(x, at) - math.log(x.shape[1])
    return model.log_evidence(x, log_weight, at)


def means(messages: ParticleMessages, num_points: int = 200) -> Tensor:
    """Of the beliefs, by a grid, ``[V]``."""
    points = torch.linspace(*messages.model.support, num_points, dtype=torch.float64)
    return messages.probability(points) @ points


def three_cycle() -> PairwiseModel:
    def log_pair(a: Tensor, b: Tensor) -> Tensor:
        return programs.cycle_pair(a[:, :, None], b[:, None, :])

    return PairwiseModel(programs.CYCLE, programs.cycle_unary, log_pair, (-50.0, 50.0))


def denoising(observed: Tensor) -> PairwiseModel:
    y, noise = observed.flatten()[:, None], programs.NOISE
    constant = -math.log(noise * math.sqrt(2 * math.pi))

    def log_unary(x: Tensor) -> Tensor:
        return constant - (x - y).square() / (2 * noise**2)

    def log_pair(a: Tensor, b: Tensor) -> Tensor:
        return programs.truncated_laplace(a[:, :, None] - b[:, None, :])

    return PairwiseModel(programs.grid_edges(*observed.shape), log_unary, log_pair, (-1.0, 1.5))


def chow_liu(tree: ChowLiuTree, support: tuple[float, float]) -> PairwiseModel:
    """With potentials on the edges alone: p_ij / (p_i^(1 - 1/d_i) p_j^(1 - 1/d_j))."""
    first, second = tree.edges.unbind(1)
    _, exponent = tree.exponents("edge-only")

    def of_many(density, *x: Tensor) -> Tensor:
        return density.log_prob_of_many(*(rows.T for rows in x)).T  # [B, n]

    def log_pair(a: Tensor, b: Tensor) -> Tensor:
        n, m = a.shape[1], b.shape[1]
        left = a[:, :, None].expand(-1, -1, m).flatten(1)
        right = b[:, None, :].expand(-1, n, -1).flatten(1)
        log_p = of_many(tree.pair, left, right).unflatten(1, (n, m))
        log_p = log_p + exponent[:, :1, None] * of_many(tree.unary[first], a)[:, :, None]
        return log_p + exponent[:, 1:, None] * of_many(tree.unary[second], b)[:, None, :]

    return PairwiseModel(tree.edges, torch.zeros_like, log_pair, support)
