"""Moments of tilted distributions, f(u)^alpha g(u), on grids that follow them.

    log int f^alpha g du,   mean and covariance under f^alpha g

g is Gaussian, but for numbers with gamma or beta beliefs. Gauss-Hermite points are laid where the
tilted distribution was found before, so that near a fixed point the integrand is almost constant
and few points are enough. In one dimension the first grid comes of a fine scan, since a peak much
narrower than g may fall between the points; where the scan and the few points disagree (several
modes, edges), evenly spaced points stay in use, over all that counts for mass or variance: a small
mode far away may be most of a variance.

Source: Liu & Pierce (1994) for adaptive Gauss-Hermite quadrature.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate, Gaussian, Natural
from pyrograph.beliefs.gaussian import LOG_2PI, apply
from pyrograph.errors import NonFiniteDensity, ZeroMass
from pyrograph.infer.message_passing.families import zeros_refused
from pyrograph.infer.message_passing.grids import (
    Grid,
    evenly_spaced,
    every_second,
    laid_over,
    reached,
    reached_together,
)
from pyrograph.infer.message_passing.reduction import LocalDensity
from pyrograph.quadrature import gauss_hermite

#: Points per dimension, by effective dimension. Even: in the middle of a grid differences vanish,
#: and where they do a normal density grows without bound as its scale goes to 0.
POINTS = {1: 32, 2: 16, 3: 10, 4: 8, 5: 6}
#: Grids are moved again while fewer points than this carry the weight, at most so many times.
FEW_POINTS, MAX_MOVES = 4.0, 12
#: A grid shrinks to no less than this share of its variance at once.
SHRINK = 0.05
#: Log of a zero on the grid: minus infinity would make weights NaN where all points are zeros.
NOTHING = -1e30
#: Halvings of the way to a zero, whose edge is then known to rounding.
BISECTIONS = 60
#: Numbers evaluated at once, and numbers of the points that are weighed at once: arrays of more
#: than 32 MiB, which go back to the system as soon as they are freed.
CHUNK, PIECE = 2**20, 3 * 2**21
#: Most evenly spaced points, and where these are too few; fewest; and the numbers that the first
#: scan may evaluate, and later ones.
MOST, FINEST, FEWEST, FIRST_NUMBERS, NUMBERS = 4097, 2**16 + 1, 65, 2**25, 2**22
#: Squared distance, in a grid's standard deviations, from which it may miss what is there.
APART = 4.0
#: Difference of log masses from which a grid of few points is not trusted, and of means (in
#: standard deviations) and variances (relative).
DISAGREE, DIFFER = 1e-4, 0.01
#: Functions whose log falls by less over a standard deviation of the grid count as flat; and how
#: often the distance is doubled at which what they leave to the factor is looked for.
FLAT, DOUBLINGS = 1e-6, 40
#: Difference of log masses, or relative one of second moments, that steps between evenly spaced
#: points may make; and of such points, how many are enough to compare two grids.
STEPS, COMPARED = 0.05, 257


@dataclass(frozen=True)
class Product:
    """A product of functions of different numbers, some of them gamma or beta ones.

    Attributes:
        parts: functions of batch ``[E]``; slices: the numbers of u that each one is about.
    """

    parts: list[Natural]
    slices: list[slice]

    def log_value(self, u: Tensor) -> Tensor:
        """``[*batch, E]`` of ``u [*batch, E, r]``."""
        return sum(p.log_value(u[..., s]) for p, s in zip(self.parts, self.slices, strict=True))

    def statistics(self, u: Tensor) -> Tensor:
        """Of the gamma and beta parts, two each: ``[*batch, E, 2 m]``."""
        both = zip(self.parts, self.slices, strict=True)
        return torch.cat(
            [p.statistics(u[..., s.start]) for p, s in both if isinstance(p, Conjugate)], -1
        )


Surroundings = Gaussian | Product


@dataclass(frozen=True)
class Tilted:
    """Log mass ``[D, E]`` of f^alpha g (g not normalised), mean ``[D, E, r]``, covariance
    ``[D, E, r, r]``, expectations of g's statistics ``[D, E, k]``, the grid for the next time, the
    one laid over the moments, whether too few points carried the weight, and of evenly spaced ones
    what every second one finds, ``[2, D, E]``."""

    log_mass: Tensor
    mean: Tensor
    covariance: Tensor
    expected: Tensor
    grid: Grid
    peak: Grid
    has_few: bool
    half: Tensor | None


@dataclass(frozen=True)
class Sums:
    """Of :class:`Tilted`, over some points; and sums of squared weights ``[D, E]``, ``[E]``
    whether a factor is zero at all of these points, and of evenly spaced ones the first and the
    last z that count, ``[2, D, E]``, and mass and second moment on every second one, as shares of
    those on all, ``[2, D, E]``."""

    log_mass: Tensor
    mean: Tensor
    covariance: Tensor
    expected: Tensor
    squares: Tensor
    is_nothing: Tensor
    reach: Tensor | None
    half: Tensor | None


class TiltedMoments:
    """Moments for a set of like factors.

    Args:
        local: their density in effective coordinates.
        alpha: ``[E]``, not 0.
        num_points: per dimension; default :data:`POINTS`.
        dim: of the grid; default that of u.
    """

    def __init__(
        self,
        local: LocalDensity,
        alpha: Tensor,
        num_points: int | None = None,
        dim: int | None = None,
    ):
        self.local, self.alpha = local, alpha
        self.dim = local.dim if dim is None else dim
        like = local.like
        z, w = gauss_hermite(num_points or POINTS[self.dim], self.dim, like.dtype, like.device)
        volume = w.log() + 0.5 * z.square().sum(1) + 0.5 * self.dim * LOG_2PI
        self._few = z, volume
        self.is_rough = False
        #: ``[D, E]`` where evenly spaced points were too few the last time.
        self.coarse: Tensor | None = None
        self._most = MOST
        self._has_negative = bool((alpha < 0).any())

    def use_alpha(self, alpha: Tensor) -> None:
        """Go on with other alphas ``[E]``, of the same signs."""
        self.alpha = alpha

    def evaluate(self, u: Tensor) -> Tensor:
        """log f at ``[N, D, E, r]``, zeros as :data:`NOTHING`.

        Raises:
            NonFiniteDensity: NaN, naming the factor.
        """
        size = max(1, CHUNK // max(1, u[0].numel() * sum(self.local.read_widths)))
        value = torch.cat([self.local(part) for part in u.split(size)])
        if bool(value.detach().sum().isnan()):
            bad = (value.isnan() | (value == torch.inf)).flatten(0, 1).any(0)
            if bool(bad.any()):
                e = int(bad.nonzero()[0])
                at = u[..., e, :][(value[..., e].isnan() | (value[..., e] == torch.inf))][0]
                raise NonFiniteDensity(
                    f"{self.local.name(e)} has log density NaN or plus infinity, at effective "
                    f"coordinates {[round(float(x), 4) for x in at]}. Look at that statement: a "
                    "scale that can reach 0 or a logarithm of a negative number are the usual "
                    "causes."
                )
        return torch.nan_to_num(value, nan=torch.nan, neginf=NOTHING)

    def __call__(self, g: Surroundings, origin: Tensor, start: Grid | None, first: Grid) -> Tilted:
        """Moments of f^alpha g.

        Args:
            g: a Gaussian of batch ``[D, E]``, dimension r, or a product of several functions;
                need not be proper. It is a function of u - origin: of numbers far from 0 natural
                parameters lose their digits.
            origin: ``[D, E, r]``.
            start: the grid of the last time.
            first: where to look when there is none.

        Raises:
            ZeroMass: no point with a positive density was found.
        """
        if start is not None:
            return self._moved(g, origin, self._nearer(g, origin, start, first))
        if self.dim > 1:
            return self._moved(g, origin, first)
        if isinstance(g, Gaussian) and self.local.dim == 1:
            first = self._widened(g, origin, first)
        with torch.no_grad():
            scan = self._on(g, origin, first, self._even(FIRST_NUMBERS))
            if scan.has_few:
                scan = self._moved_over(g, origin, scan.grid, self._even(NUMBERS))
        found = self._moved(g, origin, scan.peak)
        if self._differ(found, scan):
            self.is_rough = True
            found = self._moved(g, origin, scan.grid)
        return found

    @torch.no_grad()
    def _widened(self, g: Gaussian, origin: Tensor, first: Grid) -> Grid:
        """Where g is flat the grid is laid over nothing but a guess: wide enough to reach where
        f is largest at points that double their distance."""
        flat = g.precision[..., 0, 0] * first.root[..., 0, 0].square() < FLAT
        if not bool(flat.any()):
            return first
        steps = 2.0 ** torch.arange(DOUBLINGS, device=first.mean.device, dtype=first.mean.dtype)
        z = torch.cat([torch.zeros_like(steps[:1]), steps, -steps]).view(-1, 1, 1, 1)
        u = first.mean + first.root[..., 0] * z
        try:
            value = self.alpha * self.evaluate(u) + g.log_value(u - origin)
        except NonFiniteDensity:  # f may be no number so far out
            return first
        reach = z.abs()[value.argmax(0), 0, 0, 0]  # [D, E]
        wide = torch.where(flat, reach.clamp_min(1), 1.0)[..., None, None]
        return Grid(first.mean, first.root * wide)

    def _differ(self, found: Tilted, scan: Tilted) -> bool:
        """Whether moments on few points are not those of the scan."""
        mean, covariance = self._on_grid(found.mean, found.covariance)
        expected, width = self._on_grid(scan.mean, scan.covariance)
        spread = (covariance / width - 1).abs()[..., 0, 0] > DIFFER
        shift = (mean - expected).square()[..., 0] > DIFFER**2 * width[..., 0, 0]
        mass = (found.log_mass - scan.log_mass).abs() > DISAGREE
        is_sure = (scan.half - 1).abs().amax(0) < DIFFER
        return bool((mass | (is_sure & (shift | spread))).any())

    def _nearer(self, g: Surroundings, origin: Tensor, start: Grid, first: Grid) -> Grid:
        """The grid of the last time, or the one laid over g for factors for which g lies off the
        last one: where it has moved far that one holds hardly any mass."""
        off = (first.mean - start.mean).unsqueeze(-1)
        z = torch.linalg.solve_triangular(start.root, off, upper=False)
        apart = z.square().sum((-1, -2)) > APART
        if not bool(apart.any()):
            return start
        try:
            with torch.no_grad():
                points = self._points
                if self.is_rough and len(points[0]) > COMPARED:
                    points = evenly_spaced(COMPARED, self.local.like)
                here, there = (self._weighed(g, origin, grid, points) for grid in (start, first))
        except NonFiniteDensity:  # g may reach where f is no number
            return start
        has_more = there.log_mass > here.log_mass + (STEPS if self.is_rough else DISAGREE)
        moved = (apart & has_more & (1 / there.squares > FEW_POINTS))[..., None]
        return Grid(
            torch.where(moved, first.mean, start.mean),
            torch.where(moved[..., None], first.root, start.root),
        )

    @property
    def _points(self) -> tuple[Tensor, Tensor]:
        """Points in use, and their log volumes."""
        return self._even(NUMBERS) if self.is_rough else self._few

    def _even(self, numbers: int) -> tuple[Tensor, Tensor]:
        """Evenly spaced points, as many as may be evaluated for all factors."""
        evaluations = self.local.num_states * len(self.alpha) * self._evaluations
        per_point = evaluations * sum(self.local.read_widths)
        count = min(self._most, max(FEWEST, numbers // max(1, per_point)))
        return evenly_spaced(count, self.local.like)

    def _moved(self, g: Surroundings, origin: Tensor, grid: Grid) -> Tilted:
        """Moments on a grid that is moved until enough points carry the weight."""
        found = self._moved_over(g, origin, grid, self._points)
        if self.is_rough and self._refines(found):
            found = self._moved_over(g, origin, grid, self._points)
        self.coarse = _misses(found) if self.is_rough else None
        return found

    def _refines(self, found: Tilted) -> bool:
        """Take more points where they were too few; whether there are any more."""
        if self._most == FINEST or not bool(_misses(found).any()):
            return False
        before, self._most = len(self._points[0]), FINEST
        return len(self._points[0]) > before

    def _moved_over(
        self, g: Surroundings, origin: Tensor, grid: Grid, points: tuple[Tensor, Tensor]
    ) -> Tilted:
        for _ in range(MAX_MOVES):
            found = self._on(g, origin, grid, points)
            if not found.has_few:
                break
            grid = found.grid
        return found

    def _on(
        self, g: Surroundings, origin: Tensor, grid: Grid, points: tuple[Tensor, Tensor]
    ) -> Tilted:
        sums = self._weighed(g, origin, grid, points)
        self._refuse_nothing(sums.is_nothing)
        with torch.no_grad():
            few = 1 / sums.squares < FEW_POINTS
            floor = SHRINK * grid.root @ grid.root.mT
            mean, covariance = self._on_grid(sums.mean, sums.covariance)
            if self.dim > 1:  # few along an axis, though not altogether
                width = grid.root.square().sum(-1)
                few = few | (covariance.diagonal(dim1=-2, dim2=-1) < SHRINK * width).any(-1)
            root, info = torch.linalg.cholesky_ex(covariance + floor * few[..., None, None])
            keep = (info != 0)[..., None]
            peak = Grid(
                torch.where(keep, grid.mean, mean).detach(),
                torch.where(keep[..., None], grid.root, root).detach(),
            )
            there = peak
            if sums.reach is not None:
                there = laid_over(sums.reach, grid, peak, few, len(points[0]))
        moments = sums.log_mass, sums.mean, sums.covariance, sums.expected
        return Tilted(*moments, there, peak, bool(few.any()), sums.half)

    def _weighed(
        self, g: Surroundings, origin: Tensor, grid: Grid, points: tuple[Tensor, Tensor]
    ) -> Sums:
        """Sums over all points, some at a time."""
        numbers = grid.mean[..., 0].numel() * self.local.dim * self._evaluations
        size = max(2, PIECE // max(1, numbers) // 2 * 2)  # pieces begin with the same half
        pieces = zip(*(part.split(size) for part in points), strict=True)
        even = points is not self._few
        return _together([self._sums(g, origin, grid, z, volume, even) for z, volume in pieces])

    #: How often f is evaluated for a point.
    _evaluations = 1

    def _on_grid(self, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of u's numbers that the grid is laid over."""
        return mean, covariance

    def _sums(
        self,
        g: Surroundings,
        origin: Tensor,
        grid: Grid,
        z: Tensor,
        volume: Tensor,
        even: bool,
    ) -> Sums:
        """Over some points ``[N, r]``, of log volumes ``[N]``, evenly spaced ones or not."""
        u = grid.mean + apply(grid.root, z[:, None, None, :])
        value = self.evaluate(u)
        if self._has_negative:
            self.refuse_zeros(value, u)
        stretch = grid.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        log_w = self.alpha * value + g.log_value(u - origin) + volume[:, None, None] + stretch
        log_w = torch.where(value <= NOTHING, NOTHING, log_w)
        log_mass = log_w.logsumexp(0)
        share = (log_w - log_mass).exp()
        mean = (share[..., None] * u).sum(0)
        off = u - mean
        if off.shape[-1] == 1:  # a third of the time of the contraction
            covariance = (share[..., None] * off * off).sum(0).unsqueeze(-1)
        else:
            covariance = torch.einsum("nde,nder,ndes->ders", share, off, off)
        expected = (share[..., None] * g.statistics(u)).sum(0) if isinstance(g, Product) else mean
        nothing = (value <= NOTHING).flatten(0, 1).all(0)
        reach = reached(share, z) if even else None
        half = every_second(share, z) if even else None
        squares = share.square().sum(0)
        return Sums(log_mass, mean, covariance, expected, squares, nothing, reach, half)

    def refuse_zeros(self, value: Tensor, u: Tensor) -> None:
        """Refuse values ``[N, D, E]`` at ``u`` of factors with alpha <= 0 that are zeros.

        Raises:
            OptionError: naming the factor.
            NonFiniteDensity: naming a factor that is not zero, but whose logarithm overflows.
        """
        zero = ((value <= NOTHING) & (self.alpha <= 0)).flatten(0, 1).any(0)
        if not bool(zero.any()):
            return
        e = int(zero.nonzero()[0])
        if bool(self.too_large(value, u)[e]):
            raise NonFiniteDensity(
                f"{self.local.name(e)} has a log density too large for numbers within reach of its "
                f"nodes' beliefs, and alpha={float(self.alpha[e]):g} averages it there: the "
                "beliefs are too wide. Use damping=0.5, a prior that holds the nodes tighter, or "
                "pg.EP."
            )
        raise zeros_refused(self.local.name(e), float(self.alpha[e]))

    def too_large(self, value: Tensor, u: Tensor) -> Tensor:
        """``[E]`` which factors have values ``[N, D, E]`` at ``u`` that are no zeros but overflow:
        on the way there from the best point log f falls without a jump."""
        nothing = (value <= NOTHING).any(0)
        if not bool(nothing.any()):
            return nothing.any(0)
        best, worst = (
            u.gather(0, at[None, ..., None].expand(1, *u.shape[1:]))
            for at in (value.argmax(0), value.argmin(0))
        )
        for _ in range(BISECTIONS):
            middle = (best + worst) / 2
            there = (self.evaluate(middle) > NOTHING)[..., None]
            best, worst = torch.where(there, middle, best), torch.where(there, worst, middle)
        last = self.evaluate(best)[0]
        return (nothing & (last > NOTHING) & (last < NOTHING / 2)).any(0)

    def _refuse_nothing(self, nothing: Tensor) -> None:
        if bool(nothing.any()):
            raise ZeroMass(
                f"{self.local.name(int(nothing.nonzero()[0]))} is zero at every point of the grid "
                "laid over its cavity: the program's total mass is zero, or what is left of it "
                "lies too far out. Look at the constraint and at the priors of its nodes."
            )


def _misses(found: Tilted) -> Tensor:
    """``[D, E]``: where every second of evenly spaced points finds another mass or width."""
    return (found.half - 1).abs().amax(0) > STEPS


def _together(pieces: list[Sums]) -> Sums:
    """Sums over the points of all pieces."""
    if len(pieces) == 1:
        return pieces[0]
    log_mass = torch.stack([p.log_mass for p in pieces]).logsumexp(0)
    share = [(p.log_mass - log_mass).exp()[..., None] for p in pieces]
    both = list(zip(share, pieces, strict=True))
    mean = sum(s * p.mean for s, p in both)
    off = [p.mean - mean for p in pieces]
    reach = half = None
    if pieces[0].reach is not None:
        reach = reached_together([s[..., 0] for s in share], [p.reach for p in pieces])
        half = sum(s[..., 0] * p.half for s, p in both)
    return Sums(
        log_mass,
        mean,
        sum(
            s[..., None] * (p.covariance + o[..., :, None] * o[..., None, :])
            for (s, p), o in zip(both, off, strict=True)
        ),
        sum(s * p.expected for s, p in both),
        sum(s[..., 0].square() * p.squares for s, p in both),
        torch.stack([p.is_nothing for p in pieces]).all(0),
        reach,
        half,
    )
