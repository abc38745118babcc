"""Sums of kernels: ``0.4 * RBF() + 0.4 * Own(RBF()) + 0.2 * Linear()``.

    k_i = sum_p w_p k_p,        w_p > 0

A sum of positive definite kernels is positive definite, and strictly so if one term is, so a
discrepancy of zero still means that every conditional is matched (Wang, Zeng & Liu 2018,
Theorem 3). Directions and discrepancies are linear in the kernel: they add up.

A term sees the scope that the locality gives a node (its blanket); ``Own(kernel)`` sees the
node's own columns alone. On its own columns a kernel keeps its repulsion however large the
blanket, which holds marginal variances up; on the blanket it sees the dependence between nodes,
which the first cannot.
"""

from __future__ import annotations

import math

from pyrograph.checks import real_number
from pyrograph.errors import OptionError
from pyrograph.kernels.protocol import Kernel


class Summable:
    """Kernels that can be weighted with ``*`` and added with ``+``."""

    def __mul__(self, weight: float) -> Sum:
        if math.isnan(real_number(weight)):
            raise OptionError(
                f"{self!r} times {weight!r}: kernels are weighted by numbers, which must be "
                "above 0, and added, as in 0.7 * RBF() + 0.3 * Linear()"
            )
        return Sum((weight, self))

    __rmul__ = __mul__

    def __add__(self, other: Kernel | Summable) -> Sum:
        return Sum((1.0, self), (1.0, other))

    def __radd__(self, other: int) -> Sum:
        """``sum([a, b])`` starts from 0."""
        return Sum((1.0, self)) if other == 0 else self + other


class Own(Summable):
    """A kernel on the node's own columns, whatever the locality.

    Args:
        kernel: a kernel, not a sum.

    Raises:
        OptionError: it is none.
    """

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        _check(kernel)

    def __repr__(self) -> str:
        return f"Own({self.kernel!r})"


class Sum(Summable):
    """A weighted sum of kernels.

    Args:
        terms: pairs of weight and kernel; a kernel may be a sum.

    Raises:
        OptionError: there are no terms, one is no such pair, a weight is not above 0 and finite,
            or a kernel is none.
    """

    def __init__(self, *terms: tuple[float, Kernel | Summable]):
        if not terms:
            raise OptionError("Sum() has no terms: give pairs, as in Sum((0.5, RBF()))")
        for term in terms:
            is_pair = isinstance(term, tuple) and len(term) == 2
            if not is_pair or math.isnan(real_number(term[0])):
                raise OptionError(
                    f"{term!r} is no pair of a weight and a kernel, as in Sum((0.5, RBF()))"
                )
        self.terms = [
            (real_number(w) * v, kernel) for w, term in terms for v, kernel in terms_of(term)
        ]
        for weight, kernel in self.terms:
            if not 0 < weight < math.inf:
                raise OptionError(f"weight {weight!r} of {kernel!r} must be above 0 and finite")

    def __repr__(self) -> str:
        return " + ".join(f"{weight:g} * {kernel!r}" for weight, kernel in self.terms)


def terms_of(kernel: Kernel | Summable) -> list[tuple[float, Kernel | Own]]:
    """Weights and terms of a sum; a kernel is a sum of one.

    Raises:
        OptionError: it is no kernel.
    """
    if isinstance(kernel, Sum):
        return kernel.terms
    if not isinstance(kernel, Own):
        _check(kernel)
    return [(1.0, kernel)]


def _check(kernel: Kernel) -> None:
    known = hasattr(kernel, "stein") and hasattr(kernel, "bandwidths")
    if isinstance(kernel, type) or not known:
        raise OptionError(
            f"kernel={kernel!r} is not a kernel such as pg.kernels.RBF(), nor a sum such as "
            "0.5 * RBF() + 0.5 * Own(RBF())"
        )
