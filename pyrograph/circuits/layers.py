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

from pyrograph.circuits.units import INPUT, PRODUCT, Units


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
        values = _log(torch.where(low, 1.0, total)) + row + shift
        if bool(low.any()):
            own = []
            for g, m, b in zip(*(i.split(PIECE) for i in low.nonzero(as_tuple=True)), strict=True):
                own.append(log_sum_exp(x[g, :, b] + w[g, m]))
            values = values.index_put(low.nonzero(as_tuple=True), torch.cat(own))
        return values.flatten(0, 1)

    def highest(self, values: Sequence[Tensor], weights: Tensor) -> Tensor:
        x, w = self.reads(values), weights[self.edges]
        return (x.unsqueeze(1) + w.unsqueeze(3)).amax(2).flatten(0, 1)


def _log(total: Tensor) -> Tensor:
    """Logarithm whose derivative at 0 is 0."""
    positive = total > 0
    return torch.where(positive, torch.where(positive, total, 1.0).log(), -torch.inf)


def log_sum_exp(x: Tensor) -> Tensor:
    """Over dimension 1; its derivative is 0 where all are -inf."""
    shift = x.detach().amax(1, keepdim=True).clamp_min(torch.finfo(x.dtype).min)
    return _log((x - shift).exp().sum(1)) + shift.squeeze(1)


#: Sums taken one by one at once.
PIECE = 2**16
#: A block pays where it saves gathers; smaller ones are taken one by one.
SMALLEST_BLOCK = 2


class Layers:
    """The order of evaluation of a structure.

    Attributes:
        position: ``[N]``, the row of each unit when all layers are concatenated.
    """

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
        by_depth: dict[int, list[int]] = defaultdict(list)
        for n in np.flatnonzero(units.kind != INPUT).tolist():
            by_depth[int(depth[n])].append(n)
        for level in sorted(by_depth):
            row = 0
            operations = []
            for operation, members in self._operations(units, by_depth[level], edge_of_sum):
                self._row[members] = row + np.arange(len(members))
                row += len(members)
                operations.append(operation)
            self.layers.append(operations)
        offsets = np.concatenate([[0], self._sizes.cumsum()])
        self.position = torch.as_tensor(offsets[depth] + self._row, device=device)

    def _operations(self, units: Units, members: Sequence[int], edge_of_sum: np.ndarray):
        products: dict[int, list[int]] = defaultdict(list)
        same: dict[bytes, list[int]] = defaultdict(list)
        for n in members:
            if units.kind[n] == PRODUCT:
                products[len(units.children(n))].append(n)
            else:
                same[units.children(n).tobytes()].append(n)
        for group in products.values():
            yield _Products(self._reads(np.stack([units.children(n) for n in group]))), group
        blocks: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
        single: dict[int, list[int]] = defaultdict(list)
        for group in same.values():
            width = len(units.children(group[0]))
            if len(group) >= SMALLEST_BLOCK and width > 1:
                blocks[len(group), width].append(group)
            else:
                single[1 << (width - 1).bit_length()] += group
        for groups in blocks.values():
            reads = self._reads(np.stack([units.children(g[0]) for g in groups]))
            edges = np.array(
                [[edge_of_sum[units.start[n] : units.start[n + 1]] for n in g] for g in groups]
            )
            every = [n for g in groups for n in g]
            yield _Blocks(reads, torch.as_tensor(edges, device=self.device)), every
        for width, group in single.items():
            children = np.zeros((len(group), width), np.int64)
            edges = np.full((len(group), width), self._none, np.int64)
            for row, n in enumerate(group):
                below = units.children(n)
                children[row, : len(below)] = below
                children[row, len(below) :] = below[0]
                edges[row, : len(below)] = edge_of_sum[units.start[n] : units.start[n + 1]]
            yield _Sums(self._reads(children), torch.as_tensor(edges, device=self.device)), group

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
        weights = torch.cat([log_weights, none]).to(leaves.dtype)
        values = [leaves]
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
