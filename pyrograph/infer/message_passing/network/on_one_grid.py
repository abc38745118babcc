"""Factors on one scope that a grid serves together, multiplied into one.

Two factors on one pair of nodes close a cycle of the factor graph, around which they tell each
other the same again. After some hundred counts whose log rate is a number plus a label's, the label
was certain where its chance is .3; a component and its observation, p(x | z) and p(y | x, z), gave
z another chance than Bayes' rule; the mean and the scale of three normal numbers were a tenth of a
nat off. At alpha = 1 the product is what belongs into one belief, as in :mod:`.same_scope`. It is
taken where integrals over it cost no more than those over its factors,

    dim(f_1 ... f_n)  <=  max_i dim(f_i)

of the numbers that factors read together, and of those of them that are integrated by points: rows
of a regression on two nodes read a number each, together two, and stay apart. So do factors of one
node, which close no cycle: each is a factor of the algorithm, projected by itself.

Rows of a regression that a label is of are multiplied as well while points are of two numbers at
most, or few altogether: every row tells the label of the same coefficients. After 40 rows of 3 of
them and normal noise its chance was .66 for .90, and the evidence half a nat off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.network.grid_sizes import numbers_in_states
from pyrograph.infer.message_passing.network.product_density import (
    Like,
    Multiplied,
    apart_from,
    num_multiplied,
    padded,
    product_of,
)
from pyrograph.infer.message_passing.network.same_scope import Locals
from pyrograph.infer.message_passing.quadrature.tilted import POINTS
from pyrograph.trace.distinct import row_numbers

#: Sets of statements up to which products of others are others; where there are more, those with
#: a first one in common are alike.
MOST_SETS = 16
#: Up to how many numbers of a point products of rows of a label are integrated whatever that takes,
#: and up to how many computed ones others of more numbers than each row reads.
FEW_READ, FEW_COMPUTED = 2, 2**20


def multiplied_on_one_grid(
    graph: FactorGraph,
    parts: list[Locals],
    among: list[Locals],
    dims_of: Callable[[Locals], tuple[int, int]],
    are_held: Callable[[Locals, Tensor], bool],
) -> tuple[list[Locals], list[Multiplied]]:
    """Factors that stay as they are, and products.

    Args:
        parts: factors; among: those that may be integrated by points.
        dims_of: of how many numbers factors are functions, and how many of these are integrated by
            points; none where integrals are closed forms.
        are_held: whether nodes have cavities, beside products of so many factors ``[U]`` each, in
            the states that do not read them.
    """
    among = [part for part in among if part.group.arity > 1]
    products = []
    for factors in on_shared_scopes(among):
        every = [dims_of(among[k]) for k in factors.part.unique().tolist()]
        read, gridded = (max(dims) for dims in zip(*every, strict=True))
        if not read or gridded > max(POINTS):
            continue
        for members in (factors.few(), factors):
            found = product_of(graph, *members.likes(among))
            own_read, own_gridded = dims_of(found.whole)
            is_served = own_read <= read and own_gridded <= gridded
            if not (is_served or _is_cheap(found.whole.local, own_gridded)):
                break
        else:
            if are_held(found.whole, num_multiplied(found.first, found.others)):
                products.append(found)
    return apart_from(products, parts), products


def _is_cheap(local: LocalDensity, gridded: int) -> bool:
    """Whether products of factors that a label is of take a small grid of so many numbers."""
    if not local.discrete or gridded > max(POINTS):
        return False
    return gridded <= FEW_READ or numbers_in_states(local, gridded) <= FEW_COMPUTED


@dataclass(frozen=True)
class Members:
    """Factors of products, product by product, and part by part in each.

    Attributes:
        part: ``[F]`` the number of the part that each is of; which: ``[F]`` which of it.
        row: ``[F]`` of which product.
    """

    part: Tensor
    which: Tensor
    row: Tensor

    def only(self, own: Tensor) -> Members:
        """Some of them."""
        return Members(self.part[own], self.which[own], self.row[own])

    def few(self) -> Members:
        """Of the first product the first two factors of each part."""
        part = self.part[self.row == 0]
        start = torch.searchsorted(part, part)
        place = torch.arange(len(part), device=part.device) - start
        return self.only((place < 2).nonzero().squeeze(1))

    def likes(self, parts: Sequence[Locals]) -> tuple[Like, list[Like]]:
        """First factors of products, which are of one part, and the others."""
        is_first = torch.ones_like(self.row, dtype=torch.bool)
        is_first[1:] = self.row[1:] > self.row[:-1]
        first, others = (self.only(own.nonzero().squeeze(1)) for own in (is_first, ~is_first))
        likes = []
        for k in others.part.unique().tolist():
            own = others.only((others.part == k).nonzero().squeeze(1))
            which, order = own.which.sort()
            likes.append(Like(parts[k], which, own.row[order]))
        return Like(parts[int(first.part[0])], first.which, first.row), likes


def on_shared_scopes(parts: Sequence[Locals]) -> Iterator[Members]:
    """Factors at alpha = 1 by scope, of scopes that have several. Those of one set of statements
    together, if these are as many to a factor of 2."""
    if not parts:
        return
    part, which, scope = _with_scopes(parts)
    count = scope.bincount()
    shared = (count[scope] > 1).nonzero().squeeze(1)
    if not len(shared):
        return
    scope, order = row_numbers(scope[shared, None]).sort(stable=True)
    part, which = part[shared][order], which[shared][order]
    count = scope.bincount()
    first = count.cumsum(0) - count
    pairs = torch.stack([scope, part], 1)
    pairs = pairs[torch.cat([pairs.new_ones(1).bool(), (pairs[1:] != pairs[:-1]).any(1)])]
    kind = row_numbers(padded(pairs[:, 1], pairs[:, 0], len(count)) + 1)
    if int(kind.max()) >= MOST_SETS:
        kind = part[first]
    kind = row_numbers(torch.stack([kind, count.double().log2().long()], 1))
    for k in kind.unique():
        own = (kind == k).nonzero().squeeze(1)
        place = torch.full_like(kind, -1)
        place[own[which[first[own]].argsort()]] = torch.arange(len(own), device=own.device)
        row, order = place[scope].sort(stable=True)
        order = order[row >= 0]
        yield Members(part[order], which[order], row[row >= 0])


def _with_scopes(parts: Sequence[Locals]) -> tuple[Tensor, Tensor, Tensor]:
    """Factors at alpha = 1: the number of each's part, which of it, and the number of its scope."""
    found, total = [], 0
    for arity in {part.group.arity for part in parts}:
        own = [(k, part) for k, part in enumerate(parts) if part.group.arity == arity]
        which = [(part.alpha == 1).nonzero().squeeze(1) for _, part in own]
        number = torch.cat([torch.full_like(at, k) for (k, _), at in zip(own, which, strict=True)])
        scopes = [
            part.group.scope[part.index[at]] for (_, part), at in zip(own, which, strict=True)
        ]
        scope = row_numbers(torch.cat(scopes)) + total
        total += len(scope)
        found.append((number, torch.cat(which), scope))
    return tuple(torch.cat(own) for own in zip(*found, strict=True))
