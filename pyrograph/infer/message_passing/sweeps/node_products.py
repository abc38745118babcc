"""Products of the messages to every node, in plain numbers.

    q_i(x_i) = base_i(x_i) prod_{a: i in a} m_{a -> i}(x_i)

One message of every node is taken at a time, nodes of most factors first: as many operations as a
node has factors at most, on contiguous numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.infer.message_passing.nodes.log_values import exp, log


@dataclass(frozen=True)
class NodeProducts:
    """A family's nodes, those of most factors first, and the messages to them.

    Shapes:
        base: ``[c, V]``; place: ``[V]`` where each row of the family stands.
        target: ``[N]`` the node of every message.
        alone: ``[c, V - turns[0]]`` log values of the nodes without messages, the last ones.
        by_turn: ``[N]`` the messages: one of every node that has one, then a second one, ...
        turns: how many each.
    """

    base: Tensor
    place: Tensor
    target: Tensor
    alone: Tensor
    by_turn: Tensor
    turns: list[int]

    @classmethod
    def of(cls, base: Tensor, rows: Tensor) -> NodeProducts:
        """From log values ``[V, c]``, and the rows ``[N]`` of them that the messages are to."""
        degree = rows.bincount(minlength=len(base))
        order = degree.argsort(descending=True, stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        target = place[rows]
        by_node = target.argsort(stable=True)
        first = degree[order].cumsum(0) - degree[order]
        turn = torch.arange(len(rows), device=rows.device) - first[target[by_node]]
        by_turn = by_node[turn.argsort(stable=True)]
        base = base.detach().t().index_select(1, order)
        alone = base[:, int((degree > 0).sum()) :]
        turns = turn.bincount().tolist()
        return cls(exp(base), place, target, alone, by_turn, turns)

    def times(self, by_turn: Tensor) -> Tensor:
        """base prod m, ``[c, V]``, of messages ``[c, N]`` turn after turn."""
        found = self.base.clone()
        for count, part in self.in_turn(by_turn):
            found[:, :count].mul_(part)
        return found

    def in_turn(self, by_turn: Tensor) -> Iterable[tuple[int, Tensor]]:
        """How many nodes, the first ones, have a message of that turn, and these messages."""
        return zip(self.turns, by_turn.split_with_sizes(self.turns, 1), strict=True)

    def logs(self, beliefs: Tensor) -> Tensor:
        """Log values of beliefs ``[c, V]``, of every row of the family, ``[V, c]``; those of nodes
        without messages may not fit."""
        touched = beliefs.shape[1] - self.alone.shape[1]
        found = torch.cat([log(beliefs[:, :touched]), self.alone], 1)
        return found.index_select(1, self.place).t()
