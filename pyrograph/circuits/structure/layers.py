"""Evaluation of a circuit, layer by layer, in log space.

    log product(x) = sum_c log c(x),      log sum(x) = log sum_c w_c exp(log c(x))

Units of one depth are evaluated together. Products with the same number of children are one gather
and one sum. Sums that read the same children are a block: their weights form a matrix, and blocks
of one shape are one batched matrix product, which is what tensorised circuits consist of. Sums with
children of their own are one gather and one logsumexp. O(number of edges) for each point.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyrograph.circuits.structure.rows import equal_rows
from pyrograph.circuits.structure.units import INPUT, PRODUCT, Units
from pyrograph.graph.devices import at_once


@dataclass(frozen=True, eq=False)
class _Reads:
    """Where children lie: layers, and rows of their concatenation ``[G, k]``."""

    layers: tuple[int, ...]
    rows: Tensor

    def __call__(self, values: Sequence[Tensor]) -> Tensor:
        """``[G, k, B]``."""
        source = [values[layer] for layer in self.layers]
        joined = source[0] if len(source) == 1 else torch.cat(source)
        return joined[self.rows]


@dataclass(frozen=True, eq=False)
class _Products:
    reads: _Reads

    def __call__(self, values: Sequence[Tensor], weights: Tensor) -> Tensor:
        return self.reads(values).sum(1)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums with children of their own; ``edges [G, k]`` into the weights, the last of which, of
    edges that only fill up, is -inf."""

    reads: _Reads
    edges: Tensor

    def __call__(self, values: Sequence[Tensor], weights: Tensor) -> Tensor:
        return log_sum_exp(self.reads(values) + weights[self.edges].unsqueeze(2))

    def highest(self, values: Sequence[Tensor], weights: Tensor) -> Tensor:
        return (self.reads(values) + weights[self.edges].unsqueeze(2)).amax(1)


@dataclass(frozen=True, eq=False)
class _Blocks:
    """Sums of the same children: ``edges [G, m, k]``."""

    reads: _Reads
    edges: Tensor

    def __call__(self, values: Sequence[Tensor], weights: Tensor) -> Tensor:
        x, w = self.reads(values), weights[self.edges]
        shift = x.detach().amax(1, keepdim=True).clamp_min(torch.finfo(x.dtype).min)
        row = w.detach().amax(2, keepdim=True).clamp_min(torch.finfo(x.dtype).min)
        total = torch.bmm((w - row).exp(), (x - shift).exp())
        # where the highest weight and the highest child are far apart, the scaled sum underflows
        low = total < torch.finfo(x.dtype).tiny / torch.finfo(x.dtype).eps
        values = differentiable_log(torch.where(low, 1.0, total)) + row + shift
        if bool(low.any()):
            own = []
            places = low.nonzero(as_tuple=True)
            size = max(1, at_once(PIECE, low.device) // x.shape[1])
            for g, m, b in zip(*(i.split(size) for i in places), strict=True):
                own.append(log_sum_exp(x[g, :, b] + w[g, m]))
            values = values.index_put(places, torch.cat(own))
        return values.flatten(0, 1)

    def highest(self, values: Sequence[Tensor], weights: Tensor) -> Tensor:
        x, w = self.reads(values), weights[self.edges]
        return (x.unsqueeze(1) + w.unsqueeze(3)).amax(2).flatten(0, 1)


def differentiable_log(total: Tensor) -> Tensor:
    """Logarithm whose derivative at 0 is 0."""
    positive = total > 0
    return torch.where(positive, torch.where(positive, total, 1.0).log(), -torch.inf)


def log_sum_exp(x: Tensor) -> Tensor:
    """Over dimension 1; its derivative is 0 where all are -inf."""
    shift = x.detach().amax(1, keepdim=True).clamp_min(torch.finfo(x.dtype).min)
    return differentiable_log((x - shift).exp().sum(1)) + shift.squeeze(1)


def _edges(units: Units, group: np.ndarray, width: int) -> np.ndarray:
    """``[units, width]``, of units with as many children."""
    return units.start[group][:, None] + np.arange(width)


def _columns(rows: np.ndarray) -> np.ndarray:
    """Columns that tell rows apart: one of their bytes where there are more of them than rows."""
    if rows.shape[1] <= len(rows):
        return rows.T
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.itemsize * rows.shape[1])))
    return whole.T


#: Numbers that are added up in sums taken one by one at once.
PIECE = 2**20
#: A block pays where it saves gathers; smaller ones are taken one by one.
SMALLEST_BLOCK = 2


