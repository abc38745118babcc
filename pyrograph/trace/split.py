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

from pyrograph.trace.localize import scopes
from pyrograph.trace.operations import DOT, SLOT, replay_dot, replay_pointwise, replay_reduction
from pyrograph.trace.tape import Operand, Rule, Step, Tape

aten = torch.ops.aten

#: Terms beyond which a product of sums stays a product.
MAX_TERMS = 20_000_000

ADD, SUB, RSUB = aten.add.Tensor, aten.sub.Tensor, aten.rsub.Scalar
NEG, MUL, DIV, CAST = aten.neg.default, aten.mul.Tensor, aten.div.Tensor, aten._to_copy.default
SUMS = {aten.sum.dim_IntList, aten.mean.dim}
PRODUCT = Rule(replay_pointwise, MUL, ((SLOT, SLOT), ()))
QUOTIENT = Rule(replay_pointwise, DIV, ((SLOT, SLOT), ()))


@dataclass
class _Children:
    """``source = sum of coef * id`` (id 0: the constant ``coef``), one row per child."""

    source: Tensor
    coef: Tensor
    ids: Tensor

    @staticmethod
    def join(parts: list[_Children]) -> _Children:
        if not parts:
            empty = torch.zeros(0, dtype=torch.int64)
            return _Children(empty, torch.zeros(0, dtype=torch.float64), empty)
        return _Children(
            torch.cat([p.source for p in parts]),
            torch.cat([p.coef for p in parts]),
            torch.cat([p.ids for p in parts]),
        )


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


