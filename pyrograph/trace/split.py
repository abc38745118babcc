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

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from pyrograph.trace.demand import scopes
from pyrograph.trace.expand import Expander
from pyrograph.trace.rules.products import DOT
from pyrograph.trace.tape import Operand, Tape


@dataclass
class _Level:
    """Nodes of the expansion tree at one depth."""

    row: Tensor
    coef: Tensor
    ids: Tensor
    parent: Tensor
    chain_constant: Tensor = field(init=False)  # split off while following single children
    sum_constant: Tensor = field(init=False)  # the constant child of the sum
    is_sum: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.chain_constant = torch.zeros(len(self.ids), dtype=torch.float64)
        self.sum_constant = torch.zeros(len(self.ids), dtype=torch.float64)
        self.is_sum = torch.zeros(len(self.ids), dtype=torch.bool)


@dataclass(frozen=True)
class Terms:
    """The factors of a set of log-density elements.

    Attributes:
        ids: ``[F]`` number of each factor on the tape (new sums may have been appended).
        row: ``[F]`` the element each factor belongs to, ascending.
        ptr, nodes: CSR scopes of the factors.
        constant: what splitting set free, to be added to the graph's constant.
    """

    ids: Tensor
    row: Tensor
    ptr: Tensor
    nodes: Tensor
    constant: float


def split(tape: Tape, ids: Tensor, node_of_leaf: Tensor, dtype: torch.dtype) -> Terms:
    """Factors of the latent elements ``ids``, of this dtype; see the module's text."""
    ptr, nodes = scopes(tape, ids, node_of_leaf)
    arity = ptr.diff()
    rows = (arity > 1).nonzero().squeeze(1)
    levels = _expand(tape, ids, rows, dtype)
    if len(levels) == 1:
        return Terms(ids, torch.arange(len(ids)), ptr, nodes, 0.0)
    num_nodes = int(node_of_leaf.max()) + 1
    final = _collapse(tape, levels, node_of_leaf, num_nodes)
    return _gather_terms(tape, ids, ptr, nodes, final, num_nodes, dtype)


def _expand(tape: Tape, ids: Tensor, rows: Tensor, dtype: torch.dtype) -> list[_Level]:
    """The expansion tree, breadth first; chains of single children are followed in place."""
    expander = Expander(tape, dtype)
    keep = expander.branches(ids[rows])
    rows = rows[keep]
    level = _Level(rows, torch.ones(len(rows), dtype=torch.float64), ids[rows], rows)
    levels = [level]
    while len(level.ids):
        following: list[_Level] = []
        pending = torch.arange(len(level.ids))
        while len(pending):
            expands, found = expander.children(level.ids[pending])
            latent = found.ids != 0
            num_latent = torch.bincount(found.source[latent], minlength=len(pending))
            coef = level.coef[pending][found.source] * found.coef
            constant = torch.zeros(len(pending), dtype=torch.float64)
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
                following.append(_Level(level.row[parent], coef[branch], found.ids[branch], parent))
            pending = pending[single]
        if not following:
            break
        level = _Level(
            torch.cat([f.row for f in following]),
            torch.cat([f.coef for f in following]),
            torch.cat([f.ids for f in following]),
            torch.cat([f.parent for f in following]),
        )
        levels.append(level)
    return levels


@dataclass
class _Final:
    row: Tensor
    ids: Tensor
    coef: Tensor
    is_root: Tensor
    ptr: Tensor
    nodes: Tensor
    constant: float


def _collapse(tape: Tape, levels: list[_Level], node_of_leaf: Tensor, num_nodes: int) -> _Final:
    """Put sums back together wherever one of their terms reads as much as the whole."""
    sizes: list[Tensor] = []
    pairs: list[tuple[Tensor, Tensor]] = []
    biggest: list[Tensor] = []
    below: tuple[Tensor, Tensor, Tensor] | None = None
    for depth in range(len(levels) - 1, -1, -1):
        level = levels[depth]
        atoms = (~level.is_sum).nonzero().squeeze(1)
        ptr, nodes = scopes(tape, level.ids[atoms], node_of_leaf)
        owner = atoms.repeat_interleave(ptr.diff())
        best = torch.zeros(len(level.ids), dtype=torch.int64)
        best[atoms] = ptr.diff()
        if below is not None:
            child_owner, child_nodes, child_best = below
            keys = torch.cat([owner * num_nodes + nodes, child_owner * num_nodes + child_nodes])
            keys = keys.unique()
            owner = torch.div(keys, num_nodes, rounding_mode="floor")
            nodes = keys - owner * num_nodes
            best = torch.maximum(best, child_best)
        size = torch.bincount(owner, minlength=len(level.ids))
        sizes.insert(0, size)
        pairs.insert(0, (owner, nodes))
        biggest.insert(0, best)
        if depth:
            up = torch.zeros(len(levels[depth - 1].ids), dtype=torch.int64)
            up.scatter_reduce_(0, level.parent, best, "amax")
            below = (level.parent[owner], nodes, up)

    active = torch.ones(len(levels[0].ids), dtype=torch.bool)
    out: list[tuple] = []
    constant = 0.0
    for depth, level in enumerate(levels):
        whole = active & (~level.is_sum | (biggest[depth] == sizes[depth]))
        if depth:
            constant += float(level.chain_constant[active].sum())
        open_ = active & ~whole
        constant += float(level.sum_constant[open_].sum())
        if depth == 0:
            constant += float(level.chain_constant[open_].sum())
        owner, nodes = pairs[depth]
        chosen = whole.nonzero().squeeze(1)
        mine = whole[owner]
        rank = torch.zeros(len(whole), dtype=torch.int64)
        rank[chosen] = torch.arange(len(chosen))
        out.append(
            (
                level.row[chosen],
                level.ids[chosen],
                level.coef[chosen],
                torch.full((len(chosen),), depth == 0),
                rank[owner[mine]],
                nodes[mine],
            )
        )
        if depth + 1 < len(levels):
            active = open_[levels[depth + 1].parent]
    start = 0
    owners = []
    for row, *_, owner, _nodes in out:
        owners.append(owner + start)
        start += len(row)
    owner = torch.cat(owners)
    nodes = torch.cat([o[5] for o in out])
    order = torch.argsort(owner * num_nodes + nodes)
    ptr = torch.zeros(start + 1, dtype=torch.int64)
    ptr[1:] = torch.bincount(owner, minlength=start).cumsum(0)
    row, ids, coef, is_root = (torch.cat([o[i] for o in out]) for i in range(4))
    return _Final(row, ids, coef, is_root, ptr, nodes[order], constant)


