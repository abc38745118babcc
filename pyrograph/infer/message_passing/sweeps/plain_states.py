"""Sweeps in plain numbers over factors of nodes of any number of states; see :mod:`.plain`.

Messages are scaled to a largest value of one, and columns ``[c, N]``, port after port.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pyrograph.infer.message_passing.discrete.differences import DifferenceFactors
from pyrograph.infer.message_passing.discrete.tables import TableFactors
from pyrograph.infer.message_passing.network.messages import Messages
from pyrograph.infer.message_passing.network.network import Block, Network
from pyrograph.infer.message_passing.nodes.families import Categorical
from pyrograph.infer.message_passing.nodes.log_values import exp, finite_peak, log
from pyrograph.infer.message_passing.sweeps.node_products import NodeProducts
from pyrograph.infer.message_passing.sweeps.plain import PlainSweep, PlainSwept, longest, reaches


class PlainStates(PlainSweep):
    """Sweeps over factors of states.

    Attributes:
        ports: of each block, family and columns of every port's messages.
    """

    def __init__(self, network: Network):
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
        nodes = [
            NodeProducts.of(family.base, torch.cat(own) if own else network.row[:0])
            for family, own in zip(network.families, rows, strict=True)
        ]
        super().__init__(network, nodes)

    @classmethod
    def of(cls, network: Network) -> PlainStates | None:
        """None where it does not apply, or numbers may not fit."""
        return cls(network) if _fits(network) else None

    def _plain(self, messages: Messages) -> list[Tensor]:
        found = [torch.empty_like(work) for work in self._work]
        for ports, sent in zip(self.ports, messages, strict=True):
            for (f, columns), message in zip(ports, sent, strict=True):
                found[f][:, columns] = exp(message - finite_peak(message)).t()
        return found

    def _is_in_range(self, message: Tensor, spread: float) -> bool:
        return bool((message - finite_peak(message) >= -spread).all())

    def _send(self, at: PlainSwept) -> None:
        for block, ports, n in self._cavities(at.sums, at.numbers):
            for slot, (f, columns) in enumerate(ports):
                sums = self._sums(block, n, slot, at.spare[f][:, columns])
                sums.div_(sums.amax(0, keepdim=True))

    def _products(self, numbers: list[Tensor]) -> list[Tensor]:
        return [
            nodes.times(torch.index_select(message, 1, nodes.by_turn, out=work))
            for nodes, message, work in zip(self.nodes, numbers, self._work, strict=True)
        ]

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

    def messages(self, numbers: list[Tensor]) -> Messages:
        return [[log(numbers[f][:, columns]).t() for f, columns in ports] for ports in self.ports]

    def beliefs(self, sums: list[Tensor]) -> list[Tensor]:
        return [nodes.logs(total) for total, nodes in zip(sums, self.nodes, strict=True)]


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
    most = reaches(network, [base.amax(1) - base.amin(1) for base in bases])
    if most is None:
        return False
    # a sum runs over all nodes of a factor but one: over the widest at worst
    others = [sorted(most[f] for f in block.families)[1:] for block in blocks]
    return max(map(sum, others)) < longest(bases[0].dtype)
