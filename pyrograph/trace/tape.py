"""The tape: what a program computed from its latents, element by element.

Every latent number has an *id*: ids -1, -2, ... are the leaves (elements of latent sites),
ids 1, 2, ... are numbers computed from them, and 0 stands for a constant. A :class:`Step`
is ``count`` like blocks of one operation; block ``b`` reads row ``b`` of every operand and
yields ``width`` numbers with ids ``first + b * width + (0 .. width - 1)``.

Operations are replayed on tensors laid out ``[count, *core, S]``: blocks first, then the
block's own axes, then S independent evaluations, so that gathers copy contiguous rows.

:func:`merge` batches steps of one kind that do not wait for each other, whichever
statements they come from: a loop over 500 sites becomes a few steps of 500 blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

#: Steps of this many numbers stay alone: stacking would save little and copy much.
LARGE_STEP = 2048


class Rule(NamedTuple):
    """How to recompute a block: ``replay(func, static, operands)``. Hashable, so rules compare."""

    replay: Callable[..., Tensor]
    func: Any
    static: tuple = ()

    def __reduce__(self) -> tuple:
        func = self.func
        if isinstance(func, OpOverload):  # pickled by name: torch does not pickle it
            return _rule_of_operation, (self.replay, func.name(), self.static)
        return Rule, tuple(self)


def _rule_of_operation(replay: Callable[..., Tensor], name: str, static: tuple) -> Rule:
    """The rule whose operation is ``name``, as ``aten::add.Tensor``."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet)
    return Rule(replay, getattr(found, overload or "default"), static)


class Operand(NamedTuple):
    """What the blocks of a step read: ids where latent, values where constant.

    Shapes:
        ids: ``[count, *core]`` int64, 0 where constant; None when nothing is latent.
        values: ``[count, *core]``, or ``[1, *core]`` when all blocks read the same; None when
            everything is latent.
        pool: the values are one table ``[1, size]`` that all blocks look up, and the next
            operand holds positions in it.

    While recording, ids in sequence may be a ``range`` and one number may stand for ``[1]``
    values: a loop's many tiny steps then cost no tensor each. :func:`merge` makes tensors.
    """

    ids: Tensor | range | None
    values: Tensor | float | None
    dtype: torch.dtype
    pool: bool = False

    @property
    def core(self) -> tuple[int, ...]:
        """Shape of what one block reads."""
        known = self.values if self.ids is None else self.ids
        return tuple(known.shape[1:]) if isinstance(known, Tensor) else ()


@dataclass(slots=True, eq=False)
class Step:
    """``count`` blocks of one operation; see the module's text."""

    rule: Rule
    first: int
    count: int
    width: int
    operands: tuple[Operand, ...]
    level: int
    dtype: torch.dtype

    def key(self) -> tuple:
        """Steps of equal key can be stacked into one."""
        cores = tuple((o.core, o.dtype, o.ids is None) for o in self.operands if not o.pool)
        return (self.level, self.rule, self.width, self.dtype, cores)


@dataclass(eq=False)
class Tape:
    """Steps in an order in which each reads only leaves and earlier steps."""

    steps: list[Step]
    starts: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._index()

    def _index(self) -> None:
        self.starts = torch.tensor([s.first for s in self.steps], dtype=torch.int64, device="cpu")

    @property
    def next_id(self) -> int:
        if not self.steps:
            return 1
        last = self.steps[-1]
        return last.first + last.count * last.width

    def append(
        self, rule: Rule, width: int, operands: tuple[Operand, ...], dtype: torch.dtype
    ) -> Tensor:
        """Add a step behind all others; returns the ids of its numbers, ``[count * width]``."""
        count = max((o.values if o.ids is None else o.ids).shape[0] for o in operands)
        first = self.next_id
        level = 1 + max((s.level for s in self.steps), default=0)
        self.steps.append(Step(rule, first, count, width, operands, level, dtype))
        self._index()
        return torch.arange(first, first + count * width, device="cpu")

    def step_of(self, ids: Tensor) -> Tensor:
        """Position of the step that yields each id (all ids positive)."""
        return torch.searchsorted(self.starts, ids.contiguous(), right=True) - 1


def _same(a: Tensor | float, b: Tensor | float) -> bool:
    if a is b:
        return True
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b
    if a.requires_grad or b.requires_grad:  # equal numbers with different derivatives
        return False
    return a.shape == b.shape and torch.equal(a, b)


