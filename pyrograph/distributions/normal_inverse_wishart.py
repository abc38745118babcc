"""Normal clusters with unknown means and full covariances, integrated out.

With y = x - c about a centre c in the cluster, such as its first observation, l = loc - c,
S = sum y and T = sum y y' over the n observations of a cluster in d dimensions,

    kappa_n = kappa + n,  nu_n = nu + n,  m = (S + kappa l) / kappa_n,  h = S / n - l,
    Psi_n = Psi + T - S S' / n + h h' kappa n / kappa_n,
    log p = log Gamma_d(nu_n / 2) - log Gamma_d(nu / 2) + nu log|Psi| / 2 - nu_n log|Psi_n| / 2
            + d log(kappa / kappa_n) / 2 - n d log(pi) / 2,

where the last part of Psi_n may be larger than the rest by more than all digits, of data far from
loc, so that it joins the Cholesky factor of the rest in closed form,

    L L' + p p' = (L C) (L C)',  p = h sqrt(kappa n / kappa_n),  z = L^-1 p,
    t_j = 1 + z_1^2 + ... + z_j^2,
    C_jj = sqrt(t_j / t_j-1),  C_ij = z_i z_j / sqrt(t_j t_j-1) for i > j,

and the next observation is Student's: nu_n - d + 1 degrees of freedom, location m, scale matrix
Psi_n (kappa_n + 1) / (kappa_n (nu_n - d + 1)).

Source: Murphy (2007), "Conjugate Bayesian analysis of the Gaussian distribution", section 9; Gill,
Golub, Murray & Saunders (1974), "Methods for modifying matrix factorizations", for L C.
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
    unbatched,
)
from pyrograph.distributions.mixture_term import AT_ONCE, LOSS, MixtureTerm
from pyrograph.distributions.seating import Seating, resized, twin
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch

#: Asymmetry of a scale matrix that passes for rounding, in single precision or of sums.
ROUNDING = 1e-4
#: Of half log|Psi_n| by elements that join, before its inverse is computed anew.
MOST_GROWTH = -math.log(LOSS) / 2


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
        factor = _with_pull(_root(self.scale_matrix.unsqueeze(-3) + spread), pull)
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


def _outer(v: Tensor) -> Tensor:
    """v v' ``[..., d, d]``."""
    return v.unsqueeze(-1) * v.unsqueeze(-2)


def _root(scatter: Tensor) -> Tensor:
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


def _with_pull(factor: Tensor, pull: Tensor) -> Tensor:
    """Cholesky factors of L L' + p p' from L ``[..., d, d]`` and p ``[..., d]``."""
    z = torch.linalg.solve_triangular(factor, pull.unsqueeze(-1), upper=False).squeeze(-1)
    t = 1 + torch.nn.functional.pad(z.square().cumsum(-1), (1, 0))
    before, now = t[..., :-1], t[..., 1:]
    below = z.unsqueeze(-1) * (z / (now * before).sqrt()).unsqueeze(-2)
    return factor @ (below.tril(-1) + (now / before).sqrt().diag_embed())


