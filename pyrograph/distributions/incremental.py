"""Scores of single reassignments, batched over particles.

A state holds P labellings of the same n elements in slots 0, ..., C - 1. With z_-i the labels of
the elements present other than i and f the unnormalised joint of everything the state scores,

    scores(i)[p, c] = log f(z_-i, z_i = c) - log f(z_-i),      particle p,

so that ``log_prob() + scores(i)`` is the joint after each reassignment. Exactly one free slot, the
first, stands for a new cluster; the others score -inf. For the Chinese restaurant process the score
is log(n_c / (alpha + t)), for a collapsed mixture the log predictive density of element i given the
elements of cluster c: O(C) numbers per particle however many elements there are.

Terms over the same labels (a prior and one or more likelihoods) add up: ``join``. Elements that are
*out* are scored by no one, so filtering starts from the labels of the first t elements and puts
element t in.

Source: Saeedi et al. (2017), eqs 12 and 16-19.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from pyrograph.distributions.seating import CLOSED, EMPTY, Seating, twin
from pyrograph.errors import OptionError, ShapeMismatch


class Incremental(Protocol):
    """What an engine that reassigns one element at a time needs.

    Shapes:
        labels: ``[P, n]`` long, -1 for elements that are out.
        capacity: number of slots C; it may grow in ``put_in``.
    """

    @property
    def labels(self) -> Tensor: ...

    @property
    def capacity(self) -> int: ...

    def take_out(self, i: int) -> None:
        """Element i leaves its cluster in every particle; an empty cluster is a free slot."""

    def scores(self, i: int) -> Tensor:
        """``[P, C]``: change of the log joint when element i, which is out, joins each slot."""

    def put_in(self, i: int, label: Tensor) -> None:
        """Element i, which is out, joins slot ``label[p]`` (``[P]``) of particle p."""

    def select(self, index: Tensor) -> Incremental:
        """A copy made of the particles ``index [P']``, with repetitions if any."""

    def log_prob(self) -> Tensor:
        """``[P]``: the log joint of the elements present, from the statistics."""


class ClusterTerm(Protocol):
    """A part of the log joint that is a sum over clusters, kept per row of the seating's pool.

    Attributes:
        dtype: of the parameters and the data.
    """

    dtype: torch.dtype

    def scores(self, i: int, seating: Seating) -> Tensor:
        """``[limit]``: what each cluster gains by element i, for all rows of the pool; those that
        are not in use may hold anything."""

    def moves(self, elements: Tensor, own: Tensor, seating: Seating) -> tuple[Tensor, Tensor]:
        """What each of ``elements [B]``, which are in, would add to each cluster, ``[limit, B]``,
        and what it adds to its own, rows ``own [P, B]``: ``[P, B]``, -inf where that is not known
        well. For the former alone, P = 0, they may be out."""

    def append(self, i: int, source: Tensor, start: int, sign: int, seating: Seating) -> None:
        """Rows ``start``, ... are rows ``source [U]`` with (+1) or without (-1) element i; their
        sizes are there already."""

    def tidy(self, kept: Tensor, length: int) -> None:
        """Keep these rows of the pool, in one of this length."""

    def copy(self) -> ClusterTerm: ...

    def log_prob(self, seating: Seating) -> Tensor:
        """``[P]``, in double precision."""

    def rebuild(self, seating: Seating) -> None:
        """Every row anew, right after the seating has counted."""


class ParticleTerm(Protocol):
    """A part of the log joint that depends on whole labellings, kept per particle.

    Attributes:
        dtype: of the parameters and the data.
    """

    dtype: torch.dtype

    def scores(self, i: int, seating: Seating) -> Tensor:
        """``[P, C]``; closed slots may hold anything."""

    def move(self, i: int, slot: Tensor, sign: int, seating: Seating) -> None:
        """Element i joins (+1) or leaves (-1) ``slot [P]``; the seating is already changed."""

    def log_prob(self, seating: Seating) -> Tensor:
        """``[P]``, in double precision."""

    def select(self, index: Tensor, memo: dict) -> ParticleTerm: ...

    def grow(self, capacity: int, seating: Seating) -> None: ...

    def rebuild(self, seating: Seating) -> None:
        """Statistics from the labels alone."""


class Clusters:
    """A sum of terms over one seating; see :class:`Incremental`.

    Sizes are exact integers. Sums of data drift by rounding only, and ``refresh`` computes them
    afresh from the labels. Terms are made of detached parameters and data.

    Args:
        seating: the labels and the pool of clusters.
        by_cluster, by_particle: the terms, of which there is one at least.
    """

    def __init__(
        self,
        seating: Seating,
        by_cluster: tuple[ClusterTerm, ...] = (),
        by_particle: tuple[ParticleTerm, ...] = (),
    ):
        self.seating, self.by_cluster, self.by_particle = seating, by_cluster, by_particle
        for term in self.terms:
            term.rebuild(seating)

    @property
    def terms(self) -> tuple[ClusterTerm | ParticleTerm, ...]:
        return self.by_cluster + self.by_particle

    @property
    def labels(self) -> Tensor:
        return self.seating.labels

    @property
    def capacity(self) -> int:
        return self.seating.capacity

    def take_out(self, i: int) -> None:
        # with room for the way back, which finds the row that element i was taken out of
        self._change(i, self.seating.slot_of(i), -1, moves=2)

    def put_in(self, i: int, label: Tensor) -> None:
        self._change(i, label, +1, moves=1)

    def _change(self, i: int, slot: Tensor, sign: int, moves: int) -> None:
        seating = self.seating
        if not seating.has_room(moves):
            self._tidy()
        capacity, start = seating.capacity, seating.num_rows
        source = seating.change(i, slot, sign)
        for term in self.by_cluster:
            term.append(i, source, start, sign, seating)
        for term in self.by_particle:
            term.move(i, slot, sign, seating)
            if seating.capacity != capacity:
                term.grow(seating.capacity, seating)

    def _tidy(self) -> None:
        kept, length = self.seating.tidy()
        for term in self.by_cluster:
            term.tidy(kept, length)

    def gains(self, elements: Tensor) -> Tensor:
        """``[P, C, B]``: change of the log joint if one of ``elements [B]`` moved to each slot.

        They are in. -inf where a move leads nowhere new; up to rounding as ``take_out`` and
        ``scores`` say one by one, or +inf where rounding would matter.

        Raises:
            OptionError: a term is not a sum over clusters.
        """
        if self.by_particle:
            raise OptionError("gains of many elements at once need terms that sum over clusters")
        self._tidy()
        seating = self.seating
        slot = seating.labels[:, elements]
        own = seating.rows.gather(1, slot)
        joins, stays = zip(*(t.moves(elements, own, seating) for t in self.by_cluster), strict=True)
        gain = sum(joins)[seating.rows] - sum(stays).unsqueeze(1)
        # an element alone that starts a new cluster stays where it is
        is_alone = (seating.sizes[own] == 1).unsqueeze(1)
        is_open, is_closed = ((seating.rows == kind).unsqueeze(2) for kind in (EMPTY, CLOSED))
        gain.masked_fill_(is_closed | (is_open & is_alone), -torch.inf)
        return gain.scatter_(1, slot.unsqueeze(1), -torch.inf)

    def joins(self, elements: Tensor) -> Tensor:
        """``[P, C, B]``: what each of ``elements [B]``, in or out, would add to each slot's
        cluster, but for what it would add to all alike; of no meaning where it is in that cluster,
        and in closed slots.

        Raises:
            OptionError: a term is not a sum over clusters.
        """
        if self.by_particle:
            raise OptionError("joins of many elements at once need terms that sum over clusters")
        nobody = elements.new_zeros(0, len(elements))
        joins = (term.moves(elements, nobody, self.seating)[0] for term in self.by_cluster)
        return sum(joins)[self.seating.rows]

    def scores(self, i: int) -> Tensor:
        seating = self.seating
        seating.require(i)
        if seating.inside[i]:
            raise OptionError(f"element {i} is present; take it out before scoring its places")
        if not self.by_cluster:
            total = self._scores_by_particle(i)
            return total.masked_fill(seating.closed(), -torch.inf)
        total, *others = (term.scores(i, seating) for term in self.by_cluster)
        for other in others:
            total = total + other
        total.select(0, CLOSED).fill_(-torch.inf)
        total = total.take(seating.rows)
        return total + self._scores_by_particle(i) if self.by_particle else total

    def _scores_by_particle(self, i: int) -> Tensor:
        return sum(term.scores(i, self.seating) for term in self.by_particle)

    def log_prob(self) -> Tensor:
        return sum(term.log_prob(self.seating).to(term.dtype) for term in self.terms)

    def exact_log_prob(self) -> Tensor:
        """:meth:`log_prob` in double precision, whatever that of parameters and data is."""
        return sum(term.log_prob(self.seating) for term in self.terms)

    def select(self, index: Tensor, memo: dict | None = None) -> Clusters:
        """``memo`` keeps what two selected states share shared (rows and columns of a relation)."""
        memo = {} if memo is None else memo
        new = twin(self)
        new.seating = self.seating.select(index, memo)
        new.by_cluster = tuple(term.copy() for term in self.by_cluster)
        new.by_particle = tuple(term.select(index, memo) for term in self.by_particle)
        return new

    def refresh(self) -> None:
        """Every statistic anew from the labels, against drift."""
        self.seating.recount()
        for term in self.terms:
            term.rebuild(self.seating)


def keep(states: Iterable[Clusters], index: Tensor) -> None:
    """Go on with the particles ``index [P']`` of several states, which may share terms."""
    memo: dict = {}
    states = list(states)
    for state in states:
        state.seating.keep(index)
        memo[id(state.seating)] = state.seating
    for state in states:
        if state.by_particle:
            state.by_particle = tuple(term.select(index, memo) for term in state.by_particle)


def join(*parts: Clusters) -> Clusters:
    """One state for several terms over the same labels (prior and likelihoods), in any order.

    It takes the terms over: go on with it in place of the parts.

    Raises:
        OptionError: there are no parts, or two of them are the rows and the columns of one
            relation.
        ShapeMismatch: the parts do not have the same labels.
    """
    if not parts:
        raise OptionError("join() has nothing to join: give the states of a prior and of data")
    first = parts[0]
    for part in parts[1:]:
        if part.labels.shape != first.labels.shape or bool((part.labels != first.labels).any()):
            raise ShapeMismatch("the parts to join must start from the same labels [P, n]")
    first.seating.recount()
    return Clusters(
        first.seating,
        tuple(term for part in parts for term in part.by_cluster),
        tuple(term for part in parts for term in part.by_particle),
    )
