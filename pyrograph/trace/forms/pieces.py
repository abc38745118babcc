"""Local functions of one number that are polynomials between kinks: where the kinks are.

Absolute values, clamps, minima and maxima switch where an argument, or a difference of two, is
zero. In the order of the program's lines each of these is itself a polynomial of degree at most 2
between the kinks found so far: three of its values on a stretch give its roots there, which are
further kinks. Nothing is guessed from values of the function alone (see :mod:`.degree`).

Terms may cancel but for rounding, as those of 0.7 x - 0.1 (7 x) do. The slope of 1e-16 that they
leave is none, or it would put a kink at 1e16: what is compared comes with the size of its terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.trace.forms.degree import operation, piecewise_degree
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.rules.slots import SLOT
from pyrograph.trace.source import Line, Read, write_function

#: More kinks than this are not worth a closed form.
MAX_KINKS = 16
#: Differences of values smaller than this times the dtype's precision are none: a constant has no
#: root far away.
ROUNDING = 32
#: Rounding errors that the check of pieces may show, in units of the dtype's precision.
OFF = 3e3
#: Points at which they are checked, and how far off, in units of the stretches between kinks.
CHECKS = 32
SCALES = (1.0, 0.1, 10.0, 100.0)
#: Newton steps from a root of the fitted polynomial, which loses digits far from its points.
POLISH = 2


@dataclass(frozen=True)
class Pieces:
    """Functions of a number u, ``a_j v^2 + b_j v + c_j`` with ``v = (u - o_j) / h_j`` in stretch j.

    Attributes:
        kinks: ``[K, E]``, ascending; where a function has fewer than others, it only seems to bend.
        origin, unit: o and h, ``[K + 1, E]``.
        coefficients: a, b, c, ``[3, K + 1, E]``.
    """

    kinks: Tensor
    origin: Tensor
    unit: Tensor
    coefficients: Tensor

    @cached_property
    def slopes(self) -> Tensor:
        """Of the linear parts, ``[K + 1, E]``."""
        return self.coefficients[1] / self.unit

    @cached_property
    def bends(self) -> Tensor:
        """What the slopes of the linear parts lose at a kink, ``[K, E]``."""
        return self.slopes[:-1] - self.slopes[1:]

    def __call__(self, u: Tensor) -> Tensor:
        """Values at ``[N, E]``."""
        stretch = (u.unsqueeze(1) > self.kinks).sum(1)  # [N, E]
        o, h = (x.gather(0, stretch) for x in (self.origin, self.unit))
        a, b, c = (x.gather(0, stretch) for x in self.coefficients)
        v = (u - o) / h
        return (a * v + b) * v + c

    @torch.no_grad()
    def agree_with(self, function: Callable[[Tensor], Tensor]) -> bool:
        """Whether they are a function of numbers ``[N, E]``, up to rounding: at points near the
        kinks and far off."""
        generator = torch.Generator().manual_seed(0)
        shape = (CHECKS, *self.origin.shape)
        spread = torch.tensor(SCALES, device="cpu").repeat(CHECKS // len(SCALES)).view(-1, 1, 1)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        noise = (spread * noise).to(self.origin)
        u = (self.origin + self.unit * noise).flatten(0, 1)
        theirs = function(u)
        if not bool(theirs.isfinite().all()):
            return False
        size = self.coefficients.abs().sum(0).amax(0) * (1 + (u / self.unit.amin(0)).square())
        bound = OFF * torch.finfo(u.dtype).eps * (1 + theirs.abs() + size)
        return bool(((self(u) - theirs).abs() <= bound).all())


def find_pieces(
    program: LocalProgram, leaves: Callable[[Tensor], list[Tensor]], like: Tensor, count: int
) -> Pieces | None:
    """The pieces of a program's outputs as functions of a number each, None if they are not
    polynomials of degree 2 between few kinks, or are so everywhere.

    Args:
        leaves: leaf buffers at numbers ``[N, E]``.
        like: dtype and device.
        count: E, the number of outputs.
    """
    degree, switches = piecewise_degree(program)
    lines = [program.lines[n] for n in switches]
    alike = all(line.count == count and line.width == 1 for line in lines)
    if degree > 2 or not switches or not alike:
        return None
    kinks = like.new_zeros(0, count)
    for n in switches:
        compared = _comparison(program, n, leaves)
        stretches = _stretches(kinks)
        sizes = _sizes_of_terms(program.lines[:n], leaves(stretches.points))
        sizes = _sizes_compared(program.lines[n], sizes, stretches.points)
        for k, values in enumerate(compared(stretches.points)):
            roots, slope = stretches.roots(values, sizes[k])
            for _ in range(POLISH):
                at = torch.where(roots.isfinite(), roots, 0.0)
                step = compared(at)[k] / slope
                roots = torch.where(step.isfinite(), roots - step, roots)
            kinks = _united(kinks, roots)
        if len(kinks) > MAX_KINKS:
            return None
    stretches = _stretches(kinks)
    buffers = leaves(stretches.points)
    values = program(buffers).t()
    sizes = _assembled(program.output, _sizes_of_terms(program.lines, buffers)).abs().t()
    coefficients = torch.stack(stretches.fit(values, sizes.expand_as(values)))
    return Pieces(stretches.kinks, stretches.origin, stretches.unit, coefficients)


def _comparison(
    program: LocalProgram, n: int, leaves: Callable[[Tensor], list[Tensor]]
) -> Callable[[Tensor], list[Tensor]]:
    """What line n compares with zero, ``[N, E]`` each, at numbers ``[N, E]``."""
    line = program.lines[n]
    reads = [
        write_function(len(program.leaf_sizes), program.lines[:n], read) if read.gathers else None
        for read in line.reads
    ]

    def values(u: Tensor) -> list[Tensor]:
        buffers = leaves(u)
        found = [
            read.constant if function is None else function(*buffers)
            for read, function in zip(line.reads, reads, strict=True)
        ]
        first, bounds = _sides(line, found)
        return [(first - bound).t().expand(u.shape) for bound in bounds]

    return values


def _sides(line: Line, reads: list[Tensor]) -> tuple[Tensor, list[Tensor | float]]:
    """What a line compares, and with what."""
    template, _ = line.rule.static
    queue = iter(reads)
    first, *others = [next(queue) if a is SLOT else a for a in template]
    if operation(line) in ("abs", "relu"):
        return first, [0.0]
    return first, [bound for bound in others if bound is not None]


def _sizes_of_terms(lines: list[Line], leaves: list[Tensor]) -> dict[int, Tensor]:
    """By buffer, ``[m, S]`` each: what rounding moves a number by, in units of it.

    That of a step is |out| + sum_k |d out / d x_k| size(x_k), to first order, over the numbers that
    it reads.
    """
    values = dict(enumerate(leaves))
    sizes = {k: leaf.abs() for k, leaf in values.items()}
    for line in lines:
        reads = [_assembled(read, values) for read in line.reads]
        own = [_assembled(read, sizes).abs() for read in line.reads]
        values[line.buffer], sizes[line.buffer] = _step_with_size(line, reads, own)
    return sizes


def _sizes_compared(line: Line, sizes: dict[int, Tensor], like: Tensor) -> list[Tensor]:
    """Of what a line compares with zero, as ``like`` each, ``[N, E]``."""
    first, bounds = _sides(line, [_assembled(read, sizes).abs() for read in line.reads])
    return [(first + abs(bound)).t().expand(like.shape) for bound in bounds]


def _assembled(read: Read, buffers: dict[int, Tensor]) -> Tensor:
    """What a step reads, ``[count or 1, *core, S]``."""
    if not read.gathers:
        return read.constant
    return read.assemble(*(gather.rows(buffers[gather.buffer]) for gather in read.gathers))


@torch.enable_grad()
def _step_with_size(line: Line, reads: list[Tensor], sizes: list[Tensor]) -> tuple[Tensor, Tensor]:
    """A step's numbers and their sizes, ``[count * width, S]`` both."""
    # every block has operands of its own: derivatives of a sum over blocks are theirs
    reads = [x.detach().expand(line.count, *x.shape[1:]) for x in reads]
    floats = [k for k, x in enumerate(reads) if x.is_floating_point()]
    moved = [reads[k].requires_grad_() for k in floats]
    out = line.settle(line.rule.replay(line.rule.func, line.rule.static, reads))
    size = out.detach().abs().view(line.count, line.width, -1)
    for w, numbers in enumerate(out.view_as(size).unbind(1) if out.requires_grad else []):
        slopes = torch.autograd.grad(numbers.sum(), moved, retain_graph=True, allow_unused=True)
        for k, slope in zip(floats, slopes, strict=True):
            if slope is not None:
                size[:, w] += (slope.abs() * sizes[k]).view(line.count, -1, slope.shape[-1]).sum(1)
    return out.detach(), size.view_as(out)


