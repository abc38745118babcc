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

from typing import Protocol

import torch
from torch import Tensor

from pyrograph.errors import OptionError, ShapeMismatch

#: Slots of a fresh state beyond those in use.
SPARE = 4


def twin(state):
    """A shallow copy; ``copy.copy`` takes several times as long, which a filter's step feels."""
    new = object.__new__(type(state))
    new.__dict__.update(state.__dict__)
    return new


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


class Term(Protocol):
    """One additive part of the log joint; ``seating`` holds the labels and counts."""

    def scores(self, i: int, seating: Seating) -> Tensor:
        """``[P, C]``, a fresh tensor; free slots other than the first may hold anything."""

    def move(self, i: int, slot: Tensor, sign: int, seating: Seating) -> None:
        """Element i joins (+1) or leaves (-1) ``slot [P]``, row ``seating.at`` of ``[P * C, ...]``;
        the counts are already changed."""

    def log_prob(self, seating: Seating) -> Tensor: ...

    def select(self, index: Tensor, memo: dict) -> Term: ...

    def grow(self, capacity: int, seating: Seating) -> None: ...

    def rebuild(self, seating: Seating) -> None:
        """Statistics from the labels alone."""


class Seating:
    """Who sits where: labels ``[P, n]`` and cluster sizes ``counts [P, C]`` (long).

    Args:
        labels: ``[P, t]`` labels >= 0 of the first t elements, -1 for one that is out.
        n: number of elements in all.

    Raises:
        ShapeMismatch: labels are not ``[P, t]`` with t <= n.
        OptionError: labels are not integers from -1 to n - 1, or an element is out in some
            particles only.
    """

    def __init__(self, labels: Tensor, n: int):
        if labels.ndim != 2 or labels.shape[1] > n:
            raise ShapeMismatch(
                f"labels of shape {tuple(labels.shape)}: give [P, t] labels of the first t <= {n} "
                "elements, one row per particle"
            )
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise OptionError(f"labels of dtype {labels.dtype}: give integers (labels.long())")
        num_particles, given = labels.shape
        top = int(labels.max()) + 1 if labels.numel() else 0
        if top > n:
            raise OptionError(
                f"label {top - 1} for {n} elements: labels are slots below {n}; number the "
                "clusters 0, 1, ... (labels.unique(return_inverse=True) does)"
            )
        # Copying labels is what selecting many particles costs: as narrow as n allows.
        narrow = torch.int16 if n < torch.iinfo(torch.int16).max else torch.int32
        self._labels = labels.new_full((num_particles, n), -1, dtype=narrow)
        self._labels[:, :given] = labels
        inside = self._labels >= 0
        if bool((inside != inside[:1]).any()) or (labels.numel() and int(labels.min()) < -1):
            raise OptionError(
                "labels must be >= 0, or -1 in every particle for an element that is out"
            )
        #: Which elements are present, the same ones in every particle.
        self.inside = inside[0].tolist() if num_particles else [False] * n
        self.num_inside = sum(self.inside)
        self.capacity = top + SPARE
        self.recount()

    def recount(self) -> None:
        rows = self.labels_or(self.capacity)
        counts = rows.new_zeros(len(rows), self.capacity + 1)
        counts.scatter_add_(1, rows, torch.ones_like(rows))
        self.counts = counts[:, :-1].contiguous()
        self._lay_out()
        #: At most this many slots are in use in any particle.
        self.most = int((self.counts > 0).sum(1).max()) if len(rows) else 0

    def _lay_out(self) -> None:
        """First row of each particle in ``[P * C, ...]``."""
        self._ones = self.counts.new_ones(len(self.counts))
        self._first = torch.arange(len(self.counts), device=self.counts.device) * self.capacity

    @property
    def labels(self) -> Tensor:
        """``[P, n]``, -1 for elements that are out."""
        return self._labels.long()

    def labels_or(self, absent: int) -> Tensor:
        """``[P, n]``, ``absent`` for elements that are out."""
        return torch.where(self._labels < 0, absent, self.labels)

    def slot_of(self, i: int) -> Tensor:
        return self._labels[:, i].long()

    def change(self, i: int, slot: Tensor, sign: int) -> None:
        if self.inside[i] != (sign < 0):
            state = "present already; take it out first" if sign > 0 else "out already"
            raise OptionError(f"element {i} is {state}")
        self.inside[i] = sign > 0
        self.num_inside += sign
        self._labels[:, i] = slot if sign > 0 else -1
        #: Rows of ``[P * C, ...]`` that the change is about.
        self.at = self._first + slot
        self.counts.view(-1).index_add_(0, self.at, self._ones, alpha=sign)

    def closed(self) -> Tensor:
        """``[P, C]``: free slots other than the first."""
        free = self.counts == 0
        return free & (free.cumsum(1) > 1)

    def must_grow(self) -> bool:
        """After a move: whether some particle has no free slot.

        Looks only when as many moves as free slots have been made since the last look.
        """
        self.most += 1
        if self.most < self.capacity:
            return False
        self.most = int((self.counts > 0).sum(1).max())
        return self.most >= self.capacity

    def grow(self, capacity: int) -> None:
        self.counts = torch.nn.functional.pad(self.counts, (0, capacity - self.capacity))
        self.capacity = capacity
        self._lay_out()

    def select(self, index: Tensor, memo: dict) -> Seating:
        if id(self) not in memo:
            new = twin(self)
            new._labels = self._labels.index_select(0, index)
            new.counts = self.counts.index_select(0, index)
            new.inside = self.inside.copy()
            if len(index) != len(self.counts):
                new._lay_out()
            memo[id(self)] = new
        return memo[id(self)]


