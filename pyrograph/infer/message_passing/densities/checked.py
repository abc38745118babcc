"""Log values of factors on the points of a grid, and what is refused among them."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.errors import NonFiniteDensity, OptionError, ZeroMass
from pyrograph.graph.devices import at_once
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.nodes.families import zeros_refused

#: Log of a zero on the grid: minus infinity would make weights NaN where all points are zeros.
NOTHING = -1e30
#: Halvings of the way to a zero, whose edge is then known to rounding.
BISECTIONS = 60
#: Share of the way to numbers that overflow on which f is nothing already.
STRETCH = 2.0**-8
#: Numbers evaluated at once; and numbers of a step, on average, that are worth its call: programs
#: of many short steps, as recurrences are, take more points, as far as memory goes.
CHUNK, WORTH, LARGEST = 2**18, 2**12, 2**22
#: Standard deviations of beliefs from which at alpha = 0 a zero counts as f does at its edge. Many
#: are of rounding: 1 - sigmoid(z) is none from z = 37 on.
FAR = 4.0


class Improper(Exception):
    """Numbers that are to be integrated in closed form have no distribution at some point."""


class TooWide(NonFiniteDensity):
    """Beliefs reach where the logarithm of a factor overflows. Others may not."""


class ReachesZeros(OptionError):
    """Beliefs reach where a factor with alpha <= 0 is zero. Others may not."""


def too_wide(factor: str, alpha: float) -> TooWide:
    """The error that names a factor."""
    return TooWide(
        f"{factor} has a log density too large for numbers within reach of its nodes' beliefs, and "
        f"alpha={alpha:g} averages it there: the beliefs are too wide. Use pg.EP or pg.QBethe, or "
        "a prior that holds the nodes tighter."
    )


class CheckedDensity:
    """A set of like factors, f(u).

    Args:
        local: their density in effective coordinates.
    """

    def __init__(self, local: LocalDensity):
        self.local = local
        #: A factor with a zero that the last expectations took for what f is at its edge.
        self.far_zero: str | None = None

    def __call__(self, u: Tensor, centre: Tensor | None = None) -> Tensor:
        """log f at ``[N, D, E, r]``, zeros as :data:`NOTHING`.

        Args:
            centre: ``[D, E, r]``, what the points surround. On the way out from there numbers may
                overflow: see :meth:`_overflows`.

        Raises:
            NonFiniteDensity: NaN or plus infinity, naming the factor.
        """
        value = self._values(u)
        total = value.detach().sum()
        if bool(total.isfinite()):
            return value
        nothing = torch.zeros_like(value, dtype=torch.bool)
        if bool(total.isnan()):
            nothing = self.local.zero_beside_nan(value, u)
            if centre is not None:
                nothing = nothing | self._overflows(value, u, centre)
        if value.requires_grad:
            nothing = nothing | (value.detach() == -torch.inf)
        if bool(nothing.any()):  # there it has no derivative either
            about = torch.zeros_like(u) if centre is None else centre
            value = self._values(torch.where(nothing[..., None], about, u))
            value = value.masked_fill(nothing, NOTHING)
            total = value.detach().sum()
        if bool(total.isnan() | (total == torch.inf)):  # a sum of large numbers may overflow too
            self._refuse_no_number(value, u)
        return torch.nan_to_num(value, nan=torch.nan, neginf=NOTHING)

    def _values(self, u: Tensor) -> Tensor:
        """log f as it comes."""
        parts = [self.local(part) for part in u.split(self._points_at_once(u))]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    @torch.no_grad()
    def _overflows(self, value: Tensor, u: Tensor, centre: Tensor) -> Tensor:
        """``[N, D, E]`` where values are NaN beyond a stretch on which f is nothing at all: on the
        way there from the centre log f falls to less than all numbers that count, long before it is
        no number. So does that of a Poisson until its rate is none any more: inf - inf is none
        either. Where log f jumps, as a logarithm does at 0, or has a pole, as a normal's whose
        scale goes to 0 and below, NaN is an error.
        """
        lost = value.isnan()
        found = torch.zeros_like(lost)
        rows = lost.flatten(1).any(1).nonzero()[:, 0]
        if not len(rows):
            return found
        is_lost, upper = lost[rows] & self._values(centre[None]).isfinite(), u[rows]
        lower, fell = centre.expand_as(upper), torch.zeros_like(is_lost)
        for _ in range(BISECTIONS):
            middle = (lower + upper) / 2
            here, before = (self._values(z) for z in (middle, middle.lerp(centre, STRETCH)))
            fell |= torch.stack([v.isfinite() & (v < NOTHING / 2) for v in (here, before)]).all(0)
            if bool((fell | ~is_lost).all()):
                break
            beyond = here.isnan()[..., None]
            lower, upper = torch.where(beyond, lower, middle), torch.where(beyond, middle, upper)
        found[rows] = fell & is_lost
        return found

    def _refuse_no_number(self, value: Tensor, u: Tensor) -> None:
        """Refuse values ``[N, D, E]`` at ``u`` that are NaN or plus infinity, if any are.

        Raises:
            NonFiniteDensity: naming the factor.
        """
        bad = value.isnan() | (value == torch.inf)
        if not bool(bad.any()):
            return
        e = int(bad.flatten(0, 1).any(0).nonzero()[0])
        n, d = bad[..., e].nonzero()[0].tolist()
        at, name = u[n, d, e], self.local.name_at(u[n : n + 1], d, e)
        raise NonFiniteDensity(
            f"{name} has log density NaN or plus infinity, at effective "
            f"coordinates {[round(float(x), 4) for x in at]} (of constrained sites in "
            "unconstrained space). Look at that statement: a scale that can reach 0, a "
            "logarithm of a negative number and a covariance that rounding makes singular "
            "(add a larger jitter) are the usual causes, and data at the edge of their support "
            "(0 or 1 of a Beta, 0 of a Gamma); infinite numbers that cancel far "
            "out are another (as in dist.Weibull): there write the log density in "
            "logarithms, as a pyro.factor."
        )

    def _points_at_once(self, u: Tensor) -> int:
        states = len(u[0])
        each = max(1, states * self.local.numbers_at_once)
        most, largest = (at_once(n, u.device) // each for n in (CHUNK, LARGEST))
        worth = int(WORTH / (states * max(1, self.local.numbers_a_step)))
        return max(1, most, min(worth, largest))

    def positive(self, u: Tensor, moments: tuple[Tensor, Tensor]) -> Tensor:
        """log f at ``u [N, D, E, r]`` where alpha = 0 lets it be no zero, but further out than
        :data:`FAR` standard deviations of beliefs of these moments, ``[D, E, r]`` and
        ``[D, E, r, r]``.

        Raises:
            ReachesZeros, TooWide: as :meth:`refuse_zeros`.
        """
        centre, covariance = moments
        value = self(u, centre)
        zero = value <= NOTHING
        if not bool(zero.any()):
            return value
        off, root = (u - centre)[..., None], torch.linalg.cholesky(covariance)
        z = torch.linalg.solve_triangular(root, off, upper=False).squeeze(-1)
        far = zero & (z.norm(dim=-1) > FAR)
        if bool(far.any()):
            edge = self._before_zeros(centre.expand_as(u), u, centre)
            jumps = far & (edge > NOTHING / 2)  # others overflow, and beliefs are too wide
            value = torch.where(jumps, edge, value)
            if bool(jumps.any()):
                self.far_zero = self.local.name(int(jumps.flatten(0, 1).any(0).nonzero()[0]))
        at_zero = value.new_zeros(self.local.num_factors)
        self.refuse_zeros(value, u, at_zero, centre)
        return value

    def _before_zeros(self, first: Tensor, last: Tensor, centre: Tensor) -> Tensor:
        """log f ``[N, D, E]`` just before it falls to a zero on the way from ``first`` to ``last``,
        points about ``centre``."""
        for _ in range(BISECTIONS):
            middle = (first + last) / 2
            there = (self(middle, centre) > NOTHING)[..., None]
            first, last = torch.where(there, middle, first), torch.where(there, last, middle)
        return self(first, centre)

    def refuse_zeros(self, value: Tensor, u: Tensor, alpha: Tensor, centre: Tensor) -> None:
        """Refuse values ``[N, D, E]`` at ``u`` about ``centre [D, E, r]`` of factors with
        ``alpha [E]`` <= 0 that are zeros.

        Raises:
            ReachesZeros: naming the factor.
            TooWide: naming a factor that is not zero, but whose logarithm overflows.
        """
        zero = ((value <= NOTHING) & (alpha <= 0)).flatten(0, 1).any(0)
        if not bool(zero.any()):
            return
        e = int(zero.nonzero()[0])
        if bool(self.too_large(value, u, centre)[e]):
            raise too_wide(self.local.name(e), float(alpha[e]))
        n, d = (value[..., e] <= NOTHING).nonzero()[0].tolist()
        refused = zeros_refused(self.local.name_at(u[n : n + 1], d, e), float(alpha[e]))
        raise ReachesZeros(*refused.args)

    def too_large(self, value: Tensor, u: Tensor, centre: Tensor) -> Tensor:
        """``[E]`` which factors have values ``[N, D, E]`` at ``u`` about ``centre [D, E, r]`` that
        are no zeros but overflow: on the way there from the best point log f falls without a
        jump."""
        nothing = (value <= NOTHING).any(0)
        if not bool(nothing.any()):
            return nothing.any(0)
        best, worst = (
            u.gather(0, at[None, ..., None].expand(1, *u.shape[1:]))
            for at in (value.argmax(0), value.argmin(0))
        )
        last = self._before_zeros(best, worst, centre)[0]
        return (nothing & (last > NOTHING) & (last < NOTHING / 2)).any(0)

    def refuse_nothing(self, nothing: Tensor, u: Tensor) -> None:
        """Refuse factors that are zero at all points, ``[E]``, such as ``u [D, E, r]``.

        Raises:
            ZeroMass: naming the factor.
        """
        if bool(nothing.any()):
            name = self.local.name_at(u[None], None, int(nothing.nonzero()[0]))
            raise ZeroMass(
                f"{name} is zero at every point of the grid laid over its cavity: the program's "
                "total mass is zero, or what is left of it lies too far out. Look at the "
                "constraint, at data at the edge of their support (1 of a Beta) and at the priors "
                "of its nodes."
            )
