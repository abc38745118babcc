"""Which linear combinations of its leaves a local function depends on, read off its steps.

    f(x) = g(J x),    J constant

Steps that are linear carry combinations on; what enters any other step is *read*, and adds rows to
J, as does what leaves the function. So every buffer is one of

    a x + r         LINEAR
    exp(a x) r      EXPONENTIAL

where r depends on rows read before: products and logarithms of exponentials carry combinations on
too, and log sum_k exp(x_k) = mean(x) + r(x - mean(x)). What cancels later (:mod:`.cancelled`) is
not read. Where one looks does not matter: gradients at points miss what a function does elsewhere,
behind a threshold or in a narrow peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

import torch
from torch import Tensor

from pyrograph.trace.forms.degree import CONSTANT, SAME, ZERO, Form, form_of_line, operation
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.rules.lookups import replay_choice
from pyrograph.trace.rules.pointwise import replay_pointwise
from pyrograph.trace.rules.reductions import replay_reduction
from pyrograph.trace.rules.slots import SLOT
from pyrograph.trace.source import Gather, Line, Read


class Kind(Enum):
    """How a number depends on the leaves; REST through rows that are read alone."""

    FIXED, REST, LINEAR, EXPONENTIAL = range(4)


@dataclass(frozen=True)
class Part:
    """Numbers ``[..., S]`` of a kind: their value if fixed, 0 for the rest, a x or the exponent
    a x."""

    kind: Kind
    value: Tensor


#: Powers of an exponential, as factors of its exponent.
POWERS = {"reciprocal": -1.0, "sqrt": 0.5, "rsqrt": -0.5, "square": 2.0}
#: Rows that are functions of their differences alone, and one that is their mean besides.
OF_DIFFERENCES, LOG_SUM = {"_softmax", "_log_softmax"}, "logsumexp"
#: Functions of the difference of two numbers, and of their mean besides.
COMPARISONS = {"gt", "ge", "lt", "le", "eq", "ne", "huber_loss", "smooth_l1_loss", "mse_loss"}
WITH_MEAN = {"maximum", "minimum", "logaddexp"}


def combinations_read(
    program: LocalProgram,
    leaves: list[Tensor],
    fixed: set[int],
    matters: Mapping[int, Tensor] = MappingProxyType({}),
) -> list[Tensor]:
    """Tensors ``[..., S]``, linear in the leaves up to constants, of which the outputs are
    functions.

    Args:
        leaves: leaf buffers ``[m_k, S]``.
        fixed: numbers of those whose values are given.
        matters: see :func:`.cancelled.numbers_that_matter`; combinations that only others read
            are 0.
    """
    walk = _Walk(leaves, fixed, matters)
    for line in program.lines:
        walk.step(line)
    walk.read(walk.operand(program.output))
    return walk.rows


class _Walk:
    """Through the steps, forwards."""

    def __init__(self, leaves: list[Tensor], fixed: set[int], matters: Mapping[int, Tensor]):
        self._matters = matters
        self.rows: list[Tensor] = []
        self._buffers = {
            k: Part(Kind.FIXED if k in fixed else Kind.LINEAR, leaf)
            for k, leaf in enumerate(leaves)
        }
        self._operands: dict[tuple, Part] = {}
        self._known: set[int] = set()

    def read(self, part: Part, which: Tensor | None = None) -> None:
        """A step that is not linear takes these numbers in.

        Args:
            which: ``[rows or 1, S]``, the rows that matter; None for all.
        """
        is_new = part.kind in (Kind.LINEAR, Kind.EXPONENTIAL) and id(part.value) not in self._known
        if not (is_new and part.value.requires_grad):
            return
        if which is None:
            self._known.add(id(part.value))
            self.rows.append(part.value)
        elif bool(which.any()):
            rows = which if len(which) == len(part.value) else which.any(0, keepdim=True)
            rows = rows.view(len(rows), *(1,) * (part.value.dim() - 2), -1)
            self.rows.append(torch.where(rows, part.value, 0.0))

    def _read_by(self, line: Line, part: Part) -> None:
        """A step takes these numbers in, a row for each of its blocks or one for all."""
        which = self._matters.get(line.buffer)
        self.read(part, None if which is None else which.view(line.count, line.width, -1).any(1))

    def operand(self, read: Read) -> Part:
        """What a step's operand holds, ``[count, *core, S]``."""
        if not read.is_single:
            return self._assembled(read)
        only = read.gathers[0]
        key = (only.buffer, only.start, only.stop, id(only.index), read.shape, read.dtype)
        if key not in self._operands:  # read twice, it is still one
            self._operands[key] = self._assembled(read)
        return self._operands[key]

    def _assembled(self, read: Read) -> Part:
        if not read.gathers:
            return Part(Kind.FIXED, read.constant)
        parts = [self._gathered(gather) for gather in read.gathers]
        kinds = {part.kind for part in parts} | (
            {Kind.FIXED} if read.constant is not None else set()
        )
        if Kind.EXPONENTIAL in kinds and Kind.LINEAR not in kinds:  # others are r, of exponent 0
            parts = [p if p.kind is Kind.EXPONENTIAL else _rest(p.value) for p in parts]
            constant = read.constant
            read = replace(read, constant=None if constant is None else torch.zeros_like(constant))
        elif Kind.EXPONENTIAL in kinds:  # beside others it is a number like them
            for gather, part in zip(read.gathers, parts, strict=True):
                if part.kind is Kind.EXPONENTIAL:
                    which = self._matters.get(gather.buffer)
                    self.read(part, None if which is None else gather.rows(which))
            parts = [_rest(p.value) if p.kind is Kind.EXPONENTIAL else p for p in parts]
            kinds -= {Kind.EXPONENTIAL}
        kind = max(kinds, key=lambda kind: kind.value)
        values = [part.value for part in parts]
        if not read.is_single:
            return Part(kind, read.assemble(*values))
        only = values[0].to(read.dtype)
        return Part(kind, only.reshape(*read.shape, only.shape[-1]))

    def _gathered(self, gather: Gather) -> Part:
        part = self._buffers[gather.buffer]
        is_whole = gather.start is None and gather.index is None
        return part if is_whole else Part(part.kind, gather.rows(part.value))

    def step(self, line: Line) -> None:
        parts = [self.operand(read) for read in line.reads]
        found = self._carried(line, parts)
        if found is None:
            for part in parts:
                self._read_by(line, part)
            found = self._nothing(line, parts)
        self._buffers[line.buffer] = found

    def _carried(self, line: Line, parts: list[Part]) -> Part | None:
        """What a step makes of combinations without reading them, None if it does read them."""
        kinds = {part.kind for part in parts}
        name = operation(line)
        if kinds <= {Kind.FIXED}:
            return Part(Kind.FIXED, _replayed(line, parts))
        if kinds <= {Kind.FIXED, Kind.REST}:
            return None
        if line.rule.replay is replay_choice and all(p.kind is Kind.FIXED for p in parts[1:]):
            return Part(parts[0].kind, _replayed(line, parts))
        if name in COMPARISONS | WITH_MEAN and Kind.EXPONENTIAL not in kinds:
            return self._compared(line, name, parts)
        if not line.dtype.is_floating_point:
            return None
        if Kind.EXPONENTIAL in kinds or name == "exp":
            return _of_exponentials(line, name, parts)
        if name in OF_DIFFERENCES or name == LOG_SUM:
            x = parts[0].value
            mean = x.mean(1, keepdim=True)
            self._read_by(line, Part(Kind.LINEAR, x - mean))
            return (
                Part(Kind.LINEAR, line.settle(mean[:, 0]))
                if name == LOG_SUM
                else _rest(line.settle(x))
            )
        if form_of_line(line, [_form(part) for part in parts]).degree <= 1:
            return Part(Kind.LINEAR, _replayed(line, parts))
        return None

    def _compared(self, line: Line, name: str, parts: list[Part]) -> Part:
        queue = iter(parts)
        x, y = [next(queue).value if a is SLOT else a for a in line.rule.static[0]][:2]
        self._read_by(line, Part(Kind.LINEAR, x - y))
        if name in COMPARISONS:
            return self._nothing(line, parts)
        return Part(Kind.LINEAR, line.settle((x + y) / 2))

    @staticmethod
    def _nothing(line: Line, parts: list[Part]) -> Part:
        """A result that depends on what was read alone."""
        like = max((part.value for part in parts), key=lambda value: value.shape[-1])
        zeros = torch.zeros(1, like.shape[-1], dtype=line.dtype, device=like.device)
        return Part(Kind.REST, zeros.expand(line.count * line.width, -1))


