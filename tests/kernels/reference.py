"""Plain double loops over particles and columns, straight from the equations.

Only ``torch.autograd`` on a scalar kernel function is used: no formula of a kernel derivative
is written down here, and nothing of the library's kernel code is called.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyrograph.kernels import IMQ, RBF, Layout, Linear, Own, SteinOperator, Sum


def layout_of(widths: list[int], edges: list[tuple[int, int]]) -> Layout:
    """Columns and sorted CSR neighbours of a graph given by its edges."""
    open_blankets = [set() for _ in widths]
    for i, j in edges:
        open_blankets[i].add(j)
        open_blankets[j].add(i)
    degrees = [len(b) for b in open_blankets]
    return Layout(
        columns=torch.tensor(np.cumsum([0, *widths])),
        pointer=torch.tensor(np.cumsum([0, *degrees])),
        index=torch.tensor([j for b in open_blankets for j in sorted(b)], dtype=torch.long),
    )


def grid_edges(rows: int, columns: int) -> list[tuple[int, int]]:
    at = np.arange(rows * columns).reshape(rows, columns)
    right = zip(at[:, :-1].ravel().tolist(), at[:, 1:].ravel().tolist())
    down = zip(at[:-1].ravel().tolist(), at[1:].ravel().tolist())
    return [*right, *down]


def columns_of(layout: Layout, nodes: set[int]) -> list[int]:
    ends = layout.columns.tolist()
    return [c for i in sorted(nodes) for c in range(ends[i], ends[i + 1])]


def blankets(layout: Layout) -> list[set[int]]:
    """Closed blankets as sets of nodes."""
    ptr, index = layout.pointer.tolist(), layout.index.tolist()
    return [{i, *index[ptr[i] : ptr[i + 1]]} for i in range(layout.num_nodes)]


def column_scopes(layout: Layout, scopes: list[set[int]]) -> list[list[int]]:
    """For each column, the columns of its node's scope."""
    return [
        columns_of(layout, scope)
        for i, scope in enumerate(scopes)
        for _ in range(int(layout.columns[i + 1] - layout.columns[i]))
    ]


def drawn_scopes(operator: SteinOperator) -> list[tuple[float, list[list[int]]]]:
    """Weights and, for each column, the scope columns that an operator holds."""
    dim = operator.layout.dim
    out = []
    for weight, buckets in operator.scopes:
        scopes: list[list[int]] = [[] for _ in range(dim)]
        for part in buckets:
            for own, scope in zip(part.own.tolist(), part.scope.tolist()):
                for column in own:
                    assert not scopes[column], "a column is moved twice"
                    scopes[column] = sorted(c for c in scope if c != dim)
        out.append((weight, scopes))
    return out


def median_h(z: Tensor) -> float:
    """numpy's median of the distances of distinct rows of ``z``, squared."""
    n = len(z)
    if n == 1:
        return 1.0
    distances = [np.linalg.norm((z[m] - z[k]).numpy()) for k in range(n) for m in range(k)]
    return float(np.median(distances)) ** 2


def kernel_function(kernel, h: float):
    def value(a: Tensor, b: Tensor) -> Tensor:
        t = (a - b).square().sum() / h
        if isinstance(kernel, RBF):
            return torch.exp(-t)
        assert isinstance(kernel, IMQ)
        return (1 + t) ** kernel.exponent

    return value


def local_kernel(kernel, z: Tensor):
    """The kernel as a function of two points, its constants taken from the rows of ``z``."""
    if not isinstance(kernel, Linear):
        h = median_h(z) if kernel.bandwidth == "median" else kernel.bandwidth
        return kernel_function(kernel, h)
    mean, sd = z.mean(0), z.std(0, correction=0)
    scale = torch.where(sd > 0, 1 / sd, 0)
    return lambda a, b: 1 + (((a - mean) * scale) * ((b - mean) * scale)).mean()


@dataclass
class Reference:
    """phi ``[n, dim]``; the double sum of the Stein kernel and its l = m part, over columns;
    the Stein kernel of all pairs ``[n, n]``."""

    direction: Tensor
    total: float
    diagonal: float
    gram: Tensor


def own_scopes(layout: Layout) -> list[list[int]]:
    return column_scopes(layout, [{i} for i in range(layout.num_nodes)])


def double_loop(x: Tensor, score: Tensor, kernel, weighted_scopes, own=None) -> Reference:
    """``weighted_scopes`` are those of the locality, ``own`` the columns' own nodes."""
    if isinstance(kernel, Sum):
        terms = kernel.terms
    else:
        terms = [(1.0, kernel)]
    out = Reference(torch.zeros_like(x), 0.0, 0.0, torch.zeros(len(x), len(x)))
    for weight, term in terms:
        if isinstance(term, Own):
            _add(out, x, score, term.kernel, [(weight, own)])
        else:
            _add(out, x, score, term, [(weight * w, scopes) for w, scopes in weighted_scopes])
    return out


def _add(out: Reference, x: Tensor, score: Tensor, kernel, weighted_scopes) -> None:
    n, dim = x.shape
    for weight, scopes in weighted_scopes:
        for column in range(dim):
            scope, own = scopes[column], scopes[column].index(column)
            z = x[:, scope]
            k = local_kernel(kernel, z)
            for first in range(n):
                for second in range(n):
                    a, b = z[first].clone().requires_grad_(), z[second].clone().requires_grad_()
                    value = k(a, b)
                    da, db = torch.autograd.grad(value, (a, b), create_graph=True)
                    (dab,) = torch.autograd.grad(da[own], b)
                    s, t = score[first, column], score[second, column]
                    out.direction[second, column] += weight * (value * s + da[own]).item() / n
                    stein = s * t * value + s * db[own] + t * da[own] + dab[own]
                    out.total += weight * stein.item()
                    out.diagonal += weight * stein.item() * (first == second)
                    out.gram[first, second] += weight * stein.item()
