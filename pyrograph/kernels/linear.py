"""The local linear kernel k(x, y) = 1 + (1/|C|) sum_{j in C} z_j(x) z_j(y), z = (x - mean) / sd.

Mean and standard deviation are those of the particles, held constant. Its Stein identities are
E[s_i] = 0 and E[s_i z_j] = -[i = j] / sd_i: means, and variances and covariances within the
scope. Alone it sees nothing else of a density (of a multimodal one, say); beside a radial kernel
it corrects the spread that few particles lack. O(n |C|) a node; no pairs of particles, unless one
kernel moves many columns and they are fewer.

    phi_i(y) = mean_l s_i^l + (1/|C|) [ sum_{j in C} (mean_l s_i^l z_j^l) z_j(y) + z_i(y) / sd_i ]
"""

import torch
from torch import Tensor

from pyrograph.kernels.additive import Summable
from pyrograph.kernels.protocol import Block, SteinSums


class Linear(Summable):
    """Linear kernel on standardised coordinates of the scope; has no bandwidth."""

    num_bandwidths = 0

    def __repr__(self) -> str:
        return "Linear()"

    def bandwidths(self, block: Block) -> Tensor:
        return block.scope.new_empty(len(block.scope), 0)

    def stein(self, block: Block, h: Tensor, *, discrepancy: bool = True) -> SteinSums:
        """Direction and discrepancy of the nodes of a block, see :class:`.protocol.Kernel`."""
        n = block.own.shape[-1]
        share = 1 / block.size[:, None, None].to(block.scope.dtype)
        z = _standardised(block.scope)
        slope = _slope(block, share)
        pulled, attraction = _attraction(block.score, z, share)
        direction = pulled / n + slope * block.own
        if not discrepancy:
            return SteinSums(direction, None, None)
        # beside sum_lm s s' k: s d'k and s' dk (equal by symmetry), d d'k
        aligned = (block.score * block.own).sum(-1, keepdim=True) * slope
        total = attraction + (2 * n * aligned + n**2 * slope)[..., 0]
        norm = 1 + share * z.square().sum(1, keepdim=True)
        alone = (block.score.square() * norm).sum(-1) + (2 * aligned + n * slope)[..., 0]
        return SteinSums(direction, total.sum(1), alone.sum(1))

    def pairs(self, block: Block, h: Tensor) -> Tensor:
        """Stein kernel of every pair of particles, summed over the nodes of a block."""
        share = 1 / block.size[:, None, None].to(block.scope.dtype)
        z = _standardised(block.scope)
        slope = _slope(block, share)
        k = 1 + share * (z.transpose(1, 2) @ z)
        aligned = (block.score * block.own * slope).sum(1)
        terms = (block.score.transpose(1, 2) @ block.score) * k
        terms = terms + aligned[:, :, None] + aligned[:, None, :]
        return (terms + slope.sum(1, keepdim=True)).sum(0)


def _attraction(score: Tensor, z: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """sum_l s_i^l k(x_l, y) at every particle y, ``[B, w, n]``; sum_lm s_i^l s_i^m k, ``[B, w]``.

    k is 1 + share z'z: either all pairs of particles or all products of moved and seen columns
    are formed, whichever is less work. So neither is larger than what it is made of, also where
    one kernel moves all columns of a graph.
    """
    (_, width, n), columns = score.shape, z.shape[1]
    if n * (width + columns) < 2 * width * columns:
        pulled = score @ (1 + share * (z.transpose(1, 2) @ z))
        return pulled, (pulled * score).sum(-1)
    total = score.sum(-1, keepdim=True)
    products = score @ z.transpose(1, 2)  # sum_l s_i^l z_j^l
    squares = total.square()[..., 0] + share[..., 0] * products.square().sum(-1)
    return total + share * (products @ z), squares


def _slope(block: Block, share: Tensor) -> Tensor:
    """d_i d'_i k = 1 / (|C| sd_i^2), ``[B, w, 1]``; a coordinate on which all particles agree
    has no scale, and z = 0."""
    variance = block.own.detach().square().mean(-1, keepdim=True)
    return torch.where(variance > _smallest(variance), share / variance, 0)


def _standardised(centred: Tensor) -> Tensor:
    """Columns of unit variance; those without variance stay zero."""
    variance = centred.detach().square().mean(-1, keepdim=True)
    return centred * torch.where(variance > _smallest(variance), variance.rsqrt(), 0)


def _smallest(variance: Tensor) -> float:
    """The variance from which on particles agree: sums of its inverse over pairs of particles
    would overflow."""
    kind = torch.finfo(variance.dtype)
    return kind.tiny / kind.eps
