"""Variational message passing: alpha = 0, mean field.

    log m_{a -> i}(x_i) = E_{q \\ i} log f_a(x),    q_i = prod_a m_{a -> i}

Nodes of one colour of the Markov graph at a time, which is coordinate ascent: the lower bound

    log Z >= E_q log p - E_q log q

never falls. A factor of continuous nodes that is not quadratic sends the Gaussian of its expected
slope and curvature (a natural gradient step); its bound holds up to the error of quadrature, of
which polynomials have none. Runs leave fixed points at which the bound has no maximum
(:mod:`.stability`).

Source: Winn & Bishop (2005); Minka (2005), section 4; Khan & Rue (2023) for the Gaussian step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pyrograph.infer.message_passing.bp import refuse_alpha
from pyrograph.infer.message_passing.engine import MessagePassing


class VMP(MessagePassing):
    """Mean field on discrete, continuous and mixed programs without zero potentials.

    Args:
        model: a Pyro program.
        schedule: default ``"sequential"``, which never lowers the bound.
        options: see :class:`MessagePassing`, but for ``alpha``.
    """

    fixes: ClassVar[tuple[str, ...]] = ("alpha",)

    def __init__(self, model: Callable, *, schedule: str = "sequential", **options: Any):
        refuse_alpha(type(self).__name__, options)
        super().__init__(model, alpha=0.0, schedule=schedule, **options)
