"""Expectations of sums of polynomials times exponentials, under normal densities.

With u ~ N(m, S) and P(u) = c + b . u + u' Q u, an exponential moves the density it is under,

    E exp(a . u) P(u) = w p,      w = exp(a . m + a' S a / 2),      p = P(m + S a) + tr Q S

and with g = b + 2 Q (m + S a) the expected derivatives are those of the same by m,

    E f' = sum w (p a + g),      E f'' = sum w (p a a' + a g' + g a' + 2 Q)

Source: completing the square; Price (1958) for the derivatives.
"""

from __future__ import annotations

from torch import Tensor

from pyrograph.beliefs.gaussian import apply
from pyrograph.trace.exponentials import Exponentials


def expected_exponentials(
    functions: Exponentials, mean: Tensor, covariance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """E f ``[*batch, E]``, E f' ``[*batch, E, D]`` and E f'' ``[*batch, E, D, D]``.

    Args:
        mean, covariance: ``[*batch, E, D]`` and ``[*batch, E, D, D]`` of what functions are of.
    """
    extra = mean.dim() - 2
    c, a, b, q = (
        x.view(len(x), *(1,) * extra, *x.shape[1:])
        for x in (functions.constant, functions.rate, functions.linear, functions.square)
    )
    mean = mean - functions.origin
    pull = apply(covariance, a)  # [G, *batch, E, D]
    weight = (a * (mean + 0.5 * pull)).sum(-1).exp()
    there = mean + pull
    bent = apply(q, there)
    slope = b + 2 * bent
    value = c + ((b + bent) * there).sum(-1) + (q * covariance).sum((-1, -2))
    across = a.unsqueeze(-1) * slope.unsqueeze(-2)
    bend = value[..., None, None] * a.unsqueeze(-1) * a.unsqueeze(-2) + across + across.mT + 2 * q
    first = value.unsqueeze(-1) * a + slope
    return (
        (weight * value).sum(0),
        (weight.unsqueeze(-1) * first).sum(0),
        (weight[..., None, None] * bend).sum(0),
    )
