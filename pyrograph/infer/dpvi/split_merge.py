"""Splits and merges of clusters: ways out of the local optima of single labels.

Of the best labelling every two clusters are merged, and every cluster is split: two of its elements
far from each other start a cluster each, and the others join, one by one in random order, the one
that scores them higher. What comes out climbs for a few sweeps, label by label, before it is
compared with the present particles.

Source: Dahl (2003), sequentially allocated merge-split proposals, here maximised.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.dpvi.labelled import Labellings

#: Sweeps of climbing, and most merges that are tried.
SWEEPS, MOST_MERGES = 2, 64


def splits_and_merges(
    found: Labellings, most: int, generator: torch.Generator
) -> dict[str, Tensor] | None:
    """Labellings ``{site: [M, n]}`` that climbed from splits and merges of the best one; None if it
    has nothing to split."""
    best = found.select(torch.zeros(1, dtype=torch.int64, device=found.score.device))
    proposals: list[dict[str, Tensor]] = []
    for name in found.program.sites:
        proposals += [
            split for c in _clusters(best, name) if (split := _split(best, name, c, generator))
        ]
        proposals += _merges(best, name)
    if not proposals:
        return None
    labels = {name: torch.cat([p[name] for p in proposals]) for name in proposals[0]}
    candidates = Labellings(found.program, labels)
    for _ in range(SWEEPS):
        candidates.climb()
    candidates.rescore()
    return candidates.distinct(most).labels()


def _clusters(best: Labellings, name: str) -> range:
    return range(int(best.labels()[name].max()) + 1)


def _merges(best: Labellings, name: str) -> list[dict[str, Tensor]]:
    """Of the pairs of clusters that lose least."""
    labels = best.labels()
    own = labels[name][0]
    pairs = torch.combinations(torch.arange(int(own.max()) + 1, device=own.device))
    if not len(pairs):
        return []
    merged = torch.where(own == pairs[:, 1:], pairs[:, :1], own)  # [M, n]
    every = {n: v.expand(len(pairs), -1) for n, v in labels.items()} | {name: merged}
    score = best.program.log_prob(every)
    chosen = score.topk(min(MOST_MERGES, len(score))).indices
    return [{n: v[chosen] for n, v in every.items()}]


def _split(
    best: Labellings, name: str, cluster: int, generator: torch.Generator
) -> dict[str, Tensor] | None:
    """One split of a cluster, ``{site: [1, n]}``."""
    labels = best.labels()
    members = (labels[name][0] == cluster).nonzero().squeeze(1).tolist()
    if len(members) < 2:
        return None
    order = torch.randperm(len(members), generator=generator).tolist()
    first, *others = (members[k] for k in order)
    state = best.select(torch.zeros(1, dtype=torch.int64, device=best.score.device))
    clusters = state.clusters[name]
    with torch.inference_mode():
        for i in members:
            clusters.take_out(i)
        slot = _put_apart(clusters, first)
        # who is least at home with the first one
        at_home = torch.stack([clusters.scores(i)[0, slot] for i in others])
        away = torch.stack(
            [clusters.scores(i)[0].masked_fill(_taken(clusters), -torch.inf).amax() for i in others]
        )
        second = others.pop(int((at_home - away).argmin()))
        other = _put_apart(clusters, second)
        for i in others:
            score = clusters.scores(i)[0]
            better = slot if score[slot] >= score[other] else other
            clusters.put_in(i, torch.tensor([better], device=score.device))
    return state.labels()


def _taken(clusters) -> Tensor:
    """Slots that are in use."""
    return clusters.seating.counts[0] > 0


def _put_apart(clusters, i: int) -> int:
    """Put an element into a new cluster; its slot."""
    slot = int((~_taken(clusters)).to(torch.int8).argmax())
    clusters.put_in(i, torch.tensor([slot], device=clusters.labels.device))
    return slot
