"""What the gradient promises, in the scale that beliefs have by themselves.

    gain = g' I^-1 g / 2,        I the Fisher information of a component, times its weight

number by number: a mean is measured in its component's standard deviations, a width and a
correlation by their logarithms, probabilities by their size. Near an optimum it is about what is
left to climb where nodes are independent; it sees no curvature that makes several numbers move
together, which the objective's own changes tell of.

Source: Amari (1998), "Natural gradient works efficiently in learning".
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.qbethe.components import Components


@torch.no_grad()
def natural_gain(mixture: Components) -> Tensor:
    """``[B]``, from the gradients that parameters hold; 0 of those without."""
    tiny = torch.finfo(mixture.weights.dtype).tiny  # what underflows has no gradient either
    weights = mixture.weights.clamp_min(tiny)
    found = torch.zeros_like(weights[:, 0])
    for name, value in mixture.parameters.items():
        if value.grad is None:
            continue
        square = value.grad.square()
        if name == "weights":
            found = found + (square / weights).sum(1)
        else:
            gains = (square / _information(mixture, name, value)).flatten(2).sum(2)
            found = found + (gains / weights).sum(1)
    return 0.5 * found


def _information(mixture: Components, name: str, value: Tensor) -> Tensor | float:
    """Of numbers ``[B, L, ...]`` of a component."""
    part, k = name.rsplit("_", 1)
    if part == "mean":
        return (mixture.kinds[int(k)].unit / mixture.scales[int(k)]).square()
    if part == "log_scale":
        return 2.0
    if part == "logits":
        return mixture.log_probs[int(k)].exp().clamp_min(torch.finfo(value.dtype).tiny)
    square = value.square()  # of t = r / sqrt(1 - r^2), r a correlation
    return (1 + 2 * square) / (1 + square).square()
