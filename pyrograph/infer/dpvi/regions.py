"""Changes of several neighbouring nodes whose first steps cost more than the particles differ by.

The best K states of a large graph differ in its cheapest changes and lie close together: a beam of
the K best over all nodes (Algorithm 1) that starts from them drops whatever costs more than their
spread at once, also where the next node would have paid for it. Here every region, a node and what
is around it, has a beam of its own,

    g_r(x_1, ..., x_t) = score(x_1, ..., x_t, rest) - score(present),    t = 1, ..., SIZE,

that starts from the best particle alone and grows node by node with the rest as it is. Regions
without common factors have their beams side by side; where the best end of a beam gains it is
taken. The particle that results is kept if it is the best of all, so the bound never falls.

Source: the beam of Saeedi et al. (2017), Algorithm 1, with room for a detour everywhere.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pyrograph.infer.dpvi.blocks import adjacency, conflict_colours
from pyrograph.infer.dpvi.clusters import CHUNK, Clusters
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.dpvi.particles import Hash, Particles

#: Nodes of a region, at most, and states that its beam keeps.
SIZE, WIDTH = 16, 32
#: Scores computed at once, or those of one region: else too much memory.
AT_ONCE = 2**24
#: A gain below this share of the score is rounding.
ROUNDING = 1e-12


class Regions:
    """Regions of which no two share a factor.

    Args:
        every: all nodes, those of like numbers of states together.
        nodes: ``[R, SIZE]`` in the order of the beam, -1 behind them.
    """

    def __init__(self, every: list[Clusters], nodes: Tensor):
        self.network, self.nodes = every[0].network, nodes
        place = torch.full_like(self.network.cards, -1)
        #: Of every node of the beam, the regions ``[n]`` that have one, by its number of states.
        self.steps: list[list[tuple[Tensor, Clusters]]] = [[] for _ in nodes.unbind(1)]
        for clusters in every:
            own = clusters.nodes[:, 0]
            place.fill_(-1)[own] = torch.arange(len(own), device=own.device)
            for step, now in zip(self.steps, nodes.unbind(1), strict=True):
                at = torch.where(now >= 0, place[now], -1)
                rows = (at >= 0).nonzero().squeeze(1)
                if len(rows):
                    step.append((rows, clusters.part(at[rows])))

    def improved(self, x: Tensor) -> Tensor:
        """A joint state ``[V]`` with the best end of the beam in every region that gains by it."""
        beam = x.unsqueeze(1).repeat(1, WIDTH)
        gain = torch.full_like(self.nodes[:, :1].repeat(1, WIDTH), -torch.inf, dtype=torch.float64)
        gain[:, 0] = 0
        for t, parts in enumerate(self.steps):
            for rows, clusters in parts:
                node, states = clusters.nodes[:, 0], clusters.num_states
                local = clusters.local_scores(beam)  # [n, WIDTH, T]
                local = local - local.gather(2, beam[node].unsqueeze(2))
                # the node is where it was in all of the beam, so all its new states are distinct
                gain[rows], chosen = (gain[rows].unsqueeze(2) + local).flatten(1).topk(WIDTH)
                parent = torch.div(chosen, states, rounding_mode="floor").unsqueeze(1)
                before = self.nodes[rows, :t]
                beam[before] = beam[before].gather(2, parent.expand(-1, t, -1))
                beam[node] = chosen % states
        if self.network.has_zeros:  # behind a zero the sums have its coarse rounding
            gain = self._gains(x, beam)
        gain, end = gain.max(1)
        end = end.unsqueeze(1).expand_as(self.nodes)
        is_taken = (gain > 0).unsqueeze(1) & (self.nodes >= 0)
        nodes = self.nodes[is_taken]
        return x.index_copy(0, nodes, beam[nodes, end[is_taken]])

    def _gains(self, x: Tensor, beam: Tensor) -> Tensor:
        """``[R, WIDTH]`` of all ends, beams ``[V, WIDTH]`` against ``x [V]``, factor by factor."""
        region, slot = (self.nodes >= 0).nonzero().unbind(1)
        owner = torch.full_like(x, -1)
        owner[self.nodes[region, slot]] = region
        shape = len(self.nodes), beam.shape[1]
        gain = torch.zeros(shape, dtype=torch.float64, device=x.device)
        for group in self.network.tables:
            own = owner[group.scope].amax(1)  # a factor is of one region, or of none
            rows, before = own >= 0, group.at(x.unsqueeze(1))
            size = max(1, CHUNK // len(own))
            for ends, part in zip(beam.split(size, 1), gain.split(size, 1), strict=True):
                part.index_add_(0, own[rows], (group.at(ends) - before)[rows])
        return gain


def region_move(particles: Particles, regions: Regions, hashes: Hash, most: int) -> Particles:
    """The best particles and what a beam in every region makes of the very best."""
    x = regions.improved(particles.x[:, 0]).unsqueeze(1)
    score, best = regions.network.score(x), particles.score[0]
    if float(score - best) <= ROUNDING * (1 + float(best.abs())):
        return particles
    return Particles(
        torch.cat([x, particles.x], 1)[:, :most],
        torch.cat([score, particles.score])[:most],
        torch.cat([hashes(x), particles.hash], 1)[:, :most],
    )


def before_singles(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Kinds of moves, with regions before single nodes that come after other kinds.

    Algorithm 1 starts from K optima far apart; after other moves its K particles are next to one.
    """
    if "region" not in kinds:
        for at, (before, now) in enumerate(pairwise(kinds), 1):
            if now == "single" != before:
                return (*kinds[:at], "region", *kinds[at:])
    return kinds


def regions_of(network: Network, pointer: Tensor, index: Tensor) -> list[Regions]:
    """Sets of regions without common factors, of two partitions of a Markov graph, CSR of its open
    neighbourhoods.

    In one regions grow from the first nodes on, in the other from the last: borders differ.
    """
    nodes = (network.cards > 1).nonzero()
    every = [Clusters(network, own) for own in network.clusters_by_cards(nodes)]
    found = []
    for backwards in (False, True) if every else ():
        partition = _partition(network.cards, pointer, index, backwards)
        regions = torch.from_numpy(partition)
        colours = conflict_colours(partition, adjacency(pointer, index))
        for k in range(int(colours.max()) + 1):
            own = regions[colours == k].to(nodes.device)
            scores = WIDTH * network.cards[own.clamp_min(0)].amax(1)
            part = torch.div(scores.cumsum(0), AT_ONCE, rounding_mode="floor")
            found += [Regions(every, own[part == p]) for p in part.unique()]
    return found


def _partition(cards: Tensor, pointer: Tensor, index: Tensor, backwards: bool) -> np.ndarray:
    """Regions ``[R, SIZE]``: the next node that is in none, what is near it, what is near that."""
    start, near = pointer.tolist(), index.tolist()
    is_taken = (cards == 1).tolist()  # nothing to change
    regions = []
    for node in sorted(range(len(cards)), reverse=backwards):
        if is_taken[node]:
            continue
        region, done = [node], 0
        is_taken[node] = True
        while done < len(region) < SIZE:
            for other in near[start[region[done]] : start[region[done] + 1]]:
                if not is_taken[other] and len(region) < SIZE:
                    is_taken[other] = True
                    region.append(other)
            done += 1
        regions.append(region + [-1] * (SIZE - len(region)))
    return np.array(regions, dtype=np.int64)
