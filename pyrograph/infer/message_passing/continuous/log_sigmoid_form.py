"""Expectations at alpha = 0 of sums of log sigmoids of single numbers,

    log f(u) = k + sum_i a_i log sigmoid(x_i) + b_i log sigmoid(-x_i),        x_i = w_i u_i - c_i

as those of logistic regressions are, of one number each, with a the successes and b the failures:
of Bernoulli, binomial and negative binomial statements about logits. So are those of shares from 0
to 1, sigmoid(u), or from any bound to another, and those of a simplex, whose K probabilities are
broken off a stick one after the other,

    p_i = s_i prod_{j < i} (1 - s_j),     s_i = sigmoid(u_i - c_i),     c_i = log(K - 1 - i)

Neither a grid in K - 1 numbers is needed nor the factor's steps: with u ~ N(m, s^2), x has mean
w m - c and standard deviation t = w s, and with A = E log sigmoid(x), as log sigmoid(-x) is
log sigmoid(x) - x,

    E log f = k + sum_i (a_i + b_i) A_i - b_i (w_i m_i - c_i)
    E d_i log f = w_i ((a_i + b_i) dA_i/dm_i - b_i)
    E d_i^2 log f = w_i^2 (a_i + b_i) (dA_i/dt_i) / t_i

For a stick w and c are known, and a and b are read at two points on each axis. Of one number all
are read where log f has come to its asymptotes: these meet at x = 0, log f is (a + b) log 2 below
them there, and w (a + b) is the difference of their slopes. That log f is such a sum is seen at
other points.

Source: :mod:`pyrograph.beliefs.expected_log_sigmoid`; the last is Price's theorem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from pyrograph.beliefs import Conjugate
from pyrograph.beliefs.expected_log_sigmoid import expected_log_sigmoid
from pyrograph.beliefs.gaussian import apply
from pyrograph.graph.devices import at_once
from pyrograph.infer.message_passing.continuous.mean_field import CHUNK, Expectations
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.trace.sites import Site
from pyrograph.trace.supports import of_elements

#: On each axis, where coefficients are read: so far from 0 in u, and at so much in x.
READ = (-1.0, 2.0)
#: Where any log sigmoid is at its asymptotes, in u and in x.
FAR, END = 2.0**20, 40.0
#: Scales of points where log f is looked at, and how far off it may be, relative to its terms: at
#: least so much, or rounding of the program's own numbers, such as c, in units of its precision.
SCALES, LEAST, ROUNDING = (1.0, 0.3, 2.0, 1.0, 3.0), 1e-10, 30.0
#: Numbers up to which these are as far out: the last pieces of a long stick are soon none.
FEW = 4


class LogSigmoidForm:
    """Of a set of like factors.

    Args:
        scale, centre: w and c, ``[D, E, r]``.
        taken, left: a and b, ``[D, E, r]``.
        constant: k, ``[D, E]``.
    """

    def __init__(
        self, scale: Tensor, centre: Tensor, taken: Tensor, left: Tensor, constant: Tensor
    ):
        self.scale, self.centre, self.constant = scale, centre, constant
        self.taken, self.left = taken, left

    @staticmethod
    @torch.no_grad()
    def of(local: LocalDensity) -> LogSigmoidForm | None:
        """None where log f is another function.

        Args:
            local: in effective coordinates, in double precision.
        """
        if local.chosen or local.group.is_differentiable:
            return None
        sites = [local.group.slots[k] for k in local.continuous]
        if any(_is_simplex(site) or _is_share(site) for site in sites):
            form = _of_stick(local, _centres(local, sites))
            about = torch.zeros_like(form.centre)
        elif local.dim == 1:
            form = _of_logit(local)
            about = form.centre / form.scale
        else:
            return None
        return form if form.is_that_of(local, about) else None

    def part(self, which: Tensor) -> LogSigmoidForm:
        """Some of the factors, ``which [e]``."""
        out = copy(self)
        for name in ("scale", "centre", "taken", "left", "constant"):
            setattr(out, name, getattr(self, name)[:, which])
        return out

    def __call__(self, moments: tuple[Tensor, Tensor], others: Sequence[Conjugate]) -> Expectations:
        """Of log f and its derivatives.

        Args:
            moments: mean ``[D, E, r]`` and covariance ``[D, E, r, r]`` of u.
            others: none.
        """
        mean = self.scale * moments[0] - self.centre
        sd = self.scale * moments[1].diagonal(dim1=-2, dim2=-1).sqrt()
        average, by_mean, by_sd = expected_log_sigmoid(mean, sd)
        both = self.taken + self.left
        return Expectations(
            self.constant + (both * average - self.left * mean).sum(-1),
            self.scale * (both * by_mean - self.left),
            torch.diag_embed(self.scale.square() * both * by_sd / sd),
            [],
        )

    def value(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """log f at ``u [N, D, E, r]``, ``[N, D, E]``, and the sum of its terms' sizes."""
        x = self.scale * u - self.centre
        terms = torch.cat([self.taken * logsigmoid(x), self.left * logsigmoid(-x)], -1)
        size = 1 + self.constant.abs() + terms.abs().sum(-1)
        return self.constant + terms.sum(-1), size

    def is_that_of(self, local: LocalDensity, about: Tensor) -> bool:
        """Whether log f is the form, as far as it is looked at about ``about [D, E, r]``."""
        size = (len(SCALES), *self.centre.shape)
        generator = torch.Generator().manual_seed(0)
        z = torch.randn(size, generator=generator, dtype=torch.float64, device="cpu")
        far = self.centre.new_tensor(SCALES) / max(1.0, local.dim / FEW) ** 0.5
        u = about + far.view(-1, 1, 1, 1) * z.to(self.centre) / self.scale
        value, sizes = self.value(u)
        own = [torch.finfo(local.group.slots[k].dtype).eps for k in local.continuous]
        within = max(LEAST, ROUNDING * max(own))
        return bool(((local(u) - value).abs() <= within * sizes).all())


