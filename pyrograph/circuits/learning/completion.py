"""Rows whose missing values are filled in as a circuit has them, given the values that are present.

A row that occurs w times stands for w rows with k draws each. Where the missing values have fewer
states than that together, all of these take the place of draws, each with its probability: no
noise. Else they are drawn, so that what is drawn wrong averages out as it would over single rows.
"""

from __future__ import annotations

import numpy as np
import torch

from pyrograph.circuits.circuit import CHUNK, Circuit
from pyrograph.circuits.learning.table import Table
from pyrograph.circuits.structure.leaves import MISSING
from pyrograph.circuits.structure.units import INPUT, SUM

#: Numbers of the draws that rows have since they occur more than once, 128 MB.
MOST_NUMBERS = 2**24


def complete_rows(circuit: Circuit, table: Table, num_draws: int) -> Table:
    """Rows without missing values, of the same total weights.

    Args:
        circuit: of the table's variables; every row is possible.
        table: rows with or without missing values.
        num_draws: k above, of a row of weight 1 or less. Where all draws would not fit in memory,
            heavy rows have fewer, in proportion to their weights.
    """
    holes = table.codes == MISSING
    missing = holes.any(1)
    rows, weight = table.codes[missing], table.weight[missing]
    most = max(1, MOST_NUMBERS // rows.shape[1])
    times = np.maximum(1.0, weight * min(1.0, most / max(num_draws * weight.sum(), 1.0)))
    draws = num_draws * times
    states = np.where(holes[missing], np.array(table.cards, float), 1.0).prod(1)
    few = states <= draws
    parts = [(table.codes[~missing], table.weight[~missing])]
    parts.append(_enumerated(circuit, table.cards, rows[few], weight[few], states[few]))
    parts.append(_sampled(circuit, rows[~few], weight[~few], draws[~few].astype(np.int64)))
    codes, total = (np.concatenate(part) for part in zip(*parts, strict=True))
    distinct, group = np.unique(codes, axis=0, return_inverse=True)
    return Table(distinct, table.cards, np.bincount(group.reshape(-1), total, len(distinct)))


def _enumerated(
    circuit: Circuit, cards: tuple[int, ...], rows: np.ndarray, weight: np.ndarray, num: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Every completion of rows, and its share of the row's weight.

    Args:
        num: ``[N]``, of completions.
    """
    num = num.astype(np.int64)
    first = num.cumsum() - num
    codes = np.repeat(rows, num, 0)
    if not len(codes):
        return codes, weight
    number = np.arange(len(codes)) - np.repeat(first, num)
    for v, card in enumerate(cards):
        hole = codes[:, v] == MISSING
        codes[hole, v] = number[hole] % card
        number[hole] //= card
    log_p = circuit.log_prob(torch.from_numpy(codes)).detach().numpy()
    share = np.exp(log_p - np.repeat(np.maximum.reduceat(log_p, first), num))
    share *= np.repeat(weight / np.add.reduceat(share, first), num)
    return codes[share > 0], share[share > 0]


def _sampled(
    circuit: Circuit, rows: np.ndarray, weight: np.ndarray, num: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draws of rows, and their weights.

    Args:
        num: ``[N]``, of draws.
    """
    codes = np.repeat(rows, num, 0)
    chunk = max(1, CHUNK // (4 * len(circuit.units)))
    for begin in range(0, len(codes), chunk):
        codes[begin : begin + chunk] = _drawn(circuit, codes[begin : begin + chunk])
    return codes, np.repeat(weight / num, num)


def _drawn(circuit: Circuit, codes: np.ndarray) -> np.ndarray:
    """Rows ``[N, D]`` completed, from the root down: of a sum a child, with probability
    proportional to weight times the child's value at the row, of a product all children, of an
    input a state."""
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
