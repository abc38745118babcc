"""Scatter matrices of normal clusters, by their Cholesky factors.

    Psi_n = L L' + p p',    L L' = Psi + T - S S' / n,    p = h sqrt(kappa n / kappa_n)

as in :mod:`.normal_inverse_wishart`. Of data far from loc the pull p p' may be larger than the rest
by more than all digits, so that it joins the factor of the rest in closed form,

    L L' + p p' = (L C) (L C)',  z = L^-1 p,  t_j = 1 + z_1^2 + ... + z_j^2,
    C_jj = sqrt(t_j / t_j-1),  C_ij = z_i z_j / sqrt(t_j t_j-1) for i > j.

Source: Gill, Golub, Murray & Saunders (1974), "Methods for modifying matrix factorizations", for
L C.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyrograph.errors import NonFiniteDensity


def scatter_root(scatter: Tensor) -> Tensor:
    """Cholesky factors of Psi and the scatter of a cluster ``[..., d, d]``.

    Raises:
        NonFiniteDensity: the observations of a cluster are so far apart that it is singular.
    """
    factor, failed = torch.linalg.cholesky_ex(scatter)
    if Distribution._validate_args and bool(failed.any()):
        raise NonFiniteDensity(
            "NormalInverseWishart: the scatter of a cluster is singular in double precision. Its "
            "observations are too far apart (or not numbers) for this scale_matrix: rescale the "
            "data, leave outliers out, or take a NormalInverseGamma per dimension."
        )
    return factor


def with_pull(factor: Tensor, pull: Tensor) -> Tensor:
    """Cholesky factors of L L' + p p' from L ``[..., d, d]`` and p ``[..., d]``."""
    z = torch.linalg.solve_triangular(factor, pull.unsqueeze(-1), upper=False).squeeze(-1)
    t = 1 + torch.nn.functional.pad(z.square().cumsum(-1), (1, 0))
    before, now = t[..., :-1], t[..., 1:]
    below = z.unsqueeze(-1) * (z / (now * before).sqrt()).unsqueeze(-2)
    return factor @ (below.tril(-1) + (now / before).sqrt().diag_embed())


def half_log_det(factor: Tensor) -> Tensor:
    """log|L|, half the log determinant of L L'."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
