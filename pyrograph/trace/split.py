"""Split log densities that are sums back into their terms.

A log-density element that is a sum of interacting groups is several factors: ``-0.5 * x @ A @ x``
is its sparse pairs, ``.to_event(1)`` its single terms. Sums are followed through sign, constant
scale and constant parts, and products are distributed over them.

An element is left whole if one of its terms already reads everything that the element reads
(a normal density is not torn into its quadratic form and its normaliser). The rule is applied
from the innermost sum outwards, so terms stay as large as possible without joining nodes that
do not interact. Terms of one element with equal scopes are added up again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pyrograph.trace.demand import scopes
from pyrograph.trace.expand import Expander
from pyrograph.trace.rules.products import DOT
from pyrograph.trace.tape import Operand, Tape


@dataclass
class Level:
    """Nodes of the expansion tree at one depth."""

    row: Tensor
    coef: Tensor
    ids: Tensor
    parent: Tensor
    chain_constant: Tensor = field(init=False)  # split off while following single children
    sum_constant: Tensor = field(init=False)  # the constant child of the sum
    is_sum: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.chain_constant = torch.zeros(len(self.ids), dtype=torch.float64, device="cpu")
        self.sum_constant = torch.zeros(len(self.ids), dtype=torch.float64, device="cpu")
        self.is_sum = torch.zeros(len(self.ids), dtype=torch.bool, device="cpu")

    def of(self, chosen: Tensor, number: Tensor) -> Level:
        """Nodes ``chosen`` alone, whose parents have other numbers now."""
        own = Level(
            self.row[chosen], self.coef[chosen], self.ids[chosen], number[self.parent[chosen]]
        )
        own.chain_constant = self.chain_constant[chosen]
        own.sum_constant = self.sum_constant[chosen]
        own.is_sum = self.is_sum[chosen]
        return own


@dataclass(frozen=True)
class Terms:
    """The factors of a set of log-density elements.

    Attributes:
        ids: ``[F]`` number of each factor on the tape (new sums may have been appended).
        row: ``[F]`` the element each factor belongs to, ascending.
        ptr, nodes: CSR scopes of the factors.
        constant: ``[]`` what splitting set free, to be added to the graph's constant.
    """

    ids: Tensor
    row: Tensor
    ptr: Tensor
    nodes: Tensor
    constant: Tensor


def split(
    tape: Tape,
    ids: Tensor,
    node_of_leaf: Tensor,
    dtype: torch.dtype,
    place: Callable[[int], str],
) -> Terms:
    """Factors of the latent elements ``ids``, of this dtype; see the module's text.

    Args:
        place: where in the program an element comes from, for messages.

    Raises:
        ScopeBudgetError: the elements read too many numbers.
    """
    ptr, nodes = scopes(tape, ids, node_of_leaf, place)
    arity = ptr.diff()
    rows = (arity > 1).nonzero().squeeze(1)
    levels = _expand(tape, ids, rows, dtype)
    if len(levels) > 1:
        levels = _of_elements(levels, _divided(tape, levels, arity, node_of_leaf))
    if len(levels) <= 1:
        return Terms(ids, torch.arange(len(ids), device="cpu"), ptr, nodes, _nothing())
    num_nodes = int(node_of_leaf.max()) + 1
    final = _collapse(tape, levels, node_of_leaf, num_nodes)
    return _gather_terms(tape, ids, ptr, nodes, final, num_nodes, dtype)


def _divided(tape: Tape, levels: list[Level], arity: Tensor, node_of_leaf: Tensor) -> Tensor:
    """``[elements]`` bool: whose latest term does not read as much as they do; the others stay
    whole, and what each of their terms reads, which is much where all read all, need not be looked
    at."""
    latest = torch.zeros(len(arity), dtype=torch.int64, device="cpu")
    for level in levels:
        atoms = ~level.is_sum
        latest.scatter_reduce_(0, level.row[atoms], level.ids[atoms], "amax")
    rows = levels[0].row
    ptr, _ = scopes(tape, latest[rows], node_of_leaf)
    divided = torch.zeros(len(arity), dtype=torch.bool, device="cpu")
    divided[rows] = ptr.diff() < arity[rows]
    return divided


def _of_elements(levels: list[Level], chosen: Tensor) -> list[Level]:
    """The trees of these elements, ``[elements]`` bool."""
    kept: list[Level] = []
    number = torch.arange(len(chosen), device="cpu")  # of the level above, among those kept
    for level in levels:
        own = chosen[level.row].nonzero().squeeze(1)
        if not len(own):
            break
        kept.append(level.of(own, number))
        number = torch.zeros(len(level.ids), dtype=torch.int64, device="cpu")
        number[own] = torch.arange(len(own), device="cpu")
    return kept


def _expand(tape: Tape, ids: Tensor, rows: Tensor, dtype: torch.dtype) -> list[Level]:
    """The expansion tree, breadth first; chains of single children are followed in place."""
    expander = Expander(tape, dtype)
    keep = expander.branches(ids[rows])
    rows = rows[keep]
    level = Level(rows, torch.ones(len(rows), dtype=torch.float64, device="cpu"), ids[rows], rows)
    levels = [level]
    while len(level.ids):
        following = below(expander, level, torch.arange(len(level.ids), device="cpu"))
        if following is None:
            break
        level = following
        levels.append(level)
    return levels


def below(expander: Expander, level: Level, which: Tensor) -> Level | None:
    """The terms of some nodes of a level that are sums, which are told so; None if none are."""
    parts: list[Level] = []
    pending = which
    while len(pending):
        expands, found = expander.children(level.ids[pending])
        latent = found.ids != 0
        num_latent = torch.bincount(found.source[latent], minlength=len(pending))
        coef = level.coef[pending][found.source] * found.coef
        constant = torch.zeros(len(pending), dtype=torch.float64, device="cpu")
        constant.index_add_(0, found.source[~latent], coef[~latent])
        single = expands & (num_latent == 1)
        many = expands & (num_latent > 1)
        level.chain_constant[pending[single]] += constant[single]
        level.sum_constant[pending[many]] = constant[many]
        level.is_sum[pending[many]] = True
        down = latent & single[found.source]
        target = pending[found.source[down]]
        level.ids[target], level.coef[target] = found.ids[down], coef[down]
        branch = latent & many[found.source]
        if bool(branch.any()):
            parent = pending[found.source[branch]]
            parts.append(Level(level.row[parent], coef[branch], found.ids[branch], parent))
        pending = pending[single]
    if not parts:
        return None
    return Level(
        *(torch.cat([getattr(p, n) for p in parts]) for n in ("row", "coef", "ids", "parent"))
    )


@dataclass
class _Reach:
    """What the nodes of one level read.

    Shapes:
        owner, nodes: pairs of a tree node and a graph node that its subtree reads.
        size: per tree node, how many graph nodes that is.
        biggest: how many the widest single term in its subtree reads.
    """

    owner: Tensor
    nodes: Tensor
    size: Tensor
    biggest: Tensor


@dataclass
class _Final:
    """The terms that are left, with their scopes as CSR; ``is_root``: a whole element."""

    row: Tensor
    ids: Tensor
    coef: Tensor
    is_root: Tensor
    ptr: Tensor
    nodes: Tensor
    constant: Tensor


def _nothing() -> Tensor:
    return torch.zeros((), dtype=torch.float64, device="cpu")


def _reaches(tape: Tape, levels: list[Level], node_of_leaf: Tensor, num_nodes: int) -> list[_Reach]:
    """From the innermost terms outwards: the scope of every tree node is its children's union."""
    reaches: list[_Reach] = []
    for depth in range(len(levels) - 1, -1, -1):
        level = levels[depth]
        atoms = (~level.is_sum).nonzero().squeeze(1)
        ptr, nodes = scopes(tape, level.ids[atoms], node_of_leaf)
        owner = atoms.repeat_interleave(ptr.diff())
        biggest = torch.zeros(len(level.ids), dtype=torch.int64, device="cpu")
        biggest[atoms] = ptr.diff()
        if reaches:
            below, parent = reaches[0], levels[depth + 1].parent
            keys = torch.cat(
                [owner * num_nodes + nodes, parent[below.owner] * num_nodes + below.nodes]
            ).unique()
            owner = torch.div(keys, num_nodes, rounding_mode="floor")
            nodes = keys - owner * num_nodes
            biggest.scatter_reduce_(0, parent, below.biggest, "amax")
        size = torch.bincount(owner, minlength=len(level.ids))
        reaches.insert(0, _Reach(owner, nodes, size, biggest))
    return reaches


