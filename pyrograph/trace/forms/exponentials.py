"""Local functions that are sums of polynomials times exponentials: which ones.

    f(u) = sum_t c_t u^p_t exp(a_t . u)

A normal density whose scale is the exponential of a latent is one, and so is a Poisson density of a
log rate, a gamma density of a positive site: whatever is made of latents by sums, products and
exponentials, and by powers, quotients and logarithms of single exponentials. The program's lines
are replayed on such sums (:mod:`.exponential_terms`) in place of numbers. Nothing is guessed from
values of the function (see :mod:`.degree`); they only confirm it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyrograph.trace.forms import exponential_terms as terms
from pyrograph.trace.forms.degree import HARMLESS, SAME, operation
from pyrograph.trace.forms.exponential_terms import OtherFunction
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.rules.lookups import replay_choice
from pyrograph.trace.rules.pointwise import replay_pointwise
from pyrograph.trace.rules.products import replay_dot
from pyrograph.trace.rules.reductions import replay_reduction
from pyrograph.trace.rules.slots import SLOT
from pyrograph.trace.source import Line, Read

#: Rounding errors that the check may show, in units of the dtype's precision.
OFF = 3e3
#: Points at which it looks, and how far off.
CHECKS = 24
SCALES = (1.0, 0.1, 3.0)


@dataclass(frozen=True)
class Exponentials:
    """Functions of u, ``sum_g exp(a_g . t) (c_g + b_g . t + t' Q_g t)`` with ``t = u - o``.

    Attributes:
        origin: o, ``[E, D]``.
        rate: a, ``[G, E, D]``.
        constant, linear, square: c, b and the symmetric Q, ``[G, E]``, ``[G, E, D]`` and
            ``[G, E, D, D]``.
    """

    origin: Tensor
    rate: Tensor
    constant: Tensor
    linear: Tensor
    square: Tensor

    def part(self, which: Tensor) -> Exponentials:
        """Some of the functions, ``which [e]``."""
        by_group = {name: getattr(self, name)[:, which] for name in _BY_GROUP}
        return Exponentials(self.origin[which], **by_group)

    @staticmethod
    def joined(some: list[Exponentials]) -> Exponentials:
        """One after the other."""
        most = max(len(own.rate) for own in some)

        def side_by_side(name: str) -> Tensor:
            parts = [getattr(own, name) for own in some]
            padded = [torch.cat([x, x.new_zeros(most - len(x), *x.shape[1:])]) for x in parts]
            return torch.cat(padded, 1)

        origin = torch.cat([own.origin for own in some])
        return Exponentials(origin, **{name: side_by_side(name) for name in _BY_GROUP})

    def _values(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """At ``[N, E, D]``, and what rounding is relative to, the sizes of what is added up and of
        slopes times u: ``[N, E]`` both."""
        t = (u - self.origin).unsqueeze(1)
        bend = (self.square @ t.unsqueeze(-1)).squeeze(-1)
        constant = self.constant.expand(bend.shape[:-1]).unsqueeze(-1)
        parts = torch.cat([constant, self.linear * t, bend * t], -1)
        weight = (self.rate * t).sum(-1, keepdim=True).exp()
        slope = weight * (parts.sum(-1, keepdim=True) * self.rate + self.linear + 2 * bend)
        parts = weight * parts
        size = parts.abs().sum((1, -1)) + (slope.sum(1) * u).abs().sum(-1)
        return parts.sum((1, -1)), size

    @torch.no_grad()
    def agree_with(self, function: Callable[[Tensor], Tensor]) -> bool:
        """Whether they are a function of ``[N, E, D]``, up to rounding, about the origins: as far
        off as exponentials are numbers, those of large covariates too."""
        generator = torch.Generator().manual_seed(0)
        spread = torch.tensor(SCALES, device="cpu").repeat(CHECKS // len(SCALES)).view(-1, 1, 1)
        shape = (CHECKS, *self.origin.shape)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        reach = 1 / self.rate.abs().sum(-1, keepdim=True).amax(0).clamp_min(1)
        u = self.origin + (spread * noise).to(self.origin) * reach
        theirs, (own, size) = function(u), self._values(u)
        bound = OFF * torch.finfo(u.dtype).eps * (1 + size)
        return bool(((own - theirs).abs() <= bound).all())  # of NaN it is not


_BY_GROUP = ("rate", "constant", "linear", "square")


@torch.no_grad()
def find_exponentials(
    program: LocalProgram, leaves: list[tuple[Tensor, Tensor]], origin: Tensor
) -> Exponentials | None:
    """A program's outputs as sums of exponentials times polynomials of degree 2 at most; None where
    one of them is another function.

    Args:
        leaves: of every leaf buffer the numbers at the origin, ``[m]``, and their derivatives by
            u, ``[m, D]``.
        origin: ``[E, D]`` of the outputs.
    """
    dim = origin.shape[1]
    buffers = {k: terms.affine(*leaf) for k, leaf in enumerate(leaves)}
    try:
        for line in program.lines:
            buffers[line.buffer] = _replayed(line, buffers, dim)
            for dead in line.free:
                del buffers[dead]
        found = _grouped(_assembled(program.output, buffers, dim), origin)
    except OtherFunction:
        return None
    finite = [bool(getattr(found, name).isfinite().all()) for name in _BY_GROUP]
    return found if all(finite) else None


def _replayed(line: Line, buffers: dict[int, Tensor], dim: int) -> Tensor:
    """What a line computes, ``[count * width, T, 1 + 2 D]``.

    Raises:
        OtherFunction: it is no such sum.
    """
    reads = [_assembled(read, buffers, dim) for read in line.reads]
    rule, name = line.rule, operation(line)
    if all(map(terms.is_constant, reads)):
        numbers = [x[..., 0, :1].to(read.dtype) for x, read in zip(reads, line.reads, strict=True)]
        found = line.settle(rule.replay(rule.func, rule.static, numbers))
        return terms.constant(found[:, 0], dim)
    if name in COMPARISONS and len(reads) == 1:
        out = _compared(name, rule.static[0], reads[0])
    elif not line.dtype.is_floating_point:
        raise OtherFunction
    elif rule.replay is replay_pointwise:
        out = _pointwise(name, rule.static, reads)
    elif rule.replay is replay_dot:
        out = terms.total(terms.product(*reads))
    elif rule.replay is replay_reduction and name in ("sum", "mean"):
        out = terms.scaled(terms.total(reads[0]), 1 if name == "sum" else 1 / reads[0].shape[1])
    elif rule.replay is replay_choice and all(map(terms.is_constant, reads[1:])):
        out = _chosen(line, *reads)
    else:
        raise OtherFunction
    return out.expand(line.count, *out.shape[1:])


def _compared(name: str, template: tuple, x: Tensor) -> Tensor:
    """A comparison of numbers that are positive at every u with a constant that is not, as checks
    of supports are: what it says does not depend on u."""
    sign = terms.signs(x)
    if bool((sign < 0).any()) or any(a is not SLOT and a > 0 for a in template):
        raise OtherFunction
    return terms.constant(torch.full_like(sign, COMPARISONS[name]), x.shape[-1] // 2)


def _chosen(line: Line, candidates: Tensor, *indices: Tensor) -> Tensor:
    """Of candidates ``[count or 1, k, T, 1 + 2 D]``, by constant indices, of all lines alike or of
    each."""
    positions = torch.arange(candidates.shape[1], device=candidates.device)[None, :, None]
    numbers = [x[..., 0, :1].long() for x in indices]
    at = line.rule.replay(line.rule.func, line.rule.static, [positions, *numbers])[:, 0]
    rows = torch.arange(line.count, device=at.device)
    return candidates.expand(line.count, *candidates.shape[1:])[rows, at.expand(line.count)]


def _pointwise(name: str, static: tuple, reads: list[Tensor]) -> Tensor:
    template, options = static
    given = {key: value for key, value in options if value is not None}
    factor = given.pop("alpha", 1)
    if factor is SLOT or not given.keys() <= HARMLESS:
        raise OtherFunction
    queue, like = iter(reads), reads[0]
    arguments: list[Any] = [next(queue) if a is SLOT else a for a in template]
    if name == "pow":
        return _to_the_power(*arguments, like)
    if any(a is None for a in arguments):  # a clamp without a bound, say
        raise OtherFunction
    found = [_as_terms(a, like) for a in arguments]
    if name in OF_ONE and len(found) == 1:
        return OF_ONE[name](found[0])
    if name in OF_TWO and len(found) == 2:
        return OF_TWO[name](*found)
    if name in SUMS and len(found) == 2:
        signs = SUMS[name]
        shares = (signs[0], signs[1] * factor) if name != "rsub" else (signs[0] * factor, signs[1])
        return terms.plus(*(terms.scaled(x, by) for x, by in zip(found, shares, strict=True)))
    if name == "where" and terms.is_constant(found[0]):
        return torch.where(found[0][..., :1] != 0, *terms.side_by_side(found[1:]))
    raise OtherFunction


def _to_the_power(x: Any, exponent: Any, like: Tensor) -> Tensor:
    if not isinstance(exponent, Tensor):
        return terms.power(x, exponent)
    number = exponent[..., 0, 0]
    if isinstance(x, Tensor) and terms.is_constant(exponent) and bool((number == number[0]).all()):
        return terms.power(x, float(number[0]))
    return terms.exp(terms.product(exponent, terms.log(_as_terms(x, like))))


def _as_terms(a: Any, like: Tensor) -> Tensor:
    """An operand, or a plain number."""
    if isinstance(a, Tensor):
        return a
    number = torch.tensor([a], dtype=like.dtype, device=like.device)
    return terms.constant(number, like.shape[-1] // 2)


def _absolute(x: Tensor) -> Tensor:
    terms.signs(x)  # of numbers of both there is none
    return torch.cat([x[..., :1].abs(), x[..., 1:]], -1)


#: What is compared with numbers that are not positive, and what comes out for a positive one.
COMPARISONS = {"ge": 1.0, "gt": 1.0, "le": 0.0, "lt": 0.0}
OF_ONE = {
    **dict.fromkeys(SAME, lambda x: x),
    "neg": partial(terms.scaled, by=-1),
    "abs": _absolute,
    "square": partial(terms.power, exponent=2),
    "sqrt": partial(terms.power, exponent=0.5),
    "rsqrt": partial(terms.power, exponent=-0.5),
    "reciprocal": partial(terms.power, exponent=-1),
    "exp": terms.exp,
    "log": terms.log,
}
OF_TWO = {
    "mul": terms.product,
    "div": terms.quotient,
    "xlogy": lambda x, y: terms.product(x, terms.log(y)),
}
#: Signs of both operands.
SUMS = {"add": (1, 1), "sub": (1, -1), "rsub": (-1, 1)}


def _assembled(read: Read, buffers: dict[int, Tensor], dim: int) -> Tensor:
    """What a step reads, ``[count or 1, *core, T, 1 + 2 D]``."""
    if not read.gathers:
        return terms.constant(read.constant[..., 0], dim)
    parts = [gather.rows(buffers[gather.buffer]) for gather in read.gathers]
    if read.constant is not None:
        parts.append(terms.constant(read.constant[..., 0].flatten(), dim))
    rows = torch.cat(terms.side_by_side(parts))
    rows = rows if read.order is None else rows.index_select(0, read.order)
    return rows.reshape(*read.shape, *rows.shape[1:])


def _grouped(x: Tensor, origin: Tensor) -> Exponentials:
    """Terms ``[E, T, 1 + 2 D]`` by their rates.

    Raises:
        OtherFunction: a polynomial is of a higher degree than 2.
    """
    order, place = terms.like_ones(terms.parts_of(x)[1])
    c, rate, power = terms.parts_of(x.gather(1, order.unsqueeze(-1).expand_as(x)))
    degree = power.sum(-1)
    if bool((degree > 2).any()):
        raise OtherFunction
    count = int(place.max()) + 1

    def by_rate(value: Tensor, reduce: str = "sum") -> Tensor:
        out = value.new_zeros(len(value), count, *value.shape[2:])
        index = place.view(*place.shape, *(1,) * (value.dim() - 2)).expand_as(value)
        return out.scatter_reduce(1, index, value, reduce, include_self=False).transpose(0, 1)

    # of degree 2 the powers are 2 of one number or 1 of two
    pairs = power.unsqueeze(-1) * power.unsqueeze(-2)
    eye = torch.eye(power.shape[-1], dtype=torch.bool, device=x.device)
    pairs = torch.where(eye, (power == 2).to(c).unsqueeze(-1), 0.5 * pairs)
    linear, square = c * (degree == 1), c * (degree == 2)
    return Exponentials(
        origin,
        by_rate(rate, "amax"),
        by_rate(c * (degree == 0)),
        by_rate(linear.unsqueeze(-1) * power),
        by_rate(square[..., None, None] * pairs),
    )
