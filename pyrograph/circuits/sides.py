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
from pyrograph.circuits.leaves import HALF_LOG_2PI
from pyrograph.circuits.mixing import Mixing
from pyrograph.circuits.regions import Regions, Rows, arranged

#: Share of the range of exponents that numbers may take up.
MODERATE = 0.25


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
                    _, key = key.unique(return_inverse=True)
                number, inverse = key.unique(return_inverse=True)
                first = torch.empty_like(number)
                first[inverse] = torch.arange(len(inverse), device=first.device)
                index.append([own[part][first] for part in parts])
            count.append(int(inverse.max()) + 1)
            own.append(inverse)
        return Patterns(count, index, value, own[-1])


@dataclass(frozen=True, eq=False)
class Leaf:
    """The inputs of one variable under each pattern.

    Shapes:
        table: ``[n, P, c]`` of a discrete variable, else None.
        special: ``[n, P, c]`` of its Stein measure, else None.
        mass, loc, variance: ``[n, P]`` of a real one.
    """

    table: Tensor | None = None
    special: Tensor | None = None
    mass: Tensor | None = None
    loc: Tensor | None = None
    variance: Tensor | None = None


class Side(ABC):
    """One of the sides of an expectation.

    Args:
        regions: of all sides together.
        rows: its units by regions.
        weights: linear, of its sums.
        patterns: of its evidence.

    Attributes:
        stein: whether its leaves carry a second, signed measure.
        log_scale: of what its numbers were divided by beforehand, see :func:`moderate`.
    """

    stein = False
    log_scale: Tensor | float = 0.0

    def __init__(self, regions: Regions, rows: list[Rows], weights: Tensor, patterns: Patterns):
        self.regions, self.rows, self.patterns = regions, rows, patterns
        self._leaves: dict[int, Leaf] = {}
        weights = torch.cat([weights, weights.new_zeros(1)])
        self.mixing = [Mixing(region, weights) for region in rows]
        self.below = [torch.as_tensor(region.below, device=weights.device) for region in rows]

    @abstractmethod
    def make_leaf(self, r: int) -> Leaf:
        """Of a region of one variable."""

    def leaf(self, r: int) -> Leaf:
        """The same, kept."""
        if r not in self._leaves:
            self._leaves[r] = self.make_leaf(r)
        return self._leaves[r]

    @cached_property
    def scaled(self) -> tuple[list[Tensor], Tensor, Tensor]:
        """Numbers that keep the values in range.

        Returns:
            per region a factor ``[P]`` that makes the largest mass of its units 1; the root's mass
            ``[P]`` under these factors; the log of the product of all factors ``[P]``.
        """
        factors: list[Tensor] = []
        masses: list[Tensor] = []
        logs: list[Tensor] = []
        for r, parts in enumerate(self.regions.parts):
            if not parts:
                leaf = self.leaf(r)
                mass = leaf.mass if leaf.table is None else leaf.table.sum(2)
                log = torch.zeros(self.patterns.count[r], dtype=mass.dtype, device=mass.device)
            else:
                index = self.patterns.index[r]
                mass = math.prod(
                    masses[part][self.below[r][:, k]][:, index[k]] for k, part in enumerate(parts)
                )
                log = sum(logs[part][index[k]] for k, part in enumerate(parts))
            mass = self.mixing[r](mass, 0)
            largest = mass.detach().amax(0)
            factor = torch.where(largest > 0, largest, 1.0)
            factors.append(1 / factor)
            masses.append(mass / factor)
            logs.append(log + factor.log())
        return factors, masses[-1][0], logs[-1] + self.log_scale

    @property
    def log_mass(self) -> Tensor:
        """``[N]``, of every point's evidence."""
        _, mass, log = self.scaled
        return (mass.log() + log)[self.patterns.point]


