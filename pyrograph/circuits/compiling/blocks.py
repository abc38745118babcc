"""Circuits of discrete variables made of whole arrays of units at once, as compilers write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.structure.leaves import Domain
from pyrograph.circuits.structure.units import INPUT, PRODUCT, SUM, Units


@dataclass(frozen=True, eq=False)
class _Block:
    """Units made at once, of numbers ``first``, ``first + 1``, ...

    Attributes:
        start, child: as in :class:`Units`, from 0; ``start`` has one number more than there are
            units.
        numbers: log tables ``[n, c]`` of inputs, log weights of sums.
    """

    kind: int
    first: int
    start: np.ndarray
    child: np.ndarray
    numbers: np.ndarray | None = None
    var: int = -1

    def __len__(self) -> int:
        return len(self.start) - 1


@dataclass(eq=False)
class Blocks:
    """Blocks so far; the methods that add one give the number of its first unit."""

    blocks: list[_Block] = field(default_factory=list)
    size: int = 0

    def _add(self, kind: int, start: np.ndarray, child: np.ndarray, numbers=None, var=-1) -> int:
        self.blocks.append(_Block(kind, self.size, start, child, numbers, var))
        self.size += len(start) - 1
        return self.blocks[-1].first

    def inputs(self, v: int, log_table: np.ndarray) -> int:
        start = np.zeros(len(log_table) + 1, np.int64)
        return self._add(INPUT, start, np.zeros(0, np.int64), log_table, v)

    def products(self, children: np.ndarray) -> int:
        count, width = children.shape
        return self._add(PRODUCT, np.arange(count + 1) * width, children.reshape(-1))

    def sums(self, start: np.ndarray, children: np.ndarray, log_weights: np.ndarray) -> int:
        return self._add(SUM, start, children, log_weights)

    def kept(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of every block the units that the last one reads, and their edges, as masks."""
        used = np.zeros(self.size, bool)
        used[-1] = True
        keep = []
        for block in reversed(self.blocks):
            mine = used[block.first : block.first + len(block)]
            edges = np.repeat(mine, np.diff(block.start))
            used[block.child[edges]] = True
            keep.append((mine, edges))
        keep.reverse()
        return keep

    def num_inputs(self) -> int:
        """Of the circuit."""
        pairs = zip(self.blocks, self.kept(), strict=True)
        return sum(int(mine.sum()) for block, (mine, _) in pairs if block.kind == INPUT)

    def circuit(self, cards: Sequence[int]) -> Circuit:
        """All blocks, without units that nothing reads."""
        keep = self.kept()
        number = np.cumsum(np.concatenate([mine for mine, _ in keep])) - 1
        width = max(cards)
        kind, var, fan_in, child, weights, log_table = [], [], [], [], [], []
        for block, (mine, edges) in zip(self.blocks, keep, strict=True):
            kind.append(np.full(mine.sum(), block.kind, np.int8))
            var.append(np.full(mine.sum(), block.var))
            fan_in.append(np.diff(block.start)[mine])
            child.append(number[block.child[edges]])
            if block.kind == SUM:
                weights.append(block.numbers[edges])
            elif block.kind == INPUT:
                padded = np.full((int(mine.sum()), width), -np.inf)
                padded[:, : block.numbers.shape[1]] = block.numbers[mine]
                log_table.append(padded)
        kinds = np.concatenate(kind)
        variables = np.concatenate(var)
        start = np.r_[0, np.concatenate(fan_in).cumsum()]
        units = Units(kinds, variables, start, np.concatenate(child))
        table = torch.from_numpy(np.concatenate(log_table))
        nan = table.new_full((len(table),), torch.nan)
        return Circuit(
            units,
            Domain(cards, variables[kinds == INPUT]),
            torch.from_numpy(np.concatenate(weights)),
            table,
            nan,
            nan.clone(),
        )
