"""Unadjusted Langevin dynamics on a factor graph.

    x <- x + eps * grad log p(x) + sqrt(2 * eps) * xi,    xi ~ N(0, I)

A node moves by the gradient of the factors in whose scope it is, so one step is one
pass over the graph: O(n * num_factors). Biased by O(eps) without a Metropolis test,
which would need a global quantity and could not run node by node: on a Gaussian of
precision a the stationary variance is 1 / (a (1 - eps a / 2)).

Source: Wang, Zeng & Liu (2018), section 4 (baseline).
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from pyrograph.infer.options import positive
from pyrograph.infer.particle import ParticleEngine


class Langevin(ParticleEngine):
    """Independent chains, one per particle.

    Args:
        model: a Pyro program whose latent sites are all continuous.
        step_size: eps above, in unconstrained units.
        num_particles: number of chains n, default 50 or as many as ``init`` holds.
        options: see :class:`ParticleEngine`; the KSD costs extra and is computed only for
            ``tol``.

    Shapes:
        particles: ``[n, dim]``, unconstrained, columns in node order.

    Raises:
        UnsupportedSite: a latent site is discrete.
        OptionError: an option is unknown or out of range.
    """

    def __init__(self, model: Callable, *, step_size: float = 1e-3, **options: Any):
        super().__init__(model, **options)
        self.step_size = positive("step_size", step_size)

    def move(self, x: Tensor, score: Tensor) -> Tensor:
        noise = self.normal(x.shape)
        return x + self.step_size * score + (2 * self.step_size) ** 0.5 * noise
