"""Where the search for a minimum of an alpha-divergence begins."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.divergences.alpha import scale_free_divergence
from pyrograph.divergences.families import Family, Member
from pyrograph.divergences.measures import Atomic
from pyrograph.errors import InferenceError


def starting_points(
    p: Atomic, family: Family, alpha: float, init: Member | None
) -> tuple[Tensor, Tensor]:
    """Natural parameters ``[k, B, m]`` of the starts, and their scale-free divergences."""
    starts = family.starts(p, alpha) if init is None else [init]
    shape = p.batch_shape
    natural = torch.stack([family.natural(s).expand(shape + (-1,)) for s in starts])
    members, _ = family.from_natural(natural, p)
    value = scale_free_divergence(
        p.expand(natural.shape[:-1]), family.place(members, p.expand(natural.shape[:-1])), alpha
    )
    lost = ~value.isfinite().any(0)
    if bool(lost.any()):
        raise InferenceError(
            f"alpha = {alpha:g}: every start has infinite divergence for {int(lost.sum())} of "
            f"{lost.numel()} measures. For alpha <= 0 the support of q must lie inside that of p, "
            "for alpha >= 1 it must contain it, and q must not be wider (narrower) than the "
            "tails of p allow: give an init that does"
        )
    return natural, value
