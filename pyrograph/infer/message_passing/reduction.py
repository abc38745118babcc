"""What factors of continuous nodes really depend on.

A factor of a wide node often reads it through a few linear combinations v = B x: a regression's
likelihood reads the weights through one, a Gaussian process's likelihood one entry. And a factor
of several nodes often reads them jointly through u = A v: a difference, a sum. Integrals are then
taken over u, whatever the width of the nodes.

Which entries and combinations a factor reads is known from its steps; at points a threshold or a
needle elsewhere could be missed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property

import torch
from pyro.distributions import constraints
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import apply
from pyrograph.graph import FactorGroup
from pyrograph.infer.message_passing.basis import Basis, Combinations, Entries, part_of
from pyrograph.infer.message_passing.chosen import Chosen, chosen_among
from pyrograph.infer.message_passing.coefficients import quadratic_coefficients
from pyrograph.infer.message_passing.spans import directions, or_one, ranks, span, steepness
from pyrograph.trace.cancelled import numbers_that_matter
from pyrograph.trace.combinations import combinations_read
from pyrograph.trace.reach import leaves_that_reach
from pyrograph.trace.sites import Site

#: Scales of the standard normal points, in turn.
SCALES = (1.0, 0.3, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
#: Largest scale of numbers that stand for constrained values.
CONSTRAINED = 10.0
#: Most combinations that a basis is taken from.
PROBES = 16
#: Rounding errors that a comparison may show, in units of the dtype's precision.
ROUNDING = 3e3
#: What of a direction is rounding, in units of the dtype's precision.
RANK = 200.0


class LocalDensity:
    """A group's factors as functions of reduced coordinates, for every state of discrete slots.

    Args:
        group: factors with at least one continuous slot.
        index: ``[E]`` the factors of the group that are meant, ascending.
        like: dtype and device.
        name: of each of these factors, for messages.

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

    def __init__(self, group: FactorGroup, index: Tensor, like: Tensor, name: Callable[[int], str]):
        is_whole = len(index) == group.num_factors
        self.group = group if is_whole else group.part(index)
        self.index, self.like, self.name = index, like, name
        self.discrete = [k for k, s in enumerate(group.slots) if s.is_discrete]
        self.continuous = [k for k, s in enumerate(group.slots) if not s.is_discrete]
        cards = [group.slots[k].cardinality for k in self.discrete]
        states = list(itertools.product(*(range(c) for c in cards)))
        self.states = torch.tensor(states, device=like.device).reshape(len(states), len(cards))
        self.generator = torch.Generator().manual_seed(0)
        self.nodes_widths = [group.slots[k].width for k in self.continuous]
        self._leave_out_unread()
        #: ``[E, r, m]`` of the entries read, as :attr:`bases` is of all.
        self._inner: list[Tensor | None] = [None] * len(self.continuous)
        self.joint: Tensor | None = None
        self.chosen: list[Chosen] = []
        self.widths: list[int] | None = None
        self._reduce_slots()
        self.widths = [
            w if b is None else b.shape[1]
            for w, b in zip(self.read_widths, self._inner, strict=True)
        ]
        self.bases = [self._basis(k) for k in range(len(self.continuous))]

    def part(self, which: Tensor) -> LocalDensity:
        """Some of the factors, ``which [e]`` ascending, in the same coordinates."""
        out, own = copy(self), which.tolist()
        for name, value in vars(LocalDensity).items():
            if isinstance(value, cached_property):  # what was found of all
                vars(out).pop(name, None)
        out.group, out.index = self.group.part(which), self.index[which]
        out.name = lambda e: self.name(own[e])
        out.columns = [None if c is None else c[which] for c in self.columns]
        out._inner = [None if basis is None else basis[which] for basis in self._inner]
        out.bases = [part_of(basis, which) for basis in self.bases]
        out.joint = None if self.joint is None else self.joint[:, which]
        out.chosen = [replace(number, which=number.which[:, which]) for number in self.chosen]
        out._use_program(
            {
                k: (torch.arange(len(which), device=c.device)[:, None] * width + c).flatten().cpu()
                for k, c, width in zip(self.continuous, out.columns, self.nodes_widths, strict=True)
                if c is not None
            }
        )
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
        n, states, count = x[0].shape[:3]
        leaves: list[Tensor] = [x[0]] * self.group.arity
        for k, value in zip(self.continuous, x, strict=True):
            leaves[k] = value.reshape(n * states, -1).t()
        for position, k in enumerate(self.discrete):
            site = self.group.slots[k]
            chosen = site.enumeration.to(self.like.device)[self.states[:, position]]
            chosen = chosen.expand(n, *chosen.shape).reshape(n * states, 1, -1)
            leaves[k] = chosen.expand(-1, count, -1).flatten(1).t()
        return self.program(leaves).t().reshape(n, states, count)

    def at_parts(self, v: Tensor) -> Tensor:
        """log f at reduced coordinates ``[N, D, E, R]``."""
        x = []
        for part, basis in zip(v.split(self.widths, -1), self._inner, strict=True):
            x.append(part if basis is None else apply(basis.mT, part))
        return self._at_read(x)

    @property
    def numbers_at_once(self) -> int:
        """Numbers that all factors take for one point in one state: what they read, or their widest
        step, as the matrix of a Gaussian process whose length-scale is all that is read."""
        return max(self.num_factors * sum(self.read_widths), self.program.num_widest)

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

    def at_numbers(self, x: Tensor) -> Tensor:
        """log f ``[N, E]`` at values ``[N, E]``, of factors of one node of one number."""
        return self.at_nodes([x[:, None, :, None]])[:, 0]

    def at_node(self, x: Tensor) -> Tensor:
        """log f ``[E]`` at values ``[E, d]``, of factors of one continuous node."""
        return self.at_nodes([x[None, None]])[0, 0]

    def __call__(self, u: Tensor) -> Tensor:
        """log f at effective coordinates ``[N, D, E, r]``: ``[N, D, E]``."""
        return self.at_parts(u if self.joint is None else apply(self.joint.mT, u))

    @property
    def dim(self) -> int:
        """Effective dimension: r of u."""
        return sum(self.widths) if self.joint is None else self.joint.shape[2]

    # ------------------------------------------------------------------ reductions
    def points(self, count: int, slot: int) -> Tensor:
        """Values of a continuous slot's part, ``[count, D, E, r]``, at several scales.

        Numbers that stand for constrained values do not go as far out: exponentials overflow.
        """
        width = self.read_widths[slot] if self.widths is None else self.widths[slot]
        site = self.group.slots[self.continuous[slot]]
        farthest = max(SCALES) if is_unconstrained(site) else CONSTRAINED
        scale = torch.tensor(
            [min(SCALES[k % len(SCALES)], farthest) for k in range(count)], device="cpu"
        )
        shape = (count, self.num_states, self.num_factors, width)
        z = torch.randn(shape, generator=self.generator, dtype=torch.float64, device="cpu")
        return (z * scale.view(-1, 1, 1, 1)).to(self.like)

    @property
    def rounding(self) -> float:
        """Relative error that a comparison may show."""
        return ROUNDING * torch.finfo(self.like.dtype).eps

    def stacked_points(self, count: int) -> Tensor:
        """Values of v, ``[count, D, E, R]``."""
        return torch.cat([self.points(count, k) for k in range(len(self.continuous))], -1)

    def _leave_out_unread(self) -> None:
        """Find the entries that factors read of their nodes, where all read as many."""
        self.columns: list[Tensor | None] = []
        kept = {}
        for k, width in zip(self.continuous, self.nodes_widths, strict=True):
            self.columns.append(None)
            if width == 1:
                continue
            rows = self.group.program.leaves_read(k)
            counts = torch.div(rows, width, rounding_mode="floor").bincount(
                minlength=self.num_factors
            )
            least, most = int(counts.min()), int(counts.max())
            if least == most and 0 < most < width:
                kept[k] = rows
                self.columns[-1] = (rows % width).view(-1, most).to(self.index.device)
        self._use_program(kept)
        self.read_widths = [
            width if columns is None else columns.shape[1]
            for width, columns in zip(self.nodes_widths, self.columns, strict=True)
        ]

    def _use_program(self, kept: dict[int, Tensor]) -> None:
        """Of the group, on the rows of leaf buffers that are kept."""
        program = self.group.program.compacted(kept) if kept else self.group.program
        self.program = program.in_dtype(self.like.dtype)  # narrower steps would set the precision

    def _basis(self, k: int) -> Basis:
        """Of a slot, in all entries of its nodes."""
        columns, inner = self.columns[k], self._inner[k]
        if columns is None:
            return None if inner is None else Combinations(inner)
        entries = Entries(columns, self.nodes_widths[k])
        return entries if inner is None else Combinations(inner @ entries.rows(self.like))

    @cached_property
    def _rows(self) -> Tensor | None:
        """Combinations of the numbers read, that span all which the factors depend on, in double
        precision: ``[D, E, m, W]``. None if they change with tensors that the program is attached
        to, or are not finite."""
        leaves = self._discrete_leaves()
        for k, width in zip(self.continuous, self.read_widths, strict=True):
            zeros = self.like.new_zeros(self.num_factors * width, self.num_states)
            leaves[k] = zeros.requires_grad_()
        matters = numbers_that_matter(self.program, leaves, set(self.discrete))
        found = self._rows_read(leaves, matters)
        if matters and found is not None and not self._is_known_on(found):
            found = self._rows_read(leaves, {})
        return found

    def _rows_read(self, leaves: list[Tensor], matters: dict[int, Tensor]) -> Tensor | None:
        """The same of numbers of steps that matter, of the others too where these are none."""
        free = [leaves[k] for k in self.continuous]
        rows = []
        with torch.enable_grad():
            for numbers in combinations_read(self.program, leaves, set(self.discrete), matters):
                found = self._rows_of(numbers, free)
                if found is None:
                    return None
                rows += found
        every = torch.stack(rows, 2) if rows else None
        if every is None or not bool(every.isfinite().all()):
            return None
        return every * torch.cat(self._reach, 2)[:, :, None] if self.discrete else every

    @torch.no_grad()
    def _is_known_on(self, rows: Tensor) -> bool:
        """Whether the factors have values where other combinations than these are 0: infinite
        numbers do not cancel."""
        basis = self._span(rows)
        if basis is None:
            return True
        z = torch.cat([self.points(2, k) for k in range(len(self.continuous))], -1)
        v = apply(basis.mT, apply(basis, z.double())).to(self.like)
        return not bool(self._at_read(list(v.split(self.read_widths, -1))).isnan().any())

    @cached_property
    def _reach(self) -> list[Tensor]:
        """Which of the numbers read of each continuous slot matter in a state, ``[D, E, m]``."""
        found = leaves_that_reach(self.program, self._discrete_leaves())
        return [
            found[k].t().reshape(self.num_states, self.num_factors, -1) for k in self.continuous
        ]

    def _discrete_leaves(self) -> list[Tensor | None]:
        """Leaf buffers ``[m_k, D]`` of discrete slots in all states, None for continuous ones."""
        leaves: list[Tensor | None] = [None] * self.group.arity
        for position, k in enumerate(self.discrete):
            chosen = self.group.slots[k].enumeration.to(self.like.device)
            chosen = chosen[self.states[:, position]].reshape(self.num_states, 1, -1)
            leaves[k] = chosen.expand(-1, self.num_factors, -1).flatten(1).t()
        return leaves

    def _rows_of(self, numbers: Tensor, free: list[Tensor]) -> list[Tensor] | None:
        """Rows ``[D, E, W]`` that span the slopes of numbers, some of every factor: random mixtures
        of like weight, until another one adds nothing to any factor; None as above."""
        attached, size = self.group.is_differentiable, steepness(numbers, free, self.generator)
        rows: list[Tensor] = []
        unit: Tensor | None = None
        for _ in range(min(PROBES, sum(self.read_widths))):
            noise = torch.randn(
                numbers.shape, generator=self.generator, dtype=torch.float64, device="cpu"
            )
            total = (numbers * (noise.to(numbers) / size)).sum()
            slopes = torch.autograd.grad(total, free, None, True, attached, allow_unused=True)
            if any(slope is not None and slope.requires_grad for slope in slopes):
                return None
            row = torch.cat(
                [
                    (torch.zeros_like(x) if g is None else g)
                    .double()
                    .t()
                    .reshape(self.num_states, self.num_factors, -1)
                    for g, x in zip(slopes, free, strict=True)
                ],
                2,
            )
            unit = or_one(row.abs()) if unit is None else unit
            row = directions(row / unit)
            for _ in range(2):  # the second time for rounding
                for known in rows:
                    row = row - (row * known).sum(-1, keepdim=True) * known
            is_new = row.norm(dim=-1, keepdim=True) > self._rank_tolerance
            if not bool(is_new.any()):
                break
            rows.append(torch.where(is_new, directions(row), 0.0))
        return [row * unit for row in rows]

    @property
    def _rank_tolerance(self) -> float:
        return RANK * torch.finfo(self.like.dtype).eps

    @cached_property
    def num_read(self) -> Tensor:
        """``[E]`` how many combinations of v a factor reads in any state, as far as is known."""
        if self._rows is None:
            return torch.full_like(self.index, sum(self.widths))
        return ranks(self._rows, self._rank_tolerance).amax(0).clamp_min(1)

    def _span(self, rows: Tensor) -> Tensor | None:
        return span(rows, self._rank_tolerance, PROBES)

    def _reduce_slots(self) -> None:
        if max(self.read_widths) == 1 or self._rows is None:
            return
        for k, rows in enumerate(self._rows.split(self.read_widths, 3)):
            if self.read_widths[k] > 1:
                basis = self._span(rows.transpose(0, 1).flatten(1, 2))  # [E, D m, d]
                self._inner[k] = None if basis is None else basis.to(self.like)

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
            self.joint = self._combined(free)
            return
        size = (self.num_states, self.num_factors)
        here = torch.zeros(size, dtype=torch.int64, device=self.like.device)
        self.chosen = [Chosen(n, [k], here) for n, k in enumerate(slots) if n not in free]
        if not self.discrete:
            return
        eye = torch.eye(len(slots), dtype=self.like.dtype, device=self.like.device)
        basis = self._combined(free)
        rows = [eye[free].expand(*size, -1, -1) if basis is None else basis @ eye[free]]
        chosen: list[Chosen] = []
        for kind in dict.fromkeys(kind for kind in kinds if kind is not None):
            own = [k for k, other in enumerate(kinds) if other is kind]
            reach = torch.cat([self._reach[k] for k in own], 2)
            found = chosen_among(reach, own, rows[0].shape[2] + len(chosen))
            columns = eye[[slots.index(k) for k in own]]
            rows += [columns[number.which].unsqueeze(2) for number in found]
            chosen += found
        if rows[0].shape[2] + len(chosen) < len(slots):
            self.joint, self.chosen = torch.cat(rows, 2), chosen

    def _combined(self, free: list[int]) -> Tensor | None:
        """Combinations of some numbers of v that span all which factors read of them, ``[D, E, r,
        len(free)]``; None if that is no fewer."""
        # the basis of an only slot has seen to it, but one of all states is wider than each needs
        is_done = len(self.widths) == 1 and self.num_states == 1
        if len(free) <= 1 or is_done or self._rows is None:
            return None
        parts = self._rows.split(self.read_widths, 3)
        rows = torch.cat(
            [
                part if b is None else part @ b.mT.double()
                for part, b in zip(parts, self._inner, strict=True)
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
        return found.to(self.like).expand(self.num_states, self.num_factors, *found.shape[2:])

    @cached_property
    def quadratic(self) -> Gaussian | None:
        """Coefficients in v, see :func:`.coefficients.quadratic_coefficients`."""
        return quadratic_coefficients(self)

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


def is_unconstrained(site: Site) -> bool:
    """Whether a site's numbers are its values."""
    support = site.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real
