"""What surrounds factors that are integrated by quadrature.

Cavities are functions of the nodes' numbers v, tilted distributions ones of the numbers u = A v
that a factor reads: what the cavities make of u, and the moments of v from those of u.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate, Gaussian, Natural
from pyrograph.beliefs.gaussian import apply, block_diagonal, stacked, times_blocks
from pyrograph.beliefs.natural import where
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.quadrature.effective import Effective, Rest, effective
from pyrograph.infer.message_passing.quadrature.grids import Grid
from pyrograph.infer.message_passing.quadrature.sums import Product, Surroundings, Tilted

#: Of covariances, in units of the dtype's precision.
ROUNDING = 64.0


@dataclass(frozen=True)
class Read:
    """What u is of a slot's numbers v, in the states in which factors read them: each of the K
    components of a mixture in one, so that sums over states take K products, not K^2.

    Attributes:
        states: ``[d]``, of D; matrix: A there, ``[d, E, r, r_k]``, None if u = v.
    """

    states: Tensor
    matrix: Tensor | None

    def of(self, mean: Tensor) -> Tensor:
        """A m, ``[d, E, r]`` of ``[E, r_k]``."""
        if self.matrix is None:
            return mean.expand(len(self.states), *mean.shape)
        return apply(self.matrix, mean)

    def around(self, covariance: Tensor) -> Tensor:
        """A C A', ``[d, E, r, r]`` of ``[E, r_k, r_k]``."""
        if self.matrix is None:
            return covariance.expand(len(self.states), *covariance.shape)
        return self.matrix @ covariance @ self.matrix.mT

    def back(self, slope: Tensor, bend: Tensor) -> tuple[Tensor, Tensor]:
        """A' g, ``[d, E, r_k]``, and A' H A, of ``[D, E, r]`` and ``[D, E, r, r]`` of u."""
        slope, bend = slope[self.states], bend[self.states]
        if self.matrix is None:
            return slope, bend
        return apply(self.matrix.mT, slope), self.matrix.mT @ bend @ self.matrix


class Scopes:
    """Where numbers of v stand in u.

    Args:
        local: the factors, in effective coordinates.
        takes_flat: whether flat cavities may be used where u is not v.

    Attributes:
        parts: of each continuous slot, its columns in v.
        normal: slots with Gaussian beliefs; own_parts: their columns in v without the others.
        unread: of other slots, ``[D, E]`` in which states they are not read, None if in none.
    """

    def __init__(self, local: LocalDensity, takes_flat: bool):
        self.local, self.takes_flat = local, takes_flat
        self.parts = _slices(local.widths)
        others = sorted({k for number in local.chosen for k in number.slots})
        self.normal = [k for k in range(len(local.widths)) if k not in others]
        own = _slices([local.widths[k] for k in self.normal])
        self.own_parts = dict(zip(self.normal, own, strict=True))
        self.unread: dict[int, Tensor | None] = {}
        for k in others:
            unread = ~torch.stack([c.is_slot(k) for c in local.chosen]).any(0)
            self.unread[k] = unread if bool(unread.any()) else None
        self._rest: Rest | None = None
        if local.joint is not None and self.normal:
            rows = local.joint[..., : local.dim - len(local.chosen), :]
            own = [rows[..., self.parts[k]] for k in self.normal]
            self._rest = Rest(torch.cat(own, -1), takes_flat)

    @cached_property
    def read(self) -> list[Read]:
        """What u is of each slot, where it is not v."""
        found = []
        for part in self.parts:
            rows = self.local.joint[..., part]
            states = (rows != 0).flatten(1).any(1).nonzero().squeeze(1)
            eye = torch.eye(*rows.shape[2:], dtype=rows.dtype, device=rows.device)
            is_whole = rows.shape[2] == rows.shape[3] and bool((rows[states] == eye).all())
            found.append(Read(states, None if is_whole else rows[states]))
        return found

    def sorted(self, cavities: list[Natural]) -> tuple[Tensor, Tensor]:
        """``[E]`` whether all cavities are proper, or flat: then the factor has to hold the node,
        and other nodes what it does not read; and which of these have flat ones."""
        if self.local.joint is None:
            usable = torch.stack([c.is_nearly_proper for c in cavities]).all(0)
            return usable, usable & ~torch.stack([c.is_proper for c in cavities]).all(0)
        usable = torch.ones_like(self.local.index, dtype=torch.bool)
        flat = ~usable
        if self._rest is not None:
            usable, flat = self._rest.sorted([cavities[k] for k in self.normal])
        for k, unread in self.unread.items():
            cavity = cavities[k]
            usable = usable & (cavity.is_nearly_proper if unread is None else cavity.is_proper)
        return usable, flat

    def moments(self, parts: list[Natural]) -> tuple[Tensor, Tensor]:
        """Mean ``[D, E, r]`` and covariance ``[D, E, r, r]`` of u under independent parts."""
        mean = torch.cat([p.mean for p in parts], 1)
        joint = self.local.joint
        if joint is not None and max(self.local.widths) == 1:
            variance = torch.cat([p.covariance[..., 0] for p in parts], 1)
            scaled = joint * variance.sqrt().unsqueeze(-2)
            return apply(joint, mean), scaled @ scaled.mT
        if joint is None:
            covariance = block_diagonal([p.covariance for p in parts])
            states = self.local.num_states
            return mean.expand(states, *mean.shape), covariance.expand(states, *covariance.shape)
        if all(len(read.states) == len(joint) for read in self.read):
            spread = times_blocks(joint, [p.covariance for p in parts])
            return apply(joint, mean), spread @ joint.mT
        size = (*joint.shape[:3], self.local.dim)
        mean, covariance = mean.new_zeros(size[:3]), mean.new_zeros(size)
        for read, part in zip(self.read, parts, strict=True):
            mean = mean.index_add(0, read.states, read.of(part.mean))
            covariance = covariance.index_add(0, read.states, read.around(part.covariance))
        return mean, covariance

    def surrounded(self, own: list[Natural], cavities: list[Natural], flat: Tensor) -> Surrounded:
        """
        Args:
            own: beliefs of the continuous slots, in v; flat: ``[E]``, see :meth:`sorted`.
        """
        points = points_of(own)
        origin = self._at(torch.cat(points, 1))
        around = about(cavities, points)
        narrower = [  # a gamma or beta cavity may reach very far
            q if isinstance(q, Conjugate) else where(flat, q, c)
            for c, q in zip(cavities, own, strict=True)
        ]
        g, of_u = self._function(around, flat)
        return Surrounded(self, g, origin, self.grid_over(narrower), points, cavities, of_u)

    def grid_over(self, parts: list[Natural]) -> Grid:
        """Laid over u under independent parts."""
        mean, covariance = self.moments(parts)
        return Grid(mean.detach(), _root(covariance.detach()))

    def _function(
        self, around: list[Natural], flat: Tensor
    ) -> tuple[Surroundings, Effective | None]:
        """Of cavities about their points, as a function of u less its point."""
        local = self.local
        if local.joint is not None:
            numbers = [c.of(around) for c in local.chosen]
            columns = [slice(c.column, c.column + 1) for c in local.chosen]
            if self._rest is None:
                return Product(numbers, columns), None
            of_u = effective(self._rest, [around[k] for k in self.normal], flat)
            if not numbers:
                return of_u.g, of_u
            return Product([of_u.g, *numbers], [slice(0, of_u.g.d), *columns]), of_u
        if local.chosen:
            return Product(around, self.parts), None
        g = stacked(around)
        g = g.mapped(lambda value: value.expand(local.num_states, *value.shape))
        return g, None

    def _at(self, v: Tensor) -> Tensor:
        """u ``[D, E, r]`` of v ``[E, R]``."""
        joint = self.local.joint
        return v.expand(self.local.num_states, *v.shape) if joint is None else apply(joint, v)


