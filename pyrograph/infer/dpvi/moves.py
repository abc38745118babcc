"""Moves of DPVI: the best distinct particles among those that a change makes of the present ones.

*Block*: all nodes of a set without common factors may change at once. Given the rest, a *base*,
their states are independent, so with the best state everywhere and the costs of all others the
best K joint states of a base are found by adding up few costs: a state that is among the best K
can differ from the best one by at most log2 K changes, all of them among the cheapest. This is
exact over all joint states of the block. With a block of one node it is the step of Algorithm 1.

*Flip*: every single change of one cluster (a node, a pair) of every particle, all at once.

Both are exact searches of a set that holds the present particles, so the bound never falls.

Source: Saeedi et al. (2017), Algorithm 1; k-best by threshold and branching.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.infer.dpvi.clusters import Clusters
from pyrograph.infer.dpvi.lookup import columns_at
from pyrograph.infer.dpvi.particles import Hash, Particles, first_of_equal, highest


@dataclass
class _Chosen:
    """Joint states of the block as changes against the best one of their base.

    Attributes:
        base: ``[M]``; score: ``[M]``.
        options: ``[M, D]`` ranks of the changes, ascending, -1 behind them.
    """

    base: Tensor
    score: Tensor
    options: Tensor

    def take(self, index: Tensor) -> _Chosen:
        return _Chosen(self.base[index], self.score[index], self.options[index])


def block_move(
    particles: Particles, clusters: Clusters, hashes: Hash, most: int, only: int | None = None
) -> Particles:
    """The best distinct particles among all joint states of independent clusters.

    Args:
        clusters: no factor touches two of them.
        most: K.
        only: of one cluster, to move it alone.
    """
    x = particles.x
    nodes = clusters.nodes if only is None else clusters.nodes[only : only + 1]
    rows = slice(None) if only is None else slice(only, only + 1)
    flat = nodes.flatten()
    outside = particles.hash - hashes.among(flat, x[flat])
    # particles that differ in the block alone have the same joint states before them
    bases = first_of_equal(outside).nonzero().squeeze(1)
    of_bases = columns_at(x, bases) if len(bases) < len(particles) else x
    local = clusters.local_scores(of_bases, only)  # [n, R, T]
    present = clusters.current(of_bases, rows)
    best, state = local.max(2)
    now = local.gather(2, present.unsqueeze(2)).squeeze(2)
    # among equals the present state stays: else particles in opposite modes drift together
    state = torch.where(now == best, present, state)
    gained = (best - now).sum(0)
    top = particles.score[bases] + gained
    cost = best.unsqueeze(2) - local
    # the best state itself is no change
    cost = cost.scatter(2, state.unsqueeze(2), torch.inf).permute(1, 0, 2).flatten(1)  # [R, n T]
    options = _Options(*cost.topk(min(most, cost.shape[1]), largest=False), clusters.num_states)
    chosen = _best_joint(top, options, most, len(nodes))
    new = columns_at(of_bases, chosen.base)
    states = columns_at(state, chosen.base)
    for rank in chosen.options.unbind(1):
        which = (rank >= 0).nonzero().squeeze(1)
        option = options.index[chosen.base[which], rank[which]]
        at = torch.div(option, clusters.num_states, rounding_mode="floor")
        states[at, which] = option % clusters.num_states
    if nodes.shape[1] > 1:
        states = clusters.states[states].permute(0, 2, 1).flatten(0, 1)  # [n m, M]
    new[flat] = states
    code = outside[:, bases[chosen.base]] + hashes.among(flat, new[flat])
    return Particles(new, chosen.score, code)


@dataclass(frozen=True)
class _Options:
    """Cheapest changes of every base, by rising cost.

    Attributes:
        cost: ``[R, J]``; index: ``[R, J]``, cluster times number of states plus state.
    """

    cost: Tensor
    index: Tensor
    num_states: int

    @property
    def cluster(self) -> Tensor:
        return torch.div(self.index, self.num_states, rounding_mode="floor")


def _best_joint(top: Tensor, options: _Options, most: int, num_clusters: int) -> _Chosen:
    """The best ``most`` sets of changes over all bases, by falling score.

    A set is grown in the order of its options' ranks, and none scores better than the set it grew
    from: what is not among the best with d changes has no descendants there. A set has one change
    of each cluster at most.
    """
    order = highest(top, most)
    found = _Chosen(order, top[order], order.new_zeros(len(order), 0))
    frontier = torch.ones_like(order, dtype=torch.bool)
    for _ in range(num_clusters):
        if not bool(frontier.any()):
            break
        grown = found.take(frontier.nonzero().squeeze(1))
        children = _children(grown, options, found.score, most)
        if not len(children.base):
            break
        width = children.options.shape[1]
        padded = torch.nn.functional.pad(
            found.options, (0, width - found.options.shape[1]), value=-1
        )
        every = _Chosen(
            torch.cat([found.base, children.base]),
            torch.cat([found.score, children.score]),
            torch.cat([padded, children.options]),
        )
        order = highest(every.score, most)
        frontier = order >= len(found.base)
        found = every.take(order)
    depth = int((found.options >= 0).sum(1).max()) if found.options.numel() else 0
    found.options = found.options[:, :depth]
    return found


def _children(grown: _Chosen, options: _Options, present: Tensor, most: int) -> _Chosen:
    """Sets with one change more that may be among the best."""
    least = present[most - 1] if len(present) >= most else -torch.inf
    score = grown.score.unsqueeze(1) - options.cost[grown.base]  # [F, J]
    rank = torch.arange(options.cost.shape[1], device=score.device)
    last = grown.options.amax(1) if grown.options.shape[1] else torch.full_like(grown.base, -1)
    allowed = (rank > last.unsqueeze(1)) & (score > least) & score.isfinite()
    if options.num_states > 2:  # else a cluster has one change, and no two are of the same one
        cluster = options.cluster[grown.base]
        for own in grown.options.unbind(1):
            at = cluster.gather(1, own.clamp_min(0).unsqueeze(1))
            allowed &= (own < 0).unsqueeze(1) | (cluster != at)
    parent, option = allowed.nonzero(as_tuple=True)
    return _Chosen(
        grown.base[parent],
        score[parent, option],
        torch.cat([grown.options[parent], option.unsqueeze(1)], 1),
    )


def flip_move(particles: Particles, clusters: Clusters, hashes: Hash, most: int) -> Particles:
    """The best distinct particles among the present ones and all changes of one cluster."""
    x, count, states = particles.x, len(particles), clusters.num_states
    local = clusters.local_scores(x)  # [n, K, T]
    present = clusters.current(x)
    change = local - local.gather(2, present.unsqueeze(2))
    score = particles.score.unsqueeze(1) + change
    score = score.scatter(2, present.unsqueeze(2), -torch.inf).flatten()
    # a new particle is a change of at most K present ones; no change has a present one's hash
    candidates = highest(score, min(most * count, len(score)))
    cluster, rest = (
        torch.div(candidates, count * states, rounding_mode="floor"),
        candidates % (count * states),
    )
    parent, state = torch.div(rest, states, rounding_mode="floor"), rest % states
    code = particles.hash[:, parent]
    for p in range(clusters.nodes.shape[1]):
        node = clusters.nodes[cluster, p]
        before, after = x[node, parent], clusters.states[state, p]
        terms = hashes.of(node, torch.stack([before, after], 1))
        code = code + (terms[:, 1] - terms[:, 0]).T
    codes = torch.cat([particles.hash, code], 1)
    scores = torch.cat([particles.score, score[candidates]])
    distinct = first_of_equal(codes).nonzero().squeeze(1)
    chosen = distinct[highest(scores[distinct], most)]
    changed = (chosen - count).clamp_min(0)
    is_new = chosen >= count
    origin = torch.where(is_new, parent[changed], chosen)
    new = columns_at(x, origin)
    which = is_new.nonzero().squeeze(1)
    for p in range(clusters.nodes.shape[1]):
        new[clusters.nodes[cluster[changed[which]], p], which] = clusters.states[
            state[changed[which]], p
        ]
    return Particles(new, scores[chosen], codes[:, chosen])
