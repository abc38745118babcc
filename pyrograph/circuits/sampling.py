"""Draws from a circuit, and its most probable state: one pass from the root down.

Every point takes one child of each sum that it meets, drawn by weight or the highest, and all
children of each product, until it has one input for every variable. Units that no point meets cost
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pyrograph.circuits.units import INPUT, SUM
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
def draw_given(circuit: Circuit, given: Tensor) -> Tensor:
    """``[B, D]``: the missing values of checked points, drawn given the rest of their row."""
    units = circuit.units
    values = circuit.layers.all_values(circuit.leaves.log_prob(given), circuit.log_weights)
    impossible = ~values[-1].isfinite()
    if bool(impossible.any()):
        raise ZeroMass(f"row {int(impossible.nonzero()[0])} is impossible under the circuit")
    child = torch.as_tensor(units.child[units.edge_is_sum], device=values.device)

    def choose(sums: Tensor, points: Tensor, first: Tensor, last: Tensor) -> Tensor:
        # the highest of the children's log values with Gumbel noise
        count = last - first + 1
        which = torch.repeat_interleave(torch.arange(len(sums), device=sums.device), count)
        place = torch.arange(len(which), device=sums.device)
        place -= torch.repeat_interleave(count.cumsum(0) - count, count)
        edge = first[which] + place
        noise = -torch.empty_like(edge, dtype=torch.float64).exponential_().log()
        score = circuit.log_weights[edge] + values[child[edge], points[which]] + noise
        best = score.new_full((len(sums),), -torch.inf).scatter_reduce(0, which, score, "amax")
        found = torch.zeros_like(sums)
        is_best = score == best[which]
        found[which[is_best]] = place[is_best]
        return found

    points, inputs = _met(circuit, len(given), choose)
    drawn = _inputs(circuit, len(given), points, inputs)
    return torch.where(given.isnan(), drawn, given.nan_to_num(0.0).to(drawn.dtype))


def _inputs(circuit: Circuit, count: int, points: Tensor, rows: Tensor) -> Tensor:
    """A draw of every input that a point has come to, ``[n, D]``."""
    leaves = circuit.leaves
    device = circuit.log_table.device
    dtype = circuit.log_weights.dtype if None in circuit.cards else torch.int64
    out = torch.zeros(count, circuit.num_variables, dtype=dtype, device=device)
    var, real = leaves.var[rows], leaves.is_real[rows]
    table = leaves.log_table.detach()[rows[~real]].softmax(1)
    if len(table):
        out[points[~real], var[~real]] = torch.multinomial(table, 1).squeeze(1).to(dtype)
    if bool(real.any()):
        which = rows[real]
        noise = torch.randn(len(which), dtype=dtype, device=device)
        drawn = leaves.loc[which].detach() + noise * leaves.scale[which].detach()
        out[points[real], var[real]] = drawn
    return out


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


def highest_state(circuit: Circuit, evidence: Mapping[int, float]) -> tuple[Tensor, Tensor]:
    """The state of the highest value, by the highest child of every sum; exact if the circuit is
    deterministic."""
    units, leaves = circuit.units, circuit.leaves
    point = torch.full((1, circuit.num_variables), torch.nan, dtype=torch.float64)
    for v, value in evidence.items():
        point[0, v] = value
    point = circuit.domain.check(point.to(circuit.log_table.device))[0]
    at = point[leaves.var]
    states = torch.arange(leaves.log_table.shape[1], device=at.device)
    keep = at.isnan().unsqueeze(1) | (at.unsqueeze(1) == states)
    table = torch.where(keep, leaves.log_table.detach(), -torch.inf)
    best, code = table.max(1)
    weights = circuit.log_weights.detach()
    values = circuit.layers.all_values(best.unsqueeze(1), weights, highest=True)[:, 0]
    if not bool(values[-1].isfinite()):
        raise ZeroMass("no state is possible under this evidence")
    state = torch.zeros(circuit.num_variables, dtype=torch.int64, device=at.device)
    edge_of_sum = np.cumsum(units.edge_is_sum) - 1
    values_of, w = values.cpu().numpy(), weights.cpu().numpy()
    input_row = np.cumsum(units.kind == INPUT) - 1
    open_units = [len(units) - 1]
    while open_units:
        n = open_units.pop()
        children = units.children(n)
        if units.kind[n] == INPUT:
            state[units.var[n]] = code[input_row[n]]
        elif units.kind[n] == SUM:
            own = w[edge_of_sum[units.start[n] : units.start[n + 1]]]
            open_units.append(int(children[np.argmax(values_of[children] + own)]))
        else:
            open_units += children.tolist()
    return state, values[-1]
