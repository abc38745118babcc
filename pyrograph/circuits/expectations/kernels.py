"""Kernels whose expectation under circuits is exact: products and sums of univariate kernels.

    Hamming:  k(x, y) = exp(-sum_i w_i [x_i != y_i])
    RBF:      k(x, y) = exp(-||x - y||^2 / h)
    Delta:    k(x, y) = [x = y]

All three are products over variables, and a product of univariate kernels decomposes along any
vtree: it is compatible with every circuit. Kernels add and multiply (``k + 2.0 * l``, ``k * l``);
other shapes are written as a :class:`KernelCircuit`.

Source: Li, Zeng, Vergari & Van den Broeck (2021), definition 3.2 and section 4.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrograph.checks import real_number
from pyrograph.circuits.expectations.univariate import (
    Both,
    Equal,
    Mismatch,
    SquaredExponential,
    Table,
    Univariate,
    check_matrices,
)
from pyrograph.circuits.structure.leaves import Domain
from pyrograph.circuits.structure.nodes import read_nodes
from pyrograph.circuits.structure.properties import not_decomposable, not_smooth
from pyrograph.circuits.structure.units import INPUT, PRODUCT, Units, describe, variables
from pyrograph.errors import InvalidCircuit, OptionError, ShapeMismatch


class Kernel(ABC):
    """A kernel of all variables: a weighted sum of products of univariate kernels."""

    @abstractmethod
    def terms(self, num_variables: int) -> list[tuple[float, list[Univariate]]]:
        """Weights, and one univariate kernel per variable."""

    def units(self, num_variables: int) -> Units | None:
        """The structure of a kernel that brings its own; None of a sum of products."""
        return None

    def __add__(self, other: Kernel) -> Kernel:
        if not isinstance(other, Kernel):
            return NotImplemented
        return SumOfKernels(((1.0, self), (1.0, other)))

    def __mul__(self, other: Kernel | float) -> Kernel:
        if isinstance(other, Kernel):
            return ProductOfKernels(self, other)
        # text and lists, too, may be meant for a weight: Python would speak of repeating them
        if not isinstance(other, Number | Tensor | np.ndarray | np.generic | Sequence):
            return NotImplemented
        weight = real_number(other)
        if not 0 <= weight < math.inf:
            raise OptionError(
                f"{other!r} times a kernel: sums of kernels have weights, numbers of at least 0"
            )
        return SumOfKernels(((weight, self),))

    __rmul__ = __mul__

    def tables(self, cards: Sequence[int]) -> list[tuple[float, list[Tensor]]]:
        """Weights and, per term, one ``[c, c]`` float64 matrix per discrete variable.

        Raises:
            UnsupportedFactor: they would not fit, see :func:`check_matrices`.
        """
        terms = self.terms(len(cards))
        check_matrices(cards, range(len(cards)), len(terms))
        return [
            (weight, [k.matrix(card) for k, card in zip(factors, cards, strict=True)])
            for weight, factors in terms
        ]

    def gram(self, x: Tensor, y: Tensor, cards: Sequence[int | None]) -> Tensor:
        """k(x, y) of all pairs of points.

        Args:
            x, y: ``[n, D]`` and ``[m, D]``, codes or real numbers.
            cards: numbers of states; None for real variables.

        Returns:
            ``[n, m]`` float64.

        Raises:
            ShapeMismatch: other columns than ``cards``.
            OptionError: a value is missing, or no state of its variable.
            UnsupportedFactor: a variable has too many states, see :func:`check_matrices`.
        """
        x, y = (_complete(points, cards, name) for points, name in ((x, "x"), (y, "y")))
        for i in range(len(cards)):
            check_matrices(cards, [i])
        total = torch.zeros(len(x), len(y), dtype=torch.float64, device=x.device)
        for weight, factors in self.terms(len(cards)):
            term = torch.full_like(total, weight)
            for i, (kernel, card) in enumerate(zip(factors, cards, strict=True)):
                own, other = (p[:, i] if card is None else p[:, i].long() for p in (x, y))
                term *= kernel.between(*torch.broadcast_tensors(own[:, None], other[None]), card)
            total += term
        return total


@dataclass(frozen=True, eq=False)
class Hamming(Kernel):
    """exp(-sum_i w_i [x_i != y_i]), the exponentiated Hamming distance.

    Args:
        weight: w, one number or one per variable; default 1/D.

    Raises:
        OptionError: a weight is no number, negative or not finite.
    """

    weight: float | Sequence[float] | Tensor | None = None

    def __post_init__(self) -> None:
        self._weights(1)

    def _weights(self, num_variables: int) -> Tensor:
        """One number, or one of each variable."""
        weight = 1 / max(num_variables, 1) if self.weight is None else self.weight
        try:
            device = weight.device if isinstance(weight, Tensor) else "cpu"
            weights = torch.as_tensor(weight, dtype=torch.float64, device=device)
        except (TypeError, ValueError, RuntimeError) as error:  # text, None, a table of text
            raise OptionError(
                f"Hamming(weight={weight!r}): one number or one a variable"
            ) from error
        if not bool((weights.detach().isfinite() & (weights.detach() >= 0)).all()):
            raise OptionError(
                f"Hamming(weight={self.weight!r}): weights are finite and not negative"
            )
        return weights

    def terms(self, num_variables: int) -> list[tuple[float, list[Univariate]]]:
        weights = self._weights(num_variables)
        if weights.dim() and weights.shape != (num_variables,):
            raise ShapeMismatch(
                f"Hamming has weights of shape {tuple(weights.shape)} for {num_variables} variables"
            )
        return [(1.0, [Mismatch(w) for w in weights.expand(num_variables).unbind()])]


@dataclass(frozen=True)
class RBF(Kernel):
    """exp(-||x - y||^2 / bandwidth), on codes of discrete and values of real variables.

    scikit-learn's ``gamma`` is 1 / bandwidth.
    """

    bandwidth: float | Tensor

    def __post_init__(self) -> None:
        try:
            is_positive = bool(0 < self.bandwidth < math.inf)
        except (TypeError, ValueError, RuntimeError):  # text, None, several numbers
            is_positive = False
        if not is_positive:
            raise OptionError(
                f"RBF(bandwidth={self.bandwidth!r}): the bandwidth is a positive number"
            )

    def terms(self, num_variables: int) -> list[tuple[float, list[Univariate]]]:
        return [(1.0, [SquaredExponential(self.bandwidth)] * num_variables)]


@dataclass(frozen=True)
class Delta(Kernel):
    """[x = y], for discrete variables: E k(x, x') is the overlap sum_x p(x) q(x)."""

    def terms(self, num_variables: int) -> list[tuple[float, list[Univariate]]]:
        return [(1.0, [Equal()] * num_variables)]


@dataclass(frozen=True, eq=False)
class SumOfKernels(Kernel):
    """sum_j w_j k_j."""

    parts: tuple[tuple[float, Kernel], ...]

    def terms(self, num_variables: int) -> list[tuple[float, list[Univariate]]]:
        return [
            (weight * inner, factors)
            for weight, kernel in self.parts
            for inner, factors in kernel.terms(num_variables)
        ]


@dataclass(frozen=True, eq=False)
class ProductOfKernels(Kernel):
    """k(x, y) l(x, y)."""

    left: Kernel
    right: Kernel

    def terms(self, num_variables: int) -> list[tuple[float, list[Univariate]]]:
        return [
            (a * b, [Both(k, m) for k, m in zip(left, right, strict=True)])
            for a, left in self.left.terms(num_variables)
            for b, right in self.right.terms(num_variables)
        ]


@dataclass(frozen=True, eq=False)
class KernelCircuit(Kernel):
    """A kernel given as a circuit of univariate kernels.

    Args:
        nodes: in topological order, root last: ``{"type": "input", "var": i, "kernel": kernel}``
            with :class:`Hamming`, :class:`RBF` or :class:`Delta` of one variable, or a positive
            semidefinite matrix ``[c, c]``; ``{"type": "product", "children": [...]}``;
            ``{"type": "sum", "children": [...], "weights": [...]}``.

    A circuit that splits the variables like the other circuits (any nesting of sums inside
    products) is evaluated as it stands; its expansion into ``terms`` is for points.
    """

    nodes: Sequence[Mapping[str, Any]]

    @cached_property
    def _read(self) -> tuple[Units, list[float], list[int]]:
        """:func:`read_nodes`, kept, as caches know a structure by its identity."""
        return read_nodes(self.nodes)

    def units(self, num_variables: int) -> Units:
        units = self._read[0]
        missing = set(range(num_variables)) ^ set(variables(units.scopes[-1]))
        if missing:
            raise ShapeMismatch(
                f"the kernel circuit reads the variables {describe(units.scopes[-1])}; the "
                f"circuits have 0 .. {num_variables - 1}"
            )
        problem = not_smooth(units) or not_decomposable(units)
        if problem:
            raise InvalidCircuit(f"a kernel circuit is smooth and decomposable: {problem}")
        return units

    def numbers(self) -> tuple[list[Univariate], list[float]]:
        """Univariate kernels of the inputs, and the weights of the edges of sums."""
        units, weights, numbers = self._read
        inputs = [numbers[n] for n in units.of_kind(INPUT)]
        return [self.univariate(n, self.nodes[n]) for n in inputs], [math.exp(w) for w in weights]

    def univariate(self, n: int, node: Mapping[str, Any]) -> Univariate:
        """The kernel of an input.

        Raises:
            InvalidCircuit: it has none, or a matrix that is no kernel.
        """
        kernel = node.get("kernel")
        if isinstance(kernel, Univariate):
            return kernel
        if isinstance(kernel, Kernel):
            terms = kernel.terms(1)
            if len(terms) == 1 and terms[0][0] == 1.0:
                return terms[0][1][0]
            raise InvalidCircuit(f"node {n} has a weighted sum of kernels: write it as a sum node")
        try:
            # numpy reads lists of floats as double, torch as single
            known = isinstance(kernel, Tensor)
            return Table(kernel if known else torch.from_numpy(np.asarray(kernel)))
        except InvalidCircuit as error:
            raise InvalidCircuit(f"node {n}: {error}") from error
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidCircuit(
                f'node {n} has the "kernel" {kernel!r}; an input has a kernel or a matrix [c, c]'
            ) from error

    def terms(self, num_variables: int) -> list[tuple[float, list[Univariate]]]:
        units = self.units(num_variables)
        inputs, weights = map(iter, self.numbers())
        below: list[list[tuple[float, dict[int, Univariate]]]] = []
        for n, kind in enumerate(units.kind.tolist()):
            children = units.children(n).tolist()
            if kind == INPUT:
                below.append([(1.0, {int(units.var[n]): next(inputs)})])
            elif kind == PRODUCT:
                terms: list[tuple[float, dict[int, Univariate]]] = [(1.0, {})]
                for c in children:
                    terms = [(a * b, s | t) for a, s in terms for b, t in below[c]]
                below.append(terms)
            else:
                weighted = [(next(weights), c) for c in children]
                below.append([(w * a, s) for w, c in weighted for a, s in below[c]])
        return [(w, [s[i] for i in range(num_variables)]) for w, s in below[-1]]


def _complete(points: Tensor, cards: Sequence[int | None], name: str) -> Tensor:
    """Checked points without missing values, float64."""
    points = Domain(tuple(cards), np.zeros(0, np.int64)).check(points)
    missing = points.isnan()
    if bool(missing.any()):
        row, v = missing.nonzero()[0].tolist()
        raise OptionError(
            f"row {row} of {name} has no value of variable {v}; k(x, y) is of complete points. "
            "Under a circuit, expected_kernel sums missing values out"
        )
    return points


def check_kernel(kernel: Any) -> None:
    """Raise unless it is a kernel.

    Raises:
        OptionError: it is another object, or the class in the place of one.
    """
    if not isinstance(kernel, Kernel):
        raise OptionError(
            f"kernel={kernel!r} is no kernel of pg.circuits: Hamming(), RBF(bandwidth), Delta(), "
            "their sums and products, or a KernelCircuit"
        )