def _collapse(tape: Tape, levels: list[Level], node_of_leaf: Tensor, num_nodes: int) -> _Final:
    """Put sums back together wherever one of their terms reads as much as the whole."""
    reaches = _reaches(tape, levels, node_of_leaf, num_nodes)
    # no ancestor was put together
    active = torch.ones(len(levels[0].ids), dtype=torch.bool, device="cpu")
    chosen: list[Tensor] = []
    owners: list[Tensor] = []
    nodes: list[Tensor] = []
    constant, num_terms = _nothing(), 0
    for depth, (level, reach) in enumerate(zip(levels, reaches, strict=True)):
        whole = active & (~level.is_sum | (reach.biggest == reach.size))
        is_open = active & ~whole
        # A whole element keeps its constants; those of its parts are set free.
        freed = active if depth else is_open
        freed_here = level.chain_constant[freed].sum() + level.sum_constant[is_open].sum()
        constant = constant + freed_here
        terms = whole.nonzero().squeeze(1)
        rank = torch.zeros(len(whole), dtype=torch.int64, device="cpu")
        rank[terms] = torch.arange(num_terms, num_terms + len(terms), device="cpu")
        mine = whole[reach.owner]
        chosen.append(terms)
        owners.append(rank[reach.owner[mine]])
        nodes.append(reach.nodes[mine])
        num_terms += len(terms)
        if depth + 1 < len(levels):
            active = is_open[levels[depth + 1].parent]
    owner, node = torch.cat(owners), torch.cat(nodes)
    order = torch.argsort(owner * num_nodes + node)
    ptr = torch.zeros(num_terms + 1, dtype=torch.int64, device="cpu")
    ptr[1:] = torch.bincount(owner, minlength=num_terms).cumsum(0)
    is_root = torch.arange(num_terms, device="cpu") < len(chosen[0])
    row, ids, coef = (
        torch.cat([getattr(level, name)[t] for level, t in zip(levels, chosen, strict=True)])
        for name in ("row", "ids", "coef")
    )
    return _Final(row, ids, coef, is_root, ptr, node[order], constant)


