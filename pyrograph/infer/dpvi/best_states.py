"""The K best joint states themselves, where a program's factors are few together.

    x_1, ..., x_K = argmax_x prod_a f_a(x_a), the first to the K-th

One node after the other is eliminated, with lists in place of numbers: for all states of the nodes
that are still read with it, a node hands on the K best ways to choose its own state and those of
the nodes behind it. Two lists that meet are joined by their best K pairs, of which the i-th of one
and the j-th of the other are none unless i j <= K. On a chain this is list Viterbi.

The best K states have the highest bound of all sets of K particles, so nothing is left to search.

Sources: Seshadri & Sundberg (1994), "List Viterbi decoding algorithms with applications"; Flerova,
Rollon & Dechter (2011), "Bucket and mini-bucket schemes for M best solutions over graphical
models", elim-m-opt.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from pyrograph.infer.dpvi.contexts import contexts_of, filed, over
from pyrograph.infer.dpvi.network import Network

#: Nodes and entries of all factors, at most.
MOST_NODES, MOST_ENTRIES = 2**17, 2**24
#: Entries of all lists and pairs that are looked at, at most: two seconds, mostly far less; or for
#: every node, on long chains, whose local moves take longer than the .1 ms of a node here.
PRICE, PRICE_OF_NODE = 2**25, 2**10


@dataclass(frozen=True)
class _Joined:
    """What a list of pairs was made of: places in the one and in the other, ``[..., k]`` each; None
    for a list of one entry, whose place is 0."""

    source: int
    left: ndarray | None
    right: ndarray | None


@dataclass(frozen=True)
class _Chosen:
    """How a node and what is behind it were chosen, for the states of its context.

    Attributes:
        context: nodes.
        place: ``[*context, k]``, of pairs (own state, place in the list of that state).
        length: of the lists of states.
        joined: what these were made of, the first first.
    """

    context: list[int]
    place: ndarray
    length: int
    joined: list[_Joined]


def best_states(network: Network, count: int) -> Tensor | None:
    """Joint states ``[V, K]`` of the highest scores, falling; K is ``count``, or the number of all
    joint states if that is less. None where it would take much work."""
    if network.num_nodes > MOST_NODES:
        return None
    cards, groups = network.cards.tolist(), network.summed()
    num_pairs = sum(len(group.scope) for group in groups if group.scope.shape[1] == 2)
    # so many edges are in no graph of small tables
    if num_pairs > 2 * len(cards) * math.log2(PRICE):
        return None
    if sum(group.values.numel() for group in groups) > MOST_ENTRIES:
        return None
    scopes = [scope for group in groups for scope in group.scope.tolist()]
    most = max(PRICE, PRICE_OF_NODE * len(cards))
    contexts = contexts_of(scopes, cards, most // count)
    if contexts is None or _price(contexts, cards, count) > most:
        return None
    tables = [table for group in groups for table in group.values.cpu().numpy()]
    waiting, _ = filed(contexts, scopes, tables, cards)
    lists: list[list[tuple[int, ndarray]]] = [[] for _ in cards]
    chosen: dict[int, _Chosen] = {}
    roots: list[tuple[int, ndarray]] = []
    for v, context in contexts.items():
        bag = [v, *context]
        score = np.zeros([cards[u] for u in bag])
        for scope, table in waiting[v]:
            score += over(bag, scope, table, cards)
        score, joined = score[..., None], []
        for source, message in lists[v]:
            wide = over(bag, chosen[source].context, message, cards)
            score, step = _join(score, wide, source, count)
            joined.append(step)
        flat = np.moveaxis(score, 0, -2)
        flat = flat.reshape(*flat.shape[:-2], -1)
        place = _highest(flat, count)
        chosen[v] = _Chosen(context, place, score.shape[-1], joined)
        message = np.take_along_axis(flat, place, -1)
        (lists[context[0]] if context else roots).append((v, message))
        lists[v], waiting[v] = [], []
    score, joined = np.zeros(1), []
    for source, message in roots:
        score, step = _join(score, message, source, count)
        joined.append(step)
    x = _traced(chosen, joined, len(cards), len(score))
    return torch.from_numpy(x).to(network.cards.device)


def _price(contexts: dict[int, list[int]], cards: list[int], count: int) -> int:
    """Entries of all lists, and pairs of entries that are looked at where lists are joined."""
    pairs = sum(count // k for k in range(1, count + 1))
    num_lists = Counter(context[0] for context in contexts.values() if context)
    num_roots = sum(not context for context in contexts.values())
    return pairs * num_roots + sum(
        math.prod(cards[u] for u in (v, *context)) * (count + pairs * max(0, num_lists[v] - 1))
        for v, context in contexts.items()
    )


def _highest(score: ndarray, count: int) -> ndarray:
    """Places of the highest along the last axis, falling, in whole numbers as short as can be."""
    kind = np.min_scalar_type(score.shape[-1])
    if score.shape[-1] <= 4 * count:
        return np.argsort(-score, axis=-1, kind="stable")[..., :count].astype(kind)
    # sorting all of many would cost more
    some = np.sort(np.argpartition(-score, count - 1, axis=-1)[..., :count], axis=-1)
    order = np.argsort(-np.take_along_axis(score, some, -1), axis=-1, kind="stable")
    return np.take_along_axis(some, order, -1).astype(kind)


def _join(left: ndarray, right: ndarray, source: int, count: int) -> tuple[ndarray, _Joined]:
    """The best sums of an entry of one list ``[..., k]`` and one of another."""
    if left.shape[-1] == 1:
        return left + right, _Joined(source, None, _own(right) if right.shape[-1] > 1 else None)
    if right.shape[-1] == 1:
        return left + right, _Joined(source, _own(left), None)
    i, j = _worth_a_look(left.shape[-1], right.shape[-1], count)
    total = left[..., i] + right[..., j]
    best = _highest(total, count)
    return np.take_along_axis(total, best, -1), _Joined(source, i[best], j[best])


@lru_cache(maxsize=16)
def _worth_a_look(left: int, right: int, count: int) -> tuple[ndarray, ndarray]:
    """Pairs of places in two falling lists that may be among the best ``count`` sums."""
    partners = np.minimum(count // np.arange(1, left + 1), right)
    i = np.arange(left, dtype=np.int32).repeat(partners)
    first = (partners.cumsum() - partners).repeat(partners)
    return i, (np.arange(len(i)) - first).astype(np.int32)


def _own(values: ndarray) -> ndarray:
    """The places of a list as they are."""
    return np.arange(values.shape[-1], dtype=np.int32)


def _traced(
    chosen: dict[int, _Chosen], roots: list[_Joined], num_nodes: int, count: int
) -> ndarray:
    """States ``[V, K]`` of the final list, from the last eliminated node back to the first."""
    x = np.zeros((num_nodes, count), dtype=np.int64)
    places: dict[int, ndarray] = {}

    def part(joined: list[_Joined], at: ndarray, states: tuple[ndarray, ...]) -> None:
        for step in reversed(joined):
            places[step.source] = _looked_up(step.right, states, at)
            at = _looked_up(step.left, states, at)

    part(roots, np.arange(count), ())
    for v in reversed(chosen):
        made = chosen[v]
        context = tuple(x[u] for u in made.context)
        place = made.place[(*context, places.pop(v))]
        x[v], at = np.divmod(place, made.length)
        part(made.joined, at, (x[v], *context))
    return x


def _looked_up(table: ndarray | None, states: tuple[ndarray, ...], at: ndarray) -> ndarray:
    """Places of a list at given ones of the list that was made of it."""
    if table is None:
        return np.zeros_like(at)
    return table[at] if table.ndim == 1 else table[(*states, at)]