def _stack_ids(parts: list[Operand], counts: list[int]) -> Tensor:
    """Ids of all parts, ``[sum(counts), *core]``."""
    if all(isinstance(p.ids, range) for p in parts):
        start = torch.tensor([p.ids.start for p in parts], device="cpu")
        step = torch.tensor([p.ids.step for p in parts], device="cpu")
        if len(counts) == sum(counts):
            return start
        count = torch.tensor(counts, device="cpu")
        first = count.cumsum(0) - count
        offset = torch.arange(int(count.sum()), device="cpu") - first.repeat_interleave(count)
        return start.repeat_interleave(count) + step.repeat_interleave(count) * offset
    tensors = []
    for p in parts:
        if isinstance(p.ids, range):
            tensors.append(torch.arange(p.ids.start, p.ids.stop, p.ids.step, device="cpu"))
        else:
            tensors.append(p.ids)
    return torch.cat(tensors)


def _stack_values(parts: list[Operand], counts: list[int]) -> Tensor | None:
    """Values of all parts, or of one where all are the same and uniform."""
    head = parts[0]
    if all(p.values is None for p in parts):
        return None
    if all(p.values is not None and not isinstance(p.values, Tensor) for p in parts):
        numbers = [p.values for p in parts]
        if all(v == numbers[0] for v in numbers):
            return torch.tensor(numbers[:1], dtype=head.dtype, device="cpu")
        values = torch.tensor(numbers, dtype=head.dtype, device="cpu")
        return (
            values
            if len(counts) == sum(counts)
            else values.repeat_interleave(torch.tensor(counts, device="cpu"))
        )
    uniform = isinstance(head.values, Tensor) and head.values.shape[0] == 1 and head.ids is None
    if uniform and all(_same(p.values, head.values) for p in parts[1:]):
        return head.values
    core = head.core
    tensors = []
    for p, n in zip(parts, counts, strict=True):
        if isinstance(p.values, Tensor):
            v = p.values.to(head.dtype)
        else:  # a number keeps its digits: by way of a tensor of the default dtype it would not
            v = torch.tensor(p.values or 0, dtype=head.dtype, device="cpu")
        tensors.append(v.expand(n, *core))
    return torch.cat(tensors)


def stack_operands(parts: list[Operand], counts: list[int]) -> tuple[Operand, Tensor | None]:
    """One operand out of many; for pools also how far each part's positions move."""
    head = parts[0]
    if head.pool:
        if all(_same(p.values, head.values) for p in parts[1:]):
            return head, None
        sizes = torch.tensor([p.values.shape[1] for p in parts], device="cpu")
        pool = torch.cat([p.values for p in parts], 1)
        return head._replace(values=pool), sizes.cumsum(0) - sizes
    ids = None if head.ids is None else _stack_ids(parts, counts)
    return Operand(ids, _stack_values(parts, counts), head.dtype), None


def merge(steps: list[Step]) -> tuple[Tape, Callable[[Tensor], Tensor]]:
    """Stack steps of equal key; returns the tape and a map from old ids to new ones."""
    groups: dict[tuple, list[int]] = {}
    for k, step in enumerate(steps):
        alone = step.count * step.width >= LARGE_STEP
        groups.setdefault((k,) if alone else step.key(), []).append(k)
    members = sorted(groups.values(), key=lambda ks: steps[ks[0]].level)

    starts = torch.tensor([s.first for s in steps], dtype=torch.int64, device="cpu")
    sizes = [s.count * s.width for s in steps]
    new_first = [0] * len(steps)
    free = 1
    for ks in members:
        for k in ks:
            new_first[k] = free
            free += sizes[k]
    shift = torch.tensor(new_first, dtype=torch.int64, device="cpu") - starts
    unmoved = not bool(shift.any())

    def renumber(ids: Tensor) -> Tensor:
        if unmoved or not steps:
            return ids
        owner = (torch.searchsorted(starts, ids.contiguous(), right=True) - 1).clamp_(min=0)
        return torch.where(ids > 0, ids + shift[owner], ids)

    merged = []
    for ks in members:
        group = [steps[k] for k in ks]
        counts = [s.count for s in group]
        operands: list[Operand] = []
        move = None
        for parts in zip(*(s.operands for s in group), strict=True):
            operand, next_move = stack_operands(list(parts), counts)
            if move is not None:
                move = torch.repeat_interleave(move, torch.tensor(counts, device="cpu"))
                operand = operand._replace(values=operand.values.expand(len(move)) + move)
            if operand.ids is not None:
                operand = operand._replace(ids=renumber(operand.ids))
            operands.append(operand)
            move = next_move
        head = group[0]
        merged.append(
            Step(
                head.rule,
                new_first[ks[0]],
                sum(counts),
                head.width,
                tuple(operands),
                head.level,
                head.dtype,
            )
        )
    return Tape(merged), renumber
