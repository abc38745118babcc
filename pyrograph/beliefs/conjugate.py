"""Beliefs of families that conjugate factors keep, in the unconstrained space of all messages.

    x = exp(z),     x ~ Gamma(a, b):        g(z) = exp(a z - b exp(z)),         T = (z, -exp(z))
    x = stick(z),   x ~ Dirichlet(a):       g(z) = exp(sum_k a_k log x_k),      T = log x

are the densities of z, Jacobians included, up to their mass (:mod:`.dirichlet`; a beta variable is
one of two numbers that add up to 1). Projecting a distribution on such a family keeps the
expectations of T, which determine the natural parameters by a convex problem in as many numbers.

Source: Minka (2005), section 3; Minka (2000), "Estimating a Dirichlet distribution", for Newton's
method.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs.gaussian import FLAT, Gaussian
from pyrograph.beliefs.natural import Natural

#: Most steps of Newton's method, which ends when they are rounding.
NEWTON_STEPS = 30
#: A step of Newton's method takes a parameter no further down than to this share of it.
SHRINK = 0.2


@dataclass(frozen=True)
class Conjugate(Natural):
    """exp(eta' T(z)), proper where all of eta are positive.

    Shapes:
        natural: ``[*batch, p]``, eta.
    """

    natural: Tensor

    @classmethod
    def flat(cls, batch: tuple[int, ...], d: int, like: Tensor) -> Conjugate:
        """The constant 1, of nodes of ``d`` numbers."""
        return cls(like.new_zeros(*batch, d + 1))

    @property
    def d(self) -> int:
        """Numbers of a node: one fewer than parameters."""
        return self.natural.shape[-1] - 1

    @property
    def is_proper(self) -> Tensor:
        """``[*batch]``: whether it can be normalised."""
        return ((self.natural > 0) & self.natural.isfinite()).all(-1)

    @property
    def is_nearly_proper(self) -> Tensor:
        """``[*batch]``: proper or flat, up to rounding."""
        return (self.natural >= -FLAT).all(-1)

    def log_value(self, z: Tensor) -> Tensor:
        """log g(z): ``[*batch]`` of ``z [*batch, d]``."""
        return (self.natural * self.statistics(z)).sum(-1)

    @classmethod
    def project(cls, expected: Tensor, start: Conjugate | None = None) -> Conjugate:
        """The member whose expectations of T are ``expected [*batch, p]``; NaN where there is none.

        Args:
            start: where to begin: a member that has these expectations already is kept to the last
                digit, of which expectations keep few where parameters are large.

        Newton's method on eta' E[T] - log_mass(eta), which is concave; differentiable in
        ``expected`` by one step more from where it ended.
        """
        target = expected.detach()
        with torch.no_grad():
            eta = cls.guess(target) if start is None else start.natural
            for _ in range(NEWTON_STEPS):
                step = cls(eta).per_fisher(target - cls(eta).expected)
                eta = torch.maximum(eta + step, SHRINK * eta)
                if bool((step.abs() <= 1e-14 * eta).all()):
                    break
        if expected.requires_grad:
            eta = eta + cls(eta).per_fisher(expected - cls(eta).expected)
        return cls(eta)

    @staticmethod
    @abstractmethod
    def statistics(z: Tensor) -> Tensor:
        """T: ``[*batch, p]`` of ``z [*batch, d]``."""

    @staticmethod
    @abstractmethod
    def guess(expected: Tensor) -> Tensor:
        """Rough eta of given expectations of T, both ``[*batch, p]``."""

    @property
    @abstractmethod
    def expected(self) -> Tensor:
        """``[*batch, p]``: E T; of proper ones only."""

    @abstractmethod
    def per_fisher(self, gap: Tensor) -> Tensor:
        """Cov(T)^-1 times ``gap``, both ``[*batch, p]``; of proper ones only."""

    @property
    @abstractmethod
    def log_mass(self) -> Tensor:
        """``[*batch]``: log of the integral over z; of proper ones only."""

    @property
    @abstractmethod
    def moments(self) -> tuple[Tensor, Tensor]:
        """Means and variances of z, ``[*batch, d]``, whose numbers are independent; of proper ones
        only."""

    @property
    @abstractmethod
    def at_mean(self) -> Tensor:
        """``[*batch, d]``: where x is its mean. At the mean of z, which is about -1 / a for small
        a, x may be a zero in floating point."""

    @property
    def mean(self) -> Tensor:
        """``[*batch, d]``: of z."""
        return self.moments[0]

    @property
    def variance(self) -> Tensor:
        """``[*batch, d]``: of z."""
        return self.moments[1]

    @property
    def covariance(self) -> Tensor:
        """``[*batch, d, d]``: of z."""
        return torch.diag_embed(self.variance)

    @property
    def normal(self) -> Gaussian:
        """The Gaussian of the same mean and covariance of z; of proper ones only."""
        return Gaussian.from_moments(self.mean, self.covariance)


class LogGamma(Conjugate):
    """Logarithms of gamma variables: eta is (a, b), shape and rate."""

    @staticmethod
    def statistics(z: Tensor) -> Tensor:
        return torch.cat([z, -z.exp()], -1)

    @staticmethod
    def guess(expected: Tensor) -> Tensor:
        log_x, x = expected[..., 0], -expected[..., 1]
        s = x.log() - log_x  # log a - digamma(a), about 1 / (2 a)
        a = (3 - s + ((s - 3).square() + 24 * s).sqrt()) / (12 * s)
        return torch.stack([a, a / x], -1)

    @property
    def expected(self) -> Tensor:
        a, b = self.natural.unbind(-1)
        return torch.stack([torch.digamma(a) - b.log(), -a / b], -1)

    def per_fisher(self, gap: Tensor) -> Tensor:
        (a, b), (x, y) = self.natural.unbind(-1), gap.unbind(-1)
        p, r, s = torch.polygamma(1, a), -1 / b, a / b.square()
        return torch.stack([s * x - r * y, p * y - r * x], -1) / (p * s - r * r).unsqueeze(-1)

    @property
    def log_mass(self) -> Tensor:
        a, b = self.natural.unbind(-1)
        return torch.lgamma(a) - a * b.log()

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        a, b = self.natural.split(1, -1)
        return torch.digamma(a) - b.log(), torch.polygamma(1, a)

    @property
    def at_mean(self) -> Tensor:
        a, b = self.natural.unbind(-1)
        return (a / b).log().unsqueeze(-1)
