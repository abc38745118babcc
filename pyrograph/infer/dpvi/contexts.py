"""In which order variables are eliminated, and what is in a table with each when its turn comes.

That of the smallest table next: all tables are priced before any is made, and given up as soon as
they are too large together.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from pyrograph.circuits.elimination import neighborhoods


def contexts_of(
    scopes: Sequence[Sequence[int]], cards: Sequence[int], most_entries: int
) -> dict[int, list[int]] | None:
    """Variables in the order in which they are eliminated, and what is in a table with each then,
    in that order; None where the tables have more entries together.

    Args:
        scopes: variables of each factor, of more than one state.
        cards: numbers of states.
    """
    neighbors = neighborhoods(scopes, len(cards))
    # tables of m variables at most leave no variable more than m - 1 edges when its turn comes
    if sum(map(len, neighbors)) > 2 * len(cards) * math.log2(max(2, most_entries)):
        return None
    found = _eliminated(neighbors, cards, most_entries)
    if found is None:
        return None
    position = {v: k for k, v in enumerate(found)}
    return {v: sorted(around, key=position.__getitem__) for v, around in found.items()}


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
