"""Kernel scopes as index tensors: from closed node neighbourhoods to buckets of columns.

Nodes are sorted into buckets of equal own width and (nearly) equal scope width, so that a bucket
is a dense ``[B, c]`` index whatever the degrees are. Scope widths up to 16 columns are kept exact,
wider ones are padded by at most one eighth, and sizes that few nodes have by at most double.
Nodes whose scope is the whole graph share one kernel and are evaluated as one. Building is
O(nnz) tensor work, no loop over nodes.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

#: Nodes of a group below which it is padded to the size of the next one, see :func:`_merged`.
FEW_NODES = 64


@dataclass(frozen=True)
class Layout:
    """Where nodes live in a flat particle matrix and who their neighbours are.

    Shapes:
        columns: ``[num_nodes + 1]``; node i owns columns ``columns[i] : columns[i + 1]``.
        pointer, index: CSR of the open Markov blankets, ``[num_nodes + 1]`` and ``[nnz]``.
    """

    columns: Tensor
    pointer: Tensor
    index: Tensor

    @classmethod
    def of(cls, graph) -> "Layout":
        """The layout of anything with ``columns`` and ``neighbors`` (a FactorGraph)."""
        pointer, index = graph.neighbors
        return cls(graph.columns.cpu(), pointer.cpu(), index.cpu())

    @property
    def num_nodes(self) -> int:
        return len(self.columns) - 1

    @property
    def dim(self) -> int:
        return int(self.columns[-1])


@dataclass(frozen=True)
class Bucket:
    """Kernels evaluated together.

    Shapes:
        own: ``[B, w]`` columns moved by each kernel.
        scope: ``[B, c]`` columns each kernel looks at; the value ``dim`` is padding.
        size: ``[B]`` how many of them are not padding.
    """

    own: Tensor
    scope: Tensor
    size: Tensor

    def to(self, device: torch.device) -> "Bucket":
        return replace(
            self,
            own=self.own.to(device),
            scope=self.scope.to(device),
            size=self.size.to(device),
        )


def whole(layout: Layout) -> list[Bucket]:
    """One kernel on all columns, moving all columns."""
    columns = torch.arange(layout.dim, device="cpu")[None]
    return [Bucket(columns, columns, torch.tensor([layout.dim], device="cpu"))]


def alone(layout: Layout) -> list[Bucket]:
    """One kernel per node on the node's own columns."""
    widths = layout.columns.diff()
    nodes = [(widths == w).nonzero() for w in widths.unique().tolist() if w > 0]
    columns = [layout.columns[i] + torch.arange(int(widths[i[0]]), device="cpu") for i in nodes]
    return [
        Bucket(own, own, torch.full((len(own),), own.shape[1], device="cpu")) for own in columns
    ]


def with_self(pointer: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Closed neighbourhoods (CSR) from open ones: node i is put first in its own list."""
    degree = pointer.diff()
    nodes = torch.arange(len(degree), device="cpu")
    closed = torch.cat([pointer.new_zeros(1), (degree + 1).cumsum(0)])
    members = index.new_empty(int(closed[-1]))
    members[closed[:-1]] = nodes
    owner = torch.repeat_interleave(nodes, degree)
    members[torch.arange(len(index), device="cpu") + owner + 1] = index
    return closed, members


def bucket(layout: Layout, pointer: Tensor, members: Tensor) -> list[Bucket]:
    """Buckets of the kernels whose closed node scopes are the given CSR lists."""
    widths = layout.columns.diff()
    scope_pointer, scope_index = _node_columns(layout, pointer, members)
    size = scope_pointer.diff()
    full = (size == layout.dim) & (widths > 0)
    buckets = []
    if full.any():
        moved = torch.repeat_interleave(full, widths).nonzero()[:, 0]
        whole_scope = torch.arange(layout.dim, device="cpu")[None]
        buckets.append(Bucket(moved[None], whole_scope, torch.tensor([layout.dim], device="cpu")))
    padded = _round_up(size)
    rest = (~full & (widths > 0)).nonzero()[:, 0]
    keys, group = torch.stack([widths[rest], padded[rest]], 1).unique(dim=0, return_inverse=True)
    order = rest[group.argsort(stable=True)]
    for width, columns, start, stop in _merged(keys.tolist(), group.bincount().tolist()):
        nodes = order[start:stop]
        own = layout.columns[nodes, None] + torch.arange(width, device="cpu")
        offset = torch.arange(columns, device="cpu")
        position = (scope_pointer[nodes, None] + offset).clamp_max(len(scope_index) - 1)
        scope = scope_index[position].masked_fill(offset >= size[nodes, None], layout.dim)
        buckets.append(Bucket(own, scope, size[nodes]))
    return buckets


def _merged(keys: list[list[int]], counts: list[int]) -> list[tuple[int, int, int, int]]:
    """Runs ``(width, columns, start, stop)`` of sorted groups, where a group of few nodes is
    padded to the next size, at most the double: a pass over few nodes costs as a call."""
    runs: list[tuple[int, int, int, int]] = []
    smallest = stop = 0
    for (width, columns), number in zip(keys, counts, strict=True):
        start, stop = stop, stop + number
        if runs:
            last_width, _, last_start, last_stop = runs[-1]
            few = last_stop - last_start < FEW_NODES
            if few and last_width == width and columns <= 2 * smallest:
                runs[-1] = (width, columns, last_start, stop)
                continue
        smallest = columns
        runs.append((width, columns, start, stop))
    return runs


def _node_columns(layout: Layout, pointer: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """CSR over nodes of the columns of their scopes."""
    widths = layout.columns.diff()
    counts = widths[members]
    ends = counts.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    start = layout.columns[members] - (ends - counts)
    index = torch.repeat_interleave(start, counts) + torch.arange(total, device="cpu")
    padded_ends = torch.cat([ends.new_zeros(1), ends])
    return padded_ends[pointer], index


def _round_up(size: Tensor) -> Tensor:
    """Sizes rounded up to steps of at most one eighth; exact up to 16."""
    step = 2 ** (size.clamp_min(1).double().log2().floor().long() - 3).clamp_min(0)
    return (size + step - 1) // step * step
