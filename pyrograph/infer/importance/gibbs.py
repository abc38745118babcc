"""Gibbs chains on the factor graph of a discrete program.

    x_i ~ p(x_i | blanket of i),        one node after the other

Chains run side by side. A sweep visits every node once: by default in blocks of nodes that share
no factor, which are drawn at once and have the same law as one after the other. Burn-in and
thinning count single-site steps, of which a sweep has as many as there are nodes that can change.
O(factors around a block) a block and chain.

Source: Geman & Geman (1984); blocks by colours: Gonzalez, Low, Gretton & Guestrin (2011).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pyrograph.checks import count
from pyrograph.errors import OptionError
from pyrograph.graph import FactorGraph
from pyrograph.infer.dpvi.blocks import clusters_of, node_blocks
from pyrograph.infer.dpvi.clusters import Clusters
from pyrograph.infer.dpvi.network import Network

SCANS = ("block", "systematic", "random")


@dataclass(frozen=True)
class Gibbs:
    """How states are drawn by Gibbs chains.

    Args:
        burn_in: single-site steps that are left out; the first state comes ``thin`` after them.
        thin: single-site steps from a state to the next.
        num_chains: chains that share the states out equally; default as many as states, which
            are then independent and each the last of its chain.
        scan: ``"block"`` whole sweeps over blocks of nodes that share no factor (steps are rounded
            up to sweeps); ``"systematic"`` node by node in the order of the graph; ``"random"``
            nodes drawn uniformly, the same in all chains.

    Raises:
        OptionError: a number is out of range, or the scan is unknown.
    """

    burn_in: int = 2000
    thin: int = 1000
    num_chains: int | None = None
    scan: str = "block"

    def __post_init__(self) -> None:
        settle = partial(object.__setattr__, self)  # the class is frozen
        settle("burn_in", count("burn_in", self.burn_in, least=0))
        settle("thin", count("thin", self.thin))
        if self.num_chains is not None:
            settle("num_chains", count("num_chains", self.num_chains))
        if self.scan not in SCANS:
            raise OptionError(f"scan={self.scan!r} is none of {', '.join(SCANS)}")

    def draw(
        self, graph: FactorGraph, network: Network, num_samples: int, generator: torch.Generator
    ) -> Tensor:
        """States ``[V, num_samples]``: those of chain 0 in time, then those of chain 1, ..."""
        num_chains = self.num_chains or num_samples
        chains = Chains(graph, network, num_chains, generator, self.scan)
        chains.advance(self.burn_in)
        kept = []
        for _ in range(math.ceil(num_samples / num_chains)):
            chains.advance(self.thin)
            kept.append(chains.x.clone())
        return torch.stack(kept, 2).flatten(1)[:, :num_samples]


class Chains:
    """Chains and where they stand.

    Args:
        graph: the program's graph; network: its tables.
        num_chains: side by side; they start at independent uniform states.
        generator: of all random numbers.
        scan: see :class:`Gibbs`.

    Attributes:
        x: ``[V, num_chains]`` codes.
    """

    def __init__(
        self,
        graph: FactorGraph,
        network: Network,
        num_chains: int,
        generator: torch.Generator,
        scan: str = "block",
    ):
        self.generator = generator
        u = torch.rand(
            network.num_nodes, num_chains, generator=generator, dtype=torch.float64, device="cpu"
        )
        self.x = (u.to(network.cards.device) * network.cards.unsqueeze(1)).long()
        if scan == "block":
            blocks = node_blocks(*graph.neighbors)
        else:
            blocks = [torch.tensor([[i]], device="cpu") for i in range(network.num_nodes)]
        self._blocks = clusters_of(network, blocks)
        self._sizes = [len(block) for block in self._blocks]
        self._scan, self._next = scan, 0

    def advance(self, num_steps: int) -> None:
        """At least so many single-site steps; with blocks, whole sweeps."""
        done = 0
        while self._blocks and done < num_steps:
            for k in self._visited():
                self._draw(self._blocks[k])
                done += self._sizes[k]

    def _visited(self) -> Iterable[int]:
        """Which blocks are next."""
        if self._scan == "block":
            return range(len(self._blocks))
        if self._scan == "random":
            return torch.randint(
                len(self._blocks), (1,), generator=self.generator, device="cpu"
            ).tolist()
        now, self._next = self._next, (self._next + 1) % len(self._blocks)
        return [now]

    def _draw(self, block: Clusters) -> None:
        """New states of a block's nodes, by inversion."""
        below = block.local_scores(self.x).softmax(2).cumsum(2)
        u = torch.rand(below.shape[:2], generator=self.generator, dtype=torch.float64, device="cpu")
        u = u.to(below.device).unsqueeze(2) * below[..., -1:]
        state = (below[..., :-1] <= u).sum(2)
        self.x[block.nodes.squeeze(1)] = state
