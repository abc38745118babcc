"""Sweeps of belief propagation in plain numbers, where the graph's numbers are known to fit.

Undamped and at alpha = 1 a sweep of :mod:`.slots` is sums of products, and needs no logarithm of
any state, which on a CPU take longer than all else:

    q_i = base_i prod_{a: i in a} m_{a -> i},    n_j = q_j / m_{a -> j}
    m_{a -> i}(x_i) ~ sum_{x \\ i} f_a(x) prod_{j != i} n_j(x_j)

With log f_a within a range of s_a and log base_i within one of s_i,

    |log m_{a -> i}| <= s_a,    |log q_i| <= S_i,    S_i = s_i + sum_{a: i in a} s_a

in units of some state's value, and all terms of a sum lie within the S_j of the nodes that it runs
over. Where the exponential of that is a normal number no term is lost and none overflows, whatever
the messages are; elsewhere sweeps stay in the log domain (:mod:`.sweep`).

Nodes of any states are in :mod:`.plain_states`, pairs of binary ones in :mod:`.plain_odds`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from pyrograph.diagnostics.score import outside_modes
from pyrograph.infer.message_passing.discrete.slots import RANGE
from pyrograph.infer.message_passing.network.messages import Messages
from pyrograph.infer.message_passing.network.network import Block, Network
from pyrograph.infer.message_passing.sweeps.node_products import NodeProducts

#: Most factors of a node.
DEGREE = 64
#: Log values by which messages may lie outside the range that is known, for rounding.
SLACK = 0.01


class PlainSweep(ABC):
    """Sweeps over a network's factors, all messages at once, undamped.

    Args:
        nodes: of each family, with as many messages as ``numbers`` has.
    """

    def __init__(self, network: Network, nodes: list[NodeProducts]):
        self.network, self.nodes = network, nodes
        self.none = network.constant.detach().new_zeros(())
        self._spreads = [spread(block) for block in network.blocks]
        self._work = [n.base.new_empty(len(n.base), len(n.target)) for n in nodes]

    # ------------------------------------------------------------------ of each form
    @abstractmethod
    def _plain(self, messages: Messages) -> list[Tensor]:
        """Log messages as numbers: of each family, ``[c, N]``."""

    @abstractmethod
    def _send(self, at: PlainSwept) -> None:
        """Write the next messages to ``at.spare``."""

    @abstractmethod
    def _products(self, numbers: list[Tensor]) -> list[Tensor]:
        """base prod m of each family, ``[c, V]``."""

    @abstractmethod
    def messages(self, numbers: list[Tensor]) -> Messages:
        """By block and port, log values."""

    @abstractmethod
    def beliefs(self, sums: list[Tensor]) -> list[Tensor]:
        """By family, log values."""

    @abstractmethod
    def log_evidence(self, at: PlainSwept) -> Tensor:
        """See :mod:`.evidence`, ``[]``."""

    @abstractmethod
    def _is_in_range(self, message: Tensor, spread: float) -> bool:
        """Whether a factor of this spread may send these log messages, but for rounding."""

    # ------------------------------------------------------------------ of all
    def start(self, messages: Messages) -> PlainSwept | None:
        """Log messages as plain numbers; None if some are such as the factors never send."""
        if not self._are_sent(messages):
            return None
        return self._swept(self._plain(messages), [torch.empty_like(w) for w in self._work])

    def resumed(self, saved: Mapping[str, Tensor], messages: Messages) -> PlainSwept | None:
        """Where :meth:`PlainSwept.carried` was, to the last bit; None if these are not its logs, or
        such as the factors never send."""
        if {name: v.shape for name, v in saved.items()} != {
            str(f): work.shape for f, work in enumerate(self._work)
        } or not self._are_sent(messages):
            return None
        numbers = [saved[str(f)].to(work, copy=True) for f, work in enumerate(self._work)]
        found = self._swept(numbers, [torch.empty_like(work) for work in self._work])
        pairs = zip(chain(*found.messages), chain(*messages), strict=True)
        return found if all(torch.equal(own, theirs) for own, theirs in pairs) else None

    def _are_sent(self, messages: Messages) -> bool:
        """Whether log messages are in the range of the factors that send them."""
        return all(
            self._is_in_range(message, spread + SLACK)
            for spread, sent in zip(self._spreads, messages, strict=True)
            for message in sent
        )

    def __call__(self, at: PlainSwept) -> PlainSwept:
        """The next messages, in the memory of those before ``at``."""
        self._send(at)
        return self._swept(at.spare, at.numbers, self._gap(at.spare, at.numbers))

    def _swept(
        self, new: list[Tensor], old: list[Tensor], moved: Tensor | None = None
    ) -> PlainSwept:
        return PlainSwept(self, new, self._products(new), old, moved)

    def _gap(self, new: list[Tensor], old: list[Tensor]) -> Tensor:
        """Largest change of a log message, ``[]``."""
        found = self.none
        for after, before, work in zip(new, old, self._work, strict=True):
            if after.numel():
                low, high = torch.div(after, before, out=work).aminmax()
                found = torch.maximum(found, torch.maximum(high, low.reciprocal()).log())
        return found


class PlainSwept:
    """Where a sweep leads, see :class:`.sweep.Swept`; logs are taken of what is asked for.

    Attributes:
        numbers, sums: of each family, messages ``[c, N]`` and unnormalised beliefs ``[c, V]``.
        spare: the messages before, whose memory the next ones take: a place is one until the
            second sweep after it. What is handed out is copied.
        moved: ``[]`` largest change of a log message; None where no sweep led here.
    """

    is_cut = False
    skipped: tuple[None, ...] = ()

    def __init__(
        self,
        sweep: PlainSweep,
        numbers: list[Tensor],
        sums: list[Tensor],
        spare: list[Tensor],
        moved: Tensor | None,
    ):
        self.sweep = sweep
        self.numbers, self.sums, self.spare = numbers, sums, spare
        self.moved = self.residual = moved

    def carried(self) -> dict[str, Tensor]:
        """The messages, for a checkpoint: their logs lead back to them but for rounding."""
        return {str(f): numbers.clone() for f, numbers in enumerate(self.numbers)}

    @property
    def num_skipped(self) -> Tensor:
        """``[]``."""
        return self.sweep.none

    @cached_property
    def messages(self) -> Messages:
        """By block and port, log values."""
        with outside_modes():
            return self.sweep.messages(self.numbers)

    @cached_property
    def beliefs(self) -> list[Tensor]:
        """By family, log values."""
        with outside_modes():
            return self.sweep.beliefs(self.sums)


def spread(block: Block) -> float:
    """Largest range of a factor's log values, at alpha = 1."""
    flat = block.scaled.detach().flatten(1)
    return float((flat.amax(1) - flat.amin(1)).amax()) if flat.numel() else 0.0


def reaches(network: Network, widths: list[Tensor]) -> list[float] | None:
    """The largest S_i of each family's nodes with messages; None if one has too many of them.

    Args:
        widths: s_i, ``[V]`` of each family.
    """
    widths, degree = list(widths), [torch.zeros_like(w, dtype=torch.int64) for w in widths]
    for block in network.blocks:
        height = spread(block)
        for f, rows in zip(block.families, block.rows, strict=True):
            own = widths[f].new_full((len(rows),), height)
            widths[f] = widths[f].index_add(0, rows, own)
            degree[f] = degree[f].index_add(0, rows, torch.ones_like(rows))
    if max(int(d.amax()) for d in degree) > DEGREE:
        return None
    return [float((w * (d > 0)).amax()) for w, d in zip(widths, degree, strict=True)]


def longest(kind: torch.dtype) -> float:
    """What an S_i may be."""
    return RANGE * math.log(torch.finfo(kind).max)
