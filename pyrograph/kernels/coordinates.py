"""Coordinates in which kernels look at particles, and particles step.

    x = R z,      s_z = R^T s_x,      k(x, x') = kappa(z, z'),      phi_x = R phi_z

with R of one block per group of nodes that have the same closed Markov blanket. Such nodes enter
and leave a scope together, so a node of z has the blanket it has in x: what the graph says holds
in both, and a narrow ridge that the graph does not part, as of a regression's coefficients, becomes
round. This is a Stein direction with the matrix-valued kernel R kappa R^T.

Source: Wang, Tang, Bajaj & Liu (2019), section 4.1, for one R of all columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Coordinates:
    """A block-triangular change of coordinates.

    Args:
        blocks: columns ``[G, w]`` and roots R ``[G, w, w]``, upper triangular with a positive
            diagonal, of groups of equal width. Every column is in one group.
    """

    def __init__(self, blocks: Sequence[tuple[Tensor, Tensor]]):
        self.blocks = list(blocks)
        columns = torch.cat([own.flatten() for own, _ in self.blocks])
        self._order = columns.argsort()
        is_mixed = [torch.full_like(own, own.shape[1] > 1, dtype=torch.bool) for own, _ in blocks]
        #: ``[dim]``, whether a column shares a block with others
        self.is_mixed = torch.cat([part.flatten() for part in is_mixed])[self._order]
        self._inverses = [_inverse(root) for _, root in self.blocks]

    @property
    def roots(self) -> Tensor:
        """All of R's blocks, flat: what a saved state keeps."""
        return torch.cat([root.flatten() for _, root in self.blocks])

    def with_roots(self, roots: Tensor) -> Coordinates:
        """The same groups with other blocks, as :attr:`roots` gave them."""
        parts = roots.split([root.numel() for _, root in self.blocks])
        blocks = zip(self.blocks, parts, strict=True)
        return Coordinates([(own, part.view_as(root)) for (own, root), part in blocks])

    def inward(self, x: Tensor) -> Tensor:
        """z = R^-1 x of ``[n, dim]`` particles or directions."""
        return self._product(x, self._inverses)

    def outward(self, z: Tensor) -> Tensor:
        """x = R z."""
        return self._product(z, [root for _, root in self.blocks])

    def of_score(self, score: Tensor) -> Tensor:
        """The score with respect to z, R^T s."""
        return self._product(score, [root.mT for _, root in self.blocks])

    def _product(self, x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        rows = x.t()
        parts = [
            _times(matrix.to(x), rows[own]).flatten(0, 1)
            for (own, _), matrix in zip(self.blocks, matrices, strict=True)
        ]
        return torch.cat(parts).index_select(0, self._order).t()


def _times(matrix: Tensor, rows: Tensor) -> Tensor:
    """``[G, w, w]`` times ``[G, w, n]``."""
    return matrix * rows if matrix.shape[-1] == 1 else matrix @ rows


def _inverse(root: Tensor) -> Tensor:
    eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    return torch.linalg.solve_triangular(root, eye.expand_as(root), upper=True)
