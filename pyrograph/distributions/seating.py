"""Who sits with whom: labellings of many particles over one pool of clusters.

Particles that stand near each other share nearly all their clusters, so a cluster, a set of
elements, is kept once, in a *row* of the pool, and a particle's slots hold the numbers of rows.
What depends on a cluster alone, its sums and its predictive density of the next element, is
computed once per row instead of once per particle and slot. Rows are not changed: an element that
joins or leaves makes a new row, one for all particles that had the same cluster before. Rows that
nobody holds are dropped now and then.

Whether two rows hold the same set is decided by 126 bits of hash, sums of random numbers of their
elements.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.errors import OptionError, ShapeMismatch

#: Slots of a fresh state beyond those in use.
SPARE = 4
#: Rows of the pool that hold no element: that of a slot which is open, and of all other free ones.
EMPTY, CLOSED = 0, 1
#: Rows the pool has for changes, beyond those in use and what one element or half of these need.
SLACK = 96
#: So many particles find their different rows by marking them rather than by sorting.
MANY = 200
#: Two hashes of 63 bits.
NUM_HASHES = 2
#: Multipliers of the mixing function (odd, of Steele, Lea & Flood's generator).
FIRST, SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def twin(state):
    """A shallow copy; ``copy.copy`` takes several times as long, which a filter's step feels."""
    new = object.__new__(type(state))
    new.__dict__.update(state.__dict__)
    return new


def mixed(total: Tensor) -> Tensor:
    """A hash of 63-bit sums; 0 stays 0, so that free slots count for nothing."""
    total = total * FIRST
    total = (total ^ (total >> 30)) * SECOND
    return total ^ (total >> 27)


