"""Inputs of a circuit: categorical distributions and Gaussians of one variable each.

A categorical input is a row of log probabilities over the states 0 .. c - 1 (a Bernoulli has two,
an indicator has one that is not -inf); it need not add up to 1. A Gaussian input has a mean and a
standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrograph.checks import real_number, whole_number
from pyrograph.circuits.structure.layers import log_sum_exp
from pyrograph.circuits.structure.nodes import read_logs, refuse_gradient
from pyrograph.circuits.structure.units import INPUT, Units
from pyrograph.errors import InvalidCircuit, OptionError, ShapeMismatch

#: In data: the value is missing. NaN is, too.
MISSING = -1
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def numbers(values: Any, device: torch.device | None = None) -> Tensor:
    """Numbers as float64: of a tensor, an array, nested lists, a table (pandas).

    What numpy masks, and pandas' ``<NA>``, is NaN.

    Raises:
        OptionError: they are no numbers.
    """
    if isinstance(values, Tensor):
        if values.is_complex():
            raise OptionError(f"a table of {values.dtype} is none of numbers; give its real part")
        return values.to(device=device, dtype=torch.float64)
    if isinstance(values, (list, tuple)) and any(isinstance(v, Tensor) for v in values):
        values = torch.stack(
            [torch.as_tensor(v, dtype=torch.float64, device="cpu") for v in values]
        )
    try:
        return torch.tensor(_array(values), device=device)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"{type(values).__name__} where a table of numbers [B, D] is needed; missing is NaN"
        ) from error


def _array(values: Any) -> np.ndarray:
    """float64, NaN where something says that there is no value."""
    if isinstance(values, np.ma.MaskedArray):
        return values.astype(np.float64).filled(np.nan)
    if hasattr(values, "isna"):  # pandas
        return np.array(values.to_numpy(np.float64, na_value=np.nan))
    if isinstance(values, (list, tuple)) and any(getattr(v, "ndim", 0) for v in values):
        values = [_array(v) for v in values]
    return np.array(values, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Domain:
    """The variables: number of states, or None of a real variable.

    Attributes:
        var: ``[I]``, the variable of each input, in order of units.
    """

    cards: tuple[int | None, ...]
    var: np.ndarray

    @property
    def num_variables(self) -> int:
        return len(self.cards)

    def check(self, x: Any, device: torch.device | None = None) -> Tensor:
        """Points ``[B, D]`` as numbers whose missing ones are NaN, float64.

        Args:
            x: a tensor, or what :func:`numbers` reads.
            device: of the result; default that of ``x``.

        Raises:
            ShapeMismatch: wrong number of columns.
            OptionError: a code is no state of its variable; the text names row and variable.
        """
        x = numbers(x, device)
        if x.dim() != 2 or x.shape[1] != self.num_variables:
            raise ShapeMismatch(
                f"points have shape {tuple(x.shape)}; expected [B, {self.num_variables}]"
            )
        is_code = torch.tensor([c is not None for c in self.cards], device=x.device)
        x = torch.where(is_code & (x == MISSING), torch.nan, x)
        most = torch.tensor([math.inf if c is None else c for c in self.cards], device=x.device)
        code_wrong = is_code & ((x < 0) | (x >= most) | (x != x.floor()))
        wrong = (code_wrong & ~x.isnan()) | x.isinf()
        if bool(wrong.any()):
            row, v = wrong.nonzero()[0].tolist()
            card = self.cards[v]
            has = "real values; missing is NaN"
            if card is not None:
                has = f"states 0 .. {card - 1}; missing is NaN or -1"
            raise OptionError(
                f"row {row} has the value {x[row, v]:g} of variable {v}, which has {has}"
            )
        return x

    def row(self, evidence: Mapping[int, float]) -> Tensor:
        """``{variable: value}`` as a point ``[1, D]``, float64, NaN elsewhere.

        Raises:
            OptionError: it is no dict, a variable is not there, or cannot have its value.
        """
        if not isinstance(evidence, Mapping):
            raise OptionError(f"evidence={evidence!r} is no dict {{variable: value}}")
        row = torch.full((1, self.num_variables), torch.nan, dtype=torch.float64, device="cpu")
        for v, value in evidence.items():
            number = self._variable(v)
            row[0, number] = self._given(number, value)
        return row

    def _variable(self, v: Any) -> int:
        """The number of a variable."""
        number = whole_number(v)
        if number is None or not 0 <= number < self.num_variables:
            raise OptionError(
                f"there is no variable {v!r}; there are {self.num_variables}, numbered from 0"
            )
        return number

    def _given(self, v: int, value: Any) -> float:
        """A value that evidence gives to variable v."""
        try:
            found = math.nan if isinstance(value, str) else float(value)
        except (TypeError, ValueError, RuntimeError):  # None, several numbers
            found = math.nan
        card = self.cards[v]
        if not math.isfinite(found) or (card is not None and found not in range(card)):
            values = "real values" if card is None else f"states 0 .. {card - 1}"
            raise OptionError(
                f"evidence gives variable {v} the value {value!r}; it has {values}. Leave out "
                "variables that are missing"
            )
        return found


def read_inputs(
    nodes: Sequence[Mapping[str, Any]], units: Units, numbers: Sequence[int]
) -> tuple[Domain, Tensor, Tensor, Tensor]:
    """Domain, log tables ``[I, c]``, means and standard deviations ``[I]`` (NaN where none).

    Args:
        nodes: as written.
        units, numbers: of :func:`pyrograph.circuits.structure.nodes.read_nodes`.

    Raises:
        InvalidCircuit: inputs of one variable differ in kind or number of states, a variable has
            no input, or a number is out of range.
    """
    inputs = {numbers[n]: nodes[numbers[n]] for n in units.of_kind(INPUT)}
    num_variables = 1 + max(int(node["var"]) for node in inputs.values())
    cards: list[int | None] = [-1] * num_variables
    rows: list[list[float]] = []
    loc, scale = [], []
    for n, node in inputs.items():
        v = int(node["var"])
        is_gaussian = not {"probs", "log_probs"} & set(node)
        if is_gaussian and not {"loc", "scale"} <= set(node):
            raise InvalidCircuit(f'node {n} (input) has neither "probs" nor "loc" and "scale"')
        logs = [] if is_gaussian else read_logs(node, n, "probs")
        card = None if is_gaussian else len(logs)
        if cards[v] not in (-1, card):
            kinds = ["real" if c is None else f"{c} states" for c in (cards[v], card)]
            raise InvalidCircuit(f"node {n}: variable {v} is {kinds[0]} elsewhere, {kinds[1]} here")
        cards[v] = card
        if not is_gaussian and not max(logs, default=-math.inf) > -math.inf:
            raise InvalidCircuit(f"node {n}: {node.get('probs', logs)} are no probabilities")
        mean, deviation = _gaussian(node, n) if is_gaussian else (math.nan, math.nan)
        rows.append(logs)
        loc.append(mean)
        scale.append(deviation)
    if -1 in cards:
        raise InvalidCircuit(f"variable {cards.index(-1)} has no input")
    width = max(1, *map(len, rows))
    table = [row + [-math.inf] * (width - len(row)) for row in rows]
    domain = Domain(tuple(cards), units.var[units.kind == INPUT])
    tensors = (torch.tensor(values, dtype=torch.float64, device="cpu") for values in (loc, scale))
    return domain, torch.tensor(table, dtype=torch.float64, device="cpu"), *tensors


def _gaussian(node: Mapping[str, Any], n: int) -> tuple[float, float]:
    """Mean and standard deviation of an input.

    Raises:
        InvalidCircuit: they are none.
    """
    for key in ("loc", "scale"):
        refuse_gradient(node[key], n, key)
    loc, scale = real_number(node["loc"]), real_number(node["scale"])
    if not (math.isfinite(loc) and 0 < scale < math.inf):
        raise InvalidCircuit(
            f"node {n}: a Gaussian has a finite loc and a positive scale, not "
            f"{node['loc']!r} and {node['scale']!r}"
        )
    return loc, scale


@dataclass(frozen=True, eq=False)
class Leaves:
    """Inputs with their numbers; see :func:`read_inputs`."""

    domain: Domain
    log_table: Tensor
    loc: Tensor
    scale: Tensor

    @property
    def var(self) -> Tensor:
        return torch.as_tensor(self.domain.var, device=self.log_table.device)

    def log_mass(self) -> Tensor:
        """``[I]``, log of the sum or integral of each input."""
        return torch.where(self.is_real, 0.0, log_sum_exp(self.log_table))

    @property
    def is_real(self) -> Tensor:
        return self.loc.isfinite()

    def log_prob(self, x: Tensor) -> Tensor:
        """``[I, B]`` at checked points ``[B, D]``; missing values are summed out."""
        columns = x.t()[self.var]  # [I, B]
        missing, real = columns.isnan(), self.is_real.unsqueeze(1)
        code = torch.where(missing | real, 0.0, columns).long()
        values = self.log_table.gather(1, code)
        if bool(missing.any()):  # tables may be large
            values = torch.where(missing, log_sum_exp(self.log_table).unsqueeze(1), values)
        if not bool(self.is_real.any()):
            return values
        # a second where keeps NaN out of the derivatives
        at = torch.where(missing | ~real, 0.0, columns)
        loc = torch.where(self.is_real, self.loc, 0.0).unsqueeze(1)
        scale = torch.where(self.is_real, self.scale, 1.0).unsqueeze(1)
        density = -0.5 * ((at - loc) / scale) ** 2 - scale.log() - HALF_LOG_2PI
        density = density.to(values.dtype)
        return torch.where(real, torch.where(missing, 0.0, density), values)
