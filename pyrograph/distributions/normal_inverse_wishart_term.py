"""Student predictive scores of normal clusters with full covariance, O(d^2) per cluster.

A row of the pool holds m and Psi_n of :mod:`.normal_inverse_wishart`. An element that joins changes
the inverse of Psi_n by rank one and its determinant by a factor,

    Psi_n+1 = Psi_n + k g g',   k = kappa_n / (kappa_n + 1),  g = y - m,  m <- y - k g,
    Psi_n+1^-1 = Psi_n^-1 - k v v' / (1 + k g'v),  |Psi_n+1| = |Psi_n| (1 + k g'v),

v = Psi_n^-1 g, O(d^2) too. Of an inverse that shrinks by a factor along g as many digits are lost
there: from Psi_n, which only grows, it is computed anew, O(d^3), where the factors since it last
was come to 1 / LOSS. When an element leaves, with g = y - m of then, Psi_n-1 = Psi_n - g g' / k,
and |Psi_n-1| = |Psi_n| q for q = 1 - g'v / k: inverse and determinant are computed anew, and all
that is left is counted anew where what the removals since the last count left of Psi_n, in one
direction, comes to LOSS, and where Psi_n is singular, of data so far from loc that the rest of it
is rounding. What has been scored, v and g'v, is used again where the element then joins.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyrograph.distributions.checks import unbatched
from pyrograph.distributions.mixture_term import AT_ONCE, LOSS, MixtureTerm
from pyrograph.distributions.scatter import half_log_det, scatter_root, with_pull
from pyrograph.distributions.seating import Seating, resized, twin

if TYPE_CHECKING:
    from pyrograph.distributions.normal_inverse_wishart import NormalInverseWishart

#: Of half log|Psi_n| by elements that join, before its inverse is computed anew.
MOST_GROWTH = -math.log(LOSS) / 2


class NormalInverseWishartTerm(MixtureTerm):
    """Scores of one element, or many, in all clusters; see the module."""

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
        self.psi[rows] = scatter + pull.unsqueeze(-1) * pull.unsqueeze(-2)
        self.share[rows] = 1
        self._take_root(rows, with_pull(scatter_root(scatter), pull))

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
        cluster, element = members.nonzero().unbind(1)
        place = members.cumsum(1)[cluster, element] - 1  # among those of its cluster
        most = int(place.max()) + 1 if len(place) else 1
        step = max(1, AT_ONCE // (most * y.shape[1]))
        for k in range(0, len(mean), step):
            own = ((cluster >= k) & (cluster < k + step)).nonzero().squeeze(1)
            gap = y.new_zeros(len(mean[k : k + step]), most, y.shape[1])
            gap[cluster[own] - k, place[own]] = y[element[own]] - mean[cluster[own]]
            scatter[k : k + step] += gap.mT @ gap
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
