"""The Gaussian kernel k(x, y) = exp(-||x - y||^2 / h).

Strictly positive definite and light-tailed; the kernel of Graphical SVGD (eq 8). Its derivatives
are multiples of itself, so one product gives every sum of the Stein direction.
"""

import math

import torch
from torch import Tensor

from pyrograph.kernels.protocol import Block
from pyrograph.kernels.radial import Moments, Radial, spread

LOG2_E = 1 / math.log(2)


class RBF(Radial):
    """Gaussian kernel.

    Args:
        bandwidth: ``"median"`` (eq 8), ``"fast"`` or h itself.

    Raises:
        OptionError: the bandwidth is none of these.
    """

    slope_at_zero = -1.0

    def profile(self, t: Tensor, *, second: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
        """f = exp(-t), f' = -f, f'' = f."""
        f = torch.exp(-t)
        return f, -f, f

    def moments(self, z: Tensor, block: Block, discrepancy: bool) -> Moments:
        """As in the base, with the three profiles being one.

        exp(-t) is taken as 2^(-t log2(e)), which costs a third to a fifth on a CPU.
        """
        own, width = block.own, block.own.shape[1]
        rows = torch.cat([own, torch.ones_like(own[:, :1]), block.score], 1)
        sums = rows @ negative_squared(z * LOG2_E**0.5).exp2_()
        return Moments(
            value_score=sums[:, width + 1 :],
            slope_own=-sums[:, :width],
            slope=-sums[:, width : width + 1],
            curvature=spread(own, sums[:, : width + 1]) if discrepancy else None,
        )


def negative_squared(z: Tensor) -> Tensor:
    """-||z_l - z_m||^2 for the columns of ``z`` ``[B, c, n]``, as :func:`pairwise_squared`."""
    norm = z.square().sum(1, keepdim=True)
    one = torch.ones_like(norm)
    left = torch.cat([z, norm, one], 1)
    right = torch.cat([2 * z, -one, -norm], 1)
    return left.transpose(1, 2) @ right
