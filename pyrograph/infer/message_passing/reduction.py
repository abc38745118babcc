"""What factors of continuous nodes really depend on.

A factor of a wide node often reads it through a few linear combinations v = B x: a regression's
likelihood reads the weights through one, a Gaussian process's likelihood one entry. And a factor
of several nodes often reads them jointly through u = A v: a difference, a sum. Integrals are then
taken over u, whatever the width of the nodes.

Both are found by gradients at random points, whose span is that of the rows, and checked: moving
the rest of the coordinates must not change the factor. Quadratic factors are recognised by their
constant second derivative and need no integral at all.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import apply
from pyrograph.graph import FactorGroup

#: Points at which gradients are looked at, and those at which a reduction is checked.
PROBES, CHECKS = 8, 6
#: Scales of the standard normal points, in turn.
SCALES = (1.0, 0.3, 3.0)


class LocalDensity:
    """A group's factors as functions of reduced coordinates, for every state of discrete slots.

    Args:
        group: factors with at least one continuous slot.
        index: ``[E]`` the factors of the group that are meant.

    Attributes:
        discrete, continuous: positions of the slots.
        states: ``[D, number of discrete slots]``, all assignments, the last fastest.
        bases: of each continuous slot, ``[E, r, d]`` with orthonormal rows, or None for B = I.
        widths: r of each continuous slot; they add up to R.
        joint: A, ``[D, E, r, R]`` with orthonormal rows, or None for u = v.
    """

    def __init__(self, group: FactorGroup, index: Tensor, like: Tensor, seed: int = 0):
        self.group, self.index, self.like = group, index, like
        self.discrete = [k for k, s in enumerate(group.slots) if s.is_discrete]
        self.continuous = [k for k, s in enumerate(group.slots) if not s.is_discrete]
        cards = [group.slots[k].cardinality for k in self.discrete]
        states = list(itertools.product(*(range(c) for c in cards)))
        self.states = torch.tensor(states, device=like.device).reshape(len(states), len(cards))
        self.generator = torch.Generator().manual_seed(seed)
        self.nodes_widths = [group.slots[k].width for k in self.continuous]
        self.bases: list[Tensor | None] = [None] * len(self.continuous)
        self.joint: Tensor | None = None
        self._reduce_slots()
        self.widths = [
            w if b is None else b.shape[1]
            for w, b in zip(self.nodes_widths, self.bases, strict=True)
        ]

    # ------------------------------------------------------------------ evaluation
    @property
    def num_factors(self) -> int:
        return len(self.index)

    @property
    def num_states(self) -> int:
        return len(self.states)

    @property
    def is_whole(self) -> bool:
        return self.num_factors == self.group.num_factors

    def at_nodes(self, x: list[Tensor]) -> Tensor:
        """log f at node values ``[N, D, E, d]`` of every continuous slot: ``[N, D, E]``."""
        n, states, count = x[0].shape[:3]
        values: list[Tensor] = [x[0]] * self.group.arity
        for k, value in zip(self.continuous, x, strict=True):
            flat = value.reshape(n * states, count, *self.group.slots[k].event_shape)
            values[k] = self._all_factors(flat)
        for position, k in enumerate(self.discrete):
            site = self.group.slots[k]
            chosen = site.enumeration.to(self.like.device)[self.states[:, position]]
            chosen = chosen.expand(n, *chosen.shape).reshape(n * states, 1, *site.event_shape)
            values[k] = chosen.expand(-1, self.group.num_factors, *site.event_shape)
        found = self.group.log_prob(values)
        return (found if self.is_whole else found[:, self.index]).reshape(n, states, count)

    def _all_factors(self, flat: Tensor) -> Tensor:
        """Values for the whole group: factors that are not meant repeat the first."""
        if self.is_whole:
            return flat
        out = flat[:, :1].expand(-1, self.group.num_factors, *flat.shape[2:])
        return out.index_copy(1, self.index, flat)

    def at_parts(self, v: Tensor) -> Tensor:
        """log f at reduced coordinates ``[N, D, E, R]``."""
        x = []
        for part, basis in zip(v.split(self.widths, -1), self.bases, strict=True):
            x.append(part if basis is None else apply(basis.mT, part))
        return self.at_nodes(x)

    def __call__(self, u: Tensor) -> Tensor:
        """log f at effective coordinates ``[N, D, E, r]``: ``[N, D, E]``."""
        return self.at_parts(u if self.joint is None else apply(self.joint.mT, u))

    @property
    def dim(self) -> int:
        """Effective dimension: r of u."""
        return sum(self.widths) if self.joint is None else self.joint.shape[2]

    # ------------------------------------------------------------------ reductions
    def _points(self, count: int, width: int) -> Tensor:
        """``[count, D, E, width]`` at several scales."""
        shape = (count, self.num_states, self.num_factors, width)
        scale = torch.tensor([SCALES[k % len(SCALES)] for k in range(count)])
        z = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return (z * scale.view(-1, 1, 1, 1)).to(self.like)

    def _tolerance(self) -> float:
        return torch.finfo(self.like.dtype).eps ** 0.5

    def _reduce_slots(self) -> None:
        if max(self.nodes_widths) == 1 or self.group.is_differentiable:
            return  # what factors read may change with the tensors they are attached to
        points = [self._points(PROBES, w).requires_grad_() for w in self.nodes_widths]
        with torch.enable_grad():
            total = self.at_nodes(points).sum()
            gradients = torch.autograd.grad(total, points)
        for k, gradient in enumerate(gradients):
            width = self.nodes_widths[k]
            rows = gradient.flatten(0, 1).transpose(0, 1)  # [E, N D, d]
            basis = self._span(rows) if width > 1 else None
            if basis is None or not self._slot_is_free(k, basis):
                continue
            self.bases[k] = basis

    def _span(self, rows: Tensor) -> Tensor | None:
        """Orthonormal basis of the rows, ``[..., r, d]`` of ``[..., m, d]``; None if all of it."""
        if not bool(rows.isfinite().all()):
            return None
        _, size, right = torch.linalg.svd(rows, full_matrices=False)
        rank = int((size > self._tolerance() * size[..., :1]).sum(-1).max())
        return None if rank >= min(rows.shape[-2:]) else right[..., : max(rank, 1), :]

    def _slot_is_free(self, k: int, basis: Tensor) -> bool:
        """Whether coordinates of slot k outside the basis leave the factors as they are."""
        points = [self._points(CHECKS, w) for w in self.nodes_widths]
        before = self.at_nodes(points)
        inside = apply(basis.mT, apply(basis, points[k]))
        points[k] = inside
        return self._same(before, self.at_nodes(points))

    def _same(self, a: Tensor, b: Tensor) -> bool:
        bound = 10 * self._tolerance() * (1 + a.abs())
        return bool(((a - b).abs() <= bound).all())

    def reduce_jointly(self) -> None:
        """Find A; to be called for factors that are not quadratic."""
        total = sum(self.widths)
        if total == 1 or len(self.widths) == 1 or self.group.is_differentiable:
            return  # the basis of an only slot has seen to it
        v = self._points(max(PROBES, total + 2), total).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self.at_parts(v).sum(), v)
        joint = self._span(gradient.permute(1, 2, 0, 3))
        if joint is None:
            return
        v = self._points(CHECKS, total)
        inside = apply(joint.mT, apply(joint, v))
        if self._same(self.at_parts(v), self.at_parts(inside)):
            self.joint = joint

    @cached_property
    def quadratic(self) -> Quadratic | None:
        """Coefficients in v of factors without discrete slots, if all are quadratic."""
        if self.discrete:
            return None
        total = sum(self.widths)
        start = self._points(1, total)[0]  # [1, E, R]
        v = start.repeat(total + 1, 1, 1, 1)
        v[1:] += torch.eye(total, dtype=v.dtype, device=v.device).view(total, 1, 1, total)
        v.requires_grad_()
        with torch.enable_grad():
            value = self.at_parts(v)
            attached = self.group.is_differentiable
            (slope,) = torch.autograd.grad(value.sum(), v, create_graph=attached)
        slope = slope.squeeze(1)  # [R + 1, E, R]
        value, origin = value[0, 0] if attached else value.detach()[0, 0], start[0]
        precision = -(slope[1:] - slope[:1]).transpose(0, 1)
        precision = (precision + precision.mT) / 2
        shift = slope[0] + apply(precision, origin)
        gaussian = Gaussian(precision, shift)
        constant = value - gaussian.log_value(origin)
        check = self._points(CHECKS, total)
        there = self.at_parts(check).squeeze(1)
        ours = constant + gaussian.log_value(check.squeeze(1))
        if not bool(there.isfinite().all()) or not self._close(there, ours, check):
            return None
        return Quadratic(gaussian, constant)

    def _close(self, theirs: Tensor, ours: Tensor, at: Tensor) -> bool:
        """Equal up to what differences of gradients lose."""
        size = 1 + theirs.abs() + at.squeeze(1).square().sum(-1)
        return bool(((theirs - ours).abs() <= 100 * self._tolerance() * size).all())


@dataclass(frozen=True)
class Quadratic:
    """exp(-v' P v / 2 + h' v + c): ``gaussian`` of batch ``[E]``, ``constant [E]``."""

    gaussian: Gaussian
    constant: Tensor

    @property
    def is_finite(self) -> bool:
        return math.isfinite(float(self.constant.sum()))
