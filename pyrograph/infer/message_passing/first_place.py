"""Where nodes stand at first that no Gaussian factor holds: about 0, or about their priors.

Such nodes start from N(0, 1) in unconstrained space. A prior in other units than those of 0 lies
where that has nothing left: a scale of data in the millions has its logarithm at 14. All factors
would answer for 0 at once, and sweeps run away. Nodes whose own factors, those of this node alone,
have their mode farther than :data:`REACH` from 0 therefore start from N(mode, 1).

The mode is climbed to by Newton's steps, coordinate by coordinate, each within a radius that
doubles where log f rises and is a quarter where it does not: O(log of the distance) evaluations of
factors of one node.

Source: the radius is that of Nocedal & Wright (2006), algorithm 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import apply
from pyrograph.infer.message_passing.families import Continuous, add_sites
from pyrograph.infer.message_passing.quadrature_factors import QuadratureFactors

#: Standard deviations of N(0, 1) within which it sees a prior.
REACH = 3.0
#: Steps of a climb, at most; lengths of steps from which on it is over.
MAX_STEPS, SHORT = 40, 0.1


def moved_to_priors(families: Sequence, blocks: Sequence, messages: list[list]) -> list[list]:
    """First messages, by block and port, about other places than 0 where priors are far from it."""
    places = [_far_modes(number, family, blocks) for number, family in enumerate(families)]
    moved = []
    for block, sent in zip(blocks, messages, strict=True):
        own = list(sent)
        for k, message in enumerate(sent):
            x = places[block.families[k]]
            if x is None or not isinstance(block, QuadratureFactors):
                continue
            rows, basis = block.rows[k], block.bases[k]
            v = (x[rows] if basis is None else basis.of(x[rows])).to(message.shift)
            own[k] = Gaussian(message.precision, apply(message.precision, v))
        moved.append(own)
    return moved


def _far_modes(number: int, family: object, blocks: Sequence) -> Tensor | None:
    """Modes ``[V, d]`` of what nodes have to themselves, 0 where they are near it or nothing needs
    to be known of them; None where all are 0."""
    if not isinstance(family, Continuous) or not isinstance(family.base, Gaussian):
        return None
    vague = ~family.base.is_proper
    own = [b for b in blocks if isinstance(b, QuadratureFactors) and b.families == [number]]
    if not own or not bool(vague.any()):
        return None
    base = Gaussian(family.base.precision.detach(), family.base.shift.detach())._with(Tensor.double)
    mode, is_top = _climbed(_Own(base, own))
    far = vague & is_top & (mode.abs() > REACH).any(1)
    return torch.where(far.unsqueeze(1), mode, 0) if bool(far.any()) else None


class _Own:
    """The product of factors of one node each, with their Gaussian part."""

    def __init__(self, base: Gaussian, blocks: list[QuadratureFactors]):
        self.base, self.blocks = base, blocks

    def _places(self, x: Tensor, block: QuadratureFactors) -> Tensor:
        rows, basis = block.rows[0], block.bases[0]
        return (x[rows] if basis is None else basis.of(x[rows])).double()

    def log_value(self, x: Tensor) -> Tensor:
        """``[V]`` at ``x [V, d]``, minus infinity where it is no number."""
        total = (x * (self.base.shift - apply(self.base.precision, x) / 2)).sum(1)
        for block in self.blocks:
            value = block.local.at_scope(self._places(x, block)).detach()
            total = total.index_add(0, block.rows[0], value)
        return torch.nan_to_num(total, nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)

    def expanded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Curvature and slope along every coordinate, ``[V, d]`` each."""
        total = self.base
        for block in self.blocks:
            v = self._places(x, block)
            precision, slope = block.local.expanded(v)
            site = Gaussian(precision, slope + apply(precision, v))
            total = add_sites(total, block.rows[0], site, block.bases[0])
        slope = total.shift - apply(total.precision, x)
        return total.precision.diagonal(dim1=-2, dim2=-1), slope


def _climbed(own: _Own) -> tuple[Tensor, Tensor]:
    """From 0 to the modes ``[V, d]``; and ``[V]`` where the climb ended at one."""
    x = torch.zeros_like(own.base.shift)
    height = own.log_value(x)
    radius = torch.ones_like(height)
    is_over = ~height.isfinite()
    for _ in range(MAX_STEPS):
        curvature, slope = own.expanded(x)
        newton = torch.where(curvature > 0, slope / curvature, slope.sign() * torch.inf)
        step = newton.clamp(-radius.unsqueeze(1), radius.unsqueeze(1)).nan_to_num(0.0)
        there = own.log_value(x + step)
        rises = (there > height) & ~is_over
        x = torch.where(rises.unsqueeze(1), x + step, x)
        height = torch.where(rises, there, height)
        radius = torch.where(rises, 2 * radius, radius / 4)
        is_over = is_over | (step.abs() < SHORT).all(1)
        if bool(is_over.all()):
            break
    return x, is_over & height.isfinite()
