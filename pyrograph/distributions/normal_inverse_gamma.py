"""Normal clusters with unknown means and variances, integrated out dimension by dimension.

The log marginal likelihood of the n observations of a cluster depends on their count and sums. With
y = x - c about a centre c in the cluster, such as its first observation (the formulas are
invariant; sums of squares then do not cancel), l = loc - c, S = sum y and Q = sum y^2, per
dimension,

    kappa_n = kappa + n,  m = (S + kappa l) / kappa_n,  a_n = a + n / 2,
    b_n = b + (Q - S^2 / n + (S / n - l)^2 kappa n / kappa_n) / 2,
    log p = log Gamma(a_n) - log Gamma(a) + a log b - a_n log b_n
            + log(kappa / kappa_n) / 2 - n log(2 pi) / 2,

and the next observation is Student's: 2 a_n degrees of freedom, location m, squared scale
b_n (kappa_n + 1) / (a_n kappa_n). Element by element nothing cancels either: where y joins,
r = kappa_n / (kappa_n + 1) and g = y - m, and m and b_n become y - r g and b_n + r g^2 / 2.

Source: Murphy (2007), "Conjugate Bayesian analysis of the Gaussian distribution", section 3;
Welford (1962), "Note on a method for calculating corrected sums of squares and products". The
inverse gamma has *scale* b, density ~ v^(-a - 1) exp(-b / v).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Gamma

from pyrograph.checks import count
from pyrograph.distributions.checks import (
    floats,
    require_broadcast,
    require_finite,
    require_positive,
    unbatched,
)
from pyrograph.distributions.mixture_term import AT_ONCE, LOSS, MixtureTerm
from pyrograph.distributions.seating import Seating, resized
from pyrograph.errors import ShapeMismatch


class NormalInverseGamma:
    """Normal observations, independent per dimension.

    The variance of a dimension is InverseGamma(a, scale b), its mean Normal(loc, variance / kappa).

    Args:
        kappa: prior precision of the mean in units of the observations', above 0.
        a, b: shape and scale of the inverse gamma, above 0.
        loc: prior mean.
        dim: dimensions of an observation. None: the last dimension of the parameters if they have
            any; scalars serve every dimension, and the data's shape decides (``[..., n]`` or
            ``[..., n, d]``). 0 says that observations are numbers.

    Shapes:
        parameters: ``[]``, or ``[..., d]`` broadcasting together (``[...]`` with dim=0).

    Raises:
        OptionError: kappa, a or b is not above 0, loc is not finite, or dim is not a count.
        ShapeMismatch: parameters do not fit each other, or dim.
    """

    def __init__(
        self,
        kappa: float | Tensor,
        a: float | Tensor,
        b: float | Tensor,
        loc: float | Tensor = 0.0,
        dim: int | None = None,
    ):
        self.kappa, self.a, self.b, self.loc = floats(kappa, a, b, loc)
        require_positive("NormalInverseGamma", kappa=self.kappa, a=self.a, b=self.b)
        require_finite("NormalInverseGamma", loc=self.loc)
        names = ("kappa", "a", "b", "loc")
        shapes = {name: p.shape for name, p in zip(names, self.parameters, strict=True)}
        shape = require_broadcast("NormalInverseGamma", **shapes)
        if dim is not None:
            dim = count("NormalInverseGamma: dim", dim, least=0)
        elif shape:
            dim = shape[-1]
        if dim and shape and shape[-1] not in (1, dim):
            raise ShapeMismatch(
                f"NormalInverseGamma: parameters of shape {tuple(shape)} do not fit dim={dim}"
            )
        self.dim = dim
        self.batch_shape = shape if dim == 0 else shape[:-1]

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return self.kappa, self.a, self.b, self.loc

    @property
    def dtype(self) -> torch.dtype:
        return self.kappa.dtype

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.dim,) if self.dim else ()

    def fit_to(self, data: Tensor, n: int) -> NormalInverseGamma:
        """This component in the data's precision if higher, ``dim`` settled by n elements' data.

        Raises:
            ShapeMismatch: the data fit neither ``[..., n]`` nor ``[..., n, d]``, or both.
        """
        parameters = floats(*self.parameters, data)[:-1]
        if self.dim is not None:
            return NormalInverseGamma(*parameters, dim=self.dim)
        numbers = data.ndim >= 1 and data.shape[-1] == n
        vectors = data.ndim >= 2 and data.shape[-2] == n
        if numbers and vectors:
            raise ShapeMismatch(
                f"data of shape {tuple(data.shape)} may be numbers [..., n] or vectors [..., n, d] "
                f"for n = {n}; say which by NormalInverseGamma(..., dim=0) or dim={n}"
            )
        if not (numbers or vectors):
            raise ShapeMismatch(
                f"data of shape {tuple(data.shape)} for {n} labels; give [..., {n}] numbers or "
                f"[..., {n}, d] vectors"
            )
        return NormalInverseGamma(*parameters, dim=0 if numbers else data.shape[-1])

    def statistics(self, data: Tensor, centre: Tensor) -> Tensor:
        """``[..., n, 2 d]``: y and y^2 of every observation."""
        y = data.to(self.dtype) - centre
        y = y if self.dim else y.unsqueeze(-1)
        return torch.cat([y, y.square()], dim=-1)

    def detached(self) -> NormalInverseGamma:
        """The same component, out of reach of gradients."""
        return NormalInverseGamma(*(p.detach() for p in self.parameters), dim=self.dim)

    def in_double(self) -> NormalInverseGamma:
        """The same component in double precision."""
        return NormalInverseGamma(*(p.double() for p in self.parameters), dim=self.dim)

    def centre(self, data: Tensor) -> Tensor:
        """A point amid all observations, like one of them."""
        data = data.detach().to(self.dtype)
        return data.reshape(-1, self.dim).mean(0) if self.dim else data.mean()

    def log_marginal(self, count: Tensor, total: Tensor, centre: Tensor) -> Tensor:
        """``[..., C]`` from counts ``[..., C]`` and summed statistics ``[..., C, 2 d]``.

        ``centre``, from which sums are counted, is one observation for all or one per cluster.
        """
        kappa, a, b, loc = self._over_slots()
        s, q = total.chunk(2, dim=-1)
        n = count.unsqueeze(-1)
        shift = loc - (centre if self.dim else centre.unsqueeze(-1))
        kappa_n = kappa + n
        mean = s / n.clamp_min(1)
        spread = (q - s * mean).clamp_min(0)
        b_n = b + (spread + (mean - shift).square() * kappa * n / kappa_n) / 2
        a_n = a + n / 2
        return (
            torch.lgamma(a_n)
            - torch.lgamma(a)
            + a * b.log()
            - a_n * b_n.log()
            + (kappa / kappa_n).log() / 2
            - n / 2 * math.log(2 * math.pi)
        ).sum(-1)

    def _over_slots(self) -> tuple[Tensor, ...]:
        """Parameters that broadcast with ``[..., C, d]``."""
        if self.dim == 0:
            return tuple(p[..., None, None] for p in self.parameters)
        return tuple(p.unsqueeze(-2) if p.ndim else p for p in self.parameters)

    def term(self, data: Tensor) -> NormalInverseGammaTerm:
        """Incremental scores for ``data``."""
        return NormalInverseGammaTerm(self, data)

    def sample(self, labels: Tensor) -> Tensor:
        """Observations of elements in slots ``labels [..., n]`` below n, each with its own draw."""
        dim = self.dim or 1
        shape = labels.shape + (dim,)
        kappa, a, b, loc = (p.expand(shape) for p in self._over_slots())
        variance = 1 / Gamma(a, b).sample()
        mean = loc + (variance / kappa).sqrt() * torch.randn_like(variance)
        index = labels.unsqueeze(-1).expand(shape)
        x = mean.gather(-2, index) + variance.gather(-2, index).sqrt() * torch.randn_like(mean)
        return x if self.dim else x.squeeze(-1)


class NormalInverseGammaTerm(MixtureTerm):
    """Student predictive scores as differences of log marginal likelihoods, O(d) per cluster.

    A row holds -m, 2 b_n and the log marginal likelihood. Scoring element i makes the rows that
    hold i too; those that are then chosen are copied. With g = y - m before,

        join:   -m <- r g - y,    2 b <- 2 b + r g^2,
        leave:  -m <- g / r - y,  2 b <- 2 b - g^2 / r,

    r that of the smaller size. Only the last line can cancel, where outliers leave: what is left of
    2 b is counted anew where its share, over the removals since the last count, comes to LOSS.
    """

    def __init__(self, component: NormalInverseGamma, data: Tensor):
        super().__init__(component, data)
        event_dim = 1 if component.dim else 0
        kappa, a, b, loc = (
            unbatched("NormalInverseGamma", p, event_dim) for p in self.component.parameters
        )
        d = max(component.dim, 1)
        shift = (loc - self.centre).expand(d)
        #: What turns -m into g, and leaves the rest of a row as it is.
        self.table = torch.nn.functional.pad(self.table[:, :d], (0, d + 1))
        self.columns = self.table.unsqueeze(-1).unbind(0)
        self.points = self.table[:, :d].unsqueeze(-1).unbind(0)
        self.prior = torch.cat([-shift, (2 * b).expand(d), shift.new_zeros(1)])
        self.kappa = kappa
        sizes = self.sizes.unsqueeze(-1)
        kappa_n, a_n = kappa + sizes, a + sizes / 2
        constant = torch.lgamma(a_n) - torch.lgamma(a) + a * (2 * b).log()
        constant = constant + (kappa / kappa_n).log() / 2 - sizes / 2 * math.log(math.pi)
        ratio, power = torch.broadcast_tensors(kappa_n / (kappa_n + 1), a_n)
        constant = constant.expand(-1, d).sum(1, keepdim=True)
        #: By size, ``[2 w + 1, n + 2]`` for w = 1 or d: r, a_n, and what depends on nothing else.
        self.by_size = torch.cat([ratio, power, constant], dim=1).T.contiguous()
        #: w and d.
        self.widths = width, _ = ratio.shape[1], d
        #: By size, what a cluster has with one element more, and r to get there.
        self.ahead = torch.cat([self.by_size[:width], self.by_size[width:].roll(-1, dims=1)])

    def _lay_out(self) -> None:
        """Room for the pool's rows with an element more, and views of its parts."""
        width, d = self.widths
        #: r g, and the rows.
        self._ahead = self.totals.new_empty(d + len(self.totals), self.totals.shape[1])
        self._pull, self._new = self._ahead[:d], self._ahead[d:]
        self._looked_up = self.ahead.new_empty(2 * width + 1, self.totals.shape[1])
        self._new_parts, self._new_sizes = parts(self._new, d), parts(self._looked_up, width)
        self._log_marginals = self.totals[-1]
        self._scored: tuple[int, int] | None = None

    def scores(self, i: int, seating: Seating) -> Tensor:
        torch.add(self.totals, self.columns[i], out=self._new)
        torch.index_select(self.ahead, 1, seating.sizes, out=self._looked_up)
        (gap, twice_b, new), (ratio, power, constant) = self._new_parts, self._new_sizes
        torch.mul(gap, ratio, out=self._pull)
        twice_b.addcmul_(self._pull, gap)
        torch.sub(constant, twice_b.log().mul_(power).sum(0), out=new)
        self._scored = i, seating.num_rows
        return (new - self._log_marginals).to(self.dtype)

    def moves(self, elements: Tensor, own: Tensor, seating: Seating) -> tuple[Tensor, Tensor]:
        width, d = self.widths
        sizes, now = seating.sizes, self._log_marginals
        y = self.table[elements, :d].T.unsqueeze(1)  # [d, 1, B]
        minus_m, twice_b, _ = parts(self.totals, d)
        ratio = self.by_size[:width]
        gap = minus_m.unsqueeze(2) + y
        joined = twice_b.unsqueeze(2) + ratio[:, sizes].unsqueeze(2) * gap.square()
        join = self._log_marginals_of((sizes + 1).unsqueeze(1), joined) - now.unsqueeze(1)
        before, size = twice_b[:, own], sizes[own] - 1
        left = before - (minus_m[:, own] + y).square() / ratio[:, size]
        is_known = self._share[own] * (left / before).amin(0) > LOSS
        rest = self._log_marginals_of(size, torch.where(is_known, left, before))
        stay = torch.where(is_known, now[own] - rest, -torch.inf)
        stay = torch.where(size == 0, now[own], stay)
        return join.to(self.dtype), stay.to(self.dtype)

    def append(self, i: int, source: Tensor, start: int, sign: int, seating: Seating) -> None:
        count, d = source.size(0), self.widths[1]
        rows, y = self.totals.narrow(1, start, count), self.points[i]
        share = self._share.index_select(0, source)
        if sign > 0 and self._scored == (i, start):
            pull, new = self._ahead.index_select(1, source).split((d, 2 * d + 1))
            torch.sub(pull, y, out=new[:d])
            rows.copy_(new)
        else:
            new = self.totals.index_select(1, source)
            sizes = seating.sizes.narrow(0, start, count)
            if sign > 0:
                self._join(new, y, sizes)
            else:
                self._leave(new, y, sizes, share, start, seating)
            rows.copy_(new)
        self._share.narrow(0, start, count).copy_(share)
        self._scored = None

    def _join(self, new: Tensor, y: Tensor, sizes: Tensor) -> None:
        """Rows ``new [2 d + 1, U]`` with y ``[d, 1]``, their sizes by then ``[U]``."""
        width, d = self.widths
        (gap, twice_b, log_p), looked_up = parts(new, d), self.ahead.index_select(1, sizes - 1)
        ratio, power, constant = parts(looked_up, width)
        gap.add_(y)
        pull = gap * ratio
        twice_b.addcmul_(pull, gap)
        torch.sub(pull, y, out=gap)
        torch.sub(constant, twice_b.log().mul_(power).sum(0), out=log_p)

    def _leave(
        self, new: Tensor, y: Tensor, sizes: Tensor, share: Tensor, start: int, seating: Seating
    ) -> None:
        """Rows ``new [2 d + 1, U]`` and their ``share [U]`` without y ``[d, 1]``, their sizes by
        then ``[U]``."""
        width, d = self.widths
        (gap, twice_b, log_p), looked_up = parts(new, d), self.by_size.index_select(1, sizes)
        ratio, power, constant = parts(looked_up, width)
        gap.add_(y)
        pull, before = gap / ratio, twice_b.clone()
        twice_b.addcmul_(gap, pull, value=-1)
        torch.sub(pull, y, out=gap)
        share.mul_(torch.div(twice_b, before, out=before).amin(0))
        if not float(share.min()) > LOSS:
            lost = (~(share > LOSS) & (sizes > 0)).nonzero().squeeze(1)
            if len(lost):
                new[:-1, lost] = self.totals_of(seating.members_of(start + lost))
                share[lost] = 1
        torch.sub(constant, twice_b.log().mul_(power).sum(0), out=log_p)

    def totals_of(self, members: Tensor) -> Tensor:
        """``[2 d, U]``: -m and 2 b_n of clusters with these elements, ``[U, n]`` bool."""
        d = self.widths[1]
        y, minus_l, twice_b = self.table[:, :d], self.prior[:d], self.prior[d:-1]
        is_in = members.to(y.dtype)
        size = is_in.sum(1, keepdim=True)
        mean = is_in @ y / size.clamp_min(1)
        spread = torch.empty_like(mean)
        step = max(1, AT_ONCE // max(1, y.numel()))
        for k in range(0, len(mean), step):
            gap = y - mean[k : k + step].unsqueeze(1)  # [U, n, d]
            spread[k : k + step] = torch.einsum("un,und->ud", is_in[k : k + step], gap.square())
        kappa_n = self.kappa + size
        minus_m = (self.kappa * minus_l - size * mean) / kappa_n
        spread = spread + (mean + minus_l).square() * self.kappa * size / kappa_n
        return torch.cat([minus_m, twice_b + spread], dim=1).T

    def log_marginals(self, sizes: Tensor) -> Tensor:
        return self._log_marginals

    def log_marginals_of(self, sizes: Tensor, totals: Tensor) -> Tensor:
        d = self.widths[1]
        return self._log_marginals_of(sizes, totals[d : 2 * d])

    def _log_marginals_of(self, sizes: Tensor, twice_b: Tensor) -> Tensor:
        """``[...]``, of clusters of sizes that broadcast with 2 b_n ``[d, ...]``."""
        _, power, constant = parts(self.by_size[:, sizes], self.widths[0])
        return constant - twice_b.log().mul_(power).sum(0)

    def tidy(self, kept: Tensor, length: int) -> None:
        super().tidy(kept, length)
        self._share = resized(self._share, kept, length)
        self._lay_out()

    def copy(self) -> NormalInverseGammaTerm:
        new = super().copy()
        new._share = self._share.clone()
        new._lay_out()
        return new

    def rebuild(self, seating: Seating) -> None:
        self.totals = torch.nn.functional.pad(self.totals_of(seating.members()), (0, 0, 0, 1))
        self.totals[-1] = self.log_marginals_of(seating.sizes, self.totals)
        #: ``[limit]``, what removals left of 2 b since it was counted, of the dimension least so.
        self._share = torch.ones_like(self.totals[0])
        self._lay_out()


def parts(table: Tensor, width: int) -> tuple[Tensor, ...]:
    """Views of ``[2 w + 1, R]`` as w, w rows and one."""
    return table[:width], table[width:-1], table[-1]
