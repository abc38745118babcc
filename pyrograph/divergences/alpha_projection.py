"""The member of a family nearest to p in alpha-divergence: one call, two methods.

Source: Minka (2005), section 3.1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.checks import count, real_number
from pyrograph.divergences.alpha import alpha_divergence, optimal_scale
from pyrograph.divergences.direct import minima_from
from pyrograph.divergences.families import Family, Member, check_family
from pyrograph.divergences.fixed_point import iterate
from pyrograph.divergences.measures import Atomic
from pyrograph.divergences.pairs import check_target
from pyrograph.divergences.starts import flat_start
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
    minima for small alpha. No method here proves that the best of them is the global one.

    Args:
        p: the measure to approximate, as for :func:`project`; a batch is solved together.
        alpha: any finite number; 1 is :func:`project`, 0 variational inference.
        method: ``"fixed point"``, or ``"direct"`` for L-BFGS on the divergence (float64, one
            batch element at a time; slower, independent of the iteration, and without derivatives).
        init: follow this member alone; its batch broadcasts to that of ``p``.
        step: eta in (0, 1].
        tol: largest change of a moment per unit step at which the iteration has converged; where
            it is finer than 100 roundings of the dtype of ``p``, that.
        max_steps: largest number of iterations.
        restarts: random starts of the direct method beside the family's.

    Returns:
        a member with the batch of ``p``.

    Raises:
        OptionError: an option is out of range, ``init`` is no member of the family, or the batch
            is empty.
        ShapeMismatch: ``p`` or ``init`` does not fit the family.
        NonFiniteDensity: a mass of ``p`` is NaN or infinite.
        ZeroMass: ``p`` has no mass.
        InferenceError: every start has infinite divergence.

    Warns:
        ConvergenceWarning: the iteration stopped before it met ``tol``.
    """
    alpha = checked_alpha(alpha)
    if method not in ("fixed point", "direct"):
        raise OptionError(f'method={method!r}: choose "fixed point" or "direct"')
    if not 0 < real_number(step) <= 1:
        raise OptionError(f"step={step!r} must lie in (0, 1]; it is eta, its sign follows alpha")
    if not real_number(tol) >= 0:
        raise OptionError(f"tol={tol!r} must be a number, at least 0")
    step, tol = real_number(step), real_number(tol)
    max_steps, restarts = count("max_steps", max_steps, 0), count("restarts", restarts, 0)
    check_family(family)
    check_target(p)
    if method == "direct":
        p = p.copied()  # a scale alone that follows p would have the wrong derivative
    batch = p.batch_shape
    flat = p.flatten()
    if init is not None:
        init = flat_start(init, p, family)
    if method == "direct":
        elements = range(flat.log_atoms.shape[0])
        each = [direct_minimum(flat, i, family, alpha, init, restarts) for i in elements]
        natural = torch.cat(each)
    else:
        natural = iterate(flat, family, alpha, init, step, tol, max_steps)
    member, _ = family.from_natural(natural.reshape(batch + natural.shape[-1:]), p)
    return member.scaled(optimal_scale(p, family.place(member, p), alpha))


def direct_minimum(
    p: Atomic, i: int, family: Family, alpha: float, init: Member | None, restarts: int
) -> Tensor:
    """Natural parameters ``[1, m]`` of the lowest end for element ``i`` of a flat batch."""
    at = torch.tensor([i], device="cpu")
    one = p.select(at)
    if init is not None:
        init, _ = family.from_natural(family.natural(init)[at], one)
    return family.natural(minima_from(one, family, alpha, init, restarts)[0][0])


def local_minima(
    p: Atomic, family: Family, alpha: float, *, restarts: int = 8
) -> list[tuple[Member, float]]:
    """Distinct local minima of D_alpha(p || q) found by direct minimisation, best first.

    Args:
        p: one measure, without batch.
        restarts: random starts beside the family's own.

    Returns:
        pairs of a member, scaled by eq (8) and without derivatives, and its divergence.
    """
    restarts = count("restarts", restarts, 0)
    check_family(family)
    check_target(p)
    if p.batch_shape:
        raise OptionError(f"local_minima takes one measure, not a batch {list(p.batch_shape)}")
    p = p.copied()
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
    number = real_number(alpha)
    if not math.isfinite(number):
        raise OptionError(f"alpha={alpha!r} must be a finite number, one for the whole batch")
    return number
