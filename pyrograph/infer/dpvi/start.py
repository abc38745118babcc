"""Where DPVI starts: local maxima, from scattered, opposite and equal states.

A bound over few particles has many local optima, and which one is reached is decided here: every
scattered state comes with its opposite, for models that do not change under it, and nodes that are
all in their first, second, ... state for models whose neighbours want to agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.dpvi.network import Clusters

#: Fewest starts, and sweeps of each.
FEWEST, SWEEPS = 32, 100


def scattered(cards: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Independent uniform states ``[V, count]``, their opposites, and equal states: ``[V, M]``."""
    u = torch.rand(len(cards), count, generator=generator, dtype=torch.float64)
    c = cards.cpu().unsqueeze(1)
    x = (u * c).long()
    equal = torch.arange(int(c.max())).minimum(c - 1)
    return torch.cat([x, c - 1 - x, equal], 1).to(cards.device)


def climbed(x: Tensor, blocks: list[Clusters]) -> Tensor:
    """Local maxima from states ``[V, M]``: every block in turn takes its best states."""
    x = x.clone()
    for _ in range(SWEEPS):
        moved = False
        for clusters in blocks:
            local, present = clusters.local_scores(x), clusters.current(x).unsqueeze(2)
            best, state = local.max(2)
            # ties keep what is there, so that climbing ends
            better = best > local.gather(2, present).squeeze(2)
            state = torch.where(better, state, present.squeeze(2))
            moved |= bool(better.any())
            x[clusters.nodes.flatten()] = clusters.states[state].permute(0, 2, 1).flatten(0, 1)
        if not moved:
            break
    return x
