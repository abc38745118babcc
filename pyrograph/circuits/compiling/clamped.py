"""Zeros that torch's distributions have written over.

They put eps of their dtype in the place of a probability of zero and 1 - eps in that of one, so
that a table has a number where the program says never. What tells such a number from a small
probability is that it is torch's: put 2 eps where the program clamps, or where one of its constants
is the log odds of eps to the last digit, and the number gains log 2 (or a multiple).

Probabilities within 2 eps of 0 or 1 that the program clamps count as such, since torch moves them;
and so does a constant of the user's own that is log eps to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pyrograph.circuits.compiling.tables import MAX_ENTRIES, group_at
from pyrograph.graph import FactorGraph
from pyrograph.graph.checked import table_of
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.source import Read
from pyrograph.trace.tape import Rule

#: Gain of a log value that is no rounding: log 2, also where a statement is scaled down to a 700th.
GAIN = 1e-3
#: Relative to log eps: what it may be off by, which is its last digit in single precision.
ROUNDING = 1e-7
#: Of the dtypes whose probabilities are clamped.
EPS = tuple(torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64))


def is_log_eps(logits: Tensor) -> Tensor:
    """Whether they are the log odds of eps or of 1 - eps, in either precision."""
    found = torch.zeros_like(logits, dtype=torch.bool)
    for eps in EPS:
        found |= (logits.abs() + math.log(eps)).abs() <= -ROUNDING * math.log(eps)
    return found


def clamped_state(
    graph: FactorGraph,
    tables: Sequence[np.ndarray],
    values: Mapping[int, Tensor],
    states: Mapping[int, int],
) -> tuple[int, ...] | None:
    """A state that has a probability only since torch clamps; None where there is none.

    Args:
        tables: of all factors, group after group.
        values: of nodes whose sites have no list of states.
        states: of nodes that are observed.
    """
    start = 0
    for group in graph.factors:
        stop = start + group.num_factors
        own, start = tables[start:stop], stop
        doubled = _doubled(group.program)
        if doubled is None:
            continue
        there = replace(group_at(group, values), _program=doubled)
        logs = table_of(graph, there, MAX_ENTRIES).detach().double().cpu().numpy()
        with np.errstate(invalid="ignore"):  # NaN where both are -inf
            clamped = logs - np.stack(own) > GAIN
        for e, *entry in np.argwhere(clamped).tolist():
            found = dict(zip(group.scope[e].tolist(), entry, strict=True))
            if all(states.get(v, state) == state for v, state in found.items()):
                found = dict(states) | found
                return tuple(found.get(v, 0) for v in range(graph.num_nodes))
    return None


def _doubled(program: LocalProgram) -> LocalProgram | None:
    """The program with 2 eps where torch writes eps; None where it does not."""
    out = copy(program)
    out.lines = [
        replace(line, rule=_doubled_clamp(line.rule), reads=[*map(_doubled_logits, line.reads)])
        for line in program.lines
    ]
    out.output = _doubled_logits(program.output)
    out._values = out._total = None
    before = [part for line in program.lines for part in (line.rule, *line.reads)]
    after = [part for line in out.lines for part in (line.rule, *line.reads)]
    changed = any(a is not b for a, b in zip(before, after, strict=True))
    return out if changed or out.output is not program.output else None


def _doubled_clamp(rule: Rule) -> Rule:
    if rule.func is not torch.ops.aten.clamp.default:
        return rule
    (slot, *bounds), options = rule.static
    if len(bounds) != 2 or bounds[0] not in EPS or 1 - bounds[1] not in EPS:
        return rule
    return rule._replace(static=((slot, 2 * bounds[0], 1 - 2 * (1 - bounds[1])), options))


def _doubled_logits(read: Read) -> Read:
    if read.constant is None or not read.constant.is_floating_point():
        return read
    at_eps = is_log_eps(read.constant.detach())
    if not bool(at_eps.any()):
        return read
    moved = read.constant - read.constant.sign() * math.log(2)
    return replace(read, constant=torch.where(at_eps, moved, read.constant))
