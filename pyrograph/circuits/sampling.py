"""Draws from a circuit, and its most probable state: one pass from the root down.

Every point takes one child of each sum that it meets, drawn by weight or the highest, and all
children of each product, until it has one input for every variable. Units that no point meets cost
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pyrograph.circuits.structure.units import INPUT, SUM
from pyrograph.errors import ZeroMass

if TYPE_CHECKING:
    from pyrograph.circuits.circuit import Circuit

#: From sums, their points and the first and last of their weights to a place among the children.
Choice = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def draw(circuit: Circuit, num_samples: int) -> Tensor:
    """``[n, D]`` draws from a circuit whose units are normalised."""
    weights = circuit.log_weights.detach().double().exp()
    ends = weights.cumsum(0)

    def choose(sums: Tensor, points: Tensor, first: Tensor, last: Tensor) -> Tensor:
        # the first weight whose cumulated sum is above a uniform number
        before = torch.where(first > 0, ends[(first - 1).clamp_min(0)], 0.0)
        u = torch.rand(len(sums), dtype=ends.dtype, device=ends.device)
        found = torch.searchsorted(ends, before + u * (ends[last] - before), right=True)
        return torch.minimum(torch.maximum(found, first), last) - first

    points, inputs = _met(circuit, num_samples, choose)
    return _inputs(circuit, num_samples, points, inputs)


@torch.no_grad()
def complete(circuit: Circuit, given: Tensor, highest: bool) -> tuple[Tensor, Tensor]:
    """Missing values of checked points ``[B, D]``, and the log value of every row.

    Args:
        highest: take the most probable values, which is exact if the circuit is deterministic;
            else draw them given the rest of their row.
    """
    units, leaves = circuit.units, circuit.leaves
    at_inputs = leaves.log_prob(given)
    if highest:
        missing = given.t()[leaves.var].isnan()
        at_inputs = torch.where(missing, leaves.log_table.amax(1, keepdim=True), at_inputs)
    values = circuit.layers.all_values(at_inputs, circuit.log_weights, highest)
    impossible = ~values[-1].isfinite()
    if bool(impossible.any()):
        raise ZeroMass(
            f"no state is possible under the evidence (row {int(impossible.nonzero()[0])})"
        )
    child = torch.as_tensor(units.child[units.edge_is_sum], device=values.device)

    def choose(sums: Tensor, points: Tensor, first: Tensor, last: Tensor) -> Tensor:
        # the highest of the children's log values, with Gumbel noise where it is drawn
        count = last - first + 1
        which = torch.repeat_interleave(torch.arange(len(sums), device=sums.device), count)
        place = torch.arange(len(which), device=sums.device)
        place -= torch.repeat_interleave(count.cumsum(0) - count, count)
        edge = first[which] + place
        score = circuit.log_weights[edge] + values[child[edge], points[which]]
        if not highest:
            score = score - torch.empty_like(score).exponential_().log()
        best = score.new_full((len(sums),), -torch.inf).scatter_reduce(0, which, score, "amax")
        found = torch.zeros_like(sums)
        is_best = score == best[which]
        found[which[is_best]] = place[is_best]
        return found

    points, inputs = _met(circuit, len(given), choose)
    filled = _inputs(circuit, len(given), points, inputs, highest)
    filled = torch.where(given.isnan(), filled, given.nan_to_num(0.0).to(filled.dtype))
    return filled, values[-1].to(circuit.log_weights.dtype)


def _inputs(
    circuit: Circuit, count: int, points: Tensor, rows: Tensor, highest: bool = False
) -> Tensor:
    """A draw, or the highest state, of every input that a point has come to, ``[n, D]``."""
    leaves = circuit.leaves
    device = circuit.log_table.device
    dtype = circuit.log_weights.dtype if None in circuit.cards else torch.int64
    out = torch.zeros(count, circuit.num_variables, dtype=dtype, device=device)
    var, real = leaves.var[rows], leaves.is_real[rows]
    discrete = rows[~real]
    if len(discrete):
        code = _codes(leaves.log_table.detach(), discrete, highest)
        out[points[~real], var[~real]] = code.to(dtype)
    if bool(real.any()):
        which = rows[real]
        noise = torch.randn(len(which), dtype=dtype, device=device)
        drawn = leaves.loc[which].detach() + noise * leaves.scale[which].detach()
        out[points[real], var[real]] = drawn
    return out


def _codes(log_table: Tensor, rows: Tensor, highest: bool) -> Tensor:
    """A state by every row's probabilities, or the highest: ``[len(rows)]``.

    By inversion of cumulated probabilities, each of which is made once however often it is met;
    the state is found by bisection, so that O(1) numbers are held for every draw.
    """
    is_met = torch.zeros(len(log_table), dtype=torch.bool, device=rows.device)
    is_met[rows] = True
    row = (is_met.cumsum(0) - 1)[rows]
    table = log_table[is_met]
    if highest:
        return table.argmax(1)[row]
    ends = table.double().softmax(1).cumsum(1)
    total = ends[row, -1]
    # below the total, so that the first end above it is one of positive probability
    u = torch.rand_like(total) * total
    u = torch.minimum(u, torch.nextafter(total, torch.zeros_like(total)))
    first, last = torch.zeros_like(row), torch.full_like(row, ends.shape[1] - 1)
    for _ in range((ends.shape[1] - 1).bit_length()):
        middle = (first + last) // 2
        is_above = ends[row, middle] > u
        first, last = torch.where(is_above, first, middle + 1), torch.where(is_above, middle, last)
    return first


def _met(circuit: Circuit, count: int, choose: Choice) -> tuple[Tensor, Tensor]:
    """Pairs of points and inputs that they come to."""
    units = circuit.units
    device = circuit.log_weights.device
    start = torch.as_tensor(units.start, device=device)
    child = torch.as_tensor(units.child, device=device)
    kind = torch.as_tensor(units.kind, device=device)
    edge_of_sum = torch.as_tensor(np.cumsum(units.edge_is_sum) - 1, device=device)
    input_row = torch.as_tensor(np.cumsum(units.kind == INPUT) - 1, device=device)
    point = torch.arange(count, device=device)
    if not count:
        return point, point
    unit = torch.full_like(point, len(units) - 1)
    points, rows = [], []
    while len(point):
        done = kind[unit] == INPUT
        points.append(point[done])
        rows.append(input_row[unit[done]])
        point, unit = point[~done], unit[~done]
        is_sum = kind[unit] == SUM
        sums, products = unit[is_sum], unit[~is_sum]
        below = sums
        if len(sums):
            first, last = edge_of_sum[start[sums]], edge_of_sum[start[sums + 1] - 1]
            below = child[start[sums] + choose(sums, point[is_sum], first, last)]
        repeats = start[products + 1] - start[products]
        place = torch.arange(int(repeats.sum()), device=device)
        place -= torch.repeat_interleave(repeats.cumsum(0) - repeats, repeats)
        edge = torch.repeat_interleave(start[products], repeats) + place
        point = torch.cat([point[is_sum], torch.repeat_interleave(point[~is_sum], repeats)])
        unit = torch.cat([below, child[edge]])
    return torch.cat(points), torch.cat(rows)