def _gather_terms(
    tape: Tape,
    ids: Tensor,
    ptr: Tensor,
    nodes: Tensor,
    final: _Final,
    num_nodes: int,
    dtype: torch.dtype,
) -> Terms:
    """Add up terms of equal scope within an element; keep elements that stayed whole."""
    split_rows = final.row[~final.is_root].unique()
    whole = torch.ones(len(ids), dtype=torch.bool)
    whole[split_rows] = False
    kept = whole.nonzero().squeeze(1)

    part = (~final.is_root).nonzero().squeeze(1)
    row, part_ids, coef = final.row[part], final.ids[part], final.coef[part]
    length = final.ptr.diff()[part]
    start = final.ptr[:-1][part]
    # Equal scopes have equal sums of random 62-bit labels (a clash would only merge two factors).
    label = torch.from_numpy(np.random.default_rng(0).integers(0, 1 << 62, num_nodes))
    running = torch.zeros(len(final.nodes) + 1, dtype=torch.int64)
    running[1:] = label[final.nodes].cumsum(0)
    mark = running[start + length] - running[start]
    order = torch.from_numpy(np.lexsort((np.arange(len(row)), mark.numpy(), row.numpy())))
    row, part_ids, coef, mark = row[order], part_ids[order], coef[order], mark[order]
    start, length = start[order], length[order]
    new = torch.ones(len(row), dtype=torch.bool)
    new[1:] = (row[1:] != row[:-1]) | (mark[1:] != mark[:-1])
    factor = new.cumsum(0) - 1
    head = new.nonzero().squeeze(1)
    count = torch.bincount(factor, minlength=len(head))

    factor_ids = torch.zeros(len(head), dtype=torch.int64)
    for k in count.unique().tolist():
        which = (count == k).nonzero().squeeze(1)
        at = head[which].unsqueeze(1) + torch.arange(k)
        c = coef[at]
        plain = (c[:, 0] == 1.0) if k == 1 else torch.zeros(len(which), dtype=torch.bool)
        factor_ids[which[plain]] = part_ids[at[plain, 0]]
        summed = (~plain).nonzero().squeeze(1)
        if len(summed):
            weights = Operand(None, c[summed].to(dtype), dtype)
            terms = Operand(part_ids[at[summed]], None, dtype)
            factor_ids[which[summed]] = tape.append(DOT, 1, (terms, weights), dtype)

    # Scopes of the new factors, behind those of the whole elements; then everything by element.
    lengths = torch.cat([ptr.diff()[kept], length[head]])
    starts = torch.cat([ptr[:-1][kept], start[head] + len(nodes)])
    all_row = torch.cat([kept, row[head]])
    all_ids = torch.cat([ids[kept], factor_ids])
    pool = torch.cat([nodes, final.nodes])
    # Within an element: by scope, as the terms of a sum have no other order.
    first_node = pool[starts]
    second = pool[torch.minimum(starts + 1, starts + lengths - 1)]
    order = torch.from_numpy(np.lexsort((second.numpy(), first_node.numpy(), all_row.numpy())))
    lengths, starts = lengths[order], starts[order]
    out_ptr = torch.zeros(len(order) + 1, dtype=torch.int64)
    out_ptr[1:] = lengths.cumsum(0)
    offset = torch.arange(int(out_ptr[-1])) - out_ptr[:-1].repeat_interleave(lengths)
    out_nodes = pool[starts.repeat_interleave(lengths) + offset]
    return Terms(all_ids[order], all_row[order], out_ptr, out_nodes, final.constant)
