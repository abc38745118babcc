"""Sweeps of belief propagation in plain numbers, where the graph's numbers are known to fit.

With messages m scaled to a largest value of one, a sweep of :mod:`.slots` at alpha = 1 is

    q_i = base_i prod_{a: i in a} m_{a -> i},    n_j = q_j / m_{a -> j}
    m_{a -> i}(x_i) ~ sum_{x \\ i} f_a(x) prod_{j != i} n_j(x_j)

and needs no logarithm of any state, which on a CPU take longer than all else. With values scaled to
a largest one of 1, log f_a above -s_a and log base_i above -s_i,

    log m_{a -> i} >= -s_a,    log q_i >= -S_i,    S_i = s_i + sum_{a: i in a} s_a

and all terms of a sum lie above minus the S_j of the nodes that it runs over. Where the exponential
of that is a normal number no term is lost and none overflows, whatever the messages are; elsewhere
sweeps stay in the log domain (:mod:`.sweep`).

Products over a node's messages are taken one message of every node at a time, nodes of most
factors first: O(largest degree) operations on contiguous numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from pyrograph.diagnostics.score import outside_inference_mode
from pyrograph.infer.message_passing.differences import DifferenceFactors
from pyrograph.infer.message_passing.families import Categorical
from pyrograph.infer.message_passing.log_values import exp, finite_peak, log
from pyrograph.infer.message_passing.messages import Messages
from pyrograph.infer.message_passing.network import Block, Network
from pyrograph.infer.message_passing.slots import RANGE
from pyrograph.infer.message_passing.tables import TableFactors

#: Most factors of a node.
DEGREE = 64
#: Log values by which messages may be lower than is known, for rounding.
SLACK = 0.01


@dataclass(frozen=True)
class _Nodes:
    """A family's nodes, those of most factors first, and the messages to them.

    Messages are columns ``[c, N]``, port after port.

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
    def of(cls, family: Categorical, rows: Tensor) -> _Nodes:
        """From the rows ``[N]`` that the messages are to."""
        degree = rows.bincount(minlength=len(family.base))
        order = degree.argsort(descending=True, stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        target = place[rows]
        by_node = target.argsort(stable=True)
        first = degree[order].cumsum(0) - degree[order]
        turn = torch.arange(len(rows), device=rows.device) - first[target[by_node]]
        by_turn = by_node[turn.argsort(stable=True)]
        base = family.base.detach().t().index_select(1, order)
        alone = base[:, int((degree > 0).sum()) :]
        return cls(exp(base), place, target, alone, by_turn, turn.bincount().tolist())

    def beliefs(self, message: Tensor, work: Tensor) -> Tensor:
        """base prod m, ``[c, V]``, of messages ``[c, N]``."""
        torch.index_select(message, 1, self.by_turn, out=work)
        found = self.base.clone()
        for count, part in zip(self.turns, work.split(self.turns, 1), strict=True):
            found[:, :count].mul_(part)
        return found

    def logs(self, beliefs: Tensor) -> Tensor:
        """Log values of beliefs ``[c, V]``; those of nodes without messages may not fit."""
        touched = beliefs.shape[1] - self.alone.shape[1]
        return torch.cat([log(beliefs[:, :touched]), self.alone], 1)


class PlainSweep:
    """Sweeps over a network's factors, all messages at once, undamped.

    Attributes:
        ports: of each block, family and columns of every port's messages.
    """

    def __init__(self, network: Network):
        self.network = network
        rows: list[list[Tensor]] = [[] for _ in network.families]
        taken = [0] * len(rows)
        self.ports: list[list[tuple[int, slice]]] = []
        for block in network.blocks:
            ports = []
            for f, row in zip(block.families, block.rows, strict=True):
                ports.append((f, slice(taken[f], taken[f] + len(row))))
                taken[f] += len(row)
                rows[f].append(row)
            self.ports.append(ports)
        self.nodes = [
            _Nodes.of(family, torch.cat(own) if own else network.row[:0])
            for family, own in zip(network.families, rows, strict=True)
        ]
        self.none = network.constant.detach().new_zeros(())
        self._work = [n.base.new_empty(len(n.base), len(n.target)) for n in self.nodes]

    @classmethod
    def of(cls, network: Network) -> PlainSweep | None:
        """None where numbers may not fit."""
        return cls(network) if _fits(network) else None

    def start(self, messages: Messages) -> PlainSwept | None:
        """Log messages as plain numbers; None if some are such as the factors never send."""
        if not self._are_sent(messages):
            return None
        found = [torch.empty_like(work) for work in self._work]
        for ports, sent in zip(self.ports, messages, strict=True):
            for (f, columns), message in zip(ports, sent, strict=True):
                found[f][:, columns] = exp(message - finite_peak(message)).t()
        return self._swept(found, [torch.empty_like(work) for work in self._work])

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
        for block, sent in zip(self.network.blocks, messages, strict=True):
            least = -_spread(block) - SLACK
            if not all(bool((m - finite_peak(m) >= least).all()) for m in sent):
                return False
        return True

    def __call__(self, at: PlainSwept) -> PlainSwept:
        """The next messages, in the memory of those before ``at``."""
        for block, ports, n in self._cavities(at.sums, at.numbers):
            for slot, (f, columns) in enumerate(ports):
                sums = self._sums(block, n, slot, at.spare[f][:, columns])
                sums.div_(sums.amax(0, keepdim=True))
        return self._swept(at.spare, at.numbers, self._gap(at.spare, at.numbers))

    def _swept(
        self, new: list[Tensor], old: list[Tensor], moved: Tensor | None = None
    ) -> PlainSwept:
        sums = [n.beliefs(m, w) for n, m, w in zip(self.nodes, new, self._work, strict=True)]
        return PlainSwept(self, new, sums, old, moved)

    @staticmethod
    def _sums(block: Block, cavities: list[Tensor], slot: int, out: Tensor) -> Tensor:
        """Towards a slot, written to ``[c, E]``: fresh memory takes longer than the product."""
        if block.potts is not None:
            (a, b), other = block.potts, cavities[1 - slot].t()
            return torch.addcmul(a * other.sum(0), b, other, out=out)
        if block.shared is None:
            return out.copy_(block.plain_sums(cavities, slot).t())
        table = block.shared if slot == 0 else block.shared.t()
        return torch.mm(table, cavities[1 - slot].t(), out=out)

    def _cavities(
        self, beliefs: list[Tensor], messages: list[Tensor]
    ) -> Iterator[tuple[Block, list, list[Tensor]]]:
        """Blocks, their ports, and the ports' cavities ``[E, c]`` in working memory."""
        parts = zip(beliefs, self.nodes, messages, self._work, strict=True)
        for belief, nodes, message, work in parts:
            torch.index_select(belief, 1, nodes.target, out=work).div_(message)
        for block, ports in zip(self.network.blocks, self.ports, strict=True):
            yield block, ports, [self._work[f][:, columns].t() for f, columns in ports]

    def log_evidence(self, at: PlainSwept) -> Tensor:
        """See :mod:`.evidence`, ``[]``; of beliefs with a largest value of one, as a factor's mass
        is a product of as many as it has nodes."""
        peaks = [belief.amax(0, keepdim=True) for belief in at.sums]
        beliefs = [belief / peak for belief, peak in zip(at.sums, peaks, strict=True)]
        mass = [belief.sum(0).log() for belief in beliefs]
        total = self.network.constant.detach()
        for log_mass, peak in zip(mass, peaks, strict=True):
            total = total + log_mass.sum() + peak.log().sum()
        for block, ports, n in self._cavities(beliefs, at.numbers):
            first = n[0].t()
            tilted = self._sums(block, n, 0, torch.empty_like(first)).mul_(first)
            ratio = tilted.sum(0).log() + block.peak.flatten()
            for f, columns in ports:
                ratio = ratio - mass[f].index_select(0, self.nodes[f].target[columns])
            total = total + ratio.sum()
        return total

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
        with outside_inference_mode():
            return [
                [log(self.numbers[f][:, columns]).t() for f, columns in ports]
                for ports in self.sweep.ports
            ]

    @cached_property
    def beliefs(self) -> list[Tensor]:
        """By family, log values."""
        pairs = zip(self.sums, self.sweep.nodes, strict=True)
        with outside_inference_mode():
            return [nodes.logs(total).index_select(1, nodes.place).t() for total, nodes in pairs]


def _spread(block: TableFactors | DifferenceFactors) -> float:
    """Largest range of a factor's log values."""
    flat = block.scaled.detach().flatten(1)
    return float((flat.amax(1) - flat.amin(1)).amax()) if flat.numel() else 0.0


def _fits(network: Network) -> bool:
    """Whether all products of a node's and a factor's numbers are normal numbers."""
    discrete = all(isinstance(family, Categorical) for family in network.families)
    if not (discrete and network.blocks) or network.has_zeros:
        return False
    blocks = network.blocks
    tables = all(isinstance(block, TableFactors | DifferenceFactors) for block in blocks)
    if not (tables and all(block.is_plain and block.is_one for block in blocks)):
        return False
    bases = [family.base.detach() for family in network.families]
    width = [base.amax(1) - base.amin(1) for base in bases]
    degree = [torch.zeros_like(rows, dtype=torch.int64) for rows in width]
    for block in blocks:
        for f, rows in zip(block.families, block.rows, strict=True):
            width[f] = width[f].index_add(0, rows, width[f].new_full((len(rows),), _spread(block)))
            degree[f] = degree[f].index_add(0, rows, torch.ones_like(rows))
    most = [float((w * (d > 0)).amax()) for w, d in zip(width, degree, strict=True)]
    # a sum runs over all nodes of a factor but one: over the widest at worst
    others = [sorted(most[f] for f in block.families)[1:] for block in blocks]
    fits = max(map(sum, others)) < RANGE * math.log(torch.finfo(width[0].dtype).max)
    return fits and max(int(d.amax()) for d in degree) <= DEGREE
