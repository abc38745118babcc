"""A circuit ready to meet others: its units by regions, with numbers, for many pieces of evidence.

Evidence is a batch of points with missing values. Two points that agree on the variables of a
region are one *pattern* there, so a region of few variables is evaluated for few patterns however
many points there are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.expectations.mixing import Mixing
from pyrograph.circuits.expectations.scaling import LogLeaf, Scaled, is_moderate, scaled
from pyrograph.circuits.structure.leaves import HALF_LOG_2PI
from pyrograph.circuits.structure.regions import Regions, Rows, arranged


@dataclass(frozen=True, eq=False)
class Patterns:
    """What distinct evidence there is in each region.

    Attributes:
        count: per region.
        index: per region and part ``[P]``, the part's pattern of each pattern.
        value: per single variable, ``[P]``, NaN where missing.
        point: ``[N]``, the pattern of each point in the whole.
    """

    count: list[int]
    index: list[list[Tensor]]
    value: dict[int, Tensor]
    point: Tensor

    @staticmethod
    def none(regions: Regions, device: torch.device) -> Patterns:
        """Of one point without any evidence."""
        only = torch.zeros(1, dtype=torch.int64, device=device)
        nothing = torch.full((1,), torch.nan, dtype=torch.float64, device=device)
        value = {r: nothing for r, parts in enumerate(regions.parts) if not parts}
        return Patterns([1] * len(regions), [[only] * len(p) for p in regions.parts], value, only)

    @staticmethod
    def of(points: Tensor, regions: Regions) -> Patterns:
        """Of points ``[N, D]``, NaN where missing."""
        count, index, value, own = [], [], {}, []
        for r, parts in enumerate(regions.parts):
            if not parts:
                v = regions.scopes[r].bit_length() - 1
                # NaN is not equal to itself
                found, inverse = points[:, v].nan_to_num(math.inf).unique(return_inverse=True)
                value[r] = torch.where(found.isinf(), torch.nan, found)
                index.append([])
            else:
                key = own[parts[0]]
                for part in parts[1:]:
                    key = key * count[part] + own[part]
                    number, key = key.unique(return_inverse=True)
                inverse, first = key, torch.empty_like(number)
                first[inverse] = torch.arange(len(inverse), device=first.device)
                index.append([own[part][first] for part in parts])
            count.append(int(inverse.max()) + 1)
            own.append(inverse)
        return Patterns(count, index, value, own[-1])


class Side(ABC):
    """One of the sides of an expectation.

    Args:
        regions: of all sides together.
        rows: its units by regions.
        log_weights: of its sums.
        patterns: of its evidence.

    Attributes:
        stein: whether its leaves carry a second, signed measure.
        log_scale: of what its numbers were divided by beforehand, see :func:`moderate`.
        log_weights: with -inf at the end.
        dtype: of the numbers.
    """

    stein = False
    log_scale: Tensor | float = 0.0

    def __init__(self, regions: Regions, rows: list[Rows], log_weights: Tensor, patterns: Patterns):
        self.regions, self.rows, self.patterns = regions, rows, patterns
        self._leaves: dict[int, LogLeaf] = {}
        self.dtype = log_weights.dtype
        self.log_weights = torch.cat([log_weights, log_weights.new_full((1,), -torch.inf)])
        weights = self.log_weights.exp()
        self.mixing = [Mixing(region, weights) for region in rows]
        self.below = [torch.as_tensor(region.below, device=weights.device) for region in rows]

    @abstractmethod
    def make_leaf(self, r: int) -> LogLeaf:
        """Of a region of one variable."""

    def leaf(self, r: int) -> LogLeaf:
        """The same, kept."""
        if r not in self._leaves:
            self._leaves[r] = self.make_leaf(r)
        return self._leaves[r]

    @cached_property
    def scaled(self) -> Scaled:
        """Its units divided by their values."""
        return scaled(self)

    @property
    def log_mass(self) -> Tensor:
        """``[N]`` float64, of every point's evidence."""
        return self.scaled.log_mass[self.patterns.point]


def moderate(circuit: Circuit) -> tuple[Tensor, Tensor, Tensor | float]:
    """``log_weights`` and ``log_table`` for a :class:`Side`, and the log of what the circuit's
    values were divided by.

    They are the circuit's own unless one is extreme, such as the log Z of a compiled program with
    many observations.
    """
    log_weights, log_table = circuit.log_weights.double(), circuit.log_table.double()
    numbers = torch.cat([log_weights.detach(), log_table.detach().flatten()])
    if is_moderate(numbers, numbers.dtype):
        return log_weights, log_table, 0.0
    log_weights, log_table, mass = circuit.at_mass_one()
    return log_weights, log_table, torch.where(mass[-1].isfinite(), mass[-1], 0.0)