def _is_simplex(site: Site) -> bool:
    return isinstance(of_elements(site.support), type(constraints.simplex))


def _is_share(site: Site) -> bool:
    """Whether a site's values are within bounds: shares of what is between, sticks broken once."""
    return isinstance(
        of_elements(site.support), constraints.interval | constraints.half_open_interval
    )


def _centres(local: LocalDensity, sites: Sequence[Site]) -> Tensor:
    """c of every number of u, ``[D, E, r]``; 0 where it is none of a stick."""
    parts = []
    for site, columns in zip(sites, local.columns, strict=True):
        place = torch.arange(site.width, device=local.like.device)
        centre = torch.zeros_like(place, dtype=local.like.dtype)
        if _is_simplex(site):
            pieces = site.constrained_event_shape[-1] - 1
            centre = (pieces - place % pieces).to(local.like).log()
        rows = place.expand(local.num_factors, -1) if columns is None else columns
        parts.append(centre[rows])
    if local.widths != local.read_widths:  # combinations of numbers, which are no pieces
        return local.like.new_zeros(local.num_states, local.num_factors, local.dim)
    of_v = torch.cat(parts, 1).expand(local.num_states, -1, -1)
    return of_v if local.joint is None else apply(local.joint, of_v)


def _of_stick(local: LocalDensity, centre: Tensor) -> LogSigmoidForm:
    """The form of what reads pieces of sticks, about where all pieces are alike, u = 0."""
    r = local.dim
    steps = torch.stack([torch.full_like(centre, READ[0]), centre + READ[1]])  # of u
    axes = torch.eye(r, dtype=centre.dtype, device=centre.device)[:, None, None]
    at_origin = local(torch.zeros_like(centre)[None])
    some = max(1, at_once(CHUNK, centre.device) // max(1, 2 * centre.numel()))
    gain = [
        local((steps[:, None] * part).flatten(0, 1)).unflatten(0, (2, -1)) - at_origin
        for part in axes.split(some)
    ]
    x = torch.cat([torch.zeros_like(steps[:1]), steps]) - centre  # [3, D, E, r]
    both = torch.stack([logsigmoid(x), logsigmoid(-x)], -1)
    apart = (both[1:] - both[0]).movedim(0, -2)  # [D, E, r, 2, 2]
    slope = torch.cat(gain, 1).movedim((0, 1), (-1, -2))  # [D, E, r, 2]
    found = torch.linalg.solve(apart, slope[..., None]).squeeze(-1)
    constant = at_origin[0] - (found * both[0]).sum((-1, -2))
    return LogSigmoidForm(torch.ones_like(centre), centre, found[..., 0], found[..., 1], constant)


def _of_logit(local: LocalDensity) -> LogSigmoidForm:
    """The form of what reads one number, in all states."""
    like = local.like
    far = like.new_full((local.num_states, local.num_factors, 1), FAR)
    for _ in range(2):  # first so far out that any w will do, then no further than digits last
        below, low, high, above = local(torch.stack([-2 * far, -far, far, 2 * far]))
        span = far.squeeze(-1)
        rises, falls = (low - below) / span, (high - above) / span  # w a and w b
        before, after = low + rises * span, high + falls * span  # where the asymptotes are at 0
        slopes = rises + falls
        meet = (after - before) / slopes  # c / w
        depth = before + rises * meet - local(meet[None, ..., None])[0]
        scale = slopes * math.log(2) / depth
        far = (END + (scale * meet).abs())[..., None] / scale[..., None]
    is_flat = (slopes == 0) & (before == after)
    one, nothing = torch.ones_like(scale), torch.zeros_like(scale)
    scale, meet = torch.where(is_flat, one, scale), torch.where(is_flat, nothing, meet)
    constant = torch.where(is_flat, before, before + rises * meet)
    parts = scale, scale * meet, rises / scale, falls / scale
    return LogSigmoidForm(*(part[..., None] for part in parts), constant)
