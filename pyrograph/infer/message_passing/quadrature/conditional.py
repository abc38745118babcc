"""Moments of tilted distributions of factors that are quadratic in some numbers, given the others.

Normal densities of a latent scale, or of a mean with products of latents, are no quadratic
functions, but with u = (s, t)

    log f(u) = -s' A(t) s / 2 + b(t)' s + c(t)

so that s is integrated in closed form at every point of a grid that is laid over t alone:

    P(t) = alpha A(t) + G_ss,      m(t) = P(t)^-1 (alpha b(t) + g_s - G_st t),
    log int f^alpha g ds = alpha log f(m, t) + log g(m, t) - log det P(t) / 2 + |s| log(2 pi) / 2

with g(u) = exp(-u' G u / 2 + g' u). A grid over all of u would have to find a ridge that is as
narrow as the scale, for all scales at once. The coefficients are differences of values of log f,
and f is evaluated again at m: where it is narrow c(t) is a difference of large numbers.

Source: Rao-Blackwell's theorem, for the moments of Minka (2005), eq (17).
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import apply
from pyrograph.errors import InferenceError
from pyrograph.infer.message_passing.densities.checked import NOTHING, Improper
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.quadrature.grids import Grid
from pyrograph.infer.message_passing.quadrature.sums import Tilted, Weighed
from pyrograph.infer.message_passing.quadrature.tilted import POINTS, TiltedMoments
from pyrograph.trace.forms.degree import polynomial_degree

#: Coefficients of coordinates below this are rounding.
ROUNDING = 1e-9
#: Rounding of A(t), in units of the dtype's precision: so much is added where P would be singular.
RIDGE = 16.0
#: Sets of nodes to be given that are looked at, the smallest first, and that are tried.
MOST_SUBSETS, MOST_TRIES = 4096, 64
#: Points at which a form is looked at, and rounding that is granted there.
CHECKS, SLACK = 8, 1e3


def quadratic_coordinates(local: LocalDensity) -> list[int]:
    """Numbers of u that the factors are quadratic in, given the others: as many as can be found,
    none if there are none or if too many others are left."""
    count, depends = len(local.continuous), _dependence(local)
    if min(count, local.dim) < 2:
        return []

    def is_quadratic(given: list[int]) -> bool:
        leaves = [*local.discrete, *(local.continuous[k] for k in given)]
        return polynomial_degree(local.group.program, leaves) <= 2

    def inner_of(given: list[int]) -> list[int]:
        return (~depends[given].any(0)).nonzero().squeeze(1).tolist()

    every = list(range(count))
    must: list[int] = []
    for k in every:
        if not is_quadratic([n for n in every if n != k]):
            must.append(k)
            if local.dim - len(inner_of(must)) > max(POINTS):
                return []
    free = [k for k in every if k not in must]
    most = len(inner_of(must))
    found: list[int] = []
    tries = 0
    subsets = (more for size in range(len(free)) for more in itertools.combinations(free, size))
    for more in itertools.islice(subsets, MOST_SUBSETS):
        given = [*must, *more]
        inner = inner_of(given)
        if not len(found) < len(inner) < local.dim or local.dim - len(inner) not in POINTS:
            continue
        tries += 1
        if is_quadratic(given) and _bends_alike(local, inner):
            found = inner
        if tries == MOST_TRIES or len(found) == most:
            break
    return found


@torch.no_grad()
def _bends_alike(local: LocalDensity, inner: list[int]) -> bool:
    """Whether third differences along the numbers vanish, at points at random: what the steps say,
    seen once more."""
    generator = torch.Generator().manual_seed(0)
    shape = (CHECKS, local.num_states, local.num_factors, local.dim)
    u, step = (
        torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(local.like)
        for _ in range(2)
    )
    step[..., [n for n in range(local.dim) if n not in inner]] = 0.0
    value = torch.stack([local(u + k * step) for k in range(4)])
    third = value[3] - 3 * value[2] + 3 * value[1] - value[0]
    bound = SLACK * torch.finfo(u.dtype).eps * (1 + value.abs().sum(0))
    return bool(((third.abs() <= bound) | ~third.isfinite()).all())


def _dependence(local: LocalDensity) -> Tensor:
    """``[slots, r]``: which continuous slots a number of u depends on."""
    if local.joint is None:
        slots = torch.arange(len(local.widths), device="cpu").repeat_interleave(
            torch.tensor(local.widths, device="cpu")
        )
        return slots == torch.arange(len(local.widths), device="cpu")[:, None]
    depends = (local.joint.abs() > ROUNDING).flatten(0, 1).any(0)  # [r, R]
    return torch.stack([part.any(1) for part in depends.split(local.widths, 1)])


class ConditionalMoments(TiltedMoments):
    """Moments for a set of like factors, on grids over t.

    Args:
        local: their density in effective coordinates.
        alpha: ``[E]``, positive.
        inner: the numbers s of u.
        num_points: per dimension of t; default by dimension.
    """

    def __init__(
        self,
        local: LocalDensity,
        alpha: Tensor,
        inner: list[int],
        num_points: int | None = None,
    ):
        super().__init__(local, alpha, num_points, local.dim - len(inner))
        outer = [n for n in range(local.dim) if n not in inner]
        self._inner, self._outer = (
            torch.tensor(n, device=local.like.device) for n in (inner, outer)
        )
        self._order = torch.cat([self._inner, self._outer]).argsort()
        eye = torch.eye(local.dim, dtype=local.like.dtype, device=local.like.device)
        self._place = eye[:, self._inner]  # [r, |s|]
        self._stencil = stencil(len(inner)).to(local.like)
        i, j = torch.triu_indices(len(inner), len(inner), 1, device="cpu")
        pairs = (
            torch.eye(len(inner), device="cpu")[i][:, :, None]
            * torch.eye(len(inner), device="cpu")[j][:, None]
        )
        self._pairs = (pairs + pairs.mT).to(local.like)  # [pairs, |s|, |s|]
        self._evaluations = len(self._stencil) + 1
        #: Where no distribution of s is left, a grid over all of u.
        self._whole = TiltedMoments(local, alpha) if local.dim in POINTS else None

    def use_alpha(self, alpha: Tensor) -> None:
        super().use_alpha(alpha)
        if self._whole is not None:
            self._whole.use_alpha(alpha)

    def __call__(self, g: Gaussian, origin: Tensor, start: Grid | None, first: Grid) -> Tilted:
        covariance = first.root @ first.root.mT
        mean, covariance = self._on_grid(first.mean, covariance)
        try:
            return super().__call__(g, origin, start, Grid(mean, torch.linalg.cholesky(covariance)))
        except Improper as error:
            if self._whole is None:
                raise InferenceError(str(error)) from None
        found = self._whole(g, origin, None, first)
        mean, covariance = self._on_grid(found.mean.detach(), found.covariance.detach())
        return replace(found, grid=Grid(mean, torch.linalg.cholesky(covariance)))

    def _on_grid(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        return mean[..., self._outer], covariance[..., self._outer, :][..., self._outer]

    def _weights(self, g: Gaussian, origin: Tensor, grid: Grid, z: Tensor) -> Weighed:
        t = grid.mean + apply(grid.root, z)  # [N, D, E, |t|]
        base = origin[..., self._inner]
        around = g.precision[..., self._inner, :]  # [D, E, |s|, r]
        unit = around[..., self._inner].diagonal(dim1=-2, dim2=-1).detach()
        unit = torch.where(unit > 0, unit.rsqrt(), 1.0)  # s = base + unit y
        precision, shift, is_nothing = self._coefficients(t, base, unit)
        precision = precision + around[..., self._inner] * unit[..., :, None] * unit[..., None, :]
        away = apply(around[..., self._outer], t - origin[..., self._outer])
        shift = shift + (g.shift[..., self._inner] - away) * unit
        eye = torch.eye(len(self._inner), dtype=t.dtype, device=t.device)
        inner = Gaussian(
            torch.where(is_nothing[..., None, None], eye, precision),
            torch.where(is_nothing[..., None], 0.0, shift),
        )
        self._refuse_improper(inner)
        u = self._joined(base + unit * inner.mean, t)
        value = torch.where(is_nothing, NOTHING, self.density(u))
        mass = inner.log_mass_over_peak + unit.log().sum(-1)
        log_weight = self.alpha * value + g.log_value(u - origin) + mass + grid.log_volume
        place = self._place * unit[..., None, :]
        return Weighed(u, log_weight, value, inner.covariance, place)

    def _coefficients(self, t: Tensor, base: Tensor, unit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """alpha A ``[N, D, E, |s|, |s|]`` and alpha b of y at t, and ``[N, D, E]`` where f is 0."""
        count, size = len(t), len(self._inner)
        s = base + unit * self._stencil[:, None, None, None]  # [C, 1, D, E, |s|]
        u = self._joined(s.expand(-1, count, -1, -1, -1), t.expand(len(s), *t.shape))
        value = self.density(u.flatten(0, 1)).view(u.shape[:-1])
        at, up, down, both = value.split([1, size, size, len(value) - 1 - 2 * size])
        precision = torch.diag_embed((2 * at - up - down).movedim(0, -1))
        if size > 1:
            i, j = torch.triu_indices(size, size, 1, device=t.device)
            across = (up[i] + up[j] - both - at).movedim(0, -1)
            precision = precision + torch.einsum("ndep,pij->ndeij", across, self._pairs)
            trace = precision.diagonal(dim1=-2, dim2=-1).abs().sum(-1)
            ridge = RIDGE * torch.finfo(t.dtype).eps * trace
            precision = precision + torch.diag_embed(ridge[..., None].expand(*ridge.shape, size))
        alpha = self.alpha[:, None]
        slope = alpha * (0.5 * (up - down)).movedim(0, -1)
        return alpha[..., None] * precision, slope, (value <= NOTHING).any(0)

    def _joined(self, s: Tensor, t: Tensor) -> Tensor:
        """u ``[..., r]``."""
        return torch.cat([s.expand(*t.shape[:-1], -1), t], -1)[..., self._order]

    def _refuse_improper(self, inner: Gaussian) -> None:
        bad = ~inner.is_proper
        if bool(bad.any()):
            e = int(bad.flatten(0, 1).any(0).nonzero()[0])
            raise Improper(
                f"{self.local.name(e)} and the cavities of its nodes leave no distribution: their "
                "product cannot be normalised. Use a larger damping (0.5, 0.9), or priors that "
                "hold the nodes; of a walk that is a sum of steps, make its states the nodes."
            )


def stencil(size: int) -> Tensor:
    """Points ``[C, size]`` that a quadratic function is known from: 0, e_i, -e_i, e_i + e_j."""
    eye = torch.eye(size, device="cpu")
    i, j = torch.triu_indices(size, size, 1, device="cpu")
    return torch.cat([torch.zeros(1, size, device="cpu"), eye, -eye, eye[i] + eye[j]])
