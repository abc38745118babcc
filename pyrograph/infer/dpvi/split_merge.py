"""Splits and merges of clusters: ways out of the local optima of single labels.

Of the best labelling every cluster is merged with one near it, and split: two of its elements
far from each other start a cluster each, and the others join, one by one in random order, the one
that scores them higher. What comes out climbs for a few sweeps, label by label, before it is
compared with the present particles.

Source: Dahl (2003), sequentially allocated merge-split proposals, here maximised.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.distributions import Clusters
from pyrograph.infer.dpvi.labelled import Labellings

#: Place of the second element of a split among all, by how little it is at home with the first.
APART = 0.05
#: Sweeps of climbing, and how many candidates climb.
SWEEPS, MOST_CLIMBS = 2, 16


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
    climbed = _climbed(Labellings(found.program, labels).distinct(MOST_CLIMBS))
    better = climbed.score > best.score
    if int(better.sum()) > 1:
        together = {name: _refinement(z[better]) for name, z in climbed.labels().items()}
        climbed = climbed.joined(_climbed(Labellings(found.program, together)).labels())
    return climbed.distinct(most).labels()


def _climbed(candidates: Labellings) -> Labellings:
    for _ in range(SWEEPS):
        candidates.climb()
    candidates.rescore()
    return candidates


def _refinement(labels: Tensor) -> Tensor:
    """The coarsest partition ``[1, n]`` that is finer than all of ``[M, n]``."""
    return labels.unique(dim=1, return_inverse=True)[1].unsqueeze(0)


def _clusters(best: Labellings, name: str) -> range:
    return range(int(best.labels()[name].max()) + 1)


def _merges(best: Labellings, name: str) -> list[dict[str, Tensor]]:
    """Of every cluster with that which its first element would go to next."""
    labels = best.labels()
    own = labels[name][0]
    if int(own.max()) == 0:
        return []
    clusters = best.select(torch.zeros(1, dtype=torch.int64, device=own.device)).clusters[name]
    pairs = set()
    with torch.inference_mode():
        for c in range(int(own.max()) + 1):
            i = int((own == c).nonzero()[0])
            home = clusters.labels[:, i].clone()
            clusters.take_out(i)
            score = clusters.scores(i)[0]
            clusters.put_in(i, home)
            in_use = clusters.seating.counts[0] > 0
            score = score.masked_fill(~in_use, -torch.inf)
            score[home] = -torch.inf
            other = int(own[(clusters.labels[0] == int(score.argmax())).nonzero()[0]])
            pairs.add((min(c, other), max(c, other)))
    merged = torch.stack([torch.where(own == b, a, own) for a, b in sorted(pairs)])
    return [{n: v.expand(len(merged), -1) for n, v in labels.items()} | {name: merged}]


def _split(
    best: Labellings, name: str, cluster: int, generator: torch.Generator
) -> dict[str, Tensor] | None:
    """One split of a cluster, ``{site: [1, n]}``."""
    labels = best.labels()
    members = (labels[name][0] == cluster).nonzero().squeeze(1).tolist()
    if len(members) < 2:
        return None
    order = torch.randperm(len(members), generator=generator, device="cpu").tolist()
    first, *others = (members[k] for k in order)
    out = labels[name].index_fill(1, torch.tensor(members, device=labels[name].device), -1)
    state = Labellings(best.program, labels | {name: out})
    clusters = state.clusters[name]
    with torch.inference_mode():
        slot = _put_apart(clusters, first)
        # who is least at home with the first one, against a cluster of its own
        free = _first_free(clusters)
        scores = torch.stack([clusters.scores(i)[0, [slot, free]] for i in others])
        # not the very last, which may be an outlier that no other joins
        order = (scores[:, 0] - scores[:, 1]).argsort()
        second = others.pop(int(order[int(APART * len(others))]))
        other = _put_apart(clusters, second)
        for i in others:
            score = clusters.scores(i)[0]
            better = slot if score[slot] >= score[other] else other
            clusters.put_in(i, torch.tensor([better], device=score.device))
    return state.labels()


def _first_free(clusters: Clusters) -> int:
    return int(clusters.seating.open()[0])


def _put_apart(clusters: Clusters, i: int) -> int:
    """Put an element into a new cluster; its slot."""
    slot = _first_free(clusters)
    clusters.put_in(i, torch.tensor([slot], device=clusters.labels.device))
    return slot
