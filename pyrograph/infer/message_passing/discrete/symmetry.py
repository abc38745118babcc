"""Which factors do not tell their nodes apart, by the steps that compute them.

A function that reads its nodes through sums and products over all of them alone, such as
``x.sum(-1) % 2 == 0`` or ``(1 - 2 * x).prod(-1)``, is one of the number of nodes in state 1: what
it does at k + 1 states it does at all 2^k. That is a proof, where a trial of fewer states is none.
"""

from __future__ import annotations

import torch

from pyrograph.graph import FactorGroup
from pyrograph.trace.rules.slots import SLOT
from pyrograph.trace.source import Line, Read

aten = torch.ops.aten

#: Over all numbers of a read, in any order.
REDUCTIONS = {aten.sum.dim_IntList, aten.prod.dim_int}
#: Number by number, and from whole numbers to whole numbers, whose sums have no rounding.
POINTWISE = {
    aten.mul.Tensor,
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.rsub.Scalar,
    aten.neg.default,
    aten.eq.Scalar,
    aten._to_copy.default,
}


def is_symmetric(group: FactorGroup) -> bool:
    """Whether factors on nodes of states 0 and 1 are known to be functions of the number of ones.

    False says nothing: they may be, in steps that are not looked through.
    """
    if any(site.enumeration.tolist() != [0, 1] for site in group.slots):
        return False
    # buffers that together hold one number per factor and node, alike in all nodes
    alike = [set(range(group.arity))]
    for line in group.program.lines:
        reads = [read for read in line.reads if _reads(read, set().union(*alike))]
        if not reads:
            continue
        if len(line.reads) > 1 or not _is_all_of(reads[0], alike):
            return False
        if line.rule.func in POINTWISE and _has_whole_options(line):
            alike.append({line.buffer})
        elif line.rule.func not in REDUCTIONS or reads[0].shape != tuple(group.scope.shape):
            return False
    return not _reads(group.program.output, set().union(*alike))


def _reads(read: Read, buffers: set[int]) -> bool:
    return any(gather.buffer in buffers for gather in read.gathers)


def _is_all_of(read: Read, alike: list[set[int]]) -> bool:
    """Whether it has every number of one of these sets of buffers, once, and nothing else."""
    buffers = [gather.buffer for gather in read.gathers]
    is_whole = all(gather.start is None and gather.index is None for gather in read.gathers)
    is_once = len(set(buffers)) == len(buffers)
    return read.constant is None and is_whole and is_once and set(buffers) in alike


def _has_whole_options(line: Line) -> bool:
    """Whether its other arguments are whole numbers, the same for all that it reads."""
    arguments, options = line.rule.static
    numbers = [a for a in arguments if a is not SLOT]
    are_whole = all(isinstance(n, int | float) and float(n).is_integer() for n in numbers)
    return are_whole and all(name == "dtype" for name, _ in options)
