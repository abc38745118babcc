"""Points at several scales, at which what is read off the factors' steps is looked at once more."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.trace.sites import Site
from pyrograph.trace.supports import is_real

#: Scales of the standard normal points, in turn.
SCALES = (1.0, 0.3, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
#: Largest scale of numbers that stand for constrained values.
CONSTRAINED = 10.0


def points_of(
    site: Site, shape: tuple[int, int, int, int], like: Tensor, generator: torch.Generator
) -> Tensor:
    """Values of some of a continuous site's numbers, ``[N, D, E, r]``.

    Those that stand for constrained values do not go as far out: exponentials overflow.
    """
    farthest = max(SCALES) if is_real(site.support) else CONSTRAINED
    scale = torch.tensor(
        [min(SCALES[k % len(SCALES)], farthest) for k in range(shape[0])], device="cpu"
    )
    z = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return (z * scale.view(-1, 1, 1, 1)).to(like)
