"""Which leaves, and which blocks of which steps, a set of numbers needs.

Demands are propagated backwards from the wanted numbers; the leaves they reach *are* the scope,
exact to the element. With private rows every wanted number asks for its own copy of everything.
Cost: one pass over the demanded numbers per step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.errors import ScopeBudgetError
from pyrograph.trace.distinct import distinct, distinct_with_places
from pyrograph.trace.tape import Tape

LEAVES = -1
#: Numbers that all blocks of a step may read for a set of numbers, some 8 GB on the way.
MAX_DEMANDED = 128_000_000


@dataclass(eq=False)
class Request:
    """Blocks asked of one step, as tokens ``row * count + block``; found at ``positions``."""

    tokens: Tensor
    positions: Tensor | None = None  # None: exactly the step's list, in order


@dataclass
class Piece:
    """A part of a read: where its numbers come from and where they go."""

    source: int  # position of the step, or LEAVES
    target: Tensor | None  # positions in the flat read; None: all of them
    request: Request | None
    within: Tensor | None  # which of a block's numbers, None when it has one
    leaf: Tensor | None = None  # for LEAVES: row and leaf
    row: Tensor | None = None


def _is_increasing(tokens: Tensor) -> bool:
    return tokens.numel() < 2 or bool((tokens[1:] > tokens[:-1]).all())


class Demand:
    """Everything a set of numbers needs, found by one backward pass.

    Args:
        place: where in the program the numbers of a row come from, for messages.

    Raises:
        ScopeBudgetError: they read more than :data:`MAX_DEMANDED` numbers in one step.
    """

    def __init__(
        self,
        tape: Tape,
        ids: Tensor,
        rows: Tensor,
        place: Callable[[int], str] = lambda row: "the program",
    ) -> None:
        self.tape, self._place = tape, place
        self.leaf_rows: list[Tensor] = []
        self.leaf_ids: list[Tensor] = []
        self._requests: dict[int, list[Request]] = {}
        self.blocks: dict[int, Tensor] = {}
        self.rows: dict[int, Tensor] = {}
        self.reads: dict[int, list[list[Piece]]] = {}
        self.output = self._ask(ids, rows)
        for k in range(len(tape.steps) - 1, -1, -1):
            if k in self._requests:
                self._visit(k)

    def _ask(self, ids: Tensor, rows: Tensor) -> list[Piece]:
        """Where the numbers ``ids`` of ``rows`` come from; registers the requests."""
        tape, pieces = self.tape, []
        if ids.numel() == 0:
            return pieces
        low, high = int(ids.min()), int(ids.max())
        if high < 0:
            parts = [(LEAVES, None)]
        elif low > 0:
            first, last = tape.step_of(torch.tensor([low, high], device="cpu")).tolist()
            parts = [(first, None)] if first == last else self._parts(ids)
        else:
            parts = self._parts(ids)
        for source, target in parts:
            part_ids = ids if target is None else ids[target]
            part_rows = rows if target is None else rows[target]
            if source == LEAVES:
                leaf = -1 - part_ids
                self.leaf_ids.append(leaf)
                self.leaf_rows.append(part_rows)
                pieces.append(Piece(LEAVES, target, None, None, leaf, part_rows))
                continue
            step = tape.steps[source]
            block = part_ids - step.first
            within = None
            if step.width > 1:
                within = block % step.width
                block = torch.div(block, step.width, rounding_mode="floor")
            request = Request(part_rows * step.count + block)
            known = self._requests.setdefault(source, [])
            for other in known:
                if torch.equal(other.tokens, request.tokens):
                    request = other
                    break
            else:
                known.append(request)
            pieces.append(Piece(source, target, request, within))
        return pieces

    def _parts(self, ids: Tensor) -> list[tuple[int, Tensor | None]]:
        source = torch.where(ids < 0, LEAVES, self.tape.step_of(ids))
        source = torch.where(ids == 0, LEAVES - 1, source)
        kinds = distinct(source).tolist()
        if kinds == [LEAVES - 1]:
            return []
        if len(kinds) == 1:
            return [(kinds[0], None)]
        return [(k, (source == k).nonzero().squeeze(1)) for k in kinds if k != LEAVES - 1]

    def _visit(self, k: int) -> None:
        """Merge the requests made of step k and pass them on to what it reads."""
        step, requests = self.tape.steps[k], self._requests[k]
        if len(requests) == 1 and _is_increasing(requests[0].tokens):
            tokens = requests[0].tokens
        else:
            tokens, inverse = distinct_with_places(torch.cat([r.tokens for r in requests]))
            start = 0
            for r in requests:
                positions = inverse[start : start + len(r.tokens)]
                start += len(r.tokens)
                if len(positions) != len(tokens) or not _is_increasing(positions):
                    r.positions = positions
        row = torch.div(tokens, step.count, rounding_mode="floor")
        block = tokens - row * step.count
        if len(block) == step.count and _is_increasing(block):
            block = None  # all of them, in order
        self.blocks[k], self.rows[k] = block, row
        reads = []
        for operand in step.operands:
            if operand.ids is None:
                reads.append([])
                continue
            ids = operand.ids if block is None else operand.ids[block]
            per_block = ids[0].numel() if len(ids) else 1
            if len(row) * per_block > MAX_DEMANDED:
                raise ScopeBudgetError(
                    f"{self._place(int(row.mode().values))}: {len(row):,} numbers that factors "
                    f"need read {per_block:,} each, over the budget of {MAX_DEMANDED:,} "
                    "(pyrograph.trace.demand.MAX_DEMANDED). Every factor reads nearly all latents: "
                    "give it fewer, or raise the budget where memory allows."
                )
            spread = row if per_block == 1 else row.repeat_interleave(per_block)
            reads.append(self._ask(ids.reshape(-1), spread))
        self.reads[k] = reads

    def leaf_pairs(self) -> tuple[Tensor, Tensor]:
        """All (row, leaf) demands, unordered, with repeats."""
        if not self.leaf_ids:
            empty = torch.zeros(0, dtype=torch.int64, device="cpu")
            return empty, empty
        return torch.cat(self.leaf_rows), torch.cat(self.leaf_ids)


def scopes(
    tape: Tape,
    ids: Tensor,
    node_of_leaf: Tensor,
    place: Callable[[int], str] = lambda row: "the program",
) -> tuple[Tensor, Tensor]:
    """The nodes each number depends on.

    Args:
        place: where in the program a number comes from, for messages.

    Returns:
        CSR ``(ptr [len(ids) + 1], nodes)``, nodes ascending within a row.
    """
    num_nodes = int(node_of_leaf.max()) + 1 if len(node_of_leaf) else 1
    every = torch.arange(len(ids), device="cpu")
    rows, leaves = Demand(tape, ids, every, place).leaf_pairs()
    pairs = distinct(rows * num_nodes + node_of_leaf[leaves])
    row = torch.div(pairs, num_nodes, rounding_mode="floor")
    ptr = torch.zeros(len(ids) + 1, dtype=torch.int64, device="cpu")
    ptr[1:] = torch.bincount(row, minlength=len(ids)).cumsum(0)
    return ptr, pairs - row * num_nodes
