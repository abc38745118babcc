"""One sweep: new messages from all factors, damped as far as beliefs stay proper.

``"parallel"`` sends all messages at once, ``"sequential"`` those into the nodes of one colour of
the Markov graph after the other, ``"residual"`` those that change most (Elidan, McGraw & Koller
2006, in parallel).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.errors import InferenceError
from pyrograph.graph import FactorGraph
from pyrograph.graph.colouring import colour
from pyrograph.infer.message_passing.contradictions import raise_empty, refuse_contradictions
from pyrograph.infer.message_passing.families import Continuous
from pyrograph.infer.message_passing.messages import (
    Messages,
    changes,
    damped,
    largest,
    movement,
)
from pyrograph.infer.message_passing.network import Block, Network
from pyrograph.infer.message_passing.quadrature_factors import QuadratureFactors

SCHEDULES = ("parallel", "sequential", "residual")
#: Residual schedule: messages that change by at least this share of the largest change are sent.
URGENT = 0.3
#: Shortest step, as a power of the dtype's precision, where longer ones make a belief improper:
#: what shorter ones move is lost to rounding.
SHORTEST = 0.75


@dataclass(frozen=True)
class Swept:
    """Where a sweep leads.

    Attributes:
        messages: by block and port; beliefs: by family.
        moved: ``[]`` largest change of a log message, or of a belief in its own widths.
        is_cut: whether steps had to be shorter for beliefs to stay proper.
        skipped: by block, ``[E]`` whether an improper cavity forbade the update; None where there
            are none.
    """

    messages: Messages
    beliefs: list
    moved: Tensor
    is_cut: bool
    skipped: list[Tensor | None]

    @property
    def num_skipped(self) -> Tensor:
        """``[]``."""
        found = [s.sum() for s in self.skipped if s is not None]
        return sum(found, self.moved.new_zeros(()))

    @property
    def residual(self) -> Tensor:
        """``[]``: what moved; a factor that was passed over has not come to rest, nor have
        messages that may not go where they want to."""
        return torch.maximum(self.moved, self.num_skipped + float(self.is_cut))


def node_colours(graph: FactorGraph) -> list[Tensor]:
    """Masks ``[V]`` of nodes that share no factor."""
    pointer, index = graph.neighbors
    found = colour(pointer.cpu(), index.cpu()).to(graph.device)
    return [found == k for k in range(int(found.max()) + 1)]


def gap(network: Network, messages: Messages, beliefs: list) -> Tensor:
    """How far a plain step would move the messages, ``[]``."""
    gaps = [
        change.amax()
        for block, old in zip(network.blocks, messages, strict=True)
        for change in changes(block, old, block.update(old, beliefs)[0], beliefs, False)
    ]
    return torch.stack(gaps).amax()


def is_lost(network: Network, before: list, after: list) -> bool:
    """Whether a belief that was proper is not any more, or a factor's logarithm is too large a
    number for expectations under the new beliefs."""
    improper = any(
        bool((old.is_proper & ~new.is_proper).any())
        for family, old, new in zip(network.families, before, after, strict=True)
        if isinstance(family, Continuous)
    )
    return improper or any(
        isinstance(b, QuadratureFactors) and b.overflow(after) for b in network.blocks
    )


@dataclass(frozen=True)
class Sweep:
    """New messages by a schedule.

    Attributes:
        eta: share of the step to the new messages that is taken, 1 - damping.
        colours: nodes whose messages are sent in turn; None for all at once.
        is_residual: whether only messages are sent that change much.
    """

    graph: FactorGraph
    network: Network
    eta: float
    colours: list[Tensor] | None
    is_residual: bool

    def __call__(self, messages: Messages, beliefs: list) -> Swept:
        """From messages and the beliefs under them.

        Raises:
            InferenceError: no step keeps all beliefs proper.
            ZeroMass: messages leave a node no state.
        """
        parts = []
        for nodes in self.colours or [None]:
            part = self._send(messages, beliefs, nodes)
            messages, beliefs = part.messages, part.beliefs
            parts.append(part)
        moved = torch.stack([part.moved for part in parts]).amax()
        skipped = [_any(flags) for flags in zip(*(part.skipped for part in parts), strict=True)]
        return Swept(messages, beliefs, moved, any(part.is_cut for part in parts), skipped)

    def _send(self, messages: Messages, beliefs: list, nodes: Tensor | None) -> Swept:
        """New messages, into the chosen nodes or all."""
        blocks = self.network.blocks
        found, chosen, skipped = [], [], []
        for number, (block, old) in enumerate(zip(blocks, messages, strict=True)):
            new, flagged = block.update(old, beliefs)
            is_discrete = not any(isinstance(m, Natural) for m in old)
            if is_discrete and flagged is not None and bool(flagged.any()):
                raise_empty(self.graph, self.network, number, flagged)
            skipped.append(flagged)
            found.append(new)
            chosen.append([self._chosen(block, port, nodes) for port in range(len(block.rows))])
        moves = [
            changes(block, old, new, beliefs, by_factor=self.is_residual or nodes is not None)
            for block, old, new in zip(blocks, messages, found, strict=True)
        ]
        largest_move = largest(moves, chosen, like=self.graph.constant.new_zeros(()))
        if self.is_residual:  # changes of Gaussians are known by their nodes alone
            chosen = [
                [None if isinstance(m, Natural) else c >= URGENT * largest_move for m, c in pairs]
                for pairs in (
                    list(zip(*both, strict=True)) for both in zip(found, moves, strict=True)
                )
            ]
        moved, after, length = self._step(messages, beliefs, found, chosen)
        if self.network.has_zeros:
            refuse_contradictions(self.graph, self.network, moved, after)
        for family, old, new in zip(self.network.families, beliefs, after, strict=True):
            if isinstance(family, Continuous):
                largest_move = torch.maximum(largest_move, movement(old, new).amax() / length)
        return Swept(moved, after, largest_move, length < self.eta, skipped)

    def _step(
        self,
        messages: Messages,
        beliefs: list,
        found: Messages,
        chosen: list[list[Tensor | None]],
    ) -> tuple[Messages, list, float]:
        """Messages and beliefs towards those found, as far as beliefs that were proper stay so and
        expectations finite; and how far that is."""
        length = self.eta
        precision = torch.finfo(self.graph.dtype).eps
        while length >= min(self.eta, precision**SHORTEST):
            moved = [
                [damped(a, b, length, c) for a, b, c in zip(old, new, only, strict=True)]
                for old, new, only in zip(messages, found, chosen, strict=True)
            ]
            after = self.network.beliefs_of(moved)
            if not is_lost(self.network, beliefs, after):
                return moved, after, length
            length /= 2
        raise InferenceError(
            "no step keeps all beliefs proper: messages pull the precision of a node below 0. Use "
            'schedule="sequential", damping=0.9 or a smaller alpha (pg.PowerEP), or give the node '
            "a tighter prior."
        )

    def _chosen(self, block: Block, port: int, nodes: Tensor | None) -> Tensor | None:
        """Which of a port's messages go into the chosen nodes; None for all."""
        if nodes is None:
            return None
        family = self.network.families[block.families[port]]
        return nodes[family.nodes[block.rows[port]]]


def _any(flags: tuple[Tensor | None, ...]) -> Tensor | None:
    """Of several ``[E]``."""
    return None if flags[0] is None else torch.stack(flags).any(0)
