"""Numbers that are sums of polynomials times exponentials of u, and what operations do with them.

    x(u) = sum_t c_t u^p_t exp(a_t . u)

A tensor ``[..., T, 1 + 2 D]`` holds the terms of every number: coefficient c, rate a, power p.
Sums and products are of that kind again, exponentials of linear functions, and powers, quotients
and logarithms of single exponentials; whatever else is asked for is none.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Sums of more terms than this are not worth a closed form.
MAX_TERMS = 32
#: Coefficients that cancel but for so many units of rounding are zero.
ROUNDING = 8
#: Highest power of a sum that is multiplied out.
MAX_POWER = 4


class OtherFunction(Exception):
    """A number is no sum of few polynomials times exponentials."""


# ---------------------------------------------------------------------- what they are
def constant(c: Tensor, dim: int) -> Tensor:
    """Numbers ``[...]``."""
    return torch.nn.functional.pad(c.double()[..., None, None], (0, 2 * dim))


def affine(c: Tensor, slope: Tensor) -> Tensor:
    """``c [...] + slope [..., D] . u``."""
    dim = slope.shape[-1]
    powers = torch.eye(dim, dtype=torch.float64, device=slope.device).expand(*slope.shape, dim)
    parts = torch.cat([slope.double().unsqueeze(-1), torch.zeros_like(powers), powers], -1)
    return _added_up(torch.cat([constant(c, dim), parts], -2))


def parts_of(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """c ``[..., T]``, a and p ``[..., T, D]``."""
    dim = x.shape[-1] // 2
    return x[..., 0], x[..., 1 : 1 + dim], x[..., 1 + dim :]


def is_constant(x: Tensor) -> bool:
    return x.shape[-2] == 1 and not bool(x[..., 1:].any())


def side_by_side(x: list[Tensor]) -> list[Tensor]:
    """With as many terms each."""
    most = max(own.shape[-2] for own in x)
    return [torch.nn.functional.pad(own, (0, 0, 0, most - own.shape[-2])) for own in x]


def like_ones(kind: Tensor) -> tuple[Tensor, Tensor]:
    """An order ``[..., T]`` in which terms of one kind ``[..., T, k]`` follow each other, and the
    number of each one's kind in it."""
    # one number for each kind; should two kinds share it, their terms only stay apart
    weight = torch.arange(2.0, 2 + kind.shape[-1], dtype=kind.dtype, device=kind.device).sqrt()
    order = (kind * weight).sum(-1).argsort(-1)
    kind = kind.gather(-2, order.unsqueeze(-1).expand_as(kind))
    is_new = torch.zeros_like(order, dtype=torch.bool)
    is_new[..., 1:] = (kind[..., 1:, :] != kind[..., :-1, :]).any(-1)
    return order, is_new.cumsum(-1)


def _added_up(x: Tensor) -> Tensor:
    """Like terms of every number as one, without those that are zero for all numbers."""
    order, place = like_ones(x[..., 1:])
    x = x.gather(-2, order.unsqueeze(-1).expand_as(x))
    c = x[..., 0]
    total = torch.zeros_like(c).scatter_add(-1, place, c)
    size = torch.zeros_like(c).scatter_add(-1, place, c.abs())
    is_zero = total.abs() <= ROUNDING * torch.finfo(c.dtype).eps * size
    x = torch.zeros_like(x).scatter(-2, place.unsqueeze(-1).expand_as(x), x)
    x = torch.cat([total.unsqueeze(-1), x[..., 1:]], -1).masked_fill(is_zero.unsqueeze(-1), 0)
    most = max(1, int((~is_zero).sum(-1).max()))
    if most > MAX_TERMS:
        raise OtherFunction
    order = is_zero.long().argsort(dim=-1, stable=True)[..., :most].unsqueeze(-1)
    return x.gather(-2, order.expand(*order.shape[:-1], x.shape[-1]))


# ---------------------------------------------------------------------- operations
def plus(*x: Tensor) -> Tensor:
    """The sum."""
    lead = torch.broadcast_shapes(*(own.shape[:-2] for own in x))
    return _added_up(torch.cat([own.expand(*lead, *own.shape[-2:]) for own in x], -2))


def scaled(x: Tensor, by: float) -> Tensor:
    """Times a number."""
    return torch.cat([by * x[..., :1], x[..., 1:]], -1)


def product(x: Tensor, y: Tensor) -> Tensor:
    """x y."""
    x, y = x.unsqueeze(-2), y.unsqueeze(-3)
    both = torch.cat([x[..., :1] * y[..., :1], x[..., 1:] + y[..., 1:]], -1)
    return _added_up(both.flatten(-3, -2))


def total(x: Tensor) -> Tensor:
    """The sum over axis 1, two halves at a time."""
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        both = plus(x[:, :half], x[:, half : 2 * half])
        x = torch.cat(side_by_side([both, x[:, 2 * half :]]), 1)
    return x[:, 0]


def power(x: Tensor, exponent: float) -> Tensor:
    """x^exponent."""
    if float(exponent).is_integer() and 0 <= exponent <= MAX_POWER:
        out = constant(torch.ones_like(x[..., 0, 0]), x.shape[-1] // 2)
        for _ in range(int(exponent)):
            out = product(out, x)
        return out
    c, rate = _single(x)
    return torch.cat([c**exponent, exponent * rate, torch.zeros_like(rate)], -1)


def quotient(x: Tensor, y: Tensor) -> Tensor:
    """x / y."""
    if is_constant(y):
        return product(x, torch.cat([1 / y[..., :1], y[..., 1:]], -1))
    return product(x, power(y, -1))


def log(x: Tensor) -> Tensor:
    """Its logarithm."""
    c, rate = _single(x)
    return affine(c[..., 0, 0].log(), rate[..., 0, :])


def exp(x: Tensor) -> Tensor:
    """Its exponential."""
    c, rate, powers = parts_of(x)
    degree = powers.sum(-1)
    if bool(rate.any()) or bool((degree > 1).any()):
        raise OtherFunction
    slope = (c.unsqueeze(-1) * powers).sum(-2)
    free = (c * (degree == 0)).sum(-1)
    out = torch.cat([free.exp().unsqueeze(-1), slope, torch.zeros_like(slope)], -1)
    return out.unsqueeze(-2)


def signs(x: Tensor) -> Tensor:
    """1 or -1, ``[...]``, of numbers that are positive, or negative, at every u.

    Raises:
        OtherFunction: of some number it is not known.
    """
    c, _, powers = parts_of(x)
    sign = c.sum(-1).sign()
    is_sure = (c * sign.unsqueeze(-1) >= 0).all(-1) & (sign != 0)
    if bool(powers.any()) or not bool(is_sure.all()):
        raise OtherFunction
    return sign


def _single(x: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficient ``[..., 1, 1]`` and rate ``[..., 1, D]`` of single positive exponentials."""
    c, rate, powers = parts_of(x)
    if x.shape[-2] > 1 or bool(powers.any()) or not bool((c > 0).all()):
        raise OtherFunction
    return c.unsqueeze(-1), rate
