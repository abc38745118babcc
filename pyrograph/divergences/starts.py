"""Where the search for a minimum of an alpha-divergence begins."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.divergences.alpha import normalised_divergence
from pyrograph.divergences.families import Family, Member
from pyrograph.divergences.measures import Atomic
from pyrograph.divergences.pairs import paired_atoms
from pyrograph.errors import InferenceError, OptionError, ShapeMismatch
from pyrograph.shapes import broadcast_shapes


def flat_start(init: Member, p: Atomic, family: Family) -> Member:
    """``init`` for every element of the batch of ``p``, as one flat batch."""
    kind = type(family.project(p))
    if not isinstance(init, kind):
        raise OptionError(
            f"init is {type(init).__name__}, and the members of {type(family).__name__} are "
            f"{kind.__name__}"
        )
    paired_atoms(p, family.place(init, p))
    natural = family.natural(init)
    batch = p.batch_shape
    if broadcast_shapes(batch, natural.shape[:-1]) != batch:
        raise ShapeMismatch(
            f"init has the batch {list(natural.shape[:-1])}, which is wider than {list(batch)} of p"
        )
    natural = natural.to(p.log_atoms.dtype).expand(batch + (-1,)).reshape(-1, natural.shape[-1])
    return family.from_natural(natural, p.flatten())[0]


def starting_points(
    p: Atomic, family: Family, alpha: float, init: Member | None
) -> tuple[Tensor, Tensor]:
    """Natural parameters ``[k, B, m]`` of the starts, and their scale-free divergences."""
    starts = family.starts(p, alpha) if init is None else [init]
    shape = p.batch_shape
    natural = torch.stack([family.natural(s).expand(shape + (-1,)) for s in starts])
    members, _ = family.from_natural(natural, p)
    p = p.expand(natural.shape[:-1])
    value = normalised_divergence(p.log_atoms, family.place(members, p).log_atoms, alpha)
    lost = ~value.isfinite().any(0)
    if bool(lost.any()):
        raise InferenceError(
            f"alpha = {alpha:g}: every start has infinite divergence for {int(lost.sum())} of "
            f"{lost.numel()} measures. For alpha <= 0 the support of q must lie inside that of p, "
            "for alpha >= 1 it must contain it, and q must not be wider (narrower) than the "
            "tails of p allow: give an init that does"
        )
    return natural, value
