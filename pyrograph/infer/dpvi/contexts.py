"""In which order variables are eliminated, what is in a table with each when its turn comes, and
which factors are read then.

That of the smallest table next: all tables are priced before any is made, and given up as soon as
they are too large together.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from pyrograph.circuits.compiling.elimination import neighborhoods


def contexts_of(
    scopes: Sequence[Sequence[int]], cards: Sequence[int], most_entries: int
) -> dict[int, list[int]] | None:
    """Variables in the order in which they are eliminated, and what is in a table with each then,
    in that order; None where the tables have more entries together.

    Args:
        scopes: variables of each factor.
        cards: numbers of states; variables of one state say nothing and are in no context.
    """
    neighbors = neighborhoods([_told(scope, cards) for scope in scopes], len(cards))
    # tables of m variables at most leave no variable more than m - 1 edges when its turn comes
    if sum(map(len, neighbors)) > 2 * len(cards) * math.log2(max(2, most_entries)):
        return None
    found = _eliminated(neighbors, cards, most_entries)
    if found is None:
        return None
    position = {v: k for k, v in enumerate(found)}
    return {v: sorted(around, key=position.__getitem__) for v, around in found.items()}


def filed(
    contexts: dict[int, list[int]],
    scopes: Sequence[Sequence[int]],
    tables: Sequence[np.ndarray],
    cards: Sequence[int],
) -> tuple[list[list[tuple[list[int], np.ndarray]]], float]:
    """By the variable that reads them: tables and their variables, in the order of elimination; and
    the sum of those that read none.

    Args:
        tables: log values, ``[c_1, ..., c_k]`` each.
    """
    position = {v: k for k, v in enumerate(contexts)}
    waiting: list[list[tuple[list[int], np.ndarray]]] = [[] for _ in cards]
    constant = 0.0
    for scope, table in zip(scopes, tables, strict=True):
        told = _told(scope, cards)
        table = table.reshape([cards[v] for v in told])
        if not told:
            constant += float(table)
            continue
        axes = sorted(range(len(told)), key=lambda k: position[told[k]])
        own = [told[k] for k in axes]
        waiting[own[0]].append((own, table.transpose(axes)))
    return waiting, constant


def over(
    bag: Sequence[int], scope: Sequence[int], table: np.ndarray, cards: Sequence[int]
) -> np.ndarray:
    """A table with an axis for every variable of a bag, whose order it has; axes behind those of
    its own variables stay."""
    shape = [cards[u] if u in scope else 1 for u in bag]
    return table.reshape(shape + list(table.shape[len(scope) :]))


def _told(scope: Sequence[int], cards: Sequence[int]) -> list[int]:
    """Those of more than one state: an array has room for so many axes only."""
    return [v for v in scope if cards[v] > 1]


def _eliminated(
    neighbors: list[set[int]], cards: Sequence[int], most_entries: int
) -> dict[int, set[int]] | None:
    """Going by sizes alone takes a tenth of the time of a min-fill order, and as few graphs too
    many.

    Args:
        neighbors: of each variable; they are changed.
    """
    size = [c * math.prod(cards[u] for u in own) for c, own in zip(cards, neighbors, strict=True)]
    heap = [(entries, v) for v, entries in enumerate(size)]
    heapq.heapify(heap)
    found: dict[int, set[int]] = {}
    total = 0
    while heap:
        entries, v = heapq.heappop(heap)
        if v in found or entries != size[v]:
            continue
        total += entries
        if total > most_entries:
            return None
        around = found[v] = neighbors[v]
        for u in around:
            new = around - neighbors[u] - {u}
            neighbors[u] |= new
            neighbors[u].discard(v)
            entries = size[u] // cards[v] * math.prod(cards[w] for w in new)
            if entries != size[u]:
                size[u] = entries
                heapq.heappush(heap, (entries, u))
    return found
