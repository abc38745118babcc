"""The mass of all joint states by elimination, where that costs next to nothing.

    log sum_x prod_a f_a(x_a)

one node after the other summed out, that of the smallest table next, all in log space. The tables
are priced before any is made, and the sum is given up as soon as they are too large together.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from pyrograph.circuits.elimination import neighborhoods

#: Nodes, and entries of all tables of an elimination, at most: a second, mostly far less.
MOST_NODES, MOST_ENTRIES = 2**11, 2**18


def log_mass_of(
    cards: Sequence[int], scopes: Sequence[Sequence[int]], tables: Sequence[np.ndarray]
) -> float | None:
    """Of the product of tables; None where it takes too much work.

    Args:
        cards: numbers of states.
        scopes: variables of each table; tables: log values, ``[c_1, ..., c_k]`` each.
    """
    if len(cards) > MOST_NODES:
        return None
    # variables of one state say nothing, and an array has room for so many axes only
    scopes = [[v for v in scope if cards[v] > 1] for scope in scopes]
    neighbors = neighborhoods(scopes, len(cards))
    # tables of m variables at most leave no variable more than m - 1 edges when its turn comes
    most_edges = len(cards) * math.log2(MOST_ENTRIES)
    contexts = _contexts(neighbors, cards) if sum(map(len, neighbors)) <= 2 * most_edges else None
    if contexts is None:
        return None
    position = {v: k for k, v in enumerate(contexts)}
    waiting: list[list[tuple[list[int], np.ndarray]]] = [[] for _ in cards]
    total = 0.0
    for scope, table in zip(scopes, tables, strict=True):
        table = table.reshape([cards[v] for v in scope])
        if not scope:
            total += float(table)
            continue
        axes = sorted(range(len(scope)), key=lambda k: position[scope[k]])
        own = [scope[k] for k in axes]
        waiting[own[0]].append((own, table.transpose(axes)))
    for v, around in contexts.items():
        context = sorted(around, key=position.__getitem__)
        bag = [v, *context]
        joint = np.zeros([cards[u] for u in bag])
        for scope, table in waiting[v]:
            joint += table.reshape([cards[u] if u in scope else 1 for u in bag])
        waiting[v] = []
        top = joint.max(0, keepdims=True)
        top[top == -np.inf] = 0.0
        with np.errstate(divide="ignore"):  # nothing is possible: the log of zero
            message = np.log(np.exp(joint - top).sum(0)) + top[0]
        if context:
            waiting[context[0]].append((context, message))
        else:
            total += float(message)
    return total


def _contexts(neighbors: list[set[int]], cards: Sequence[int]) -> dict[int, set[int]] | None:
    """Variables in the order in which they are summed out, and what is in a table with each then;
    None where the tables have too many entries.

    Going by sizes alone takes a tenth of the time of a min-fill order, and as few graphs too many.

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
        if total > MOST_ENTRIES:
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
