"""Fractional belief propagation: powers of the factors, no projection.

    m_{a -> i}(x_i)^alpha = sum_{x \\ i} f_a(x)^alpha prod_{j != i} q_j(x_j) / m_{a -> j}(x_j)^alpha

A stationary point of the fractional Bethe free energy, whose entropies of factors weigh 1 / alpha.

Source: Wiegerinck & Heskes (2003); Minka (2005), section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyrograph.infer.message_passing.bp import BP
from pyrograph.infer.message_passing.engine import MessagePassing


class FractionalBP(BP):
    """Belief propagation with powers of the factors.

    Args:
        model: a Pyro program whose sites are finite discrete, or continuous and met by Gaussian
            factors alone.
        alpha: see :class:`MessagePassing`; default 0.5.
        options: see :class:`MessagePassing`.
    """

    def __init__(self, model: Callable, *, alpha: Any = 0.5, **options: Any):
        MessagePassing.__init__(self, model, alpha=alpha, **options)
