"""Gamma, beta and Dirichlet beliefs as distributions over a site's values."""

from __future__ import annotations

import pyro.distributions as dist
import scipy.special
import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import TransformedDistribution, biject_to
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    SigmoidTransform,
    StickBreakingTransform,
    Transform,
)
from torch.nn.functional import pad

from pyrograph.beliefs import Conjugate, LogDirichlet, LogGamma, LogitBeta
from pyrograph.beliefs.dirichlet import left_of

FIRST_MAP: dict[type[Conjugate], type[Transform]] = {
    LogGamma: ExpTransform,
    LogitBeta: SigmoidTransform,
    LogDirichlet: StickBreakingTransform,
}


def is_image(family: type[Conjugate], support: Constraint | None) -> bool:
    """Whether a site's values are a + b exp(z), or a + b expit(z), or sticks broken at z, as the
    family needs."""
    if support is None or support.event_dim != (family is LogDirichlet):
        return False
    parts = _parts(biject_to(support))
    is_affine = all(isinstance(part, AffineTransform) for part in parts[1:])
    return is_affine and isinstance(parts[0] if parts else None, FIRST_MAP[family])


def conjugate_distribution(
    family: type[Conjugate], natural: Tensor, support: Constraint
) -> TorchDistribution:
    """Of a site's values: a Dirichlet distribution, or a gamma or beta one, shifted and scaled to
    the support.

    Args:
        natural: parameters ``[*batch, p]``.
    """
    if family is LogDirichlet:
        return dist.Dirichlet(natural)
    first, second = natural.unbind(-1)
    base = dist.Gamma(first, second) if family is LogGamma else dist.Beta(first, second)
    rest = ComposeTransform(_parts(biject_to(support))[1:])
    ends = rest(torch.stack([torch.zeros_like(first), torch.ones_like(first)]))
    is_base = bool((ends[0] == 0).all()) and bool((ends[1] == 1).all())
    return base if is_base else Rescaled(base, rest)


def quantile(fn: TorchDistribution, q: float) -> Tensor:
    """Of what :func:`conjugate_distribution` returns, of the site's shape: the image of the gamma
    or beta variable's quantile, which counts from the other end where the map is decreasing; of
    Dirichlet numbers those of each one's beta marginal."""
    if isinstance(fn, Rescaled):
        return fn.transforms[0](quantile(fn.base_dist, q))
    if isinstance(fn, dist.Gamma):
        value = scipy.special.gammaincinv(fn.concentration.double().cpu().numpy(), q)
        return fn.rate.new_tensor(value) / fn.rate
    if isinstance(fn, dist.Dirichlet):
        a = fn.concentration
        return quantile(dist.Beta(a, a.sum(-1, keepdim=True) - a), q)
    a, b = (c.double().cpu().numpy() for c in (fn.concentration1, fn.concentration0))
    return fn.concentration1.new_tensor(scipy.special.betaincinv(a, b, q))


def median(fn: dist.Dirichlet) -> Tensor:
    """Of Dirichlet numbers, whose medians do not add up to 1: what the medians of the sticks make,
    which are independent beta variables."""
    a = fn.concentration
    stick = quantile(dist.Beta(a[..., :-1], left_of(a)[..., 1:]), 0.5)
    return pad(stick, (0, 1), value=1.0) * pad((1 - stick).cumprod(-1), (1, 0), value=1.0)


class Rescaled(TransformedDistribution, TorchDistributionMixin):
    """Image under an affine map, with its moments."""

    def __init__(self, base: TorchDistribution, scaling: Transform):
        super().__init__(base, [scaling], validate_args=False)

    def expand(self, batch_shape: torch.Size, _instance=None) -> Rescaled:
        return Rescaled(self.base_dist.expand(batch_shape), self.transforms[0])

    @property
    def mean(self) -> Tensor:
        return self.transforms[0](self.base_dist.mean)

    @property
    def variance(self) -> Tensor:
        zero = torch.zeros_like(self.base_dist.mean)
        length = self.transforms[0](zero + 1) - self.transforms[0](zero)
        return length.square() * self.base_dist.variance


def _parts(transform: Transform) -> list[Transform]:
    if isinstance(transform, ComposeTransform):
        return [part for inner in transform.parts for part in _parts(inner)]
    return [transform]
