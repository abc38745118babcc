"""The member of a family nearest to p in alpha-divergence: one call, two methods.

Source: Minka (2005), section 3.1.
"""

from __future__ import annotations

import math

import torch

from pyrograph.divergences.alpha import alpha_divergence, optimal_scale
from pyrograph.divergences.direct import minima_from
from pyrograph.divergences.families import Family, Member
from pyrograph.divergences.fixed_point import iterate
from pyrograph.divergences.measures import Atomic
from pyrograph.errors import OptionError

#: Members whose moments agree to this are one local minimum.
SAME = 1e-3


def alpha_project(
    p: Atomic,
    family: Family,
    alpha: float,
    method: str = "fixed point",
    *,
    init: Member | None = None,
    step: float = 0.5,
    tol: float = 1e-10,
    max_steps: int = 2000,
    restarts: int = 4,
) -> Member:
    """The member of ``family`` that minimises D_alpha(p || q), with the scale of eq (8).

    Every start of the family is followed and the best end kept, since D_alpha has several local
    minima for small alpha.

    Args:
        p: the measure to approximate, as for :func:`project`; a batch is solved together.
        alpha: any finite number; 1 is :func:`project`, 0 variational inference.
        method: ``"fixed point"``, or ``"direct"`` for L-BFGS on the divergence (float64, one
            batch element at a time; slower, and independent of the iteration).
        init: follow this member alone.
        step: eta in (0, 1].
        tol: largest change of a moment per unit step at which the iteration has converged.
        max_steps: largest number of iterations.
        restarts: random starts of the direct method beside the family's.

    Returns:
        a member with the batch of ``p``.

    Raises:
        OptionError: an option is out of range.
        InferenceError: every start has infinite divergence.

    Warns:
        ConvergenceWarning: the iteration stopped before it met ``tol``.
    """
    alpha = checked_alpha(alpha)
    if method not in ("fixed point", "direct"):
        raise OptionError(f'method={method!r}: choose "fixed point" or "direct"')
    if not 0 < step <= 1:
        raise OptionError(f"step={step!r} must lie in (0, 1]; it is eta, its sign follows alpha")
    batch = p.batch_shape
    flat = p.flatten()
    if method == "direct":
        best = [
            minima_from(flat.select(torch.tensor([i])), family, alpha, init, restarts)[0][0]
            for i in range(flat.log_atoms.shape[0])
        ]
        natural = torch.cat([family.natural(member) for member in best])
    else:
        natural = iterate(flat, family, alpha, init, step, tol, max_steps)
    member, _ = family.from_natural(natural.reshape(batch + natural.shape[-1:]), p)
    return member.scaled(optimal_scale(p, family.place(member, p), alpha))


def local_minima(
    p: Atomic, family: Family, alpha: float, *, restarts: int = 8
) -> list[tuple[Member, float]]:
    """Distinct local minima of D_alpha(p || q) found by direct minimisation, best first.

    Args:
        p: one measure, without batch.
        restarts: random starts beside the family's own.

    Returns:
        pairs of a member, scaled by eq (8), and its divergence.
    """
    if p.batch_shape:
        raise OptionError(f"local_minima takes one measure, not a batch {list(p.batch_shape)}")
    found: list[tuple[Member, float]] = []
    for member, _ in minima_from(p.flatten(), family, checked_alpha(alpha), None, restarts):
        natural = family.natural(member)[0]
        member, _ = family.from_natural(natural, p)
        if all(float(family.change(other, member)) > SAME for other, _ in found):
            scaled = member.scaled(optimal_scale(p, family.place(member, p), alpha))
            divergence = alpha_divergence(p, family.place(scaled, p), alpha)
            found.append((scaled, float(divergence)))
    return found


def checked_alpha(alpha: float) -> float:
    """``alpha`` as a finite number."""
    alpha = float(alpha)
    if not math.isfinite(alpha):
        raise OptionError(f"alpha={alpha!r} must be a finite number")
    return alpha
