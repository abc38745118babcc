"""Cells of ones and zeros with unknown probabilities, integrated out; relations of two partitions.

    p(cell) = B(a + n_1, b + n_0) / B(a, b)

for a cell with n_1 observed ones and n_0 observed zeros. In a relation, row i moving to row
cluster r changes the cells (r, c) of all column clusters c; with x_ic and o_ic the ones and zeros
of the row over the columns of cluster c,

    score = sum_c log B(a + n_1rc + x_ic, b + n_0rc + o_ic) - log B(a + n_1rc, b + n_0rc),

O(R C) per particle after O(m) to count the row. Counts are whole numbers, so that log Gamma is
looked up. Columns are rows of the transposed relation. Log Gammas of large cells and of strong
priors all but cancel: they are in double precision, whatever the parameters'.

Source: Kemp et al. (2006), "Learning systems of concepts with an infinite relational model".
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.distributions.checks import (
    floats,
    require_broadcast,
    require_positive,
    unbatched,
)
from pyrograph.distributions.draws import draw_log_probs
from pyrograph.distributions.incremental import Clusters
from pyrograph.distributions.seating import Seating, twin
from pyrograph.errors import OptionError
from pyrograph.shapes import broadcast_shapes


class BetaBernoulli:
    """Ones and zeros whose probability is Beta(a, b).

    Args:
        a, b: above 0, ``[...]``; pseudo-counts of ones and zeros.

    Raises:
        OptionError: a or b is not above 0.
        ShapeMismatch: their shapes do not broadcast.
    """

    def __init__(self, a: float | Tensor, b: float | Tensor):
        self.a, self.b = floats(a, b)
        require_positive("BetaBernoulli", a=self.a, b=self.b)
        self.batch_shape = require_broadcast("BetaBernoulli", a=self.a.shape, b=self.b.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.a.dtype

    def in_double(self) -> BetaBernoulli:
        """The same component in double precision."""
        return BetaBernoulli(self.a.double(), self.b.double())

    def log_marginal(self, ones: Tensor, zeros: Tensor) -> Tensor:
        """Of ``[..., R, C]`` counts in each cell of the partition, element by element."""
        a, b = (p[..., None, None].to(ones.device) for p in (self.a, self.b))
        return log_beta(a + ones, b + zeros) - log_beta(a, b)

    def sample(self, rows: Tensor, columns: Tensor, is_symmetric: bool = False) -> Tensor:
        """0/1 ``[..., n, m]``; each cell of the slots ``[..., n]``, ``[..., m]`` draws its own, or
        each pair of clusters."""
        batch = broadcast_shapes(rows.shape[:-1], columns.shape[:-1], self.batch_shape)
        n, m = rows.shape[-1], columns.shape[-1]
        a, b = (p[..., None, None].to(rows.device).expand(batch + (n, m)) for p in (self.a, self.b))
        probs = draw_log_probs(torch.stack([a, b], -1))[..., 0].exp().to(self.dtype)
        probs = probs.triu() + probs.triu(1).mT if is_symmetric else probs
        probs = probs.gather(-2, rows.unsqueeze(-1).expand(probs.shape))
        return torch.bernoulli(probs.gather(-1, columns.unsqueeze(-2).expand(probs.shape)))


def log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


class Cells:
    """Ones and zeros in each cell of the row and column clusters of every particle.

    Attributes:
        dtype: of the scores.
        values: ``[2, n, m]``, whether an entry is an observed one, an observed zero.
        counts: ``[2, P, R, C]``, whole numbers.
        log_gammas: of ``a + n``, ``b + n`` and ``a + b + n`` for all counts n there can be.
    """

    def __init__(self, component: BetaBernoulli, values: Tensor, seatings: tuple[Seating, Seating]):
        self.dtype, exact = component.dtype, component.in_double()
        a, b = (unbatched("BetaBernoulli", p).to(values.device) for p in (exact.a, exact.b))
        self.values, self.seatings = values.long(), list(seatings)
        counts = torch.arange(int(self.values.sum()) + 1, device=values.device)
        self.log_gammas = [torch.lgamma(p + counts) for p in (a, b, a + b)]
        self.rebuild()

    def rebuild(self) -> None:
        # in floating point, exact up to 2^53, since whole numbers have no fast products
        rows, columns = ((s.labels.unsqueeze(1) == _slots(s)).double() for s in self.seatings)
        counts = rows @ self.values.double().unsqueeze(1) @ columns.transpose(-1, -2)
        self.counts = counts.long()

    def line(self, axis: int, i: int) -> Tensor:
        """``[2, P, 1, C]``: row i (axis 0) or column i (axis 1) over the clusters across it, of
        elements that are related to each other but for i itself."""
        across = self.seatings[1 - axis]
        entries = self.values[:, i] if axis == 0 else self.values[..., i]
        where = across.labels_or(across.capacity)
        if across is self.seatings[axis]:
            where[:, i] = across.capacity
        shape = (2, len(where), across.capacity + 1)
        counts = entries.new_zeros(shape).scatter_add_(
            -1, where.expand((2,) + where.shape), entries.unsqueeze(1).expand((2,) + where.shape)
        )
        return counts[..., None, :-1]

    def seen(self, axis: int) -> Tensor:
        """The counts with the clusters of ``axis`` first: ``[2, P, R, C]`` or ``[2, P, C, R]``."""
        return self.counts if axis == 0 else self.counts.transpose(-1, -2)

    def log_beta(self, counts: Tensor) -> Tensor:
        a, b, both = self.log_gammas
        return a.take(counts[0]) + b.take(counts[1]) - both.take(counts.sum(0))

    def select(self, index: Tensor, memo: dict) -> Cells:
        if id(self) not in memo:
            new = twin(self)
            new.counts = self.counts.index_select(1, index)
            new.seatings = [s.select(index, memo) for s in self.seatings]
            memo[id(self)] = new
        return memo[id(self)]

    def grow(self) -> None:
        rows, columns = (s.capacity for s in self.seatings)
        more = (0, columns - self.counts.shape[3], 0, rows - self.counts.shape[2])
        self.counts = torch.nn.functional.pad(self.counts, more)


class LineTerm:
    """The rows (axis 0) or columns (axis 1) of a relation as a term over their own seating."""

    def __init__(self, cells: Cells, axis: int):
        self.cells, self.axis, self.dtype = cells, axis, cells.dtype

    def scores(self, i: int, seating: Seating) -> Tensor:
        now = self.cells.seen(self.axis)
        line = self.cells.line(self.axis, i)
        gain = self.cells.log_beta(now + line) - self.cells.log_beta(now)
        return gain.sum(-1).to(self.cells.dtype)

    def move(self, i: int, slot: Tensor, sign: int, seating: Seating) -> None:
        particle = torch.arange(len(slot), device=slot.device)
        line = self.cells.line(self.axis, i).squeeze(-2)
        self.cells.seen(self.axis)[:, particle, slot] += sign * line

    def log_prob(self, seating: Seating) -> Tensor:
        prior = self.cells.log_beta(torch.zeros_like(self.cells.counts[:, :1, :1, :1]))
        terms = self.cells.log_beta(self.cells.counts) - prior
        return terms.sum((-1, -2))

    def select(self, index: Tensor, memo: dict) -> LineTerm:
        return LineTerm(self.cells.select(index, memo), self.axis)

    def grow(self, capacity: int, seating: Seating) -> None:
        self.cells.grow()

    def rebuild(self, seating: Seating) -> None:
        if seating is self.cells.seatings[1 - self.axis]:
            raise OptionError(
                "rows and columns of one relation cannot be joined, since one label would move both"
                " at once. Give rows and columns labels of their own."
            )
        # where the term was joined to others it has their seating now, which its cells have to see
        self.cells.seatings[self.axis] = seating
        self.cells.rebuild()


class RelationScores:
    """Row and column states of one relation, over shared cell counts.

    Attributes:
        rows, columns: :class:`Clusters`; a move in one is seen by the other. Each one's
            ``log_prob`` has the whole relation's likelihood, and the priors joined to it.
    """

    def __init__(self, rows: Clusters, columns: Clusters):
        self.rows, self.columns = rows, columns

    def select(self, index: Tensor) -> RelationScores:
        """A copy made of the particles ``index [P']``."""
        memo: dict = {}
        return RelationScores(self.rows.select(index, memo), self.columns.select(index, memo))


def _slots(seating: Seating) -> Tensor:
    return torch.arange(seating.capacity, device=seating.labels.device).unsqueeze(-1)
