"""Sums that decide on a variable: each child has an input of it, and no two share a state.

Such sums are deterministic, and telling them takes time in proportion to the edges. Compiled
circuits, tree networks and decision diagrams over single variables have no other sums.

Source: Choi, Vergari & Van den Broeck (2020), section 6 ("regular selection").
"""

from __future__ import annotations

import numpy as np

from pyrograph.circuits.units import INPUT, PRODUCT, Units


def decides(units: Units, possible: np.ndarray, weighted: np.ndarray) -> np.ndarray:
    """``[N]``, whether a unit is no sum, or one that decides on a variable.

    Args:
        possible: ``[inputs, c]``, which states of inputs are possible.
        weighted: whether weights are not zero, in order of edges of sums.
    """
    is_input = units.kind == INPUT
    row = np.cumsum(is_input) - 1
    # what each unit reads directly: (unit, input), ordered by unit
    of_product = (units.kind[units.parent] == PRODUCT) & is_input[units.child]
    reader = np.r_[np.flatnonzero(is_input), units.parent[of_product]]
    read = np.r_[np.flatnonzero(is_input), units.child[of_product]]
    order = np.argsort(reader, kind="stable")
    reader, read = reader[order], read[order]
    # every live edge of a sum with what its child reads
    live = np.flatnonzero(units.edge_is_sum)[weighted]
    owner, child = units.parent[live], units.child[live]
    begin = np.searchsorted(reader, child)
    count = np.searchsorted(reader, child, side="right") - begin
    place = np.repeat(begin - (count.cumsum() - count), count) + np.arange(count.sum())
    owner_of, found = np.repeat(owner, count), read[place]
    # by sum and variable: read by every child, each state by one of them
    most = max(int(units.var.max()) + 1, 1)
    key, group = np.unique(owner_of * most + units.var[found], return_inverse=True)
    readers = np.bincount(group, minlength=len(key))
    shared = np.zeros(len(key), bool)
    for states in possible.T:
        shared |= np.bincount(group, states[row[found]], len(key)) > 1
    children = np.bincount(owner, minlength=len(units))
    decided = children <= 1
    sums = key // most
    decided[sums[(readers == children[sums]) & ~shared]] = True
    return decided