def moderate(circuit: Circuit) -> tuple[Tensor, Tensor, Tensor | float]:
    """``log_weights`` and ``log_table`` whose exponentials are in range, and the log of what the
    circuit's values were divided by.

    They are the circuit's own unless one is extreme, such as the log Z of a compiled program with
    many observations.
    """
    log_weights, log_table = circuit.log_weights, circuit.log_table
    numbers = torch.cat([log_weights.detach(), log_table.detach().flatten()])
    size = torch.where(numbers.isfinite(), numbers.abs(), 0.0)
    if not len(size) or float(size.amax()) < MODERATE * math.log(torch.finfo(size.dtype).max):
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
        log_weights, log_table, self.log_scale = moderate(circuit)
        self._table = log_table.exp()
        device = circuit.log_weights.device
        patterns = (
            Patterns.none(regions, device) if points is None else Patterns.of(points, regions)
        )
        rows = arranged(circuit.units, regions)
        super().__init__(regions, rows, log_weights.exp(), patterns)

    def at(self, points: Tensor) -> CircuitSide:
        """The same under other evidence."""
        other = copy(self)
        other.patterns, other._leaves = Patterns.of(points, self.regions), {}
        other.__dict__.pop("scaled", None)
        return other

    def make_leaf(self, r: int) -> Leaf:
        """Of a region of one variable."""
        inputs = torch.as_tensor(self.rows[r].inputs, device=self.circuit.loc.device)
        value = self.patterns.value[r]
        card = self.circuit.cards[self.regions.scopes[r].bit_length() - 1]
        missing = value.isnan()
        if card is None:
            return self._gaussian(inputs, value, missing)
        table = self._table[inputs, :card].unsqueeze(1)
        state = torch.arange(card, device=value.device)
        given = value.unsqueeze(1) == state  # [P, c]
        kept = table * (given | missing.unsqueeze(1))
        if not self.stein:
            return Leaf(kept)
        # x moves to the state before it; from there the ratio p(next x) / p(x) is taken off
        at = table * given
        after = table.roll(-1, 2) * given
        return Leaf(kept, at.roll(-1, 2) - after)

    def _gaussian(self, inputs: Tensor, value: Tensor, missing: Tensor) -> Leaf:
        loc = self.circuit.loc[inputs].unsqueeze(1)
        scale = self.circuit.scale[inputs].unsqueeze(1)
        at = torch.where(missing, 0.0, value).to(loc.dtype)
        density = torch.exp(-0.5 * ((at - loc) / scale) ** 2 - HALF_LOG_2PI) / scale
        one = torch.ones((), dtype=loc.dtype, device=loc.device)
        return Leaf(
            mass=torch.where(missing, one, density),
            loc=torch.where(missing, loc, at),
            variance=torch.where(missing, scale**2, 0 * one),
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
        self.cards, self.dtype = cards, dtype
        one = np.zeros(1, np.int64)
        rows = [
            Rows(one[: not parts], np.zeros((int(bool(parts)), len(parts)), np.int64), [], one)
            for parts in regions.parts
        ]
        no_sums = torch.zeros(0, dtype=dtype, device=points.device)
        super().__init__(regions, rows, no_sums, Patterns.of(points, regions))

    def make_leaf(self, r: int) -> Leaf:
        value = self.patterns.value[r]
        card = self.cards[self.regions.scopes[r].bit_length() - 1]
        if card is not None:
            given = value.unsqueeze(1) == torch.arange(card, device=value.device)
            return Leaf(given.to(self.dtype).unsqueeze(0))
        at = value.to(self.dtype).unsqueeze(0)
        return Leaf(mass=torch.ones_like(at), loc=at, variance=torch.zeros_like(at))


def sizes(sides: Sequence[Side]) -> list[int]:
    """Numbers that every region holds for each pair of patterns."""
    rows = zip(*(side.rows for side in sides), strict=True)
    return [math.prod(len(r.inputs) + len(r.below) for r in region) for region in rows]


def largest_size(sides: Sequence[Side]) -> int:
    """:func:`sizes` of the widest region."""
    return max(sizes(sides))