def _gather_terms(
    tape: Tape,
    ids: Tensor,
    ptr: Tensor,
    nodes: Tensor,
    final: _Final,
    num_nodes: int,
    dtype: torch.dtype,
) -> Terms:
    """Sums of terms of equal scope, and the elements that stayed whole, in row order."""
    split_rows = final.row[~final.is_root].unique()
    whole = torch.ones(len(ids), dtype=torch.bool, device="cpu")
    whole[split_rows] = False
    kept = whole.nonzero().squeeze(1)
    row, factor_ids, start, length = _added_up(tape, final, num_nodes, dtype)
    # Scopes of the new factors, behind those of the whole elements; then everything by element.
    lengths = torch.cat([ptr.diff()[kept], length])
    starts = torch.cat([ptr[:-1][kept], start + len(nodes)])
    all_row = torch.cat([kept, row])
    all_ids = torch.cat([ids[kept], factor_ids])
    pool = torch.cat([nodes, final.nodes])
    # Within an element: by scope, as the terms of a sum have no other order.
    first_node = pool[starts]
    second = pool[torch.minimum(starts + 1, starts + lengths - 1)]
    order = torch.from_numpy(np.lexsort((second.numpy(), first_node.numpy(), all_row.numpy())))
    lengths, starts = lengths[order], starts[order]
    out_ptr = torch.zeros(len(order) + 1, dtype=torch.int64, device="cpu")
    out_ptr[1:] = lengths.cumsum(0)
    offset = torch.arange(int(out_ptr[-1]), device="cpu") - out_ptr[:-1].repeat_interleave(lengths)
    out_nodes = pool[starts.repeat_interleave(lengths) + offset]
    return Terms(all_ids[order], all_row[order], out_ptr, out_nodes, final.constant)


def _added_up(
    tape: Tape, final: _Final, num_nodes: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Terms of equal scope within an element as one: elements, numbers on the tape, and starts and
    lengths of the scopes among ``final.nodes``."""
    part = (~final.is_root).nonzero().squeeze(1)
    row, part_ids, coef = final.row[part], final.ids[part], final.coef[part]
    length = final.ptr.diff()[part]
    start = final.ptr[:-1][part]
    # Scopes are compared by sums of random labels; two differ unseen with probability 2^-62.
    label = torch.from_numpy(np.random.default_rng(0).integers(0, 1 << 62, num_nodes))
    running = torch.zeros(len(final.nodes) + 1, dtype=torch.int64, device="cpu")
    running[1:] = label[final.nodes].cumsum(0)
    mark = running[start + length] - running[start]
    order = torch.from_numpy(np.lexsort((np.arange(len(row)), mark.numpy(), row.numpy())))
    row, part_ids, coef, mark = row[order], part_ids[order], coef[order], mark[order]
    start, length = start[order], length[order]
    new = torch.ones(len(row), dtype=torch.bool, device="cpu")
    new[1:] = (row[1:] != row[:-1]) | (mark[1:] != mark[:-1])
    head = new.nonzero().squeeze(1)
    factor_ids = sums_of(tape, part_ids, coef, new.cumsum(0) - 1, dtype)
    return row[head], factor_ids, start[head], length[head]


def sums_of(tape: Tape, ids: Tensor, coef: Tensor, number: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers on the tape ``[F]`` of sums of terms, ``coef * ids [n]``; sums are appended.

    Args:
        number: ``[n]`` which sum a term is of, ascending, from 0 on.
    """
    count = torch.bincount(number)
    head = count.cumsum(0) - count
    found = torch.zeros(len(head), dtype=torch.int64, device="cpu")
    for k in count.unique().tolist():
        which = (count == k).nonzero().squeeze(1)
        at = head[which].unsqueeze(1) + torch.arange(k, device="cpu")
        c = coef[at]
        is_plain = k == 1 and not c.requires_grad
        plain = (
            (c[:, 0] == 1.0)
            if is_plain
            else torch.zeros(len(which), dtype=torch.bool, device="cpu")
        )
        found[which[plain]] = ids[at[plain, 0]]
        summed = (~plain).nonzero().squeeze(1)
        if len(summed):
            weights = Operand(None, c[summed].to(dtype), dtype)
            terms = Operand(ids[at[summed]], None, dtype)
            found[which[summed]] = tape.append(DOT, 1, (terms, weights), dtype)
    return found
