"""Where DPVI starts: local maxima, from scattered and from opposite states.

A bound over few particles has many local optima, and which one is reached is decided here: on
symmetric models every state comes with its opposite, so that both modes are held.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.dpvi.network import Clusters

#: Fewest starts, and sweeps of each.
FEWEST, SWEEPS = 32, 100


def scattered(cards: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Independent uniform states ``[V, count]``, and their opposites: ``[V, 2 count]``."""
    u = torch.rand(len(cards), count, generator=generator, dtype=torch.float64)
    c = cards.cpu().unsqueeze(1)
    x = (u * c).long()
    return torch.cat([x, c - 1 - x], 1).to(cards.device)


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
