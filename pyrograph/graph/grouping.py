"""Sort factors into groups that can be evaluated together.

A group's factors belong to one statement (or to the statements of one loop, whose names are alike
but for numbers), have the same number of nodes, and nodes of the same kinds slot by slot.

Scopes are in order of nodes, so that a scale may stand before the states of a loop or, in the first
factor, between them. Such factors are apart where that makes few groups: what holds of the slots of
one factor (it is quadratic in two of them, given the third) then holds of all.
"""

from __future__ import annotations

import re
from collections import Counter

import torch
from torch import Tensor

from pyrograph.trace.distinct import row_numbers
from pyrograph.trace.loops import LOOP_STATEMENTS
from pyrograph.trace.split import Terms

#: Orders of slots that are told apart; more would leave too few factors to a group.
MOST_ORDERS = 4


def families(names: list[str]) -> list[int]:
    """For every statement the first of those it shares groups with."""
    patterns = [re.sub(r"\d+", "#", name) for name in names]
    size = Counter(patterns)
    first: dict[tuple, int] = {}
    return [
        first.setdefault((p,) if size[p] >= LOOP_STATEMENTS else (p, k), k)
        for k, p in enumerate(patterns)
    ]


def group_factors(
    terms: Terms,
    statement: Tensor,
    names: list[str],
    kind_of_node: Tensor,
    family_of_node: Tensor,
) -> list[tuple[Tensor, Tensor]]:
    """Factor numbers ``[E]`` and scopes ``[E, arity]`` of every group, in order of statements.

    Args:
        statement: ``[F]``, of each factor.
        kind_of_node: ``[num_nodes]``; nodes of one kind have like events and states.
        family_of_node: ``[num_nodes]``; slots are told apart by the nodes' families.
    """
    arity = terms.ptr.diff()
    family = torch.tensor(families(names), dtype=torch.int64, device="cpu")[statement]
    groups = []
    for a in arity.unique().tolist():
        which = (arity == a).nonzero().squeeze(1)
        scope = terms.nodes[terms.ptr[which].unsqueeze(1) + torch.arange(a, device="cpu")]
        member = row_numbers(torch.cat([family[which].unsqueeze(1), kind_of_node[scope]], 1))
        order = member.argsort(stable=True)
        for part in order.split(torch.bincount(member).tolist()):
            for same in _like_orders(family_of_node[scope[part]]):
                groups.append((which[part[same]], scope[part[same]]))
    return sorted(groups, key=lambda g: (int(statement[g[0][0]]), g[1].shape[1]))


def _like_orders(family: Tensor) -> tuple[Tensor, ...]:
    """Rows of ``[E, arity]`` whose families stand in the same order; all rows if there are too many
    orders."""
    every = torch.arange(len(family), device="cpu")
    if bool((family == family[:1]).all()):
        return (every,)
    number = row_numbers(family.argsort(dim=1, stable=True))
    sizes = torch.bincount(number).tolist()
    return number.argsort(stable=True).split(sizes) if len(sizes) <= MOST_ORDERS else (every,)
