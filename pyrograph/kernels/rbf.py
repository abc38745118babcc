"""The Gaussian kernel k(x, y) = exp(-||x - y||^2 / h).

Strictly positive definite and light-tailed; the kernel of Graphical SVGD (eq 8). Its derivatives
are multiples of itself, so one product gives every sum of the Stein direction.
"""

import torch
from torch import Tensor

from pyrograph.kernels.protocol import Block
from pyrograph.kernels.radial import Moments, Radial, spread


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

    def moments(self, squared: Tensor, h: Tensor, block: Block, discrepancy: bool) -> Moments:
        """As in the base, with the three profiles being one."""
        own, width = block.own, block.own.shape[1]
        rows = torch.cat([own, torch.ones_like(own[:, :1]), block.score], 1)
        sums = rows @ squared.mul_(-1 / h).exp_()
        return Moments(
            value_score=sums[:, width + 1 :],
            slope_own=-sums[:, :width],
            slope=-sums[:, width : width + 1],
            curvature=spread(own, sums[:, : width + 1]) if discrepancy else None,
        )
