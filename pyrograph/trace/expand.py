"""One step down a sum: a number as a linear combination of earlier numbers.

    -x -> -1 x,    x + 2 y -> 1 x + 2 y,    c x -> c x,    sum_k x_k -> 1 x_1 + ...,
    (sum_k c_k t_k) * y -> sum_k c_k (t_k y)      (the products t_k y are appended to the tape)

Squares stay whole: their cross terms join everything anyway. Far from the origin products are large
and their sum is not; where it does not change with the origin, as that of (x - m)(y - m), it is one
of squared differences, which have the same scopes:

    (sum_k a_k t_k) (sum_l b_l u_l) -> -1/2 sum_kl a_k b_l (t_k - u_l)^2,    sum a = sum b = 0
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.shapes import broadcast_shapes
from pyrograph.trace.distinct import distinct
from pyrograph.trace.rules.pointwise import replay_pointwise
from pyrograph.trace.rules.products import replay_dot
from pyrograph.trace.rules.reductions import replay_reduction
from pyrograph.trace.rules.slots import SLOT
from pyrograph.trace.tape import Operand, Rule, Step, Tape

aten = torch.ops.aten

#: Terms beyond which a product of sums stays a product.
MAX_TERMS = 20_000_000

ADD, SUB, RSUB = aten.add.Tensor, aten.sub.Tensor, aten.rsub.Scalar
NEG, MUL, DIV, CAST = aten.neg.default, aten.mul.Tensor, aten.div.Tensor, aten._to_copy.default
SUMS = {aten.sum.dim_IntList, aten.mean.dim}
PRODUCT = Rule(replay_pointwise, MUL, ((SLOT, SLOT), ()))
DIFFERENCE = Rule(replay_pointwise, SUB, ((SLOT, SLOT), ()))
QUOTIENT = Rule(replay_pointwise, DIV, ((SLOT, SLOT), ()))


@dataclass
class Children:
    """``source = sum of coef * id`` (id 0: the constant ``coef``), one row per child."""

    source: Tensor
    coef: Tensor
    ids: Tensor

    def where(self, keep: Tensor) -> Children:
        """The children that a mask or positions say."""
        return Children(self.source[keep], self.coef[keep], self.ids[keep])

    @staticmethod
    def join(parts: list[Children]) -> Children:
        if not parts:
            empty = torch.zeros(0, dtype=torch.int64, device="cpu")
            return Children(empty, torch.zeros(0, dtype=torch.float64, device="cpu"), empty)
        return Children(
            torch.cat([p.source for p in parts]),
            torch.cat([p.coef for p in parts]),
            torch.cat([p.ids for p in parts]),
        )


class Expander:
    """One step down: a number as a linear combination of earlier numbers."""

    def __init__(self, tape: Tape, dtype: torch.dtype) -> None:
        self.tape, self.dtype = tape, dtype
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
        ks = [low] if low == high else distinct(self.tape.step_of(ids)).tolist()
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
        table = torch.tensor(
            [self._can_branch[k] for k in range(len(self.tape.steps))] + [False], device="cpu"
        )
        return torch.where(ids > 0, table[self.tape.step_of(ids)], False)

    def children(self, ids: Tensor) -> tuple[Tensor, Children]:
        """``(expands [m], children)``; what does not expand is a term of its own."""
        expands = torch.zeros(len(ids), dtype=torch.bool, device="cpu")
        parts: list[Children] = []
        todo = self.branches(ids).nonzero().squeeze(1)
        if not len(todo):
            return expands, Children.join(parts)
        step_of = self.tape.step_of(ids[todo])
        for k in distinct(step_of).tolist():
            here = todo[step_of == k]
            step = self.tape.steps[k]
            found = self._of_step(step, ids[here] - step.first, here)
            if found is None:
                continue
            parts.append(found)
            expands[found.source] = True
        return expands, Children.join(parts)

    def _of_step(self, step: Step, block: Tensor, source: Tensor) -> Children | None:
        rule = step.rule
        if rule.replay is replay_dot:
            return self._products(*step.operands, block, source)
        if rule.replay is replay_reduction:
            if any(v is not None for k, v in rule.static[0] if k == "dtype"):
                return None
            scale = 1.0 / step.operands[0].ids.shape[1] if rule.func is aten.mean.dim else 1.0
            return self._linear(step.operands[0], scale, block, source)
        return self._pointwise(step, block, source)

    def _pointwise(self, step: Step, block: Tensor, source: Tensor) -> Children | None:
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
            return Children.join(
                [self._linear(a, first, block, source), self._linear(b, second, block, source)]
            )
        if func is DIV:
            return self._quotients(a, b, block, source)
        return self._products(a, b, block, source)

    @staticmethod
    def _linear(operand: Operand | float, scale: float, block: Tensor, source: Tensor) -> Children:
        """The operand's own numbers, each ``scale`` times."""
        ids, coef = _read(operand, block)
        coef = torch.where(ids == 0, coef, 1.0) * scale
        spread = source.unsqueeze(1).expand(ids.shape)
        return Children(spread.reshape(-1), coef.reshape(-1), ids.reshape(-1))

    def _products(self, a, b, block: Tensor, source: Tensor) -> Children:
        """``sum_k a_k b_k``: constants become coefficients, sums inside are distributed."""
        a_ids, a_coef = _read(a, block)
        b_ids, b_coef = _read(b, block)
        shape = broadcast_shapes(a_ids.shape, b_ids.shape)
        spread = source.unsqueeze(1).expand(shape).reshape(-1)
        a_ids, a_coef = a_ids.expand(shape).reshape(-1), a_coef.expand(shape).reshape(-1)
        b_ids, b_coef = b_ids.expand(shape).reshape(-1), b_coef.expand(shape).reshape(-1)
        both = (a_ids != 0) & (b_ids != 0)
        one = ~both
        parts = [
            Children(
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
        return Children.join(parts)

    def _quotients(self, a, b, block: Tensor, source: Tensor) -> Children:
        if not isinstance(b, Operand) or b.ids is None:
            _, divisor = _read(b, block)
            found = self._linear(a, 1.0, block, source)
            return Children(found.source, found.coef / divisor.reshape(-1), found.ids)
        a_ids, b_ids = a.ids[block], b.ids[block]
        both = (a_ids != 0) & (b_ids != 0)
        return Children.join(
            self._distribute(QUOTIENT, a_ids[both], b_ids[both], source[both], keep_others=False)
        )

    def _distribute(
        self, rule: Rule, a: Tensor, b: Tensor, source: Tensor, keep_others: bool
    ) -> list[Children]:
        """``(sum_k c_k t_k) * b = sum_k c_k (t_k * b)``, on whichever side is a sum.

        Squares stay whole: their cross terms join everything anyway. ``keep_others``: what does
        not expand is returned as one child, for sums of products.
        """
        expand_a, of_a = self.children(torch.where(a == b, 0, a))
        expand_b, of_b = torch.zeros_like(expand_a), Children.join([])
        if rule is PRODUCT:
            expand_b, of_b = self.children(torch.where((a == b) | expand_a, 0, b))
        if max(len(of_a.ids), len(of_b.ids)) > MAX_TERMS:
            expand_a, expand_b = torch.zeros_like(expand_a), torch.zeros_like(expand_b)
        parts = []
        neither = ~(expand_a | expand_b)
        if keep_others and bool(neither.any()):
            ids = self._emit(rule, a[neither], b[neither])
            parts.append(
                Children(
                    source[neither], torch.ones(len(ids), dtype=torch.float64, device="cpu"), ids
                )
            )
        if rule is PRODUCT and bool(expand_a.any()):
            done, squares = self._by_differences(of_a, b, source)
            parts.append(squares)
            expand_a, of_a = expand_a & ~done, of_a.where(~done[of_a.source])
        if bool(expand_a.any()):
            parts.append(self._times(rule, of_a, b, source))
        if bool(expand_b.any()):
            parts.append(self._times(rule, of_b, a, source))
        return parts

    def _by_differences(self, of_a: Children, b: Tensor, source: Tensor) -> tuple[Tensor, Children]:
        """Which products of sums are sums of squared differences, and these; see the module."""
        adds_up = self._adds_up_to_zero(of_a, len(b))
        _, of_b = self.children(torch.where(adds_up, b, 0))
        both = adds_up & self._adds_up_to_zero(of_b, len(b))
        of_a, of_b = of_a.where(both[of_a.source]), of_b.where(both[of_b.source])
        of_b = of_b.where(of_b.source.argsort(stable=True))
        count = torch.bincount(of_b.source, minlength=len(b))
        start = (count.cumsum(0) - count)[of_a.source]
        count = count[of_a.source]
        if not bool(both.any()) or int(count.sum()) > MAX_TERMS:
            return torch.zeros_like(both), Children.join([])
        # every term of one with every term of the other
        left = torch.arange(len(count), device="cpu").repeat_interleave(count)
        right = torch.arange(len(left), device="cpu") + (start - count.cumsum(0) + count)[left]
        apart = of_a.ids[left] != of_b.ids[right]
        left, right = left[apart], right[apart]
        ends = (Operand(ids, None, self.dtype) for ids in (of_a.ids[left], of_b.ids[right]))
        difference = self._append(DIFFERENCE, *ends)
        coef = -0.5 * of_a.coef[left] * of_b.coef[right]
        squares = self._emit(PRODUCT, difference, difference)
        return both, Children(source[of_a.source[left]], coef, squares)

    def _adds_up_to_zero(self, terms: Children, count: int) -> Tensor:
        """``[count]``: whether a sum's coefficients, all of numbers that are no sums themselves,
        add up to zero, and not just for now."""
        total = torch.zeros(count, dtype=torch.float64, device="cpu")
        if terms.coef.requires_grad:
            return total.bool()
        total.index_add_(0, terms.source, terms.coef)
        other = (terms.ids == 0) | self.branches(terms.ids)
        plain = torch.bincount(terms.source[~other], minlength=count) > 0
        plain[terms.source[other]] = False
        return plain & (total == 0)

    def _times(self, rule: Rule, terms: Children, other: Tensor, source: Tensor) -> Children:
        """Every term times (or over) its partner."""
        if rule is PRODUCT and not terms.coef.requires_grad:  # 0 * t is no term
            terms = terms.where((terms.ids != 0) | (terms.coef != 0))
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
        return Children(source[terms.source], coef, ids)

    def _emit(self, rule: Rule, a: Tensor, b: Tensor) -> Tensor:
        return self._append(rule, Operand(a, None, self.dtype), Operand(b, None, self.dtype))

    def _emit_constant(self, rule: Rule, a: Tensor, b: Tensor) -> Tensor:
        constant = Operand(None, a.to(self.dtype), self.dtype)
        return self._append(rule, constant, Operand(b, None, self.dtype))

    def _append(self, rule: Rule, *operands: Operand) -> Tensor:
        ids = self.tape.append(rule, 1, operands, self.dtype)
        k = len(self.tape.steps) - 1
        self._can_branch[k] = self._step_can_branch(self.tape.steps[k])
        return ids


def _read(operand: Operand | float, block: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and constant values ``[len(block), core]`` of an operand or a Python number."""
    n = len(block)
    if not isinstance(operand, Operand):
        value = torch.tensor([[float(operand)]], dtype=torch.float64, device="cpu")
        return torch.zeros(n, 1, dtype=torch.int64, device="cpu"), value.expand(n, 1)
    values = torch.zeros(1, 1, dtype=torch.float64, device="cpu")
    if operand.values is not None:
        values = operand.values.reshape(operand.values.shape[0], -1)
        values = (values[block] if values.shape[0] > 1 else values).to(torch.float64)
    if operand.ids is None:
        values = values.expand(n, -1)
        return torch.zeros(1, 1, dtype=torch.int64, device="cpu").expand(values.shape), values
    ids = operand.ids[block].reshape(n, -1)
    return ids, values.expand(ids.shape)