@dataclass(frozen=True)
class _Stretches:
    """Between kinks and beyond the outermost; ``[K + 1, E]`` middles and half lengths."""

    kinks: Tensor
    origin: Tensor
    unit: Tensor

    @property
    def points(self) -> Tensor:
        """Both ends and the middle of every stretch, ``[3 (K + 1), E]``."""
        return torch.cat([self.origin - self.unit, self.origin, self.origin + self.unit])

    def fit(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Coefficients a, b, c of the stretches, from values at the points and their sizes."""
        low, middle, high = values.chunk(3)
        a, b = 0.5 * (high + low) - middle, 0.5 * (high - low)
        size = torch.stack(sizes.chunk(3)).amax(0)
        least = ROUNDING * torch.finfo(values.dtype).eps * size
        a, b = (torch.where(x.abs() > least, x, 0.0) for x in (a, b))
        return a, b, middle

    def roots(self, values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Where the polynomials of the stretches are zero inside of them, infinite where they are
        not, and their slopes there: ``[2 (K + 1), E]`` both."""
        a, b, c = self.fit(values, sizes)
        slack = torch.finfo(values.dtype).eps ** 0.5
        spread = (b.square() - 4 * a * c).sqrt()  # not a number without a root
        q = -0.5 * (b + torch.where(b < 0, -spread, spread))
        v = torch.stack([q / a, c / q])
        inner = v.abs() <= 1 + slack
        inner[:, 0] |= v[:, 0] < 0
        inner[:, -1] |= v[:, -1] > 0
        u = self.origin + self.unit * v
        found = torch.where(inner & u.isfinite(), u, torch.inf)
        return found.flatten(0, 1), ((2 * a * v + b) / self.unit).flatten(0, 1)


def _stretches(kinks: Tensor) -> _Stretches:
    """Around kinks; infinite ones are put beyond the others, where nothing bends."""
    finite = torch.where(kinks.isfinite(), kinks, 0.0)
    size = finite.abs().amax(0) if len(kinks) else kinks.new_zeros(kinks.shape[1])
    span = (finite.amax(0) - finite.amin(0)) if len(kinks) else size
    # neither lost beside the kinks nor far from their scale
    step = torch.maximum(span, 1e-2 * (1 + size))
    last = torch.where(kinks.isfinite(), kinks, -torch.inf).amax(0) if len(kinks) else size
    last = torch.where(last.isfinite(), last, 0.0)
    further = kinks.isinf().cumsum(0)
    kinks = torch.where(kinks.isfinite(), kinks, last + step * further)
    if not len(kinks):
        return _Stretches(kinks, size[None], step[None] + 1)
    low = torch.cat([kinks[:1] - 2 * step, kinks])
    high = torch.cat([kinks, kinks[-1:] + 2 * step])
    return _Stretches(kinks, 0.5 * (low + high), 0.5 * (high - low))


def _united(some: Tensor, others: Tensor) -> Tensor:
    """Both, ascending, once each; as few rows as hold the finite ones."""
    every = torch.cat([some, others]).sort(0).values
    if not len(every):
        return every
    near = torch.finfo(every.dtype).eps ** 0.5 * (1 + every.abs())
    again = torch.zeros_like(every, dtype=torch.bool)
    again[1:] = (every[1:] - every[:-1]) <= near[1:]
    every = torch.where(again, torch.inf, every).sort(0).values
    return every[: int(every.isfinite().sum(0).max())]
