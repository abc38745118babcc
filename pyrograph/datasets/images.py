"""Noisy images, to be denoised on a grid of pixels: y = x + noise, pixel by pixel.

"square" is the observation of the denoising experiment of Lienart, Teh & Doucet (2015), used again
by Guo, Xiong & Ruozzi (2019). Its clean image was never published. It is redrawn here: a bright
ramp along the diagonal, and a square in which the ramp is turned round. The corners of the square
and the four parameters of the ramps are least-squares fits to the observation. What is left over
has standard deviation 0.099, and 0.099 also separates pixels of the same diagonal, which no ramp
can explain: the drawing errs by less than the noise can show.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pyrograph.checks import positive, seeded
from pyrograph.datasets.numerals import number
from pyrograph.datasets.root import data_file, text_of
from pyrograph.errors import DataFormatError, OptionError, ShapeMismatch

#: Files of clean images.
CAMERA = {"camera_50": "camera_50x50.png", "camera_128": "camera_128x128.png"}
#: Rows and columns of the square, and the ramps: where on the diagonal, and how wide.
ROWS, COLUMNS = (13, 36), (14, 38)
OUTSIDE, INSIDE = (16.67, 74.61), (53.54, 12.24)


@dataclass(frozen=True, eq=False)
class NoisyImage:
    """An image with noise, and without.

    Shapes:
        observed: ``[H, W]``, about in [0, 1].
        clean: ``[H, W]`` in [0, 1].
        noise: standard deviation.

    Tensors have the default dtype.
    """

    observed: Tensor
    clean: Tensor
    noise: float

    def mean_square_error(self, image: Tensor) -> Tensor:
        """Of an image ``[H, W]``, or of its ``[H W]`` pixels in row order; ``[]``.

        Raises:
            ShapeMismatch: the image has another size.
        """
        if image.shape not in (self.clean.shape, self.clean.flatten().shape):
            raise ShapeMismatch(
                f"the image has shape {tuple(image.shape)}; expected {tuple(self.clean.shape)}"
            )
        return (image.flatten() - self.clean.flatten()).square().mean()


def denoise(name: str = "square", *, noise: float | None = None, seed: int = 0) -> NoisyImage:
    """A noisy image and the truth.

    ==========  ==========  ==========================================================
    name        size        picture
    ==========  ==========  ==========================================================
    square      50 x 50     the published observation; the clean image is redrawn
    camera_50   50 x 50     a photograph, clean; the noise is added here
    camera_128  128 x 128   the same
    ==========  ==========  ==========================================================

    Args:
        name: one of the above.
        noise: standard deviation of the noise that is added to a photograph, 0.1 if not given. The
            square's is 0.1 and part of the file.
        seed: of the noise of a photograph.

    Raises:
        OptionError: there is no such image, ``noise`` is given for "square" or is not finite and
            above 0, or ``seed`` is no whole number.
        DataNotFound: ``$PYROGRAPH_DATA`` is not set or lacks ``denoise``.
        DataFormatError: the square is not 50 lines of 50 finite numbers, or a photograph is no
            grey picture.
    """
    if name == "square":
        if noise is not None:
            raise OptionError('the noise of "square" is part of the file; leave noise away.')
        return NoisyImage(_square(), _redrawn(), 0.1)
    if not isinstance(name, str) or name not in CAMERA:
        raise OptionError(f"there is no image {name!r}; there are square, {', '.join(CAMERA)}.")
    scale = 0.1 if noise is None else positive("noise", noise)
    generator = seeded(seed)
    clean = grey_levels(data_file("denoise", CAMERA[name])) / 255
    draw = torch.randn(clean.shape, generator=generator, dtype=torch.float64).to(clean)
    return NoisyImage(clean + scale * draw, clean, scale)


def grey_levels(path: Path) -> Tensor:
    """An 8-bit grey picture as numbers 0 to 255, ``[H, W]`` of the default dtype.

    Raises:
        DataFormatError: the file is no picture, or not a grey one.
    """
    import matplotlib.image

    try:
        picture = torch.from_numpy(matplotlib.image.imread(path))
    except (SyntaxError, ValueError, OSError) as error:  # a broken PNG is a SyntaxError to Pillow
        raise DataFormatError(f"{path.name}: it cannot be read as a picture: {error}.") from error
    if picture.dim() != 2:
        raise DataFormatError(
            f"{path.name}: shape {tuple(picture.shape)}; expected a grey picture."
        )
    return (picture * 255).round().to(torch.get_default_dtype())


def _square() -> Tensor:
    filename = "square_noisy_50x50.txt"
    lines = text_of(data_file("denoise", filename)).splitlines()
    rows = []
    for k, line in enumerate(lines, start=1):
        row = [number(field) for field in line.split()]
        if len(row) != 50 or not all(map(math.isfinite, row)):
            raise DataFormatError(f"{filename}:{k}: expected 50 finite numbers.")
        rows.append(row)
    if len(rows) != 50:
        raise DataFormatError(f"{filename}: {len(rows)} lines; expected 50.")
    return torch.tensor(rows)


def _redrawn() -> Tensor:
    row, column = torch.meshgrid(torch.arange(50), torch.arange(50), indexing="ij")
    along = (row + column).to(torch.get_default_dtype())
    outside = 0.5 - 0.5 * torch.cos(math.pi * ((along - OUTSIDE[0]) / OUTSIDE[1]).clamp(0, 1))
    inside = 0.5 * torch.erfc((along - INSIDE[0]) / INSIDE[1])
    is_inside = (row >= ROWS[0]) & (row < ROWS[1]) & (column >= COLUMNS[0]) & (column < COLUMNS[1])
    return torch.where(is_inside, inside, outside)
