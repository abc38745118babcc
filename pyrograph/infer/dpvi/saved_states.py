"""Whether what a saved state of filtering holds fits the program that goes on from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyrograph.errors import ShapeMismatch

#: Up to which gap, relative, a saved score of labels is as good as one counted anew; and beyond
#: which gap, absolute and relative, it is that of other data. Scores that were summed up element by
#: element, far from where data and prior stand, lie in between.
IN_DOUBLE, IN_SINGLE = (1e-8, 1e-3, 1e-6), (1e-4, 1e-2, 1e-4)


def score_of_labels(saved: Tensor, now: Tensor) -> Tensor:
    """Scores ``[K]`` of labels: the saved ones, or those counted from the labels where rounding
    parts them.

    Raises:
        ShapeMismatch: more does: this program has other data or parameters.
    """
    same, least, relative = IN_DOUBLE if now.dtype == torch.float64 else IN_SINGLE
    now = now.double()
    saved = saved.to(now)
    gap, size = (saved - now).abs(), now.abs()
    if not bool((gap <= least + relative * size).all()):
        raise ShapeMismatch(
            "the state belongs to other data or parameters: the log densities of its labels "
            f"differ here by up to {float(gap.max()):.3g}. Set the engine up with the "
            "arguments of the saved run, or start pg.DPVI from its labels by init=."
        )
    return torch.where(gap <= same * (1 + size), saved, now)


def order_of(saved: Tensor | Sequence, ours: Tensor | Sequence) -> Any:
    """The order of a saved state, of the same nodes ``[V]`` or elements ``[(site, i), ...]``.

    Raises:
        ShapeMismatch: it is one of others.
    """
    if isinstance(ours, Tensor):
        saved = torch.as_tensor(saved, dtype=ours.dtype, device=ours.device)
        is_same = torch.equal(saved.sort().values, ours.sort().values)
    else:
        saved = [(name, int(i)) for name, i in saved]
        is_same = sorted(saved) == sorted(ours)
    if not is_same:
        raise ShapeMismatch(
            "the state belongs to another graph: other nodes come in there. Set the engine up with "
            "the model and arguments of the saved run."
        )
    return saved
