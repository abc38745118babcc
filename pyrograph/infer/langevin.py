"""Unadjusted Langevin dynamics on a factor graph.

    x <- x + eps * grad log p(x) + sqrt(2 * eps) * xi,    xi ~ N(0, I)

A node moves by the gradient of the factors in whose scope it is, so one step is one
pass over the graph: O(n * num_factors). Biased by O(eps) without a Metropolis test,
which would need a global quantity and could not run node by node: on a Gaussian of
precision a the stationary variance is 1 / (a (1 - eps a / 2)), and a start is forgotten as
exp(-a eps t) after t steps. So eps must be short beside the narrowest density, 1 / a, and
num_steps * eps several times the widest one's. A drift of more than ten standard deviations of
its noise is cut to these: only far off, or where eps is too long, do chains notice.

Source: Wang, Zeng & Liu (2018), section 4 (baseline).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyrograph.checks import positive
from pyrograph.infer.particle import ParticleEngine
from pyrograph.infer.stein_checks import (
    CHAINS_NARROW,
    CHAINS_WIDE,
    WIDE,
    common_errors,
    uncommon_spread,
)

#: Standard deviations of a step's noise that its drift may have, coordinate by coordinate. A start
#: in a corner, as where a scale is nearly 0, would else be thrown to where numbers end. Where steps
#: are short beside the density, eps a << 1, chains feel it from 10 sqrt(2 / (eps a)) of its
#: deviations on.
LONGEST = 10.0
TOO_LONG = "step_size is too long for a density this narrow, shorten it"


class Langevin(ParticleEngine):
    """Independent chains, one per particle.

    Args:
        model: a Pyro program whose latent sites are all continuous.
        step_size: eps above, in unconstrained units, or after ``init="laplace"`` in those of the
            coordinates in which the density is about 1 wide. The status tells, by Stein's
            identity, where it is too long (variances too large) or where
            ``num_steps * step_size`` is less than the slowest coordinate needs to forget its
            start (means off).
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

    def allocate(self) -> None:
        super().allocate()
        sizes = [site.num_nodes * site.width for site in self.graph.free_sites]
        sizes = torch.tensor(sizes, device=self.x.device)
        #: ``[dim]``, the number of each coordinate's site.
        self._site_of = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)

    def move(self, x: Tensor, score: Tensor) -> Tensor:
        return self.diffused(x, score, self.step_size, LONGEST)

    def _unsettled(self) -> int | None:
        """As little as draws miss Stein's identity: no kernel arranges chains, nor holds them
        narrow."""
        column = self.checks(common_errors(self.graph.dim)).unsettled(CHAINS_NARROW, CHAINS_WIDE)
        if column is not None:
            return column
        return uncommon_spread(
            *self.as_seen(), self._site_of, common_errors(len(self.graph.free_sites))
        )

    def not_arrived(self) -> str:
        other = "" if isinstance(self.init, str) else ' (or give init="laplace")'
        return (
            f"Raise num_steps or step_size: their product, {self.num_done * self.step_size:.3g} so "
            f"far, must exceed the slowest relaxation time{other}."
        )

    def _is_too_long(self, column: int) -> bool:
        """Whether a coordinate, which is too wide, is so for its step alone."""
        # eps a, of a chain of precision a
        ratio = self.checks().ratio[column]
        precision = ratio / self.as_seen()[0][:, column].var(correction=0)
        return float(ratio) > WIDE and float(self.step_size * precision) >= 2 * (1 - 1 / WIDE)

    def wide(self, column: int) -> str:
        return f"{TOO_LONG}." if self._is_too_long(column) else self.narrow(column)

    def nearer(self, column: int) -> str:
        return TOO_LONG if self._is_too_long(column) else super().nearer(column)

    def narrow(self, column: int) -> str:
        return f"they have not settled. {self.not_arrived()}"
