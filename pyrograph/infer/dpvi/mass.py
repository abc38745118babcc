"""The mass of all joint states by elimination, where that costs next to nothing.

    log sum_x prod_a f_a(x_a)

one node after the other summed out, all in log space.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyrograph.infer.dpvi.contexts import contexts_of

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
    contexts = contexts_of(scopes, cards, MOST_ENTRIES)
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
    for v, context in contexts.items():
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
