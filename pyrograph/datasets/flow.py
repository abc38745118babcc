"""Optical flow: two frames of a scene, and for most pixels where they went.

    second(column + u, row + v) = first(column, row)

Source: the Hydrangea pair of Baker, Scharstein, Lewis, Roth, Black & Szeliski (2011), "A database
and evaluation methodology for optical flow".
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pyrograph.datasets.images import grey_levels
from pyrograph.datasets.root import data_file, data_root
from pyrograph.errors import DataFormatError, OptionError, ShapeMismatch

#: First number of a file of flow, which also tells the byte order.
TAG = 202021.25
#: Flow that is larger stands for unknown.
UNKNOWN = 1e9


@dataclass(frozen=True, eq=False)
class OpticalFlow:
    """Two grey frames and the motion from the first to the second, in pixels.

    Shapes:
        first, second: ``[H, W]`` grey levels 0 to 255.
        flow: ``[H, W, 2]``: u to the right and v downwards; zero where it is not known.
        known: ``[H, W]`` booleans.

    Floating tensors have the default dtype.
    """

    first: Tensor
    second: Tensor
    flow: Tensor
    known: Tensor

    def end_point_error(self, flow: Tensor) -> Tensor:
        """Mean distance ``[]`` between ``flow`` ``[H, W, 2]`` and the truth, where it is known.

        Raises:
            ShapeMismatch: ``flow`` has another shape.
        """
        if flow.shape != self.flow.shape:
            raise ShapeMismatch(
                f"flow has shape {tuple(flow.shape)}; expected {tuple(self.flow.shape)}"
            )
        return (flow - self.flow).norm(dim=-1)[self.known].mean()

    def crop(self, rows: slice, columns: slice) -> "OpticalFlow":
        """A rectangle. Where the motion leaves it, the second frame has no answer."""
        parts = (self.first, self.second, self.flow, self.known)
        return OpticalFlow(*(part[rows, columns] for part in parts))


def optical_flow(name: str = "Hydrangea") -> OpticalFlow:
    """A pair of frames with its ground truth.

    =========  =========  =====  =================================
    name       W x H      known  flow
    =========  =========  =====  =================================
    Hydrangea  584 x 388  93 %   u -7.02 .. 11.01, v -3.20 .. 2.35
    =========  =========  =====  =================================

    Raises:
        OptionError: the data hold no such pair.
        DataNotFound: ``$PYROGRAPH_DATA`` is not set or lacks ``middlebury_flow``.
        DataFormatError: the flow is not a file of flow, or has another size than the frames.
    """
    folder = f"middlebury_flow/{name}"
    pairs = sorted(p.name for p in (data_root() / "middlebury_flow").glob("*") if p.is_dir())
    if pairs and name not in pairs:
        raise OptionError(f"there is no pair {name!r}; there are {', '.join(pairs)}.")
    first, second = (grey_levels(data_file(folder, f"frame{k}.png")) for k in (10, 11))
    flow = _read_flow(data_file(folder, "flow10.flo"))
    if not first.shape == second.shape == flow.shape[:2]:
        raise DataFormatError(
            f"{name}: frames of {tuple(first.shape)} and {tuple(second.shape)} pixels, and flow "
            f"of {tuple(flow.shape[:2])}."
        )
    known = (flow.abs() < UNKNOWN).all(-1)
    flow = torch.where(known.unsqueeze(-1), flow, 0.0).to(first.dtype)
    return OpticalFlow(first, second, flow, known)


def _read_flow(path: Path) -> Tensor:
    """Float32 ``[H, W, 2]`` as in the file; NaN counts as unknown, being below no number."""
    content = path.read_bytes()
    if len(content) < 12 or np.frombuffer(content[:4], "<f4")[0] != np.float32(TAG):
        raise DataFormatError(f"{path.name}: it does not start with the number {TAG}.")
    width, height = (int(n) for n in np.frombuffer(content[4:12], "<i4"))
    if width < 1 or height < 1 or len(content) != 12 + 8 * width * height:
        raise DataFormatError(
            f"{path.name}: {len(content)} bytes are not flow of {width} x {height} pixels."
        )
    values = np.frombuffer(content[12:], "<f4").reshape(height, width, 2)
    return torch.from_numpy(values.astype(np.float32))
