"""Normal clusters with unknown means and variances, integrated out dimension by dimension.

The log marginal likelihood of the n observations of a cluster depends on their count and sums. With
y = x - c about a centre c near the data (the formulas are invariant; sums of squares then do not
cancel), l = loc - c, S = sum y and Q = sum y^2, per dimension,

    kappa_n = kappa + n,  m = (S + kappa l) / kappa_n,  a_n = a + n / 2,
    b_n = b + (Q + kappa l^2 - kappa_n m^2) / 2,
    log p = log Gamma(a_n) - log Gamma(a) + a log b - a_n log b_n
            + log(kappa / kappa_n) / 2 - n log(2 pi) / 2,

and the next observation is Student's: 2 a_n degrees of freedom, location m, squared scale
b_n (kappa_n + 1) / (a_n kappa_n).

Source: Murphy (2007), "Conjugate Bayesian analysis of the Gaussian distribution", section 3. The
inverse gamma has *scale* b, density ~ v^(-a - 1) exp(-b / v).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Gamma

from pyrograph.distributions.checks import floats, require_count, require_positive, unbatched
from pyrograph.distributions.mixture_term import MixtureTerm
from pyrograph.distributions.seating import Seating
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
        OptionError: kappa, a or b is not above 0, or dim is not a count.
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
        shape = torch.broadcast_shapes(*(p.shape for p in self.parameters))
        if dim is not None:
            require_count("NormalInverseGamma", "dim", dim, least=0)
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

    def centre(self, data: Tensor) -> Tensor:
        """A point near all observations, from which sums are counted."""
        if not self.dim:
            return data.detach().mean()
        return data.detach().reshape(-1, self.dim).mean(0)

    def log_marginal(self, count: Tensor, total: Tensor, centre: Tensor) -> Tensor:
        """``[..., C]`` from counts ``[..., C]`` and summed statistics ``[..., C, 2 d]``."""
        kappa, a, b, loc = self._over_slots()
        s, q = total.chunk(2, dim=-1)
        n = count.unsqueeze(-1)
        shift = loc - centre
        kappa_n = kappa + n
        m = (s + kappa * shift) / kappa_n
        b_n = b + (q + kappa * shift.square() - kappa_n * m.square()) / 2
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

    The prior counts among the sums: a row holds kappa l + S, 2 b + kappa l^2 + Q, and the log
    marginal likelihood. Scoring element i makes the rows that hold i too; those that are then
    chosen are copied.
    """

    def __init__(self, component: NormalInverseGamma, data: Tensor):
        super().__init__(component, data)
        event_dim = 1 if component.dim else 0
        kappa, a, b, loc = (
            unbatched("NormalInverseGamma", p, event_dim) for p in self.component.parameters
        )
        d = max(component.dim, 1)
        shift = (loc - self.centre).expand(d)
        nothing = self.table.new_zeros(len(self.table), 1)
        self.table = torch.cat([self.table, nothing], dim=1)
        self.columns = self.table.unsqueeze(-1).unbind(0)
        self.prior = torch.cat([kappa * shift, 2 * b + kappa * shift.square(), nothing[0]])
        sizes = self.sizes.unsqueeze(-1)
        kappa_n, a_n = kappa + sizes, a + sizes / 2
        constant = torch.lgamma(a_n) - torch.lgamma(a) + a * (2 * b).log()
        constant = constant + (kappa / kappa_n).log() / 2 - sizes / 2 * math.log(math.pi)
        inverse, power = torch.broadcast_tensors(1 / kappa_n, a_n)
        #: By size, ``[2 w + 1, n + 2]`` for w = 1 or d: 1 / kappa_n, a_n, and what depends on
        #: nothing else.
        constant = constant.expand(-1, d).sum(1, keepdim=True)
        self.by_size = torch.cat([inverse, power, constant], dim=1).T.contiguous()
        #: By size, of clusters with one element more.
        self.ahead = self.by_size.roll(-1, dims=1)
        #: w and d.
        self.widths = inverse.shape[1], d

    def _lay_out(self) -> None:
        """Room for the pool's rows with an element more, and views of its parts."""
        width, d = self.widths
        self._new = torch.empty_like(self.totals)
        self._looked_up = self.ahead.new_empty(2 * width + 1, self.totals.shape[1])
        self._parts = parts(self._new, d) + parts(self._looked_up, width)
        self._log_marginals, self._new_log_marginals = self.totals[-1], self._new[-1]
        self._scored: tuple[int, int] | None = None

    def scores(self, i: int, seating: Seating) -> Tensor:
        torch.add(self.totals, self.columns[i], out=self._new)
        torch.index_select(self.ahead, 1, seating.sizes, out=self._looked_up)
        _log_marginal(*self._parts)
        self._scored = i, seating.num_rows
        return self._new_log_marginals - self._log_marginals

    def moves(self, elements: Tensor, own: Tensor, seating: Seating) -> tuple[Tensor, Tensor]:
        column = self.table[elements].T  # [m, B]
        sizes = seating.sizes
        joined = self.totals.unsqueeze(2) + column.unsqueeze(1)
        self._settle(joined, (sizes + 1).unsqueeze(1).expand(joined.shape[1:]))
        left = self.totals[:, own] - column.unsqueeze(1)
        self._settle(left, sizes[own] - 1)
        now = self._log_marginals
        return joined[-1] - now.unsqueeze(1), now[own] - left[-1]

    def append(self, i: int, source: Tensor, start: int, sign: int, seating: Seating) -> None:
        rows = self.totals.narrow(1, start, source.size(0))
        if sign > 0 and self._scored == (i, start):
            rows.copy_(self._new.index_select(1, source))
        else:
            new = self.totals.index_select(1, source).add_(self.columns[i], alpha=sign)
            sizes = seating.sizes.narrow(0, start, source.size(0))
            self._settle(new, sizes)
            rows.copy_(new)
        self._scored = None

    def _settle(self, totals: Tensor, sizes: Tensor) -> None:
        """Fill in the log marginal likelihoods of clusters from their sums."""
        width, d = self.widths
        _log_marginal(*parts(totals, d), *parts(self.by_size[:, sizes], width))

    def log_marginals(self, sizes: Tensor) -> Tensor:
        return self._log_marginals

    def tidy(self, kept: Tensor, length: int) -> None:
        super().tidy(kept, length)
        self._lay_out()

    def copy(self) -> NormalInverseGammaTerm:
        new = super().copy()
        new._lay_out()
        return new

    def rebuild(self, seating: Seating) -> None:
        super().rebuild(seating)
        self._settle(self.totals, seating.sizes)
        self._lay_out()


def parts(table: Tensor, width: int) -> tuple[Tensor, ...]:
    """Views of ``[2 w + 1, R]`` as w, w rows and one."""
    return table[:width], table[width:-1], table[-1]


def _log_marginal(
    s: Tensor, q: Tensor, out: Tensor, inverse: Tensor, power: Tensor, constant: Tensor
) -> None:
    """Into ``out [R]``, from sums ``[d, R]`` and what depends on sizes."""
    twice_b_n = torch.addcmul(q, s * inverse, s, value=-1)
    torch.sub(constant, twice_b_n.log_().mul_(power).sum(0), out=out)
