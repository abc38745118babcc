"""Normal clusters with unknown means and full covariances, integrated out.

With y = x - c about a centre c in the cluster, such as its first observation, l = loc - c,
S = sum y and T = sum y y' over the n observations of a cluster in d dimensions,

    kappa_n = kappa + n,  nu_n = nu + n,  m = (S + kappa l) / kappa_n,  h = S / n - l,
    Psi_n = Psi + T - S S' / n + h h' kappa n / kappa_n,
    log p = log Gamma_d(nu_n / 2) - log Gamma_d(nu / 2) + nu log|Psi| / 2 - nu_n log|Psi_n| / 2
            + d log(kappa / kappa_n) / 2 - n d log(pi) / 2,

where the last part of Psi_n joins the Cholesky factor of the rest (:mod:`.scatter`). The next
observation is Student's: nu_n - d + 1 degrees of freedom, location m, scale matrix
Psi_n (kappa_n + 1) / (kappa_n (nu_n - d + 1)).

Source: Murphy (2007), "Conjugate Bayesian analysis of the Gaussian distribution", section 9.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Chi2, Distribution

from pyrograph.distributions.checks import (
    floats,
    require_broadcast,
    require_finite,
    require_positive,
)
from pyrograph.distributions.normal_inverse_wishart_term import NormalInverseWishartTerm
from pyrograph.distributions.scatter import half_log_det, scatter_root, with_pull
from pyrograph.errors import OptionError, ShapeMismatch

#: Asymmetry of a scale matrix that passes for rounding, in single precision or of sums.
ROUNDING = 1e-4


class NormalInverseWishart:
    """Normal observations in d dimensions with full covariance.

    The covariance is InverseWishart(nu, scale_matrix), the mean Normal(loc, covariance / kappa).

    Args:
        kappa: above 0, ``[...]``.
        nu: degrees of freedom, above d - 1, ``[...]``.
        scale_matrix: symmetric positive definite, ``[..., d, d]``.
        loc: ``[..., d]`` or a number.

    Raises:
        OptionError: kappa or nu is out of range, loc is not finite, or scale_matrix is not
            symmetric or not positive definite.
        ShapeMismatch: scale_matrix is not square, loc not as long, or batches do not broadcast.
    """

    def __init__(
        self,
        kappa: float | Tensor,
        nu: float | Tensor,
        scale_matrix: Tensor,
        loc: float | Tensor = 0.0,
    ):
        self.kappa, self.nu, self.scale_matrix, self.loc = floats(kappa, nu, scale_matrix, loc)
        shape = self.scale_matrix.shape
        if len(shape) < 2 or shape[-1] != shape[-2] or not shape[-1]:
            raise ShapeMismatch(
                f"NormalInverseWishart: scale_matrix has shape {tuple(shape)}; give [..., d, d], "
                "d above 0"
            )
        self.dim = shape[-1]
        if self.loc.ndim and self.loc.shape[-1] not in (1, self.dim):
            raise ShapeMismatch(
                f"NormalInverseWishart: loc has shape {tuple(self.loc.shape)}; give a number or "
                f"[..., {self.dim}], as scale_matrix has"
            )
        self.batch_shape = require_broadcast(
            "NormalInverseWishart",
            "batches",
            kappa=self.kappa.shape,
            nu=self.nu.shape,
            scale_matrix=shape[:-2],
            loc=self.loc.shape[:-1],
        )
        require_finite("NormalInverseWishart", loc=self.loc)
        require_positive(
            "NormalInverseWishart", kappa=self.kappa, **{"nu - d + 1": self.nu - self.dim + 1}
        )
        _require_symmetric(self.scale_matrix)
        self.factor, failed = torch.linalg.cholesky_ex(self.scale_matrix)
        if Distribution._validate_args and bool(failed.any()):
            raise OptionError("NormalInverseWishart: scale_matrix is not positive definite")

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return self.kappa, self.nu, self.scale_matrix, self.loc

    @property
    def dtype(self) -> torch.dtype:
        return self.kappa.dtype

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.dim,)

    def fit_to(self, data: Tensor, n: int) -> NormalInverseWishart:
        """This component in the data's precision if higher."""
        return NormalInverseWishart(*floats(*self.parameters, data)[:-1])

    def detached(self) -> NormalInverseWishart:
        """The same component, out of reach of gradients."""
        return NormalInverseWishart(*(p.detach() for p in self.parameters))

    def in_double(self) -> NormalInverseWishart:
        """The same component in double precision."""
        return NormalInverseWishart(*(p.double() for p in self.parameters))

    def centre(self, data: Tensor) -> Tensor:
        """A point amid all observations."""
        return data.detach().to(self.dtype).reshape(-1, self.dim).mean(0)

    def statistics(self, data: Tensor, centre: Tensor) -> Tensor:
        """``[..., n, d + d^2]``: y and y y' of every observation."""
        y = data.to(self.dtype) - centre
        outer = y.unsqueeze(-1) * y.unsqueeze(-2)
        return torch.cat([y, outer.flatten(-2)], dim=-1)

    def updated(self, count: Tensor, total: Tensor, centre: Tensor) -> tuple[Tensor, ...]:
        """``m [..., C, d]``, ``kappa_n``, ``nu_n`` and Cholesky factor of ``Psi_n``, per slot."""
        d = self.dim
        s, outer = total[..., :d], total[..., d:].unflatten(-1, (d, d))
        kappa = self.kappa.unsqueeze(-1)
        shift = (self.loc.unsqueeze(-2) if self.loc.ndim else self.loc) - centre
        kappa_n = kappa + count
        m = (s + kappa.unsqueeze(-1) * shift) / kappa_n.unsqueeze(-1)
        mean = s / count.clamp_min(1).unsqueeze(-1)
        pull = (mean - shift) * (kappa * count / kappa_n).sqrt().unsqueeze(-1)
        spread = outer - s.unsqueeze(-1) * mean.unsqueeze(-2)
        factor = with_pull(scatter_root(self.scale_matrix.unsqueeze(-3) + spread), pull)
        return m, kappa_n, self.nu.unsqueeze(-1) + count, factor

    def log_marginal(self, count: Tensor, total: Tensor, centre: Tensor) -> Tensor:
        """``[..., C]`` from counts ``[..., C]`` and summed statistics ``[..., C, d + d^2]``.

        ``centre``, from which sums are counted, is one observation for all or one per cluster.
        """
        _, _, nu_n, factor = self.updated(count, total, centre)
        return self.log_constant(count) - nu_n * half_log_det(factor)

    def log_constant(self, count: Tensor) -> Tensor:
        """``[..., C]``: what the log marginal likelihood has of counts alone."""
        d, nu, kappa = self.dim, self.nu.unsqueeze(-1), self.kappa.unsqueeze(-1)
        return (
            torch.mvlgamma((nu + count) / 2, d)
            - torch.mvlgamma(nu / 2, d)
            + nu * half_log_det(self.factor).unsqueeze(-1)
            + d / 2 * (kappa / (kappa + count)).log()
            - count * (d / 2 * math.log(math.pi))
        )

    def term(self, data: Tensor) -> NormalInverseWishartTerm:
        """Incremental scores for ``data``."""
        return NormalInverseWishartTerm(self, data)

    def sample(self, labels: Tensor) -> Tensor:
        """Observations of elements in slots ``labels [..., n]`` below n, each with its own draw."""
        shape = labels.shape + (self.dim,)
        # Bartlett: the precision is L^-T A A' L^-1, Psi = L L'; L A^-T is the covariance's root
        d = self.dim
        freedom = self.nu[..., None, None] - torch.arange(d, device=labels.device)
        a = torch.randn(shape + (d,), dtype=self.dtype, device=labels.device).tril(-1)
        a = a + Chi2(freedom.expand(shape)).sample().sqrt().diag_embed()
        root = self.factor.unsqueeze(-3).expand(shape + (d,))
        factor = torch.linalg.solve_triangular(a, root.transpose(-1, -2), upper=False)
        factor = factor.transpose(-1, -2)
        loc = self.loc.expand(self.loc.shape[:-1] + (self.dim,)).unsqueeze(-2)
        noise = torch.randn(shape + (2,), dtype=self.dtype, device=labels.device)
        scale = self.kappa.unsqueeze(-1).rsqrt().unsqueeze(-1)
        mean = loc + scale * (factor @ noise[..., :1]).squeeze(-1)
        at = labels.unsqueeze(-1).expand(shape)
        own = factor.gather(-3, at.unsqueeze(-1).expand(factor.shape))
        return mean.gather(-2, at) + (own @ noise[..., 1:]).squeeze(-1)


def _require_symmetric(matrix: Tensor) -> None:
    """Raise unless it is, but for the rounding of sums that make it.

    Raises:
        OptionError: it is not.
    """
    if not Distribution._validate_args:
        return
    gap = (matrix - matrix.transpose(-1, -2)).abs().amax((-1, -2))
    most = matrix.abs().amax((-1, -2))
    if bool((gap > ROUNDING * most).any()):
        raise OptionError(
            "NormalInverseWishart: scale_matrix is not symmetric; give a covariance's scale, such "
            "as (A + A.T) / 2"
        )
