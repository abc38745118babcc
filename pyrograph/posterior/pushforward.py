"""The image of a normal distribution under the map to a site's support, with its moments.

Mean and variance are closed for the exponential. Of other maps that work number by number they are
one-dimensional integrals, by Gauss-Hermite quadrature; else (simplex, Cholesky factors) averages
over a fixed low-discrepancy set of normal points. All in double precision: far points, which hardly
weigh, overflow in single.
"""

from __future__ import annotations

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, TransformedDistribution
from torch.distributions.transforms import (
    ExpTransform,
    IndependentTransform,
    ReshapeTransform,
    Transform,
)
from torch.quasirandom import SobolEngine

from pyrograph.errors import UnsupportedSite
from pyrograph.quadrature import gauss_hermite
from pyrograph.trace import supports
from pyrograph.trace.sites import Site

#: By which moments are taken: of the quadrature of a number, and draws of vectors.
NUM_POINTS = 64
NUM_DRAWS = 4096


def is_real(site: Site) -> bool:
    """Whether a site's support is all of the real numbers.

    Raises:
        UnsupportedSite: it has none that stands apart from the model's latents.
    """
    support = site.support
    if support is None:
        raise UnsupportedSite(
            f'the support of site "{site.name}" depends on other latents, so its marginal cannot '
            "be written apart from them. Use posterior.sample(), or write the site with a fixed "
            "support and transform it in the model."
        )
    return supports.is_real(support)


class Reshaped(TransformedDistribution, TorchDistributionMixin):
    """Jointly normal numbers in the shape of an event."""

    def __init__(self, base: MultivariateNormal, event_shape: torch.Size):
        shaping = ReshapeTransform(base.event_shape, event_shape)
        super().__init__(base, [shaping], validate_args=False)

    def expand(self, batch_shape: torch.Size, _instance=None) -> Reshaped:
        return Reshaped(self.base_dist.expand(batch_shape), self.event_shape)

    @property
    def mean(self) -> Tensor:
        return self.transforms[0](self.base_dist.mean)

    @property
    def variance(self) -> Tensor:
        return self.transforms[0](self.base_dist.variance)

    def entropy(self) -> Tensor:
        return self.base_dist.entropy()


class Pushforward(TransformedDistribution, TorchDistributionMixin):
    """Normal base, transformed; ``mean`` and ``variance`` have the site's shape."""

    def __init__(self, base: Distribution, transform: Transform):
        super().__init__(base, [transform], validate_args=False)
        self._map = transform

    def expand(self, batch_shape: torch.Size, _instance=None) -> Pushforward:
        return Pushforward(self.base_dist.expand(batch_shape), self._map)

    @property
    def mean(self) -> Tensor:
        return self._moments()[0].to(self.base_dist.mean.dtype)

    @property
    def variance(self) -> Tensor:
        return self._moments()[1].to(self.base_dist.mean.dtype)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """In double precision."""
        base, each = self.base_dist, self._map
        while isinstance(each, IndependentTransform):
            each = each.base_transform
        if each.domain.event_dim == 0:
            centre, square = base.mean.double(), base.variance.double()
            if isinstance(each, ExpTransform):
                mean = (centre + square / 2).exp()
                return mean, mean.square() * square.expm1()
            z, weights = gauss_hermite(NUM_POINTS, 1, torch.float64, centre.device)
            z = z.reshape(-1, *(1,) * centre.dim())
            image = self._map(centre + square.sqrt() * z)
        else:
            image = self._map(self._spread_points(base).double())
            weights = image.new_full((NUM_DRAWS,), 1 / NUM_DRAWS)
        weights = weights.reshape(-1, *(1,) * (image.dim() - 1))
        mean = (weights * image).sum(0)
        return mean, (weights * (image - mean).square()).sum(0)

    @classmethod
    def _spread_points(cls, base: Distribution) -> Tensor:
        """``[NUM_DRAWS, *batch, *event]`` of the base, spread evenly."""
        if isinstance(base, Reshaped):
            return base.transforms[0](cls._spread_points(base.base_dist))
        width = base.event_shape.numel()
        sobol = SobolEngine(width, scramble=True, seed=0).draw(NUM_DRAWS, dtype=torch.float64)
        inside = sobol.clamp(1e-12, 1 - 1e-12)
        z = torch.special.ndtri(inside).to(base.mean)
        z = z.reshape(NUM_DRAWS, *(1,) * len(base.batch_shape), *base.event_shape)
        if isinstance(base, MultivariateNormal):
            return base.mean + (base.scale_tril @ z.unsqueeze(-1)).squeeze(-1)
        return base.mean + base.variance.sqrt() * z
