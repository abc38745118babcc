"""Sweeps of DPVI over the nodes of a graph: the kinds of moves, in the order of their turns.

Blocks of nodes that do not touch each other change at once, pairs of neighbours where they fall
into few blocks, small regions by beams, and single changes of all nodes are searched until none
helps. What no near change reaches, the opposite of a state and whole domains, is offered from afar.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.errors import OptionError
from pyrograph.infer.dpvi.blocks import affordable_pairs, blocks_of, clusters_of
from pyrograph.infer.dpvi.clusters import Clusters
from pyrograph.infer.dpvi.domains import domain_changes
from pyrograph.infer.dpvi.lookup import columns_at
from pyrograph.infer.dpvi.moves import block_move, flip_move
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.dpvi.particles import Hash, Particles, first_of_equal
from pyrograph.infer.dpvi.regions import Regions, before_singles, region_move, regions_of


class Sweeps:
    """The moves that a program's graph and the user's choice allow.

    Args:
        network: the factors.
        neighbors: of every node, as CSR.
        moves: kinds in an order; None takes those that suit the graph.
        num_particles: K.

    Raises:
        OptionError: a kind does not fit the graph.
    """

    def __init__(
        self,
        network: Network,
        neighbors: tuple[Tensor, Tensor],
        moves: tuple[str, ...] | None,
        num_particles: int,
    ):
        refuse_moves_of_labels(moves)
        kinds = moves or ("block", "region", "flip")
        self.network, self.neighbors, self.num_particles = network, neighbors, num_particles
        self.is_default = moves is None
        blocks = {k: blocks_of(k, network, *neighbors) for k in kinds if k != "region"}
        if self.is_default:
            pairs = affordable_pairs(network, *neighbors, num_particles)
            if pairs:
                kinds, blocks["pair"] = ("block", "pair", "region", "flip"), pairs
        #: What every kind goes through in a sweep.
        self.clusters: dict[str, list[Clusters] | list[Regions]] = {
            kind: clusters_of(network, own) for kind, own in blocks.items()
        }
        self.kinds = before_singles(kinds)
        if "region" in self.kinds:
            self.clusters["region"] = regions_of(network, *neighbors)

    def __call__(self, particles: Particles, kind: str, hashes: Hash) -> Particles:
        """The particles after one sweep; their bound is not below the one before."""
        most = self.num_particles
        for clusters in self.clusters[kind]:
            if kind in ("block", "pair"):
                particles = block_move(particles, clusters, hashes, most)
            elif kind == "single":
                for j in range(len(clusters)):
                    particles = block_move(particles, clusters, hashes, most, only=j)
            elif kind == "region":
                particles = region_move(particles, clusters, hashes, most)
            else:
                particles = flip_move(particles, clusters, hashes, most)
        return particles

    def blocks(self) -> list[Clusters]:
        """Nodes of one colour each."""
        found = self.clusters.get("block")
        if found is not None:
            return found
        return clusters_of(self.network, blocks_of("block", self.network, *self.neighbors))

    def far(self, particles: Particles, is_last: bool, tried: Tensor | None) -> list[Tensor]:
        """States that may be better than all near the particles, the best first.

        Args:
            tried: ``[2, M]`` hashes of particles whose opposites have been offered, if any. What
                was not among the best then is not now.
        """
        x = particles.x
        if tried is not None:
            is_first = first_of_equal(torch.cat([tried, particles.hash], 1))
            x = columns_at(x, is_first[tried.shape[1] :].nonzero().squeeze(1))
        # a mode that is the opposite of another is far from it by all moves
        found = [(self.network.cards - 1).unsqueeze(1) - x]
        if self.is_default and is_last:
            found.append(domain_changes(self.network, particles.x[:, 0], *self.neighbors))
        return found


def refuse_moves_of_labels(moves: tuple[str, ...] | None) -> None:
    """Raise for a kind of move that a graph's nodes do not have.

    Raises:
        OptionError: splits are among them.
    """
    if moves is not None and "split" in moves:
        raise OptionError('moves="split" is for labellings; this program has a factor graph')
