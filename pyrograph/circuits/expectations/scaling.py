"""Values of units under evidence, in range however unlikely the evidence is.

The value of a unit is the mass of its evidence. All of them are found in log space, in float64; a
pass of ``expected`` then works with measures divided by these values, so that what it holds is
bounded by the kernel. There are two ways:

* :class:`Shared`: the units of a region are divided by one number, the largest of their values.
  Sums keep their weights. It serves as long as no unit is so far below another one of its region
  that products of them could underflow.
* :class:`Own`: every unit n is divided by its own value v_n, and a sum has the weights
  w_c v_c / v_n, which add up to 1, for each pattern of evidence. It serves always.

A Stein measure is a sum over variables i of measures that need not vanish with the evidence (the
state next to it may be possible). It is divided by a bound of its own, its total variation

    b(input) = |exp(plus) - exp(minus)| <= sum_x exp(plus) + exp(minus),
    b(product) = sum_k b_k prod_{j != k} v_j,      b(sum) = sum_c w_c b_c.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyrograph.circuits.expectations.mixing import by_pattern, log_by_levels, pattern_weights
from pyrograph.circuits.structure.layers import differentiable_log, log_sum_exp

if TYPE_CHECKING:
    from pyrograph.circuits.expectations.sides import Side

#: Share of the range of exponents that values of a region, and weights, may take up. A number of a
#: pass has such a factor from a unit and from a weight of both sides.
MODERATE = 0.2


def is_moderate(logs: Tensor, dtype: torch.dtype) -> bool:
    """Whether exponentials of logs are in range; those of -inf do not count."""
    if not logs.numel():
        return True
    size = finite(logs.detach()).abs().amax()
    return bool(size <= MODERATE * math.log(torch.finfo(dtype).max))


@dataclass(frozen=True, eq=False)
class Leaf:
    """The inputs of one variable under each pattern, divided by their values.

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


@dataclass(frozen=True, eq=False)
class LogLeaf:
    """The inputs of one variable under each pattern, in log space.

    Shapes:
        log_table: ``[n, P, c]`` of a discrete variable, else None.
        plus, minus: ``[n, P, c]``, its Stein measure is exp(plus) - exp(minus); else None.
        density, loc, variance: ``[n, P]`` of a real one, the first in log space.
    """

    log_table: Tensor | None = None
    plus: Tensor | None = None
    minus: Tensor | None = None
    density: Tensor | None = None
    loc: Tensor | None = None
    variance: Tensor | None = None

    @cached_property
    def logs(self) -> Tensor:
        """``[n, C, P]`` float64, of the masses and, if there are any, the bounds of the Stein
        measures."""
        if self.log_table is None:
            return self.density.double().unsqueeze(1)
        tables = [self.log_table]
        if self.plus is not None:
            tables.append(torch.cat([self.plus, self.minus], 2))
        return torch.stack([log_sum(table.double(), 2) for table in tables], 1)

    @cached_property
    def level(self) -> Tensor:
        """``[P]``, the highest of them."""
        return highest(self.logs)

    def divided(self, level: Tensor, stein_level: Tensor, dtype: torch.dtype) -> Leaf:
        """By exp of levels ``[n or 1, P]``, of the Stein measure the second one."""
        if self.log_table is None:
            return Leaf(
                mass=(self.density - level).exp().to(dtype), loc=self.loc, variance=self.variance
            )
        table = (self.log_table - level.unsqueeze(2)).exp().to(dtype)
        if self.plus is None:
            return Leaf(table)
        plus, minus = (logs - stein_level.unsqueeze(2) for logs in (self.plus, self.minus))
        return Leaf(table, (plus.exp() - minus.exp()).to(dtype))


class Scaled(ABC):
    """A side with its units divided by values.

    Logs of values are ``[n, C, P]`` float64: of the masses and, if the side has one, of the bounds
    of the Stein measure. In each region they are counted from a level of each pattern.

    Attributes:
        log_mass: ``[P]`` float64, of the root.
        scale: per region a factor ``[P]`` of its sums.
    """

    def __init__(self, side: Side):
        self.side, self.dtype = side, side.dtype
        self.scale: list[Tensor] = []
        self._level: list[Tensor] = []
        self._logs: list[Tensor] = []  # of the rows that are read
        self._spread: list[Tensor] = []  # all that a pass would hold with one scale a region
        for r in range(len(side.regions)):
            self._region(r)
        self.log_mass = self._logs[-1][0, 0] + self._level[-1] + side.log_scale

    def _region(self, r: int) -> None:
        side, parts = self.side, self.side.regions.parts[r]
        if not parts:
            leaf = side.leaf(r)
            level, logs = leaf.level, leaf.logs - leaf.level
        else:
            index = side.patterns.index[r]
            level = sum(self._level[part][index[k]] for k, part in enumerate(parts))
            below = self._below(r)
            logs = sum(x[:, :1] for x in below)
            if side.stein:
                bound = log_sum(torch.stack(moved(below), 1), 1)
                logs = torch.cat([logs, bound.unsqueeze(1)], 1)
        self._spread.append(logs.detach().flatten())
        logs = self._sums(r, logs)
        top = highest(logs)
        logs = logs - top
        self._spread.append(logs.detach().flatten())
        self._level.append(level + top)
        self._logs.append(logs)
        self.scale.append(self._scale(top))

    def _below(self, r: int) -> list[Tensor]:
        """``[products, C, P]`` of every part of a region."""
        index, below = self.side.patterns.index[r], self.side.below[r]
        parts = enumerate(self.side.regions.parts[r])
        return [self._logs[part][below[:, k]][:, :, index[k]] for k, part in parts]

    @abstractmethod
    def _sums(self, r: int, logs: Tensor) -> Tensor:
        """From logs of inputs and products to those of the rows that are read."""

    @abstractmethod
    def _scale(self, top: Tensor) -> Tensor:
        """``[P]``, for a highest value of the rows that are read."""

    @abstractmethod
    def log_excess(self, stein: bool) -> Tensor:
        """``[P]``, log of what the root's number is to be multiplied by, for a mass of 1."""

    @abstractmethod
    def leaf(self, r: int) -> Leaf:
        """Of a region of one variable."""

    @abstractmethod
    def mix(self, r: int, x: Tensor, dim: int, stein: bool) -> Tensor:
        """A region's sums, of dimension ``dim`` of ``[n, m, l, P, Q]``; its patterns are dimension
        3 + ``dim``."""

    @abstractmethod
    def shares(self, r: int) -> list[Tensor] | None:
        """Per part ``[products, P]``, its Stein measure's share in that of the products; None if
        all are 1."""


