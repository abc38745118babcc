"""Through which sums over single nodes factors read their nodes, by the steps that compute them.

Every number on the way to log f is a function of one node, a sum of such functions, or any other
function. Where a step does to a sum, or to numbers of several nodes, what is no sum, its operands
are numbers that the factor *reads*:

    g(x_i) + h(x_j),  sum + g(x_i),  c sum      sums
    any other step on several nodes or on sums  reads its operands that are either
    any(x_i), all(x_i)                          read how many are true

Then log f is a function of the numbers that it reads, each of which is a sum of functions of single
nodes, whatever the steps behind them are. Binomial(z.sum(), p).log_prob(5) reads one number, a
product over k nodes as many as nodes.

A multiple of a sum, or a sum and a constant, is a sum too, but for rounding: z.sum() / 3 >= 1 tells
5 and 6 ones apart as long as it is z.sum() that is read. Both ways to look at it are offered.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.graph import FactorGroup
from pyrograph.infer.message_passing.discrete.one_quantity import ANALYTIC
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.rules.pointwise import replay_pointwise, replay_same_shape
from pyrograph.trace.rules.products import replay_dot
from pyrograph.trace.rules.reductions import replay_reduction
from pyrograph.trace.rules.slots import SLOT
from pyrograph.trace.source import Gather, Line, Read
from pyrograph.trace.tape import Rule

aten = torch.ops.aten

#: What a number is.
NODE, SUM, FUNCTION = range(3)
#: The number depends on nothing.
NOTHING = -1
#: Most numbers that a factor may read.
MAX_READ = 16

ADDING = {
    getattr(getattr(aten, name), kind) for name in ("add", "sub") for kind in ("Tensor", "Scalar")
} | {aten.rsub.Scalar}
SCALING = {aten.mul.Tensor, aten.mul.Scalar, aten.neg.default, aten._to_copy.default}
DIVIDING = {aten.div.Tensor, aten.div.Scalar}
ANY = {aten.any.dim, aten.all.dim}
SUMMING = {aten.sum.dim_IntList, aten.mean.dim}
#: Steps that do not tell apart what only rounding does, as thresholds may.
SMOOTH = (ANALYTIC - {aten.where.self, aten.logical_not.default}) | {
    aten.lgamma.default,
    aten.sqrt.default,
    aten.xlogy.Tensor,
    aten.xlogy.Scalar_Other,
}


@dataclass(frozen=True)
class SumsRead:
    """Numbers that factors read.

    Attributes:
        program: computes them, ``[n, S]``, from the nodes.
        place: ``[E, A]`` which of them each factor reads.
        is_read: ``[E, A]``; some read fewer than others.
        terms: ``[E, A]`` how many terms each is a mean of, 1 of what is none.
        is_smooth: whether no step behind tells apart what only rounding does.
    """

    program: LocalProgram
    place: Tensor
    is_read: Tensor
    terms: Tensor
    is_smooth: bool


@dataclass(frozen=True)
class _Known:
    """Of numbers: ``node`` one node that they depend on, ``form`` how on it and others, and
    ``place``, which of all numbers they are; constants are none."""

    node: Tensor
    form: Tensor
    place: Tensor

    def rows(self, index: Tensor | slice) -> _Known:
        return _Known(self.node[index], self.form[index], self.place[index])

    def blocks(self, count: int) -> _Known:
        """``[count, n]``."""
        parts = (self.node, self.form, self.place)
        return _Known(*(v.reshape(len(v), -1).expand(count, -1) for v in parts))


def _joined(parts: list[_Known], dim: int = 0) -> _Known:
    names = ("node", "form", "place")
    return _Known(*(torch.cat([getattr(p, name) for p in parts], dim) for name in names))


class _Steps:
    """The steps of a group's program, one after the other.

    Args:
        group: of discrete nodes.
        scales: whether multiples of sums, and sums with constants, are sums.
    """

    def __init__(self, group: FactorGroup, scales: bool):
        self.scales, self.is_smooth = scales, True
        self.terms: list[Tensor] = []  # by buffer
        self.buffers: dict[int, _Known] = {}
        self.starts: dict[int, int] = {}
        self.read: list[Tensor] = []  # places
        self.counts: list[Line] = []  # of what is true, beside the program's own
        self.size = 0
        program, count = group.program, group.num_factors
        for slot, size in enumerate(program.leaf_sizes):
            factor = torch.arange(size, device="cpu") // (size // count)
            node = factor * group.arity + slot
            self._add(slot, node, torch.full_like(node, NODE))
        self._free = max((line.buffer for line in program.lines), default=0) + 1
        for line in program.lines:
            self._take(line)
        out = self.operand(program.output).blocks(count)
        self._reads(out, torch.ones(count, dtype=torch.bool, device="cpu"))

    def _add(self, buffer: int, node: Tensor, form: Tensor, terms: int = 1) -> None:
        place = self.size + torch.arange(len(node), device="cpu")
        self.buffers[buffer] = _Known(node, form, place)
        self.starts[buffer] = self.size
        self.terms.append(torch.full_like(node, terms))
        self.size += len(node)

    def operand(self, read: Read) -> _Known:
        parts = [self.buffers[gather.buffer].rows(gather.place) for gather in read.gathers]
        if read.constant is not None:
            none = torch.full((read.constant.shape[:-1].numel(),), NOTHING, device="cpu")
            parts.append(_Known(none, torch.full_like(none, NODE), none))
        known = _joined(parts)
        if read.order is not None:
            known = known.rows(read.order.cpu())
        shape = (-1, *read.shape[1:])
        return _Known(*(v.reshape(shape) for v in (known.node, known.form, known.place)))

    def _take(self, line: Line) -> None:
        reads = [self.operand(read) for read in line.reads]
        if line.rule.func in ANY and line.reads[0].dtype is torch.bool:
            reads = [self._counted(line)]
        flat = [r.blocks(line.count) for r in reads]
        none = torch.full((line.count, 1), NOTHING, device="cpu")
        every = _joined([*flat, _Known(none, torch.full_like(none, NODE), none)], 1)
        node, is_constant = every.node.amax(1), every.node == NOTHING
        is_one = is_constant | ((every.node == node.unsqueeze(1)) & (every.form == NODE))
        is_one = is_one.all(1)
        is_sum = ~is_one & self._adds(line, reads, flat, every)
        form = torch.where(is_one, NODE, torch.where(is_sum, SUM, FUNCTION))
        others = ~is_one & ~is_sum
        self._reads(every, others)
        self.is_smooth &= line.rule.func in SMOOTH or not bool(others.any())
        columns = (v.repeat_interleave(line.width) for v in (node, form))
        is_mean = line.rule.func is aten.mean.dim
        self._add(line.buffer, *columns, every.node.shape[1] - 1 if is_mean else 1)

    def _counted(self, line: Line) -> _Known:
        """How many of each block are true."""
        rule = Rule(replay_reduction, aten.sum.dim_IntList, ((), True, None))
        count = replace(line, rule=rule, buffer=self._free, dtype=torch.int64)
        self._free += 1
        self.counts.append(count)
        self._take(count)
        return self.buffers[count.buffer]

    def _reads(self, every: _Known, rows: Tensor) -> None:
        """Factors read what these rows, of ``[count, n]``, have of nodes and sums."""
        wanted = rows.unsqueeze(1) & (every.node != NOTHING) & (every.form != FUNCTION)
        self.read.append(every.place[wanted].unique())

    def _adds(self, line: Line, reads: list[_Known], flat: list[_Known], every: _Known) -> Tensor:
        """``[count]``: whether what comes is a sum of multiples of sums."""
        func, replay = line.rule.func, line.rule.replay
        are_sums = (every.form != FUNCTION).all(1)
        never = torch.zeros_like(are_sums)
        if line.width > 1 or line.dtype is torch.bool:  # True + True is True
            return never
        if replay is replay_reduction:
            return are_sums if func in SUMMING else never
        if replay is replay_dot:
            shape = torch.broadcast_shapes(*(r.node.shape for r in reads))
            left, right = (r.node.expand(shape).reshape(shape[0], -1) for r in reads)
            alone = ((left == NOTHING) | (right == NOTHING)).all(1)
            return are_sums & alone & (self.scales | (every.form == NODE).all(1))
        if replay not in (replay_pointwise, replay_same_shape) or any(
            r.node.shape[1] > 1 for r in flat
        ):
            return never
        if func in ADDING:
            return are_sums & (self.scales | ((every.node != NOTHING).sum(1) > 1))
        if func is aten._to_copy.default and not line.dtype.is_floating_point:
            return never  # it rounds
        if not self.scales and func is not aten._to_copy.default:
            return never
        if func in SCALING:
            return are_sums & ((every.node != NOTHING).sum(1) == 1)
        if func in DIVIDING and line.rule.static[0][0] is SLOT:
            return are_sums & (every.node[:, 1:] == NOTHING).all(1)
        return never


def sums_read(group: FactorGroup, scales: bool) -> SumsRead | None:
    """What discrete factors read their nodes through; None if that is too much.

    Args:
        scales: whether multiples of sums, and sums with constants, are sums.
    """
    steps = _Steps(group, scales)
    place = torch.cat(steps.read).unique()
    every = torch.cat([steps.buffers[b].node for b in steps.starts])
    factor = every[place] // group.arity
    counts = factor.bincount(minlength=group.num_factors)
    most = int(counts.max())
    if not 0 < most <= MAX_READ:
        return None
    order = factor.argsort(stable=True)
    column = torch.arange(most, device="cpu")
    is_read = column < counts.unsqueeze(1)
    first = (counts.cumsum(0) - counts).unsqueeze(1)
    position = torch.where(is_read, first + column, 0)
    device = group.scope.device
    program = _numbers(group.program, steps, place[order], device)
    terms = torch.cat(steps.terms)[place[order]][position]
    parts = (v.to(device) for v in (position, is_read, terms))
    return SumsRead(program, *parts, steps.is_smooth)


def _numbers(
    program: LocalProgram, steps: _Steps, place: Tensor, device: torch.device
) -> LocalProgram:
    """The same steps, up to these numbers, in double precision."""
    buffers = list(steps.starts)
    first = torch.tensor([steps.starts[b] for b in buffers], device="cpu")
    home = torch.searchsorted(first, place, right=True) - 1
    gathers, placed = [], []
    for k in home.unique().tolist():
        here = (home == k).nonzero().squeeze(1)
        index = (place[here] - first[k]).to(device)
        gathers.append(Gather(buffers[k], index=index))
        placed.append(here)
    order = torch.cat(placed).argsort().to(device)
    out = copy(program)
    last = max(gather.buffer for gather in gathers)
    lines = [*program.lines, *steps.counts]
    out.lines = [replace(line, free=[]) for line in lines if line.buffer <= last]
    out.output = Read((len(place),), torch.float64, None, gathers, order)
    out.num_outputs = len(place)
    out._values = out._total = None
    return out
