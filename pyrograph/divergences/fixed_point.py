"""Fixed points of the alpha-projection.

A minimum of D_alpha(p || q) over an exponential family is a fixed point of

    q' = proj[p^alpha q^(1 - alpha)],      q <- q^(1 - eps) (q')^eps,      eps = eta / alpha,

proj being moment matching. The step carries the sign of alpha, since the gradient of D_alpha
is that of KL(p^alpha q^(1 - alpha) || q) over alpha; with eps > 0 the iteration climbs for
alpha < 0. In natural parameters theta the step is eta (theta' - theta) / alpha, whose limit at
alpha = 0 is the natural gradient of KL(q || p). It is a descent direction for every alpha, so
eta is halved where the divergence would grow or q become improper. The scale of q drops out of
the iteration and is set by eq (8) at the end.

Source: Minka (2005), section 3.1, eqs (15) to (17) and (85).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.divergences.alpha import normalised_divergence
from pyrograph.divergences.families import Family, Member
from pyrograph.divergences.measures import Atomic
from pyrograph.divergences.pointwise import log_product
from pyrograph.divergences.starts import starting_points
from pyrograph.errors import ConvergenceWarning

#: |alpha| below which (theta' - theta) / alpha is taken as the derivative at alpha = 0.
SMALL_ALPHA = 1e-6
#: A step that would raise the divergence is halved, down to this.
SMALLEST_STEP = 1e-7
#: Rounding allowed in the test for descent, in double precision.
ROUNDING = 1e-12
#: Divergences and moments are known to this many units of their dtype's rounding.
UNITS = 100


@dataclass
class Walk:
    """The runs still under way: index into the flat batch of starts, state and step."""

    index: Tensor
    p: Atomic
    natural: Tensor
    value: Tensor
    step: Tensor
    rate: Tensor

    def keep(self, mask: Tensor) -> Walk:
        """The runs under ``mask``."""
        return Walk(
            self.index[mask],
            self.p.select(mask),
            self.natural[mask],
            self.value[mask],
            self.step[mask],
            self.rate[mask],
        )


def iterate(
    p: Atomic,
    family: Family,
    alpha: float,
    init: Member | None,
    step: float,
    tol: float,
    max_steps: int,
) -> Tensor:
    """Natural parameters ``[B, m]`` of the best fixed point reached from the starts."""
    natural, value = starting_points(p, family, alpha, init)
    num_starts, batch = value.shape
    ends, end_values = natural.flatten(0, 1).clone(), value.flatten().clone()
    walk = Walk(
        torch.arange(num_starts * batch, device=value.device),
        p.expand((num_starts, batch)).flatten(),
        ends.clone(),
        end_values.clone(),
        torch.full_like(end_values, step),
        torch.full_like(end_values, torch.inf),
    ).keep(end_values.isfinite())
    done = torch.zeros(num_starts * batch, dtype=torch.bool, device=value.device)
    eps = torch.finfo(value.dtype).eps
    rounding, least = max(ROUNDING, UNITS * eps), max(tol, UNITS * eps)
    for _ in range(max_steps):
        if not walk.index.numel():
            break
        walk, rate, accept = _stepped(walk, family, alpha, step, rounding)
        ends[walk.index], end_values[walk.index] = walk.natural, walk.value
        # a step so short that it is lost to rounding says nothing
        converged = accept & (rate < least) & (walk.step * least > eps)
        done[walk.index[converged]] = True
        walk = walk.keep(~converged & (walk.step > SMALLEST_STEP))
    best = end_values.reshape(num_starts, batch).nan_to_num(nan=math.inf).argmin(0)
    reached = done.reshape(num_starts, batch).gather(0, best[None])[0]
    if not bool(reached.all()):
        warnings.warn(
            f"alpha = {alpha:g}: {int((~reached).sum())} of {batch} fixed-point iterations did not "
            f"settle to tol={tol:g} within {max_steps} steps; raise max_steps, lower step, or use "
            'method="direct"',
            ConvergenceWarning,
            stacklevel=3,
        )
    return ends.reshape(num_starts, batch, -1)[best, torch.arange(batch, device=best.device)]


def _stepped(
    walk: Walk, family: Family, alpha: float, longest: float, rounding: float
) -> tuple[Walk, Tensor, Tensor]:
    """One step of every run; how far it went beside its length, and whether it was taken."""
    old, _ = family.from_natural(walk.natural, walk.p)
    trial = walk.natural + walk.step[:, None] * direction(walk.p, family, alpha, walk.natural)
    new, proper = family.from_natural(trial, walk.p)
    q = family.place(new, walk.p)
    value = normalised_divergence(walk.p.log_atoms, q.log_atoms, alpha)
    slack = rounding * (1 + walk.value.abs())
    accept = proper & value.isfinite() & (value <= walk.value + slack)
    rate = family.change(old, new) / walk.step
    # where the divergence is flat to rounding, only the rate shows that a step was too long
    flat = accept & ((value - walk.value).abs() <= slack)
    factor = torch.where(flat, torch.where(rate > walk.rate, 0.5, 1.1), 1.5).to(rate)
    found = replace(
        walk,
        natural=torch.where(accept[:, None], family.natural(new), walk.natural),
        value=torch.where(accept, value, walk.value),
        step=(walk.step * torch.where(accept, factor, 0.5)).clamp(max=longest),
        rate=torch.where(accept, rate, walk.rate),
    )
    return found, rate, accept


def direction(p: Atomic, family: Family, alpha: float, natural: Tensor) -> Tensor:
    """(theta' - theta) / alpha with theta' of proj[p^alpha q^(1 - alpha)]; ``[B, m]``.

    theta is read off proj[q] on the atoms too, so that quadrature errors of q cancel and the
    fixed point is the minimum of the divergence on the same atoms.
    """
    member, _ = family.from_natural(natural, p)
    q = family.place(member, p)

    def matched(order: Tensor) -> Tensor:
        return family.natural(family.project(q.with_atoms(tilt(p.log_atoms, q.log_atoms, order))))

    at = torch.tensor(alpha, dtype=natural.dtype, device=natural.device)
    zero = torch.zeros_like(at)
    if abs(alpha) < SMALL_ALPHA:
        _, slope = torch.func.jvp(matched, (zero,), (torch.ones_like(at),))
    else:
        slope = (matched(at) - matched(zero)) / alpha
    return torch.where(natural == -torch.inf, 0, slope)


def tilt(a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    """log(p^alpha q^(1 - alpha)), differentiable in alpha where q vanishes."""
    return log_product(torch.where(b == -torch.inf, b, a), b, alpha)
