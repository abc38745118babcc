"""Degrees of local functions as polynomials of their leaves, read off their steps.

A function seen at points only may look like a polynomial and have a needle elsewhere; what its
steps are does not depend on where one looks. A logarithm of an exponential counts as its argument,
so that a log-normal density is the quadratic function that it is.

Absolute values, clamps, minima and maxima of polynomials are polynomials between kinks; their
degree is asked for apart, with the steps that may switch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyrograph.trace.distinct import distinct_rows
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.rules.lookups import replay_choice
from pyrograph.trace.rules.matrices import replay_matrix
from pyrograph.trace.rules.pointwise import replay_pointwise
from pyrograph.trace.rules.products import replay_dot
from pyrograph.trace.rules.reductions import replay_reduction
from pyrograph.trace.rules.slots import SLOT
from pyrograph.trace.source import Gather, Line, Read


@dataclass(frozen=True)
class Form:
    """A polynomial of some degree (minus infinity: zero), or the exponential of one; the degree is
    infinite if it is neither."""

    degree: float
    is_exponential: bool = False

    @property
    def is_constant(self) -> bool:
        return self.degree <= 0 and not self.is_exponential


ZERO, CONSTANT, UNKNOWN = Form(-math.inf), Form(0), Form(math.inf)
SAME = {"clone", "alias", "_to_copy", "positive"}
#: Operations that switch between their arguments, or between one and constants.
SWITCHES = {"abs", "relu", "clamp", "clamp_min", "clamp_max", "minimum", "maximum"}
#: Linear in the first operand where the others are constants.
LINEAR_IN_FIRST = {"cholesky_solve", "convolution", "avg_pool1d", "avg_pool2d", "avg_pool3d"}
#: Options that leave a linear operation linear.
HARMLESS = {"alpha", "dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format"}
SOLVES = {"aten::linalg_solve_triangular", "aten::_linalg_solve_ex"}


def polynomial_degree(program: LocalProgram, given: Collection[int] = ()) -> float:
    """Largest degree among the outputs, infinite where one is not known to be a polynomial.

    Args:
        given: leaves that count as constants.
    """
    return _degree(program, None, given)


def piecewise_degree(program: LocalProgram) -> tuple[float, list[int]]:
    """The same where pieces may be different polynomials that meet, and which lines switch."""
    switches: list[int] = []
    return _degree(program, switches), switches


def _degree(
    program: LocalProgram, switches: list[int] | None, given: Collection[int] = ()
) -> float:
    walk = _Walk(program, given)
    for n, line in enumerate(program.lines):
        if walk.step(line, switches is not None) and switches is not None:
            switches.append(n)
    out = [walk.forms[k] for k in walk.operand(program.output).unique().tolist()]
    return math.inf if any(form.is_exponential for form in out) else max(f.degree for f in out)


class _Walk:
    """Through the steps, forwards, row by row: like steps of different numbers are one line."""

    def __init__(self, program: LocalProgram, given: Collection[int]):
        self.forms: list[Form] = []
        self._buffers = {
            leaf: torch.full(
                (size,), self._number(CONSTANT if leaf in given else Form(1)), device="cpu"
            )
            for leaf, size in enumerate(program.leaf_sizes)
        }

    def _number(self, form: Form) -> int:
        """A form's place in the list of those met."""
        if form not in self.forms:
            self.forms.append(form)
        return self.forms.index(form)

    def operand(self, read: Read) -> Tensor:
        """Forms of an operand's blocks, ``[count or 1]``."""
        parts = [self._gathered(gather) for gather in read.gathers]
        if read.constant is not None:
            is_zero = (read.constant == 0).all(-1).flatten().cpu()
            is_zero &= not read.constant.requires_grad  # zero only for now
            zero, constant = self._number(ZERO), self._number(CONSTANT)
            parts.append(torch.where(is_zero, zero, constant))
        rows = torch.cat(parts)
        rows = rows if read.order is None else rows[read.order.cpu()]
        rows = rows.reshape(read.num_rows, -1)
        if rows.shape[1] == 1:
            return rows[:, 0]
        if len(rows) == 1:  # a large table, say: neither order nor number is anything to it
            rows = rows.unique()[None]
        return self._by_row(rows, _of_several)

    def _gathered(self, gather: Gather) -> Tensor:
        return self._buffers[gather.buffer][gather.place]

    def _by_row(self, rows: Tensor, of: Callable[[list[Form]], Form]) -> Tensor:
        """What becomes of rows of forms ``[count, k]``, each kind of row asked about once."""
        kinds, which = distinct_rows(rows)
        found = [self._number(of([self.forms[k] for k in kind])) for kind in kinds.tolist()]
        return torch.tensor(found, device="cpu")[which]

    def step(self, line: Line, may_switch: bool) -> bool:
        """Whether the line switches."""
        is_switch = may_switch and operation(line) in SWITCHES
        switched = False

        def of(reads: list[Form]) -> Form:
            nonlocal switched
            if all(form.is_constant for form in reads):
                return CONSTANT
            if not line.dtype.is_floating_point:
                return UNKNOWN
            if is_switch:
                switched = True
                return UNKNOWN if any(form.is_exponential for form in reads) else _largest(reads)
            return form_of_line(line, reads)

        rows = torch.stack([self.operand(read).expand(line.count) for read in line.reads], 1)
        found = self._by_row(rows, of)
        self._buffers[line.buffer] = found.repeat_interleave(line.width)
        return switched


