"""Which combinations of the numbers that factors read of their nodes they depend on.

    log f(x) = g(R x),      R  [m, W]

in every state of discrete nodes. R is known from the factors' steps: what enters a step that is not
linear is a linear function of x (:func:`.combinations_read`), and its slope a row of R. Where many
numbers enter, random mixtures of them span the same, and few will do: as soon as another one adds
nothing to any factor, all is found.

At points a threshold or a needle elsewhere could be missed. They only tell, afterwards, where
numbers that cancel in the steps are infinite, which do not cancel.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from pyrograph.beliefs.gaussian import apply
from pyrograph.graph import FactorGroup
from pyrograph.infer.message_passing.densities.in_states import leaves_in_states, values_in_states
from pyrograph.infer.message_passing.densities.points import points_of
from pyrograph.infer.message_passing.densities.spans import (
    directions,
    or_one,
    ranks,
    span,
    steepness,
)
from pyrograph.trace.forms.cancelled import numbers_that_matter
from pyrograph.trace.forms.combinations import combinations_read
from pyrograph.trace.forms.reach import leaves_that_reach
from pyrograph.trace.localize import LocalProgram

#: Most combinations that a basis is taken from.
PROBES = 16
#: What of a direction is rounding, in units of the dtype's precision.
RANK = 200.0


class Dependence:
    """What a group's factors depend on, of the W numbers that each reads of its continuous nodes.

    Args:
        group: the factors, E of them.
        program: theirs, on the numbers that are read.
        states: ``[D, number of discrete slots]``.
        widths: of each continuous slot, how many numbers are read; they add up to W.
        like: dtype and device.
        generator: of the mixtures, and of points.
    """

    def __init__(
        self,
        group: FactorGroup,
        program: LocalProgram,
        states: Tensor,
        widths: list[int],
        like: Tensor,
        generator: torch.Generator,
    ):
        self._group, self._program, self._states, self._widths = group, program, states, widths
        self._like, self._generator = like, generator
        self._continuous = [k for k, site in enumerate(group.slots) if not site.is_discrete]
        self._discrete = {k for k, site in enumerate(group.slots) if site.is_discrete}
        self._size = (len(states), group.num_factors)

    # ------------------------------------------------------------------ what was found
    @cached_property
    def rows(self) -> Tensor | None:
        """R, ``[D, E, m, W]`` in double precision. None if it changes with tensors that the program
        is attached to, or is not finite."""
        leaves = self._discrete_leaves()
        for k, width in zip(self._continuous, self._widths, strict=True):
            zeros = self._like.new_zeros(self._group.num_factors * width, len(self._states))
            leaves[k] = zeros.requires_grad_()
        matters = numbers_that_matter(self._program, leaves, self._discrete)
        found = self._rows(leaves, matters)
        if matters and found is not None and not self._is_known_on(found):
            found = self._rows(leaves, {})
        return found

    @cached_property
    def reach(self) -> list[Tensor]:
        """Which of the numbers read of each continuous slot matter in a state, ``[D, E, m]``; of
        factors with discrete slots."""
        found = leaves_that_reach(self._program, self._discrete_leaves())
        return [found[k].t().reshape(*self._size, -1) for k in self._continuous]

    @cached_property
    def num_read(self) -> Tensor:
        """``[E]`` how many combinations a factor reads in any state, as far as is known."""
        if self.rows is None:
            return torch.full_like(self._group.index, sum(self._widths))
        return ranks(self.rows, self.rank_tolerance).amax(0).clamp_min(1)

    def by_slot(self) -> list[Tensor | None]:
        """Of each continuous slot orthonormal rows B, ``[E, r, m]``, of what factors depend on in
        any state; None where that is all, or too much to be worth it."""
        if max(self._widths) == 1 or self.rows is None:
            return [None] * len(self._widths)
        bases: list[Tensor | None] = []
        for rows, width in zip(self.rows.split(self._widths, 3), self._widths, strict=True):
            found = None if width == 1 else self._span(rows.transpose(0, 1).flatten(1, 2))
            bases.append(None if found is None else found.to(self._like))
        return bases

    def jointly(self, bases: list[Tensor | None], free: list[int]) -> Tensor | None:
        """Orthonormal combinations of some numbers of v = B x that span all which factors read of
        them, ``[D, E, r, len(free)]``; None if these are no fewer.

        Args:
            bases: B of each slot; free: which numbers of v.
        """
        # the basis of an only slot has seen to it, but one of all states is wider than each needs
        is_done = len(bases) == 1 and len(self._states) == 1
        if len(free) <= 1 or is_done or self.rows is None:
            return None
        parts = self.rows.split(self._widths, 3)
        rows = torch.cat(
            [
                part if b is None else part @ b.mT.double()
                for part, b in zip(parts, bases, strict=True)
            ],
            3,
        )[..., free]
        # like factors often read their nodes alike: one basis serves all
        found = self._span(rows.reshape(1, 1, -1, len(free)))
        if found is None or int(self.num_read.max()) < found.shape[2]:
            each = self._span(rows)
            if found is None or (each is not None and each.shape[2] < found.shape[2]):
                found = each
        if found is None:
            return None
        return found.to(self._like).expand(*self._size, *found.shape[2:])

    # ------------------------------------------------------------------ how it is found
    def _discrete_leaves(self) -> list[Tensor | None]:
        return leaves_in_states(self._group.slots, self._states, self._group.num_factors)

    def _rows(self, leaves: list[Tensor], matters: dict[int, Tensor]) -> Tensor | None:
        """R, from numbers of steps that matter; where none are given from all."""
        free = [leaves[k] for k in self._continuous]
        rows = []
        with torch.enable_grad():
            for numbers in combinations_read(self._program, leaves, self._discrete, matters):
                found = self._slopes(numbers, free)
                if found is None:
                    return None
                rows += found
        every = torch.stack(rows, 2) if rows else None
        if every is None or not bool(every.isfinite().all()):
            return None
        return every * torch.cat(self.reach, 2)[:, :, None] if self._discrete else every

    def _slopes(self, numbers: Tensor, free: list[Tensor]) -> list[Tensor] | None:
        """Rows ``[D, E, W]`` that span the slopes of numbers, some of every factor: random mixtures
        of like weight, until another one adds nothing to any factor. None if they are attached."""
        attached, size = self._group.is_differentiable, steepness(numbers, free, self._generator)
        rows: list[Tensor] = []
        unit: Tensor | None = None
        for _ in range(min(PROBES, sum(self._widths))):
            noise = torch.randn(
                numbers.shape, generator=self._generator, dtype=torch.float64, device="cpu"
            )
            total = (numbers * (noise.to(numbers) / size)).sum()
            slopes = torch.autograd.grad(total, free, None, True, attached, allow_unused=True)
            if any(slope is not None and slope.requires_grad for slope in slopes):
                return None
            row = torch.cat(
                [
                    (torch.zeros_like(x) if g is None else g).double().t().reshape(*self._size, -1)
                    for g, x in zip(slopes, free, strict=True)
                ],
                2,
            )
            unit = or_one(row.abs()) if unit is None else unit
            row = directions(row / unit)
            for _ in range(2):  # the second time for rounding
                for known in rows:
                    row = row - (row * known).sum(-1, keepdim=True) * known
            is_new = row.norm(dim=-1, keepdim=True) > self.rank_tolerance
            if not bool(is_new.any()):
                break
            rows.append(torch.where(is_new, directions(row), 0.0))
        return [row * unit for row in rows]

    @torch.no_grad()
    def _is_known_on(self, rows: Tensor) -> bool:
        """Whether the factors have values where other combinations than these are 0: infinite
        numbers do not cancel."""
        basis = self._span(rows)
        if basis is None:
            return True
        slots = self._group.slots
        z = [
            points_of(slots[k], (2, *self._size, width), self._like, self._generator)
            for k, width in zip(self._continuous, self._widths, strict=True)
        ]
        x = apply(basis.mT, apply(basis, torch.cat(z, -1).double())).to(self._like)
        values = values_in_states(self._program, slots, self._states, x.split(self._widths, -1))
        return not bool(values.isnan().any())

    def _span(self, rows: Tensor) -> Tensor | None:
        return span(rows, self.rank_tolerance, PROBES)

    @property
    def rank_tolerance(self) -> float:
        return RANK * torch.finfo(self._like.dtype).eps
