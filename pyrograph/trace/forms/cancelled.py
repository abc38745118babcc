"""Which numbers of its steps a local function depends on, where sums cancel.

Levels of an ordered outcome have probabilities s_k - s_{k-1}, which are divided by their sum:
every s_k enters, and all but two drop out again,

    (s_k - s_{k-1}) / (s_1 + (s_2 - s_1) + ... + (1 - s_{n-1})) = s_k - s_{k-1}

Steps that are linear are followed backwards by their derivatives, from the outputs and from what
other steps take in. A number matters if one of these derivatives by it is not 0: sums that cancel
for all numbers give an exact 0, what only nearly cancels counts. As with combinations
(:mod:`.combinations`) it does not matter where one looks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.trace.forms.degree import CONSTANT, ZERO, Form, form_of_line
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.rules.lookups import replay_choice
from pyrograph.trace.source import Line, Read


@dataclass(frozen=True)
class _Part:
    """Numbers ``[..., S]``: fixed ones as they are, others 0 with derivatives."""

    is_fixed: bool
    value: Tensor


@torch.enable_grad()
def numbers_that_matter(
    program: LocalProgram, leaves: list[Tensor], fixed: set[int]
) -> dict[int, Tensor]:
    """Of the lines' buffers whether the outputs depend on their numbers, ``[rows, S]``; those on
    all of whose numbers they do are left out.

    Args:
        leaves: leaf buffers ``[m_k, S]``.
        fixed: numbers of those whose values are given.
    """
    reads = [r for line in program.lines for r in line.reads] + [program.output]
    if any(read.constant is not None and read.constant.requires_grad for read in reads):
        return {}  # what cancels now may not do so later
    buffers, taken_in = _followed(program, leaves, fixed)
    base = len(leaves)
    demands = _Demands(
        {k: part.value for k, part in buffers.items() if k >= base and part.value.requires_grad}
    )
    demands.add([_operand(buffers, program.output).value], None)
    for line, parts in reversed(taken_in):
        if not demands.unsettled:
            break
        which = demands.matters.get(line.buffer)
        if which is not None:
            which = which.view(line.count, line.width, -1).any(1)
        if which is None or bool(which.any()):
            demands.add([part.value for part in parts], which)
    return {k: m for k, m in demands.matters.items() if not bool(m.all())}


def _followed(
    program: LocalProgram, leaves: list[Tensor], fixed: set[int]
) -> tuple[dict[int, _Part], list[tuple[Line, list[_Part]]]]:
    """Buffers at the leaves' values, linear steps with derivatives by what they read; and the
    steps that are not linear, with what they take in."""
    samples = max(leaf.shape[1] for leaf in leaves)
    buffers = {k: _Part(k in fixed, leaf.detach()) for k, leaf in enumerate(leaves)}
    taken_in: list[tuple[Line, list[_Part]]] = []
    for line in program.lines:
        parts = [_operand(buffers, read) for read in line.reads]
        is_fixed = all(part.is_fixed for part in parts)
        if is_fixed or _is_linear(line, parts):
            values = [part.value for part in parts]
            found = line.settle(line.rule.replay(line.rule.func, line.rule.static, values))
            found = found.detach() if is_fixed else found
        else:
            like = parts[0].value
            found = torch.zeros(
                line.count * line.width, samples, dtype=line.dtype, device=like.device
            )
            found.requires_grad_(line.dtype.is_floating_point)
            taken_in.append((line, parts))
        buffers[line.buffer] = _Part(is_fixed, found)
    return buffers, taken_in


class _Demands:
    """Which numbers of buffers ``[rows, S]`` something depends on.

    Attributes:
        matters: by buffer, which of its numbers do.
        unsettled: the buffers that are not known to matter as a whole.
    """

    def __init__(self, followed: dict[int, Tensor]):
        self.matters = {k: torch.zeros_like(v, dtype=torch.bool) for k, v in followed.items()}
        self.unsettled = followed
        self._generator = torch.Generator().manual_seed(0)

    def add(self, values: list[Tensor], which: Tensor | None) -> None:
        """What these operands depend on, of blocks ``which [count, S]``, or of all of them.

        Random weights keep the derivatives of several numbers from cancelling in their sum.
        """
        total = None
        for value in values:
            if not value.requires_grad:
                continue
            noise = torch.randn(
                value.shape, generator=self._generator, dtype=torch.float64, device="cpu"
            )
            weight = noise.to(value)
            if which is not None:
                blocks = which if len(value) == len(which) else which.any(0, keepdim=True)
                weight = weight * blocks.view(len(blocks), *(1,) * (value.dim() - 2), -1)
            own = (value * weight).sum()
            total = own if total is None else total + own
        if total is None or not self.unsettled:
            return
        slopes = torch.autograd.grad(
            total, list(self.unsettled.values()), retain_graph=True, allow_unused=True
        )
        for k, slope in zip(list(self.unsettled), slopes, strict=True):
            if slope is not None:
                self.matters[k] |= slope != 0
                if bool(self.matters[k].all()):
                    del self.unsettled[k]


def _operand(buffers: dict[int, _Part], read: Read) -> _Part:
    """What a step's operand holds, ``[count, *core, S]``."""
    if not read.gathers:
        return _Part(True, read.constant)
    parts = [buffers[gather.buffer] for gather in read.gathers]
    rows = [g.rows(part.value) for g, part in zip(read.gathers, parts, strict=True)]
    return _Part(all(part.is_fixed for part in parts), read.assemble(*rows))


def _is_linear(line: Line, parts: list[_Part]) -> bool:
    if not line.dtype.is_floating_point:
        return False
    if line.rule.replay is replay_choice and all(part.is_fixed for part in parts[1:]):
        return True
    form = form_of_line(line, [_form(part) for part in parts])
    return form.degree <= 1 and not form.is_exponential


def _form(part: _Part) -> Form:
    if part.is_fixed:
        return CONSTANT if bool(part.value.any()) else ZERO
    return Form(1)
