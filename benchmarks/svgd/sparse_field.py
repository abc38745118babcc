"""The grid field of the paper at any size: the arrays of :mod:`gaussian_field`, kept sparse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from gaussian_field import FLOOR, REACH
from scipy.sparse import coo_array
from scipy.sparse.linalg import splu
from torch import Tensor


@dataclass(frozen=True)
class SparseField:
    """``linear`` b and ``diagonal`` of A ``[d]``, ``edges`` ``[E, 2]``, ``weight`` A_ij ``[E]``."""

    linear: Tensor
    diagonal: Tensor
    edges: Tensor
    weight: Tensor

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What :func:`gaussian_field.program` takes."""
        return self.linear, self.diagonal, self.edges, self.weight

    def matrix(self) -> Tensor:
        """A as a sparse CSR tensor."""
        (i, j), dim = self.edges.t(), len(self.linear)
        nodes = torch.arange(dim)
        index = torch.stack([torch.cat([i, j, nodes]), torch.cat([j, i, nodes])])
        values = torch.cat([self.weight, self.weight, self.diagonal])
        return torch.sparse_coo_tensor(index, values, (dim, dim)).to_sparse_csr()

    def closed_neighbourhoods(self) -> Tensor:
        """``[d, c]`` node indices, the node first, padded with d."""
        (i, j), dim = self.edges.t(), len(self.linear)
        owner, other = torch.cat([i, j]), torch.cat([j, i])
        order = owner.argsort(stable=True)
        owner, other = owner[order], other[order]
        degree = torch.bincount(owner, minlength=dim)
        position = torch.arange(len(owner)) - (degree.cumsum(0) - degree)[owner]
        scopes = torch.full((dim, 1 + int(degree.max())), dim)
        scopes[:, 0] = torch.arange(dim)
        scopes[owner, 1 + position] = other
        return scopes

    @cached_property
    def mean(self) -> Tensor:
        """A^-1 b, by a sparse factorisation."""
        a = self.matrix().to_sparse_coo().coalesce()
        sparse = coo_array((a.values().numpy(), a.indices().numpy()), shape=a.shape)
        return torch.from_numpy(splu(sparse.tocsc()).solve(self.linear.numpy()))

    @cached_property
    def variance(self) -> Tensor:
        """Diagonal of A^-1; dense, for some thousands of nodes at most."""
        return torch.linalg.inv(self.matrix().to_dense()).diagonal()


def grid_field(side: int, seed: int = 0) -> SparseField:
    """The field on a ``side x side`` grid, symmetrised by averaging."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.arange(side * side).view(side, side)
    right = torch.stack([at[:, :-1].flatten(), at[:, 1:].flatten()], 1)
    edges = torch.cat([right, torch.stack([at[:-1].flatten(), at[1:].flatten()], 1)])
    draws = torch.rand(2, len(edges), generator=generator, dtype=torch.float64)
    weight = REACH * (2 * draws - 1).mean(0)
    linear = torch.randn(side * side, generator=generator, dtype=torch.float64)
    size = weight.abs()
    diagonal = torch.full_like(linear, FLOOR)
    diagonal.index_add_(0, edges[:, 0], size).index_add_(0, edges[:, 1], size)
    return SparseField(linear, diagonal, edges, weight)
