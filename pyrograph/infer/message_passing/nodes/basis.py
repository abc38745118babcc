"""What factors read of their nodes, v = B x: some of a node's numbers, or combinations of them.

A Gaussian process is one node of as many numbers as there are points, and a factor on one point
reads one of them: to look its moments up, or to add a site there, takes no matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import apply

#: Numbers of the blocks that are spread over nodes at once.
CHUNK = 2**22


@dataclass(frozen=True)
class Entries:
    """Some of the numbers themselves.

    Attributes:
        columns: ``[E, r]``, different ones for each factor; width: of a node, d.
    """

    columns: Tensor
    width: int

    def part(self, which: Tensor) -> Entries:
        """Of some factors."""
        return Entries(self.columns[which], self.width)

    def rows(self, like: Tensor) -> Tensor:
        """B, ``[E, r, d]``."""
        return torch.nn.functional.one_hot(self.columns, self.width).to(like)

    def of(self, x: Tensor) -> Tensor:
        """v ``[*batch, E, r]`` of ``[*batch, E, d]``."""
        return x.gather(-1, self.columns.expand(*x.shape[:-2], -1, -1))

    def times(self, matrix: Tensor) -> Tensor:
        """B M, ``[*batch, E, r, k]`` of ``[*batch, E, d, k]``."""
        index = self.columns[..., None].expand(*matrix.shape[:-3], -1, -1, matrix.shape[-1])
        return matrix.gather(-2, index)

    def moments(self, belief: Gaussian, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``[E, r]`` and covariance of v, of nodes in ``rows [E]`` of a batch ``[V]``."""
        across = self.columns[:, :, None], self.columns[:, None, :]
        mean = belief.mean[rows[:, None], self.columns]
        return mean, belief.covariance[(rows[:, None, None], *across)]

    def added(self, total: Gaussian, rows: Tensor, site: Gaussian) -> Gaussian:
        """A batch ``[V]`` times functions of v of its ``rows``, batch ``[E]``."""
        place = rows[:, None] * self.width + self.columns
        cell = (place * self.width)[:, :, None] + self.columns[:, None, :]
        return Gaussian(
            _added_at(total.precision, cell, site.precision),
            _added_at(total.shift, place, site.shift),
        )


def _added_at(total: Tensor, place: Tensor, value: Tensor) -> Tensor:
    flat = total.reshape(-1).index_add(0, place.reshape(-1), value.reshape(-1))
    return flat.view(total.shape)


@dataclass(frozen=True)
class Combinations:
    """Combinations of the numbers.

    Attributes:
        matrix: B, ``[E, r, d]``.
    """

    matrix: Tensor

    def part(self, which: Tensor) -> Combinations:
        """Of some factors."""
        return Combinations(self.matrix[which])

    def rows(self, like: Tensor) -> Tensor:
        """B, ``[E, r, d]``."""
        return self.matrix.to(like)

    def of(self, x: Tensor) -> Tensor:
        """v ``[*batch, E, r]`` of ``[*batch, E, d]``."""
        return apply(self.matrix, x)

    def times(self, matrix: Tensor) -> Tensor:
        """B M, ``[*batch, E, r, k]`` of ``[*batch, E, d, k]``."""
        return self.matrix @ matrix

    def moments(self, belief: Gaussian, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``[E, r]`` and covariance of v, of nodes in ``rows [E]`` of a batch ``[V]``."""
        if len(belief.shift) > 1:
            covariance = self.matrix @ belief.covariance[rows] @ self.matrix.mT
            return self.of(belief.mean[rows]), covariance
        count, r, d = self.matrix.shape  # all about one node
        mean = self.matrix @ belief.mean[0]
        spread = (self.matrix.reshape(-1, d) @ belief.covariance[0]).view(count, r, d)
        if r == 1:
            return mean, (spread * self.matrix).sum(2, keepdim=True)
        return mean, spread @ self.matrix.mT

    def added(self, total: Gaussian, rows: Tensor, site: Gaussian) -> Gaussian:
        """A batch ``[V]`` times functions of v of its ``rows``, batch ``[E]``."""
        count, r, d = self.matrix.shape
        weighted = site.precision @ self.matrix  # [E, r, d]
        pull = site.shift.unsqueeze(-1) * self.matrix
        if len(total.shift) == 1:  # all about one node: two matrix products
            return Gaussian(
                total.precision
                + weighted.reshape(count * r, d).mT @ self.matrix.reshape(count * r, d),
                total.shift + pull.sum((0, 1)),
            )
        precision, shift = total.precision, total.shift.index_add(0, rows, pull.sum(1))
        chunk = max(1, CHUNK // (d * d))
        parts = zip(rows.split(chunk), self.matrix.split(chunk), weighted.split(chunk), strict=True)
        for row, b, w in parts:
            precision = precision.index_add(0, row, b.mT @ w)
        return Gaussian(precision, shift)


#: None where factors read all numbers of their nodes as they are.
Basis = Entries | Combinations | None


def part_of(basis: Basis, which: Tensor) -> Basis:
    """The same of some factors."""
    return None if basis is None else basis.part(which)


def seen(belief: Gaussian, rows: Tensor, basis: Basis) -> Gaussian:
    """Beliefs of v = B x for every factor, proportional: batch ``[E]``, dimension r.

    Args:
        belief: of all nodes of a family.
        rows: ``[E]``; basis: of ``[E]``, None for v = x.
    """
    if basis is None:
        if isinstance(belief, Gaussian) and len(belief.shift) < len(rows):
            _ = belief.mean  # kept: moments of every node and not of every factor
        return belief[rows]
    if len(rows) < len(belief.shift):  # no moments of nodes that are not asked for
        belief, rows = belief[rows], torch.arange(len(rows), device=rows.device)
    return Gaussian.from_moments(*basis.moments(belief, rows))