class Seating:
    """Labels ``[P, n]`` and the clusters in each particle's slots.

    Args:
        labels: ``[P, t]`` labels >= 0 of the first t elements, -1 for one that is out.
        n: number of elements in all.

    Attributes:
        rows: ``[P, C]`` rows of the pool; the first free slot of a particle is open.
        sizes: ``[limit]``, of the clusters in the pool; 0 behind those given out.
        num_rows, limit: rows that have been given out, and that there are.
        num_particles: P.
        capacity: number of slots C.

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
        self.capacity, self.num_particles = top + SPARE, num_particles
        generator = torch.Generator().manual_seed(0)
        bits = torch.randint(
            -(2**63), 2**63 - 1, (NUM_HASHES, n), generator=generator, device="cpu"
        )
        self._bits = bits.to(labels.device)
        self.recount()

    # ------------------------------------------------------------------ from the labels
    def recount(self) -> None:
        """The pool anew from the labels, one row for equal clusters of all particles."""
        where = self.labels_or(self.capacity)
        shape = (NUM_HASHES, len(where), self.capacity + 1)
        counts = where.new_zeros(shape[1:]).scatter_add_(1, where, torch.ones_like(where))
        hashes = where.new_zeros(shape).scatter_add_(
            2, where.expand(NUM_HASHES, -1, -1), self._bits.unsqueeze(1).expand(-1, len(where), -1)
        )
        used = counts[:, :-1] > 0
        held = hashes[..., :-1][:, used]
        distinct, number = held, torch.zeros_like(held[0])
        if held.numel():
            distinct, number = held.unique(dim=1, return_inverse=True)
        self.num_rows = distinct.shape[1] + 2
        self.rows = torch.where(used, 0, CLOSED)
        self.rows[used] = number + 2
        self.sizes = counts.new_zeros(self.num_rows)
        self.sizes[number + 2] = counts[:, :-1][used]
        self.hashes: Tensor | None = torch.nn.functional.pad(distinct, (2, 0))
        holder = used.nonzero()
        some = number.new_empty(distinct.shape[1]).scatter_(
            0, number, torch.arange(len(number), device=number.device)
        )
        #: Right after counting: a particle and slot of every cluster.
        self._holder = holder[some]
        self._lay_out()
        self._back: tuple[int, int, Tensor] | None = None
        self.most = int(used.sum(1).max()) if len(where) else 0
        if self.most == self.capacity:
            self._widen()
        self._open_first()
        self.limit = self.num_rows

    def members(self) -> Tensor:
        """``[num_rows, n]``: who is in each cluster; right after counting only."""
        particle, slot = self._holder.unbind(1)
        found = self.labels[particle] == slot.unsqueeze(1)
        return torch.nn.functional.pad(found, (0, 0, 2, 0))

    def members_of(self, rows: Tensor) -> Tensor:
        """``[U, n]``: who is in the clusters of these rows ``[U]``, which some particle holds."""
        at = (self.rows.view(-1) == rows.unsqueeze(1)).int().argmax(1)
        particle = torch.div(at, self.capacity, rounding_mode="floor")
        slot = at - particle * self.capacity
        return self.labels[particle] == slot.unsqueeze(1)

    def _lay_out(self) -> None:
        """First slot of each particle among all."""
        count = torch.arange(self.num_particles, device=self._labels.device)
        self._first = count * self.capacity

    # ------------------------------------------------------------------ views
    @property
    def labels(self) -> Tensor:
        """``[P, n]``, -1 for elements that are out."""
        return self._labels.long()

    def labels_or(self, absent: int) -> Tensor:
        """``[P, n]``, ``absent`` for elements that are out."""
        return torch.where(self._labels < 0, absent, self.labels)

    def require(self, i: int) -> None:
        """Raise unless there is an element i.

        Raises:
            OptionError: there is none.
        """
        if not 0 <= i < len(self.inside):
            raise OptionError(
                f"there is no element {i}: elements are numbered 0, ..., {len(self.inside) - 1}"
            )

    def slot_of(self, i: int) -> Tensor:
        self.require(i)
        return self._labels[:, i].long()

    @property
    def counts(self) -> Tensor:
        """``[P, C]``: sizes of the clusters."""
        return self.sizes.take(self.rows)

    def closed(self) -> Tensor:
        """``[P, C]``: free slots other than the first."""
        return self.rows == CLOSED

    def open(self) -> Tensor:
        """``[P]``: the first free slot, which stands for a new cluster."""
        return self.rows.argmin(1)

    def key(self) -> Tensor:
        """``[2, P]``: a hash of each particle's partition, whatever slot a cluster has."""
        if self.hashes is None:
            labels = self.labels_or(self.capacity)
            sums = labels.new_zeros(NUM_HASHES, len(labels), self.capacity + 1).scatter_add_(
                2,
                labels.expand(NUM_HASHES, -1, -1),
                self._bits.unsqueeze(1).expand(-1, len(labels), -1),
            )
            return mixed(sums[..., :-1]).sum(2)
        return mixed(self.hashes[:, : self.num_rows])[:, self.rows].sum(2)

    # ------------------------------------------------------------------ changes
    def change(self, i: int, slot: Tensor, sign: int) -> Tensor:
        """Element i joins (+1) or leaves (-1) ``slot [P]``; the rows that change, each once.

        Row k of those, changed, is row ``start + k`` of the pool, where start is ``num_rows``
        before.
        """
        self.require(i)
        if self.inside[i] != (sign < 0):
            state = "present already; take it out first" if sign > 0 else "out already"
            raise OptionError(f"element {i} is {state}")
        self.inside[i] = sign > 0
        self.num_inside += sign
        at, flat = self._first + slot, self.rows.view(-1)
        source, number = _distinct(flat.take(at), self.num_rows)
        count, start = source.size(0), self.num_rows
        sizes = self.sizes.narrow(0, start, count)
        torch.add(self.sizes.index_select(0, source), sign, out=sizes)
        if self.hashes is not None:
            hashes = self.hashes.index_select(1, source)
            hashes.add_(self._bits.narrow(1, i, 1), alpha=sign)
            self.hashes.narrow(1, start, count).copy_(hashes)
        self.num_rows = start + count
        row = number + start
        if sign > 0:
            if self._back is not None:
                row = self._returned(i, source, start).take(number)
            self._labels.select(1, i).copy_(slot)
            flat.index_copy_(0, at, row)
            if int(source[0]) <= CLOSED:
                self.most += 1
                if self.most >= self.capacity:
                    self.most = int((self.rows > CLOSED).sum(1).max())
                    if self.most >= self.capacity:
                        self._widen()
                self._open_first()
            return source
        self._labels.select(1, i).fill_(-1)
        if int(sizes.min()) == 0:
            flat.index_copy_(0, at, torch.where(sizes.take(number) == 0, CLOSED, row))
            self.rows.masked_fill_(self.rows == EMPTY, CLOSED)
            self._open_first()
        else:
            flat.index_copy_(0, at, row)
        self._back = i, start, source
        return source

    def _returned(self, i: int, source: Tensor, start: int) -> Tensor:
        """Rows of ``source`` with element i: those it was taken out of are still there."""
        who, first, before = self._back
        self._back = None
        row = torch.arange(start, start + len(source), device=source.device)
        if who != i:
            return row
        came_back = (source >= first) & (source < first + len(before))
        place = (source - first).clamp(0, len(before) - 1)
        return torch.where(came_back, before.take(place), row)

    def _open_first(self) -> None:
        """The first free slot of every particle is the open one, also where none was."""
        # the least row is that of an open slot, else of a closed one; argmin gives the first
        self.rows.scatter_(1, self.rows.argmin(1, keepdim=True), EMPTY)

    def _widen(self) -> None:
        self.rows = torch.nn.functional.pad(self.rows, (0, self.capacity), value=CLOSED)
        self.capacity *= 2
        self._lay_out()

    # ------------------------------------------------------------------ the pool
    def has_room(self, moves: int) -> bool:
        """For so many moves."""
        return self.num_rows + moves * self.num_particles <= self.limit

    def tidy(self) -> tuple[Tensor, int]:
        """Drop the rows that nobody holds: those kept, and the new length of the pool."""
        used = torch.zeros(self.num_rows, dtype=torch.bool, device=self.rows.device)
        used.index_fill_(0, self.rows.view(-1), True)
        used[: CLOSED + 1] = True
        kept = used.nonzero().squeeze(1)
        self.rows = (used.cumsum(0) - 1).take(self.rows)
        self.num_rows = len(kept)
        self.limit = len(kept) + max(len(kept) // 2, 2 * self.num_particles) + SLACK
        self.sizes = resized(self.sizes, kept, self.limit)
        if self.hashes is not None:
            self.hashes = resized(self.hashes, kept, self.limit)
        self._back = None
        return kept, self.limit

    def keep(self, index: Tensor) -> None:
        """Go on with the particles ``index [P']``, with repetitions if any."""
        self._labels = self._labels.index_select(0, index)
        self.rows = self.rows.index_select(0, index)
        if index.size(0) != self.num_particles:
            self.num_particles = index.size(0)
            self._lay_out()

    def select(self, index: Tensor, memo: dict) -> Seating:
        """A copy made of the particles ``index [P']``."""
        if id(self) not in memo:
            new = twin(self)
            new.sizes = self.sizes.clone()
            new.hashes = None if self.hashes is None else self.hashes.clone()
            new.inside = self.inside.copy()
            new.keep(index)
            memo[id(self)] = new
        return memo[id(self)]


def _distinct(row: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """The different ones among rows ``[P]``, in order, and the number of each row among them."""
    if row.size(0) < MANY:
        return row.unique(sorted=True, return_inverse=True)
    is_there = torch.zeros(num_rows, dtype=torch.bool, device=row.device).index_fill_(0, row, True)
    return is_there.nonzero().squeeze(1), is_there.cumsum(0).take(row).sub_(1)


def resized(pool: Tensor, kept: Tensor, length: int, dim: int = -1) -> Tensor:
    """Rows ``kept`` in dimension ``dim`` of a pool, in a pool of another length, zero behind."""
    shape = list(pool.shape)
    shape[dim] = length
    new = pool.new_zeros(shape)
    new.narrow(dim, 0, len(kept)).copy_(pool.index_select(dim, kept))
    return new
