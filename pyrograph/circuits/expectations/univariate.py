"""Kernels of one variable, which kernels of points are made of.

A kernel is a matrix k(x, y) over the states of a discrete variable, or a function of real numbers
with an expectation under Gaussians in closed form.

Source: Li, Zeng, Vergari & Van den Broeck (2021), section 4, the leaves of kernel circuits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.errors import InvalidCircuit, ShapeMismatch, UnsupportedFactor

#: Numbers of kernel matrices ``[c, c]`` over states that are held at once, at most: half a GB.
MOST_NUMBERS = 2**26


class Univariate(ABC):
    """A kernel of one variable."""

    @abstractmethod
    def matrix(self, card: int) -> Tensor:
        """``[card, card]`` float64, over the states of a discrete variable."""

    def gaussian(self, loc: Tensor, other: Tensor, variance: Tensor) -> Tensor:
        """E k(x, y) for independent Gaussian x and y of these means and sum of variances.

        Raises:
            UnsupportedFactor: the kernel has no closed form there.
        """
        raise UnsupportedFactor(
            f"{type(self).__name__} has no expectation under Gaussian inputs in closed form; "
            "use RBF(bandwidth) for real variables"
        )

    def between(self, x: Tensor, y: Tensor, card: int | None) -> Tensor:
        """k(x, y), elementwise; of codes if ``card`` is given, else of real numbers."""
        if card is None:
            return self.gaussian(x, y, torch.zeros_like(x))
        return self.matrix(card).to(x.device)[x.long(), y.long()]


def _as(like: Tensor, number: float | Tensor) -> Tensor:
    return torch.as_tensor(number, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class Mismatch(Univariate):
    """exp(-weight [x != y])."""

    weight: float | Tensor

    def matrix(self, card: int) -> Tensor:
        equal = torch.eye(card, dtype=torch.float64, device="cpu")
        return equal + (1 - equal) * _as(equal, self.weight).neg().exp()


@dataclass(frozen=True)
class SquaredExponential(Univariate):
    """exp(-(x - y)^2 / bandwidth), of codes or of real numbers."""

    bandwidth: float | Tensor

    def matrix(self, card: int) -> Tensor:
        code = torch.arange(card, dtype=torch.float64, device="cpu")
        return torch.exp(-((code.unsqueeze(1) - code) ** 2) / _as(code, self.bandwidth))

    def gaussian(self, loc: Tensor, other: Tensor, variance: Tensor) -> Tensor:
        # x - y ~ N(d, v): E exp(-(x - y)^2 / h) = sqrt(h / (h + 2 v)) exp(-d^2 / (h + 2 v))
        bandwidth = _as(variance, self.bandwidth)
        width = bandwidth + 2 * variance
        return (bandwidth / width).sqrt() * torch.exp(-((loc - other) ** 2) / width)


@dataclass(frozen=True)
class Equal(Univariate):
    """[x = y]."""

    def matrix(self, card: int) -> Tensor:
        return torch.eye(card, dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class Ones(Univariate):
    """1: the variable does not count."""

    def matrix(self, card: int) -> Tensor:
        return torch.ones(card, card, dtype=torch.float64, device="cpu")

    def gaussian(self, loc: Tensor, other: Tensor, variance: Tensor) -> Tensor:
        return torch.ones_like(loc)


@dataclass(frozen=True, eq=False)
class Table(Univariate):
    """Any symmetric, positive semidefinite values, ``[card, card]``.

    Raises:
        InvalidCircuit: they are not that, up to rounding.
    """

    values: Tensor

    def __post_init__(self) -> None:
        values = self.values.detach()
        if values.dim() != 2 or values.shape[0] != values.shape[1]:
            raise InvalidCircuit(
                f"a kernel table has shape {tuple(values.shape)}; it is a matrix [c, c]"
            )
        if not bool(values.isfinite().all()):
            raise InvalidCircuit("a kernel table has a value that is NaN or infinite")
        values, slack = values.to(torch.float64), _rounding(values)
        if bool(((values - values.t()).abs() > slack).any()):
            raise InvalidCircuit(
                "a kernel table is not symmetric, k(x, y) = k(y, x): write (k + k.t()) / 2"
            )
        eigenvalues = torch.linalg.eigvalsh(values)
        if bool((eigenvalues < -slack).any()):
            raise InvalidCircuit(
                f"a kernel table has the eigenvalue {float(eigenvalues.min()):.3g}: a kernel is "
                "positive semidefinite"
            )

    def matrix(self, card: int) -> Tensor:
        if self.values.shape != (card, card):
            raise ShapeMismatch(
                f"a kernel table has shape {tuple(self.values.shape)}; its variable has {card} "
                "states"
            )
        return self.values.to(torch.float64)


@dataclass(frozen=True)
class Both(Univariate):
    """The product of two kernels of one variable."""

    left: Univariate
    right: Univariate

    def matrix(self, card: int) -> Tensor:
        return self.left.matrix(card) * self.right.matrix(card)

    def gaussian(self, loc: Tensor, other: Tensor, variance: Tensor) -> Tensor:
        kernels = [k for k in self.factors() if not isinstance(k, Ones)]
        if not kernels:
            return Ones().gaussian(loc, other, variance)
        if all(isinstance(k, SquaredExponential) for k in kernels):
            inverse = sum(1 / k.bandwidth for k in kernels)
            return SquaredExponential(1 / inverse).gaussian(loc, other, variance)
        return super().gaussian(loc, other, variance)

    def factors(self) -> list[Univariate]:
        """The kernels that are multiplied, none of them a product."""
        sides = (self.left, self.right)
        return [f for k in sides for f in (k.factors() if isinstance(k, Both) else [k])]


def check_matrices(cards: Sequence[int | None], which: Sequence[int], num_kernels: int = 1) -> None:
    """Raise before kernel matrices ``[c, c]`` of some variables, all at once, would not fit.

    Raises:
        UnsupportedFactor: naming the variable of most states.
    """
    numbers = num_kernels * sum((cards[i] or 0) ** 2 for i in which)
    if numbers > MOST_NUMBERS:
        widest = max(which, key=lambda i: cards[i] or 0)
        raise UnsupportedFactor(
            f"variable {widest} has {cards[widest]:,} states: kernels over the states take "
            f"{numbers:,} numbers, {8 * numbers / 1e9:.2g} GB, over the budget of "
            f"{MOST_NUMBERS:,}. Bin its values, or give evidence on it, or sum it out in the model"
        )


def _rounding(values: Tensor) -> Tensor:
    """What rounding may have done to a matrix that was computed, generously: ``[]``."""
    dtype = values.dtype if values.is_floating_point() else torch.float64
    return torch.finfo(dtype).eps ** 0.5 * values.double().norm()
