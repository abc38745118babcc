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

    Attributes:
        is_mixed: ``[dim]``, whether z of a column reads other columns of x.
    """

    def __init__(self, blocks: Sequence[tuple[Tensor, Tensor]]):
        self.blocks = list(blocks)
        dim = sum(own.numel() for own, _ in self.blocks)
        like = self.blocks[0][1]
        #: of columns by themselves; 1 for the others
        self._scale = like.new_ones(dim)
        self.is_mixed = torch.zeros(dim, dtype=torch.bool, device=like.device)
        self._mixing: list[tuple[Tensor, Tensor, Tensor]] = []
        for own, root in self.blocks:
            if root.shape[-1] == 1:
                self._scale[own[:, 0]] = root[:, 0, 0]
                continue
            inverse = _inverse(root)
            self._mixing.append((own, root, inverse))
            self.is_mixed[own] = inverse.triu(1).ne(0).any(-1)

    @property
    def columns(self) -> Tensor:
        """All columns, in the order of :attr:`roots`."""
        return torch.cat([own.flatten() for own, _ in self.blocks])

    @property
    def roots(self) -> Tensor:
        """All of R's blocks, flat: what a saved state keeps."""
        return torch.cat([root.flatten() for _, root in self.blocks])

    def with_roots(self, roots: Tensor) -> Coordinates:
        """The same groups with other blocks, as :attr:`roots` gave them."""
        parts = roots.split([root.numel() for _, root in self.blocks])
        blocks = zip(self.blocks, parts, strict=True)
        return Coordinates([(own, part.view_as(root)) for (own, root), part in blocks])

    @property
    def are_sound(self) -> bool:
        """Whether every root is finite, with a positive diagonal."""
        tops = [root.diagonal(dim1=-2, dim2=-1) for _, root in self.blocks]
        return all(bool((top > 0).all()) for top in tops) and bool(self.roots.isfinite().all())

    def inward(self, x: Tensor) -> Tensor:
        """z = R^-1 x of ``[n, dim]`` particles or directions."""
        out = x / self._scale.to(x)
        return self._mixed(out, x, [(own, inverse) for own, _, inverse in self._mixing])

    def outward(self, z: Tensor) -> Tensor:
        """x = R z."""
        out = z * self._scale.to(z)
        return self._mixed(out, z, [(own, root) for own, root, _ in self._mixing])

    def of_score(self, score: Tensor) -> Tensor:
        """The score with respect to z, R^T s."""
        out = score * self._scale.to(score)
        return self._mixed(out, score, [(own, root.mT) for own, root, _ in self._mixing])

    @staticmethod
    def _mixed(out: Tensor, x: Tensor, matrices: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        rows, result = x.t(), out.t()
        for own, matrix in matrices:
            product = matrix.to(x) @ rows[own]  # [G, w, n]
            result = result.index_copy(0, own.flatten(), product.flatten(0, 1))
        return result.t()


def _inverse(root: Tensor) -> Tensor:
    eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    return torch.linalg.solve_triangular(root, eye.expand_as(root), upper=True)