def operation(line: Line) -> str:
    """Name of the operation of a line."""
    return line.rule.func._schema.name.removeprefix("aten::") if line.rule.func is not None else ""


def form_of_line(line: Line, reads: list[Form]) -> Form:
    rule, name = line.rule, operation(line)
    if name in LINEAR_IN_FIRST and all(read.is_constant for read in reads[1:]):
        return reads[0]  # if it is an exponential, then a single one, of which this is a multiple
    if rule.replay is replay_choice and all(read.is_constant for read in reads[1:]):
        return reads[0]  # of a polynomial's entries one is
    if rule.replay is replay_dot:
        return _product(reads)
    if rule.replay is replay_matrix:
        is_solve = rule.func._schema.name in SOLVES
        return _largest(reads[1:]) if is_solve and reads[0].is_constant else UNKNOWN
    if rule.replay is replay_reduction:
        return _largest(reads) if name in ("sum", "mean", "nansum") else UNKNOWN
    if rule.replay is not replay_pointwise:
        return UNKNOWN
    template, options = rule.static
    if any(value is not None and key not in HARMLESS for key, value in options):
        return UNKNOWN  # such as the rounding of a quotient
    queue = iter(reads)
    return _of_operation(name, [next(queue) if a is SLOT else a for a in template])


def _of_operation(name: str, arguments: list[Any]) -> Form:
    """Of a pointwise operation of forms and plain numbers."""
    forms = [a if isinstance(a, Form) else CONSTANT if a else ZERO for a in arguments]
    first = forms[0]
    if name in SAME or name == "neg":  # minus an exponential has no logarithm, but a square has
        return first
    if name == "where":
        return _largest(forms[1:]) if first.is_constant else UNKNOWN
    if name in ("add", "sub", "rsub"):
        return _largest(forms[:2])
    if name == "mul":
        return _product(forms)
    if name == "div":
        return _quotient(*forms[:2]) if len(arguments) == 2 else UNKNOWN
    if name in ("square", "pow"):
        power = 2 if name == "square" else arguments[1]
        if isinstance(power, Form):
            return UNKNOWN
        if first.is_exponential:
            return first
        is_whole = power >= 0 and float(power).is_integer()
        return Form(first.degree * power) if is_whole else UNKNOWN
    if name == "exp":
        return UNKNOWN if first.is_exponential else Form(first.degree, True)
    if first.is_exponential and name in ("reciprocal", "sqrt", "rsqrt"):
        return first
    if first.is_exponential and name == "log":
        return Form(first.degree)
    return UNKNOWN


def _of_several(forms: list[Form]) -> Form:
    """Of numbers that a step takes in together: what it makes of exponentials, a sum say, is the
    exponential of no polynomial."""
    return UNKNOWN if any(form.is_exponential for form in forms) else _largest(forms)


def _largest(forms: list[Form]) -> Form:
    """Of a sum."""
    forms = [form for form in forms if form != ZERO]
    if len(forms) > 1 and any(form.is_exponential for form in forms):
        return UNKNOWN
    return max(forms, key=lambda form: form.degree, default=ZERO)


def _product(forms: list[Form]) -> Form:
    if ZERO in forms:
        return ZERO
    others = [form for form in forms if not form.is_constant]
    if all(form.is_exponential for form in others):
        return Form(max((form.degree for form in others), default=0), bool(others))
    if any(form.is_exponential for form in others):
        return UNKNOWN
    return Form(sum(form.degree for form in others))


def _quotient(above: Form, below: Form) -> Form:
    if below.is_constant:
        return above
    if below.is_exponential and (above.is_exponential or above.is_constant):
        return Form(max(above.degree, below.degree), True)
    return UNKNOWN
