"""Write compiled steps as the source of one Python function.

A step read from a table of steps would pay, at every call, for what other steps need: reads of
several buffers, casts, blocks that broadcast. All that is known beforehand, so it is decided
once, and what is left of a step is a line such as ``b7 = abs(b6)``. A function's text is its
attribute ``source``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor

from pyrograph.trace.rules.pointwise import replay_pointwise
from pyrograph.trace.rules.slots import SLOT
from pyrograph.trace.tape import Rule


@dataclass(eq=False)
class Gather:
    """Rows of one buffer: all (no start, no index), a range, or an index."""

    buffer: int
    start: int | None = None
    stop: int | None = None
    index: Tensor | None = None

    @property
    def place(self) -> slice | Tensor:
        """Of the rows, on the host: where what is known of buffers is kept."""
        return slice(self.start, self.stop) if self.index is None else self.index.cpu()

    def rows(self, buffer: Tensor) -> Tensor:
        """Of the buffer."""
        if self.index is not None:
            return buffer.index_select(0, self.index)
        return buffer[self.start : self.stop]


@dataclass(eq=False)
class Read:
    """One operand of one compiled step, assembled as ``[count, *core, S]``."""

    shape: tuple[int, ...]  # count or 1, then core
    dtype: torch.dtype
    constant: Tensor | None = None  # [count or 1, *core, 1], or the constant numbers of a mixture
    gathers: list[Gather] = field(default_factory=list)
    order: Tensor | None = None  # how the concatenated parts are to be arranged

    @property
    def num_rows(self) -> int:
        """Blocks in it: all of the step's, or 1 that they share."""
        return self.shape[0] if self.gathers else self.constant.shape[0]

    @property
    def is_single(self) -> bool:
        """One buffer's numbers in the order in which they are gathered, nothing else."""
        return len(self.gathers) == 1 and self.constant is None and self.order is None

    def assemble(self, *gathered: Tensor) -> Tensor:
        """Numbers of several buffers and constants, put in their places."""
        parts = [g.to(self.dtype) for g in gathered]
        if self.constant is not None:
            parts.append(self.constant)
        counts = [p.shape[1] for p in parts]
        samples = max(counts) if all(counts) else 0  # what no sample changes has 1
        flat = torch.cat([p.expand(-1, samples) for p in parts])
        flat = flat.index_select(0, self.order) if self.order is not None else flat
        return flat.reshape(*self.shape, samples)


@dataclass(eq=False)
class Line:
    """One compiled step: the rule, its reads, and which buffers are dead after it."""

    rule: Rule
    reads: list[Read]
    buffer: int
    count: int
    width: int
    dtype: torch.dtype
    free: list[int] = field(default_factory=list)

    def settle(self, out: Tensor) -> Tensor:
        """A replayed step as its buffer, ``[count * width, S]``."""
        out = out.to(self.dtype)
        if out.shape[0] != self.count:
            out = out.expand(self.count, *out.shape[1:])
        return out.reshape(self.count * self.width, out.shape[-1])


