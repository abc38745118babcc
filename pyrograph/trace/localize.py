"""Compile the slice of some numbers into straight-line code on leaf buffers.

The steps that a demand touches, replayed forwards, *are* the local function. With private rows
every wanted number has its own copy of everything it needs (each factor at its own values of its
scope); without, all share one copy (the program's log density). Where all blocks of a step read
the same numbers they are read once and broadcast; where they read a buffer in order, nothing is
gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pyrograph.trace.demand import LEAVES, Demand, Piece
from pyrograph.trace.distinct import distinct
from pyrograph.trace.rules.slots import Call
from pyrograph.trace.source import Gather, Line, Read, write_function
from pyrograph.trace.tape import Operand, Tape

aten = torch.ops.aten

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

#: Operations that hold numbers within others.
_BOUNDING = {
    aten.clamp,
    aten.clamp_min,
    aten.clamp_max,
    aten.maximum,
    aten.minimum,
    aten.fmax,
    aten.fmin,
    aten.hardtanh,
    aten.threshold,
}


def _is_narrower(a: torch.dtype, b: torch.dtype) -> bool:
    return torch.finfo(a).bits < torch.finfo(b).bits


@lru_cache
def _limits(old: torch.dtype, new: torch.dtype, is_bound: bool) -> dict[float, float]:
    """What programs in one dtype write for its limits, and what they would write in another.

    Only limits that the other dtype could not tell from 0, from infinity or, as bounds, from 1:
    ``log1p(-p.clamp(tiny, 1 - eps))`` would lose what it is clamped for. Elsewhere a number next
    to 1 may be a sum of probabilities, rounded. eps itself is a small number like any other.
    """
    a, b = torch.finfo(old), torch.finfo(new)
    pairs = {m: b.max for m in (torch.finfo(d).max for d in _FLOATS) if b.max < m <= a.max}
    if a.tiny < b.tiny:
        pairs[a.tiny] = b.tiny
    if is_bound and a.eps < b.eps:
        pairs.update({1 - k * a.eps: 1 - k * b.eps for k in (1, 0.5)})  # 0.5: next below 1
    return pairs | {-k: -v for k, v in pairs.items()}


def _gather(buffer: int, positions: Tensor | None, size: int) -> Gather:
    if positions is None:
        return Gather(buffer)
    n = len(positions)
    start = int(positions[0])
    if int(positions[-1]) == start + n - 1 and (
        n == 1 or bool((positions == torch.arange(start, start + n, device="cpu")).all())
    ):
        return Gather(buffer) if n == size else Gather(buffer, start, start + n)
    return Gather(buffer, index=positions)


def _moved(
    t: Tensor, device: torch.device | None, dtype: torch.dtype | None, is_bound: bool = False
) -> Tensor:
    """To a device; of floating numbers also to a dtype, whose limits become those of theirs."""
    if dtype is None or dtype == t.dtype or not t.is_floating_point():
        return t.to(device=device)
    out = t.to(device=device, dtype=dtype)
    for limit, other in _limits(t.dtype, dtype, is_bound).items():
        here = t.detach() == limit
        if bool(here.any()):
            out = torch.where(here.to(out.device), other, out)
    return out


def _options(
    static: Any,
    device: torch.device | None,
    dtype: torch.dtype | None,
    old: torch.dtype,
    is_bound: bool,
) -> Any:
    """A step's own options: constants move, floating dtypes are this one, limits of the ``old``
    one are its limits, and other numbers beyond it infinite."""

    def moved(leaf: Any) -> Any:
        return _options(leaf, device, dtype, old, is_bound)

    if type(static) is tuple:
        return tuple(map(moved, static))
    if isinstance(static, Call):
        return static.map(moved)
    if isinstance(static, Tensor):
        return _moved(static, device, dtype, is_bound)
    if dtype is None:
        return static
    if isinstance(static, torch.dtype):
        return dtype if static.is_floating_point else static
    if isinstance(static, float) and math.isfinite(static):
        known = _limits(old, dtype, is_bound).get(static)
        if known is not None:
            return known
        if abs(static) > torch.finfo(dtype).max:
            return math.copysign(math.inf, static)
    return static


def _widest(line: Line) -> torch.dtype:
    """Of the floating numbers that a step reads and computes."""
    dtypes = {line.dtype, *(read.dtype for read in line.reads)}
    floats = (d for d in dtypes if d.is_floating_point)
    return max(floats, key=lambda d: torch.finfo(d).bits, default=torch.float64)


class LocalProgram:
    """Straight-line code from leaf buffers to the wanted numbers.

    Call it with a list of leaf buffers ``[m_k, S]``; returns ``[len(ids), S]``. Differentiable.

    Args:
        leaf_home: for (rows, leaves) demanded, the leaf buffer and the position in it of each.
        leaf_sizes: number of rows of every leaf buffer.
        rows: the private row of each wanted number; None shares everything.
    """

    def __init__(
        self,
        tape: Tape,
        ids: Tensor,
        values: Tensor,
        leaf_home,
        leaf_sizes: list[int],
        rows: Tensor | None = None,
    ) -> None:
        rows = torch.zeros_like(ids) if rows is None else rows
        demand = Demand(tape, ids, rows)
        self.num_outputs = len(ids)
        self._leaf_home, self.leaf_sizes = leaf_home, leaf_sizes
        self._sizes = {}
        base = len(leaf_sizes)
        self.lines: list[Line] = []
        for k in sorted(demand.reads):
            step, block = tape.steps[k], demand.blocks[k]
            count = len(demand.rows[k])
            self._sizes[base + k] = count * step.width
            reads = [
                self._compile(operand, pieces, block, count, demand)
                for operand, pieces in zip(step.operands, demand.reads[k], strict=True)
            ]
            self.lines.append(Line(step.rule, reads, base + k, count, step.width, step.dtype))
        self._recorded = [(line.rule.static, _widest(line)) for line in self.lines]
        self._device: torch.device | None = None
        self._dtype: torch.dtype | None = None
        out = Operand(ids, values if bool((ids == 0).any()) else None, values.dtype)
        self.output = self._compile(out, demand.output, None, len(ids), demand)
        del self._leaf_home
        self._plan_frees(base)
        self._values: Callable[..., Tensor] | None = None
        self._total: Callable[..., Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_values": None, "_total": None}  # written again when called

    @property
    def num_numbers(self) -> int:
        """Numbers that one evaluation computes."""
        return sum(line.count * line.width for line in self.lines)

    @property
    def num_widest(self) -> int:
        """Numbers of the widest step."""
        return max((line.count * line.width for line in self.lines), default=0)

    @property
    def num_held(self) -> int:
        """Numbers that the widest step reads or computes: of a matrix product all its terms."""
        read = (math.prod(r.shape) for line in self.lines for r in line.reads if r.gathers)
        return max(self.num_widest, max(read, default=0))

    def _compile(self, operand, pieces, block, count, demand) -> Read:
        core = tuple((operand.values if operand.ids is None else operand.ids).shape[1:])
        constant = operand.values
        if constant is not None and block is not None and constant.shape[0] > 1:
            constant = constant[block]
        if not pieces:
            if constant is not None:
                constant = constant.unsqueeze(-1)
            return Read((count, *core), operand.dtype, constant)
        ids = operand.ids if block is None else operand.ids[block]
        per_block = ids[0].numel() if len(ids) else 1
        size = count * per_block
        gathers, placed = [], []
        for p in pieces:
            for gather, target in self._locate(p, demand):
                gathers.append(gather)
                placed.append(target)
        if len(gathers) == 1 and placed[0] is None:
            return self._shrunk(Read((count, *core), operand.dtype, None, gathers), per_block)
        rest = None
        if sum(size if t is None else len(t) for t in placed) < size:
            hole = (ids.reshape(-1) == 0).nonzero().squeeze(1)
            rest = constant.expand(count, *core).reshape(-1)[hole].unsqueeze(-1)
            placed.append(hole)
        order = torch.empty(size, dtype=torch.int64, device="cpu")
        order[torch.cat(placed)] = torch.arange(size, device="cpu")
        in_place = bool((order == torch.arange(size, device="cpu")).all())
        return Read((count, *core), operand.dtype, rest, gathers, None if in_place else order)

    def _shrunk(self, read: Read, per_block: int) -> Read:
        """All blocks read the same numbers: read them once and let them broadcast."""
        index = read.gathers[0].index
        count = read.shape[0]
        if index is None or count < 2 or index[0] != index[-per_block]:
            return read
        table = index.view(count, per_block)
        if bool((table == table[0]).all()):
            gather = read.gathers[0]
            size = self._sizes.get(gather.buffer) or self.leaf_sizes[gather.buffer]
            read.gathers = [_gather(gather.buffer, table[0].clone(), size)]
            read.shape = (1, *read.shape[1:])
        return read

    def _locate(self, piece: Piece, demand: Demand):
        """Buffers and positions of a piece's numbers, and where they go in the read."""
        base = len(self.leaf_sizes)
        if piece.source == LEAVES:
            slot, position = self._leaf_home(piece.row, piece.leaf)
            target = piece.target
            for s in distinct(slot).tolist():
                here = (slot == s).nonzero().squeeze(1)
                if len(here) == len(slot):
                    yield _gather(s, position, self.leaf_sizes[s]), target
                else:
                    yield (
                        _gather(s, position[here], self.leaf_sizes[s]),
                        here if target is None else target[here],
                    )
            return
        width = demand.tape.steps[piece.source].width
        positions = piece.request.positions
        if width > 1:
            n = len(piece.request.tokens)
            positions = torch.arange(n, device="cpu") if positions is None else positions
            positions = positions * width + piece.within
        buffer = base + piece.source
        yield (
            (
                _gather(buffer, positions, self._sizes[buffer])
                if positions is not None
                else Gather(buffer)
            ),
            piece.target,
        )

    def _plan_frees(self, base: int) -> None:
        last: dict[int, int] = {}
        for n, line in enumerate(self.lines):
            for read in line.reads:
                last.update({g.buffer: n for g in read.gathers})
        keep = {g.buffer for g in self.output.gathers}
        for buffer, n in last.items():
            if buffer >= base and buffer not in keep:
                self.lines[n].free.append(buffer)

    def __call__(self, leaves: list[Tensor]) -> Tensor:
        """The wanted numbers ``[len(ids), S]``."""
        if self._values is None:
            self._values = write_function(len(self.leaf_sizes), self.lines, self.output)
        out = self._values(*leaves)
        shape = (self.num_outputs, max([leaf.shape[1] for leaf in leaves], default=1))
        return out if out.shape == shape else out.expand(shape)

    def total(self, leaves: list[Tensor]) -> Tensor:
        """Their sum ``[S]``, without gathering them first."""
        if self._total is None:
            self._total = write_function(len(self.leaf_sizes), self.lines, self.output, total=True)
        total = self._total(*leaves)
        samples = max((t.shape[1] for t in leaves), default=1)
        return total.expand(samples)

    def leaves_read(self, leaf: int) -> Tensor:
        """Rows of a leaf buffer that are read, ascending."""
        size = self.leaf_sizes[leaf]
        is_read = torch.zeros(size, dtype=torch.bool, device="cpu")
        for gather in self._gathers_of(leaf):
            is_read[gather.place] = True
        return is_read.nonzero().squeeze(1)

    def _gathers_of(self, leaf: int) -> Iterator[Gather]:
        reads = [r for line in self.lines for r in line.reads] + [self.output]
        return (g for read in reads for g in read.gathers if g.buffer == leaf)

    def compacted(self, kept: dict[int, Tensor]) -> LocalProgram:
        """The same program on leaf buffers of fewer rows.

        Args:
            kept: for some leaf buffers the rows that are left, ascending, all that are read.
        """
        place: dict[int, Tensor] = {}
        for leaf, rows in kept.items():
            place[leaf] = torch.full((self.leaf_sizes[leaf],), -1, device="cpu")
            place[leaf][rows] = torch.arange(len(rows), device="cpu")

        def moved_gather(gather: Gather) -> Gather:
            if gather.buffer not in place:
                return gather
            device = None if gather.index is None else gather.index.device
            rows = place[gather.buffer][gather.place]
            found = _gather(gather.buffer, rows, len(kept[gather.buffer]))
            found.index = None if found.index is None else found.index.to(device)
            return found

        def moved(read: Read) -> Read:
            return replace(read, gathers=[moved_gather(g) for g in read.gathers])

        out = copy(self)
        out.lines = [replace(line, reads=[moved(r) for r in line.reads]) for line in self.lines]
        out.output = moved(self.output)
        out.leaf_sizes = [
            len(kept[leaf]) if leaf in kept else size for leaf, size in enumerate(self.leaf_sizes)
        ]
        out._values = out._total = None
        return out

    def in_dtype(self, dtype: torch.dtype) -> LocalProgram:
        """The same program with all that is computed in narrower floating dtypes in this one."""
        reads = [r for line in self.lines for r in line.reads] + [self.output]
        dtypes = {line.dtype for line in self.lines} | {read.dtype for read in reads}
        if not any(d.is_floating_point and _is_narrower(d, dtype) for d in dtypes):
            return self
        out = copy(self)
        out.lines = [replace(line, reads=[replace(r) for r in line.reads]) for line in self.lines]
        out.output = replace(self.output)
        return out.to(dtype=dtype)

    def to(self, device: torch.device | None = None, dtype: torch.dtype | None = None):
        """Constants and indices to a device; floating constants to a dtype."""

        def cast(old: torch.dtype) -> torch.dtype:
            return dtype if dtype is not None and old.is_floating_point else old

        def move(read: Read, is_bound: bool = False) -> None:
            if read.constant is not None:
                read.constant = _moved(read.constant, device, dtype, is_bound)
            if read.order is not None:
                read.order = read.order.to(device=device)
            for g in read.gathers:
                g.index = None if g.index is None else g.index.to(device=device)
            read.dtype = cast(read.dtype)

        # options are made of the recorded ones: back in a wide dtype a limit is the program's own
        self._device, self._dtype = device or self._device, dtype or self._dtype
        for line, (recorded, wide) in zip(self.lines, self._recorded, strict=True):
            is_bound = getattr(line.rule.func, "overloadpacket", None) in _BOUNDING
            for read in line.reads:
                move(read, is_bound)
            static = _options(recorded, self._device, self._dtype, wide, is_bound)
            line.rule, line.dtype = line.rule._replace(static=static), cast(line.dtype)
        move(self.output)
        self._values = self._total = None
        return self
