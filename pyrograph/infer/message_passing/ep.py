"""Expectation propagation and its powers: tilted moments, projected on the family of the node.

    q_i' = proj_i [ f_a^alpha prod_j q_j / m_{a -> j}^alpha ],   m <- m (q_i' / q_i)^(1 / alpha)

EP is alpha = 1; it equals belief propagation where the family holds every marginal (discrete and
Gaussian factors). Smaller powers are steadier and lean towards single modes.

Source: Minka (2001); Minka (2004), "Power EP"; Minka (2005), sections 5 and 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pyrograph.infer.message_passing.bp import refuse_alpha
from pyrograph.infer.message_passing.engine import MessagePassing


class EP(MessagePassing):
    """Expectation propagation for discrete, continuous and mixed programs.

    Args:
        model: a Pyro program.
        options: see :class:`MessagePassing`, but for ``alpha``.
    """

    fixes: ClassVar[tuple[str, ...]] = ("alpha",)

    def __init__(self, model: Callable, **options: Any):
        refuse_alpha(type(self).__name__, options)
        super().__init__(model, alpha=1.0, **options)


class PowerEP(MessagePassing):
    """Expectation propagation with powers of the factors.

    Args:
        model: a Pyro program.
        alpha: see :class:`MessagePassing`; default 0.5.
        options: see :class:`MessagePassing`.
    """

    def __init__(self, model: Callable, *, alpha: Any = 0.5, **options: Any):
        super().__init__(model, alpha=alpha, **options)
