"""Elements of labellings in turn, but those that would stay where they are.

What a move of an element gains is known for many elements at once where scores are sums over
clusters. Near an optimum nearly all gains are too low for a change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pyrograph.distributions.incremental import Clusters

#: Numbers of gains that are looked at in one go.
SCREENED = 100_000
#: Moves without a change before elements are looked at in one go again.
CALM = 4


def visit(
    every: Sequence[tuple[str, int]],
    states: Mapping[str, Clusters],
    move: Callable[[str, int], bool],
    may_move: Callable[[Tensor], Tensor],
) -> None:
    """Move elements in turn; those that would stay are passed over as long as nothing changes.

    Args:
        every: elements, each of a site.
        states: statistics of the sites, which moves change.
        move: one element of a site; whether anything changed.
        may_move: whether each of B elements might, ``[B]``, from their gains ``[K, C, B]``.
    """
    ahead = 0
    (clusters, *others) = states.values()
    if others or clusters.by_particle:
        for name, i in every:
            move(name, i)
        return
    while ahead < len(every):
        count = max(1, SCREENED // clusters.seating.rows.numel())
        block = every[ahead : ahead + count]
        numbers = torch.tensor([i for _, i in block], device=clusters.seating.rows.device)
        ahead += len(block)
        for k in may_move(clusters.gains(numbers)).nonzero().squeeze(1).tolist():
            if move(*block[k]):
                ahead += k + 1 - len(block)
                break
        else:
            continue
        # others are likely to follow
        calm = 0
        while ahead < len(every) and calm < CALM:
            calm = 0 if move(*every[ahead]) else calm + 1
            ahead += 1


def margin(gain: Tensor) -> float:
    """What rounding could hide: moves this close to a change are made."""
    return torch.finfo(gain.dtype).eps ** 0.5
