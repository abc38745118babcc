"""One sweep: new messages from all factors, damped as far as beliefs stay proper.

``"parallel"`` sends all messages at once, ``"sequential"`` those into the nodes of one colour of
the Markov graph after the other, ``"residual"`` those that change most (Elidan, McGraw & Koller
2006, in parallel).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.errors import InferenceError, PyrographError
from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.network.messages import (
    Messages,
    change,
    changes,
    damped,
    largest,
    movement,
)
from pyrograph.infer.message_passing.network.network import Block, Network
from pyrograph.infer.message_passing.nodes.families import Categorical, Continuous
from pyrograph.infer.message_passing.nodes.log_values import rows_of
from pyrograph.infer.message_passing.sweeps.contradictions import (
    are_without_states,
    raise_empty,
    refuse_contradictions,
)
from pyrograph.infer.message_passing.sweeps.turns import Turn, Turns, owned, written

SCHEDULES = ("parallel", "sequential", "residual")
#: Residual schedule: messages that change by at least this share of the largest change are sent.
URGENT = 0.3
#: Shortest step, as a power of the dtype's precision, where longer ones make a belief improper:
#: what shorter ones move is lost to rounding.
SHORTEST = 0.75

Found = TypeVar("Found")


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
    return _is_improper(network, before, after) or overflow(network.blocks, after)


def _is_improper(network: Network, before: list, after: list) -> bool:
    """Of all nodes, or some of every family."""
    return any(
        bool((old.is_proper & ~new.is_proper).any())
        for family, old, new in zip(network.families, before, after, strict=True)
        if isinstance(family, Continuous)
    )


def _leave_nothing(network: Network, beliefs: list) -> bool:
    """Whether some discrete node has no state left."""
    both = zip(network.families, beliefs, strict=True)
    found = [are_without_states(q) for family, q in both if isinstance(family, Categorical)]
    return any(bool(empty.any()) for empty in found)


def overflow(blocks: list[Block], beliefs: list, within: float = 0.0) -> bool:
    """Whether a factor's logarithm is too large a number for expectations under these beliefs, or
    anywhere within so many standard deviations."""
    factors = [block for block in blocks if isinstance(block, QuadratureFactors)]
    return any(block.overflow(beliefs, within) for block in factors)


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
            return self._send(messages, beliefs)
        messages = [[owned(m) for m in sent] for sent in messages]
        beliefs = [owned(q) for q in beliefs]
        skipped = [torch.zeros_like(b.alpha, dtype=torch.bool) for b in self.network.blocks]
        moved, is_cut = [], False
        for turn in self.turns.of(self.network.blocks):
            largest_move, cut = self._take(turn, messages, beliefs, skipped)
            moved.append(largest_move)
            is_cut |= cut
        return Swept(messages, beliefs, torch.stack(moved).amax(), is_cut, skipped)

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

    def _send(self, messages: Messages, beliefs: list) -> Swept:
        """All messages at once."""
        blocks = self.network.blocks
        found, skipped = [], []
        for number, (block, old) in enumerate(zip(blocks, messages, strict=True)):
            new, flagged = block.update(old, beliefs)
            self._refuse_empty(number, None, old, flagged)
            skipped.append(flagged)
            found.append(new)
        chosen: list[list[Tensor | None]] = [[None] * len(old) for old in messages]
        moves = [
            changes(block, old, new, beliefs, by_factor=self.is_residual)
            for block, old, new in zip(blocks, messages, found, strict=True)
        ]
        largest_move = largest(moves, like=self._none)
        if self.is_residual:  # changes of Gaussians are known by their nodes alone
            chosen = [
                [None if isinstance(m, Natural) else c >= URGENT * largest_move for m, c in pairs]
                for pairs in (
                    list(zip(*both, strict=True)) for both in zip(found, moves, strict=True)
                )
            ]

        def step(length: float) -> tuple[Messages, list] | None:
            moved = _damped(messages, found, length, chosen)
            after = self.network.beliefs_of(moved)
            return None if is_lost(self.network, beliefs, after) else (moved, after)

        (moved, after), length = self._longest(step)
        if self.network.has_zeros:
            refuse_contradictions(self.graph, self.network, moved, after)
        largest_move = self._with_movement(largest_move, beliefs, after, length)
        return Swept(moved, after, largest_move, length < self.eta, skipped)

    def _take(
        self, turn: Turn, messages: Messages, beliefs: list, skipped: list[Tensor]
    ) -> tuple[Tensor, bool]:
        """The messages of a turn, written into messages and beliefs; how far they moved, and
        whether steps had to be shorter. Factors that were passed over are added to ``skipped``."""
        held = turn.held(beliefs)
        sent, found, moves = [], [], []
        for sender in turn.senders:
            block, old = sender.block, sender.read(messages[sender.number])
            new, flagged = block.update(old, beliefs)
            self._refuse_empty(sender.number, sender.factors, old, flagged)
            if flagged is not None:
                skipped[sender.number] = sender.with_flags(skipped[sender.number], flagged)
            sent.append(sender.sent(old))
            found.append(sender.sent(new))
            for k, *both in zip(sender.slots, sent[-1], found[-1], strict=True):
                is_constrained = block.has_zeros and isinstance(both[0], Tensor)
                nodes = sender.ports[k].nodes
                own = rows_of(beliefs[block.families[k]], nodes) if is_constrained else None
                moves.append(change(*both, own, by_factor=False))
        chosen: list[list[None]] = [[None] * len(old) for old in sent]
        blocks = [sender.block for sender in turn.senders]

        def step(length: float) -> tuple[Messages, list] | None:
            moved = _damped(sent, found, length, chosen)
            after = turn.beliefs_of(moved)
            if _is_improper(self.network, held, after):
                return None
            for number, (rows, new) in enumerate(zip(turn.nodes, after, strict=True)):
                beliefs[number] = written(beliefs[number], rows, new)
            return None if overflow(blocks, beliefs) else (moved, after)

        (moved, after), length = self._longest(step)
        for sender, new in zip(turn.senders, moved, strict=True):
            own = messages[sender.number]
            for k, message in zip(sender.slots, new, strict=True):
                own[k] = written(own[k], sender.ports[k].rows, message)
        if self.network.has_zeros and _leave_nothing(self.network, after):
            refuse_contradictions(self.graph, self.network, messages, beliefs)
        largest_move = self._with_movement(largest([moves], self._none), held, after, length)
        return largest_move, length < self.eta

    @property
    def _none(self) -> Tensor:
        return self.graph.constant.new_zeros(())

    def _refuse_empty(
        self, number: int, factors: Tensor | None, messages: list, flagged: Tensor | None
    ) -> None:
        """Raise where a block's discrete factors, or some of them, have no mass."""
        is_discrete = not any(isinstance(m, Natural) for m in messages)
        if is_discrete and flagged is not None and bool(flagged.any()):
            first = int(flagged.nonzero()[0])
            first = first if factors is None else int(factors[first])
            raise_empty(self.graph, self.network, number, first)

    def _with_movement(
        self, largest_move: Tensor, before: list, after: list, length: float
    ) -> Tensor:
        """The larger of what messages and, of continuous nodes, beliefs moved, or would have on a
        whole step."""
        for family, old, new in zip(self.network.families, before, after, strict=True):
            if isinstance(family, Continuous) and len(new.is_proper):
                largest_move = torch.maximum(largest_move, movement(old, new).amax() / length)
        return largest_move

    def _longest(self, step: Callable[[float], Found | None]) -> tuple[Found, float]:
        """What a step leads to, as far as it goes where beliefs that were proper stay so and
        expectations finite; and how far that is."""
        length = self.eta
        precision = torch.finfo(self.graph.dtype).eps
        while length >= min(self.eta, precision**SHORTEST):
            found = step(length)
            if found is not None:
                return found, length
            length /= 2
        raise InferenceError(
            "no step keeps all beliefs proper: messages pull the precision of a node below 0. Use "
            'schedule="sequential", damping=0.9 or a smaller alpha (pg.PowerEP), or give the node '
            "a tighter prior."
        )


def _damped(
    old: Messages, new: Messages, length: float, chosen: list[list[Tensor | None]]
) -> Messages:
    """A share of the way to the new messages, of those that are chosen."""
    return [
        [damped(a, b, length, c) for a, b, c in zip(*ports, strict=True)]
        for ports in zip(old, new, chosen, strict=True)
    ]
