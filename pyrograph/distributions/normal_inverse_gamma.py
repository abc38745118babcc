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
from pyrograph.distributions.incremental import Seating
from pyrograph.distributions.mixture_term import MixtureTerm
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
    """Student predictive scores, O(C d) per particle.

    The prior counts among the sums: a slot holds kappa l + S and 2 b + kappa l^2 + Q.
    """

    def __init__(self, component: NormalInverseGamma, data: Tensor):
        super().__init__(component, data)
        event_dim = 1 if component.dim else 0
        kappa, a, b, loc = (
            unbatched("NormalInverseGamma", p, event_dim) for p in self.component.parameters
        )
        shift = (loc - self.centre).expand(max(component.dim, 1))
        self.prior = torch.cat([kappa * shift, 2 * b + kappa * shift.square()])
        kappa_n, a_n = kappa + self.sizes.unsqueeze(-1), a + self.sizes.unsqueeze(-1) / 2
        shrunk = kappa_n / (kappa_n + 1)
        constant = torch.lgamma(a_n + 0.5) - torch.lgamma(a_n) + (shrunk / math.pi).log() / 2
        #: By cluster size, ``[n + 1]``, or ``[d, n + 1]`` where a parameter has dimensions.
        self.inverse, self.shrunk, self.power, self.constant = (
            part.squeeze(-1) if part.shape[-1] == 1 else part.T.contiguous()
            for part in torch.broadcast_tensors(1 / kappa_n, shrunk, a_n + 0.5, constant)
        )
        self.y = self.table[:, : len(shift), None, None].unbind(0)

    def scores(self, i: int, seating: Seating) -> Tensor:
        def of_size(table: Tensor) -> Tensor:
            return table.take(seating.counts) if table.ndim == 1 else table[:, seating.counts]

        s, q = self.totals.chunk(2)
        m = s * of_size(self.inverse)
        twice_b_n = torch.addcmul(q, s, m, value=-1)
        gap = torch.sub(self.y[i], m, out=m)
        log_ratio = gap.square_().mul_(of_size(self.shrunk)).div_(twice_b_n).log1p_()
        spread = log_ratio.mul_(of_size(self.power)).add_(twice_b_n.log_(), alpha=0.5)
        return torch.sub(of_size(self.constant), spread, out=spread).sum(0)