class CircuitSide(Side):
    """A circuit, under evidence.

    Args:
        circuit: smooth, decomposable, structured.
        regions: of all circuits together.
        points: evidence ``[N, D]`` (checked, NaN where missing); None for one without any.
        stein: whether leaves carry the Stein measure of their evidence.
    """

    def __init__(
        self,
        circuit: Circuit,
        regions: Regions,
        points: Tensor | None = None,
        stein: bool = False,
    ):
        self.circuit, self.stein = circuit, stein
        log_weights, self._log_table, self.log_scale = moderate(circuit)
        device = circuit.log_weights.device
        patterns = (
            Patterns.none(regions, device) if points is None else Patterns.of(points, regions)
        )
        rows = arranged(circuit.units, regions)
        super().__init__(regions, rows, log_weights, patterns)

    def at(self, points: Tensor) -> CircuitSide:
        """The same under other evidence."""
        other = copy(self)
        other.patterns, other._leaves = Patterns.of(points, self.regions), {}
        other.__dict__.pop("scaled", None)
        return other

    def make_leaf(self, r: int) -> LogLeaf:
        """Of a region of one variable."""
        inputs = torch.as_tensor(self.rows[r].inputs, device=self.circuit.loc.device)
        value = self.patterns.value[r]
        card = self.circuit.cards[self.regions.scopes[r].bit_length() - 1]
        missing = value.isnan()
        if card is None:
            return self._gaussian(inputs, value, missing)
        table = self._log_table[inputs, :card].unsqueeze(1)
        state = torch.arange(card, device=value.device)
        given = value.unsqueeze(1) == state  # [P, c]
        kept = torch.where(given | missing.unsqueeze(1), table, -torch.inf)
        if not self.stein:
            return LogLeaf(kept)
        # x moves to the state before it; from there the ratio p(next x) / p(x) is taken off
        at = torch.where(given, table, -torch.inf)
        after = torch.where(given, table.roll(-1, 2), -torch.inf)
        return LogLeaf(kept, at.roll(-1, 2), after)

    def _gaussian(self, inputs: Tensor, value: Tensor, missing: Tensor) -> LogLeaf:
        loc = self.circuit.loc[inputs].double().unsqueeze(1)
        scale = self.circuit.scale[inputs].double().unsqueeze(1)
        at = torch.where(missing, 0.0, value)
        density = -0.5 * ((at - loc) / scale) ** 2 - HALF_LOG_2PI - scale.log()
        return LogLeaf(
            density=torch.where(missing, 0.0, density),
            loc=torch.where(missing, loc, at.to(loc.dtype)),
            variance=torch.where(missing, scale**2, 0.0),
        )


class PointSide(Side):
    """Points: one unit in every region, whatever the vtree, and one pattern for each distinct part.

    Args:
        points: ``[N, D]`` without missing values (checked).
        cards: numbers of states; None of real variables.
        dtype: of the numbers.
    """

    def __init__(
        self,
        regions: Regions,
        points: Tensor,
        cards: Sequence[int | None],
        dtype: torch.dtype,
    ):
        self.cards = cards
        one = np.zeros(1, np.int64)
        rows = [
            Rows(one[: not parts], np.zeros((int(bool(parts)), len(parts)), np.int64), [], one)
            for parts in regions.parts
        ]
        no_sums = torch.zeros(0, dtype=dtype, device=points.device)
        super().__init__(regions, rows, no_sums, Patterns.of(points, regions))

    def make_leaf(self, r: int) -> LogLeaf:
        value = self.patterns.value[r]
        card = self.cards[self.regions.scopes[r].bit_length() - 1]
        if card is not None:
            given = value.unsqueeze(1) == torch.arange(card, device=value.device)
            log_table = torch.where(given, 0.0, -torch.inf).to(self.dtype)
            return LogLeaf(log_table.unsqueeze(0))
        at = value.to(self.dtype).unsqueeze(0)
        return LogLeaf(density=torch.zeros_like(at), loc=at, variance=torch.zeros_like(at))


def sizes(sides: Sequence[Side]) -> list[int]:
    """Numbers that every region holds for each pair of patterns."""
    rows = zip(*(side.rows for side in sides), strict=True)
    return [math.prod(len(r.inputs) + len(r.below) for r in region) for region in rows]


def largest_size(sides: Sequence[Side]) -> int:
    """:func:`sizes` of the widest region."""
    return max(sizes(sides))


def most_edges(side: Side) -> int:
    """Of the sums of one region."""
    return max(sum(level.source.size for level in rows.levels) for rows in side.rows)
