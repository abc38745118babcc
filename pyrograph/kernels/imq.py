"""The inverse multiquadric k(x, y) = (1 + ||x - y||^2 / h)^exponent, exponent in (-1, 0).

Heavy tails: its Stein discrepancy detects non-convergence where the Gaussian one cannot
(Gorham & Mackey 2017, Theorem 8).
"""

import torch
from torch import Tensor

from pyrograph.checks import real_number
from pyrograph.errors import OptionError
from pyrograph.kernels.bandwidth import Bandwidth
from pyrograph.kernels.radial import Radial


class IMQ(Radial):
    """Inverse multiquadric kernel.

    Args:
        bandwidth: ``"median"``, ``"fast"`` or h itself.
        exponent: between -1 and 0, both excluded.

    Raises:
        OptionError: bandwidth or exponent out of range.
    """

    def __init__(self, bandwidth: Bandwidth = "median", exponent: float = -0.5):
        super().__init__(bandwidth)
        self.exponent = real_number(exponent)
        if not -1 < self.exponent < 0:
            raise OptionError(f"IMQ: exponent={exponent!r} must lie between -1 and 0")

    def __repr__(self) -> str:
        return f"IMQ(bandwidth={self.bandwidth!r}, exponent={self.exponent})"

    @property
    def slope_at_zero(self) -> float:
        """f'(0)."""
        return self.exponent

    def profile(self, t: Tensor, *, second: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
        """f = (1 + t)^b, f' = b f / (1 + t), f'' = (b - 1) f' / (1 + t)."""
        base = t.add_(1)
        # a power costs three times a reciprocal root
        f = torch.rsqrt(base) if self.exponent == -0.5 else base**self.exponent
        slope = torch.div(f, base).mul_(self.exponent)
        return f, slope, torch.div(slope, base).mul_(self.exponent - 1) if second else None