def half_log_det(factor: Tensor) -> Tensor:
    """log|L|, half the log determinant of L L'."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class NormalInverseWishartTerm(MixtureTerm):
    """Student predictive scores, O(d^2) per cluster.

    A row holds m and Psi_n. An element that joins changes the inverse of Psi_n by rank one and its
    determinant by a factor,

        Psi_n+1 = Psi_n + k g g',   k = kappa_n / (kappa_n + 1),  g = y - m,  m <- y - k g,
        Psi_n+1^-1 = Psi_n^-1 - k v v' / (1 + k g'v),  |Psi_n+1| = |Psi_n| (1 + k g'v),

    v = Psi_n^-1 g, O(d^2) too. Of an inverse that shrinks by a factor along g as many digits are
    lost there: from Psi_n, which only grows, it is computed anew, O(d^3), where the factors since
    it last was come to 1 / LOSS. When an element leaves, with g = y - m of then,
    Psi_n-1 = Psi_n - g g' / k, and |Psi_n-1| = |Psi_n| q for q = 1 - g'v / k: inverse and
    determinant are computed anew, and all that is left is counted anew where what the removals
    since the last count left of Psi_n, in one direction, comes to LOSS, and where Psi_n is
    singular, of data so far from loc that the rest of it is rounding. What has been scored, v and
    g'v, is used again where the element then joins.
    """

    def __init__(self, component: NormalInverseWishart, data: Tensor):
        super().__init__(component, data)
        for parameter, event_dim in zip(component.parameters, (0, 0, 2, 1), strict=True):
            unbatched("NormalInverseWishart", parameter, event_dim)
        d, nu = self.component.dim, self.component.nu
        self.table = self.table[:, :d]
        self.shift = (self.component.loc - self.centre).expand(d)
        kappa_n = self.component.kappa + self.sizes
        shrunk, power = kappa_n / (kappa_n + 1), (nu + self.sizes + 1) / 2
        constant = torch.lgamma(power) - torch.lgamma(power - d / 2)
        constant = constant + d / 2 * (shrunk / math.pi).log()
        #: By cluster size: k, (nu_n + 1) / 2, and the constant of the density.
        self.by_size = torch.stack([shrunk, power, constant])
        #: By cluster size, of the log marginal likelihood.
        self.log_constant = self.component.log_constant(self.sizes)
        self._scored: tuple[int, int, Tensor, Tensor, Tensor] | None = None

    def scores(self, i: int, seating: Seating) -> Tensor:
        num = seating.num_rows
        shrunk, power, constant = self.by_size.index_select(1, seating.sizes[:num])
        gap = self.table[i] - self.mean[:num]
        v = (self.inverse[:num] @ gap.unsqueeze(-1)).squeeze(-1)
        log_ratio = (v * gap).sum(-1).mul_(shrunk).log1p_()
        self._scored = i, num, gap, v, log_ratio
        score = constant - self.half_log_det[:num] - power * log_ratio
        return torch.nn.functional.pad(score.to(self.dtype), (0, seating.limit - num))

    def moves(self, elements: Tensor, own: Tensor, seating: Seating) -> tuple[Tensor, Tensor]:
        num, sizes = seating.num_rows, seating.sizes
        gap = self.table[elements] - self.mean[:num].unsqueeze(1)
        ratio = ((gap @ self.inverse[:num]) * gap).sum(-1)  # [R, B]
        shrunk, power, constant = self.by_size[:, sizes[:num]].unsqueeze(2)
        base = constant - self.half_log_det[:num].unsqueeze(1)
        join = base - power * (shrunk * ratio).log1p()
        # without i: |Psi_n-1| = |Psi_n| q, q = 1 - g'v / k for the k of n - 1
        shrunk, power, constant = self.by_size[:, sizes[own] - 1]
        q = 1 - ratio.gather(0, own) / shrunk
        log_q = q.clamp_min(LOSS).log()
        stay = constant - self.half_log_det[own] + (power - 0.5) * log_q
        stay = torch.where(self.share[own] * q > LOSS, stay, -torch.inf)
        join = torch.nn.functional.pad(join, (0, 0, 0, seating.limit - num))
        return join.to(self.dtype), stay.to(self.dtype)

    def append(self, i: int, source: Tensor, start: int, sign: int, seating: Seating) -> None:
        rows = slice(start, start + source.size(0))
        if sign < 0:
            self._leave(i, source, rows, seating)
        elif self._scored is None or self._scored[:2] != (i, start):
            self._join(i, source, rows, seating)
            self._factorise(rows.start + torch.arange(len(source), device=source.device), seating)
        else:
            self._join(i, source, rows, seating)
            shrunk = self.by_size[0].take(seating.sizes[rows] - 1)
            v, log_ratio = (part.index_select(0, source) for part in self._scored[3:])
            scaled = v * (shrunk * (-log_ratio).exp()).unsqueeze(-1)
            inverse = self.inverse.index_select(0, source)
            self.inverse[rows] = inverse.baddbmm_(scaled.unsqueeze(2), v.unsqueeze(1), alpha=-1)
            growth = self.growth.index_select(1, source).add_(log_ratio / 2)
            self.growth[:, rows] = growth
            if not float(growth[1].max()) < MOST_GROWTH:
                grown = (~(growth[1] < MOST_GROWTH)).nonzero().squeeze(1)
                self._factorise(rows.start + grown, seating)
        self._scored = None

    def _join(self, i: int, source: Tensor, rows: slice, seating: Seating) -> None:
        """Locations and Psi_n of rows with element i."""
        shrunk = self.by_size[0].take(seating.sizes[rows] - 1).unsqueeze(-1)
        gap = self.table[i] - self.mean.index_select(0, source)
        self.mean[rows] = self.table[i] - shrunk * gap
        self.share[rows] = self.share.index_select(0, source)
        psi = self.psi.index_select(0, source)
        self.psi[rows] = psi.baddbmm_((shrunk * gap).unsqueeze(2), gap.unsqueeze(1))

    def _leave(self, i: int, source: Tensor, rows: slice, seating: Seating) -> None:
        """All of rows without element i."""
        sizes = seating.sizes[rows]
        shrunk = self.by_size[0].take(sizes).unsqueeze(-1)
        gap = self.table[i] - self.mean.index_select(0, source)
        v = (self.inverse.index_select(0, source) @ gap.unsqueeze(-1)).squeeze(-1)
        q = 1 - (v * gap).sum(-1) / shrunk.squeeze(-1)
        self.mean[rows] = self.table[i] - gap / shrunk
        psi = self.psi.index_select(0, source)
        before = psi.diagonal(dim1=1, dim2=2).clone()
        psi.sub_((gap / shrunk).unsqueeze(2) * gap.unsqueeze(1))
        self.psi[rows] = psi
        # along an axis, or along g, where the inverse still tells
        left = (psi.diagonal(dim1=1, dim2=2) / before).amin(1).minimum(q)
        share = self.share.index_select(0, source) * left
        self.share[rows] = share
        changed, is_lost = torch.arange(rows.start, rows.stop, device=share.device), ~(share > LOSS)
        if bool(is_lost.any()):
            self._recount(changed[is_lost], seating)
            changed = changed[~is_lost]
        self._factorise(changed, seating)

    def _factorise(self, rows: Tensor, seating: Seating) -> None:
        """Inverses and determinants of rows from their Psi_n."""
        factor, failed = torch.linalg.cholesky_ex(self.psi[rows])
        if bool(failed.any()):
            self._recount(rows[failed > 0], seating)
            rows, factor = rows[failed == 0], factor[failed == 0]
        self._take_root(rows, factor)

    def _take_root(self, rows: slice | Tensor, factor: Tensor) -> None:
        self.inverse[rows] = torch.cholesky_inverse(factor)
        self.growth[0, rows] = half_log_det(factor)
        self.growth[1, rows] = 0

    def _recount(self, rows: Tensor, seating: Seating) -> None:
        """All of rows from their elements."""
        # of clusters that are empty now nobody asks
        members = seating.members_of(rows) & (seating.sizes[rows] > 0).unsqueeze(1)
        self._count(rows, members)

    def _count(self, rows: slice | Tensor, members: Tensor) -> None:
        """All of rows, clusters with these elements, ``[U, n]`` bool."""
        self.mean[rows], scatter, pull = self._of_members(members)
        self.psi[rows] = scatter + _outer(pull)
        self.share[rows] = 1
        self._take_root(rows, _with_pull(_root(scatter), pull))

    def _of_members(self, members: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """m ``[U, d]``, and the ``[U, d, d]`` and p ``[U, d]`` that make up Psi_n, of clusters with
        these elements, ``[U, n]`` bool."""
        y, prior = self.table, self.component
        is_in = members.to(y.dtype)
        size = is_in.sum(1, keepdim=True)
        mean = is_in @ y / size.clamp_min(1)
        kappa_n = prior.kappa + size
        pull = (mean - self.shift) * (prior.kappa * size / kappa_n).sqrt()
        scatter = prior.scale_matrix.expand(len(mean), -1, -1).clone()
        step = max(1, AT_ONCE // max(1, y.numel()))
        for k in range(0, len(mean), step):
            gap = y - mean[k : k + step].unsqueeze(1)  # [U, n, d]
            held = gap * is_in[k : k + step].unsqueeze(2)
            scatter[k : k + step] += gap.transpose(1, 2) @ held
        return (size * mean + prior.kappa * self.shift) / kappa_n, scatter, pull

    def log_marginals(self, sizes: Tensor) -> Tensor:
        freedom = self.component.nu + sizes
        return self.log_constant.take(sizes) - freedom * self.half_log_det

    def tidy(self, kept: Tensor, length: int) -> None:
        self.mean, self.psi, self.inverse = (
            resized(part, kept, length, dim=0) for part in (self.mean, self.psi, self.inverse)
        )
        self.growth = resized(self.growth, kept, length)
        self.share = resized(self.share, kept, length)
        self._scored = None

    @property
    def half_log_det(self) -> Tensor:
        """``[limit]``, of Psi_n."""
        return self.growth[0]

    def copy(self) -> NormalInverseWishartTerm:
        new = twin(self)
        new.mean, new.psi, new.inverse = self.mean.clone(), self.psi.clone(), self.inverse.clone()
        new.growth, new.share = self.growth.clone(), self.share.clone()
        return new

    def rebuild(self, seating: Seating) -> None:
        members = seating.members()
        self.mean = self.table.new_empty(len(members), self.component.dim)
        self.psi = self.table.new_empty(*self.mean.shape, self.component.dim)
        self.inverse = torch.empty_like(self.psi)
        #: Half log|Psi_n|, and what joined since the inverse was last computed anew added to it.
        self.growth = self.mean.new_empty(2, len(self.mean))
        #: ``[limit]``, what removals left of Psi_n since it was counted, in the direction least so.
        self.share = torch.ones_like(self.growth[0])
        self._count(slice(0, len(members)), members)
        self._scored = None
