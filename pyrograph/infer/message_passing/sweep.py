"""One sweep: new messages from all factors, damped as far as beliefs stay proper.

``"parallel"`` sends all messages at once, ``"sequential"`` those into the nodes of one colour of
the Markov graph after the other, ``"residual"`` those that change most (Elidan, McGraw & Koller
2006, in parallel).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.errors import InferenceError, PyrographError
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
from pyrograph.infer.message_passing.network import Network
from pyrograph.infer.message_passing.quadrature_factors import QuadratureFactors

SCHEDULES = ("parallel", "sequential", "residual")
#: Residual schedule: messages that change by at least this share of the largest change are sent.
URGENT = 0.3
#: Shortest step, as a power of the dtype's precision, where longer ones make a belief improper:
#: what shorter ones move is lost to rounding.
SHORTEST = 0.75


@dataclass(frozen=True)
class Held:
    """Messages by block and port, and beliefs under them by family."""

    messages: Messages
    beliefs: list


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
        if not self.is_cut and all(flags is None for flags in self.skipped):
            return self.moved
        return torch.maximum(self.moved, self.num_skipped + float(self.is_cut))


def _colour(graph: FactorGraph) -> Tensor:
    """``[V]``: nodes of one colour share no factor."""
    pointer, index = graph.neighbors
    return colour(pointer.cpu(), index.cpu()).to(graph.device)


def node_colours(graph: FactorGraph) -> list[Tensor]:
    """Masks ``[V]`` of nodes that share no factor."""
    found = _colour(graph)
    return [found == k for k in range(int(found.max()) + 1)]


@dataclass(frozen=True)
class Turns:
    """Which messages are sent one after the other.

    Attributes:
        count: of the turns; turn: by block and port, ``[E]`` the one of every message.
    """

    count: int
    turn: list[list[Tensor]]


def turns_by_colour(graph: FactorGraph, network: Network) -> Turns:
    """Those into nodes of one colour at once."""
    found = _colour(graph)
    of_family = [found[family.nodes] for family in network.families]
    turn = [
        [of_family[f][rows] for f, rows in zip(block.families, block.rows, strict=True)]
        for block in network.blocks
    ]
    return Turns(int(found.max()) + 1, turn)


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
        turns: None for all messages at once.
        is_residual: whether only messages are sent that change much.
    """

    graph: FactorGraph
    network: Network
    eta: float
    turns: Turns | None
    is_residual: bool

    def __call__(self, messages: Messages, beliefs: list) -> Swept:
        """From messages and the beliefs under them.

        Raises:
            InferenceError: no step keeps all beliefs proper.
            ZeroMass: messages leave a node no state.
        """
        if self.turns is None:
            return self._send(messages, beliefs, None)
        # of every turn no more than this: its messages and beliefs are as many as all there are
        moved, is_cut, skipped = [], False, []
        for turn in range(self.turns.count):
            part = self._send(messages, beliefs, turn)
            messages, beliefs = part.messages, part.beliefs
            moved.append(part.moved)
            is_cut |= part.is_cut
            skipped.append(part.skipped)
        flags = [_any(of_block) for of_block in zip(*skipped, strict=True)]
        return Swept(messages, beliefs, torch.stack(moved).amax(), is_cut, flags)

    def tried(self, messages: Messages, beliefs: list) -> Swept:
        """Where it would lead; nothing is changed: of blocks, whose grids updates move, copies
        are."""
        network = copy(self.network)
        network.blocks = [copy(block) for block in network.blocks]
        return replace(self, network=network)(messages, beliefs)

    def is_at_rest(self, messages: Messages, beliefs: list, slack: float) -> bool:
        """Whether no log message of another run, which had come to rest, moves by more here."""
        try:
            return bool(self.tried(messages, beliefs).residual <= slack)
        except (PyrographError, torch.linalg.LinAlgError):  # the run will say so
            return False

    def _send(self, messages: Messages, beliefs: list, turn: int | None) -> Swept:
        """New messages, those of a turn or all."""
        blocks = self.network.blocks
        found, skipped = [], []
        for number, (block, old) in enumerate(zip(blocks, messages, strict=True)):
            new, flagged = block.update(old, beliefs)
            is_discrete = not any(isinstance(m, Natural) for m in old)
            if is_discrete and flagged is not None and bool(flagged.any()):
                raise_empty(self.graph, self.network, number, flagged)
            skipped.append(flagged)
            found.append(new)
        chosen: list[list[Tensor | None]] = [[None] * len(old) for old in messages]
        if turn is not None:
            chosen = [[own == turn for own in ports] for ports in self.turns.turn]
        moves = [
            changes(block, old, new, beliefs, by_factor=self.is_residual or turn is not None)
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


def _any(flags: tuple[Tensor | None, ...]) -> Tensor | None:
    """Of several ``[E]``."""
    return None if flags[0] is None else torch.stack(flags).any(0)
