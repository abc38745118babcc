"""Which factors read their nodes through one sum, or one product, of functions of single nodes.

Every number on the way to log f is told by the quantity that it depends on and how: a function of
one node, a sum of such functions, a product of them, or any function of one such sum or product.

    g(x_i) + h(x_j),  sum + g(x_i)    a sum           c + sum,  c sum         the same sum
    g(x_i) h(x_j),    product g(x_i)  a product       c product               the same product
    any step on numbers that depend on one quantity   a function of that quantity

What two quantities meet in otherwise is not looked through. A factor that passes is h(t(x)) with t
a sum or product over nodes: the form of h, tried at many t, is that of f, where a trial of few of
the 2^k states of any other function proves nothing. So that h has no value of its own at some t, it
is made of analytic steps, clamps, and one comparison at most, as that in log (1 - e^-t).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.graph import FactorGroup
from pyrograph.trace.rules.pointwise import replay_pointwise, replay_same_shape
from pyrograph.trace.rules.products import replay_dot
from pyrograph.trace.rules.reductions import replay_reduction
from pyrograph.trace.source import Line, Read

aten = torch.ops.aten

#: How a number depends on its quantity.
NODE, SUM, PRODUCT, FUNCTION = range(4)
#: The number depends on nothing.
NOTHING = -1

ADDING = {aten.add.Tensor, aten.sub.Tensor, aten.rsub.Scalar}
SCALING = {aten.mul.Tensor, aten.div.Tensor, aten.neg.default, aten._to_copy.default}
SUMMING = {aten.sum.dim_IntList, aten.mean.dim}
MULTIPLYING = {aten.prod.dim_int, aten.all.dim}
#: Functions of a product: of what they read, negated.
EITHER = {aten.any.dim}
#: What functions of a quantity may be made of.
ANALYTIC = {
    *ADDING,
    *SCALING,
    aten.mul.Scalar,
    aten.div.Scalar,
    aten.add.Scalar,
    aten.sub.Scalar,
    aten.exp.default,
    aten.expm1.default,
    aten.log.default,
    aten.log1p.default,
    aten.pow.Tensor_Scalar,
    aten.reciprocal.default,
    aten.sigmoid.default,
    aten.log_sigmoid_forward.default,
    aten.softplus.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.clamp.default,
    aten.clamp_min.default,
    aten.clamp_max.default,
    aten.where.self,
    aten.logical_not.default,
}
COMPARING = {
    getattr(getattr(aten, name), kind)
    for name in ("lt", "le", "gt", "ge")
    for kind in ("Scalar", "Tensor")
}


class _NotOne(Exception):
    """Two quantities meet."""


@dataclass(frozen=True)
class _Known:
    """Of numbers: ``of`` which quantity, ``form`` in which way. Quantities are numbered."""

    of: Tensor
    form: Tensor

    def rows(self, index: Tensor | slice) -> _Known:
        return _Known(self.of[index], self.form[index])

    def expand(self, *shape: int) -> _Known:
        return _Known(self.of.expand(shape), self.form.expand(shape))


def _constants(count: int) -> _Known:
    none = torch.full((count,), NOTHING, device="cpu")
    return _Known(none, torch.full_like(none, NODE))


class _Steps:
    """The steps of a group's program, one after the other.

    Args:
        group: of which the buffers of nodes are known from the start.
    """

    def __init__(self, group: FactorGroup):
        self.buffers: dict[int, _Known] = {}
        program, count = group.program, group.num_factors
        for slot, size in enumerate(program.leaf_sizes):
            factor = torch.arange(size, device="cpu") // (size // count)
            of = factor * group.arity + slot
            self.buffers[slot] = _Known(of, torch.full_like(of, NODE))
        self._next = count * group.arity
        self.num_compared = 0

    def _new(self, form: Tensor) -> _Known:
        """Quantities of their own."""
        of = self._next + torch.arange(form.numel(), device="cpu").view(form.shape)
        self._next += form.numel()
        return _Known(of, form)

    def read(self, read: Read) -> _Known:
        parts = [self.buffers[gather.buffer].rows(gather.place) for gather in read.gathers]
        if read.constant is not None:
            size = read.constant.shape[:-1].numel()
            parts.append(_constants(size))
        of, form = (torch.cat([getattr(p, name) for p in parts]) for name in ("of", "form"))
        if read.order is not None:
            of, form = of[read.order.cpu()], form[read.order.cpu()]
        shape = (-1, *read.shape[1:])
        return _Known(of.reshape(shape), form.reshape(shape))

    def take(self, line: Line) -> None:
        """
        Raises:
            _NotOne: it is not looked through.
        """
        replay, func = line.rule.replay, line.rule.func
        reads = [self.read(read) for read in line.reads]
        width = max((r.of.dim() for r in reads), default=1)
        if replay in (replay_pointwise, replay_same_shape) and width == 1:
            if any(bool((r.form != NODE).any()) for r in reads):
                self._allow(line)
            found = self._pointwise(func, reads, line.count)
        elif replay is replay_dot:
            shape = torch.broadcast_shapes(*(r.of.shape for r in reads))
            both = self._pointwise(aten.mul.Tensor, [r.expand(*shape) for r in reads], None)
            found = self._over_all(both, SUM)
        elif replay is replay_reduction and func in SUMMING:
            found = self._over_all(reads[0], SUM)
        elif replay is replay_reduction and func in MULTIPLYING:
            found = self._over_all(reads[0], PRODUCT)
        elif replay is replay_reduction and func in EITHER and bool((reads[0].form == NODE).all()):
            found = self._over_all(reads[0], PRODUCT)
            found = _Known(found.of, torch.where(found.form == NODE, NODE, FUNCTION))
        else:
            flat = [r.expand(line.count, *r.of.shape[1:]) for r in reads]
            of = torch.cat([r.of.reshape(line.count, -1) for r in flat], 1)
            form = torch.cat([r.form.reshape(line.count, -1) for r in flat], 1)
            found = self._over_all(_Known(of, form), FUNCTION)
            if bool((found.form != NODE).any()):
                raise _NotOne
        found = found.expand(line.count)
        of, form = (v.repeat_interleave(line.width) for v in (found.of, found.form))
        self.buffers[line.buffer] = _Known(of, form)

    def _allow(self, line: Line) -> None:
        """
        Raises:
            _NotOne: the step may make a value of a quantity one of its own.
        """
        func = line.rule.func
        rounds = func is aten._to_copy.default and not line.dtype.is_floating_point
        self.num_compared += func in COMPARING
        if rounds or self.num_compared > 1 or func not in ANALYTIC | COMPARING:
            raise _NotOne

    def _pointwise(self, func: object, reads: list[_Known], count: int | None) -> _Known:
        """Number by number."""
        if count is not None:
            reads = [r.expand(count) for r in reads]
        of, form = reads[0].of, reads[0].form
        if len(reads) == 1:
            return _Known(of, _after(func, form, True))
        alike = torch.stack([r.of for r in reads])
        is_constant = alike == NOTHING
        of = alike.amax(0)
        is_one = (is_constant | (alike == of)).all(0)
        forms = torch.stack([r.form for r in reads])
        form = torch.where(is_constant, NODE, forms).amax(0)
        # of several numbers that depend on a quantity, or of a divisor, what comes is any function
        is_alone = ((~is_constant).sum(0) == 1) & (~is_constant[0] | (func is not aten.div.Tensor))
        is_alone |= (~is_constant[0]) & is_constant[1:].all(0)
        found = _Known(of, _after(func, form, is_alone | (func in ADDING)))
        if bool(is_one.all()):
            return found
        wanted = SUM if func in ADDING else PRODUCT if func in SCALING else None
        if wanted is None or not bool((is_one | _are_terms(forms, wanted).all(0)).all()):
            raise _NotOne
        joined = self._new(torch.full_like(of, wanted))
        return _Known(
            torch.where(is_one, found.of, joined.of), torch.where(is_one, found.form, wanted)
        )

    def _over_all(self, read: _Known, wanted: int) -> _Known:
        """Of blocks ``[count, n]``."""
        of = read.of.amax(1)
        is_constant = read.of == NOTHING
        is_one = (is_constant | (read.of == of.unsqueeze(1))).all(1)
        form = torch.where(is_constant, NODE, read.form).amax(1)
        # a sum of multiples of a sum is one; other functions of one quantity are any
        kept = (form == NODE) | ((form == SUM) & (wanted == SUM))
        form = torch.where(kept, form, FUNCTION)
        if bool(is_one.all()):
            return _Known(of, form)
        are_terms = (is_constant | _are_terms(read.form, wanted)).all(1)
        if wanted == FUNCTION or not bool((is_one | are_terms).all()):
            raise _NotOne
        joined = self._new(torch.full_like(of, wanted))
        return _Known(torch.where(is_one, of, joined.of), torch.where(is_one, form, wanted))


def _are_terms(form: Tensor, wanted: int) -> Tensor:
    """Whether numbers of this form are terms of a sum, or factors of a product."""
    return (form == NODE) | (form == wanted)


def _after(func: object, form: Tensor, is_alone: Tensor | bool) -> Tensor:
    """Form of what a step makes of one quantity's numbers.

    Args:
        is_alone: whether it is what only constants are added to, or multiplied into.
    """
    keeps = form == NODE
    if func in ADDING or func in SCALING:
        keeps = keeps | ((form == SUM) & is_alone)
    if func in SCALING:
        keeps = keeps | ((form == PRODUCT) & is_alone)
    return torch.where(keeps, form, FUNCTION)


def reads_one_quantity(group: FactorGroup) -> bool:
    """Whether factors are known to be functions of one sum or product over their nodes.

    False says nothing: they may be, in steps that are not looked through.
    """
    steps = _Steps(group)
    try:
        for line in group.program.lines:
            steps.take(line)
    except _NotOne:
        return False
    return len(steps.read(group.program.output).of) == group.num_factors
