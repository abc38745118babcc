"""Expected log densities of like factors at alpha = 0, by the rule that serves.

    E_q log f(u),   and its derivatives,   u = A v Gaussian under the beliefs

In closed form where one is known, at few points where log f is a polynomial, else on a
Gauss-Hermite grid; and once for factors that are the same function of the same nodes.

Source: see :mod:`.mean_field`, and the module of each form.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate, Natural
from pyrograph.beliefs.gaussian import apply
from pyrograph.infer.message_passing.continuous.closed_form import ClosedForm
from pyrograph.infer.message_passing.continuous.exponential_form import ExponentialForm
from pyrograph.infer.message_passing.continuous.kinked_form import KinkedForm
from pyrograph.infer.message_passing.continuous.log_sigmoid_form import LogSigmoidForm
from pyrograph.infer.message_passing.continuous.mean_field import (
    Expectations,
    expectations,
    rule_without_error,
)
from pyrograph.infer.message_passing.continuous.twins import one_of_each
from pyrograph.infer.message_passing.densities.checked import CheckedDensity, too_wide
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.quadrature.surroundings import Scopes
from pyrograph.infer.message_passing.quadrature.tilted import POINTS
from pyrograph.quadrature import gauss_hermite

#: Expectations that need no grid.
Form = ClosedForm | KinkedForm | ExponentialForm | LogSigmoidForm


def find_form(local: LocalDensity, chosen: list[type[Conjugate]]) -> Form | None:
    """The closed form of a set of like factors; None where none is known.

    Args:
        local: in effective coordinates, in double precision.
        chosen: kinds of the gamma and beta numbers' beliefs.
    """
    exact = ClosedForm.of(local, chosen) or KinkedForm.of(local) or ExponentialForm.of(local)
    return exact or LogSigmoidForm.of(local)


class ExpectedLogs:
    """Of a set of like factors.

    Args:
        local: their density in effective coordinates, in double precision.
        rows: ``[E]`` of each continuous slot's nodes in their family.
        scopes: where numbers of v stand in u.
        num_points: per dimension of a grid; default :data:`POINTS`, unless fewer serve.
        closed: the form, if one is known.

    Attributes:
        is_exact: whether expectations are known to be without error.
        rule: nodes ``[N, r]`` and weights ``[N]`` for N(0, I), None with a form.
    """

    def __init__(
        self,
        local: LocalDensity,
        rows: list[Tensor],
        scopes: Scopes,
        num_points: int | None = None,
        closed: Form | None = None,
    ):
        self.local, self.scopes, self.closed = local, scopes, closed
        self.density = CheckedDensity(local)
        rule = None
        # of so many numbers any other grid is too large, whatever number of points is asked for
        if closed is None and (num_points is None or local.dim not in POINTS):
            rule = rule_without_error(local)
        self.is_exact = closed is not None or rule is not None
        if not self.is_exact:
            like = local.like.dtype, local.like.device
            rule = gauss_hermite(num_points or POINTS[local.dim], local.dim, *like)
        self.rule, self._num_points = rule, num_points
        self._twins: tuple[ExpectedLogs, Tensor, Tensor] | None = None
        if found := one_of_each(local, rows):
            which, row = found
            self._twins = self._part(which, [own[which] for own in rows]), which, row

    def _part(self, which: Tensor, rows: list[Tensor]) -> ExpectedLogs:
        local = self.local.part(which)
        closed = None if self.closed is None else self.closed.part(which)
        scopes = Scopes(local, self.scopes.takes_flat)
        return ExpectedLogs(local, rows, scopes, self._num_points, closed)

    @property
    def far_zero(self) -> str | None:
        """A factor that has a zero far out, which counts as f does at its edge."""
        density = self.density if self._twins is None else self._twins[0].density
        return density.far_zero

    def __call__(self, own: list[Natural]) -> Expectations:
        """Under beliefs of the continuous slots, in v.

        Raises:
            TooWide: they overflow, naming a factor.
        """
        if self._twins is not None:  # the same for all that are alike
            one_each, which, row = self._twins
            return one_each([q[which] for q in own]).of(row)
        moments, numbers = self.scopes.moments(own), self.local.chosen
        if self.closed is not None:
            found = self.closed(moments, [number.of(own) for number in numbers])
            if isinstance(self.closed, ExponentialForm):
                bad = self.closed.too_large(found.average)
                if bool(bad.any()):
                    raise too_wide(self.local.name(int(bad.nonzero()[0])), 0.0)
            return found
        others = [(number.of(own), number.column) for number in numbers]
        self.density.far_zero = None
        log_density = partial(self.density.positive, moments=moments)
        return expectations(log_density, moments, self.rule, others)

    def overflow(self, own: list[Natural], within: float) -> bool:
        """Whether some log f is too large a number under these beliefs, at the outermost points of
        the grid or so many standard deviations off."""
        if self._twins is not None:
            one_each, which, _ = self._twins
            return one_each.overflow([q[which] for q in own], within)
        if isinstance(self.closed, ExponentialForm):
            return bool(self.closed.too_large(self.closed.average(self.scopes.moments(own))).any())
        if self.closed is not None:
            return False
        mean, covariance = self.scopes.moments(own)
        z, _ = self.rule
        reach = z.abs().sum(1)
        corner = z[reach >= 0.999 * reach.amax()]
        corner = corner * (within / corner.norm(dim=1, keepdim=True)).clamp_min(1)
        z = torch.cat([torch.zeros_like(corner[:1]), corner])
        u = mean + apply(torch.linalg.cholesky(covariance), z[:, None, None, :])
        return bool(self.density.too_large(self.density(u, mean), u, mean).any())