def _replayed(line: Line, parts: list[Part]) -> Tensor:
    values = [part.value for part in parts]
    return line.settle(line.rule.replay(line.rule.func, line.rule.static, values))


def _rest(like: Tensor) -> Part:
    return Part(Kind.REST, torch.zeros_like(like, requires_grad=False))


def _form(part: Part) -> Form:
    if part.kind is Kind.FIXED:
        return CONSTANT if bool(part.value.any()) else ZERO
    return Form(1)


def _of_exponentials(line: Line, name: str, parts: list[Part]) -> Part | None:
    """Of a pointwise step or a product of exponentials, numbers and the rest; None if it reads
    them."""
    if line.rule.replay is replay_reduction and name == "prod":
        return Part(Kind.EXPONENTIAL, line.settle(parts[0].value.sum(1)))
    if line.rule.replay is not replay_pointwise or line.rule.static[1]:
        return None
    queue = iter(parts)
    arguments = [next(queue) if a is SLOT else a for a in line.rule.static[0]]
    first = arguments[0]
    if name == "exp":
        is_linear = first.kind is Kind.LINEAR
        return Part(Kind.EXPONENTIAL, line.settle(first.value)) if is_linear else None
    if name in ("mul", "div"):
        if len(arguments) > 2 or any(part.kind is Kind.LINEAR for part in parts):
            return None
        signs = (1.0, 1.0 if name == "mul" else -1.0)
        every = torch.broadcast_tensors(*(part.value for part in parts))
        values = iter(every)
        exponent = torch.zeros_like(every[0])
        for sign, argument in zip(signs, arguments, strict=True):
            value = next(values) if isinstance(argument, Part) else None
            if value is not None and argument.kind is Kind.EXPONENTIAL:
                exponent = exponent + sign * value
        return Part(Kind.EXPONENTIAL, line.settle(exponent))
    if not isinstance(first, Part) or first.kind is not Kind.EXPONENTIAL:
        return None
    adds_nothing = name in ("add", "sub") and all(
        not bool(a.value.any()) if isinstance(a, Part) and a.kind is Kind.FIXED else not a
        for a in arguments[1:]
    )
    if name in SAME or name in ("neg", "abs") or adds_nothing:
        return Part(Kind.EXPONENTIAL, line.settle(first.value))
    if name == "log":
        return Part(Kind.LINEAR, line.settle(first.value))
    power = arguments[1] if name == "pow" else POWERS.get(name)
    if isinstance(power, Part):
        power = power.value if power.kind is Kind.FIXED else None
    return None if power is None else Part(Kind.EXPONENTIAL, line.settle(power * first.value))
