"""Localities: which other nodes the kernel of a node looks at.

    blanket   C_i = {i} and its Markov blanket          (Graphical SVGD, eq 8)
    global    C_i = all nodes, one kernel for all       (SVGD)
    random    C_i = {i} and k nodes of the blanket, redrawn every step
    mixed     weight k_a + (1 - weight) k_b             (a sum of kernels is a kernel)

Source: Wang, Zeng & Liu (2018), sections 3 and 4.1 ("random", "combine").
"""

from typing import Protocol

import torch
from torch import Generator, Tensor

from pyrograph.checks import count, real_number
from pyrograph.errors import OptionError
from pyrograph.kernels.scopes import Bucket, Layout, bucket, whole, with_self

Weighted = list[tuple[float, list[Bucket]]]


class Locality(Protocol):
    """Turns a layout into weighted kernels.

    ``redraws`` tells whether :meth:`scopes` draws from the generator, so that a caller keeps
    the result when it does not.
    """

    redraws: bool

    def scopes(self, layout: Layout, generator: Generator | None = None) -> Weighted:
        """Weighted buckets; within each weight every column is moved exactly once."""
        ...


class Blanket:
    """Every node sees its closed Markov blanket."""

    redraws = False

    def scopes(self, layout: Layout, generator: Generator | None = None) -> Weighted:
        return [(1.0, bucket(layout, *with_self(layout.pointer, layout.index)))]

    def __repr__(self) -> str:
        return "Blanket()"


class Global:
    """Every node sees all nodes: textbook SVGD."""

    redraws = False

    def scopes(self, layout: Layout, generator: Generator | None = None) -> Weighted:
        return [(1.0, whole(layout))]

    def __repr__(self) -> str:
        return "Global()"


class RandomNeighbors:
    """Every node sees itself and ``num_neighbors`` nodes of its blanket, drawn anew each step
    without replacement; the whole blanket where it has no more than that.

    Numbers are drawn node by node in graph order, whatever the degrees.

    Args:
        num_neighbors: neighbours kept, at least 1.

    Raises:
        OptionError: fewer than 1.
    """

    redraws = True

    def __init__(self, num_neighbors: int):
        self.num_neighbors = count("RandomNeighbors: num_neighbors", num_neighbors)

    def __repr__(self) -> str:
        return f"RandomNeighbors({self.num_neighbors})"

    def draw(self, degree: Tensor, generator: Generator | None) -> Tensor:
        """Positions of the kept neighbours within each node's list: ``[num_nodes, k]``, -1 where
        a list is shorter than k. Floyd's algorithm, all nodes at once."""
        k = self.num_neighbors
        uniform = torch.rand(len(degree), k, generator=generator, dtype=torch.float64, device="cpu")
        kept = torch.full((len(degree), k), -1, dtype=torch.long, device="cpu")
        for step in range(k):
            last = degree - k + step
            pick = (uniform[:, step] * (last + 1)).long()
            pick = torch.where((kept == pick[:, None]).any(1), last, pick)
            kept[:, step] = torch.where(last >= 0, pick, -1)
        return kept

    def scopes(self, layout: Layout, generator: Generator | None = None) -> Weighted:
        kept = self.draw(layout.pointer.diff(), generator)
        present = kept >= 0
        index = layout.index[(layout.pointer[:-1, None] + kept)[present]]
        pointer = torch.cat([layout.pointer.new_zeros(1), present.sum(1).cumsum(0)])
        return [(1.0, bucket(layout, *with_self(pointer, index)))]


class Mixed:
    """A convex combination of two localities.

    Args:
        first, second: localities or their names.
        weight: of the first; the second has ``1 - weight``.

    Raises:
        OptionError: the weight is not between 0 and 1.
    """

    def __init__(self, first: "Locality | str", second: "Locality | str", weight: float = 0.5):
        self.weight = real_number(weight)
        if not 0 <= self.weight <= 1:
            raise OptionError(f"Mixed: weight={weight!r} must lie between 0 and 1")
        self.first, self.second = resolve(first), resolve(second)
        self.redraws = self.first.redraws or self.second.redraws

    def __repr__(self) -> str:
        return f"Mixed({self.first!r}, {self.second!r}, weight={self.weight})"

    def scopes(self, layout: Layout, generator: Generator | None = None) -> Weighted:
        return [
            (share * weight, buckets)
            for share, part in ((self.weight, self.first), (1 - self.weight, self.second))
            for weight, buckets in part.scopes(layout, generator)
        ]


class Without:
    """Another locality, without the kernels that move nothing but the given columns.

    Args:
        locality: the other one.
        left_out: ``[dim]``, the columns.
    """

    def __init__(self, locality: "Locality", left_out: Tensor):
        self.locality, self.left_out = locality, left_out
        self.redraws = locality.redraws

    def __repr__(self) -> str:
        return f"Without({self.locality!r}, {int(self.left_out.sum())} columns)"

    def scopes(self, layout: Layout, generator: Generator | None = None) -> Weighted:
        weighted = []
        for weight, buckets in self.locality.scopes(layout, generator):
            kept = [(b, ~self.left_out[b.own].all(1)) for b in buckets]
            rows = [Bucket(b.own[k], b.scope[k], b.size[k]) for b, k in kept if k.any()]
            weighted.append((weight, rows or buckets))
        return weighted


NAMES = {"blanket": Blanket, "global": Global}


def resolve(locality: "Locality | str") -> Locality:
    """A locality from its name, or the locality itself.

    Raises:
        OptionError: neither.
    """
    if isinstance(locality, str) and locality in NAMES:
        return NAMES[locality]()
    known = hasattr(locality, "scopes") and hasattr(locality, "redraws")
    if known and not isinstance(locality, type):
        return locality
    raise OptionError(
        f'locality={locality!r} is not "blanket", "global", pg.kernels.RandomNeighbors(k) '
        "or pg.kernels.Mixed(a, b, weight)"
    )
