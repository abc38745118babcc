"""Normal clusters with unknown means and full covariances, integrated out.

With y = x - c about a centre c near the data, l = loc - c, S = sum y and T = sum y y' over the n
observations of a cluster in d dimensions,

    kappa_n = kappa + n,  nu_n = nu + n,  m = (S + kappa l) / kappa_n,
    Psi_n = Psi + T + kappa l l' - kappa_n m m',
    log p = log Gamma_d(nu_n / 2) - log Gamma_d(nu / 2) + nu log|Psi| / 2 - nu_n log|Psi_n| / 2
            + d log(kappa / kappa_n) / 2 - n d log(pi) / 2,

and the next observation is Student's: nu_n - d + 1 degrees of freedom, location m, scale matrix
Psi_n (kappa_n + 1) / (kappa_n (nu_n - d + 1)).

Source: Murphy (2007), "Conjugate Bayesian analysis of the Gaussian distribution", section 9.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Chi2, Distribution

from pyrograph.distributions.checks import floats, require_positive, unbatched
from pyrograph.distributions.mixture_term import MixtureTerm
from pyrograph.distributions.seating import Seating, resized
from pyrograph.errors import OptionError, ShapeMismatch


class NormalInverseWishart:
    """Normal observations in d dimensions with full covariance.

    The covariance is InverseWishart(nu, scale_matrix), the mean Normal(loc, covariance / kappa).

    Args:
        kappa: above 0, ``[...]``.
        nu: degrees of freedom, above d - 1, ``[...]``.
        scale_matrix: symmetric positive definite, ``[..., d, d]``.
        loc: ``[..., d]`` or a number.

    Raises:
        OptionError: kappa or nu is out of range, or scale_matrix is not positive definite.
        ShapeMismatch: scale_matrix is not square.
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
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise ShapeMismatch(
                f"NormalInverseWishart: scale_matrix has shape {tuple(shape)}; give [..., d, d]"
            )
        self.dim = shape[-1]
        require_positive(
            "NormalInverseWishart", kappa=self.kappa, **{"nu - d + 1": self.nu - self.dim + 1}
        )
        self.factor, failed = torch.linalg.cholesky_ex(self.scale_matrix)
        if Distribution._validate_args and bool(failed.any()):
            raise OptionError("NormalInverseWishart: scale_matrix is not positive definite")
        self.batch_shape = torch.broadcast_shapes(
            self.kappa.shape, self.nu.shape, shape[:-2], self.loc.shape[:-1]
        )

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

    def centre(self, data: Tensor) -> Tensor:
        return data.detach().reshape(-1, self.dim).mean(0)

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
        shift = (self.loc - centre).expand(self.loc.shape[:-1] + (d,)).unsqueeze(-2)
        kappa_n = kappa + count
        m = (s + kappa.unsqueeze(-1) * shift) / kappa_n.unsqueeze(-1)
        psi = (
            self.scale_matrix.unsqueeze(-3)
            + outer
            + kappa[..., None, None] * shift.unsqueeze(-1) * shift.unsqueeze(-2)
            - kappa_n[..., None, None] * m.unsqueeze(-1) * m.unsqueeze(-2)
        )
        return m, kappa_n, self.nu.unsqueeze(-1) + count, torch.linalg.cholesky(psi)

    def log_marginal(self, count: Tensor, total: Tensor, centre: Tensor) -> Tensor:
        """``[..., C]`` from counts ``[..., C]`` and summed statistics ``[..., C, d + d^2]``."""
        d = self.dim
        _, kappa_n, nu_n, factor = self.updated(count, total, centre)
        nu, kappa = self.nu.unsqueeze(-1), self.kappa.unsqueeze(-1)
        return (
            torch.mvlgamma(nu_n / 2, d)
            - torch.mvlgamma(nu / 2, d)
            + nu * half_log_det(self.factor).unsqueeze(-1)
            - nu_n * half_log_det(factor)
            + d / 2 * (kappa / kappa_n).log()
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


def half_log_det(factor: Tensor) -> Tensor:
    """log|L|, half the log determinant of L L'."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class NormalInverseWishartTerm(MixtureTerm):
    """Student predictive scores, O(d^2) per cluster.

    An element that joins changes the inverse of Psi_n by rank one and its determinant by a factor,

        Psi_n+1 = Psi_n + k g g',   k = kappa_n / (kappa_n + 1),  g = y - m,
        Psi_n+1^-1 = Psi_n^-1 - k v v' / (1 + k g'v),  |Psi_n+1| = |Psi_n| (1 + k g'v),

    v = Psi_n^-1 g, O(d^2) too; positive definite matrices that grow lose little by it. When an
    element leaves, the opposite could cancel: both are computed anew from the sums, O(d^3). What
    has been scored, v and g'v, is used again where the element then joins.
    """

    def __init__(self, component: NormalInverseWishart, data: Tensor):
        super().__init__(component, data)
        for parameter, event_dim in zip(component.parameters, (0, 0, 2, 1), strict=True):
            unbatched("NormalInverseWishart", parameter, event_dim)
        d, nu = self.component.dim, self.component.nu
        self.prior = torch.zeros_like(self.table[0])
        kappa_n = self.component.kappa + self.sizes
        shrunk, power = kappa_n / (kappa_n + 1), (nu + self.sizes + 1) / 2
        constant = torch.lgamma(power) - torch.lgamma(power - d / 2)
        constant = constant + d / 2 * (shrunk / math.pi).log()
        #: By cluster size: k, (nu_n + 1) / 2, and the constant of the density.
        self.by_size = torch.stack([shrunk, power, constant])
        self._scored: tuple[int, int, Tensor, Tensor, Tensor] | None = None

    def scores(self, i: int, seating: Seating) -> Tensor:
        num = seating.num_rows
        shrunk, power, constant = self.by_size.index_select(1, seating.sizes[:num])
        gap = self.table[i, : self.component.dim] - self.mean[:num]
        v = (self.inverse[:num] @ gap.unsqueeze(-1)).squeeze(-1)
        log_ratio = (v * gap).sum(-1).mul_(shrunk).log1p_()
        self._scored = i, num, gap, v, log_ratio
        score = constant - self.half_log_det[:num] - power * log_ratio
        return torch.nn.functional.pad(score, (0, seating.limit - num))

    def moves(self, elements: Tensor, own: Tensor, seating: Seating) -> tuple[Tensor, Tensor]:
        num, sizes = seating.num_rows, seating.sizes
        gap = self.table[elements, : self.component.dim] - self.mean[:num].unsqueeze(1)
        ratio = ((gap @ self.inverse[:num]) * gap).sum(-1)  # [R, B]
        shrunk, power, constant = self.by_size[:, sizes[:num]].unsqueeze(2)
        base = constant - self.half_log_det[:num].unsqueeze(1)
        join = base - power * (shrunk * ratio).log1p()
        # without i: |Psi_n-1| = |Psi_n| q, q = 1 - g'v / k for the k of n - 1
        shrunk, power, constant = self.by_size[:, sizes[own] - 1]
        q = 1 - ratio.gather(0, own) / shrunk
        least = torch.finfo(q.dtype).eps ** 0.5  # what is left is not known well below
        log_q = q.clamp_min(least).log()
        stay = constant - self.half_log_det[own] + (power - 0.5) * log_q
        stay = torch.where(q > least, stay, -torch.inf)
        return torch.nn.functional.pad(join, (0, 0, 0, seating.limit - num)), stay

    def append(self, i: int, source: Tensor, start: int, sign: int, seating: Seating) -> None:
        super().append(i, source, start, sign, seating)
        new = slice(start, start + source.size(0))
        if sign < 0 or self._scored is None or self._scored[:2] != (i, start):
            self._fill(new, seating)
            return
        gap, v, log_ratio = (part.index_select(0, source) for part in self._scored[2:])
        shrunk = self.by_size[0].take(seating.sizes[new] - 1)
        scaled = v * (shrunk * (-log_ratio).exp()).unsqueeze(-1)
        inverse = self.inverse.index_select(0, source)
        self.inverse[new] = inverse.baddbmm_(scaled.unsqueeze(2), v.unsqueeze(1), alpha=-1)
        self.mean[new] = self.mean.index_select(0, source) + (1 - shrunk).unsqueeze(-1) * gap
        self.half_log_det[new] = self.half_log_det.index_select(0, source) + log_ratio / 2
        self._scored = None

    def _fill(self, rows: slice, seating: Seating) -> None:
        """Location, inverse and determinant of rows from their sums."""
        totals = self.totals[:, rows].T
        sizes = seating.sizes[rows].to(totals.dtype)
        self.mean[rows], _, _, factor = self.component.updated(sizes, totals, self.centre)
        self.inverse[rows] = torch.cholesky_inverse(factor)
        self.half_log_det[rows] = half_log_det(factor)
        self._scored = None

    def tidy(self, kept: Tensor, length: int) -> None:
        super().tidy(kept, length)
        self.mean, self.inverse, self.half_log_det = (
            resized(part, kept, length, dim=0) for part in self._cached()
        )
        self._scored = None

    def _cached(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.mean, self.inverse, self.half_log_det

    def copy(self) -> NormalInverseWishartTerm:
        new = super().copy()
        new.mean, new.inverse, new.half_log_det = (part.clone() for part in self._cached())
        return new

    def rebuild(self, seating: Seating) -> None:
        super().rebuild(seating)
        num, d = self.totals.shape[1], self.component.dim
        self.mean = self.totals.new_empty(num, d)
        self.inverse = self.totals.new_empty(num, d, d)
        self.half_log_det = self.totals.new_empty(num)
        self._fill(slice(0, num), seating)
