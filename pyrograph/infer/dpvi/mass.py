"""The mass of all joint states by elimination, where that costs next to nothing.

    log sum_x prod_a f_a(x_a)

one node after the other summed out, all in log space.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyrograph.infer.dpvi.contexts import contexts_of, filed, over

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
    contexts = contexts_of(scopes, cards, MOST_ENTRIES)
    if contexts is None:
        return None
    waiting, total = filed(contexts, scopes, tables, cards)
    for v, context in contexts.items():
        bag = [v, *context]
        joint = np.zeros([cards[u] for u in bag])
        for scope, table in waiting[v]:
            joint += over(bag, scope, table, cards)
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
