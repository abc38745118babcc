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
from pyrograph.trace.forms.exponentials import Exponentials


def expected_values(functions: Exponentials, mean: Tensor, covariance: Tensor) -> Tensor:
    """E f ``[*batch, E]``; see :func:`expected_exponentials`."""
    weight, value, _ = _moved(functions, mean, covariance)
    return (weight * value).sum(0)


def expected_exponentials(
    functions: Exponentials, mean: Tensor, covariance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """E f ``[*batch, E]``, E f' ``[*batch, E, D]`` and E f'' ``[*batch, E, D, D]``.

    Args:
        mean, covariance: ``[*batch, E, D]`` and ``[*batch, E, D, D]`` of what functions are of.
    """
    weight, value, slope = _moved(functions, mean, covariance)
    a, q = (_over_batch(x, mean) for x in (functions.rate, functions.square))
    across = a.unsqueeze(-1) * slope.unsqueeze(-2)
    bend = value[..., None, None] * a.unsqueeze(-1) * a.unsqueeze(-2) + across + across.mT + 2 * q
    first = value.unsqueeze(-1) * a + slope
    return (
        (weight * value).sum(0),
        (weight.unsqueeze(-1) * first).sum(0),
        (weight[..., None, None] * bend).sum(0),
    )


def _moved(
    functions: Exponentials, mean: Tensor, covariance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """w ``[G, *batch, E]``, p, and g ``[G, *batch, E, D]`` of every term."""
    parts = functions.constant, functions.rate, functions.linear, functions.square
    c, a, b, q = (_over_batch(x, mean) for x in parts)
    mean = mean - functions.origin
    pull = apply(covariance, a)
    weight = (a * (mean + 0.5 * pull)).sum(-1).exp()
    there = mean + pull
    bent = apply(q, there)
    value = c + ((b + bent) * there).sum(-1) + (q * covariance).sum((-1, -2))
    return weight, value, b + 2 * bent


def _over_batch(x: Tensor, mean: Tensor) -> Tensor:
    """A parameter ``[G, E, ...]`` of the terms, against every row of a batch of means."""
    return x.view(len(x), *(1,) * (mean.dim() - 2), *x.shape[1:])
