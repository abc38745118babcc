"""A better use of the particles one has: fewer of them, or weights on them.

Both make the Stein discrepancy D^2(w) = sum_lm w_l w_m U_lm small, with U the Stein kernel
matrix of :func:`pyrograph.diagnostics.stein_gram`.

    thinning      l_t = argmin_l U_ll / 2 + sum_{s < t} U_l,l_s          (greedy, with repeats)
    weights       w = argmin D^2(w), w >= 0, sum w = 1                   (a quadratic program)

Source: Riabiz, Chen, Cockayne, Swietach, Niederer, Mackey & Oates (2022), Algorithm 1; Liu & Lee
(2017), eq (5).
"""

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from pyrograph.checks import count
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch

#: What rounding leaves of an eigenvalue of zero, per row and relative to the largest entry.
NEGATIVE = 1e-4


def stein_thinning(gram: Tensor, num_points: int) -> Tensor:
    """Indices of ``num_points`` particles, in the order in which they are chosen.

    Args:
        gram: ``[n, n]`` Stein kernel matrix.
        num_points: how many; a particle may be chosen more than once.

    Raises:
        OptionError: ``num_points`` is not a whole number, at least 1, or the matrix is not of
            floating numbers, not symmetric, or negative on its diagonal.
        ShapeMismatch: the matrix is not square.
        NonFiniteDensity: it holds NaN or infinite numbers.
    """
    _check(gram)
    gap = gram.diagonal() / 2
    chosen = []
    for _ in range(count("num_points", num_points)):
        chosen.append(int(gap.argmin()))
        gap = gap + gram[:, chosen[-1]]
    return torch.tensor(chosen, device=gram.device)


def stein_weights(gram: Tensor) -> Tensor:
    """Weights on the simplex of least Stein discrepancy, ``[n]``.

    With U = L L', non-negative least squares of (L' w, 1' w) against (0, 1) has the solution of
    the program but for its length. Where U is zero all weights are as good, and equal.

    Args:
        gram: ``[n, n]`` Stein kernel matrix.

    Raises:
        ShapeMismatch: the matrix is not square.
        OptionError: it is not of floating numbers, not symmetric, or has an eigenvalue below 0.
        NonFiniteDensity: it holds NaN or infinite numbers.
    """
    _check(gram)
    u = gram.detach().double().cpu().numpy()
    if not u.any():
        return torch.full_like(gram[0], 1 / len(u))
    values, vectors = np.linalg.eigh(u / np.abs(u).max())
    if values[0] < -NEGATIVE * len(u) or values[-1] <= 0:
        raise OptionError(
            f"the matrix has the eigenvalue {values[0] * np.abs(u).max():.3g} and is no Stein "
            "kernel matrix, which has none below 0; take one of pg.diagnostics.stein_gram"
        )
    root = np.sqrt(values.clip(0) / values.sum())[:, None] * vectors.T
    ones = np.ones((1, len(u)))
    w = nnls(np.concatenate([root, ones]), np.append(np.zeros(len(u)), 1.0))[0]
    return gram.new_tensor(w / w.sum())


def _check(gram: Tensor) -> None:
    if not isinstance(gram, Tensor):
        raise ShapeMismatch(f"a Stein kernel matrix is a tensor [n, n]; got {type(gram).__name__}")
    if gram.dim() != 2 or gram.shape[0] != gram.shape[1] or len(gram) == 0:
        raise ShapeMismatch(f"a Stein kernel matrix is [n, n]; got {list(gram.shape)}")
    if not gram.is_floating_point():
        raise OptionError(f"the matrix holds {gram.dtype}; give floating numbers: gram.double()")
    if not gram.isfinite().all():
        raise NonFiniteDensity(
            "the Stein kernel matrix holds NaN or infinite numbers: scores of its particles "
            "overflow. Leave those particles out, or take dtype=torch.float64."
        )
    slack = NEGATIVE * float(gram.detach().abs().max())
    asymmetry = float((gram - gram.mT).detach().abs().max())
    if asymmetry > slack or float(gram.diagonal().min()) < -slack:
        raise OptionError(
            "the matrix is not symmetric, or has negative entries on its diagonal, and is no Stein "
            "kernel matrix; take one of pg.diagnostics.stein_gram"
        )
