"""Which numbers of its leaves a local function depends on, where some leaves have given values.

    f(p, z) = g(sigmoid(p)[z]):      p_z alone

Steps are walked forwards with weights in the place of numbers: 1 for every leaf that is not given,
and what a step makes of some has the sum of their weights. Look-ups at given places and switches
with given conditions pass on what they choose, products with given zeros pass on nothing. A leaf
reaches the outputs where the gradient of their weights by its own is not 0. As with combinations
(:mod:`.combinations`) it does not matter where one looks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.trace.forms.degree import operation
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.rules.lookups import replay_choice
from pyrograph.trace.rules.pointwise import replay_pointwise
from pyrograph.trace.rules.products import replay_dot
from pyrograph.trace.rules.slots import SLOT
from pyrograph.trace.source import Gather, Line, Read


@dataclass(frozen=True)
class Part:
    """Numbers ``[..., S]``: their values if these are given, else their weights."""

    is_given: bool
    value: Tensor

    @property
    def weight(self) -> Tensor:
        if not self.is_given:
            return self.value
        return torch.zeros_like(self.value, dtype=torch.float64)


def leaves_that_reach(program: LocalProgram, leaves: list[Tensor | None]) -> list[Tensor | None]:
    """Of every leaf buffer whether its numbers reach the outputs, ``[m_k, S]``.

    Args:
        leaves: the buffers ``[m_k, S]`` that are given, None for others; answered likewise, the
            other way round.
    """
    samples = max(leaf.shape[1] for leaf in leaves if leaf is not None)
    device = next(leaf.device for leaf in leaves if leaf is not None)
    free = {
        k: torch.ones(size, samples, dtype=torch.float64, device=device, requires_grad=True)
        for k, size in enumerate(program.leaf_sizes)
        if leaves[k] is None
    }
    with torch.enable_grad():
        parts = {
            k: Part(False, free[k]) if leaf is None else Part(True, leaf.detach())
            for k, leaf in enumerate(leaves)
        }
        for line in program.lines:
            reads = [_operand(parts, read) for read in line.reads]
            is_given = all(part.is_given for part in reads)
            parts[line.buffer] = Part(is_given, (_replayed if is_given else _weight)(line, reads))
            for buffer in line.free:
                del parts[buffer]
        total = _operand(parts, program.output).weight.sum()
        slopes: tuple[Tensor | None, ...] = (None,) * len(free)
        if total.requires_grad:
            slopes = torch.autograd.grad(total, list(free.values()), allow_unused=True)
    # infinite weights, of long chains, are no zeros, nor are the NaN that come of them
    found = {
        k: torch.zeros_like(own, dtype=torch.bool) if slope is None else slope != 0
        for (k, own), slope in zip(free.items(), slopes, strict=True)
    }
    return [found.get(k) for k in range(len(leaves))]


def _operand(parts: dict[int, Part], read: Read) -> Part:
    """What a step's operand holds, ``[count, *core, S]``."""
    gathered = [(parts[gather.buffer], gather) for gather in read.gathers]
    constant = read.constant
    is_given = all(part.is_given for part, _ in gathered)
    if constant is not None and constant.requires_grad:
        is_given = False  # such a constant is zero only for now
    if not is_given and constant is not None:
        constant = torch.zeros_like(constant, dtype=torch.float64, requires_grad=False)
    if not gathered:
        return Part(is_given, constant)
    values = [_rows(part.value if is_given else part.weight, gather) for part, gather in gathered]
    dtype = read.dtype if is_given else torch.float64
    return Part(is_given, replace(read, dtype=dtype, constant=constant).assemble(*values))


def _rows(value: Tensor, gather: Gather) -> Tensor:
    if gather.index is not None:
        return value.index_select(0, gather.index)
    return value[slice(gather.start, gather.stop)]


def _replayed(line: Line, parts: list[Part]) -> Tensor:
    values = [part.value for part in parts]
    return line.settle(line.rule.replay(line.rule.func, line.rule.static, values)).detach()


def _weight(line: Line, parts: list[Part]) -> Tensor:
    """Of what a step makes of its operands, ``[count * width, S]``."""
    found = _chosen(line, parts)
    if found is None:
        found = sum(_by_block(part.weight) for part in parts)
    found = found.expand(line.count, found.shape[-1])
    return found.repeat_interleave(line.width, 0) if line.width > 1 else found


def _chosen(line: Line, parts: list[Part]) -> Tensor | None:
    """Weights ``[count, S]`` after steps of which given operands choose among the others, None if
    all of a block's numbers count."""
    replay, name = line.rule.replay, operation(line)
    given = [part for part in parts if part.is_given]
    if replay is replay_choice and len(given) == len(parts) - 1 and not parts[0].is_given:
        weights = [parts[0].weight, *(part.value for part in given)]
        return replay(line.rule.func, line.rule.static, weights)
    is_product = replay is replay_dot or (replay is replay_pointwise and name == "mul")
    if is_product and given:
        left, right = (part.value != 0 if part.is_given else part.value for part in parts)
        return _by_block(left * right)
    if replay is replay_pointwise and name == "where":
        queue = iter(parts)
        condition, *both = [next(queue) if a is SLOT else None for a in line.rule.static[0]]
        if condition is not None and condition.is_given:
            zero = torch.zeros((), dtype=torch.float64, device=condition.value.device)
            return torch.where(
                condition.value.bool(), *(zero if p is None else p.weight for p in both)
            )
    return None


def _by_block(weights: Tensor) -> Tensor:
    """Sum over the numbers of every block ``[count, *core, S]``."""
    return weights.reshape(weights.shape[0], -1, weights.shape[-1]).sum(1)
