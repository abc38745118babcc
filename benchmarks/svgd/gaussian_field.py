"""Gaussian Markov random fields with their exact answers, as a Pyro program.

    p(x) ∝ exp(b'x - x'Ax / 2),   b_i ~ N(0, 1),   A_ij on edges,   A_ii = .1 + sum_j |A_ij|

    truth:  mu = A^-1 b,   Sigma = A^-1

The printed sum -sum_{(i,j) in E} x_i A_ij x_j / 2 counts each edge in both orientations, so an
edge plate holds -A_ij x_i x_j once. Off-diagonal entries come from a full matrix of U(-.1, .1):
``sym="average"`` takes (W + W') / 2 as printed (a triangular law), ``sym="mirror"`` the lower
triangle as the released code does.

Source: Wang, Zeng & Liu (2018), section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyrograph as pg

REACH = 0.1
FLOOR = 0.1
METRICS = ("mean", "second moment", "edge covariance", "variance ratio", "MMD^2")


def program(linear: Tensor, diagonal: Tensor, edges: Tensor, weight: Tensor) -> None:
    """The field as a Pyro program; the Gaussian of a node carries b_i x_i - A_ii x_i^2 / 2."""
    with pyro.plate("nodes", len(linear)):
        x = pyro.sample("x", dist.Normal(linear / diagonal, diagonal.rsqrt()))
    with pyro.plate("edges", len(edges)):
        pyro.factor("coupling", -weight * x[..., edges[:, 0]] * x[..., edges[:, 1]])


@dataclass(frozen=True)
class GaussianField:
    """A field: ``precision`` A ``[d, d]``, ``linear`` b ``[d]``, ``edges`` ``[E, 2]``, i < j."""

    precision: Tensor
    linear: Tensor
    edges: Tensor

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What :func:`program` takes."""
        return self.linear, self.precision.diagonal(), self.edges, self.on_edges(self.precision)

    def on_edges(self, matrix: Tensor) -> Tensor:
        """The entries of ``[d, d]`` that belong to edges."""
        return matrix[self.edges[:, 0], self.edges[:, 1]]

    @cached_property
    def covariance(self) -> Tensor:
        return torch.linalg.inv(self.precision)

    @cached_property
    def mean(self) -> Tensor:
        return self.covariance @ self.linear

    @cached_property
    def reference(self) -> Tensor:
        """2000 exact draws that the MMD is taken against."""
        return self.exact(2000, seed=10**6)

    def exact(self, num_particles: int, seed: int) -> Tensor:
        """Independent exact draws ``[n, d]``: the Monte Carlo baseline."""
        noise = normal((num_particles, len(self.linear)), seed)
        return self.mean + noise @ torch.linalg.cholesky(self.covariance).t()

    def errors(self, x: Tensor, *, discrepancy: bool = True) -> dict[str, float]:
        """Errors of particles ``[n, d]``: mean squared ones over nodes or edges, by name.

        ``"variance ratio"`` is no error but the mean of estimated over true variance, and
        ``"MMD^2"`` (V-statistic, RBF, median bandwidth of the reference) is left out unless
        ``discrepancy``.
        """
        mean = x.mean(0)
        second = x.square().mean(0)
        covariance = (x - mean).t() @ (x - mean) / len(x)
        variance = self.covariance.diagonal()
        edge = self.on_edges(covariance - self.covariance)
        found = {
            "mean": (mean - self.mean).square().mean(),
            "second moment": (second - variance - self.mean.square()).square().mean(),
            "edge covariance": edge.square().mean(),
            "variance ratio": (covariance.diagonal() / variance).mean(),
        }
        if discrepancy:
            found["MMD^2"] = pg.diagnostics.mmd(x, self.reference)
        return {name: float(value) for name, value in found.items()}


def gaussian_field(edges: Tensor, num_nodes: int, seed: int, sym: str = "average") -> GaussianField:
    """Draw A and b for the edges ``[E, 2]``.

    Raises:
        ValueError: ``sym`` is neither ``"average"`` nor ``"mirror"``.
    """
    if sym not in ("average", "mirror"):
        raise ValueError(f'sym={sym!r} is neither "average" nor "mirror"')
    generator = torch.Generator().manual_seed(seed)
    full = torch.rand(num_nodes, num_nodes, generator=generator, dtype=torch.float64)
    full = REACH * (2 * full - 1)
    linear = torch.randn(num_nodes, generator=generator, dtype=torch.float64)
    symmetric = (full + full.t()) / 2 if sym == "average" else full.tril() + full.tril().t()
    precision = torch.zeros_like(full)
    for i, j in (edges.unbind(1), edges.flip(1).unbind(1)):
        precision[i, j] = symmetric[i, j]
    precision.diagonal().copy_(FLOOR + precision.abs().sum(1))
    return GaussianField(precision, linear, edges)


def lattice_edges(side: int, radius: float = 1.0) -> Tensor:
    """Pairs of points of a ``side x side`` integer lattice at distance at most ``radius``."""
    row = torch.arange(side, dtype=torch.float64)
    points = torch.cartesian_prod(row, row)
    squared = (points[:, None] - points).square().sum(-1)
    return (squared <= radius**2).triu(1).nonzero()


def complete_edges(num_nodes: int) -> Tensor:
    """All pairs."""
    return torch.triu_indices(num_nodes, num_nodes, 1).t()


def normal(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Tensor:
    """N(0, scale^2) in double precision from a stream of its own."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


def run(
    field: GaussianField,
    start: Tensor,
    *,
    infer: Any = pg.GraphicalSVGD,
    seed: int = 0,
    **options: Any,
) -> Tensor:
    """Particles ``[n, d]`` of an engine that starts at ``start`` ``[n, d]``."""
    pyro.set_rng_seed(seed)
    options = {"progress": False, "init": {"x": start}, **options}
    return pg.fit(program, field.arguments, infer=infer, **options).particles["x"]


def tuned_langevin_step(
    field: GaussianField, start: Tensor, num_steps: int, candidates: tuple[float, ...]
) -> float:
    """The step size with the smallest second-moment error on a field kept for tuning."""

    def error(step_size: float) -> float:
        x = run(field, start, infer=pg.Langevin, step_size=step_size, num_steps=num_steps)
        return field.errors(x, discrepancy=False)["second moment"]

    return min(candidates, key=error)


def by_metric(trials: list[Mapping[str, float]]) -> dict[str, list[float]]:
    """One list over seeds per metric."""
    return {name: [trial[name] for trial in trials] for name in trials[0]}