@dataclass(frozen=True)
class Surrounded:
    """What the cavities make.

    Attributes:
        g: as a function of u - origin.
        origin: ``[D, E, r]``.
        first: where to look first.
        points: of the continuous slots, in v, that functions of Gaussian ones are expanded about.
        cavities: of the continuous slots, in v.
        of_u: where u is not v itself, what is known of Gaussian numbers of v given u - origin.
    """

    scopes: Scopes
    g: Surroundings
    origin: Tensor
    first: Grid
    points: list[Tensor]
    cavities: list[Natural]
    of_u: Effective | None

    def log_mass(self, tilted: Tilted) -> Tensor:
        """Of the factor to alpha and the cavities, ``[D, E]``."""
        value = tilted.log_mass if self.of_u is None else tilted.log_mass + self.of_u.log_rest
        for k, unread in self.scopes.unread.items():
            if unread is not None:
                value = value + torch.where(unread, self.cavities[k].log_mass, 0.0)
        return value

    def moments(self, tilted: Tilted, k: int) -> tuple[Tensor, Tensor]:
        """Mean ``[D, E, r_k]`` and covariance of a Gaussian slot's v under tilted distributions."""
        if self.of_u is None:
            part = self.scopes.parts[k]
            return tilted.mean[..., part], tilted.covariance[..., part, part]
        d = self.of_u.g.d  # Gaussian numbers of u come first, apart from the others
        mean, covariance = (tilted.mean - self.origin)[..., :d], tilted.covariance[..., :d, :d]
        there, around = self.of_u.moments(mean, covariance, self.scopes.own_parts[k])
        return self.points[k] + there, around

    def expected(self, tilted: Tilted, k: int) -> Tensor:
        """Of a slot with gamma or beta beliefs, expected statistics ``[D, E, 2]``."""
        unread, chosen = self.scopes.unread[k], self.scopes.local.chosen
        values = tilted.expected.split(2, -1)
        found = torch.zeros_like(values[0]) if unread is None else self.cavities[k].expected
        for number, value in zip(chosen, values, strict=True):
            found = torch.where(number.is_slot(k)[..., None], value, found)
        return found


def _root(covariance: Tensor) -> Tensor:
    """Lower triangular, of where to look first: of beliefs that are proper but for rounding, as of
    numbers whose sum alone is known yet, of so much more along all axes."""
    root, info = torch.linalg.cholesky_ex(covariance)
    if not bool(info.any()):
        return root
    size = covariance.diagonal(dim1=-2, dim2=-1).amax(-1)
    eye = torch.eye(covariance.shape[-1], dtype=size.dtype, device=size.device)
    slack = ROUNDING * torch.finfo(size.dtype).eps * size
    return torch.linalg.cholesky(covariance + slack[..., None, None] * eye)


def points_of(own: list[Natural]) -> list[Tensor]:
    """Where functions of the slots are expanded: the means of Gaussian beliefs, 0 of others."""
    zeros = [torch.zeros_like(q.mean) if isinstance(q, Conjugate) else q.mean for q in own]
    return [point.detach() for point in zeros]


def about(parts: list[Natural], points: list[Tensor]) -> list[Natural]:
    """Gaussian functions about their points."""
    both = zip(parts, points, strict=True)
    return [part.about(p) if isinstance(part, Gaussian) else part for part, p in both]


def _slices(widths: list[int]) -> list[slice]:
    ends = itertools.accumulate(widths)
    return [slice(end - w, end) for end, w in zip(ends, widths, strict=True)]
