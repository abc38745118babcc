"""Sweeps in plain numbers over pairs of binary nodes: odds of state 1; see :mod:`.plain`.

With odds Q_i of beliefs and r_{a -> i} of messages, and a factor's values f in units of f00,

    y_j = Q_j / r_{a -> j},    r_{a -> i} = (f10 + f11 y_j) / (1 + f01 y_j)

(less to read, where f11 = 1 and f10 = f01 as in an Ising model),

and the tilted distribution's mass is f00 (1 + f01 y_j) (1 + r_{a -> i}' y_i), where r' is the next
message: the same for both nodes of the factor.

Messages lie in the order in which nodes take them (:mod:`.node_products`), not in that of factors.
What a node says to its factors is then a quotient of contiguous numbers; one permutation, which
brings each to the factor's other node, is all the looking-up of a sweep.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.message_passing.discrete.binary import BinaryFactors
from pyrograph.infer.message_passing.network.messages import Messages
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.nodes.families import Odds
from pyrograph.infer.message_passing.nodes.log_values import exp, log, log_1p_exp
from pyrograph.infer.message_passing.sweeps.node_products import NodeProducts
from pyrograph.infer.message_passing.sweeps.plain import PlainSweep, PlainSwept, longest, reaches


class PlainOdds(PlainSweep):
    """Sweeps over positive pairs of binary nodes.

    Messages are ``[1, N]``, turn after turn.

    Attributes:
        turn_of: ``[N]`` where a block's messages, block after block, stand among them.
    """

    def __init__(self, network: Network):
        (family,), blocks = network.families, network.blocks
        nodes = NodeProducts.of(family.base.unsqueeze(1), torch.cat([b.rows[0] for b in blocks]))
        super().__init__(network, [nodes])
        number = torch.arange(len(nodes.by_turn), device=nodes.by_turn.device)
        self.turn_of = torch.empty_like(number)
        self.turn_of[nodes.by_turn] = number
        self._sizes = [len(block.rows[0]) for block in blocks]
        halves = [own.view(2, -1).flip(0).flatten() for own in number.split(self._sizes)]
        across = self.turn_of[torch.cat(halves)[nodes.by_turn]]
        # half the memory to read
        self._across = across.int() if len(across) <= torch.iinfo(torch.int32).max else across
        tables = [block.log_table.detach().flatten(1).unbind(1) for block in blocks]
        scale = family.scale.detach().sum() + sum(f00.sum() for f00, *_ in tables)
        self._constant = network.constant.detach() + scale

        def ratio(halves: list[Tensor]) -> Tensor:
            """``[1, N]``, of log ratios of messages to first and to second nodes, by block."""
            return exp(torch.cat(halves)[nodes.by_turn]).unsqueeze(0)

        up = [torch.cat([f10 - f00, f01 - f00]) for f00, f01, f10, _ in tables]
        down = [torch.cat([f01 - f00, f10 - f00]) for f00, f01, f10, _ in tables]
        both = [(f11 - f00).repeat(2) for f00, _, _, f11 in tables]
        self._f10, self._f01, self._f11 = ratio(up), ratio(down), ratio(both)
        #: Whether all factors tell only whether their nodes agree.
        self._is_even = bool((self._f11 == 1).all()) and torch.equal(self._f10, self._f01)
        self._one = torch.ones_like(self.none)

    @classmethod
    def of(cls, network: Network) -> PlainOdds | None:
        """None where it does not apply, or numbers may not fit."""
        return cls(network) if _fits(network) else None

    def _plain(self, messages: Messages) -> list[Tensor]:
        (nodes,) = self.nodes
        return [exp(torch.cat([m for (m,) in messages])[nodes.by_turn]).unsqueeze(0)]

    def _is_in_range(self, message: Tensor, spread: float) -> bool:
        return bool((message.abs() <= spread).all())

    def _products(self, numbers: list[Tensor]) -> list[Tensor]:
        return [nodes.times(own) for nodes, own in zip(self.nodes, numbers, strict=True)]

    def _cavities(self, at: PlainSwept, out: Tensor) -> Tensor:
        """y_i of every message's own node, ``[1, N]``."""
        (nodes,), (odds,), (message,) = self.nodes, at.sums, at.numbers
        both = zip(nodes.in_turn(message), nodes.in_turn(out), strict=True)
        for (count, before), (_, cavity) in both:
            torch.div(odds[:, :count], before, out=cavity)
        return out

    def _send(self, at: PlainSwept) -> None:
        (work,), (new,) = self._work, at.spare
        own = self._cavities(at, new)
        torch.index_select(own[0], 0, self._across, out=work[0])  # faster than of two dimensions
        if self._is_even:
            torch.add(self._f01, work, out=new)
        else:
            torch.addcmul(self._f10, self._f11, work, out=new)
        new.div_(torch.addcmul(self._one, self._f01, work, out=work))

    def log_evidence(self, at: PlainSwept) -> Tensor:
        """See :mod:`.evidence`, ``[]``; of every factor by both of its messages, half of each.

        Ratios of masses are taken factor by factor: sums over the factors of a node would cancel.
        """
        (nodes,), (odds,), (message,), (work,) = self.nodes, at.sums, at.numbers, self._work
        own = self._cavities(at, torch.empty_like(message))
        other = torch.index_select(own, 1, self._across, out=work)
        down = torch.addcmul(self._one, self._f01, other)
        new = torch.addcmul(self._f10, self._f11, other, out=other).div_(down)
        mass = torch.addcmul(self._one, own, message)
        # in this order all numbers fit
        ratio = new.mul_(own).add_(1).div_(mass)
        ratio.mul_(down.div_(mass.index_select(1, self._across)))
        touched = len(odds[0]) - len(nodes.alone[0])
        masses = log(odds[0, :touched] + 1).sum() + log_1p_exp(nodes.alone).sum()
        return self._constant + masses + log(ratio).sum() / 2

    def messages(self, numbers: list[Tensor]) -> Messages:
        found = log(numbers[0][0]).index_select(0, self.turn_of)
        return [[own] for own in found.split(self._sizes)]

    def beliefs(self, sums: list[Tensor]) -> list[Tensor]:
        return [nodes.logs(odds)[:, 0] for nodes, odds in zip(self.nodes, sums, strict=True)]


def _fits(network: Network) -> bool:
    """Whether all odds are normal numbers."""
    pairs = all(isinstance(block, BinaryFactors) and block.is_one for block in network.blocks)
    if not (network.blocks and pairs and len(network.families) == 1):
        return False
    (family,) = network.families
    most = reaches(network, [family.base.detach().abs()]) if isinstance(family, Odds) else None
    return most is not None and most[0] < longest(family.base.dtype)
