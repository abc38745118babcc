"""Factors of continuous nodes as functions of what they really depend on.

A factor of a wide node often reads it through a few linear combinations v = B x: a regression's
likelihood reads the weights through one, a Gaussian process's likelihood one entry. And a factor
of several nodes often reads them jointly through u = A v: a difference, a sum. Integrals are then
taken over u, whatever the width of the nodes.

Which entries and combinations a factor reads is known from its steps (:mod:`.dependence`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import apply
from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.infer.message_passing.densities.chosen import Chosen, chosen_among
from pyrograph.infer.message_passing.densities.coefficients import (
    coefficients_in_states,
    quadratic_coefficients,
)
from pyrograph.infer.message_passing.densities.dependence import Dependence
from pyrograph.infer.message_passing.densities.in_states import (
    leaves_in_states,
    states_of,
    values_in_states,
)
from pyrograph.infer.message_passing.densities.points import points_of
from pyrograph.infer.message_passing.densities.second_derivatives import SecondDerivatives
from pyrograph.infer.message_passing.nodes.basis import Basis, Combinations, Entries, part_of
from pyrograph.trace.distinct import row_numbers
from pyrograph.trace.forms.alike import functions_of
from pyrograph.trace.localize import LocalProgram

#: Rounding errors that a comparison may show, in units of the dtype's precision.
ROUNDING = 3e3


class LocalDensity:
    """A group's factors as functions of reduced coordinates, for every state of discrete slots.

    Args:
        group: factors with at least one continuous slot.
        index: ``[E]`` the factors of the group that are meant, ascending.
        like: dtype and device.
        graph: that the group is of, which knows the names of its factors.
        is_whole: whether nodes stay as they are: their beliefs know no combinations of numbers.

    Attributes:
        group: these factors alone.
        discrete, continuous: positions of the slots.
        states: ``[D, number of discrete slots]``, all assignments, the last fastest.
        bases: of each continuous slot, B with orthonormal rows, or None for B = I.
        widths: r of each continuous slot; they add up to R.
        columns: of each continuous slot, ``[E, m]`` the entries that its factors read, or None for
            all d; read_widths: m of each.
        joint: A, ``[D, E, r, R]`` with orthonormal rows, or None for u = v.
        chosen: numbers of u that are single ones of v, the last rows of A.
    """

    def __init__(
        self,
        group: FactorGroup,
        index: Tensor,
        like: Tensor,
        graph: FactorGraph,
        is_whole: bool = False,
    ):
        self.group = group if len(index) == group.num_factors else group.part(index)
        self.is_whole = is_whole
        self.index, self.like, self.graph = index, like, graph
        self.discrete = [k for k, s in enumerate(group.slots) if s.is_discrete]
        self.continuous = [k for k, s in enumerate(group.slots) if not s.is_discrete]
        self.states = states_of(group.slots, like.device)
        self.generator = torch.Generator().manual_seed(0)
        self.nodes_widths = [group.slots[k].width for k in self.continuous]
        self.columns = [self._columns(k) for k in range(len(self.continuous))]
        self.read_widths = [
            width if columns is None else columns.shape[1]
            for width, columns in zip(self.nodes_widths, self.columns, strict=True)
        ]
        self.program = self._compacted()
        #: ``[E, r, m]`` of the entries read, as :attr:`bases` is of all.
        self._inner = [None] * len(self.continuous) if is_whole else self._dependence.by_slot()
        self.joint: Tensor | None = None
        self.chosen: list[Chosen] = []
        self.widths = [
            w if b is None else b.shape[1]
            for w, b in zip(self.read_widths, self._inner, strict=True)
        ]
        self.bases = [self._basis(k) for k in range(len(self.continuous))]

    def part(self, which: Tensor) -> LocalDensity:
        """Some of the factors, ``which [e]`` ascending, in the same coordinates."""
        out = copy(self)
        for name, value in vars(LocalDensity).items():
            if isinstance(value, cached_property):  # what was found of all
                vars(out).pop(name, None)
        out.group, out.index = self.group.part(which), self.index[which]
        out.columns = [None if c is None else c[which] for c in self.columns]
        out._inner = [None if basis is None else basis[which] for basis in self._inner]
        out.bases = [part_of(basis, which) for basis in self.bases]
        out.joint = None if self.joint is None else self.joint[:, which]
        out.chosen = [replace(number, which=number.which[:, which]) for number in self.chosen]
        out.program = out._compacted()
        return out

    # ------------------------------------------------------------------ evaluation
    @property
    def num_factors(self) -> int:
        return len(self.index)

    @property
    def num_states(self) -> int:
        return len(self.states)

    def at_nodes(self, x: list[Tensor]) -> Tensor:
        """log f at node values ``[N, D, E, d]`` of every continuous slot: ``[N, D, E]``."""
        read = []
        for value, columns in zip(x, self.columns, strict=True):
            own = None if columns is None else columns.expand(*value.shape[:3], -1)
            read.append(value if own is None else value.gather(-1, own))
        return self._at_read(read)

    def _at_read(self, x: list[Tensor]) -> Tensor:
        """log f at the entries that are read, ``[N, D, E, m]`` of every continuous slot."""
        return values_in_states(self.program, self.group.slots, self.states, x)

    def at_parts(self, v: Tensor) -> Tensor:
        """log f at reduced coordinates ``[N, D, E, R]``."""
        return self._at_read(self._read(v.split(self.widths, -1)))

    def _read(self, v: Sequence[Tensor]) -> list[Tensor]:
        """The entries that are read, ``[N, D, E, m]`` of every continuous slot, at its reduced
        coordinates ``[N, D, E, w]``."""
        parts = zip(v, self._inner, strict=True)
        return [part if basis is None else apply(basis.mT, part) for part, basis in parts]

    def nodes(self, u: Tensor) -> list[Tensor]:
        """Node values ``[N, D, E, d]`` of every continuous slot, 0 where they are not read, at
        effective coordinates ``[N, D, E, r]``."""
        found = []
        read = self._read(self._parts(u).split(self.widths, -1))
        for value, columns, width in zip(read, self.columns, self.nodes_widths, strict=True):
            if columns is not None:
                nothing = value.new_zeros(*value.shape[:3], width)
                value = nothing.scatter(3, columns.expand_as(value), value)
            found.append(value)
        return found

    @property
    def numbers_at_once(self) -> int:
        """Numbers that all factors take for one point in one state: what they read, or their widest
        step, as the matrix of a Gaussian process whose length-scale is all that is read."""
        return max(self.num_factors * sum(self.read_widths), self.program.num_widest)

    @property
    def numbers_a_step(self) -> float:
        """Numbers that a step of the program computes for one point in one state, on average."""
        return self.program.num_numbers / max(1, len(self.program.lines))

    @property
    def is_scalar(self) -> bool:
        """Whether every factor reads a single continuous number of each of its nodes."""
        return not self.discrete and max(self.read_widths) == 1

    def at_scalars(self, x: list[Tensor]) -> Tensor:
        """log f ``[S, E]`` at values ``[S, E]`` of what is read of every slot, a number each."""
        return self.program([v.t() for v in x]).t()

    def at_scope(self, v: Tensor) -> Tensor:
        """log f ``[E]`` at reduced coordinates ``[E, R]``, of factors without discrete slots."""
        return self.at_parts(v[None, None])[0, 0]

    def expanded(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """-Hessian ``[E, R, R]`` and gradient ``[E, R]`` of log f at ``v [E, R]``, of factors
        without discrete slots."""
        like, v = v, v.to(self.like)
        with torch.enable_grad(), SecondDerivatives():
            v = v.detach().requires_grad_()
            value = self.at_scope(v).sum()
            slope = torch.zeros_like(v)
            if value.requires_grad:  # else constant, piece by piece
                (slope,) = torch.autograd.grad(value, v, create_graph=True, materialize_grads=True)
            if not slope.requires_grad:  # at most linear
                return like.new_zeros(*v.shape, v.shape[1]), slope.to(like)
            rows = [
                torch.autograd.grad(own, v, retain_graph=True, materialize_grads=True)[0]
                for own in slope.sum(0)
            ]
        return -torch.stack(rows, 1).to(like), slope.detach().to(like)

    def at_node(self, x: Tensor) -> Tensor:
        """log f ``[E]`` at values ``[E, d]``, of factors of one continuous node."""
        return self.at_nodes([x[None, None]])[0, 0]

    def __call__(self, u: Tensor) -> Tensor:
        """log f at effective coordinates ``[N, D, E, r]``: ``[N, D, E]``."""
        if self._places is None or torch.is_grad_enabled():
            return self.at_parts(self._parts(u))
        parts = {places: u[..., places] for places in set(self._places)}
        found = self._at_read(self._read([parts[places] for places in self._places]))
        # what a state does not read is a number of others there, and may overflow in its steps: 0
        # times that is NaN, as derivatives are
        return self.at_parts(self._parts(u)) if bool(found.isnan().any()) else found

    def leaves_at(self, u: Tensor, state: int = 0) -> list[Tensor]:
        """Leaf buffers of the program ``[E m, N]`` at effective coordinates ``[N, E, r]``, in a
        state of the discrete slots."""
        u = u[:, None]
        v = u if self.joint is None else apply(self.joint[state].mT, u)
        numbers = iter(self._read(v.split(self.widths, -1)))
        where = self.states[state : state + 1]
        given = leaves_in_states(self.group.slots, where, self.num_factors, len(u))
        return [next(numbers).reshape(len(u), -1).t() if leaf is None else leaf for leaf in given]

    def _parts(self, u: Tensor) -> Tensor:
        """Reduced coordinates of effective ones."""
        return u if self.joint is None else apply(self.joint.mT, u)

    @cached_property
    def _places(self) -> list[tuple[int, ...]] | None:
        """Of every slot's part of v, which numbers of u it is in all states that read it, if those
        are the same: a mixture's components share theirs, since a state reads no more than one of
        them, and are not laid out side by side at every point."""
        if self.joint is None or not self.discrete:
            return None
        reads = self.joint != 0
        is_one = bool((~reads | (self.joint == 1)).all()) and bool((reads.sum(2) <= 1).all())
        first = torch.where(reads.any(2), reads.int().argmax(2), self.dim)  # [D, E, R]
        least = first.amin((0, 1))
        if not is_one or bool(((first != least) & (first < self.dim)).any()):
            return None
        places = least.clamp_max(self.dim - 1)  # those that no state reads are any
        return [tuple(part.tolist()) for part in places.split(self.widths)]

    def name(self, e: int) -> str:
        """Of a factor, for messages."""
        return self.graph.factor_name(self.group, e)

    def name_at(self, u: Tensor, d: int | None, e: int) -> str:
        """Of the factor to blame for what factor e is in state d, or in all states, at a point
        ``u [1, D, E, r]``."""
        return self.name(e)

    def zero_beside_nan(self, value: Tensor, u: Tensor) -> Tensor:
        """``[N, D, E]`` where log f, ``value [N, D, E]`` at ``u [N, D, E, r]``, is NaN though a
        factor that it is the product of is zero."""
        return torch.zeros_like(value, dtype=torch.bool)

    def with_zeros_as(self, least: float, value: Tensor, u: Tensor) -> Tensor:
        """log f, ``value [N, D, E]`` at ``u [N, D, E, r]``, where a zero of a factor counts for
        ``least``."""
        return torch.where(value == -torch.inf, least, value)

    @property
    def dim(self) -> int:
        """Effective dimension: r of u."""
        return sum(self.widths) if self.joint is None else self.joint.shape[2]

    def points(self, count: int, slot: int) -> Tensor:
        """Values of a continuous slot's part of v, ``[count, D, E, r]``, at several scales."""
        site = self.group.slots[self.continuous[slot]]
        shape = (count, self.num_states, self.num_factors, self.widths[slot])
        return points_of(site, shape, self.like, self.generator)

    @property
    def rounding(self) -> float:
        """Relative error that a comparison may show."""
        return ROUNDING * torch.finfo(self.like.dtype).eps

    def stacked_points(self, count: int) -> Tensor:
        """Values of v, ``[count, D, E, R]``."""
        return torch.cat([self.points(count, k) for k in range(len(self.continuous))], -1)

    # ------------------------------------------------------------------ reductions
    def _columns(self, k: int) -> Tensor | None:
        """``[E, m]`` the entries of a slot's nodes that factors read, where all read as many."""
        width = self.nodes_widths[k]
        if width == 1 or self.is_whole:
            return None
        rows = self.group.program.leaves_read(self.continuous[k])
        counts = torch.div(rows, width, rounding_mode="floor").bincount(minlength=self.num_factors)
        least, most = int(counts.min()), int(counts.max())
        if least < most or most in (0, width):
            return None
        return (rows % width).view(-1, most).to(self.index.device)

    def _compacted(self) -> LocalProgram:
        """The group's, on the entries that are read."""
        first = torch.arange(self.num_factors, device=self.index.device)[:, None]
        kept = {
            k: (first * width + columns).flatten().cpu()
            for k, columns, width in zip(
                self.continuous, self.columns, self.nodes_widths, strict=True
            )
            if columns is not None
        }
        program = self.group.program.compacted(kept) if kept else self.group.program
        return program.in_dtype(self.like.dtype)  # narrower steps would set the precision

    def _basis(self, k: int) -> Basis:
        """Of a slot, in all entries of its nodes."""
        columns, inner = self.columns[k], self._inner[k]
        if columns is None:
            return None if inner is None else Combinations(inner)
        entries = Entries(columns, self.nodes_widths[k])
        return entries if inner is None else Combinations(inner @ entries.rows(self.like))

    @cached_property
    def _dependence(self) -> Dependence:
        """Of the factors, on the entries that they read."""
        read = self.group, self.program, self.states, self.read_widths
        return Dependence(*read, self.like, self.generator)

    @property
    def nodes_reached(self) -> Tensor:
        """``[D, E, number of continuous slots]``: whether a state reads a node."""
        if not self.discrete:
            size = self.num_states, self.num_factors, len(self.continuous)
            return torch.ones(size, dtype=torch.bool, device=self.like.device)
        return torch.stack([own.any(-1) for own in self._dependence.reach], -1)

    @property
    def num_read(self) -> Tensor:
        """``[E]`` how many combinations a factor reads in any state, as far as is known."""
        return self._dependence.num_read

    def reduce_jointly(self, kinds: Sequence[type | None] = ()) -> None:
        """Find A; to be called for factors that are not quadratic.

        Args:
            kinds: of the continuous slots, None for those whose numbers may be combined. Of others
                a row of A holds a single one, of one kind in all states.
        """
        kinds = kinds or (None,) * len(self.widths)
        slots = [k for k, width in enumerate(self.widths) for _ in range(width)]
        free = [n for n, k in enumerate(slots) if kinds[k] is None]
        if len(free) == len(slots):
            self.joint = self._dependence.jointly(self._inner, free)
            return
        size = (self.num_states, self.num_factors)
        here = torch.zeros(size, dtype=torch.int64, device=self.like.device)
        self.chosen = [Chosen(n, [k], here) for n, k in enumerate(slots) if n not in free]
        if not self.discrete:
            return
        eye = torch.eye(len(slots), dtype=self.like.dtype, device=self.like.device)
        basis = self._dependence.jointly(self._inner, free)
        rows = [eye[free].expand(*size, -1, -1) if basis is None else basis @ eye[free]]
        chosen: list[Chosen] = []
        for kind in dict.fromkeys(kind for kind in kinds if kind is not None):
            own = [k for k, other in enumerate(kinds) if other is kind]
            reach = torch.cat([self._dependence.reach[k] for k in own], 2)
            found = chosen_among(reach, own, rows[0].shape[2] + len(chosen))
            for number in found:
                columns = eye[[slots.index(k) for k in number.slots]]
                rows.append(columns[number.which].unsqueeze(2))
            chosen += found
        if rows[0].shape[2] + len(chosen) < len(slots):
            self.joint, self.chosen = torch.cat(rows, 2), chosen

    @cached_property
    def quadratic(self) -> Gaussian | None:
        """Coefficients in v, see :func:`.coefficients.quadratic_coefficients`."""
        return quadratic_coefficients(self)

    @cached_property
    def quadratic_in_states(self) -> Gaussian | None:
        """Coefficients in u, once it is known: see :func:`.coefficients.coefficients_in_states`."""
        return coefficients_in_states(self)

    @property
    def functions(self) -> Tensor:
        """``[E]``: equal numbers where factors are the same function of their own effective
        coordinates, as far as is known."""
        joint = None if self.joint is None else self.joint.transpose(0, 1)
        parts = [*self.columns, *self._inner, joint, *(c.which.t() for c in self.chosen)]
        own = [functions_of(self.program).to(self.index.device)]
        for part in parts:
            if part is not None and not bool((part == part[:1]).all()):
                own.append(part.flatten(1).unique(dim=0, return_inverse=True)[1])
        return row_numbers(torch.stack(own, 1))

    def in_double(self) -> LocalDensity:
        """The same factors in double precision."""
        if self.like.dtype == torch.float64:
            return self
        fine = copy(self)
        fine.like = self.like.double()
        fine.program = self.program.in_dtype(fine.like.dtype)
        fine._inner = [None if basis is None else basis.double() for basis in self._inner]
        fine.joint = None if self.joint is None else self.joint.double()
        return fine
