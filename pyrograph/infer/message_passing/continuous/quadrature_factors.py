"""Messages of factors with continuous nodes, by quadrature in their effective dimension.

With cavities n_j = q_j / m_j^alpha, the tilted distribution f^alpha prod_j n_j and its
projection q_i' on the family of node i,

    m_i^new = m_i (q_i' / q_i)^(1 / alpha)

The factor depends on u = A v (see :mod:`.reduction`), Gaussian under the cavities, so that the
moments of u are those of f(u)^alpha N(u; m_u, S), taken on a Gauss-Hermite grid that is moved to
where the tilted distribution was found before; the moments of every node follow linearly,

    E v_i = m_i + G_i (E u - m_u),   Cov v_i = C_i + G_i (Cov u - S) G_i',   G_i = C_i A_i' S^-1

Nodes with gamma or beta beliefs keep the expectations of their statistics instead, discrete nodes
in the scope are summed over. Expectations at the limit alpha = 0 are in :mod:`.expected_logs`.

All of this is in double precision, whatever the dtype of messages: thousands of factors of one node
change its belief by a thousandth each, of which rounding of q_i' in single precision is as much,
and the same for all of them.

Source: Minka (2005), eqs (17), (54), (66), (85); Minka & Lafferty (2002) for powers.
"""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate, Gaussian, Natural
from pyrograph.beliefs.gaussian import apply, stacked
from pyrograph.beliefs.natural import where
from pyrograph.errors import ZeroMass
from pyrograph.infer.message_passing.continuous.expected_logs import ExpectedLogs, Form
from pyrograph.infer.message_passing.continuous.one_each import OneEach
from pyrograph.infer.message_passing.densities.checked import NOTHING
from pyrograph.infer.message_passing.densities.in_states import (
    by_state,
    expected_by_slot,
    over_states,
)
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.nodes.basis import Basis, Entries, seen
from pyrograph.infer.message_passing.nodes.families import mixtures_refused
from pyrograph.infer.message_passing.nodes.log_values import ZERO, finite_peak, rows_of, without
from pyrograph.infer.message_passing.quadrature.effective import standard_normal
from pyrograph.infer.message_passing.quadrature.grids import Grid
from pyrograph.infer.message_passing.quadrature.in_states import moments_for
from pyrograph.infer.message_passing.quadrature.sums import Tilted
from pyrograph.infer.message_passing.quadrature.surroundings import Scopes, Surrounded, about
from pyrograph.infer.message_passing.quadrature.tilted import POINTS

#: Points per dimension of grids that are not looked at.
UNUSED = 3
#: Rounding of a belief's precision, in units of the dtype's.
ROUNDING = 4.0


