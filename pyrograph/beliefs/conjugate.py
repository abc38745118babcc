"""Gamma and beta beliefs of one number, in the unconstrained space where all messages live.

    x = exp(z),     x ~ Gamma(a, b):   g(z) = exp(a z - b exp(z)),      T = (z, -exp(z))
    x = expit(z),   x ~ Beta(a, b):    g(z) = exp(a log x + b log(1 - x)),  T = (log x, log(1 - x))

are the densities of z, Jacobians included, up to their mass. Projecting a distribution on such a
family keeps the expectations of T, which determine (a, b) by a convex problem in two numbers.

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

NEWTON_STEPS = 30
#: A step of Newton's method takes a parameter no further down than to this share of it.
SHRINK = 0.2


@dataclass(frozen=True)
class Conjugate(Natural):
    """exp(a T_1(z) + b T_2(z)).

    Shapes:
        first: ``[*batch]``, a; second: ``[*batch]``, b.
    """

    first: Tensor
    second: Tensor

    @classmethod
    def flat(cls, batch: tuple[int, ...], like: Tensor) -> Conjugate:
        """The constant 1."""
        return cls(like.new_zeros(batch), like.new_zeros(batch))

    @property
    def d(self) -> int:
        """Numbers of a node."""
        return 1

    @property
    def is_proper(self) -> Tensor:
        """``[*batch]``: whether it can be normalised."""
        finite = self.first.isfinite() & self.second.isfinite()
        return (self.first > 0) & (self.second > 0) & finite

    @property
    def is_nearly_proper(self) -> Tensor:
        """``[*batch]``: proper or flat, up to rounding."""
        return (self.first >= -FLAT) & (self.second >= -FLAT)

    def log_value(self, z: Tensor) -> Tensor:
        """log g(z): ``[*batch]`` of ``z [*batch, 1]``."""
        one, two = self.statistics(z[..., 0]).unbind(-1)
        return self.first * one + self.second * two

    @classmethod
    def project(cls, expected: Tensor, start: Conjugate | None = None) -> Conjugate:
        """The member whose expectations of T are ``expected [*batch, 2]``; NaN where there is none.

        Args:
            start: where to begin: a member that has these expectations already is kept to the last
                digit, of which expectations keep few where parameters are large.

        Newton's method on eta' E[T] - log_mass(eta), which is concave; differentiable in
        ``expected`` by one step more from where it ended.
        """
        target = expected.detach()
        with torch.no_grad():
            known = start is not None
            eta = _pair(start.first, start.second) if known else cls.guess(target)
            for _ in range(NEWTON_STEPS):
                step = cls._newton(eta, target)
                eta = torch.maximum(eta + step, SHRINK * eta)
                if bool((step.abs() <= 1e-14 * eta).all()):
                    break
        if expected.requires_grad:
            eta = eta + cls._newton(eta, expected)
        return cls(*eta.unbind(-1))

    @classmethod
    def _newton(cls, eta: Tensor, expected: Tensor) -> Tensor:
        member = cls(*eta.unbind(-1))
        gap = expected - member.expected
        (p, r), (_, s) = (row.unbind(-1) for row in member.fisher.unbind(-2))
        det = p * s - r * r
        return torch.stack(
            [s * gap[..., 0] - r * gap[..., 1], p * gap[..., 1] - r * gap[..., 0]], -1
        ) / (det.unsqueeze(-1))

    @staticmethod
    @abstractmethod
    def statistics(z: Tensor) -> Tensor:
        """T: ``[*batch, 2]`` of ``z [*batch]``."""

    @staticmethod
    @abstractmethod
    def guess(expected: Tensor) -> Tensor:
        """Rough (a, b) of given expectations of T, both ``[*batch, 2]``."""

    @property
    @abstractmethod
    def expected(self) -> Tensor:
        """``[*batch, 2]``: E T; of proper ones only."""

    @property
    @abstractmethod
    def fisher(self) -> Tensor:
        """``[*batch, 2, 2]``: Cov T; of proper ones only."""

    @property
    @abstractmethod
    def log_mass(self) -> Tensor:
        """``[*batch]``: log of the integral over z; of proper ones only."""

    @property
    @abstractmethod
    def normal(self) -> Gaussian:
        """The Gaussian of the same mean and variance of z, dimension 1; of proper ones only."""

    @property
    def at_mean(self) -> Tensor:
        """``[*batch, 1]``: where x is a / b or a / (a + b), its mean. At the mean of z, which is
        about -1 / a for small a, x may be a zero in floating point."""
        return (self.first / self.second).log().unsqueeze(-1)

    @property
    def mean(self) -> Tensor:
        """``[*batch, 1]``: of z."""
        return self.normal.mean

    @property
    def covariance(self) -> Tensor:
        """``[*batch, 1, 1]``: of z."""
        return self.normal.covariance


class LogGamma(Conjugate):
    """Logarithms of gamma variables: shape ``first``, rate ``second``."""

    @staticmethod
    def statistics(z: Tensor) -> Tensor:
        return torch.stack([z, -z.exp()], -1)

    @staticmethod
    def guess(expected: Tensor) -> Tensor:
        log_x, x = expected[..., 0], -expected[..., 1]
        s = x.log() - log_x  # log a - digamma(a), about 1 / (2 a)
        a = (3 - s + ((s - 3).square() + 24 * s).sqrt()) / (12 * s)
        return torch.stack([a, a / x], -1)

    @property
    def expected(self) -> Tensor:
        a, b = self.first, self.second
        return torch.stack([torch.digamma(a) - b.log(), -a / b], -1)

    @property
    def fisher(self) -> Tensor:
        a, b = self.first, self.second
        rows = [_pair(torch.polygamma(1, a), -1 / b), _pair(-1 / b, a / b.square())]
        return torch.stack(rows, -2)

    @property
    def log_mass(self) -> Tensor:
        return torch.lgamma(self.first) - self.first * self.second.log()

    @property
    def normal(self) -> Gaussian:
        return _normal(
            torch.digamma(self.first) - self.second.log(), torch.polygamma(1, self.first)
        )


class LogitBeta(Conjugate):
    """Log odds of beta variables: ``first`` goes with x, ``second`` with 1 - x."""

    @staticmethod
    def statistics(z: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(torch.stack([z, -z], -1))

    @staticmethod
    def guess(expected: Tensor) -> Tensor:
        geometric = expected.exp()
        rest = (1 - geometric.sum(-1, keepdim=True)).clamp_min(torch.finfo(geometric.dtype).tiny)
        return 0.5 * (1 + geometric / rest)

    @property
    def expected(self) -> Tensor:
        both = torch.stack([self.first, self.second], -1)
        return torch.digamma(both) - torch.digamma(self.first + self.second).unsqueeze(-1)

    @property
    def fisher(self) -> Tensor:
        a, b = torch.polygamma(1, self.first), torch.polygamma(1, self.second)
        c = torch.polygamma(1, self.first + self.second)
        return torch.stack([_pair(a - c, -c), _pair(-c, b - c)], -2)

    @property
    def log_mass(self) -> Tensor:
        a, b = self.first, self.second
        return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)

    @property
    def normal(self) -> Gaussian:
        a, b = self.first, self.second
        return _normal(
            torch.digamma(a) - torch.digamma(b), torch.polygamma(1, a) + torch.polygamma(1, b)
        )


def _pair(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([a, b], -1)


def _normal(mean: Tensor, variance: Tensor) -> Gaussian:
    return Gaussian.from_moments(mean.unsqueeze(-1), variance[..., None, None])
