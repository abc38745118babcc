"""Families of approximations, and the KL(p || q) projection on them: moment matching.

For an exponential family with statistics T the minimiser of KL(p || q) has the mass of p and
E_q[T] = E_p[T]: mean and variance for a Gaussian, the marginals for a product of marginals.

Source: Minka (2005), section 3, Theorem 1 and eqs (12) to (14).
"""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Protocol

import torch
from torch import Tensor

from pyrograph.divergences.boxes import supports
from pyrograph.divergences.measures import Atomic, Discrete, Factorised, Gaussian, Gridded
from pyrograph.divergences.pairs import check_target
from pyrograph.errors import OptionError, ShapeMismatch

#: How many peaks of p serve as starts of an alpha-projection.
PEAKS = 2
#: Mass that a start near one joint state leaves to the other states.
SOFT = 0.1

Member = Gaussian | Factorised


class Family(Protocol):
    """What a projection asks of a family; leading dimensions are a batch.

    Natural and free coordinates describe the normalised member alone.
    """

    def project(self, p: Atomic) -> Member:
        """The member nearest to ``p`` in KL(p || q)."""

    def place(self, member: Member, p: Atomic) -> Atomic:
        """The member as a measure on the atoms of ``p``."""

    def natural(self, member: Member) -> Tensor:
        """Natural parameters ``[..., k]``."""

    def from_natural(self, natural: Tensor, p: Atomic) -> tuple[Member, Tensor]:
        """The member, and whether its parameters are proper ``[...]``."""

    def free(self, member: Member) -> Tensor:
        """Unconstrained coordinates ``[..., k]``; infinite ones are held fixed."""

    def from_free(self, free: Tensor, p: Atomic) -> Member:
        """The member with these coordinates."""

    def change(self, old: Member, new: Member) -> Tensor:
        """Largest difference of the moments, free of units, ``[...]``."""

    def starts(self, p: Atomic, alpha: float) -> list[Member]:
        """Where to look for a minimum of D_alpha, one member per element of the batch each."""


def project(p: Atomic, family: Family) -> Member:
    """The member of ``family`` that minimises KL(p || q), its mass included.

    Args:
        p: a :class:`Gridded` measure for :class:`Gaussian1D`, a :class:`Discrete` one for
            :class:`FullyFactorised`.

    Returns:
        a :class:`Gaussian` (one dimension) or a :class:`Factorised` of the batch of ``p``.

    Raises:
        ShapeMismatch: the family does not describe measures like ``p``.
        OptionError: ``family`` is none, or the batch is empty.
        NonFiniteDensity: a mass of ``p`` is NaN or infinite.
        ZeroMass: ``p`` has no mass.
    """
    check_family(family)
    check_target(p)
    return family.project(p)


def check_family(family: Family) -> None:
    """Refuse what is no family, such as the class of one."""
    if isinstance(family, type) or not hasattr(family, "from_natural"):
        raise OptionError(f"family={family!r} is no family: give FullyFactorised() or Gaussian1D()")


class Gaussian1D:
    """Gaussians on the line, seen at the points of a grid.

    The grid of p must resolve the narrowest member of interest and reach past the tails of the
    widest: alpha-projections compare measures on the grid alone, and a member cut off at its
    ends passes for a flatter one.
    """

    def project(self, p: Atomic) -> Gaussian:
        """Mass, mean and variance of ``p``."""
        if not isinstance(p, Gridded):
            raise ShapeMismatch(
                f"Gaussian1D cannot approximate {type(p).__name__}: it needs the places of the "
                "atoms; use Gridded (with log_weights of zero for atoms)"
            )
        weights = p.log_atoms.softmax(-1)
        mean = (weights * p.points).sum(-1, keepdim=True)
        variance = (weights * (p.points - mean) ** 2).sum(-1, keepdim=True)
        return Gaussian(p.log_mass_total, mean, variance[..., None])

    def place(self, member: Gaussian, p: Gridded) -> Gridded:
        return member.on_grid(p)

    def natural(self, member: Gaussian) -> Tensor:
        precision = 1 / member.covariance[..., 0]
        return torch.cat([precision * member.mean, precision], -1)

    def from_natural(self, natural: Tensor, p: Gridded) -> tuple[Gaussian, Tensor]:
        """Proper where the precision is positive."""
        shift, precision = natural.unbind(-1)
        proper = (precision > 0) & precision.isfinite()
        precision = torch.where(proper, precision, 1)
        return self._member(shift / precision, 1 / precision), proper

    def free(self, member: Gaussian) -> Tensor:
        return torch.cat([member.mean, member.covariance[..., 0].log() / 2], -1)

    def from_free(self, free: Tensor, p: Gridded) -> Gaussian:
        mean, log_sd = free.unbind(-1)
        return self._member(mean, (2 * log_sd).exp())

    def _member(self, mean: Tensor, variance: Tensor) -> Gaussian:
        return Gaussian(torch.zeros_like(mean), mean[..., None], variance[..., None, None])

    def change(self, old: Gaussian, new: Gaussian) -> Tensor:
        """Mean in standard deviations, and log standard deviation."""
        variance_old, variance_new = old.covariance[..., 0], new.covariance[..., 0]
        mean = (new.mean - old.mean) / variance_old.sqrt()
        log_sd = (variance_new / variance_old).log() / 2
        return torch.cat([mean, log_sd], -1).abs().amax(-1)

    def starts(self, p: Gridded, alpha: float) -> list[Gaussian]:
        """The moments of p, half their width, and the Laplace approximation of each peak.

        A narrow start matters for alpha < 0, where D is infinite for a q wider than p.
        """
        whole = self.project(p)
        half = Gaussian(whole.log_mass, whole.mean, whole.covariance / 4)
        x, y = p.points.expand(p.log_density.shape), p.log_density
        left, right = x.diff(dim=-1)[..., :-1], x.diff(dim=-1)[..., 1:]
        slope = y.diff(dim=-1) / x.diff(dim=-1)
        slope_left, slope_right = slope[..., :-1], slope[..., 1:]
        curvature = 2 * (slope_left - slope_right) / (left + right)
        peak = (slope_left >= 0) & (slope_right < 0) & (curvature > 0) & curvature.isfinite()
        variance = 1 / torch.where(peak, curvature, 1)
        mass = torch.where(peak, y[..., 1:-1] + variance.log() / 2, -math.inf)
        best, index = mass.topk(min(PEAKS, mass.shape[-1]), dim=-1)
        found = []
        for k in range(best.shape[-1]):
            at = index[..., k : k + 1]
            exists = best[..., k : k + 1] > -math.inf
            mean = torch.where(exists, x[..., 1:-1].gather(-1, at), whole.mean)
            width = torch.where(exists, variance.gather(-1, at), whole.covariance[..., 0])
            found.append(Gaussian(whole.log_mass, mean, width[..., None]))
        return [whole, half, *found]