class _Expander:
    """One step down: a number as a linear combination of earlier numbers."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._can_branch: dict[int, bool] = {}
        for k in range(len(tape.steps)):
            self._can_branch[k] = self._step_can_branch(tape.steps[k])

    def _reaches_branch(self, operand: Operand) -> bool:
        if operand.ids is None:
            return False
        ids = operand.ids.reshape(-1)
        ids = ids[ids > 0]
        if not len(ids):
            return False
        low, high = self.tape.step_of(torch.stack([ids.min(), ids.max()])).tolist()
        ks = [low] if low == high else self.tape.step_of(ids).unique().tolist()
        return any(self._can_branch[k] for k in ks)

    def _step_can_branch(self, step: Step) -> bool:
        kind = step.rule
        latent = [o for o in step.operands if o.ids is not None]
        if kind.replay is replay_dot:
            return True
        if kind.replay is replay_reduction and kind.func in SUMS:
            return latent[0].ids.shape[1] > 1 or self._reaches_branch(latent[0])
        if kind.replay is not replay_pointwise or not step.dtype.is_floating_point:
            return False
        if kind.func in (ADD, SUB):
            return len(latent) == 2 or self._reaches_branch(latent[0])
        if kind.func in (NEG, RSUB, CAST, MUL):
            return any(self._reaches_branch(o) for o in latent)
        if kind.func is DIV:
            return self._reaches_branch(step.operands[0])
        return False

    def branches(self, ids: Tensor) -> Tensor:
        """Whether following this number can meet a sum of two latent terms."""
        table = torch.tensor([self._can_branch[k] for k in range(len(self.tape.steps))] + [False])
        return torch.where(ids > 0, table[self.tape.step_of(ids)], False)

    def children(self, ids: Tensor) -> tuple[Tensor, _Children]:
        """``(expands [m], children)``; what does not expand is a term of its own."""
        expands = torch.zeros(len(ids), dtype=torch.bool)
        parts: list[_Children] = []
        todo = self.branches(ids).nonzero().squeeze(1)
        if not len(todo):
            return expands, _Children.join(parts)
        step_of = self.tape.step_of(ids[todo])
        for k in step_of.unique().tolist():
            here = todo[step_of == k]
            step = self.tape.steps[k]
            found = self._of_step(step, ids[here] - step.first, here)
            if found is None:
                continue
            parts.append(found)
            expands[found.source] = True
        return expands, _Children.join(parts)

    def _of_step(self, step: Step, block: Tensor, source: Tensor) -> _Children | None:
        rule = step.rule
        if rule.replay is replay_dot:
            return self._products(*step.operands, block, source)
        if rule.replay is replay_reduction:
            if any(v is not None for k, v in rule.static[0] if k == "dtype"):
                return None
            scale = 1.0 / step.operands[0].ids.shape[1] if rule.func is aten.mean.dim else 1.0
            return self._linear(step.operands[0], scale, block, source)
        return self._pointwise(step, block, source)

    def _pointwise(self, step: Step, block: Tensor, source: Tensor) -> _Children | None:
        (template, options), func = step.rule.static, step.rule.func
        queue = iter(step.operands)
        a, b = ([next(queue) if t is SLOT else t for t in template] + [None])[:2]
        if func is CAST:
            return self._linear(a, 1.0, block, source)
        if func is NEG:
            return self._linear(a, -1.0, block, source)
        if func in (ADD, SUB, RSUB):
            alpha = float(dict(options).get("alpha", 1))
            first, second = (-alpha, 1.0) if func is RSUB else (1.0, alpha)
            second = -second if func is SUB else second
            return _Children.join(
                [self._linear(a, first, block, source), self._linear(b, second, block, source)]
            )
        if func is DIV:
            return self._quotients(a, b, block, source)
        return self._products(a, b, block, source)

    @staticmethod
    def _linear(operand: Operand | float, scale: float, block: Tensor, source: Tensor) -> _Children:
        """The operand's own numbers, each ``scale`` times."""
        ids, coef = _read(operand, block)
        coef = torch.where(ids == 0, coef, 1.0) * scale
        spread = source.unsqueeze(1).expand(ids.shape)
        return _Children(spread.reshape(-1), coef.reshape(-1), ids.reshape(-1))

    def _products(self, a, b, block: Tensor, source: Tensor) -> _Children:
        """``sum_k a_k b_k``: constants become coefficients, sums inside are distributed."""
        a_ids, a_coef = _read(a, block)
        b_ids, b_coef = _read(b, block)
        shape = torch.broadcast_shapes(a_ids.shape, b_ids.shape)
        spread = source.unsqueeze(1).expand(shape).reshape(-1)
        a_ids, a_coef = a_ids.expand(shape).reshape(-1), a_coef.expand(shape).reshape(-1)
        b_ids, b_coef = b_ids.expand(shape).reshape(-1), b_coef.expand(shape).reshape(-1)
        both = (a_ids != 0) & (b_ids != 0)
        one = ~both
        parts = [
            _Children(
                spread[one],
                torch.where(a_ids == 0, a_coef, 1.0)[one]
                * torch.where(b_ids == 0, b_coef, 1.0)[one],
                (a_ids + b_ids)[one],
            )
        ]
        if bool(both.any()):
            # A lone product that is no product of sums is a term already.
            parts += self._distribute(
                PRODUCT, a_ids[both], b_ids[both], spread[both], keep_others=shape[1] > 1
            )
        return _Children.join(parts)

    def _quotients(self, a, b, block: Tensor, source: Tensor) -> _Children:
        if not isinstance(b, Operand) or b.ids is None:
            _, divisor = _read(b, block)
            found = self._linear(a, 1.0, block, source)
            return _Children(found.source, found.coef / divisor.reshape(-1), found.ids)
        a_ids, b_ids = a.ids[block], b.ids[block]
        both = (a_ids != 0) & (b_ids != 0)
        return _Children.join(
            self._distribute(QUOTIENT, a_ids[both], b_ids[both], source[both], keep_others=False)
        )

    def _distribute(
        self, rule: Rule, a: Tensor, b: Tensor, source: Tensor, keep_others: bool
    ) -> list[_Children]:
        """``(sum_k c_k t_k) * b = sum_k c_k (t_k * b)``, on whichever side is a sum.

        Squares stay whole: their cross terms join everything anyway. ``keep_others``: what does
        not expand is returned as one child, for sums of products.
        """
        expand_a, of_a = self.children(torch.where(a == b, 0, a))
        expand_b, of_b = torch.zeros_like(expand_a), _Children.join([])
        if rule is PRODUCT:
            expand_b, of_b = self.children(torch.where((a == b) | expand_a, 0, b))
        if max(len(of_a.ids), len(of_b.ids)) > MAX_TERMS:
            expand_a, expand_b = torch.zeros_like(expand_a), torch.zeros_like(expand_b)
        parts = []
        neither = ~(expand_a | expand_b)
        if keep_others and bool(neither.any()):
            ids = self._emit(rule, a[neither], b[neither])
            parts.append(_Children(source[neither], torch.ones(len(ids), dtype=torch.float64), ids))
        if bool(expand_a.any()):
            parts.append(self._times(rule, of_a, b, source))
        if bool(expand_b.any()):
            parts.append(self._times(rule, of_b, a, source))
        return parts

    def _times(self, rule: Rule, terms: _Children, other: Tensor, source: Tensor) -> _Children:
        """Every term times (or over) its partner."""
        if rule is PRODUCT:  # 0 * t is no term
            some = (terms.ids != 0) | (terms.coef != 0)
            terms = _Children(terms.source[some], terms.coef[some], terms.ids[some])
        partner = other[terms.source]
        ids = torch.zeros_like(terms.ids)
        coef = terms.coef.clone()
        latent = terms.ids != 0
        if bool(latent.any()):
            ids[latent] = self._emit(rule, terms.ids[latent], partner[latent])
        if bool((~latent).any()):
            if rule is PRODUCT:
                ids[~latent] = partner[~latent]
            else:  # constant / latent
                ids[~latent] = self._emit_constant(rule, coef[~latent], partner[~latent])
                coef[~latent] = 1.0
        return _Children(source[terms.source], coef, ids)

    def _emit(self, rule: Rule, a: Tensor, b: Tensor) -> Tensor:
        dtype = torch.float64
        for k in self.tape.step_of(torch.stack([a.max(), b.max()]).clamp_(min=1)).tolist():
            if self.tape.steps:
                dtype = self.tape.steps[k].dtype
        return self._append(rule, (Operand(a, None, dtype), Operand(b, None, dtype)), dtype)

    def _emit_constant(self, rule: Rule, a: Tensor, b: Tensor) -> Tensor:
        dtype = self.tape.steps[int(self.tape.step_of(b.max().clamp(min=1)))].dtype
        return self._append(
            rule, (Operand(None, a.to(dtype), dtype), Operand(b, None, dtype)), dtype
        )

    def _append(self, rule: Rule, operands: tuple[Operand, ...], dtype: torch.dtype) -> Tensor:
        ids = self.tape.append(rule, 1, operands, dtype)
        k = len(self.tape.steps) - 1
        self._can_branch[k] = self._step_can_branch(self.tape.steps[k])
        return ids


