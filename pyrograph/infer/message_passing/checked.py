"""Log values of factors on the points of a grid, and what is refused among them."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.errors import NonFiniteDensity, ZeroMass
from pyrograph.graph.devices import at_once
from pyrograph.infer.message_passing.families import zeros_refused
from pyrograph.infer.message_passing.reduction import LocalDensity

#: Log of a zero on the grid: minus infinity would make weights NaN where all points are zeros.
NOTHING = -1e30
#: Halvings of the way to a zero, whose edge is then known to rounding.
BISECTIONS = 60
#: Numbers evaluated at once; and numbers of a step, on average, that are worth its call: programs
#: of many short steps, as recurrences are, take more points, as far as memory goes.
CHUNK, WORTH, LARGEST = 2**18, 2**12, 2**22


class Improper(Exception):
    """Numbers that are to be integrated in closed form have no distribution at some point."""


class CheckedDensity:
    """A set of like factors, f(u).

    Args:
        local: their density in effective coordinates.
    """

    def __init__(self, local: LocalDensity):
        self.local = local

    def __call__(self, u: Tensor) -> Tensor:
        """log f at ``[N, D, E, r]``, zeros as :data:`NOTHING`.

        Raises:
            NonFiniteDensity: NaN or plus infinity, naming the factor.
        """
        parts = [self.local(part) for part in u.split(self._points_at_once(u))]
        value = torch.cat(parts) if len(parts) > 1 else parts[0]
        total = value.detach().sum()
        if bool(total.isfinite()):
            return value
        if bool(total.isnan() | (total == torch.inf)):  # a sum of large numbers may overflow too
            bad = (value.isnan() | (value == torch.inf)).flatten(0, 1).any(0)
            if bool(bad.any()):
                e = int(bad.nonzero()[0])
                n, d = (value[..., e].isnan() | (value[..., e] == torch.inf)).nonzero()[0].tolist()
                at, name = u[n, d, e], self.local.name_at(u[n : n + 1], d, e)
                raise NonFiniteDensity(
                    f"{name} has log density NaN or plus infinity, at effective "
                    f"coordinates {[round(float(x), 4) for x in at]} (of constrained sites in "
                    "unconstrained space). Look at that statement: a scale that can reach 0, a "
                    "logarithm of a negative number and a covariance that rounding makes singular "
                    "(add a larger jitter) are the usual causes; infinite numbers that cancel far "
                    "out are another (as in dist.Weibull): there write the log density in "
                    "logarithms, as a pyro.factor."
                )
        return torch.nan_to_num(value, nan=torch.nan, neginf=NOTHING)

    def _points_at_once(self, u: Tensor) -> int:
        states = len(u[0])
        each = max(1, states * u.shape[-1] * self.local.numbers_at_once)
        most, largest = (at_once(n, u.device) // each for n in (CHUNK, LARGEST))
        worth = int(WORTH / (states * max(1, self.local.numbers_a_step)))
        return max(1, most, min(worth, largest))

    def refuse_zeros(self, value: Tensor, u: Tensor, alpha: Tensor) -> None:
        """Refuse values ``[N, D, E]`` at ``u`` of factors with ``alpha [E]`` <= 0 that are zeros.

        Raises:
            OptionError: naming the factor.
            NonFiniteDensity: naming a factor that is not zero, but whose logarithm overflows.
        """
        zero = ((value <= NOTHING) & (alpha <= 0)).flatten(0, 1).any(0)
        if not bool(zero.any()):
            return
        e = int(zero.nonzero()[0])
        if bool(self.too_large(value, u)[e]):
            raise NonFiniteDensity(
                f"{self.local.name(e)} has a log density too large for numbers within reach of its "
                f"nodes' beliefs, and alpha={float(alpha[e]):g} averages it there: the "
                "beliefs are too wide. Use pg.EP or pg.QBethe, or a prior that holds the nodes "
                "tighter."
            )
        n, d = (value[..., e] <= NOTHING).nonzero()[0].tolist()
        raise zeros_refused(self.local.name_at(u[n : n + 1], d, e), float(alpha[e]))

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
            there = (self(middle) > NOTHING)[..., None]
            best, worst = torch.where(there, middle, best), torch.where(there, worst, middle)
        last = self(best)[0]
        return (nothing & (last > NOTHING) & (last < NOTHING / 2)).any(0)

    def refuse_nothing(self, nothing: Tensor) -> None:
        """Refuse factors that are zero at all points, ``[E]``.

        Raises:
            ZeroMass: naming the factor.
        """
        if bool(nothing.any()):
            raise ZeroMass(
                f"{self.local.name(int(nothing.nonzero()[0]))} is zero at every point of the grid "
                "laid over its cavity: the program's total mass is zero, or what is left of it "
                "lies too far out. Look at the constraint and at the priors of its nodes."
            )
