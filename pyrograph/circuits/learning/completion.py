"""Missing values drawn from a circuit given the values that are present."""

from __future__ import annotations

import numpy as np
import torch

from pyrograph.circuits.circuit import CHUNK, Circuit
from pyrograph.circuits.learning.table import Table
from pyrograph.circuits.leaves import MISSING
from pyrograph.circuits.units import INPUT, SUM


def draw_missing(circuit: Circuit, table: Table, num_draws: int) -> Table:
    """Rows without missing values, ``num_draws`` for each row that has some.

    A draw starts at the root: of a sum it takes a child with probability proportional to weight
    times the child's value at the row, of a product all children, of an input a state.
    """
    missing = (table.codes == MISSING).any(1)
    repeats = np.where(missing, num_draws, 1)
    codes = np.repeat(table.codes, repeats, 0)
    weight = np.repeat(table.weight / repeats, repeats)
    holes = np.repeat(missing, repeats)
    chunk = max(1, CHUNK // (4 * len(circuit.units)))
    for own in np.array_split(np.flatnonzero(holes), max(1, -(-holes.sum() // chunk))):
        codes[own] = _drawn(circuit, codes[own])
    rows, group = np.unique(codes, axis=0, return_inverse=True)
    return Table(rows, table.cards, np.bincount(group.reshape(-1), weight, len(rows)))


def _drawn(circuit: Circuit, codes: np.ndarray) -> np.ndarray:
    units = circuit.units
    at = circuit.leaves.log_prob(circuit.domain.check(torch.from_numpy(codes)))
    values = circuit.layers.all_values(at, circuit.log_weights).numpy()  # [N, B]
    log_weights = circuit.log_weights.numpy()
    edge_of_sum = np.cumsum(units.edge_is_sum) - 1
    row_of_input = np.cumsum(units.kind == INPUT) - 1
    probs = circuit.log_table.exp().numpy()
    codes = codes.copy()
    takes: dict[int, list[np.ndarray]] = {len(units) - 1: [np.arange(len(codes))]}
    for n in reversed(range(len(units))):
        if n not in takes:
            continue
        rows = np.concatenate(takes.pop(n))
        children = units.children(n)
        if units.kind[n] == INPUT:
            v = units.var[n]
            empty = rows[codes[rows, v] == MISSING]
            codes[empty, v] = _choose(np.tile(probs[row_of_input[n], :, None], len(empty)))
        elif units.kind[n] == SUM:
            edges = edge_of_sum[units.start[n] : units.start[n + 1]]
            score = values[np.ix_(children, rows)] + log_weights[edges, None]
            chosen = _choose(np.exp(score - score.max(0)))
            for k, child in enumerate(children.tolist()):
                takes.setdefault(child, []).append(rows[chosen == k])
        else:
            for child in children.tolist():
                takes.setdefault(child, []).append(rows)
    return codes


def _choose(share: np.ndarray) -> np.ndarray:
    """Of columns ``[k, n]``, one index each, in proportion."""
    ends = share.cumsum(0)
    u = torch.rand(share.shape[1], dtype=torch.float64, device="cpu").numpy()
    return (u * ends[-1] >= ends).sum(0).clip(max=len(share) - 1)
