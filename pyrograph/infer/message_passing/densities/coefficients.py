"""Quadratic factors, which need no integral over a grid.

    log f(v) = -v' P v / 2 + h' v + c,        in state d of labels   -u' P_d u / 2 + h_d' u + c_d

Whether a factor is one its steps tell. P and h are differences of gradients, taken in double
precision: values of log f may be far larger than what single precision has to tell of their
curvature. The gradient at 0, h, is taken from one that is far away. A difference over the distance
r of gradients P (y - v) about data y knows P to a share 1 + |y| / r of the rounding, so that over
a short one P would be lost of data in small units, as of times in nanoseconds since 1970. Only
where steps overflow on the way, as log(exp(v)) does, gradients are compared over a short one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import apply
from pyrograph.errors import UnsupportedFactor
from pyrograph.graph import FactorGroup
from pyrograph.graph.devices import at_once
from pyrograph.trace.forms.degree import polynomial_degree

if TYPE_CHECKING:
    from pyrograph.infer.message_passing.densities.reduction import LocalDensity

#: Distances over which gradients are compared. Far is beyond most data, with a square within range;
#: of a power of two no digit is lost.
FAR, NEAR = 2.0**64, 1.0
#: Points at which coefficients are checked, and what ill-conditioned ones may be off by there.
CHECKS, ILL_CONDITIONED = 16, 2e-7
#: Numbers that factors are evaluated at together; and what matrices of factors of labels may take.
CHUNK, MOST_NUMBERS = 2**22, 2**25


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
    found = _coefficients(double, double.at_parts, double.stacked_points(CHECKS))
    if found is None:
        return None
    found = found[0]
    own = Gaussian(found.precision.to(local.like), found.shift.to(local.like))
    too_large = ~torch.cat([own.precision.flatten(1), own.shift], 1).isfinite().all(1)
    if bool(too_large.any()):
        raise UnsupportedFactor(
            f"{local.name(int(too_large.nonzero()[0]))} has a curvature or slope beyond the "
            f"range of {local.like.dtype}. Use dtype=torch.float64, or other units."
        )
    return own


def coefficients_in_states(local: LocalDensity) -> Gaussian | None:
    """P and h in u of factors of labels, batch ``[D, E]``, dimension r, in double precision, if all
    of them are quadratic in every state."""
    # A has most: covariances are taken of the r numbers of u, not of all numbers of v
    numbers = local.num_states * local.num_factors * local.dim * sum(local.widths)
    if not local.discrete or not local.dim or numbers > MOST_NUMBERS:
        return None
    if polynomial_degree(local.group.program, local.discrete) > 2:
        return None
    double = local.in_double()
    points = double.stacked_points(CHECKS)
    if double.joint is not None:
        points = apply(double.joint, points)
    return _coefficients(double, double, points)


def _coefficients(
    local: LocalDensity, log_f: Callable[[Tensor], Tensor], points: Tensor
) -> Gaussian | None:
    """Of log f ``[N, D, E]`` at ``[N, D, E, r]``, batch ``[D, E]``; None if they are not finite, or
    others than log f's at some points."""
    for distance in (FAR, NEAR):
        found = _polynomials(local, log_f, points[0], distance)
        if _are_theirs(log_f, *found, points):
            return found[0]
    return None


def _polynomials(
    local: LocalDensity, log_f: Callable[[Tensor], Tensor], like: Tensor, distance: float
) -> tuple[Gaussian, Tensor]:
    """Those of degree 2, and their values ``[D, E]`` at 0."""
    r, attached = like.shape[-1], local.group.is_differentiable
    v = like.new_zeros(r + 1, *like.shape)
    v[1:] += distance * torch.eye(r, dtype=v.dtype, device=v.device).view(r, 1, 1, r)
    values, slopes = [], []
    for part in v.split(max(1, at_once(CHUNK, v.device) // max(1, like.numel()))):
        part = part.requires_grad_()
        with torch.enable_grad():
            value = log_f(part)
            slope = torch.zeros_like(part)
            if value.requires_grad:
                (found,) = torch.autograd.grad(
                    value.sum(), part, create_graph=attached, allow_unused=True
                )
                slope = slope if found is None else found
        values.append(value)
        slopes.append(slope)
    slope = torch.cat(slopes)  # [r + 1, D, E, r]
    precision = -((slope[1:] - slope[:1]) / distance).movedim(0, -2)
    return Gaussian((precision + precision.mT) / 2, slope[0]), values[0][0]


@torch.no_grad()
def _are_theirs(
    log_f: Callable[[Tensor], Tensor], gaussian: Gaussian, constant: Tensor, points: Tensor
) -> bool:
    """Whether the coefficients are those of the factors, up to rounding, and finite."""
    theirs = log_f(points)
    ours = constant + gaussian.log_value(points)
    # what the coefficients, differences of gradients, may be off by
    size = gaussian.precision.abs().amax((-1, -2)) + gaussian.shift.abs().amax(-1)
    bound = 1 + theirs.abs() + size * (1 + points.square().sum(-1))
    if not bool(theirs.isfinite().all()):
        return False
    return bool(((theirs - ours).abs() <= ILL_CONDITIONED * bound).all())
