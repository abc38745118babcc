"""Cholesky factors of matrices that rounding has left short of positive definite.

    L L' = K + diag(barrier) + ridge diag(K),    ridge = 0, 1e-15, 1e-14, ...

The ridge is relative to each entry of the diagonal, so that the scale of a point does not count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.errors import OptionError

#: First ridge, and a bound: rounding, even of float32, does not need as much.
FIRST, LARGEST = 1e-15, 0.02


def cholesky_with_ridge(k: Tensor, barrier: Tensor | float = 0.0) -> tuple[Tensor, float]:
    """The lower factor, and the ridge that it needed.

    Args:
        k: ``[n, n]``, symmetric.
        barrier: added to the diagonal, ``[n]``.

    Raises:
        OptionError: no ridge that rounding may account for makes the matrix positive definite.
    """
    lifted, diagonal, ridge = k.clone(), k.diagonal(), 0.0
    while True:
        lifted.diagonal().copy_(diagonal * (1 + ridge) + barrier)
        factor, failed = torch.linalg.cholesky_ex(lifted)
        if not int(failed):
            return factor, ridge
        ridge = max(10 * ridge, FIRST)
        if ridge > LARGEST:
            i = int(failed) - 1
            raise OptionError(
                f"the Gram matrix has {float(diagonal[i]):.3g} on its diagonal at point {i} of "
                f"{len(k)}, and {ridge / 10:.0%} of its diagonal on top do not make it positive "
                "semi-definite: it is no matrix of inner products. Leave such points out"
            )