def _read(operand: Operand | float, block: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and constant values ``[len(block), core]`` of an operand or a Python number."""
    n = len(block)
    if not isinstance(operand, Operand):
        value = torch.tensor([[float(operand)]], dtype=torch.float64)
        return torch.zeros(n, 1, dtype=torch.int64), value.expand(n, 1)
    values = torch.zeros(1, 1, dtype=torch.float64)
    if operand.values is not None:
        values = operand.values.reshape(operand.values.shape[0], -1)
        values = (values[block] if values.shape[0] > 1 else values).to(torch.float64)
    if operand.ids is None:
        return torch.zeros(1, 1, dtype=torch.int64).expand(n, values.shape[1]), values.expand(n, -1)
    ids = operand.ids[block].reshape(n, -1)
    return ids, values.expand(ids.shape)


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


def split(tape: Tape, ids: Tensor, node_of_leaf: Tensor) -> Terms:
    """Factors of the latent elements ``ids``; see the module's text."""
    ptr, nodes = scopes(tape, ids, node_of_leaf)
    arity = ptr.diff()
    rows = (arity > 1).nonzero().squeeze(1)
    levels = _expand(tape, ids, rows)
    if len(levels) == 1:
        return Terms(ids, torch.arange(len(ids)), ptr, nodes, 0.0)
    num_nodes = int(node_of_leaf.max()) + 1
    final = _collapse(tape, levels, node_of_leaf, num_nodes)
    return _gather_terms(tape, ids, ptr, nodes, final, num_nodes)


def _expand(tape: Tape, ids: Tensor, rows: Tensor) -> list[_Level]:
    """The expansion tree, breadth first; chains of single children are followed in place."""
    expander = _Expander(tape)
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
    tape: Tape, ids: Tensor, ptr: Tensor, nodes: Tensor, final: _Final, num_nodes: int
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
            dtype = tape.steps[-1].dtype
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