class Layers:
    """The order of evaluation of a structure.

    Attributes:
        position: ``[N]``, the row of each unit when all layers are concatenated.
    """

    @torch.inference_mode(False)  # what is kept has to serve autograd later on
    def __init__(self, units: Units, device: torch.device):
        depth = units.depth
        self.device = device
        #: positions of unit n: (layer, row)
        self._row = np.zeros(len(units), np.int64)
        self._layer, self._sizes = depth, np.bincount(depth)
        inputs = np.flatnonzero(units.kind == INPUT)
        self._row[inputs] = np.arange(len(inputs))
        self.layers: list[list[_Products | _Sums | _Blocks]] = [[]]
        edge_of_sum = np.full(units.num_edges, -1, np.int64)
        edge_of_sum[units.edge_is_sum] = np.arange(int(units.edge_is_sum.sum()))
        #: the index of the weight that is -inf
        self._none = int(units.edge_is_sum.sum())
        inner = np.flatnonzero(units.kind != INPUT)
        inner = inner[np.argsort(depth[inner], kind="stable")]
        ends = np.searchsorted(depth[inner], np.arange(1, len(self._sizes) + 1))
        for members_of_level in np.split(inner, ends[:-1])[1:]:
            row = 0
            operations = []
            for operation, members in self._operations(units, members_of_level, edge_of_sum):
                self._row[members] = row + np.arange(len(members))
                row += len(members)
                operations.append(operation)
            self.layers.append(operations)
        offsets = np.concatenate([[0], self._sizes.cumsum()])
        self.position = torch.as_tensor(offsets[depth] + self._row, device=device)

    def _operations(self, units: Units, members: np.ndarray, edge_of_sum: np.ndarray):
        fan_in = np.diff(units.start)[members]
        is_product = units.kind[members] == PRODUCT
        for width in np.unique(fan_in[is_product]):
            group = members[is_product & (fan_in == width)]
            yield _Products(self._reads(units.child[_edges(units, group, width)])), group
        #: units and their edges, filled up to a power of two
        single: dict[int, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
        for width in np.unique(fan_in[~is_product]):
            group = members[~is_product & (fan_in == width)]
            edges = _edges(units, group, width)
            _, same = equal_rows(_columns(units.child[edges]))
            order = np.argsort(same, kind="stable")
            group, edges = group[order], edges[order]
            count = np.bincount(same)
            repeats = np.repeat(count, count)
            alone = (repeats < SMALLEST_BLOCK) | (width == 1)
            for size in np.unique(repeats[~alone]):
                chosen = np.flatnonzero((repeats == size) & ~alone).reshape(-1, size)
                reads = self._reads(units.child[edges[chosen[:, 0]]])
                weights = torch.as_tensor(edge_of_sum[edges[chosen]], device=self.device)
                yield _Blocks(reads, weights), group[chosen.reshape(-1)]
            if alone.any():
                full = 1 << (int(width) - 1).bit_length()
                filled = np.full((int(alone.sum()), full), -1)
                filled[:, :width] = edges[alone]
                single[full].append((group[alone], filled))
        for parts in single.values():
            edges = np.concatenate([part[1] for part in parts])
            children = units.child[np.where(edges < 0, edges[:, :1], edges)]
            weights = np.where(edges < 0, self._none, edge_of_sum[edges])
            operation = _Sums(self._reads(children), torch.as_tensor(weights, device=self.device))
            yield operation, np.concatenate([part[0] for part in parts])

    def _reads(self, children: np.ndarray) -> _Reads:
        layers = np.unique(self._layer[children])
        offset = np.zeros(len(self.layers) + 1, np.int64)
        total = 0
        for layer in layers:
            offset[layer] = total
            total += int(self._sizes[layer])
        rows = offset[self._layer[children]] + self._row[children]
        return _Reads(tuple(int(k) for k in layers), torch.as_tensor(rows, device=self.device))

    def values(self, leaves: Tensor, log_weights: Tensor, highest: bool = False) -> list[Tensor]:
        """Log values of all units, by layers.

        Args:
            leaves: ``[inputs, B]`` log values of the inputs.
            log_weights: of the edges of sums, in order of edges.
            highest: take the highest weighted child in the place of sums.
        """
        none = log_weights.new_full((1,), -torch.inf)
        # logs of large size have few digits left of their differences in single precision
        weights = torch.cat([log_weights, none]).double()
        values = [leaves.double()]
        for operations in self.layers[1:]:
            rows = [
                op.highest(values, weights)
                if highest and not isinstance(op, _Products)
                else op(values, weights)
                for op in operations
            ]
            values.append(rows[0] if len(rows) == 1 else torch.cat(rows))
        return values

    def all_values(self, leaves: Tensor, log_weights: Tensor, highest: bool = False) -> Tensor:
        """``[N, B]`` in the order of units."""
        return torch.cat(self.values(leaves, log_weights, highest))[self.position]