class Clusters:
    """A sum of terms over one seating; see :class:`Incremental`.

    The counts are exact integers. Sums of data drift by rounding only, and ``refresh`` computes
    them afresh from the labels. Terms are made of detached parameters and data.
    """

    def __init__(self, seating: Seating, terms: tuple[Term, ...], build: bool = True):
        self.seating, self.terms = seating, terms
        if build:
            self.refresh()

    @property
    def labels(self) -> Tensor:
        return self.seating.labels

    @property
    def capacity(self) -> int:
        return self.seating.capacity

    def take_out(self, i: int) -> None:
        self._change(i, self.seating.slot_of(i), -1)

    def put_in(self, i: int, label: Tensor) -> None:
        self._change(i, label, +1)
        if self.seating.must_grow():
            capacity = 2 * self.capacity
            self.seating.grow(capacity)
            for term in self.terms:
                term.grow(capacity, self.seating)

    def _change(self, i: int, slot: Tensor, sign: int) -> None:
        self.seating.change(i, slot, sign)
        for term in self.terms:
            term.move(i, slot, sign, self.seating)

    def scores(self, i: int) -> Tensor:
        if self.seating.inside[i]:
            raise OptionError(f"element {i} is present; take it out before scoring its places")
        total = self.terms[0].scores(i, self.seating)
        for term in self.terms[1:]:
            total = total + term.scores(i, self.seating)
        return total.masked_fill_(self.seating.closed(), -torch.inf)

    def log_prob(self) -> Tensor:
        return sum(term.log_prob(self.seating) for term in self.terms)

    def select(self, index: Tensor, memo: dict | None = None) -> Clusters:
        """``memo`` keeps what two selected states share shared (rows and columns of a relation)."""
        memo = {} if memo is None else memo
        seating = self.seating.select(index, memo)
        return Clusters(seating, tuple(t.select(index, memo) for t in self.terms), build=False)

    def refresh(self) -> None:
        """Every statistic anew from the labels, against drift."""
        self.seating.recount()
        for term in self.terms:
            term.rebuild(self.seating)


def join(*parts: Clusters) -> Clusters:
    """One state for several terms over the same labels (prior and likelihoods).

    Raises:
        ShapeMismatch: the parts do not have the same labels.
    """
    first = parts[0]
    for part in parts[1:]:
        if part.labels.shape != first.labels.shape or bool((part.labels != first.labels).any()):
            raise ShapeMismatch("the parts to join must start from the same labels [P, n]")
    return Clusters(first.seating, tuple(term for part in parts for term in part.terms))
