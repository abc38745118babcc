"""Bicubic interpolation of a picture at points that may be latent.

    I(x, y) = sum_rc W_r(y - floor y) W_c(x - floor x) image[floor y + r, floor x + c]

over the 4 x 4 pixels around a point, W being the cubic convolution of Keys: within a cell between
pixels a polynomial,

    I(x, y) = sum_ij (M P M')_ij s^j t^i,        s = x - floor x,   t = y - floor y

P being the pixels, and row i of M what they give to the power i. The sixteen numbers of a cell are
constants; what depends on a latent position is Horner's scheme in it and look-ups by its integer
part, so the value at a pixel has the flow of that pixel alone in its scope. ``grid_sample``
computes the same (with A = -0.75) in one operation, whose elements cannot be told apart by their
scopes.

Source: Keys (1981), "Cubic convolution interpolation for digital image processing".
"""

from __future__ import annotations

import torch
from torch import Tensor

#: The slope at distance 1: with -1/2 quadratic functions are interpolated exactly.
A = -0.5


def cells(image: Tensor, a: float = A) -> Tensor:
    """``[4, 4, H W]``: of every cell between pixels what stands by t^i s^j; pixels beyond the edge
    are those at the edge."""
    powers = [[0, 1, 0, 0], [a, 0, -a, 0], [-2 * a, -a - 3, 2 * a + 3, a], [a, a + 2, -a - 2, -a]]
    m = torch.tensor(powers, dtype=torch.float64, device=image.device)
    padded = torch.nn.functional.pad(image[None, None].double(), (1, 2, 1, 2), "replicate")[0, 0]
    pixels = padded.unfold(0, 4, 1).unfold(1, 4, 1)  # [H, W, 4, 4]
    return torch.einsum("ir,hwrc,jc->ijhw", m, pixels, m).flatten(2).to(image.dtype)


def bicubic(image: Tensor, x: Tensor, y: Tensor, a: float = A) -> Tensor:
    """The picture at columns ``x`` and rows ``y``; at its edge for points outside.

    Shapes:
        image: ``[H, W]``, constant.
        x, y: ``[*]``.
        output: ``[*]``, differentiable in x and y.
    """
    height, width = image.shape
    x, y = x.clamp(0, width - 1), y.clamp(0, height - 1)
    column, row = x.detach().floor(), y.detach().floor()
    cell = row.long() * width + column.long()
    s, t = x - column, y - row
    value = torch.zeros_like(x)
    for cubic in cells(image, a).flip((0, 1)):
        line = cubic[0][cell]
        for coefficient in cubic[1:]:
            line = line * s + coefficient[cell]
        value = value * t + line
    return value
