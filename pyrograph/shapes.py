"""Shapes that broadcast."""

import numpy as np
import torch


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """The shape that all broadcast to, as ``torch.broadcast_shapes``, whose first call loads sympy:
    a second.

    Raises:
        ValueError: there is none.
    """
    return torch.Size(np.broadcast_shapes(*shapes))