class Shared(Scaled):
    """One number for all units of a region."""

    @property
    def serves(self) -> bool:
        """Whether all values are near enough to the highest of their regions."""
        return is_moderate(torch.cat(self._spread), self.dtype)

    def _sums(self, r: int, logs: Tensor) -> Tensor:
        mixing = self.side.mixing[r]
        if mixing.is_identity:
            return logs
        return log(mixing(logs.exp().to(self.dtype), 0).double())

    def _scale(self, top: Tensor) -> Tensor:
        return top.neg().exp().to(self.dtype)

    def log_excess(self, stein: bool) -> Tensor:
        return -finite(self._logs[-1][0, 0])

    def leaf(self, r: int) -> Leaf:
        leaf = self.side.leaf(r)
        level = leaf.level.unsqueeze(0)
        return leaf.divided(level, level, self.dtype)

    def mix(self, r: int, x: Tensor, dim: int, stein: bool) -> Tensor:
        return self.side.mixing[r](x, dim)

    def shares(self, r: int) -> None:
        return None


class Own(Scaled):
    """The value of every unit, under every pattern."""

    def __init__(self, side: Side):
        self._rows: list[Tensor] = []  # of inputs, products and sums
        super().__init__(side)

    def _sums(self, r: int, logs: Tensor) -> Tensor:
        plan = self.side.mixing[r].plan
        rows = log_by_levels(logs.flatten(1), plan, self.side.log_weights)
        self._rows.append(rows.unflatten(1, logs.shape[1:]))
        return self._rows[r][plan.kept]

    def _scale(self, top: Tensor) -> Tensor:
        return torch.ones_like(top, dtype=self.dtype)

    def log_excess(self, stein: bool) -> Tensor:
        root = self._logs[-1][0]
        return root[int(stein)] - finite(root[0])

    def leaf(self, r: int) -> Leaf:
        leaf = self.side.leaf(r)
        own = finite(leaf.logs)
        return leaf.divided(own[:, 0], own[:, -1], self.dtype)

    def mix(self, r: int, x: Tensor, dim: int, stein: bool) -> Tensor:
        plan = self.side.mixing[r].plan
        weights = pattern_weights(self._rows[r][:, int(stein)], plan, self.side.log_weights)
        return by_pattern(x, dim, plan, [w.to(x.dtype) for w in weights])

    def shares(self, r: int) -> list[Tensor]:
        terms = moved(self._below(r))
        total = finite(log_sum(torch.stack(terms, 1), 1))
        return [(term - total).exp().to(self.dtype) for term in terms]


def scaled(side: Side) -> Scaled:
    """Shared where that serves, which costs less."""
    if is_moderate(side.log_weights, side.dtype):
        shared = Shared(side)
        if shared.serves:
            return shared
    return Own(side)


def moved(below: Sequence[Tensor]) -> list[Tensor]:
    """The terms ``[products, P]`` of a product's bound, from logs ``[products, 2, P]`` of its
    parts: one part's bound, and the masses of the others."""
    nothing = torch.zeros_like(below[0][:, 0])
    before, after = [nothing], [nothing]
    for k in range(len(below) - 1):
        before.append(before[-1] + below[k][:, 0])
        after.append(after[-1] + below[-1 - k][:, 0])
    return [x[:, 1] + b + a for x, b, a in zip(below, before, reversed(after), strict=True)]


def highest(logs: Tensor) -> Tensor:
    """``[P]`` of ``[n, C, P]``, 0 where nothing is possible."""
    return finite(logs.amax((0, 1)))


def finite(logs: Tensor) -> Tensor:
    """With 0 for -inf: the impossible is divided by 1."""
    return logs.nan_to_num(nan=torch.nan, posinf=torch.inf, neginf=0.0)


def log_sum(x: Tensor, dim: int) -> Tensor:
    """log sum exp, whose derivative is 0 where all are -inf."""
    return log_sum_exp(x.movedim(dim, 1)) if x.requires_grad else x.logsumexp(dim)


def log(x: Tensor) -> Tensor:
    """Logarithm whose derivative at 0 is 0."""
    return differentiable_log(x) if x.requires_grad else x.log()