class QuadratureFactors(OneEach):
    """Factors with continuous nodes that are not Gaussian functions.

    Args:
        local: their density in effective coordinates, of the dtype of messages.
        alpha: ``[E]``.
        rows: of each slot of the group, ``[E]`` rows of its family.
        families: index of each slot's family.
        num_points: per dimension; default :data:`POINTS`.
        inner: numbers of u that are integrated in closed form, see :mod:`.conditional`; all of
            them, see :mod:`.in_states`.
        closed: what their expectations are at alpha = 0, if that is known.
    """

    def __init__(
        self,
        local: LocalDensity,
        alpha: Tensor,
        rows: list[Tensor],
        families: list[int],
        num_points: int | None = None,
        inner: list[int] | None = None,
        closed: Form | None = None,
    ):
        self.alpha, self.rows, self.families = alpha, rows, families
        self.like, self.local = local.like, local.in_double()
        self.bases: list[Basis] = [None] * len(rows)
        for k, basis in zip(local.continuous, local.bases, strict=True):
            self.bases[k] = basis
        local = self.local
        self.has_zeros = True
        # in more dimensions nothing is known of where to look along a flat one
        dim = local.dim - len(inner or [])
        self.scopes = Scopes(local, takes_flat=dim <= 3)
        self.parts = self.scopes.parts
        self.expected: ExpectedLogs | None = None
        if bool((alpha == 0).all()):
            own = [rows[k] for k in local.continuous]
            self.expected = ExpectedLogs(local, own, self.scopes, num_points, closed)
        if self.is_exact:
            num_points = UNUSED
        self.tilted = moments_for(local, alpha, inner or [], num_points)
        self.points_per_dimension = num_points or POINTS.get(self.tilted.dim, UNUSED)
        self.grid: Grid | None = None

    @property
    def is_mean_field(self) -> bool:
        """Whether alpha is 0."""
        return self.expected is not None

    @property
    def is_exact(self) -> bool:
        """Whether integrals are known to be without error."""
        return self.expected is not None and self.expected.is_exact

    def part(self, which: Tensor) -> QuadratureFactors:
        """Some of the factors at alpha = 0, ``which [e]`` ascending; others share their grids."""
        rows = [own[which] for own in self.rows]
        number = None if self.is_exact else self.points_per_dimension
        form = self.expected.closed
        closed = None if form is None else form.part(which)
        out = QuadratureFactors(
            self.local.part(which), self.alpha[which], rows, self.families, number, closed=closed
        )
        out.like = self.like
        return out

    def start(self, families: list) -> list:
        """Flat, but for nodes that nothing else makes proper: a share of N(0, 1), of what reads
        some of their numbers alone the larger the fewer. Gamma and beta ones begin with parameters
        of 1 at least: quadrature loses itself in longer tails."""
        messages: list = [None] * len(self.rows)
        for k in self.local.discrete:
            messages[k] = families[self.families[k]].flat(self.num_factors)
        for k, width in zip(self.local.continuous, self.local.widths, strict=True):
            family, rows = families[self.families[k]], self.rows[k]
            site = Gaussian.flat((self.num_factors,), width, self.like)
            share = torch.bincount(rows, minlength=len(family.nodes)).to(self.like)
            if isinstance(family.base, Conjugate):
                lift = (1 - family.base.natural).clamp_min(0) / share.clamp_min(1).unsqueeze(1)
                messages[k] = type(family.base)(lift[rows])
                continue
            if isinstance(self.bases[k], Entries):
                share = share * width / family.size  # of a number
            vague = torch.where(family.base.is_proper, 0.0, 1 / share)[rows]
            eye = torch.eye(width, dtype=vague.dtype, device=vague.device)
            messages[k] = Gaussian(site.precision + vague[:, None, None] * eye, site.shift)
        return messages

    def use_alpha(self, alpha: Tensor) -> None:
        """Go on with other alphas ``[E]``, of the same signs."""
        self.alpha = alpha
        self.tilted.use_alpha(alpha)

    def forget_grid(self) -> None:
        """The next update finds out afresh where to look."""
        self.grid = None
        self.tilted.forget()

    @property
    def is_checked(self) -> bool:
        """Whether the points in use were compared with others at rest."""
        return self.is_mean_field or self.tilted.is_rough or self.tilted.is_checked

    @property
    def too_coarse(self) -> str | None:
        """A factor that the points in use do not resolve."""
        coarse = self.tilted.coarse
        if coarse is None or not bool(coarse.any()):
            return None
        return self.local.name(int(coarse.any(0).nonzero()[0]))

    @property
    def far_zero(self) -> str | None:
        """A factor that at alpha = 0 has a zero far out, which counts as f does at its edge."""
        return None if self.expected is None else self.expected.far_zero

    # ------------------------------------------------------------------ what surrounds a factor
    def _continuous(
        self, messages: list, beliefs: list
    ) -> tuple[list[Natural], list[Natural], Tensor]:
        """Beliefs and cavities of the continuous slots, in v, and ``[E]`` which factors may use
        them: of nodes that nothing holds yet they stand in for what is not there."""
        own = self._seen(beliefs)
        cavities = [
            self._without_rounding(q - self.alpha * messages[k], q)
            for q, k in zip(own, self.local.continuous, strict=True)
        ]
        held = torch.ones_like(self.alpha, dtype=torch.bool)
        for k in self.local.continuous:
            held = held & beliefs[self.families[k]].is_proper[self.rows[k]]
        if bool(held.all()):
            return own, cavities, held
        stand_in = [_unit(q) for q in own]
        own = [where(held, q, one) for q, one in zip(own, stand_in, strict=True)]
        cavities = [where(held, c, one) for c, one in zip(cavities, stand_in, strict=True)]
        return own, cavities, held

    def _without_rounding(self, cavity: Natural, belief: Natural) -> Natural:
        """A cavity, flat where it is nothing but the rounding of a belief: of a node that no other
        factor holds it would stand anywhere, however wide."""
        if not isinstance(cavity, Gaussian):
            return cavity
        share = ROUNDING * torch.finfo(self.like.dtype).eps
        scale = belief.precision.diagonal(dim1=-2, dim2=-1).abs().sqrt()
        least = share * scale[..., :, None] * scale[..., None, :]
        precision = torch.where(cavity.precision.abs() <= least, 0.0, cavity.precision)
        is_flat = (precision == 0).all(-1) & (cavity.shift.abs() <= share * belief.shift.abs())
        return Gaussian(precision, torch.where(is_flat, 0.0, cavity.shift))

    def _seen(self, beliefs: list) -> list[Natural]:
        """Beliefs of the continuous slots, in v."""
        return [
            seen(beliefs[self.families[k]], self.rows[k], self.bases[k]).in_double()
            for k in self.local.continuous
        ]

    def _discrete(self, messages: list, beliefs: list) -> tuple[list[Tensor], list[Tensor]]:
        """Beliefs and cavities of the discrete slots, log values ``[E, c]``."""
        own = [rows_of(beliefs[self.families[k]], self.rows[k]) for k in self.local.discrete]
        cavities = []
        for q, k in zip(own, self.local.discrete, strict=True):
            cavities.append(without(q, self.alpha[:, None] * messages[k]))
        return own, cavities

    def _of_states(self, logs: list[Tensor], without: int | None = None) -> Tensor:
        """Sum of the slots' log values at every assignment, ``[D, E]``."""
        if not logs:
            return self.local.like.new_zeros(self.local.num_states, self.num_factors)
        return over_states(logs, self.local.states, without)

    # ------------------------------------------------------------------ alpha other than 0
    def _repaired(
        self, usable: Tensor, cavities: list[Natural], own: list[Natural]
    ) -> list[Natural]:
        """Improper cavities replaced by the beliefs, whose results are then not used."""
        return [where(usable, c, q) for c, q in zip(cavities, own, strict=True)]

    def update(self, messages: list, beliefs: list) -> tuple[list, Tensor | None]:
        """New messages, and ``[E]`` which updates were skipped for an improper cavity."""
        if self.expected is not None:
            return self._mean_field(messages, beliefs), None
        own, cavities, held = self._continuous(messages, beliefs)
        usable, flat = self.scopes.sorted(cavities)
        usable = held & usable
        cavities = self._repaired(usable, cavities, own)
        _, states = self._discrete(messages, beliefs)
        around = self.scopes.surrounded(own, cavities, usable & flat)
        tilted = self._tilted(around, own)
        self.grid = tilted.grid
        log_mass = around.log_mass(tilted)
        joint_mass = log_mass + self._of_states(states)
        share = (joint_mass - joint_mass.logsumexp(0)).exp()
        moves = []
        for k, q in enumerate(own):
            if isinstance(q, Conjugate):
                found = q.project((share[..., None] * around.expected(tilted, k)).sum(0))
                usable = usable & found.is_proper
            else:
                there, covariance = around.moments(tilted, k)
                centre = (share[..., None] * there).sum(0)
                off = there - centre
                spread = covariance + off[..., :, None] * off[..., None, :]
                found = Gaussian.from_moments(centre, (share[..., None, None] * spread).sum(0))
                usable = usable & found.precision.isfinite().all(-1).all(-1)
            moves.append(found - q)
        out = list(messages)  # a factor sends all of them or none
        for k, move in zip(self.local.continuous, moves, strict=True):
            new = messages[k] + (1 / self.alpha) * move
            if isinstance(new, Gaussian) and new.d > 1:
                # moments see one triangle alone: in the other the rounding of n factors on a node
                # would grow n times with every sweep
                new = Gaussian((new.precision + new.precision.mT) / 2, new.shift)
            out[k] = where(usable, self._plain(new), messages[k])
        for position, k in enumerate(self.local.discrete):
            value = log_mass + self._of_states(states, position)
            value = by_state(value, self.local.states[:, position])
            value = value - finite_peak(value)
            value = torch.where(value < NOTHING / 2, ZERO, value / self.alpha[:, None])
            out[k] = torch.where(usable[:, None], value.to(self.like), messages[k])
        return out, ~usable

    def _tilted(self, around: Surrounded, own: list[Natural]) -> Tilted:
        """Moments of what the factors make of their surroundings. Cavities that say next to nothing
        may stand anywhere: where there is nothing over them it is looked for over the beliefs."""
        try:
            return self.tilted(around.g, around.origin, self.grid, around.first)
        except ZeroMass:
            if self.grid is not None:
                raise
            return self.tilted(around.g, around.origin, None, self.scopes.grid_over(own))

    def _plain(self, function: Natural) -> Natural:
        """In the dtype of messages."""
        return function.mapped(lambda value: value.to(self.like))

    # ------------------------------------------------------------------ alpha = 0
    def _mean_field(self, messages: list, beliefs: list) -> list:
        own = self._seen(beliefs)
        states = [
            rows_of(beliefs[self.families[k]], self.rows[k]).log_softmax(1)
            for k in self.local.discrete
        ]
        found = self.expected(own)
        share = self._of_states(states).exp()
        out = list(messages)
        to_labels = expected_by_slot(states, found.average, self.local.states)
        for k, message in zip(self.local.discrete, to_labels, strict=True):
            out[k] = message.to(self.like)
        for slot, (k, part, q) in enumerate(
            zip(self.local.continuous, self.parts, own, strict=True)
        ):
            if isinstance(q, Conjugate):
                sent = sum(
                    ((share * number.is_slot(slot))[..., None] * natural).sum(0)
                    for number, natural in zip(self.local.chosen, found.natural, strict=True)
                )
                out[k] = self._plain(type(q)(sent))
                continue
            weight = share
            if self.local.joint is None:
                pull, curve = found.slope[..., part], found.bend[..., part, part]
            else:
                read = self.scopes.read[slot]
                weight = share[read.states]
                pull, curve = read.back(found.slope, found.bend)
            tau = -(weight[..., None, None] * curve).sum(0)
            nu = (weight[..., None] * pull).sum(0) + apply(tau, q.mean)
            out[k] = self._plain(Gaussian(tau, nu))
        return out

    def overflow(self, beliefs: list, within: float = 0.0) -> bool:
        """Whether at alpha = 0 some log f is too large a number under these beliefs, at the
        outermost points of the grid or so many standard deviations off."""
        which = [(self.families[k], self.rows[k]) for k in self.local.continuous]
        held = all(bool(beliefs[f].is_proper[rows].all()) for f, rows in which)
        if self.expected is None or not held:
            return False
        return self.expected.overflow(self._seen(beliefs), within)

    # ------------------------------------------------------------------ results
    def log_ratio(self, messages: list, beliefs: list) -> Tensor:
        """``[E]``: (1 / alpha) log E_q (f / prod_j m_j)^alpha, and its limit at alpha = 0, with
        Gaussian messages scaled to 1 at the means of the beliefs."""
        own, cavities, held = self._continuous(messages, beliefs)
        q_states, states = self._discrete(messages, beliefs)
        if self.is_mean_field:
            logs = [q.log_softmax(1) for q in q_states]
            average = self.expected(own).average
            ratio = (self._of_states(logs).exp() * average).sum(0)
            for q, k in zip(q_states, self.local.discrete, strict=True):
                ratio = ratio - (q.softmax(1) * messages[k]).sum(1)
            for q, k in zip(own, self.local.continuous, strict=True):
                m = messages[k].in_double()
                if isinstance(q, Conjugate):
                    ratio = ratio - (m.natural * q.expected).sum(-1)
                    continue
                point = q.mean.detach()
                ratio = ratio - m.about(point).log_value(q.mean - point)
                ratio = ratio + 0.5 * (m.precision * q.covariance).sum((-1, -2))
            return ratio.to(self.like)
        usable, flat = self.scopes.sorted(cavities)
        usable = held & usable
        cavities = self._repaired(usable, cavities, own)
        around = self.scopes.surrounded(own, cavities, usable & flat)
        mass = around.log_mass(self._looked(around, own)) + self._of_states(states)
        parts = about(own, around.points)
        gap = -sum((q.log_mass for q in parts), start=torch.zeros_like(self.alpha))
        gap = gap - sum((q.logsumexp(1) for q in q_states), start=torch.zeros_like(self.alpha))
        value = (mass.logsumexp(0) + gap) / self.alpha
        return torch.where(usable, value, torch.nan).to(self.like)

    def __copy__(self) -> QuadratureFactors:
        """The factors with their grids as they are now, which further updates move."""
        found = object.__new__(QuadratureFactors)
        vars(found).update(vars(self), tilted=copy(self.tilted))
        return found

    def marginals(self, messages: list, beliefs: list) -> Gaussian:
        """Beliefs over the scopes of factors without discrete nodes, batch ``[E]``, dimension R:
        first and second moments of the tilted distribution, in v.

        Raises:
            OptionError: the factors have discrete nodes too.
        """
        if self.local.discrete:
            raise mixtures_refused(self.local.group.name)
        own, cavities, _ = self._continuous(messages, beliefs)
        if self.is_mean_field:
            return self._plain(stacked([q.normal if isinstance(q, Conjugate) else q for q in own]))
        usable, flat = self.scopes.sorted(cavities)
        cavities = self._repaired(usable, cavities, own)
        around = self.scopes.surrounded(own, cavities, usable & flat)
        tilted = self._looked(around, own)
        if around.of_u is None:
            return self._plain(Gaussian.from_moments(tilted.mean[0], tilted.covariance[0]))
        mean, covariance = around.of_u.moments(
            tilted.mean - around.origin, tilted.covariance, slice(0, sum(self.local.widths))
        )
        mean = torch.cat(around.points, 1) + mean[0]
        return self._plain(Gaussian.from_moments(mean, covariance[0]))

    def _looked(self, around: Surrounded, own: list[Natural]) -> Tilted:
        """Moments on the grids as they are, which do not change."""
        return copy(self)._tilted(around, own)


def _unit(like: Natural) -> Natural:
    """N(0, I), Gamma(1, 1) or Beta(1, 1) of the same batch."""
    if isinstance(like, Conjugate):
        return type(like)(torch.ones_like(like.natural))
    return standard_normal(like)
