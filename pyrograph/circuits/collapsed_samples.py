"""Weighted samples whose missing variables are exact conditionals, as one distribution.

    q(x) = sum_j w_j [x_s(j) = x_s(j)^j] p(x_c(j) | x_s(j)^j)

Every sample j may hold other variables s(j); p is a circuit.

Source: Li, Zeng, Vergari & Van den Broeck (2021), section 5.2.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution, constraints
from pyro.distributions.torch_distribution import ExpandedDistribution
from torch import Tensor

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.structure.leaves import MISSING

NO_SAMPLES = torch.Size()
#: Pairs of values and samples that are compared at once.
CHUNK = 2**24


class CollapsedSamples(TorchDistribution):
    """A distribution over vectors of codes.

    Args:
        circuit: p, normalised or not.
        points: ``[n, D]`` codes, -1 where summed out.
        log_weights: ``[n]``, of weights that add up to 1.
        log_masses: ``[n]`` log p(x_s), known or computed here.
        dtype: of log densities, which are computed in double precision; default double.
    """

    arg_constraints: ClassVar = {"log_weights": constraints.real_vector}
    support = constraints.independent(constraints.nonnegative_integer, 1)

    def __init__(
        self,
        circuit: Circuit,
        points: Tensor,
        log_weights: Tensor,
        log_masses: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
        validate_args: bool | None = None,
    ):
        self.circuit, self.points, self.dtype = circuit, points, dtype
        self.log_weights = log_weights
        self.log_masses = circuit.log_prob(points) if log_masses is None else log_masses
        super().__init__((), points.shape[1:], validate_args=validate_args)

    def expand(self, batch_shape: torch.Size, _instance=None) -> TorchDistribution:
        if not batch_shape:
            return self
        return ExpandedDistribution(self, torch.Size(batch_shape))

    def sample(self, sample_shape: torch.Size = NO_SAMPLES) -> Tensor:
        """``[*sample_shape, D]``."""
        count = torch.Size(sample_shape).numel()
        weights = self.log_weights.detach().exp()
        which = torch.multinomial(weights, count, replacement=True) if count else weights[:0].long()
        drawn = self.circuit.fill_in(self.points[which]) if count else self.points[:0]
        return drawn.reshape(*sample_shape, self.points.shape[1])

    def log_prob(self, value: Tensor) -> Tensor:
        """Of codes ``[*batch, D]``: those samples count that agree with them."""
        rows = value.reshape(-1, self.points.shape[1])
        held = self.points != MISSING
        chunk = max(1, CHUNK // max(1, self.points.numel()))
        parts = []
        for part in rows.split(chunk):
            agrees = ((part.unsqueeze(1) == self.points) | ~held).all(2)  # [B, n]
            share = torch.where(agrees, self.log_weights - self.log_masses, -torch.inf)
            parts.append(share.logsumexp(1) + self.circuit.log_prob(part))
        return torch.cat(parts).reshape(value.shape[:-1]).to(self.dtype)
