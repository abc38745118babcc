"""A mixture over the nodes of a site, some of which are given: points, and no density.

p(x_i) = [x_i = v_i] where node i is given, else sum_l w_l q_il(x_i)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily

NO_SAMPLES = torch.Size()
#: What two values that are to be one may differ by, in units of the precision: draws go through the
#: map to the site's support.
ROUNDING = 1e3


class PartlyGiven(MixtureSameFamily):
    """Like Pyro's ``Delta`` at nodes that are given: there ``log_prob`` is 0 at the value, up to
    rounding, and -inf elsewhere.

    Args:
        weights: of the components, batch shape ``[*batch]``.
        components: batch shape ``[*batch, L]``; of given nodes anything that has a width.
        is_given: ``[*batch]``.
        values: ``[*batch, *event]``, anything where no node is given.
    """

    def __init__(
        self, weights: Categorical, components: Distribution, is_given: Tensor, values: Tensor
    ):
        super().__init__(weights, components, validate_args=False)
        self.is_given, self.values = is_given, values

    def expand(self, batch_shape: torch.Size, _instance=None) -> PartlyGiven:
        batch = torch.Size(batch_shape)
        return PartlyGiven(
            self.mixture_distribution.expand(batch),
            self.component_distribution.expand((*batch, self._num_component)),
            self.is_given.expand(batch),
            self.values.expand(batch + self.event_shape),
        )

    @property
    def _whose(self) -> Tensor:
        """``[*batch, *1]``: whether numbers are of a node that is given."""
        return self.is_given.reshape((*self.is_given.shape, *(1 for _ in self.event_shape)))

    @property
    def mean(self) -> Tensor:
        return torch.where(self._whose, self.values, super().mean)

    @property
    def variance(self) -> Tensor:
        return torch.where(self._whose, 0.0, super().variance)

    def sample(self, sample_shape: torch.Size = NO_SAMPLES) -> Tensor:
        return torch.where(self._whose, self.values, super().sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        floats = [x.dtype for x in (value, self.values) if x.is_floating_point()]
        eps = max(torch.finfo(dtype).eps for dtype in floats)
        is_there = (value - self.values).abs() <= ROUNDING * eps * self.values.abs()
        for _ in self.event_shape:
            is_there = is_there.all(-1)
        at_point = torch.where(is_there, 0.0, -torch.inf).to(self.values)
        return torch.where(self.is_given, at_point, super().log_prob(value))

    def cdf(self, value: Tensor) -> Tensor:
        reached = (value >= self.values).to(self.values)
        return torch.where(self.is_given, reached, super().cdf(value))
