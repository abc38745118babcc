"""Terms of factors that are sums, as factors of their own.

A factor of a node of many numbers may be a sum of terms of few numbers each: the graph knows nodes
alone, and leaves it whole. Its terms stand where it does, under its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.graph.factor_group import FactorGroup
from pyrograph.trace.demand import scopes
from pyrograph.trace.distinct import row_numbers
from pyrograph.trace.expand import Expander
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.tape import Tape


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers on a tape that are computed from what factors read.

    Attributes:
        tape: of the graph, or a longer one.
        ids: ``[T]``.
        row: ``[T]`` the factor that each is part of.
    """

    tape: Tape
    ids: Tensor
    row: Tensor

    def part(self, which: Tensor) -> Numbers:
        """Some of them."""
        which = which.cpu()
        return Numbers(self.tape, self.ids[which], self.row[which])


@dataclass(eq=False, kw_only=True)
class TermGroup(FactorGroup):
    """Terms of the factors of a group, on the same nodes or some of them.

    Attributes:
        graph: that the factors are of.
        whole: their group.
        numbers: the terms, and which of its factors they are of.
    """

    graph: FactorGraph
    whole: FactorGroup
    numbers: Numbers

    @property
    def program(self) -> LocalProgram:
        if self._program is None:
            self._program = self.graph._compiled(self.numbers.tape, self.numbers.ids, self.scope)
        return self._program

    def part(self, rows: Tensor) -> TermGroup:
        found = super().part(rows)
        return replace(found, numbers=self.numbers.part(rows))


def of_factors(
    graph: FactorGraph, group: FactorGroup, index: Tensor, expander: type[Expander]
) -> tuple[Numbers, Expander]:
    """Factors of a group as numbers on a tape that may grow, and what expands them there."""
    tape = Tape(list(graph._reading.tape.steps))
    ids = graph._factors.terms.ids[group.index[index].cpu()]
    return Numbers(tape, ids, index.cpu()), expander(tape, graph._value_dtype())


def as_factors(graph: FactorGraph, whole: FactorGroup, numbers: Numbers) -> TermGroup:
    """Numbers as factors of all nodes that the factors of which they are terms read."""
    row = numbers.row.to(whole.scope.device)
    return TermGroup(
        whole.name,
        whole.statements,
        whole.scope[row],
        whole.index[row],
        whole.slots,
        whole._compile,
        graph=graph,
        whole=whole,
        numbers=numbers,
    )


def on_their_nodes(graph: FactorGraph, whole: FactorGroup, numbers: Numbers) -> Iterator[TermGroup]:
    """Numbers as factors of the nodes that they read themselves, by the slots of these."""
    group = as_factors(graph, whole, numbers)
    columns = graph.columns.cpu()
    node_of_leaf = torch.arange(graph.num_nodes, device="cpu").repeat_interleave(columns.diff())
    ptr, nodes = scopes(numbers.tape, numbers.ids, node_of_leaf)
    term = torch.arange(len(numbers.ids), device="cpu").repeat_interleave(ptr.diff())
    scope = group.scope.cpu()
    reads = torch.zeros(scope.shape, dtype=torch.bool, device="cpu")
    reads[term, (scope[term] == nodes.unsqueeze(1)).byte().argmax(1)] = True
    kind = row_numbers(reads.long())
    for k in kind.unique():
        which = (kind == k).nonzero().squeeze(1)
        slots = reads[which[0]].nonzero().squeeze(1)
        own = group.part(which.to(group.scope.device))
        yield replace(
            own,
            scope=own.scope[:, slots.to(own.scope.device)],
            slots=tuple(group.slots[k] for k in slots.tolist()),
        )


def leaves_of(graph: FactorGraph, group: TermGroup) -> Tensor:
    """Which numbers of their nodes terms read, bool ``[T, W]``, slot by slot."""
    columns = graph.columns.cpu()
    every = torch.arange(int(columns[-1]), device="cpu")
    ptr, leaves = scopes(group.numbers.tape, group.numbers.ids, every)
    scope = group.scope.cpu()
    widths = columns.diff()[scope[0]]
    start = widths.cumsum(0) - widths
    term = torch.arange(len(scope), device="cpu").repeat_interleave(ptr.diff())
    node = torch.searchsorted(columns, leaves, right=True) - 1
    slot = (scope[term] == node.unsqueeze(1)).byte().argmax(1)
    found = torch.zeros(len(scope), int(widths.sum()), dtype=torch.bool, device="cpu")
    found[term, start[slot] + leaves - columns[node]] = True
    return found
