"""Sums that decide on a variable: each child has an input of it, and no two share a state.

Such sums are deterministic, and telling them takes time in proportion to the edges. Compiled
circuits, tree networks and decision diagrams over single variables have no other sums.

Source: Choi, Vergari & Van den Broeck (2020), section 6 ("regular selection").
"""

from __future__ import annotations

import numpy as np

from pyrograph.circuits.structure.units import INPUT, PRODUCT, Units


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
    owner_of, found = np.repeat(owner, count), read[_stretches(begin, count)]
    # by sum and variable: read by every child, ...
    most = max(int(units.var.max()) + 1, 1)
    key, group = np.unique(owner_of * most + units.var[found], return_inverse=True)
    sums, readers = key // most, np.bincount(group, minlength=len(key))
    children = np.bincount(owner, minlength=len(units))
    # ... each state by one of them, so that they have no more than there are
    card, size = possible.shape[1], possible.sum(1)
    total = np.bincount(group, size[row[found]], len(key))
    is_apart = (readers == children[sums]) & (total <= card)
    group, inputs = group[is_apart[group]], row[found[is_apart[group]]]
    state = possible.nonzero()[1][_stretches((size.cumsum() - size)[inputs], size[inputs])]
    read_by, times = np.unique(np.repeat(group, size[inputs]) * card + state, return_counts=True)
    is_apart[read_by[times > 1] // card] = False
    decided = children <= 1
    decided[sums[is_apart]] = True
    return decided


def _stretches(begin: np.ndarray, count: np.ndarray) -> np.ndarray:
    """``begin[k], begin[k] + 1, ...``, ``count[k]`` of them, for one k after the other."""
    return np.repeat(begin - (count.cumsum() - count), count) + np.arange(count.sum())
