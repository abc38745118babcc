"""Splits and merges of clusters: ways out of the local optima of single labels.

Of the best labelling every cluster is merged with each of a few near it, and split: two of its
elements far from each other start a cluster each, and the others join the one that scores them
higher. Some of such splits miss the two parts that a cluster has, so several are made side by side.
The best climb for a few sweeps, label by label, before they are compared with the present
particles.

Where a labelling has far too many clusters, each merge alone makes it worse, and so do many in a
row. So clusters near each other are also merged one after the other, always the two whose merge
scores highest; the best labellings on that way may climb too.

Source: Jain & Neal (2004), split-merge proposals from two elements, here maximised; Heller &
Ghahramani (2005), Bayesian hierarchical clustering.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.distributions.incremental import Clusters
from pyrograph.infer.dpvi.labellings.labelled import Labellings
from pyrograph.infer.dpvi.labellings.screening import SCREENED

#: Place of the second element of a split among all, by how little it is at home with the first.
APART = 0.05
#: Splits made of a cluster, and how many of these, or of a way of merges, may climb.
SPLITS, KEPT = 8, 2
#: Clusters near one that it may be merged with.
NEAR = 4
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
        for c in range(int(best.labels()[name].max()) + 1):
            splits = _splits(best, name, c, generator)
            proposals += [] if splits is None else [splits.distinct(KEPT).labels()]
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


@torch.inference_mode()
def _merges(best: Labellings, name: str) -> list[dict[str, Tensor]]:
    """Single merges of clusters near each other, and the best on the way of one after the other."""
    own = best.labels()[name][0]
    pairs = _near_pairs(best, name)
    if not pairs:
        return []
    single = _merged(best, name, own, pairs)
    # what a merge adds hangs little on clusters that are far from it
    gains = dict(zip(pairs, (single.score - best.score).tolist(), strict=True))
    way = []
    while gains:
        a, b = max(gains, key=gains.__getitem__)
        own = torch.where(own == b, a, own)
        way.append(own)
        near = {}
        for pair in sorted(gains, key=gains.__getitem__, reverse=True):
            if {a, b} & {*pair}:
                near |= dict.fromkeys({*pair} - {a, b})
                del gains[pair]
        touched = [(min(a, c), max(a, c)) for c in list(near)[: 2 * NEAR]]
        if touched:
            found = _merged(best, name, own, [(a, a), *touched]).score
            gains |= zip(touched, (found[1:] - found[0]).tolist(), strict=True)
    return [single.labels(), _with(best, name, torch.stack(way)).distinct(KEPT).labels()]


def _near_pairs(best: Labellings, name: str) -> list[tuple[int, int]]:
    """Of every cluster those which its first element would go to next, in order."""
    own = best.labels()[name][0]
    count = int(own.max()) + 1
    first = [int((own == c).nonzero()[0]) for c in range(count)]
    clusters = best.select(torch.zeros(1, dtype=torch.int64, device=own.device)).clusters[name]
    slots = clusters.labels[0, first]
    pairs = set()
    for c, i in enumerate(first):
        home = clusters.labels[:, i].clone()
        clusters.take_out(i)
        score = clusters.scores(i)[0, slots]
        clusters.put_in(i, home)
        score[c] = -torch.inf
        for other in score.topk(min(NEAR, count - 1)).indices.tolist():
            pairs.add((min(c, other), max(c, other)))
    return sorted(pairs)


def _merged(best: Labellings, name: str, own: Tensor, pairs: list[tuple[int, int]]) -> Labellings:
    """Labels ``own [n]`` with each of these pairs of clusters as one."""
    return _with(best, name, torch.stack([torch.where(own == b, a, own) for a, b in pairs]))


def _with(best: Labellings, name: str, own: Tensor) -> Labellings:
    """The best labelling with labels ``own [M, n]`` of a site."""
    labels = {n: z.expand(len(own), -1) for n, z in best.labels().items()}
    return Labellings(best.program, labels | {name: own})


@torch.inference_mode()
def _splits(
    best: Labellings, name: str, cluster: int, generator: torch.Generator
) -> Labellings | None:
    """Splits of a cluster, each from another element on; None where it has but one."""
    labels = best.labels()
    members = (labels[name][0] == cluster).nonzero().squeeze(1)
    if len(members) < 2:
        return None
    order = torch.randperm(len(members), generator=generator, device="cpu")
    first = order[:SPLITS].to(members.device)
    with_first = _at_home(best, name, members, first)
    # not the very last, which may be an outlier that no other joins
    second = with_first.argsort(0)[int(APART * (len(members) - 1))]
    parts = with_first < _at_home(best, name, members, second)  # [n, R]
    own = labels[name].repeat(len(first), 1)
    own[:, members] = torch.where(parts.T, int(own.max()) + 1, cluster)
    return _with(best, name, own)


def _at_home(best: Labellings, name: str, members: Tensor, alone: Tensor) -> Tensor:
    """``[n, R]``: how much better each of a cluster's ``members [n]`` goes with the single element
    ``members[alone[r]]`` than into a cluster of its own; infinity for that element itself."""
    labels = best.labels()
    which, column = alone.unique(return_inverse=True)
    own = labels[name]
    others = own - (own > own[0, members[0]]).long()  # no label may be n or more
    slots = int(own.max()) + torch.arange(len(which), device=which.device)
    own = others.index_fill(1, members, -1)
    own[0, members[which]] = slots
    clusters = _with(best, name, own).clusters[name]
    beyond_alone = _by_turns if clusters.by_particle else _at_once
    at_home = beyond_alone(clusters, members, slots)
    at_home[which, torch.arange(len(which), device=which.device)] = torch.inf
    return at_home[:, column]


def _at_once(clusters: Clusters, members: Tensor, slots: Tensor) -> Tensor:
    """``[n, R]``: how much more ``members [n]`` add to ``slots [R]`` of one labelling than in a
    cluster of their own; of no meaning where they are in that slot."""
    parts = members.split(max(1, SCREENED // clusters.seating.limit))
    joins = torch.cat([clusters.joins(part)[0].T for part in parts])
    return joins[:, slots] - joins[:, clusters.seating.open()]


def _by_turns(clusters: Clusters, members: Tensor, slots: Tensor) -> Tensor:
    """The same where terms depend on whole labellings."""
    home = clusters.labels[0, members]
    found = []
    for i, slot in zip(members.tolist(), home.unsqueeze(1), strict=True):
        is_in = clusters.seating.inside[i]
        if is_in:
            clusters.take_out(i)
        score = clusters.scores(i)[0]
        found.append(score[slots] - score[clusters.seating.open()])
        if is_in:
            clusters.put_in(i, slot)
    return torch.stack(found)
