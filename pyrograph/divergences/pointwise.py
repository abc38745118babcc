"""The alpha-divergence of two numbers p = e^a and q = e^b, without cancellation.

    d(p, q) = [alpha p + (1 - alpha) q - p^alpha q^(1 - alpha)] / (alpha (1 - alpha))
            = q [expm1(t) - expm1(alpha t) / alpha] / (1 - alpha),        t = a - b,

which tends to q [expm1(t) - t] as alpha -> 0. Since d_alpha(p, q) = d_(1 - alpha)(q, p), only
alpha <= 1/2 is computed, so the divisor 1 - alpha stays away from zero; where t is small the
bracket is summed as a power series.

Source: Minka (2005), eqs (2) to (5).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: alpha this close to 0 or 1 takes the limit.
LIMIT = 1e-8
#: below this |t| max(1, |alpha|) the power series is used, TERMS of it
SERIES, TERMS = 0.02, 9


def oriented(alpha: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``(alpha, p, q)``, or ``(1 - alpha, q, p)`` where alpha > 1/2: the same divergence."""
    swap = alpha > 0.5
    return torch.where(swap, 1 - alpha, alpha), torch.where(swap, q, p), torch.where(swap, p, q)


def is_limit(alpha: Tensor) -> Tensor:
    """Whether ``alpha`` is so close to zero that it takes the limit."""
    return alpha.abs() < LIMIT


def series_coefficient(k: int, alpha: Tensor) -> Tensor:
    """(1 - alpha^(k - 1)) / (1 - alpha) as the sum it is."""
    return sum(alpha**j for j in range(k - 1))


def masked_expm1(log_factor: Tensor, u: Tensor) -> Tensor:
    """exp(log_factor) expm1(u), finite for large u where the product is."""
    small = u.abs() < 1
    near = log_factor.exp() * torch.where(small, u, 0).expm1()
    u = torch.where(small, 1, u)
    far = u.sign() * (log_factor + u.clamp_min(0)).exp() * -(-u.abs()).expm1()
    return torch.where(small, near, far)


def pointwise_divergence(a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    """d(e^a, e^b), elementwise; ``-inf`` stands for zero mass.

    Zeros follow the limit: q / alpha for p = 0 (infinite for alpha <= 0), p / (1 - alpha) for
    q = 0 (infinite for alpha >= 1), and 0 where both vanish.
    """
    alpha, a, b = oriented(alpha, a, b)
    limit = is_limit(alpha)
    divisor = torch.where(limit, 1, alpha)
    both = (a > -math.inf) & (b > -math.inf)
    t = torch.where(both, a - b, 0)
    scaled = alpha * t
    # the largest of p, q and p^alpha q^(1 - alpha), which for alpha < 0 is often the last
    shift = torch.where(both, torch.maximum(torch.maximum(a, b), b + scaled), 0).detach()
    log_q = torch.where(both, b - shift, 0)

    slope = torch.where(limit, log_q.exp() * t, masked_expm1(log_q, scaled) / divisor)
    direct = (masked_expm1(log_q, t) - slope) / (1 - alpha)
    tiny = torch.maximum(t.abs(), scaled.abs()) < SERIES
    near = torch.where(tiny, t, 0)
    series = log_q.exp() * sum(
        near**k * series_coefficient(k, alpha) / math.factorial(k) for k in range(2, TERMS + 2)
    )
    inside = shift.exp() * torch.where(tiny, series, direct)

    only_p = a.exp() / (1 - alpha)
    only_q = torch.where((alpha > 0) & ~limit, b.exp() / divisor, math.inf)
    only_q = torch.where(b > -math.inf, only_q, 0)
    outside = torch.where(a > -math.inf, only_p, only_q)
    return torch.where(both, inside, outside)


def log_product(a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    """log(p^alpha q^(1 - alpha)) with 0^0 = 1, except that it vanishes where both p, q do."""
    p, q = a > -math.inf, b > -math.inf
    inside = alpha * torch.where(p, a, 0) + (1 - alpha) * torch.where(q, b, 0)
    without_p = torch.where(alpha > 0, -math.inf, torch.where(alpha < 0, math.inf, inside))
    without_q = torch.where(alpha < 1, -math.inf, torch.where(alpha > 1, math.inf, inside))
    value = torch.where(p, inside, without_p)
    value = torch.where(q, value, without_q)
    return torch.where(p | q, value, -math.inf)


def gaussian_gap(e: Tensor, alpha: Tensor) -> Tensor:
    """[log1p(alpha e) / alpha - log1p(e)] / (1 - alpha) for e > -1 and alpha <= 1/2; >= 0.

    ``e - log1p(e)`` as alpha -> 0, infinite where 1 + alpha e <= 0.
    """
    limit = is_limit(alpha)
    finite = 1 + alpha * e > 0
    e = torch.where(finite, e, 0)
    slope = torch.where(limit, e, (alpha * e).log1p() / torch.where(limit, 1, alpha))
    direct = (slope - e.log1p()) / (1 - alpha)
    tiny = torch.maximum(e.abs(), (alpha * e).abs()) < SERIES
    near = torch.where(tiny, e, 0)
    series = sum((-near) ** k * series_coefficient(k, alpha) / k for k in range(2, TERMS + 2))
    return torch.where(finite, torch.where(tiny, series, direct), math.inf)
