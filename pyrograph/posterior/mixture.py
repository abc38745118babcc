"""Mixtures of diagonal Gaussians: density, sampling, quantiles; and smoothed particles.

Smoothing replaces weighted particles z_k by

    q(z) = (1 - e) sum_k w_k N(z; a z_k + (1 - a) m, b^2 diag(v))  +  e N(z; m, c^2 diag(v))

with m, v the weighted mean and variance. Shrinking the centres towards m (West 1993) undoes
the kernels' widening: with a^2 + b^2 = (1 - e c^2) / (1 - e), mean and variances of q are those
of the particles, for every b. The last, wide component is defensive (Hesterberg 1995): it keeps
importance weights bounded where single kernels have lighter tails than the target. b follows
Silverman's rule with the effective number of particles, (4 / ((d + 2) n_eff))^(1 / (d + 4)),
so that with growing dimension q turns into one diagonal Gaussian.
"""

import math
from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor

from pyrograph.beliefs.gaussian import LOG_2PI
from pyrograph.shapes import broadcast_shapes

#: Of the wide component: its share e, and its width c in standard deviations of the particles.
DEFENSIVE_WEIGHT = 0.05
DEFENSIVE_SCALE = 1.5
#: Of a quantile, which is then known to rounding.
BISECTIONS = 60
#: Standard deviations from a mean to the quantiles of 0 and 1, which have to be finite numbers.
NORMAL_REACH = 10.0
NO_BATCH = torch.Size()


class NormalMixture(TorchDistribution):
    """sum_k w_k N(loc_k, diag(scale_k^2)).

    Draws are differentiable in ``locs`` and ``scales`` (the component is drawn first, from
    weights that are no parameters), so that the reparameterised gradient is unbiased.

    Shapes:
        locs, scales: ``[K, D]``.
        logits: ``[K]``, normalised log weights.
    """

    arg_constraints: ClassVar = {
        "locs": constraints.real,
        "scales": constraints.positive,
        "logits": constraints.real,
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        locs: Tensor,
        scales: Tensor,
        logits: Tensor,
        batch_shape: torch.Size = NO_BATCH,
        validate_args: bool | None = None,
    ):
        self.locs, self.scales, self.logits = locs, scales, logits
        super().__init__(batch_shape, locs.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: torch.Size, _instance=None) -> "NormalMixture":
        return NormalMixture(
            self.locs, self.scales, self.logits, torch.Size(batch_shape), validate_args=False
        )

    def rsample(self, sample_shape: torch.Size = NO_BATCH) -> Tensor:
        shape = self._extended_shape(sample_shape)
        probs = self.logits.softmax(-1)
        which = torch.multinomial(probs, math.prod(shape[:-1]), replacement=True)
        noise = torch.randn(len(which), shape[-1], dtype=self.locs.dtype, device=self.locs.device)
        return (self.locs[which] + self.scales[which] * noise).reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        z = (value.unsqueeze(-2) - self.locs) / self.scales
        log_norm = self.scales.log().sum(-1) + 0.5 * LOG_2PI * self.locs.shape[-1]
        components = self.logits.log_softmax(-1) - 0.5 * z.square().sum(-1) - log_norm
        result = components.logsumexp(-1)
        return result.expand(broadcast_shapes(result.shape, self.batch_shape))

    @property
    def mean(self) -> Tensor:
        value = self.logits.softmax(-1) @ self.locs
        return value.expand(self.batch_shape + self.event_shape)

    @property
    def variance(self) -> Tensor:
        weights = self.logits.softmax(-1)
        spread = (self.locs - weights @ self.locs).square() + self.scales.square()
        return (weights @ spread).expand(self.batch_shape + self.event_shape)

    def quantile(self, q: float) -> Tensor:
        """Quantile of each coordinate, by bisection of its distribution function: ``[D]``."""
        reach = NORMAL_REACH * self.scales
        low, high = (self.locs - reach).amin(0), (self.locs + reach).amax(0)
        weights = self.logits.softmax(-1)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = weights @ torch.special.ndtr((middle - self.locs) / self.scales) < q
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2


def smooth(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Centres, scales and logits of the smoothed mixture; see the module's text.

    Columns on which all particles agree get the scale 1e-3 max(1, |m|): a density must have
    some width, and nothing is known about it.

    Shapes:
        x: ``[n, d]``; weights: ``[n]``, summing to 1.
        output: ``[n + 1, d]``, ``[n + 1, d]``, ``[n + 1]``.
    """
    d = x.shape[1]
    effective = 1 / weights.square().sum()
    # seen from a particle, so that where all agree the spread is 0 and not what rounding leaves
    origin = x[weights.argmax()]
    mean = origin + weights @ (x - origin)
    sd = (weights @ (x - mean).square()).sqrt()
    sd = torch.where(sd > 0, sd, 1e-3 * mean.abs().clamp_min(1))
    share = (1 - DEFENSIVE_WEIGHT * DEFENSIVE_SCALE**2) / (1 - DEFENSIVE_WEIGHT)
    b = (4 / ((d + 2) * effective)) ** (1 / (d + 4))
    b2 = b.square().clamp_max(share)
    a = (share - b2).sqrt()
    locs = torch.cat([mean + a * (x - mean), mean[None]])
    scales = torch.cat([(b2.sqrt() * sd).expand_as(x), DEFENSIVE_SCALE * sd[None]])
    logits = torch.cat([weights * (1 - DEFENSIVE_WEIGHT), weights.new_tensor([DEFENSIVE_WEIGHT])])
    return locs, scales, logits.log()