class FullyFactorised:
    """Products of the marginals of discrete variables."""

    def project(self, p: Atomic) -> Factorised:
        """Mass and marginals of ``p``."""
        if not isinstance(p, Discrete):
            raise ShapeMismatch(
                f"FullyFactorised cannot approximate {type(p).__name__}; it needs a Discrete joint"
            )
        d = p.num_variables
        total = p.log_mass_total
        marginals = []
        for i in range(d):
            others = [k - d for k in range(d) if k != i]
            table = p.log_mass.logsumexp(others) if others else p.log_mass
            marginals.append(table - total[..., None])
        return Factorised(total, tuple(marginals))

    def place(self, member: Factorised, p: Discrete) -> Discrete:
        return member.joint()

    def natural(self, member: Factorised) -> Tensor:
        return torch.cat(member.log_marginals, -1)

    def from_natural(self, natural: Tensor, p: Discrete) -> tuple[Factorised, Tensor]:
        """Proper where every variable keeps a state of finite log mass."""
        tables = natural.split(p.cards, -1)
        tops = torch.stack([t.amax(-1) for t in tables], -1)
        proper = tops.isfinite().all(-1) & ~natural.isnan().any(-1)
        marginals = tuple(torch.where(proper[..., None], t, 0).log_softmax(-1) for t in tables)
        return Factorised(torch.zeros_like(tops[..., 0]), marginals), proper

    def free(self, member: Factorised) -> Tensor:
        return self.natural(member)

    def from_free(self, free: Tensor, p: Discrete) -> Factorised:
        return self.from_natural(free, p)[0]

    def change(self, old: Factorised, new: Factorised) -> Tensor:
        """Largest difference of a probability."""
        pairs = zip(old.log_marginals, new.log_marginals)
        return torch.cat([a.exp() - b.exp() for a, b in pairs], -1).abs().amax(-1)

    def starts(self, p: Discrete, alpha: float) -> list[Factorised]:
        """The marginals of p, the neighbourhoods of its heaviest joint states, and boxes.

        Where p has zeros, a q of finite divergence has for alpha <= 0 its support inside that of
        p, and the optimum can lie on that boundary for any alpha < 1. The supports to look at are
        boxes, products of sets of states without a zero of p: see
        :func:`~pyrograph.divergences.boxes.supports` for which of them are.
        """
        whole = self.project(p)
        p = p.flatten()
        atoms = p.log_atoms
        heavy = atoms.topk(min(PEAKS, atoms.shape[-1]), dim=-1).indices
        soft, boxes = [], []
        for k in range(heavy.shape[-1]):
            states = torch.unravel_index(heavy[:, k], p.cards)
            near = [
                atoms.new_full(i.shape + (c,), SOFT / c).scatter(-1, i[..., None], 1 - SOFT)
                for i, c in zip(states, p.cards)
            ]
            soft.append(self._shape_like(whole, [m.log() for m in near], p))
        if alpha < 1 and bool((atoms == -math.inf).any()):
            for masks in supports(p.log_mass):
                boxes.append(self._shape_like(whole, [m.to(atoms).log() for m in masks], p))
        pairs = zip_longest(soft, boxes)
        return [whole, *(start for pair in pairs for start in pair if start is not None)]

    def _shape_like(self, whole: Factorised, tables: list[Tensor], p: Discrete) -> Factorised:
        member, _ = self.from_natural(torch.cat(tables, -1), p)
        batch = whole.log_mass.shape
        return Factorised(
            whole.log_mass, tuple(m.reshape(batch + m.shape[-1:]) for m in member.log_marginals)
        )