class _Writer:
    """Lines of a function, and the objects that they name."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.names: dict[str, Any] = {}
        self.dtypes: dict[int, torch.dtype] = {}

    def name(self, thing: Any) -> str:
        """How the text refers to an object."""
        if thing is None or isinstance(thing, bool | int):
            return repr(thing)
        name = f"c{len(self.names)}"
        self.names[name] = thing
        return name

    def gathered(self, gather: Gather) -> str:
        source = f"b{gather.buffer}"
        if gather.index is not None:
            return f"{source}.index_select(0, {self.name(gather.index)})"
        if gather.start is None:
            return source
        return f"{source}.narrow(0, {gather.start}, {gather.stop - gather.start})"

    def read(self, read: Read) -> str:
        if not read.gathers:
            return self.name(read.constant)
        if not read.is_single:
            parts = ", ".join(self.gathered(g) for g in read.gathers)
            return f"{self.name(read.assemble)}({parts})"
        only = read.gathers[0]
        text = self.gathered(only)
        if self.dtypes.get(only.buffer) != read.dtype:
            text += f".to({self.name(read.dtype)})"
        if len(read.shape) > 1:
            shape = ", ".join(map(str, read.shape))
            text += f".reshape({shape}, b{only.buffer}.shape[1])"
        return text

    def leaf_dtypes(self, num_leaves: int, reads: list[Read]) -> None:
        """Leaves may come in any dtype: cast once, to the one they are read in."""
        for read in reads:
            for gather in read.gathers:
                leaf = gather.buffer
                if leaf < num_leaves and leaf not in self.dtypes:
                    self.dtypes[leaf] = read.dtype
                    dtype = self.name(read.dtype)
                    self.text.append(
                        f"if b{leaf}.dtype is not {dtype}: b{leaf} = b{leaf}.to({dtype})"
                    )

    def line(self, line: Line) -> None:
        rule, reads = line.rule, [self.read(r) for r in line.reads]
        if rule.replay is replay_pointwise and _fits(line):
            template, options = rule.static
            queue = iter(reads)
            given = [next(queue) if a is SLOT else self.name(a) for a in template]
            given += [f"{k}={next(queue) if v is SLOT else self.name(v)}" for k, v in options]
            text = f"{self.name(_binding(rule.func))}({', '.join(given)})"
        else:
            call = f"{self.name(rule.replay)}({self.name(rule.func)}, {self.name(rule.static)}"
            text = f"{self.name(line.settle)}({call}, [{', '.join(reads)}]))"
        self.text.append(f"b{line.buffer} = {text}")
        self.dtypes[line.buffer] = line.dtype
        if line.free:
            self.text.append("del " + ", ".join(f"b{buffer}" for buffer in line.free))


def _binding(operation: Any) -> Callable[..., Tensor]:
    """The generated function ``torch.sub`` is ``aten.sub``, and called in half the time."""
    function = getattr(torch, operation._schema.name.removeprefix("aten::"), None)
    return function if isinstance(function, BuiltinFunctionType) else operation


def _fits(line: Line) -> bool:
    """Whether a pointwise line's result is its buffer as it stands (tried on no numbers)."""
    if any(len(read.shape) > 1 for read in line.reads):
        return False
    if all(read.num_rows < line.count for read in line.reads):
        return False
    empty = [torch.empty(0, 0, dtype=read.dtype, device="cpu") for read in line.reads]
    queue = iter(empty)
    template, options = line.rule.static
    out = _binding(line.rule.func)(
        *(next(queue) if a is SLOT else a for a in template),
        **{k: next(queue) if v is SLOT else v for k, v in options},
    )
    return isinstance(out, Tensor) and out.dtype is line.dtype


def write_function(
    num_leaves: int, lines: list[Line], output: Read, total: bool = False
) -> Callable[..., Tensor]:
    """A function of leaf buffers ``[m_k, S]``, one argument each.

    It returns the output read, ``[len(output), S]``, or the sum of what it gathers, ``[S]``.
    """
    writer = _Writer()
    writer.leaf_dtypes(num_leaves, [r for line in lines for r in line.reads] + [output])
    for line in lines:
        writer.line(line)
    if total:
        zeros, dtype = writer.name(torch.zeros), writer.name(output.dtype)
        writer.text.append(f"total = {zeros}(1, dtype={dtype}, device=b0.device)")
        for gather in output.gathers:
            writer.text.append(f"total = total + {writer.gathered(gather)}.sum(0)")
        result = "total"
    else:
        result = writer.read(output)
    arguments = ", ".join(f"b{k}" for k in range(num_leaves))
    body = "".join(f"    {text}\n" for text in (*writer.text, f"return {result}"))
    source = f"def local({arguments}):\n{body}"
    scope = writer.names
    exec(compile(source, "<compiled local function>", "exec"), scope)
    scope["local"].source = source
    return scope["local"]
