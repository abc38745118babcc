"""A distribution over a finite list of values, of any dtype and event shape."""

from __future__ import annotations

from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor

NO_SAMPLES = torch.Size()


class _Among(constraints.Constraint):
    """One of the listed values."""

    is_discrete = True

    def __init__(self, values: Tensor):
        self.values = values
        self.event_dim = values.dim() - 1
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        return _matches(self.values, value).any(-1)


class States(torch.distributions.Categorical):
    """A categorical distribution over the states of a site, numbered as its support lists them.

    ``sample``, ``log_prob``, ``mode`` and ``entropy`` speak of the states' numbers, ``mean`` and
    ``variance`` are moments of their values: of states 1, 2, 3 the numbers are 0, 1, 2. Draws as
    values are ``values[fn.sample()]``, or those of ``posterior.sample``.

    Shapes:
        logits: ``[*batch, c]``; values: ``[c, *event]``.
    """

    def __init__(self, values: Tensor, logits: Tensor):
        super().__init__(logits=logits, validate_args=False)
        self.values = values.to(logits)

    def expand(self, batch_shape: torch.Size, _instance=None) -> States:
        return States(self.values, self.logits.expand(*batch_shape, self.logits.shape[-1]))

    def sample(self, sample_shape: torch.Size = NO_SAMPLES) -> Tensor:
        """Numbers of states, ``[*sample_shape, *batch]``."""
        shape = self._extended_shape(sample_shape)
        if shape.numel() == 0:  # torch's multinomial refuses to draw nothing
            return torch.zeros(shape, dtype=torch.int64, device=self.values.device)
        return super().sample(sample_shape)

    @property
    def mean(self) -> Tensor:
        """``[*batch, *event]``."""
        return torch.tensordot(self.probs, self.values, 1)

    @property
    def variance(self) -> Tensor:
        """``[*batch, *event]``."""
        mean = self.mean
        columns = self.values.flatten(1).T if self.values.dim() > 1 else self.values[None]
        means = mean.reshape(*self.batch_shape, len(columns)).unbind(-1)
        # about the mean: E v^2 - (E v)^2 loses the digits of large values
        spread = [
            (self.probs * (column - centre[..., None]).square()).sum(-1)
            for column, centre in zip(columns, means, strict=True)
        ]
        return torch.stack(spread, -1).reshape(mean.shape)


class Finite(TorchDistribution):
    """P(value = values[k]) = softmax(logits)_k.

    Shapes:
        values: ``[c, *event]``; logits: ``[*batch, c]``.
    """

    arg_constraints: ClassVar = {"logits": constraints.independent(constraints.real, 1)}
    has_enumerate_support = True

    def __init__(self, values: Tensor, logits: Tensor, validate_args: bool | None = None):
        self.values, self.logits = values, logits
        super().__init__(logits.shape[:-1], values.shape[1:], validate_args=validate_args)

    def expand(self, batch_shape: torch.Size, _instance=None) -> Finite:
        logits = self.logits.expand(*batch_shape, self.logits.shape[-1])
        return Finite(self.values, logits, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return _Among(self.values)

    @torch.no_grad()
    def sample(self, sample_shape: torch.Size = NO_SAMPLES) -> Tensor:
        return self.values[States(self.values, self.logits).sample(sample_shape)]

    def log_prob(self, value: Tensor) -> Tensor:
        match = _matches(self.values, value)
        return torch.where(match, self.logits.log_softmax(-1), -torch.inf).logsumexp(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        event = self.event_shape
        values = self.values.reshape(-1, *(1,) * len(self.batch_shape), *event)
        return values.expand(-1, *self.batch_shape, *event) if expand else values

    @property
    def mode(self) -> Tensor:
        return self.values[self.logits.argmax(-1)]


def state_quantile(values: Tensor, probs: Tensor, q: float) -> Tensor:
    """Number of the state with the least value that is reached with probability q.

    Shapes:
        values: ``[c]``; probs: ``[*batch, c]``.
        output: ``[*batch]``.
    """
    order = values.argsort()
    reached = probs[..., order].cumsum(-1)
    # probabilities add up to 1 but for rounding, and states of none behind are not reached; the
    # last sum is never below a share of itself
    is_below = reached < (q * reached[..., -1:])
    return order[is_below.sum(-1)]


def _matches(values: Tensor, value: Tensor) -> Tensor:
    """``[*batch, c]``: which of the listed values each one is."""
    same = value.unsqueeze(value.dim() - values.dim() + 1) == values
    return same.flatten(same.dim() - values.dim() + 1).all(-1) if values.dim() > 1 else same
