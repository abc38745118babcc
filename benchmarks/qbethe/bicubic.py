"""Bicubic interpolation of a picture at points that may be latent.

    I(x, y) = sum_rc W_r(y - floor y) W_c(x - floor x) image[floor y + r, floor x + c]

over the 4 x 4 pixels around a point, W being the cubic convolution of Keys. All that depends on a
latent position is arithmetic and sixteen look-ups in a constant table by its integer part, so the
value at a pixel has the flow of that pixel alone in its scope. ``grid_sample`` computes the same
(with A = -0.75) in one operation, whose elements cannot be told apart by their scopes.

Source: Keys (1981), "Cubic convolution interpolation for digital image processing".
"""

from __future__ import annotations

import torch
from torch import Tensor

#: The slope at distance 1: with -1/2 quadratic functions are interpolated exactly.
A = -0.5


def inner(t: Tensor, a: float = A) -> Tensor:
    """Weight of a pixel at a distance of 0 to 1."""
    return ((a + 2) * t - (a + 3)) * t * t + 1


def outer(t: Tensor, a: float = A) -> Tensor:
    """Weight of a pixel at a distance of 1 to 2."""
    return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a


def bicubic(image: Tensor, x: Tensor, y: Tensor, a: float = A) -> Tensor:
    """The picture at columns ``x`` and rows ``y``; at its edge for points outside.

    Shapes:
        image: ``[H, W]``, constant.
        x, y: ``[*]``.
        output: ``[*]``, differentiable in x and y.
    """
    height, width = image.shape
    table = torch.nn.functional.pad(image[None, None], (2, 2, 2, 2), "replicate").flatten()
    x, y = x.clamp(0, width - 1), y.clamp(0, height - 1)
    column, row = x.detach().floor(), y.detach().floor()
    # of the upper left one of the 4 x 4 pixels, in the padded picture
    corner = (row.long() + 1) * (width + 4) + column.long() + 1
    across, down = (
        (outer(t + 1, a), inner(t, a), inner(1 - t, a), outer(2 - t, a))
        for t in (x - column, y - row)
    )
    value = torch.zeros_like(x)
    for r, weight in enumerate(down):
        line = torch.zeros_like(x)
        for c, share in enumerate(across):
            line = line + share * table[r * (width + 4) + c :][corner]
        value = value + weight * line
    return value
