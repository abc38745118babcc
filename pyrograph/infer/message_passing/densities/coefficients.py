"""Quadratic factors, which need no integral over a grid.

    log f(v) = -v' P v / 2 + h' v + c

Whether a factor is one its steps tell. P and h are differences of gradients, taken in double
precision: values of log f may be far larger than what single precision has to tell of their
curvature. The gradient at 0, h, is taken from one that is far away. A difference over the distance
r of gradients P (y - v) about data y knows P to a share 1 + |y| / r of the rounding, so that over
a short one P would be lost of data in small units, as of times in nanoseconds since 1970. Only
where steps overflow on the way, as log(exp(v)) does, gradients are compared over a short one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.errors import UnsupportedFactor
from pyrograph.graph import FactorGroup
from pyrograph.trace.forms.degree import polynomial_degree

if TYPE_CHECKING:
    from pyrograph.infer.message_passing.densities.reduction import LocalDensity

#: Distances over which gradients are compared. Far is beyond most data, with a square within range;
#: of a power of two no digit is lost.
FAR, NEAR = 2.0**64, 1.0
#: Points at which coefficients are checked, and what ill-conditioned ones may be off by there.
CHECKS, ILL_CONDITIONED = 16, 2e-7


def is_discrete_or_quadratic(group: FactorGroup) -> bool:
    """Whether no integral over the factors' nodes needs a grid, as far as their steps tell."""
    if any(site.is_discrete for site in group.slots):
        return group.is_discrete
    return polynomial_degree(group.program) <= 2


def quadratic_coefficients(local: LocalDensity) -> Gaussian | None:
    """P and h in v of factors without discrete slots, batch ``[E]``, dimension R, if all of them
    are quadratic.

    Raises:
        UnsupportedFactor: a coefficient is beyond the dtype's range.
    """
    if not is_discrete_or_quadratic(local.group):
        return None
    double = local.in_double()
    found = _coefficients(double, FAR) or _coefficients(double, NEAR)
    if found is None:
        return None
    own = Gaussian(found.precision.to(local.like), found.shift.to(local.like))
    too_large = ~torch.cat([own.precision.flatten(1), own.shift], 1).isfinite().all(1)
    if bool(too_large.any()):
        raise UnsupportedFactor(
            f"{local.name(int(too_large.nonzero()[0]))} has a curvature or slope beyond the "
            f"range of {local.like.dtype}. Use dtype=torch.float64, or other units."
        )
    return own


def _coefficients(local: LocalDensity, distance: float) -> Gaussian | None:
    """Of polynomials of degree 2; None if they are not finite, or others than the factors'."""
    total = sum(local.widths)
    v = local.like.new_zeros(total + 1, 1, local.num_factors, total)
    v[1:] += distance * torch.eye(total, dtype=v.dtype, device=v.device).view(total, 1, 1, total)
    v.requires_grad_()
    attached = local.group.is_differentiable
    with torch.enable_grad():
        value = local.at_parts(v)
        slope = torch.zeros_like(v)
        if value.requires_grad:
            found = torch.autograd.grad(value.sum(), v, create_graph=attached, allow_unused=True)
            slope = slope if found[0] is None else found[0]
    slope = slope.squeeze(1)  # [R + 1, E, R]
    precision = -((slope[1:] - slope[:1]) / distance).transpose(0, 1)
    gaussian = Gaussian((precision + precision.mT) / 2, slope[0])
    return gaussian if _are_theirs(local, gaussian, value[0, 0]) else None


@torch.no_grad()
def _are_theirs(local: LocalDensity, gaussian: Gaussian, constant: Tensor) -> bool:
    """Whether the coefficients are those of the factors, up to rounding, and finite."""
    v = local.stacked_points(CHECKS)
    theirs, v = local.at_parts(v).squeeze(1), v.squeeze(1)
    ours = constant + gaussian.log_value(v)
    # what the coefficients, differences of gradients, may be off by
    size = gaussian.precision.abs().amax((-1, -2)) + gaussian.shift.abs().amax(-1)
    bound = 1 + theirs.abs() + size * (1 + v.square().sum(-1))
    if not bool(theirs.isfinite().all()):
        return False
    return bool(((theirs - ours).abs() <= ILL_CONDITIONED * bound).all())
