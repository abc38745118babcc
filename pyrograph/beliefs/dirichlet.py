"""Dirichlet beliefs of K numbers that add up to 1, and beta ones, which are those of two.

The unconstrained numbers z are those of stick-breaking,

    x_k = v_k prod_{j<k} (1 - v_j),     v_k = expit(z_k - log (K - k)),     k < K

whose Jacobian is the product of all x_k. So the density of z is prod_k x_k^(a_k) up to its mass,
and under it the v_k are independent, v_k ~ Beta(a_k, sum_{j>k} a_j).

Source: Minka (2000), "Estimating a Dirichlet distribution", for Newton's method in linear time.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from pyrograph.beliefs.conjugate import Conjugate


class LogDirichlet(Conjugate):
    """Stick-breaking numbers of Dirichlet variables: eta is the concentration."""

    @staticmethod
    def statistics(z: Tensor) -> Tensor:
        odds = z - _offset(z)
        return pad(logsigmoid(odds), (0, 1)) + pad(logsigmoid(-odds).cumsum(-1), (1, 0))

    @staticmethod
    def at(x: Tensor) -> Tensor:
        """z ``[*batch, d]`` of x ``[*batch, K]``, which may be of any sum."""
        odds = (x[..., :-1] / left_of(x)[..., 1:]).log()
        return odds + _offset(odds)

    @staticmethod
    def guess(expected: Tensor) -> Tensor:
        # exp(digamma(a)) is about a - 1/2
        geometric, rest_of = expected.exp(), (expected.shape[-1] - 1) / 2
        rest = (1 - geometric.sum(-1, keepdim=True)).clamp_min(torch.finfo(geometric.dtype).tiny)
        return 0.5 + rest_of * geometric / rest

    @property
    def expected(self) -> Tensor:
        total = self.natural.sum(-1, keepdim=True)
        return torch.digamma(self.natural) - torch.digamma(total)

    def per_fisher(self, gap: Tensor) -> Tensor:
        own = torch.polygamma(1, self.natural)  # Cov T = diag(own) - of_total 1 1'
        of_total = torch.polygamma(1, self.natural.sum(-1, keepdim=True))
        each = gap / own
        excess = 1 - of_total * (1 / own).sum(-1, keepdim=True)
        return each + of_total * each.sum(-1, keepdim=True) / (excess * own)

    @property
    def log_mass(self) -> Tensor:
        return torch.lgamma(self.natural).sum(-1) - torch.lgamma(self.natural.sum(-1))

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        a, b = self.natural[..., :-1], left_of(self.natural)[..., 1:]
        mean = torch.digamma(a) - torch.digamma(b)
        return mean + _offset(mean), torch.polygamma(1, a) + torch.polygamma(1, b)

    @property
    def at_mean(self) -> Tensor:
        return self.at(self.natural)


class LogitBeta(LogDirichlet):
    """Log odds of beta variables: eta is (a, b), of which a goes with x and b with 1 - x."""


def left_of(x: Tensor) -> Tensor:
    """Sums of each number and all later ones, ``[*batch, K]``."""
    return x.flip(-1).cumsum(-1).flip(-1)


def _offset(z: Tensor) -> Tensor:
    """log (K - k), ``[d]``: at z = 0 all x are the same."""
    return torch.arange(z.shape[-1], 0, -1, dtype=z.dtype, device=z.device).log()
