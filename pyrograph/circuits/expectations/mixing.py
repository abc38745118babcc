"""The sums of one region of a circuit, as a contraction of one dimension.

    rows that are read = W (inputs and products of the region),

W a matrix where the weights fill one, else sums of few children each, level after level. The same
in log space, and with weights of their own for each pattern of evidence (see ``scaling``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyrograph.circuits.structure.layers import log_sum_exp
from pyrograph.circuits.structure.regions import Rows

#: Sums whose weights fill more than this share of a matrix are a matrix product.
DENSE = 0.2
#: Matrices up to this size are always a matrix product.
SMALL = 1024


@dataclass(frozen=True, eq=False)
class Plan:
    """What of a region's sums does not depend on numbers.

    Attributes:
        base: inputs and products.
        kept: rows that are read.
        levels: rows and weights of the children ``[S, width]`` of all sums.
        is_identity: there are no sums, and all rows are read in order.
        is_dense: the sums are to be a matrix.
        block: first of the weights, if they fill a matrix ``[kept, base]`` as they stand.
    """

    base: int
    kept: Tensor
    levels: list[tuple[Tensor, Tensor]]
    is_identity: bool
    is_dense: bool
    block: int | None


def plan(rows: Rows, device: torch.device) -> Plan:
    """Made once for a structure, and kept as long as it."""
    if device not in rows.plans:
        rows.plans[device] = _plan(rows, device)
    return rows.plans[device]


@torch.inference_mode(False)  # what is kept has to serve autograd later on
def _plan(rows: Rows, device: torch.device) -> Plan:
    base = len(rows.inputs) + len(rows.below)
    count = sum(len(level.unit) for level in rows.levels)
    edges = sum(level.source.size for level in rows.levels)
    is_dense = max(SMALL, edges / DENSE) >= max(len(rows.kept), count) * base
    block = None
    if len(rows.levels) == 1 and np.array_equal(rows.kept, base + np.arange(count)):
        (level,) = rows.levels
        first = int(level.weight[0, 0])
        in_order = np.arange(first, first + level.weight.size).reshape(level.weight.shape)
        reads_all = level.source.shape[1] == base and (level.source == np.arange(base)).all()
        if first >= 0 and reads_all and np.array_equal(level.weight, in_order):
            block = first
    return Plan(
        base,
        torch.as_tensor(rows.kept, device=device),
        [
            (torch.as_tensor(k.source, device=device), torch.as_tensor(k.weight, device=device))
            for k in rows.levels
        ],
        not rows.levels and np.array_equal(rows.kept, np.arange(base)),
        bool(rows.levels) and is_dense,
        block,
    )


class Mixing:
    """The sums of a region: from rows of inputs and products to the rows that are read.

    Args:
        weights: of all sums of the circuit, 0 at the end.

    Attributes:
        plan: of the region.
    """

    def __init__(self, rows: Rows, weights: Tensor):
        self.plan = found = plan(rows, weights.device)
        self.kept, self.is_identity = found.kept, found.is_identity
        self.levels: list[tuple[Tensor, Tensor]] = []
        self.has_sums, self.dense = bool(found.levels), None
        if found.block is not None and found.is_dense:
            size = len(found.kept) * found.base
            self.dense = weights.narrow(0, found.block, size).view(-1, found.base)
            return
        self.levels = [(source, weights[index]) for source, index in found.levels]
        if found.is_dense:
            self.dense = self._matrix(found.base)

    def _matrix(self, base: int) -> Tensor:
        """``[kept, base]``, what every row that is read is made of."""
        source, weight = self.levels[0]
        sums = weight.new_zeros(len(source), base).scatter_add(1, source, weight)
        for source, weight in self.levels[1:]:
            # of the level's children, those that are sums, and those that are not
            is_base = source < base
            own = weight.new_zeros(len(source), base).scatter_add(
                1, torch.where(is_base, source, 0), torch.where(is_base, weight, 0.0)
            )
            before = weight.new_zeros(len(source), len(sums)).scatter_add(
                1, torch.where(is_base, 0, source - base), torch.where(is_base, 0.0, weight)
            )
            sums = torch.cat([sums, own + before @ sums])
        is_base = self.kept < base
        one = torch.nn.functional.one_hot(self.kept[is_base], base).to(sums)
        rows = sums.new_zeros(len(self.kept), base).index_put((is_base,), one)
        return rows.index_put((~is_base,), sums[self.kept[~is_base] - base])

    def _by_levels(self, x: Tensor) -> Tensor:
        """``[base, R]`` to ``[kept, R]``."""
        for source, weight in self.levels:
            x = torch.cat([x, torch.bmm(weight.unsqueeze(1), x[source]).squeeze(1)])
        return x[self.kept]

    def __call__(self, x: Tensor, dim: int) -> Tensor:
        """Mixes dimension ``dim``."""
        if self.is_identity:
            return x
        if not self.has_sums:
            return x.index_select(dim, self.kept)
        first = x.movedim(dim, 0)
        flat = first.reshape(len(first), -1)
        mixed = self._by_levels(flat) if self.dense is None else self.dense @ flat
        return mixed.reshape(len(mixed), *first.shape[1:]).movedim(0, dim)


def log_by_levels(x: Tensor, of: Plan, log_weights: Tensor) -> Tensor:
    """Logs of inputs and products ``[base, P]`` to those of these and all sums.

    Args:
        log_weights: of all sums of the circuit, -inf at the end.
    """
    for source, index in of.levels:
        x = torch.cat([x, log_sum_exp(x[source] + log_weights[index].unsqueeze(2))])
    return x


def pattern_weights(rows: Tensor, of: Plan, log_weights: Tensor) -> Iterator[Tensor]:
    """Weights ``[P, S, width]`` of each level, for children and sums divided by exp of ``rows``
    (of :func:`log_by_levels`): w_c v_c / v, 0 of what is impossible."""
    first = of.base
    for source, index in of.levels:
        total = rows[first : first + len(source)]
        total = torch.where(total == -torch.inf, 0.0, total)
        logs = rows[source] + log_weights[index].unsqueeze(2) - total.unsqueeze(1)
        yield logs.exp().movedim(2, 0)
        first += len(source)


def by_pattern(x: Tensor, dim: int, of: Plan, weights: Sequence[Tensor]) -> Tensor:
    """Mixes dimension ``dim`` of ``[n, m, l, P, Q]`` with weights for each pattern, which are
    dimension 3 + ``dim``."""
    if of.is_identity:
        return x
    own = x.movedim((3 + dim, dim), (0, 1))
    rows = own.flatten(2)  # [P, base, R]
    for (source, _), weight in zip(of.levels, weights, strict=True):
        if of.is_dense:
            index = source.expand(len(rows), -1, -1)
            matrix = weight.new_zeros(len(rows), len(source), rows.shape[1])
            sums = matrix.scatter_add(2, index, weight) @ rows
        else:
            sums = (weight.unsqueeze(2) @ rows[:, source]).squeeze(2)
        rows = torch.cat([rows, sums], 1)
    mixed = rows[:, of.kept].unflatten(2, own.shape[2:])
    return mixed.movedim((0, 1), (3 + dim, dim))
